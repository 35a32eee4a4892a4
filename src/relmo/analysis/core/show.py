"""How results are shown: tables and coloured text as plain HTML for notebooks, pictures as files.

The HTML is escaped text and styles alone. It has no scripts and fetches nothing. Colours go from blue over white to
orange: black text stays readable on both ends, and readers who cannot tell red from green can tell them apart. Numbers
stand beside colours.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, is_dataclass
from html import escape
from pathlib import Path
from typing import Any

import numpy as np

from relmo.disk.outputs import atomic
from relmo.errors import SettingError

LOW, MIDDLE, HIGH = (86, 160, 230), (255, 255, 255), (230, 126, 34)
FORMATS, ARRAYS = (".png", ".svg"), (".npz", ".h5")


@dataclass(frozen=True)
class Table:
    """Rows of text under the names of their columns, with a title and notes: what the command line prints and a
    notebook shows."""

    columns: list[str]
    rows: list[list[str]]
    title: str = ""
    notes: list[str] = field(default_factory=list)

    def _repr_html_(self) -> str:
        return self.html()

    def html(self) -> str:
        """The table as HTML; the first column is text, the others are numbers."""
        cell = "padding:2px 8px;border-bottom:1px solid #ddd"

        def row(values: Sequence[str], tag: str) -> str:
            sides = ["left", *["right"] * (len(values) - 1)]
            cells = (
                f'<{tag} style="{cell};text-align:{side}">{escape(value)}</{tag}>'
                for value, side in zip(values, sides, strict=True)
            )
            return f"<tr>{''.join(cells)}</tr>"

        caption = (
            f'<caption style="text-align:left;font-weight:bold">{escape(self.title)}</caption>' if self.title else ""
        )
        body = "".join(row(values, "td") for values in self.rows)
        notes = "".join(f'<div style="color:#555">{escape(note)}</div>' for note in self.notes)
        head = f"<thead>{row(self.columns, 'th')}</thead>"
        return f'<table style="border-collapse:collapse">{caption}{head}<tbody>{body}</tbody></table>{notes}'


@dataclass(frozen=True)
class ColouredText:
    """Symbols, each on the colour of its value; `space` stands between them, as words have one."""

    symbols: list[str]
    values: np.ndarray  # (T,)
    title: str = ""
    space: str = ""

    def _repr_html_(self) -> str:
        return self.html()

    def html(self) -> str:
        """The text as HTML, with the value in each symbol's title, and a legend."""
        size = scale_of(self.values)
        spans = []
        for symbol, value in zip(self.symbols, self.values.tolist(), strict=True):
            shown = "↵\n" if symbol == "\n" else symbol
            style = f"background:{hexadecimal(colour(value / size))};color:#000"
            spans.append(f'<span style="{style}" title="{value:.3f}">{escape(shown)}</span>{escape(self.space)}')
        ends = [(-size, LOW), (0.0, MIDDLE), (size, HIGH)]
        legend = " ".join(
            f'<span style="background:{hexadecimal(rgb)};color:#000;padding:0 6px">{value:.2f}</span>'
            for value, rgb in ends
        )
        text = f'<pre style="white-space:pre-wrap;line-height:1.5">{"".join(spans)}</pre>'
        return f"<div><b>{escape(self.title)}</b> {legend}</div>{text}"


def scale_of(values: np.ndarray) -> float:
    """The absolute value that gets the full colour: the 99th percentile, so that a single spike does not bleach the
    rest."""
    return float(np.quantile(np.abs(values), 0.99)) or 1.0 if len(values) else 1.0


def colour(value: float) -> tuple[int, int, int]:
    """The colour of a value from -1 (blue) over 0 (white) to 1 (orange); beyond that, the colour of the end."""
    share = min(abs(value), 1.0) if value == value else 0.0
    end = HIGH if value > 0 else LOW
    red, green, blue = (round(m + share * (e - m)) for m, e in zip(MIDDLE, end, strict=True))
    return red, green, blue


def hexadecimal(rgb: tuple[int, int, int]) -> str:
    """A colour as HTML and matplotlib write it."""
    return "#{:02x}{:02x}{:02x}".format(*rgb)


def figure(value: float | None, digits: int = 3, *, signed: bool = False) -> str:
    """A number as tables show it; nothing where there is none."""
    if value is None or value != value:
        return ""
    return f"{value:+.{digits}f}" if signed else f"{value:.{digits}f}"


def plain(value: Any) -> Any:
    """A result as JSON has it: dataclasses as dictionaries, arrays as lists, None in the place of nan."""
    if is_dataclass(value) and not isinstance(value, type):
        return {each.name: plain(getattr(value, each.name)) for each in fields(value)}
    if isinstance(value, dict):
        return {name: plain(each) for name, each in value.items()}
    if isinstance(value, np.ndarray | list | tuple):
        return [plain(each) for each in (value.tolist() if isinstance(value, np.ndarray) else value)]
    return None if isinstance(value, float) and value != value else value


def check_picture(path: str | Path) -> Path:
    """Raises at once where a picture could not be drawn: no matplotlib, or an unknown kind of file."""
    path = Path(path)
    if path.suffix.lower() not in FORMATS:
        raise SettingError(f"{path}: pictures are {' or '.join(FORMATS)}; name the file like that")
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise SettingError("--plot needs the package matplotlib; try: pip install 'relmo[plot]'") from None
    return path


@contextmanager
def picture(path: str | Path, width: float = 8.0, height: float = 4.0) -> Iterator[Any]:
    """A matplotlib figure to draw on, which is then written to the file, whole or not at all: .png or .svg."""
    path = check_picture(path)
    from matplotlib.figure import Figure

    drawn = Figure(figsize=(width, height), layout="constrained")
    yield drawn
    with atomic(path) as temporary:
        drawn.savefig(temporary, format=path.suffix[1:].lower(), dpi=120)


def write_arrays(path: str | Path, arrays: dict[str, np.ndarray]) -> None:
    """Arrays by name, of numbers or of strings, as .npz or .h5, whole or not at all."""
    path = Path(path)
    if path.suffix.lower() not in ARRAYS:
        raise SettingError(f"{path}: arrays are written as {' or '.join(ARRAYS)}; name the file like that")
    if path.suffix.lower() == ".npz":
        with atomic(path) as temporary, temporary.open("wb") as file:
            np.savez(file, **arrays)  # type: ignore[arg-type]
        return
    from relmo.disk.hdf5 import new_hdf5  # where it is used: HDF5 takes a tenth of a second to import

    with new_hdf5(path) as new:
        for name, array in arrays.items():
            new.add(name, data=array.astype(object) if array.dtype.kind == "U" else array)


def colours() -> Any:
    """The scale from blue over white to orange, for matplotlib."""
    from matplotlib.colors import LinearSegmentedColormap

    return LinearSegmentedColormap.from_list("relmo", [hexadecimal(rgb) for rgb in (LOW, MIDDLE, HIGH)])


def visible(symbol: str) -> str:
    """A symbol in one line: white space by a sign."""
    return {"\n": "↵", " ": "·", "\t": "→"}.get(symbol, symbol)
