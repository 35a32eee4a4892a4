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
    """The models, with commas between them: tiny, small, medium, original. The default is small,original, and small
    with --quick."""
    dtype: str | None = None
    """The precisions, with commas between them: float32, bfloat16, int8 (embedding on a CPU). The default is all of
    them, and bfloat16 on a GPU."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where to compute; auto takes a GPU if there is one."""
    threads: int | None = None
    """CPU threads. By default torch chooses."""
    text: PathName | None = None
    """What to read: a file with a sentence a line (plain, .gz, .xz, .zst), or .conllu. The default is the text that
    ships."""
    tokens: int | None = None
    """How many tokens of it to embed. By default there are so many that the whole table takes some minutes."""
    rounds: int | None = None
    """How often everything is timed: by default 3 times, and twice with --quick."""
    quick: bool = False
    """Less of everything: the small model, a short text, two rounds."""
