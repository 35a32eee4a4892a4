"""Pairs of sentences as a user compares them: every network, labels and numbers."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import relmo
from relmo.errors import CorpusError, SettingError
from relmo.runs.train_task import train_task
from relmo.store.folder import read_config, text_digests, write_json
from relmo.tasks.classifier import ChosenLabel, PairScore, SentencePairs
from relmo.tasks.features import WordFeatures, count_words
from relmo.tasks.task import Labels
from support.sentence_tasks import pairs_settings, same_words, similar
from support.tagging import tiny_bilm

PAIRS = [(["A", "film"], ["film"]), ([], ["plot"]), (["a"] * 9, ["b"] * 3), (["plot"], ["plot"])]
NETWORKS: dict[str, dict[str, Any]] = {
    "lstm": {"directions": 1, "pool": "final"},
    "bilstm": {"pool": "final"},
    "maxpool of two layers, mlp of two": {"pool": "max", "layers": 2, "mlp": (12, 8)},
    "gru, attention": {"cell": "gru", "pool": "attention"},
    "esim": {"network": "esim"},
    "decomposable": {"network": "decomposable"},
    "cosine": {"network": "cosine", "pool": "mean"},
    "cosine of averages": {"network": "cosine", "layers": 0, "pool": "attention"},
}


def sections(network: str, **more: Any) -> dict[str, Any]:
    text = {"task": "score"} if "cosine" in network else {}
    return {"text": text | more.pop("text", {}), "model": NETWORKS[network], **more}


def untrained(network: str) -> SentencePairs:
    torch.manual_seed(0)
    made = pairs_settings(**sections(network))
    features = WordFeatures(made.input, count_words([words for pair in PAIRS for words in pair], made.input))
    own = {} if "cosine" in network else {"labels": Labels(["yes", "no", "maybe"])}
    return SentencePairs(made, features, own).initialize()


def numbers(found: ChosenLabel | PairScore) -> dict[str, float]:
    return found.probabilities if isinstance(found, ChosenLabel) else {"score": found.score}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("network", "elmo"),
    [*((name, None) for name in NETWORKS), ("bilstm", "output"), ("gru, attention", "input"), ("esim", "both")],
)
def test_every_network_learns_and_its_folder_gives_the_same_answers(
    network: str, elmo: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RELMO_CACHE", str(tmp_path / "cache"))
    make = similar if "cosine" in network else same_words
    train, dev = make(tmp_path / "train", 120), make(tmp_path / "dev", 30, seed=1)
    extra: dict[str, Any] = {}
    if elmo:
        tiny_bilm().save_pretrained(tmp_path / "bilm")
        extra = {"elmo": str(tmp_path / "bilm"), "elmo_at": elmo, "elmo_dropout": 0.0}
    made = pairs_settings(**sections(network, text={"valid": str(dev)}, input=extra, train={"epochs": 8, "lr": 0.01}))
    results = train_task(SentencePairs, [str(train)], made, tmp_path / "out")
    assert results["metric"] == ("pearson" if "cosine" in network else "accuracy")
    assert results[f"valid_{results['metric']}"] > 0.9
    model = relmo.load(tmp_path / "out", device="cpu")
    assert isinstance(model, SentencePairs)
    assert model.evaluate(dev).values == {
        name.removeprefix("valid_"): value
        for name, value in results.items()
        if name.startswith("valid_") and name != "valid_examples"
    }
    same, different = map(numbers, model.predict([("The film", "The film"), ("The film", "The plot")]))
    assert all(same[key] > different[key] for key in ("same", "score") if key in same)


@pytest.mark.parametrize("network", NETWORKS)
def test_answers_do_not_depend_on_order_or_company(network: str) -> None:
    model = untrained(network)
    together = model.predict(PAIRS)
    for other in (model.predict(PAIRS[::-1])[::-1], [model.predict([pair])[0] for pair in PAIRS]):
        for a, b in zip(together, other, strict=True):
            assert numbers(a) == pytest.approx(numbers(b), abs=1e-6)


def test_similarity_is_a_number_in_its_range_and_the_same_both_ways() -> None:
    model = untrained("cosine")
    both = model.predict(PAIRS), model.predict([(second, first) for first, second in PAIRS])
    there, back = ([numbers(found)["score"] for found in each] for each in both)
    assert there == pytest.approx(back, abs=1e-6)
    assert all(-5 <= score <= 5.000001 for score in there)
    assert there[3] == pytest.approx(5)  # a sentence and itself
    assert there[1] == pytest.approx(0)  # nothing has no direction: half way between low, -5, and high


@pytest.mark.parametrize("given", [("one", "two"), [["just", "three", "words"]], "text"])
def test_a_pair_that_is_not_in_a_list_is_one_clear_line(given: Any) -> None:
    with pytest.raises(SettingError, match="first, second"):
        untrained("lstm").predict(given)


def test_a_line_is_two_texts_with_a_tab_between_them() -> None:
    model = untrained("bilstm")
    assert model.texts(model.read_line("Don't!\tA film")) == (["Do", "n't", "!"], ["A", "film"])
    assert model.texts(model.read_line("Don't!\t", tokenized=True)) == (["Don't!"], [])
    for line, count in (("A film", 1), ("a\tb\tc", 3)):
        with pytest.raises(CorpusError, match=f"tab between them, found {count}"):
            model.read_line(line)


def test_records_hold_both_texts_and_probabilities_or_a_score() -> None:
    labelled, scored = untrained("bilstm"), untrained("cosine")
    (found,) = labelled.predict([("a", ["b", "c"])])
    assert isinstance(found, ChosenLabel)
    assert found.to_dict() == {
        "first": "a",
        "second": "b c",
        "label": found.label,
        "probability": found.probabilities[found.label],
        "probabilities": found.probabilities,
    }
    (number,) = scored.predict([("a", "b")])
    assert isinstance(number, PairScore)
    assert number.to_dict() == {"first": "a", "second": "b", "score": number.score}
    assert PairScore("a", "b", 2.5).as_text() == "2.5000"


def test_a_model_that_gives_numbers_has_no_labels_and_folders_that_fake_one_still_load(tmp_path: Path) -> None:
    model = untrained("cosine")
    model.save_pretrained(tmp_path)
    config = read_config(tmp_path)
    assert "labels" not in config
    assert sorted(path.name for path in tmp_path.glob("*.txt")) == ["vocabulary.txt"]
    (tmp_path / "labels.txt").write_text("score\n")
    write_json(tmp_path / "config.json", {**config, "labels": 1, "digests": text_digests(tmp_path)})
    assert relmo.load(tmp_path, device="cpu").predict(PAIRS) == model.predict(PAIRS)  # type: ignore[union-attr]


def test_scores_beyond_their_range_are_an_error(tmp_path: Path) -> None:
    file = similar(tmp_path / "train.csv", 20)
    made = pairs_settings(**sections("cosine") | {"model": NETWORKS["cosine"] | {"high": 4.0}})
    with pytest.raises(CorpusError, match="--high"):
        train_task(SentencePairs, [str(file)], made, tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"text": {"task": "score"}}, "task score and network"),
        ({"model": {"network": "cosine"}}, "task label and network"),
        ({"model": {"layers": 0, "cell": "gru"}}, "cell has no effect"),
        ({"model": {"layers": 0, "pool": "final"}}, "layers 0"),
        ({"model": {"low": 1.0}}, "low has no effect"),
        ({"model": {"network": "esim", "pool": "mean"}}, "pool has no effect"),
        ({"model": {"network": "decomposable", "layers": 2}}, "layers has no effect"),
        (
            {"text": {"task": "score"}, "model": {"network": "cosine", "mlp": (3,)}},
            "mlp has no effect",
        ),
        (
            {"text": {"task": "score"}, "model": {"network": "cosine", "low": 5.0}},
            "low 5 must be less than high 5",
        ),
        ({"input": {"elmo_at": "both"}}, "elmo_at has no effect"),
    ],
)
def test_settings_that_make_no_sense_are_errors_before_anything_is_read(
    changed: dict[str, Any], says: str, tmp_path: Path
) -> None:
    with pytest.raises(SettingError, match=says):
        train_task(SentencePairs, ["missing.tsv"], pairs_settings(**changed), tmp_path / "out")


def test_the_real_files_are_read_as_they_are(data: Callable[[str], Path]) -> None:
    snli = SentencePairs.read(data("tasks/snli/snli_1.0_dev.tsv"), pairs_settings().text)
    assert len(snli) == 9842
    assert {pair.label for pair in snli} == {"entailment", "neutral", "contradiction"}
    stsb = SentencePairs.read(data("tasks/stsb/sts-dev.csv"), pairs_settings(text={"task": "score"}).text)
    assert len(stsb) == 1500
    assert (min(pair.label for pair in stsb), max(pair.label for pair in stsb)) == (0.0, 5.0)
