"""Display of results and progress: tables and coloured text as plain HTML for notebooks, figures as files."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, is_dataclass
from html import escape
from itertools import accumulate, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeVar

import numpy as np

from relmo.disk.outputs import atomic
from relmo.errors import SettingError
from relmo.settings.fields import Progress
from relmo.text.vocabulary import SPACE

if TYPE_CHECKING:
    from relmo.tasks.seq2seq import Rewritten

# from blue over white to orange, for readers with red-green colour blindness; black text is readable on all of them
LOW, MIDDLE, HIGH = (86, 160, 230), (255, 255, 255), (230, 126, 34)
PALETTE = ["#2f6fb0", "#d9711c", "#3c8d5a", "#8a5aa8", "#b8433f", "#6b7280"]  # readable for colour-blind people
FIGURE_STYLE: dict[str, Any] = {
    "figure.facecolor": "#fbfbf9",  # an opaque light background, legible on light and dark pages
    "axes.facecolor": "#fbfbf9",
    "font.size": 12.0,
    "axes.titlesize": 13.0,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.edgecolor": "#6b7280",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "grid.color": "#d6d6d2",
    "lines.linewidth": 2.0,
    "legend.frameon": False,
    "svg.fonttype": "none",
}
FIGURE_FORMATS = (".png", ".svg")
Item = TypeVar("Item")


@dataclass(frozen=True)
class Table:
    """Table of strings with a title and notes, printed by the command line and shown in notebooks."""

    columns: list[str]
    rows: list[list[str]]
    title: str = ""
    notes: list[str] = field(default_factory=list)

    def html(self) -> str:
        """Return the table as HTML; the first column is text, the others are numbers."""
        lines = []
        for number, texts in enumerate([self.columns, *self.rows]):
            tag, cells = "td" if number else "th", []
            for i, text in enumerate(texts):
                style = f"padding:2px 8px;border-bottom:1px solid #ddd;text-align:{'right' if i else 'left'}"
                cells.append(f'<{tag} style="{style}">{escape(text)}</{tag}>')
            lines.append(f"<tr>{''.join(cells)}</tr>")
        caption = ""
        if self.title:
            caption = f'<caption style="text-align:left;font-weight:bold">{escape(self.title)}</caption>'
        head, body = f"<thead>{lines[0]}</thead>", "".join(lines[1:])
        notes = "".join(f'<div style="color:#555">{escape(note)}</div>' for note in self.notes)
        return f'<table style="border-collapse:collapse">{caption}{head}<tbody>{body}</tbody></table>{notes}'

    _repr_html_ = html


@dataclass(frozen=True)
class ColouredText:
    """Symbols on the colours of their values (T,)."""

    symbols: list[str]
    values: np.ndarray
    title: str = ""

    @property
    def space(self) -> str:
        """Separator of the symbols: none between characters."""
        return "" if all(len(symbol) == 1 for symbol in self.symbols) else " "

    def html(self) -> str:
        """Return the text as HTML, with each value in its symbol's tooltip, and a legend."""
        scale = compute_colour_scale(self.values)
        spans = []
        for symbol, value in zip(self.symbols, self.values.tolist(), strict=True):
            text = "↵\n" if symbol == "\n" else symbol
            style = f"background:{to_hex(value / scale)};color:#000"
            spans.append(f'<span style="{style}" title="{value:.3f}">{escape(text)}</span>{escape(self.space)}')
        legend = " ".join(
            f'<span style="background:{to_hex(sign)};color:#000;padding:0 6px">{sign * scale:.2f}</span>'
            for sign in (-1.0, 0.0, 1.0)
        )
        pre = f'<pre style="white-space:pre-wrap;line-height:1.5">{"".join(spans)}</pre>'
        return f"<div><b>{escape(self.title)}</b> {legend}</div>{pre}"

    _repr_html_ = html


class Report:
    """Base class of results, which are dataclasses with tables; notebooks show them."""

    def table(self) -> Table:
        """Return the main table."""
        return self.tables()[0]

    def tables(self) -> list[Table]:
        """Return all tables."""
        return [self.table()]

    def as_dict(self) -> dict[str, Any]:
        """Return all fields as JSON types."""
        return to_plain(self)

    def _repr_html_(self) -> str:
        return "".join(table.html() for table in self.tables())


def compute_colour_scale(values: np.ndarray) -> float:
    """Return the absolute value of the full colour: the 99th percentile, so that one spike does not bleach the rest."""
    return float(np.quantile(np.abs(values), 0.99)) or 1.0 if len(values) else 1.0


def to_hex(value: float) -> str:
    """Return the colour of a value, clipped to -1 (blue) … 0 (white) … 1 (orange), as in HTML and matplotlib."""
    share = min(abs(value), 1.0) if value == value else 0.0
    rgb = (round(m + share * (e - m)) for m, e in zip(MIDDLE, HIGH if value > 0 else LOW, strict=True))
    return "#{:02x}{:02x}{:02x}".format(*rgb)


def make_colormap() -> Any:
    """Return the blue-white-orange colour map for matplotlib."""
    from matplotlib.colors import LinearSegmentedColormap

    return LinearSegmentedColormap.from_list("relmo", [to_hex(value) for value in (-1, 0, 1)])


def format_number(value: float | None, digits: int = 3, *, signed: bool = False) -> str:
    """Format a number for a table; None and nan are empty."""
    if value is None or value != value:
        return ""
    return f"{value:+.{digits}f}" if signed else f"{value:.{digits}f}"


def show_whitespace(symbol: str) -> str:
    """Replace whitespace symbols by visible ones."""
    return {"\n": "↵", " ": "·", "\t": "→"}.get(symbol, symbol)


class Unit(NamedTuple):
    """One dimension of a state of a layer."""

    state: str
    layer: int
    number: int
    direction: Literal["forward", "backward"] = "forward"

    def __str__(self) -> str:
        """Return the address, such as c0.27: state c, layer 0, unit 27; with an arrow for the backward direction."""
        return f"{self.state}{self.layer}.{self.number}{'←' if self.direction == 'backward' else ''}"


def to_plain(value: Any) -> Any:
    """Convert to JSON types: dataclasses and named tuples to dictionaries (without fields that `repr` hides), units to
    their addresses, arrays to lists, nan to None."""
    if isinstance(value, Unit):
        return str(value)
    if is_dataclass(value) and not isinstance(value, type):
        return {entry.name: to_plain(getattr(value, entry.name)) for entry in fields(value) if entry.repr}
    if hasattr(value, "_asdict"):
        return to_plain(value._asdict())
    if isinstance(value, dict):
        return {str(name): to_plain(entry) for name, entry in value.items()}
    if isinstance(value, np.ndarray | list | tuple):
        return [to_plain(entry) for entry in (value.tolist() if isinstance(value, np.ndarray) else value)]
    return None if isinstance(value, float) and value != value else value


def check_plot_path(path: str | Path) -> Path:
    """Check the suffix of a figure's path and that matplotlib is installed."""
    path = Path(path)
    if path.suffix.lower() not in FIGURE_FORMATS:
        raise SettingError(f"{path}: unknown figure format; the file must end in {' or '.join(FIGURE_FORMATS)}.")
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise SettingError("--plot requires matplotlib; try: pip install 'relmo[plot]'") from None
    return path


@contextmanager
def save_figure(path: str | Path, width: float = 8.0, height: float = 4.0) -> Iterator[Any]:
    """Open a matplotlib figure that is written atomically to a .png or .svg file at the end of the block."""
    path = check_plot_path(path)
    from cycler import cycler
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    style: Any = FIGURE_STYLE | {"axes.prop_cycle": cycler(color=PALETTE)}
    with rc_context(style):
        figure = Figure(figsize=(width, height), layout="constrained")
        yield figure
        with atomic(path) as temporary:
            figure.savefig(temporary, format=path.suffix[1:].lower(), dpi=150)


def draw_attention(predictions: Sequence["Rewritten"], path: str | Path) -> None:
    """Plot the attention of each prediction's best candidate: targets (rows) by sources (Bahdanau et al. 2015)."""
    sizes = [(len(prediction.source), len(prediction.candidates[0].units) + 1) for prediction in predictions]
    width = max(4.0, 0.35 * max(columns for columns, _ in sizes) + 1.5)
    heights = [max(2.5, 0.3 * rows + 1.2) for _, rows in sizes]
    with save_figure(path, width, sum(heights)) as figure:
        panels = figure.subplots(len(predictions), 1, squeeze=False, height_ratios=heights)[:, 0]
        for axes, prediction in zip(panels, predictions, strict=True):
            best = prediction.candidates[0]
            axes.imshow(best.attention, cmap="Greys", vmin=0.0, vmax=1.0, aspect="auto")
            axes.xaxis.tick_top()
            axes.set_xticks(range(len(prediction.source)), _label_units(prediction.source), rotation=90)
            axes.set_yticks(range(len(best.units) + 1), [*_label_units(best.units), "(end)"])


def _label_units(units: Sequence[str]) -> list[str]:
    """Label words, or subwords: those inside a word get a hyphen, punctuation does not."""
    has_subwords = any(unit.startswith(SPACE) for unit in units)
    return [f"-{unit}" if has_subwords and unit[0].isalnum() else unit.removeprefix(SPACE) for unit in units]


def with_progress(items: Sequence[Item], progress: Progress | None) -> Iterator[Item]:
    """Yield the items, and report the completed share after each."""
    for i, item in enumerate(items, start=1):
        yield item
        if progress is not None:
            progress(i / len(items))


def split_progress(progress: Progress | None, weights: Sequence[float]) -> list[Progress]:
    """Return one progress callback per part; `weights` are the durations of the parts relative to each other."""
    if progress is None:
        return [lambda share: None] * len(weights)
    bounds = [0.0, *accumulate(weights)]
    return [
        lambda share, begin=begin, end=end: progress((begin + (end - begin) * share) / bounds[-1])  # type: ignore[misc]
        for begin, end in pairwise(bounds)
    ]
