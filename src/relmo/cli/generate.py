"""`relmo generate MODEL`"""

import dataclasses
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from relmo.cli.terminal import make_console, print_json
from relmo.errors import SettingError
from relmo.settings.arguments import PathName

if TYPE_CHECKING:
    from relmo.models.lm import Text


@dataclass(frozen=True, kw_only=True)
class DecodingOptions:
    """How the next symbol is chosen."""

    temperature: float = 1.0
    """Below 1, probable symbols become more probable. Above 1, all symbols become more alike. 0 is greedy."""
    greedy: bool = False
    """Always take the most probable symbol; the same as --temperature 0."""
    top_k: int | None = None
    """Choose among the k most probable symbols only."""
    top_p: float | None = None
    """Choose among the most probable symbols that together hold probability p."""
    beams: int | None = None
    """Search for the most probable text with this many beams instead of sampling. The --samples best texts are
    printed."""
    unknown: bool = False
    """Also allow `<unk>`."""


def generate(
    model: PathName,
    *,
    prompt: str = "",
    limit: int = 500,
    samples: int = 1,
    decoding: Annotated[DecodingOptions, Parameter(name="*")] = DecodingOptions(),
    seed: int = 0,
    device: Literal["auto", "cpu", "cuda"] = "auto",
    json: bool = False,
    quiet: bool = False,
) -> None:
    """Write text with a language model, until the end-of-text symbol or a limit.

    For example:

        relmo generate prose --prompt "The Prince " --limit 200 --temperature 0.5

        relmo generate models/mine --prompt "ROMEO:" --limit 300 --temperature 0.8 --seed 7

    Parameters
    ----------
    model
        The model's folder.
    prompt
        What the text begins with; by default nothing.
    limit
        Stop after this many symbols (characters or words).
    samples
        How many texts, made side by side.
    seed
        The same seed gives the same text.
    device
        Where to compute; auto takes a GPU if there is one.
    json
        Print one JSON object: the texts with their log-probabilities.
    quiet
        Print the texts only when they are done, without headings.
    """
    check(decoding, limit, samples)
    from relmo.loading import load

    loaded = load(model, kinds="lm", device=device)
    if decoding.beams:
        grown = iter([loaded.search(prompt, beams=decoding.beams, limit=limit, unknown=decoding.unknown)[:samples]])
    else:
        sampling: dict[str, Any] = {"top_k": decoding.top_k, "top_p": decoding.top_p}
        sampling["temperature"] = 0.0 if decoding.greedy else decoding.temperature
        grown = loaded.stream(prompt, limit=limit, samples=samples, seed=seed, unknown=decoding.unknown, **sampling)
    if json:
        *_, texts = grown
        print_json({"model": model, "texts": [dataclasses.asdict(text) for text in texts]})
    elif samples == 1 and not quiet:
        _stream_one(grown)
    else:
        _show_several(grown, headings=not quiet)


def check(decoding: DecodingOptions, limit: int, samples: int) -> None:
    """An error where the options make no sense."""
    for name, value in (("limit", limit), ("samples", samples), ("beams", decoding.beams)):
        if value is not None and value < 1:
            raise SettingError(f"--{name} must be 1 or more, not {value}")
    if decoding.beams and (decoding.greedy or decoding.top_k or decoding.top_p or decoding.temperature != 1.0):
        raise SettingError("--beams does not sample: leave out --greedy, --temperature, --top-k and --top-p")
    if decoding.beams and samples > decoding.beams:
        raise SettingError(f"--samples {samples} is more than --beams {decoding.beams} texts")


def _stream_one(grown: "Iterator[list[Text]]") -> None:
    """Prints a text as it grows."""
    shown = ""
    for (text,) in grown:
        new = text.text[len(shown) :] if text.text.startswith(shown) else f"\n{text.text}"
        sys.stdout.write(new)
        sys.stdout.flush()
        shown = text.text
    print()


def _show_several(grown: "Iterator[list[Text]]", *, headings: bool) -> None:
    """Several texts growing side by side on a terminal; elsewhere, each when all are done."""
    from rich.console import Group
    from rich.live import Live
    from rich.panel import Panel
    from rich.text import Text as Plain

    console = make_console(stderr=False)
    if console.is_terminal and headings:
        with Live(console=console, refresh_per_second=8, vertical_overflow="visible") as live:
            for texts in grown:
                live.update(
                    Group(*(Panel(Plain(t.text), title=f"{t.log_prob:.1f}", title_align="right") for t in texts))
                )
        return
    *_, texts = grown
    for number, text in enumerate(texts, start=1):
        if headings:
            print(f"--- {number}  log-probability {text.log_prob:.2f}  {text.symbols} symbols")
        print(text.text)
