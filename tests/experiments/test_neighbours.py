"""Neighbours of "play": a small SemCor with the paper's sentences, against a search by hand."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from experiments import neighbours
from experiments.neighbours import (
    POS,
    RANK,
    RANK_IN_WORD,
    SENSE,
    SOURCES,
    Place,
    SemCor,
    make_table,
    read_corpus,
    score_nearest,
)
from experiments.senses import Lemma, SenseSentence, SenseTag
from experiments.tables import Controls
from relmo.errors import CorpusError
from relmo.models.bilm import BiLM
from relmo.models.sequence_model import untrained
from relmo.models.vectors import WordVectors
from relmo.networks.bilm import BiLMNetwork
from relmo.settings.bilm import BiLMModelSettings, BiLMSettings
from relmo.text.vocabulary import Vocabulary
from support.published import find_row

NOUN, VERB = "play%1:04:00::", "play%2:33:00::"
SEMCOR = {
    "Chico_Ruiz made a spectacular play on Alusik 's grounder in the hole": NOUN,
    "They play cards": VERB,
    "Kieffer was commended for his ability to hit in the clutch as_well as his all-round excellent play": NOUN,
    "Olivia_De_Havilland signed to do a Broadway play for Garson_Kanin": None,
    "He played a game": VERB,
    "It seemed they were actors who had been handed fat roles in a successful play and had talent enough": NOUN,
}


def make_bilm() -> BiLM:
    torch.manual_seed(0)
    network = BiLMModelSettings(hidden=12, projection=6, filters=("1x4", "3x6"), char_dim=3)
    return BiLM(BiLMNetwork(network, vocab_size=None), BiLMSettings(model=network))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The data folder with a small SemCor."""
    lines = []
    for text, sense in SEMCOR.items():
        keys = [[sense] if sense and token.startswith("play") else [] for token in text.split()]
        lines.append(json.dumps({"tokens": text.split(), "sense_keys": keys}) + "\n")
    (tmp_path / "tasks" / "wsd").mkdir(parents=True)
    (tmp_path / "tasks" / "wsd" / "semcor3.jsonl").write_text("".join(lines))
    return tmp_path


def test_the_papers_sentences_are_found_where_they_stand(folder: Path) -> None:
    corpus = read_corpus(folder / "tasks/wsd/semcor3.jsonl")
    assert corpus.sources == [Place(0, 5), Place(3, 8)]
    assert corpus.neighbours == [Place(2, 17), Place(5, 14)]
    assert all(sentence.words[-1] == "." for sentence in corpus.sentences)
    senses = {place: None if tag is None else tag.senses[0] for place, tag in corpus.occurrences.items()}
    assert senses == {
        Place(0, 5): NOUN,
        Place(1, 1): VERB,
        Place(2, 17): NOUN,
        Place(3, 8): None,
        Place(4, 1): VERB,
        Place(5, 14): NOUN,
    }


@pytest.mark.parametrize("at_once", [2, 512])
def test_ranks_and_neighbours_are_those_of_a_search_by_hand(
    folder: Path, at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(neighbours, "BLOCK_SENTENCES", at_once)
    model = make_bilm()
    table = make_table(model, data=folder, controls=Controls(untrained(model)), on_message=lambda _: None)
    corpus = read_corpus(folder / "tasks/wsd/semcor3.jsonl")
    for layer in (1, 2):
        vectors = model.embed([sentence.words for sentence in corpus.sentences], layers=layer)
        for source, at, to in zip(SOURCES, corpus.sources, corpus.neighbours, strict=True):
            query = vectors[at.sentence][at.position]
            near = {
                Place(n, i): float(v @ query / np.linalg.norm(v) / np.linalg.norm(query))
                for n, each in enumerate(vectors)
                for i, v in enumerate(each)
                if n != at.sentence
            }
            order = sorted(near, key=lambda place: -near[place])
            row = find_row(table, f"{source.name}, layer {layer}")
            assert row.ours[RANK] == 1 + order.index(to)
            plays = [p for p in order if corpus.sentences[p.sentence].words[p.position] == "play"]
            assert row.ours[RANK_IN_WORD] == 1 + plays.index(to)
            assert row.ours["cosine"] == pytest.approx(near[to], abs=1e-5)
            shown = table.extra["nearest"][row.name]
            assert [each["text"] for each in shown] == [corpus.format_context(place) for place in order[:5]]
            assert shown[0]["text"] in row.note


def test_without_context_all_occurrences_of_the_word_share_their_rank(folder: Path) -> None:
    model = make_bilm()
    table = make_table(model, data=folder, controls=Controls(untrained(model)), on_message=lambda _: None)
    for source in SOURCES:  # four others: ranks 1 to 4
        assert find_row(table, f"{source.name}, layer 0 (no context)").ours[RANK_IN_WORD] == 2.5
        assert find_row(table, f"untrained, {source.name}, layer 0 (no context)").ours[RANK] == 2.5


def test_static_vectors_are_compared_by_the_forms_of_the_word(folder: Path) -> None:
    model = make_bilm()
    words = Vocabulary(["<unk>", "</s>", "play", "played", "game"])
    matrix = np.array([[0, 0], [0, 0], [1, 0], [0, 1], [1, 0.1]], dtype=np.float32)
    controls = Controls(untrained(model), WordVectors(words, matrix))
    table = make_table(model, data=folder, controls=controls, on_message=lambda _: None)
    # play is tagged four times, three of them nouns; played is as near to all of them
    assert find_row(table, "all tagged, skip-gram vectors").ours == pytest.approx(
        {SENSE: 100 * (2 / 3 * 3 + 1 / 4) / 5} | {POS: 100 * (2 / 3 * 3 + 1 / 4) / 5}
    )
    assert table.notes[-1] == "skip-gram vectors here: game, played"


def test_the_nearest_in_another_sentence_decides_and_equals_share() -> None:
    lemma = Lemma("play", "NOUN")
    a, b = SenseTag(0, 1, lemma, ("a",)), SenseTag(0, 1, lemma, ("b",))
    c = SenseTag(0, 1, Lemma("play", "VERB"), ("c",))
    tags = {Place(0, 0): a, Place(0, 1): b, Place(1, 0): a, Place(2, 0): c}
    corpus = SemCor([SenseSentence(["play", "play"], [])] * 3, [], [], dict(tags))
    angles = {Place(0, 0): 0.0, Place(0, 1): 0.1, Place(1, 0): 0.5, Place(2, 0): -0.500001}
    vectors = {place: np.array([np.cos(x), np.sin(x)]) for place, x in angles.items()}
    # the first is as near to its like as to the verb, but for rounding; then: nearest to a, to b, and to a
    assert score_nearest(corpus, vectors) == pytest.approx({SENSE: 100 * 0.5 / 4, POS: 100 * 2.5 / 4})


def test_a_corpus_without_the_papers_sentences_is_refused(folder: Path) -> None:
    file = folder / "tasks/wsd/semcor3.jsonl"
    file.write_text("".join(file.read_text().splitlines(keepends=True)[1:]))
    with pytest.raises(CorpusError, match=r"semcor3\.jsonl.*Chico Ruiz"):
        read_corpus(file)


def test_words_are_shown_with_some_of_their_context() -> None:
    words = [*"abcdefghijklm", "X", *"nopqrstuvwxyz"]
    corpus = SemCor([SenseSentence(words, []), SenseSentence(["X", "."], [])], [], [], {})
    assert corpus.format_context(Place(0, 13)) == "… e f g h i j k l m [X] n o p q r s t u v …"
    assert corpus.format_context(Place(1, 0)) == "[X] ."


@pytest.mark.slow
def test_semcor_has_the_papers_sentences(data: Callable[[str], Path]) -> None:
    corpus = read_corpus(data("tasks/wsd/semcor3.jsonl"))
    assert len(corpus.occurrences) == 328
    assert corpus.format_context(corpus.sources[0]).startswith("Chico Ruiz made a spectacular [play] on Alusik 's")
    assert "in a successful [play] and had talent enough" in corpus.format_context(corpus.neighbours[1])
