"""How results are shown: escaped, readable colours, files whole or not at all."""

import sys
from pathlib import Path

import numpy as np
import pytest

from relmo.analysis.core.show import (
    ColouredText,
    Table,
    compute_colour_scale,
    format_number,
    save_figure,
    show_whitespace,
    to_hex,
    to_plain,
)
from relmo.errors import SettingError


def luminance(colour: str) -> float:
    """As WCAG defines it."""
    parts = [c / 255 for c in bytes.fromhex(colour[1:])]
    red, green, blue = (c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def test_black_text_is_readable_on_every_colour() -> None:
    for value in np.linspace(-1.5, 1.5, 61):
        assert (luminance(to_hex(float(value))) + 0.05) / 0.05 >= 7, value


def test_colours_go_from_blue_over_white_to_orange() -> None:
    assert to_hex(-1) == to_hex(-9) == "#56a0e6"
    assert to_hex(0) == to_hex(float("nan")) == "#ffffff"
    assert to_hex(1) == "#e67e22"


def test_a_table_is_html_without_anything_to_run() -> None:
    table = Table(["a", "b"], [["<x>", "1"]], title="A & B", notes=["n<1"])
    page = table._repr_html_()
    assert "&lt;x&gt;" in page
    assert "A &amp; B" in page
    assert "n&lt;1" in page
    assert "<x>" not in page


def test_coloured_text_has_each_symbols_value() -> None:
    page = ColouredText(["<", "\n"], np.array([-2.0, 1.0]), "c<0")._repr_html_()
    assert 'title="-2.000">&lt;</span>' in page
    assert 'title="1.000">↵\n</span>' in page
    assert "c&lt;0" in page
    assert "#56a0e6" in page


def test_one_spike_does_not_bleach_the_rest() -> None:
    values = np.ones(1000)
    values[3] = 50.0
    assert compute_colour_scale(values) == 1.0
    assert compute_colour_scale(np.zeros(4)) == 1.0
    assert compute_colour_scale(np.zeros(0)) == 1.0


def test_numbers_and_symbols_are_written_plainly() -> None:
    assert [
        format_number(0.5),
        format_number(0.5, 1, signed=True),
        format_number(None),
        format_number(float("nan")),
    ] == ["0.500", "+0.5", "", ""]
    assert [show_whitespace(symbol) for symbol in ("\n", " ", "a")] == ["↵", "·", "a"]


@pytest.mark.parametrize("kind", ["png", "svg"])
def test_a_picture_is_written_when_it_is_done(tmp_path: Path, kind: str) -> None:
    path = tmp_path / f"a.{kind}"
    with save_figure(path) as drawn:
        drawn.subplots().plot([1, 2])
        assert not path.exists()
    assert path.stat().st_size > 500
    with pytest.raises(RuntimeError, match="mine"), save_figure(tmp_path / f"b.{kind}"):
        raise RuntimeError("mine")
    assert [file.name for file in tmp_path.iterdir()] == [path.name]


def test_a_picture_that_cannot_be_drawn_is_told_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SettingError, match=r"\.png or \.svg"), save_figure(tmp_path / "a.gif"):
        pass
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(SettingError, match=r"relmo\[plot\]"), save_figure(tmp_path / "a.png"):
        pass


def test_results_become_what_json_has() -> None:
    given = {"table": Table(["a"], [["1"]]), "array": np.array([[1.0, np.nan]]), "pairs": [(1, 2)], "none": None}
    assert to_plain(given) == {
        "table": {"columns": ["a"], "rows": [["1"]], "title": "", "notes": []},
        "array": [[1.0, None]],
        "pairs": [[1, 2]],
        "none": None,
    }
