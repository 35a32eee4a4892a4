"""The options of `relmo predict` for sequence-to-sequence models: the search, and pictures of attention."""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from relmo.cli.output import check_plot, say_wrote
from relmo.errors import SettingError

if TYPE_CHECKING:
    from relmo.tasks.seq2seq import Rewritten, Seq2Seq

MOST_DRAWN = 20  # texts in one picture


@dataclass(frozen=True, kw_only=True)
class SearchOptions:
    """How a text is looked for, and how attention is shown."""

    beams: int | None = None
    """How many texts are kept open side by side; 1 is greedy. The default is in the model's settings."""
    length_penalty: float | None = None
    """Alpha: greater values prefer longer texts."""
    coverage: float | None = None
    """Beta: greater values prefer texts that attend to every word of the source."""
    limit: int | None = None
    """The largest number of units in a text; 0 allows twice as many as the source has, and 50 more."""
    attention: bool = False
    """Draw on the terminal what was attended to; with --json the weights are always there."""
    plot: Path | None = None
    """Draw what was attended to, for up to 20 texts, to this .png or .svg file."""


def given_options(options: Any) -> list[str]:
    """The options of a dataclass that were given, as they are typed."""
    given = [each.name for each in fields(options) if getattr(options, each.name) != each.default]
    return [f"--{name.replace('_', '-')}" for name in given]


class Shown:
    """What is printed of predictions, and the picture of those that were kept for it."""

    def __init__(self, options: SearchOptions):
        self.options = options
        self.kept: list[Rewritten] = []

    def text(self, prediction: Any) -> str:
        """As the terminal shows a prediction."""
        from relmo.tasks.attention_map import attention_text

        lines = [prediction.as_text()]
        if self.options.attention:
            for each in prediction.candidates:
                lines += ["", attention_text(prediction.source, each.units, each.attention), ""]
        return "\n".join(lines)

    def keep(self, predictions: "Sequence[Rewritten]") -> None:
        """Remembers predictions that are to be drawn; of an empty text there is nothing to draw."""
        if self.options.plot is None:
            return
        self.kept += [each for each in predictions if each.source]
        if len(self.kept) > MOST_DRAWN:
            raise SettingError(f"--plot draws at most {MOST_DRAWN} texts; give fewer lines")

    def draw(self) -> None:
        """Writes the picture, if one was asked for."""
        if self.options.plot is not None and self.kept:
            from relmo.analysis.core.attention_map import draw_attention

            draw_attention(self.kept, self.options.plot)
            say_wrote(self.options.plot)


def with_search(
    model: "Seq2Seq", options: SearchOptions, *, best: int, json: bool, overwrite: bool
) -> tuple["Seq2Seq", Shown]:
    """The model as the options ask for it, and what is printed of its predictions."""
    pictures = options.attention or options.plot is not None
    if pictures and not model.has_attention:
        raise SettingError("there is nothing to draw: this model has no attention")
    check_plot(options.plot, overwrite=overwrite)
    names = ("beams", "length_penalty", "coverage", "limit")
    search = {name: getattr(options, name) for name in names if getattr(options, name) is not None}
    if best > 1 and options.beams is None:
        search["beams"] = max(best, model.search.beams)
    return model.searching(best=best, attention=json or pictures, **search), Shown(options)
