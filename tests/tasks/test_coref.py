"""Coreference as a user holds it: documents in, clusters out; learned, saved, broken off and gone on with."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import relmo
from relmo.errors import CorpusError, SettingError
from relmo.networks.coref import SpanLinks
from relmo.runs.train_task import train_task
from relmo.settings.sections import InputSettings
from relmo.settings.tasks import (
    CorefModelSettings,
    CorefSettings,
    CorefTextSettings,
    CorefTrainSettings,
)
from relmo.tasks.coref import GENRES, Coreference, Mention, ResolvedText, conll, cut_document, page
from relmo.tasks.features import WordFeatures, WordVocabulary, count_words
from relmo.text.readers.coref import CorefDocument, read_documents
from relmo.text.tokenize import tokenize
from support.tagging import StopAfter, tiny_bilm

PEOPLE = Path(relmo.__file__).parent / "data" / "people.conll"
TEXTS = ["Anna saw Bob. She waved to him.", "It rained", "", "The dog (old as it was) saw the cat. Mr. Lee slept."]


def settings(**sections: dict[str, Any]) -> CorefSettings:
    """Those of a small and quick network."""
    inputs = {"word_dim": 10, "char_dim": 0} | sections.get("input", {})
    model = {"hidden": 12, "mlp": (16,), "max_width": 4, "antecedents": 20, "feature_dim": 4, "lexical_dropout": 0.1}
    train = {"epochs": 3, "batch": 2, "lr": 0.01, "device": "cpu", "patience": None} | sections.get("train", {})
    return CorefSettings(
        text=CorefTextSettings(**sections.get("text", {})),
        input=InputSettings(**inputs),
        model=CorefModelSettings(**(model | sections.get("model", {}))),  # type: ignore[arg-type]
        train=CorefTrainSettings(**train),
    )


def untrained(*, bilm: bool = False, **sections: dict[str, Any]) -> Coreference:
    """A model that has learned nothing, and links much."""
    made = settings(**sections)
    torch.manual_seed(0)
    words = [words for document in read_documents(PEOPLE) for words in document.sentences]
    known = WordFeatures(made.input, count_words(words, made.input), bilm=tiny_bilm() if bilm else None)
    model = Coreference(made, known, {GENRES: WordVocabulary(["<unk>", "court"])}).initialize()
    with torch.no_grad():
        model.network.body.mention.output.bias += 0.2  # type: ignore[union-attr, operator]
    return model


@pytest.mark.parametrize("elmo", [None, {}, {"elmo_at": "both"}, {"elmo_at": "output", "elmo_tune": True}])
def test_predictions_do_not_depend_on_order_or_company(elmo: dict[str, Any] | None) -> None:
    model = untrained(bilm=elmo is not None, input={} if elmo is None else {"elmo": "x", **elmo})
    together = model.predict(TEXTS)
    assert [found.text for found in together] == TEXTS
    assert sum(len(found.clusters) for found in together) > 1
    assert [found.places for found in model.predict(TEXTS[::-1])[::-1]] == [found.places for found in together]
    assert [model.predict([text])[0].places for text in TEXTS] == [found.places for found in together]


def test_texts_sentences_and_documents_are_taken() -> None:
    model = untrained()
    raw, listed, whole = model.predict([TEXTS[0], [["Anna", "saw", "Bob", "."]], next(read_documents(PEOPLE))])
    assert [token.text for token in raw.tokens] == ["Anna", "saw", "Bob", ".", "She", "waved", "to", "him", "."]
    assert listed.text == "Anna saw Bob ."
    assert whole.text == "Anna lost her keys .\nShe looked for them all day ."
    for mention in (mention for cluster in raw.clusters for mention in cluster):
        assert mention.text == raw.text[mention.start : mention.end]
        own = raw.tokens[mention.start_word : mention.end_word]
        assert (own[0].start, own[-1].end) == (mention.start, mention.end)
    for wrong in ("a text", 5, [["a string in a list"]], [5]):
        with pytest.raises(SettingError, match="a list of"):
            model.predict(wrong)  # type: ignore[arg-type]


def test_no_span_reaches_over_a_sentence_end_and_no_two_cross() -> None:
    for found in untrained().predict(TEXTS):
        places = [mention for cluster in found.clusters for mention in cluster]
        assert all("." not in mention.text.removesuffix(".") or mention.text.startswith("Mr.") for mention in places)
        assert not any(a.start < b.start < a.end < b.end for a in places for b in places)


def test_antecedents_are_followed_to_clusters() -> None:
    inf = torch.inf
    scores = torch.tensor([[-inf, -inf], [1.0, -inf], [-1.0, -2.0], [-1.0, 0.5], [2.0, 1.0]])
    every = torch.tensor([[1.0, -1.0], [-1.0, 3.0], [1.0, 1.0]])
    links = SpanLinks(every, torch.tensor([0, 1, 3, 4, 5]), scores)
    (cluster,) = untrained(model={"max_width": 2})._link_spans(links)
    assert [place[:2] for place in cluster] == [(0, 1), (0, 2), (2, 3), (2, 4)]
    e = np.exp([0.0, 0.5, 1.0, 2.0, -1.0])
    antecedents = [e[2] / (1 + e[2]), e[1] / (1 + e[1] + e[4]), e[3] / (1 + e[3] + e[2])]  # beside none, which is e^0
    assert cluster[0][2] is None
    assert [place[2] for place in cluster[1:]] == pytest.approx(antecedents)
    alone = untrained(model={"max_width": 2, "output_singletons": True})
    assert alone._link_spans(links) == [cluster, [(1, 3, None)]]  # m of the span (1, 3) is 3


def test_documents_to_learn_from_are_cut_into_pieces() -> None:
    document = CorefDocument(
        "a", "0", [["a", "b"], ["c"], [], ["d", "e"]], [[(0, 1), (3, 4)], [(1, 3), (4, 5)]], list("xxyzz")
    )
    first, second = cut_document(document, 2)
    assert first == CorefDocument("a", "0", [["a", "b"], ["c"]], [[(0, 1)], [(1, 3)]], list("xxy"))
    assert second == CorefDocument("a", "0", [[], ["d", "e"]], [[(0, 1)], [(1, 2)]], list("zz"))
    assert list(cut_document(document, 4)) == [document]
    model = untrained(train={"max_sentences": 2})
    encoded = model.encode([document], answers=True)
    assert encoded.lengths.tolist() == [3, 2]
    batch = encoded.batch(np.array([1, 0]))
    (documents,) = batch.extra
    assert documents[0].positions.tolist() == [2, 3]  # behind a sentence without words, of two places each
    assert documents[1].num_left.tolist() == [2, 1, 1]
    assert documents[1].speakers.tolist() == [1, 1, 2]
    assert batch.targets is not None
    assert batch.targets[1].tolist() == [[1, 0, 0, 0], [0, 2, 0, 0], [0, 0, 0, 0]]
    assert model.encode([document]).lengths.tolist() == [5]  # what is predicted stays whole


def test_genres_are_known_or_not() -> None:
    model = untrained()
    documents = [CorefDocument(name, "0", [["a"]], []) for name in ("GUM_court_loan", "GUM_bio_x", "x")]
    (read,) = model.encode(documents).batch(np.arange(3)).extra
    assert [document.genre.item() for document in read] == [1, 0, 0]


def test_singletons_are_scored_unless_files_are_read_without(tmp_path: Path) -> None:
    file = tmp_path / "a.conll"
    file.write_text("#begin document (a)\n0\tHe\t(1)\n1\tsaw\t-\n2\tit\t(2)\n3\tand\t-\n4\the\t(1)\n")
    kept, dropped = (Coreference.read(file, CorefTextSettings(singletons=how)) for how in ("keep", "drop"))
    assert kept[0].clusters == [[(0, 1), (4, 5)], [(2, 3)]]
    assert dropped[0].clusters == [[(0, 1), (4, 5)]]
    with pytest.raises(SettingError, match="singletons drop"):
        settings(text={"singletons": "drop"}, model={"output_singletons": True, "mention_weight": 1.0}).check()
    with pytest.raises(SettingError, match="mention_weight"):
        settings(model={"output_singletons": True}).check()


def test_texts_are_shown_in_brackets_in_columns_and_as_a_page_that_is_escaped() -> None:
    text = "<b>Anna</b> & her dog"
    tokens = tokenize("<b>Anna</b> & her dog")
    words = [token.text for token in tokens]
    her = words.index("her")
    anna = words.index("Anna")
    places = {"Anna": (3, 7, anna, anna + 1), "her": (14, 17, her, her + 1), "her dog": (14, 21, her, her + 2)}
    one, two, three = (Mention(name, *place) for name, place in places.items())
    resolved = ResolvedText(text, tokens, "<i>", [len(tokens)], [[one, two], [three]])
    assert repr(resolved) == "ResolvedText(Anna = her; her dog)"
    assert resolved._repr_html_().count("<span") == 3
    record = resolved.to_dict()
    assert json.loads(json.dumps(record)) == record
    assert record["clusters"] == [[[anna, anna], [her, her]], [[her, her + 1]]]
    assert [text[m["start"] : m["end"]] for each in record["mentions"] for m in each] == list(places)
    assert resolved.as_text() == "<b>[Anna]1</b> & [[her]1 dog]2\n\n1: Anna | her\n2: her dog\n"
    shown = page([resolved])
    assert "<b>" not in shown
    assert "&lt;b&gt;<span" in shown
    assert "<h2>&lt;i&gt;</h2>" in shown
    assert shown.count("<span") == shown.count("</span>") == 5
    columns = conll(CorefDocument("a b", "1", [words], []), resolved.places).splitlines()
    assert columns[0] == "#begin document (ab); part 001"
    assert [line.split("\t")[-1] for line in columns[her + 1 : her + 3]] == ["(1|(0)", "1)"]


@pytest.fixture
def slices(data: Callable[[str], Path], tmp_path: Path) -> str:
    """The first sentences of three real documents."""
    found = list(read_documents(data("tasks/coref_gum/ontogum_dev.conll")))[2:8:2]
    parts = [next(cut_document(document, 12)) for document in found]
    file = tmp_path / "slice.conll"
    file.write_text("\n".join(conll(part, part.clusters) for part in parts), encoding="utf-8")
    return str(file)


@pytest.mark.slow
def test_real_documents_are_learned(slices: str, tmp_path: Path) -> None:
    made = settings(
        text={"valid": slices},
        model={"dropout": 0.0, "spans_per_word": 0.6},
        train={"epochs": 30, "batch": 1, "lr": 0.02, "validate_every": 45},
    )
    results = train_task(Coreference, [slices], made, tmp_path / "m")
    assert results["valid_average_f1"] > 0.2  # about 0.4, and without training less than 0.05
    model = relmo.load(tmp_path / "m", device="cpu")
    assert isinstance(model, Coreference)
    report = model.evaluate(slices)
    assert report.score == pytest.approx(results["valid_average_f1"])
    assert [label.label for label in report.labels] == ["muc", "b3", "ceaf", "mentions"]


@pytest.mark.slow
def test_a_run_that_was_killed_goes_on_to_the_same_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RELMO_CACHE", str(tmp_path / "cache"))
    tiny_bilm().save_pretrained(tmp_path / "bilm")
    made = settings(
        text={"valid": str(PEOPLE)},
        input={"elmo": str(tmp_path / "bilm"), "elmo_at": "both"},
        model={"mention_weight": 0.3, "output_singletons": True},
        train={"epochs": 1, "batch": 4, "checkpoint_every": 0.0, "max_sentences": 1},
    )
    train_task(Coreference, [str(PEOPLE)], made, tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        train_task(Coreference, [str(PEOPLE)], made, tmp_path / "broken", reporter=StopAfter(5))
    train_task(Coreference, [str(PEOPLE)], made, tmp_path / "broken", resume=True)
    whole, broken = ((tmp_path / name / "model.safetensors").read_bytes() for name in ("whole", "broken"))
    assert whole == broken


def test_nothing_to_learn_is_said(tmp_path: Path) -> None:
    (tmp_path / "a.conll").write_text("#begin document (a)\n0\tHe\t(1)\n1\tsaw\t-\n2\tit\t(2)\n")
    made = settings(text={"valid": str(PEOPLE)})
    with pytest.raises(CorpusError, match="two mentions"):
        train_task(Coreference, [str(tmp_path / "a.conll")], made, tmp_path / "m")
