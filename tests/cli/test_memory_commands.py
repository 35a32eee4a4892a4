"""`relmo analyse gradients|connectivity|truncation|counting`: what they print, draw and refuse."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from relmo.models.lm import LanguageModel
from support.small_models import SENTENCES, TEXT, bilm, language_model, ngram_model

Run = Callable[..., tuple[int, str, str]]
COMMAND = "analyse"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Models gru/, ngram/ and bilm/, and texts."""
    language_model("gru").save_pretrained(tmp_path / "gru")
    ngram_model().save_pretrained(tmp_path / "ngram")
    bilm().save_pretrained(tmp_path / "bilm")
    (tmp_path / "text.txt").write_text(TEXT * 2)
    (tmp_path / "sentences.txt").write_text(SENTENCES)
    return tmp_path


def test_gradients_of_models_their_untrained_twins_and_fresh_networks_stand_in_one_table(
    run: Run, folder: Path
) -> None:
    options = ["--text", folder / "text.txt", "--lags", 10, "--positions", 4, "--hidden", 8, "--device", "cpu"]
    given = [folder / "gru", "--untrained", "--fresh", "elman, lstm", "--forget-bias=-1,2", "--spectral-radius", 1.5]
    status, output, said = run("gradients", *given, *options, "--jacobian", 2, "--plot", folder / "memory.png")
    assert (status, f"wrote {folder / 'memory.png'}" in said) == (0, True)
    for row in ("gru: dh", "gru, untrained: dh", "elman, fresh: dh", "lstm, fresh: dc", "forget bias -1: through f"):
        assert row in output
    assert "h 1.50" in output
    assert "Jacobian" in output
    assert (folder / "memory.png").stat().st_size > 1000
    status, output, _ = run("gradients", folder / "gru", *options, "--json")
    (flow,) = json.loads(output)["networks"]
    assert (flow["name"], flow["lags"], flow["positions"]) == ("gru", 10, 4)
    assert len(flow["curves"][0]["median"]) == 11


def test_gradients_without_anything_are_of_the_three_cells_on_the_text_that_ships(run: Run) -> None:
    status, output, _ = run("gradients", "--hidden", 8, "--lags", 10, "--positions", 4, "--json")
    assert status == 0
    assert [flow["name"] for flow in json.loads(output)["networks"]] == ["elman, fresh", "gru, fresh", "lstm, fresh"]


def test_connectivity_prints_symbols_with_values_and_the_largest(run: Run, folder: Path) -> None:
    status, output, _ = run("connectivity", folder / "gru", "the cat", "--symbol", "s", "--top", 2, "--device", "cpu")
    assert status == 0
    assert "'s' after position 6" in output
    assert "symbols back" in output
    status, output, _ = run(
        "connectivity", folder / "bilm", "the cat sat", "--direction", "backward", "--json", "--device", "cpu"
    )
    assert json.loads(output)["symbols"] == ["sat", "cat", "the"]


def test_truncation_sets_models_of_any_kind_side_by_side(run: Run, folder: Path) -> None:
    options = ["--lengths", "1,2,4", "--positions", 20, "--device", "cpu"]
    given = ["--text", folder / "text.txt", "--plot", folder / "past.svg"]
    status, output, _ = run("truncation", folder / "gru", folder / "ngram", *given, *options)
    assert status == 0
    assert "gru" in output
    assert "ngram: 2" in output or "ngram: 4" in output
    assert (folder / "past.svg").exists()
    status, output, _ = run("truncation", folder / "bilm", "--text", folder / "sentences.txt", *options, "--json")
    assert json.loads(output)["models"][0]["lengths"] == [1, 2, 4]


def test_counting_trains_judges_and_saves_networks_that_other_commands_take(run: Run, folder: Path) -> None:
    options = ["--limit", 4, "--steps", 20, "--seeds", 1, "--hidden", 4, "--save", folder / "saved"]
    status, output, _ = run("counting", "anbn", "--cells", "elman,lstm", *options, "--plot", folder / "count.png")
    assert status == 0
    assert "elman 4" in output
    assert "16" in output
    assert (folder / "count.png").exists()
    saved = LanguageModel.from_pretrained(folder / "saved" / "anbn-lstm", device="cpu")
    assert saved.settings.model.hidden == 4
    status, output, _ = run("counting", "dyck-1", "--cells", "lstm", *options, "--json")
    (found,) = json.loads(output)["networks"]
    assert (found["language"], found["limit"], found["tested"]) == ("dyck-1", 4, 16)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("gradients", "--forget-bias", "one"), "--forget-bias"),
        (("gradients", "--untrained"), "--untrained"),
        (("gradients", "--fresh", "tree"), "lstm, gru, elman"),
        (("gradients", "--plot", "memory.gif"), ".png"),
        (("gradients", "--jacobian", "-1"), "--jacobian"),
        (("truncation",), "MODEL"),
        (("truncation", "m", "--lengths", "1.5"), "--lengths"),
        (("counting", "palindromes"), "palindromes"),
        (("counting", "anbn", "--cells", ","), "elman,gru,lstm"),
        (("counting", "anbn", "--cells", "lstm,tree"), "elman"),
    ],
)
def test_mistakes_are_one_line_and_status_2(run: Run, arguments: tuple[str, ...], message: str) -> None:
    status, output, error = run(*arguments)
    assert (status, output) == (2, "")
    assert message in error
    assert error.startswith("error: ")


def test_a_model_without_recurrent_layers_is_refused(run: Run, folder: Path) -> None:
    status, _, error = run("gradients", folder / "ngram", "--text", folder / "text.txt", "--device", "cpu")
    assert status == 2
    assert "recurrent" in error
