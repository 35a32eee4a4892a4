"""`relmo generate MODEL`"""

import dataclasses
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from relmo.cli.options import Device
from relmo.cli.terminal import make_console, print_json
from relmo.errors import SettingError
from relmo.settings.arguments import PathName

if TYPE_CHECKING:
    from relmo.models.lm import Text


@dataclass(frozen=True, kw_only=True)
class DecodingOptions:
    """How the next symbol is chosen."""

    temperature: float = 1.0
    """Below 1 favours probable symbols, above 1 flattens the distribution; 0 is greedy."""
    greedy: bool = False
    """Always choose the most probable symbol, like --temperature 0."""
    top_k: int | None = None
    """Sample from the k most probable symbols."""
    top_p: float | None = None
    """Sample from the most probable symbols that together have probability p."""
    beams: int | None = None
    """Beam search with this many beams instead of sampling; prints the --samples best texts."""
    unknown: bool = False
    """Allow `<unk>`."""


def generate(
    model: PathName,
    *,
    prompt: str = "",
    limit: int = 500,
    samples: int = 1,
    decoding: Annotated[DecodingOptions, Parameter(name="*")] = DecodingOptions(),
    seed: int = 0,
    device: Device = "auto",
    json: bool = False,
    quiet: bool = False,
) -> None:
    """Generate text with a language model, up to the end-of-text symbol or a limit.

    For example:

        relmo generate prose --prompt "The Prince " --limit 200 --temperature 0.5

        relmo generate models/mine --prompt "ROMEO:" --limit 300 --temperature 0.8 --seed 7

    Parameters
    ----------
    model
        A model folder, or a bundled model.
    prompt
        Beginning of the text.
    limit
        Maximum number of symbols (characters or words).
    samples
        Number of texts.
    seed
        The same seed gives the same text.
    json
        Print one JSON object: the texts with their log-probabilities.
    quiet
        Print the texts without headings when they are complete.
    """
    _check_options(decoding, limit, samples)
    from relmo.loading import load

    loaded = load(model, kinds="lm", device=device)
    if decoding.beams:
        results = loaded.search(prompt, beams=decoding.beams, limit=limit, unknown=decoding.unknown)
        stream = iter([results[:samples]])
    else:
        sampling: dict[str, Any] = {"top_k": decoding.top_k, "top_p": decoding.top_p}
        sampling["temperature"] = 0.0 if decoding.greedy else decoding.temperature
        stream = loaded.stream(prompt, limit=limit, samples=samples, seed=seed, unknown=decoding.unknown, **sampling)
    if json:
        *_, texts = stream
        print_json({"model": model, "texts": [dataclasses.asdict(text) for text in texts]})
    elif samples == 1 and not quiet:
        _print_stream(stream)
    else:
        _print_texts(stream, headings=not quiet)


def _check_options(decoding: DecodingOptions, limit: int, samples: int) -> None:
    for name, count in (("limit", limit), ("samples", samples), ("beams", decoding.beams)):
        if count is not None and count < 1:
            raise SettingError(f"--{name} must be 1 or more, not {count}")
    if decoding.beams and (decoding.greedy or decoding.top_k or decoding.top_p or decoding.temperature != 1.0):
        raise SettingError("--beams does not sample; omit --greedy, --temperature, --top-k and --top-p.")
    if decoding.beams and samples > decoding.beams:
        raise SettingError(f"--samples {samples} is more than --beams {decoding.beams}.")


def _print_stream(stream: "Iterator[list[Text]]") -> None:
    """Print a text while it is generated."""
    printed = ""
    for (text,) in stream:
        sys.stdout.write(text.text[len(printed) :] if text.text.startswith(printed) else f"\n{text.text}")
        sys.stdout.flush()
        printed = text.text
    print()


def _print_texts(stream: "Iterator[list[Text]]", *, headings: bool) -> None:
    """Print several texts: on a terminal while they are generated, otherwise when all are complete."""
    from rich.console import Group
    from rich.live import Live
    from rich.panel import Panel
    from rich.text import Text as Plain

    console = make_console(stderr=False)
    if console.is_terminal and headings:
        with Live(console=console, refresh_per_second=8, vertical_overflow="visible") as live:
            for texts in stream:
                panels = [Panel(Plain(t.text), title=f"{t.log_prob:.1f}", title_align="right") for t in texts]
                live.update(Group(*panels))
        return
    *_, texts = stream
    for number, text in enumerate(texts, start=1):
        if headings:
            print(f"--- {number}  log-probability {text.log_prob:.2f}  {text.symbols} symbols")
        print(text.text)
