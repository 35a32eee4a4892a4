"""The parts that all published tables share: rows, controls, the data folder, names."""

import json
import re
from importlib import import_module
from pathlib import Path

import pytest
import torch

from experiments import TABLES, check_name, reproduce
from experiments.tables import ComparedRow, Controls, PublishedTable, require_data
from relmo.errors import CorpusError, SettingError
from relmo.explorer.extras import data_folder
from relmo.models.bilm import BiLM
from relmo.networks.bilm import BiLMNetwork
from relmo.settings.bilm import BiLMModelSettings, BiLMSettings
from relmo.text.vocabulary import SentenceVocabulary
from support.published import find_row

SETTINGS = BiLMModelSettings(hidden=12, projection=6, filters=("1x4", "3x6"), char_dim=3, max_characters=12)


def make_bilm(vocabulary: SentenceVocabulary | None) -> BiLM:
    torch.manual_seed(3)
    size = None if vocabulary is None else len(vocabulary)
    return BiLM(BiLMNetwork(SETTINGS, vocab_size=size), BiLMSettings(model=SETTINGS), vocabulary)


def test_a_figure_stands_in_a_column_of_the_table() -> None:
    with pytest.raises(ValueError, match="F2"):
        PublishedTable("x", "t", "p", ("F1",), [ComparedRow("a", {"F1": 1.0}), ComparedRow("b", published={"F2": 1.0})])


def test_a_table_survives_json_whole() -> None:
    rows = [ComparedRow("a", {"F1": 1.5}, {"F1": 2.0}, "n"), ComparedRow("b", published={"F1": 3.0})]
    table = PublishedTable("x", "t", "p", ("F1", "F2"), rows, ["note"], {"k": [1, 2]})
    said = json.loads(json.dumps(table.summary()))
    assert said["rows"][0] == {"name": "a", "ours": {"F1": 1.5}, "published": {"F1": 2.0}, "note": "n"}
    assert said["rows"][1]["ours"] == {}
    assert (said["columns"], said["notes"], said["extra"]) == (["F1", "F2"], ["note"], {"k": [1, 2]})
    assert find_row(table, "b") is rows[1]


def test_data_is_looked_for_where_it_is_said_to_be_then_by_the_variable_then_here(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("RELMO_DATA", str(tmp_path / "there"))
    assert data_folder(tmp_path) == tmp_path
    assert data_folder() == tmp_path / "there"
    monkeypatch.delenv("RELMO_DATA")
    assert data_folder() == Path("data")


def test_missing_data_is_one_line_that_says_what_and_where(tmp_path: Path) -> None:
    (tmp_path / "here.txt").touch()
    assert require_data(tmp_path, "here.txt", "a text") == tmp_path / "here.txt"
    with pytest.raises(CorpusError) as error:
        require_data(tmp_path, "lm/gone.txt", "the text")
    assert str(tmp_path / "lm/gone.txt") in str(error.value)
    assert "RELMO_DATA" in str(error.value)


@pytest.mark.parametrize("name", TABLES)
def test_every_name_has_its_module_and_says_what_is_missing(name: str, tmp_path: Path) -> None:
    assert re.search(r" et al\.\s20\d\d", import_module(f"experiments.{name}").__doc__ or "")
    model = make_bilm(SentenceVocabulary([*SentenceVocabulary.specials, "the"]))
    with pytest.raises(CorpusError, match="--data"):
        reproduce(name, model, data=tmp_path, controls=Controls(model))


def test_an_unknown_name_is_answered_with_the_names_there_are() -> None:
    with pytest.raises(SettingError, match=r"'perplex'.* perplexity, pos, neighbours"):
        check_name("perplex")
