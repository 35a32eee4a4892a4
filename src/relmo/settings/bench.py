"""What `relmo bench` times."""

from dataclasses import dataclass
from typing import Literal

from relmo.settings.arguments import PathName


@dataclass(frozen=True, kw_only=True)
class BenchOptions:
    """What to time, and on what."""

    what: Literal["embed", "train", "translate", "explore", "all"] = "all"
    """Embedding, training, sequence to sequence, the explorer's answers, or all of it."""
    geometry: str | None = None
    """The models, with commas between them: tiny, small, medium, original. small,original where not given; with
    --quick small."""
    dtype: str | None = None
    """The precisions, with commas between them: float32, bfloat16, int8 (embedding on a CPU). All where not given; on a
    GPU bfloat16."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where to compute; auto takes a GPU where there is one."""
    threads: int | None = None
    """CPU threads; as torch chooses where not given."""
    text: PathName | None = None
    """What to read (plain, .gz, .xz, .zst), a sentence a line, or .conllu; the bundled text where not given."""
    tokens: int | None = None
    """How many tokens of it to embed; by default so many that all takes some minutes."""
    rounds: int | None = None
    """How often everything is timed; 3 where not given, with --quick 2."""
    quick: bool = False
    """Less of everything: the small model, a short text, two rounds."""
