"""What models of all kinds say of themselves, and how they are found by name."""

import json
from pathlib import Path

import pytest

import relmo
from relmo.errors import ModelError
from support.small_models import bilm, language_model, ngram_model
from support.tagging import conllu

RESULTS = {"trained_on": ["a.txt", "b.txt", "<c>.txt", "d.txt"], "valid_perplexity": 12.5, "metric": "x"}


def test_a_model_says_in_one_line_what_it_is() -> None:
    assert repr(language_model()) == "<LanguageModel (lm): lstm, 1 layer of 7 units, 16 characters; 600 parameters>"
    assert repr(ngram_model()).startswith("<LanguageModel (lm): 3-gram model, 16 characters; ")
    assert "feedforward network of 7 units that reads 4 symbols" in repr(language_model("feedforward"))
    layers = "2 layers of 9 units each way, projected to 4"
    assert repr(bilm()).startswith(f"<BiLM (bilm): reads words by their characters, {layers}, predicts 8 words; ")


def test_what_it_was_trained_on_and_its_scores_come_back_with_the_folder(tmp_path: Path) -> None:
    language_model().save_pretrained(tmp_path / "one", results=RESULTS)
    model = relmo.LanguageModel.from_pretrained(tmp_path / "one", device="cpu")
    assert model.results == RESULTS
    assert repr(model).endswith("; trained on a.txt, b.txt, <c>.txt and 1 more>")
    model.save_pretrained(tmp_path / "two")
    assert relmo.load(tmp_path / "two", device="cpu").results == RESULTS


def test_a_notebook_shows_a_table_in_which_names_are_text(tmp_path: Path) -> None:
    language_model().save_pretrained(tmp_path / "model", results=RESULTS)
    table = relmo.load(tmp_path / "model", device="cpu")._repr_html_()
    assert table.startswith("<table><caption>LanguageModel</caption>")
    assert "&lt;c&gt;.txt" in table
    assert "<c>" not in table
    assert "12.5000" in table


def test_results_that_are_no_table_do_no_harm(tmp_path: Path) -> None:
    language_model().save_pretrained(tmp_path / "model")
    config = json.loads((tmp_path / "model" / "config.json").read_text())
    for results in ([1], "x", {"trained_on": 3}, {"trained_on": [None, {"a": "\x1b\n"}]}):
        (tmp_path / "model" / "config.json").write_text(json.dumps(config | {"results": results}))
        model = relmo.load(tmp_path / "model", device="cpu")
        assert repr(model).isprintable()
        assert "<table>" in model._repr_html_()


def test_a_tasks_model_names_its_network_its_labels_and_its_parameters(tmp_path: Path) -> None:
    train = conllu(tmp_path / "train.conllu", 30)
    tagger = relmo.train("tagger", train, hidden=6, epochs=0.1, vectors="words", out=tmp_path / "out", progress=False)
    assert repr(tagger).startswith("<Tagger (tagger): lstm, 1 layer of 6 units, 4 labels, vectors words; ")
    assert repr(tagger).endswith(" parameters; trained on train.conllu>")


def test_models_that_ship_are_found_by_name_by_the_class_of_their_kind() -> None:
    words = relmo.WordVectors.from_pretrained("words")
    assert repr(words).startswith("<WordVectors (skipgram): 49,998 words in 100 dimensions; ")
    assert relmo.LanguageModel.from_pretrained("anbn-gru", device="cpu").settings.model.cell == "gru"
    with pytest.raises(ModelError, match="words: is a skipgram model, not a bidirectional language model"):
        relmo.BiLM.from_pretrained("words")
    with pytest.raises(ModelError, match=r"did you mean words.* small, words, .*hello"):
        relmo.WordVectors.from_pretrained("wrds")
