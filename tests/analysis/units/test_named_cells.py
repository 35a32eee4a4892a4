"""Cells with a name are kept with their model, and what is read back is data: checked, or refused in one line."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from relmo.analysis.core.causal import WORDS, describe_class, describe_feature
from relmo.analysis.core.features import FEATURES, document_of, tracks
from relmo.analysis.core.trace import Trace
from relmo.analysis.units.cell_report import NamedCell, name_cells, read_cells, write_cells
from relmo.analysis.units.cells import score_cells
from relmo.errors import ModelError
from relmo.explorer.examples import EXAMPLES_DIR, list_examples


def quoted(length: int = 4000) -> tuple[Trace, dict[str, np.ndarray]]:
    """A trace of a text in which the second of three units is on inside quotation marks."""
    generator, text = np.random.default_rng(0), ""
    while len(text) < length:
        said = "".join(generator.choice(list("abce "), size=generator.integers(5, 60)))
        text += f"“{said}”" if generator.random() < 0.5 else said
    document = document_of(list(text))
    track = tracks(document, ["quotes"])
    values = generator.normal(size=(1, len(text), 3)).astype(np.float32)
    values[0, :, 1] = 0.1 * values[0, :, 1] - track["quotes"]
    states = {"c": values, "h": generator.normal(size=values.shape).astype(np.float32)}
    return Trace(list(text), states, np.array([0]), (0,), carried=("h", "c")), track


def test_a_cell_that_beats_its_controls_gets_a_name_and_comes_back_from_disk(tmp_path: Path) -> None:
    traced, track = quoted()
    named = name_cells(score_cells(traced, track, order=1), "relmo analyse cells …")
    assert [(cell.name, cell.unit) for cell in named[:1]] == [("the quotation cell", "c0.1")]
    assert named[0].r < -0.9
    assert named[0].auc is not None
    assert named[0].auc > 0.9  # whichever way the unit goes
    assert named[0].strength == "clear"
    write_cells(tmp_path, named)
    assert read_cells(tmp_path) == named
    assert read_cells(tmp_path / "nothing here") == []


def some_cell() -> dict[str, Any]:
    return json.loads((EXAMPLES_DIR / "prose" / "cells.json").read_text(encoding="utf-8"))["cells"][0]


@pytest.mark.parametrize(
    "given",
    [
        [],
        {"cells": 3},
        {"cells": [{}]},
        {"cells": [some_cell() | {"unit": "../../x"}]},
        {"cells": [some_cell() | {"r": "0.9"}]},
        {"cells": [some_cell() | {"r": 1e300}]},
        {"cells": [some_cell() | {"name": "x" * 10_000}]},
        {"cells": [some_cell() | {"broken": [{"what": "a"}]}]},
        {"cells": [some_cell()] * 101},
    ],
)
def test_a_file_that_is_not_of_named_cells_is_refused_in_one_line(tmp_path: Path, given: Any) -> None:
    (tmp_path / "cells.json").write_text(json.dumps(given), encoding="utf-8")
    with pytest.raises(ModelError, match=r"cells\.json: .*name") as caught:
        read_cells(tmp_path)
    assert "\n" not in str(caught.value)


def test_the_cells_that_ship_beat_their_controls_and_say_how_they_were_measured() -> None:
    found = {name: read_cells(EXAMPLES_DIR / name) for name in list_examples() if (EXAMPLES_DIR / name).is_dir()}
    named = {"prose", "code", "anbn-lstm"}
    assert named <= {name for name, cells in found.items() if cells}
    features = {name: [cell.feature for cell in cells] for name, cells in found.items()}
    assert features["prose"][:2] == ["quotes", "column"]
    assert {"comment", "depth", "if"} <= {*features["code"]}
    for cell in (cell for cells in found.values() for cell in cells):
        assert abs(cell.r) > 1.1 * max(cell.ngram, cell.chance, cell.untrained or 0)
        assert cell.command.startswith("relmo analyse cells ")
        assert cell.feature in FEATURES


def test_strength_is_said_in_words() -> None:
    cell = NamedCell(**{**some_cell(), "broken": [], "also": []})
    assert [replace(cell, r=r).strength for r in (0.9, -0.6, 0.2)] == ["clear", "fair", "weak"]


def test_every_feature_has_plain_words() -> None:
    assert {*WORDS} == {*FEATURES}
    assert describe_feature("mine") == "at “mine”"
    traced, track = quoted()
    named = name_cells(score_cells(traced, {"mine": track["quotes"]}, order=1), "relmo analyse cells …")
    assert [cell.name for cell in named] == ["the cell for “mine”"]
    assert describe_class("quotes rises") == "where a quotation begins"
    assert describe_class("newline") == "at every newline"


def test_the_surplus_counts_as_and_bs_and_nothing_else() -> None:
    assert tracks(document_of(list("aaabb\nab")), ["surplus"])["surplus"].tolist() == [1, 2, 3, 2, 1, 1, 2, 1]
    assert not tracks(document_of(list("aab c")), ["surplus"])["surplus"].any()
