"""The part-of-speech table: reading, the baseline, and the whole with small files and a network of our own."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from experiments.pos import ALL, UNSEEN, embed_layer, make_table, read_tagged, score_tags
from experiments.tables import Controls
from relmo.analysis.meaning import probe
from relmo.errors import CorpusError
from relmo.models.bilm import BiLM
from relmo.models.sequence_model import untrained
from relmo.models.vectors import WordVectors
from relmo.networks.bilm import BiLMNetwork
from relmo.settings.bilm import BiLMModelSettings, BiLMSettings, BiLMTextSettings
from relmo.text.vocabulary import Vocabulary
from support.published import find_row

TAGS = {"the": "DET", "cat": "NOUN", "sees": "VERB", "a": "DET", "dog": "NOUN", "runs": "VERB", "bird": "NOUN"}


def make_bilm(*, lowercase: bool = False) -> BiLM:
    torch.manual_seed(0)
    network = BiLMModelSettings(hidden=12, projection=6, filters=("1x4", "3x6"), char_dim=3, max_characters=12)
    settings = BiLMSettings(model=network, text=BiLMTextSettings(lowercase=lowercase))
    return BiLM(BiLMNetwork(network, vocab_size=None), settings)


def conllu(sentences: list[list[str]]) -> str:
    lines = []
    for words in sentences:
        lines.append("# a sentence")
        lines += [f"{i}\t{word}\t_\t{TAGS[word]}" + "\t_" * 6 for i, word in enumerate(words, start=1)]
        lines.append("")
    return "\n".join(lines) + "\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The data folder with a small treebank."""
    root = tmp_path / "tasks" / "pos_ud" / "en_ewt"
    root.mkdir(parents=True)
    known = [["the", "cat", "sees", "a", "dog"], ["a", "dog", "runs"], ["the", "dog", "sees", "the", "cat"]]
    (root / "en_ewt-ud-train.conllu").write_text(conllu(known * 10))
    (root / "en_ewt-ud-dev.conllu").write_text(conllu([["a", "bird", "runs"], ["the", "cat", "runs"]]))
    return tmp_path


def test_words_and_universal_tags_are_read_without_ranges_and_empty_nodes(tmp_path: Path) -> None:
    rest = "\t_" * 6
    lines = ["# text", "1-2\tdon't\t_\t_" + rest, "1\tdo\tdo\tAUX" + rest, "2\tn't\tnot\tPART" + rest]
    lines += ["2.1\tgo\tgo\tVERB" + rest, "", "", "1\tYes\tyes\tINTJ" + rest]
    (tmp_path / "a.conllu").write_text("\n".join(lines))
    found = read_tagged(tmp_path / "a.conllu")
    assert found.sentences == [["do", "n't"], ["Yes"]]
    assert found.tags == ["AUX", "PART", "INTJ"]
    assert found.sentence.tolist() == [0, 0, 1]
    assert found.words == ["do", "n't", "Yes"]


@pytest.mark.parametrize(
    ("text", "message"), [("1\tdo\n", r"a\.conllu:1: CoNLL-U has 10 columns"), ("# x\n", "no sentence")]
)
def test_a_file_that_is_not_conllu_is_one_clear_line(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "a.conllu").write_text(text)
    with pytest.raises(CorpusError, match=message):
        read_tagged(tmp_path / "a.conllu")


def test_accuracies_are_of_all_words_and_of_those_that_training_did_not_have() -> None:
    found = score_tags(
        np.array([True, False, True, True]), np.array([False, True, True, False]), np.array([0, 0, 1, 1])
    )
    assert (found[ALL], found[UNSEEN]) == (75, 50)
    assert found[f"± {UNSEEN}"] == 50  # each sentence drawn twice, once, or never
    assert {*score_tags(np.array([True]), np.array([False]), np.array([0]))} == {ALL, f"± {ALL}"}


def test_every_layer_and_every_control_has_a_row(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "MAX_ROUNDS", 1)
    model = make_bilm()
    words = Vocabulary(["<unk>", "</s>", *TAGS])
    matrix = np.random.default_rng(0).standard_normal((len(words), 5)).astype(np.float32)
    controls = Controls(untrained(model), WordVectors(words, matrix))
    table = make_table(model, data=folder, controls=controls, on_message=lambda _: None)
    names = [row.name for row in table.rows if row.ours]
    layers = ["layer 0 (no context)", "layer 1", "layer 2"]
    assert names == [
        "most frequent tag of the word",
        *layers,
        "skip-gram vectors",
        *(f"untrained, {n}" for n in layers),
    ]
    assert find_row(table, "layer 1").published == {ALL: 97.3}
    assert find_row(table, "most frequent tag of the word").ours[UNSEEN] == 0  # a bird; DET is the most frequent tag
    assert (
        find_row(table, "skip-gram vectors").ours[ALL] > 80
    )  # five words of six are known, and any five are told apart
    assert (table.extra["dev_words"], table.extra["unseen"]) == (6, 1)
    assert {*table.extra["differences"]} >= {"layer 1 - layer 0 (no context)", "layer 2 - untrained, layer 2"}
    assert "skip-gram vectors" not in [
        row.name
        for row in make_table(model, data=folder, controls=Controls(controls.untrained), on_message=lambda _: None).rows
    ]


def test_a_layer_is_that_of_embed_and_letters_are_as_in_training() -> None:
    model, small = make_bilm(), make_bilm(lowercase=True)
    sentences = [["The", "cat"], ["A"]]
    assert np.array_equal(embed_layer(model, 1, sentences), np.concatenate(model.embed(sentences, layers=1)))
    assert np.array_equal(embed_layer(small, 1, sentences), embed_layer(model, 1, [["the", "cat"], ["a"]]))


def test_the_web_treebank_is_read_whole(data: Callable[[str], Path]) -> None:
    dev = read_tagged(data("tasks/pos_ud/en_ewt/en_ewt-ud-dev.conllu"))
    assert (len(dev.sentences), len(dev.tags)) == (2_001, 25_147)
    assert len(set(dev.tags)) == 17
