"""Labellers of semantic roles as a user has them: trained, broken off, loaded, asked, scored, shown."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import relmo
from relmo.errors import CorpusError, ModelError, SettingError
from relmo.runs.train_task import train_task
from relmo.tasks.srl import PredicateRoles, RoleLabeller, RoleText
from relmo.tasks.task import Labels
from relmo.text.readers.roles import MAX_WORDS, read_roles
from relmo.text.readers.tagged import Span
from relmo.text.tokenize import tokenize
from support.roles import roles, settings
from support.tagging import StopAfter, tiny_bilm, word_bilm

SENTENCE = "Anna sees Bob today who hears Carl ."


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with files and a labeller that has learned all there is to learn."""
    folder = tmp_path_factory.mktemp("srl")
    train, dev = roles(folder / "train.jsonl", 60), roles(folder / "dev.jsonl", 20, seed=1)
    made = settings(text={"valid": str(dev)}, train={"epochs": 6})
    results = train_task(RoleLabeller, [str(train)], made, folder / "model")
    assert results["metric"] == "f1"
    assert results["valid_f1"] == results["valid_verb_f1"] == results["valid_found_f1"] == 1.0
    assert results["valid_predicate_f1"] == 1.0
    return folder


@pytest.fixture
def labeller(trained: Path) -> RoleLabeller:
    loaded = relmo.load(trained / "model", device="cpu")
    assert isinstance(loaded, RoleLabeller)
    return loaded


def test_predicates_are_found_in_text_with_their_roles(labeller: RoleLabeller) -> None:
    found = labeller.predict([SENTENCE])[0]
    assert [each.word for each in found.predicates] == ["sees", "hears"]
    assert [Span(r.start_word, r.end_word, r.label) for r in found.predicates[0].roles] == [
        Span(0, 1, "ARG0"),
        Span(1, 2, "V"),
        Span(2, 3, "ARG1"),
        Span(3, 4, "ARGM-TMP"),
    ]
    assert found.predicates[1].tags == ["O", "O", "B-ARG0", "O", "B-R-ARG0", "B-V", "B-ARG1", "O"]
    assert found.detected == found.predicates


def test_given_predicates_are_labelled_and_no_others(labeller: RoleLabeller) -> None:
    both = labeller.predict([SENTENCE])[0]
    one, none, odd = labeller.predict([(SENTENCE, [5]), (SENTENCE.split(), []), (SENTENCE, np.array([0, 0]))])
    assert one.predicates == both.predicates[1:]
    assert one.detected == both.detected
    assert none.predicates == []
    assert [(each.place, each.tags[0]) for each in odd.predicates] == [(0, "B-V")]
    with pytest.raises(SettingError, match="from 0 to 7, not 8"):
        labeller.predict([(SENTENCE, [8])])
    with pytest.raises(SettingError, match="list of indices"):
        labeller.predict([(SENTENCE, 5)])  # type: ignore[list-item]
    with pytest.raises(SettingError, match="takes a list of sentences, not 5"):
        labeller.predict(5)  # type: ignore[arg-type]


def test_the_sentence_is_shown_with_brackets_and_as_a_record(labeller: RoleLabeller) -> None:
    asked = labeller.make_example("Anna hears Bob now.")
    found = next(labeller.predict_examples([asked]))
    text = "Anna hears Bob now .\n  hears  [ARG0 Anna]  [V hears]  [ARG1 Bob]  [ARGM-TMP now]\n"
    assert found.as_text() == text
    assert [colour for piece, colour in found.pieces() if piece.startswith("[")] == [
        "blue",
        "bold red",
        "green",
        "cyan",
    ]
    record = found.to_dict()
    assert json.loads(json.dumps(record)) == record
    assert record["tokens"][3] == {"text": "now", "start": 15, "end": 18}
    (predicate,) = record["predicates"]
    assert found.predicates[0].probability == predicate.pop("probability") > 0.5
    shares = predicate.pop("probabilities")
    assert shares == found.predicates[0].probabilities
    assert predicate | {"tags": 0, "roles": 0} == {
        "token": 1,
        "text": "hears",
        "start": 5,
        "end": 10,
        "tags": 0,
        "roles": 0,
    }
    place = {"start": 11, "end": 14, "start_word": 2, "end_word": 3}
    assert predicate["roles"][2] == {"text": "Bob", **place, "label": "ARG1", "probability": shares[2]}
    assert repr(found) == "RoleText(hears: [ARG0 Anna] [V hears] [ARG1 Bob] [ARGM-TMP now])"
    assert found._repr_html_().count("<span") == 4


def test_the_columns_it_writes_are_those_that_are_read(labeller: RoleLabeller, tmp_path: Path) -> None:
    found = labeller.predict([SENTENCE, "Hello ."])
    lines = []
    for each in found:
        columns = zip(each.words, each.as_props().splitlines(), strict=True)
        lines += [f"{word}\t{line}" for word, line in columns] + [""]
    (tmp_path / "found.props").write_text("\n".join(lines))
    again = list(read_roles(tmp_path / "found.props"))
    assert [example.words for example in again] == [each.words for each in found]
    assert [[(p.place, p.tags) for p in e.propositions or ()] for e in again] == [
        [(p.place, p.tags) for p in each.predicates] for each in found
    ]


def tags_of(found: RoleText) -> list[tuple[int, list[str]]]:
    """The tags for each predicate."""
    return [(each.place, each.tags) for each in found.predicates]


def test_predictions_do_not_depend_on_order_or_company(
    labeller: RoleLabeller, trained: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = [example.words for example in labeller.read(trained / "dev.jsonl", labeller.settings.text)] + [[], ["sees"]]
    together = list(map(tags_of, labeller.predict(texts)))
    assert list(map(tags_of, labeller.predict(texts[::-1])))[::-1] == together
    assert [tags_of(labeller.predict([words])[0]) for words in texts] == together
    assert labeller.predict([[]]) == [RoleText("", [], [], [])]
    monkeypatch.setattr("relmo.tasks.task.PREFETCH", 3)
    assert list(map(tags_of, labeller.predict(texts))) == together
    assert labeller.predict([]) == []


def test_training_reads_a_sentence_once_with_all_its_predicates(labeller: RoleLabeller, trained: Path) -> None:
    examples = labeller.read(trained / "train.jsonl", labeller.settings.text)
    encoded = labeller.encode(examples, answers=True)
    which = np.array([6, 1, 0])  # without a predicate, with two, with one
    batch = encoded.batch(which)
    (words,), (predicates, detects) = batch.texts, batch.extra
    assert words.lengths.tolist() == [2, 8, 5]
    assert [each.tolist() for each in predicates] == [[1, 1, 2], [1, 5, 1]]
    assert not detects
    assert batch.targets is not None
    symbols = labeller.labels.symbols
    tags = [[symbols[i] for i in row if i >= 0] for row in batch.targets.tags.tolist()]
    assert tags == [p.tags for i in which for p in examples[i].propositions or ()]
    assert batch.targets.predicates.nonzero().tolist() == [[1, 1], [1, 5], [2, 1]]
    assert batch.predictions == 8 + 8 + 5
    assert encoded.predictions == sum(len(e.words) * len(e.propositions or ()) for e in examples)


def test_saved_and_loaded_it_says_the_same(labeller: RoleLabeller, tmp_path: Path) -> None:
    labeller.save_pretrained(tmp_path / "again")
    again = relmo.load(tmp_path / "again", device="cpu")
    assert again.predict([SENTENCE]) == labeller.predict([SENTENCE])


def test_a_run_that_was_killed_goes_on_to_the_same_bits(trained: Path, tmp_path: Path) -> None:
    files = [str(trained / "train.jsonl")]
    made = settings(text={"valid": str(trained / "dev.jsonl")}, train={"epochs": 2, "checkpoint_every": 0.0})
    train_task(RoleLabeller, files, made, tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        train_task(RoleLabeller, files, made, tmp_path / "broken", reporter=StopAfter(5))
    train_task(RoleLabeller, files, made, tmp_path / "broken", resume=True)
    for folder in ("", "last"):
        one, other = (tmp_path / name / folder / "model.safetensors" for name in ("whole", "broken"))
        assert one.read_bytes() == other.read_bytes()


@pytest.mark.parametrize(
    "elmo",
    [
        {"elmo_at": "input"},
        {"elmo_at": "output", "elmo_layers": "top", "elmo_l2": 0.001},
        {"elmo_at": "both", "elmo_tune": True},
    ],
    ids=["input", "output", "tuned"],
)
def test_elmo_is_read_once_for_each_sentence_wherever_it_goes_in(
    elmo: dict[str, Any], trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RELMO_CACHE", str(tmp_path / "cache"))
    (word_bilm() if elmo.get("elmo_tune") else tiny_bilm()).save_pretrained(tmp_path / "bilm")
    made = settings(
        text={"valid": str(trained / "dev.jsonl")},
        input=elmo | {"elmo": str(tmp_path / "bilm")},
        train={"epochs": 1, "batch": 16},
    )
    made.check()
    results = train_task(RoleLabeller, [str(trained / "train.jsonl")], made, tmp_path / "out")
    assert set(results["elmo_mix"]) == ({"input", "output"} if elmo["elmo_at"] == "both" else {elmo["elmo_at"]})
    model = relmo.load(tmp_path / "out", device="cpu")
    batch = model.encode(model.read(trained / "dev.jsonl", made.text)).batch(np.array([1, 2]))
    (words,), (predicates, detects) = batch.texts, batch.extra
    assert len(predicates.rows) == 4
    assert detects
    assert len(words.elmo_ids if elmo.get("elmo_tune") else words.layers) == 2
    assert len(model.predict([SENTENCE, [], (SENTENCE, [1])])) == 3


def test_without_a_detector_predicates_must_be_given(trained: Path, tmp_path: Path) -> None:
    made = settings(text={"valid": str(trained / "dev.jsonl")}, model={"detector": 0}, train={"epochs": 1})
    results = train_task(RoleLabeller, [str(trained / "train.jsonl")], made, tmp_path / "out")
    assert "valid_found_f1" not in results
    model = relmo.load(tmp_path / "out", device="cpu")
    assert not any("detector" in name for name, _ in model.network.named_parameters())
    (given,) = model.predict([(SENTENCE, [1])])
    assert [each.place for each in given.predicates] == [1]
    assert given.detected is None
    with pytest.raises(SettingError, match="detector 0"):
        model.predict([SENTENCE])


def test_verbs_alone_are_learned_where_that_is_asked_for(tmp_path: Path) -> None:
    frames = [
        {"verb_index": at, "tags": ["O"] * 4, "frame": name}
        for at, name in ((1, "have.01"), (2, "see.01"), (3, "sight.01"))
    ]
    line = {"words": ["We", "had", "seen", "sights"], "frames": frames}
    path = tmp_path / "a.jsonl"
    path.write_text(json.dumps(line | {"pos": ["PRP", "VBD", "VBN", "NNS"]}))
    every, verbs = (
        RoleLabeller.read(path, settings(text={"predicates": which}).text)[0].propositions for which in ("all", "verbs")
    )
    assert [[each.place for each in some or ()] for some in (every, verbs)] == [[1, 2, 3], [2]]
    path.write_text(json.dumps(line))
    with pytest.raises(CorpusError, match="no predicate has a part of speech"):
        RoleLabeller.read(path, settings(text={"predicates": "verbs"}).text)


def test_what_makes_no_sense_is_refused(labeller: RoleLabeller, tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="column has no effect"):
        settings(text={"column": "3"}).check()
    with pytest.raises(SettingError, match="mark_dim must be from 1"):
        settings(model={"mark_dim": 0}).check()
    with pytest.raises(SettingError, match="put a single one into a list"):
        labeller.predict(SENTENCE)
    with pytest.raises(CorpusError, match="1,001"):
        labeller.predict([["a"] * (MAX_WORDS + 1)])
    (tmp_path / "a.jsonl").write_text('{"words": ["Hello"], "frames": []}\n' * 20)
    with pytest.raises(CorpusError, match="have no predicate"):
        train_task(RoleLabeller, [str(tmp_path / "a.jsonl")], settings(), tmp_path / "out")


def test_labels_without_a_predicate_s_tag_are_no_model_of_roles(labeller: RoleLabeller) -> None:
    for wrong in (["O", "B-ARG0"], ["B-V", "I-V", "B-ARG0"]):
        with pytest.raises(ModelError, match="O and B-V"):
            RoleLabeller(labeller.settings, labeller.features, {"labels": Labels(wrong)}).initialize()


def test_a_long_sentence_is_labelled_in_portions(labeller: RoleLabeller) -> None:
    words = SENTENCE.split() * 40
    found = labeller.predict([words])[0]
    assert len(found.predicates) > 60
    assert all(len(each.tags) == 320 for each in found.predicates)


def test_props_of_a_sentence_without_predicates() -> None:
    assert RoleText("Hello .", tokenize("Hello ."), []).as_props() == "-\n-\n"
    given = RoleText("Go on", tokenize("Go on"), [PredicateRoles(0, "Go", ["B-V", "I-V"], [], [1.0, 1.0])])
    assert given.as_props() == "Go\t(V*\n-\t*)\n"


def test_a_slice_of_real_text_is_learned(data: Callable[[str], Path], tmp_path: Path) -> None:
    source = data("tasks/srl_propbank_ewt/ewt-train.jsonl")
    with source.open(encoding="utf-8") as lines:
        short = [line for _, line in zip(range(600), lines, strict=False) if len(json.loads(line)["words"]) < 16]
    files = tmp_path / "train.jsonl", tmp_path / "dev.jsonl"
    for file, some in zip(files, (short[:180], short[180:240]), strict=True):
        file.write_text("".join(some), encoding="utf-8")
    made = settings(
        text={"valid": str(files[1])},
        input={"word_dim": 0, "vectors": "words"},
        model={"hidden": 48, "layers": 2, "mark_dim": 16},
        train={"epochs": 6, "batch": 12, "lr": 0.01, "clip_norm": 1.0},
    )
    torch.manual_seed(0)
    results = train_task(RoleLabeller, [str(files[0])], made, tmp_path / "out")
    scores = [json.loads(line) for line in (tmp_path / "out" / "metrics.jsonl").read_text().splitlines()]
    assert results["valid_f1"] > 0.2
    assert results["valid_predicate_f1"] > 0.75
    assert results["valid_f1"] > next(r["valid_f1"] for r in scores if "valid" in r) + 0.1
