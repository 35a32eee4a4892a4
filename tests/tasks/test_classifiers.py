"""Classifiers as a user trains and holds them: every network, trees, metrics, and a start from a language model."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import relmo
from relmo.errors import CorpusError, ModelError, SettingError
from relmo.models.lm import LanguageModel
from relmo.runs.run import read_metrics
from relmo.runs.train_task import train_task
from relmo.store.folder import named_tensors, read_config
from relmo.tasks.classifier import ChosenLabel, Classifier, choose_labels
from relmo.tasks.features import WordFeatures, count_words
from relmo.tasks.task import Labels
from relmo.text.readers.labelled import Labelled
from support.sentence_tasks import TREES, classifier_settings, language_model, reviews
from support.tagging import StopAfter, tiny_bilm

TEXTS = [["A", "good", "film"], ["dull"] * 20, ["bad", "plot", "."], []]
NETWORKS: dict[str, dict[str, Any]] = {
    "bilstm, max": {},
    "lstm, final": {"directions": 1, "pool": "final"},
    "gru, mean, mlp": {"cell": "gru", "pool": "mean", "mlp": (6,)},
    "elman, attention": {"cell": "elman", "pool": "attention"},
    "two residual projected layers": {"layers": 2, "projection": 4, "residual": True},
    "bcn": {"network": "bcn", "hidden": 16, "dropout": 0.0},
}


@pytest.fixture
def files(tmp_path: Path) -> tuple[str, str]:
    return str(reviews(tmp_path / "train.tsv", 200)), str(reviews(tmp_path / "dev.tsv", 30, seed=1))


def untrained(**sections: Any) -> Classifier:
    torch.manual_seed(0)
    made = classifier_settings(**sections)
    features = WordFeatures(made.input, count_words(TEXTS, made.input))
    return Classifier(made, features, {"labels": Labels(["pos", "neg", "none"])}).initialize()


def same_weights(one: Path, other: Path) -> bool:
    a, b = (named_tensors(Classifier.from_pretrained(folder, device="cpu").network) for folder in (one, other))
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


@pytest.mark.parametrize("network", NETWORKS)
def test_every_network_learns_and_its_folder_gives_the_same_answers(
    network: str, files: tuple[str, str], tmp_path: Path
) -> None:
    made = classifier_settings(text={"valid": files[1]}, model=NETWORKS[network], train={"epochs": 4})
    results = train_task(Classifier, files[:1], made, tmp_path / "out")
    assert results["valid_accuracy"] == 1.0
    assert (results["train_examples"], results["valid_examples"], results["metric"]) == (200, 30, "accuracy")
    model = relmo.load(tmp_path / "out", device="cpu")
    assert isinstance(model, Classifier)
    assert model.evaluate(files[1]).score == 1.0
    assert [found.label for found in model.predict(["A lovely plot.", ["A", "dull", "film", "."]])] == ["pos", "neg"]


@pytest.mark.parametrize("network", ["bilstm, max", "bcn"])
def test_answers_do_not_depend_on_order_or_company(network: str) -> None:
    model = untrained(model=NETWORKS[network])
    together = model.predict(TEXTS)
    for other in (model.predict(TEXTS[::-1])[::-1], [model.predict([words])[0] for words in TEXTS]):
        for a, b in zip(together, other, strict=True):
            assert a.label == b.label
            assert a.probabilities == pytest.approx(b.probabilities, abs=1e-6)


def test_probabilities_are_those_of_a_softmax_and_the_label_is_the_most_probable() -> None:
    found = choose_labels(torch.tensor([[0.0, 2.0, 1.0], [3.0, 0.0, 0.0]]), Labels(["a", "b", "c"]), [{}, {}])
    assert [choice.label for choice in found] == ["b", "a"]
    s = np.exp([0, 2, 1]).sum()
    assert found[0].probabilities == pytest.approx({"a": 1 / s, "b": np.exp(2) / s, "c": np.exp(1) / s})
    assert found[0].as_text() == "b\t0.6652"
    model = untrained()
    assert model.predict([]) == []
    (one,) = model.predict(["Don't!"])
    (other,) = model.predict([["Do", "n't", "!"]])
    assert one.probabilities == other.probabilities
    assert (one.inputs, other.inputs) == ({"text": "Don't!"}, {"text": "Do n't !"})
    assert sum(one.probabilities.values()) == pytest.approx(1)
    with pytest.raises(SettingError, match="put a single one into a list"):
        model.predict("A film")


@pytest.mark.parametrize("subtrees", [True, False])
def test_trees_teach_all_their_phrases_and_are_scored_by_sentences(subtrees: bool, tmp_path: Path) -> None:
    (tmp_path / "trees.txt").write_text(TREES)
    file = str(tmp_path / "trees.txt")
    made = classifier_settings(text={"valid": file, "subtrees": subtrees}, train={"epochs": 1})
    results = train_task(Classifier, [file], made, tmp_path / "out")
    assert results["train_examples"] == (16 if subtrees else 4)
    assert results["valid_examples"] == 4
    model = Classifier.from_pretrained(tmp_path / "out", device="cpu")
    assert sorted(model.labels.symbols) == (["0", "2", "4"] if subtrees else ["0", "4"])
    assert model.evaluate(file).count == 4


def test_phrases_are_never_on_both_sides_of_a_held_out_part(tmp_path: Path) -> None:
    (tmp_path / "trees.txt").write_text(TREES * 5)
    with pytest.raises(CorpusError, match=r"trees.txt: .*--no-subtrees"):
        train_task(Classifier, [str(tmp_path / "trees.txt")], classifier_settings(), tmp_path / "out")
    assert not (tmp_path / "out").exists()
    made = classifier_settings(text={"subtrees": False}, train={"epochs": 1})
    assert train_task(Classifier, [str(tmp_path / "trees.txt")], made, tmp_path / "out")["train_examples"] == 18


@pytest.mark.parametrize(("metric", "name"), [("accuracy", "accuracy"), ("mcc", "matthews"), ("f1", "macro_f1")])
def test_the_best_model_is_the_best_in_the_chosen_metric(
    metric: str, name: str, files: tuple[str, str], tmp_path: Path
) -> None:
    made = classifier_settings(text={"valid": files[1]}, train={"metric": metric, "lr": 0.004, "epochs": 4})
    results = train_task(Classifier, files[:1], made, tmp_path / "out")
    records = [record for record in read_metrics(tmp_path / "out" / "metrics.jsonl") if "valid" in record]
    assert results["metric"] == name
    assert results[f"valid_{name}"] == max(record[f"valid_{name}"] for record in records)
    assert all(record["valid"] == pytest.approx(1 - record[f"valid_{name}"]) for record in records)
    assert (
        Classifier.from_pretrained(tmp_path / "out", device="cpu").evaluate(files[1]).score == results[f"valid_{name}"]
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("network", "at"),
    [("gru, mean, mlp", "input"), ("lstm, final", "output"), ("bilstm, max", "both"), ("bcn", "both")],
)
def test_elmo_goes_in_at_each_place(
    network: str, at: str, files: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RELMO_CACHE", str(tmp_path / "cache"))
    tiny_bilm().save_pretrained(tmp_path / "bilm")
    extra = {"elmo": str(tmp_path / "bilm"), "elmo_at": at, "elmo_dropout": 0.0}
    made = classifier_settings(
        text={"valid": files[1]},
        input=extra,
        model=NETWORKS[network] | {"dropout": 0.0},
        train={"epochs": 10, "lr": 0.01},
    )
    results = train_task(Classifier, files[:1], made, tmp_path / "out")
    assert results["valid_accuracy"] > 0.9
    model = Classifier.from_pretrained(tmp_path / "out", device="cpu")
    assert model.evaluate(files[1]).score == results["valid_accuracy"]
    assert len(model.network.inputs.mixes) == (2 if at == "both" else 1)


@pytest.mark.slow
def test_a_killed_run_of_bcn_goes_on_to_the_same_bits(files: tuple[str, str], tmp_path: Path) -> None:
    made = classifier_settings(
        text={"valid": files[1]}, model={"network": "bcn"}, train={"epochs": 2, "checkpoint_every": 0.0}
    )
    train_task(Classifier, files[:1], made, tmp_path / "whole")
    broken = tmp_path / "broken"
    with pytest.raises(KeyboardInterrupt):
        train_task(Classifier, files[:1], made, broken, reporter=StopAfter(7))
    train_task(Classifier, files[:1], made, broken, resume=True)
    assert same_weights(broken, tmp_path / "whole")
    assert same_weights(broken / "last", tmp_path / "whole" / "last")


@pytest.mark.slow
@pytest.mark.parametrize(
    "model", [{}, {"cell": "gru", "layers": 2, "embedding": 5}, {"cell": "elman"}, {"projection": 4, "layers": 2}]
)
def test_it_starts_where_a_language_model_ended_and_then_needs_it_no_more(
    model: dict[str, Any], files: tuple[str, str], tmp_path: Path
) -> None:
    start = language_model(tmp_path / "lm", **model)
    made, opened = Classifier.resolve_settings(
        classifier_settings(
            text={"valid": files[1]},
            input={"word_dim": 50, "char_dim": 16},  # the defaults, which say nothing
            model={"hidden": 200, "pool": "final", "dropout": 0.0},
            train={"init": str(tmp_path / "lm"), "epochs": 4},
        )
    )
    examples = [Labelled(["never", "counted"], label) for label in ("pos", "neg")]
    begun = Classifier.prepare(made, examples, torch.device("cpu"), opened).initialize()
    assert begun.features.vocabulary.symbols == start.vocabulary.symbols
    encoded = begun.encode([begun.make_example(["good", "film"])]).batch(np.array([0]))
    x = begun.network.inputs(encoded.texts[0])
    ids = torch.from_numpy(start.vocabulary.ids(["good", "film"])).unsqueeze(0)
    reading = begun.network.body.sentences(*x)  # type: ignore[operator, union-attr]
    torch.testing.assert_close(reading, start.encoder(ids).output[:, -1])
    results = train_task(Classifier, files[:1], made, tmp_path / "out")
    assert results["valid_accuracy"] > 0.9
    shutil.rmtree(tmp_path / "lm")
    loaded = Classifier.from_pretrained(tmp_path / "out", device="cpu")
    assert loaded.evaluate(files[1]).score == results["valid_accuracy"]


def test_with_a_start_words_are_the_language_model_s_and_the_unknown_one_comes_first(tmp_path: Path) -> None:
    start = language_model(tmp_path / "lm", text={"lowercase": True}, symbols=["</s>", "film", "<unk>", "good"])
    made, opened = Classifier.resolve_settings(classifier_settings(train={"init": str(tmp_path / "lm")}))
    assert made.input.lowercase
    begun = Classifier.prepare(made, [Labelled([], "a"), Labelled([], "b")], torch.device("cpu"), opened).initialize()
    assert begun.features.vocabulary.symbols == ["<unk>", "</s>", "film", "good"]
    x = begun.network.inputs(
        begun.encode([begun.make_example(["GOOD", "zebra", "film"])]).batch(np.array([0])).texts[0]
    ).x
    torch.testing.assert_close(x[0], start.encoder.embedding.weight[[3, 2, 1]])


def test_a_start_goes_with_elmo_at_the_output(files: tuple[str, str], tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setenv("RELMO_CACHE", str(tmp_path / "cache"))
    language_model(tmp_path / "lm")
    tiny_bilm().save_pretrained(tmp_path / "bilm")
    extra = {"elmo": str(tmp_path / "bilm"), "elmo_at": "output"}
    made = classifier_settings(
        text={"valid": files[1]}, input=extra, train={"init": str(tmp_path / "lm"), "epochs": 1, "seeds": 2}
    )
    opened: list[str] = []
    load = LanguageModel.from_config
    monkeypatch.setattr(LanguageModel, "from_config", lambda *a, **k: opened.append("lm") or load(*a, **k))
    results = train_task(Classifier, files[:1], made, tmp_path / "out")
    assert opened == ["lm"]  # once, whatever the number of seeds
    assert read_config(tmp_path / "out")["settings"]["model"]["directions"] == 1
    assert len(results["seeds"]) == 2


@pytest.mark.parametrize(
    ("start", "sections", "says"),
    [
        ({}, {"model": {"hidden": 30}}, "hidden is 30"),
        ({}, {"input": {"word_dim": 30}}, "word_dim is 30"),
        ({"text": {"unit": "char"}}, {}, "reads characters"),
        ({"cell": "feedforward"}, {}, "has no recurrent layers"),
        ({"cell": "elman", "nonlinearity": "relu"}, {}, "its cell is elman with relu"),
        ({}, {"input": {"vectors": "words"}}, "vectors has no effect"),
        ({}, {"input": {"elmo": "small"}}, "elmo_at"),
        ({}, {"model": {"network": "bcn"}}, "bcn"),
    ],
)
def test_a_start_that_does_not_fit_is_one_clear_line(
    start: dict[str, Any], sections: dict[str, Any], says: str, files: tuple[str, str], tmp_path: Path
) -> None:
    language_model(tmp_path / "lm", **start)
    made = classifier_settings(text={"valid": files[1]}, train={"init": str(tmp_path / "lm")}, **sections)
    with pytest.raises((SettingError, ModelError), match=says):
        train_task(Classifier, files[:1], made, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_start_must_be_a_language_model(files: tuple[str, str], tmp_path: Path) -> None:
    tiny_bilm().save_pretrained(tmp_path / "bilm")
    with pytest.raises(ModelError, match="bilm"):
        train_task(Classifier, files[:1], classifier_settings(train={"init": str(tmp_path / "bilm")}), tmp_path / "o")


@pytest.mark.parametrize(
    ("sections", "says"),
    [
        ({"model": {"network": "bcn", "pool": "mean"}}, "pool has no effect"),
        ({"model": {"cell": "gru", "projection": 4}}, "projection has no effect"),
        ({"model": {"projection": 8}}, "projection 8 must be smaller than hidden 8"),
        ({"model": {"layers": 0, "projection": 4}}, "projection has no effect"),
        ({"model": {"layers": -1}}, "layers must be from 0"),
        ({"model": {"mlp": (5, 0)}}, "mlp must be from 1"),
        ({"text": {"format": "cola", "subtrees": False}}, "subtrees has no effect"),
        ({"train": {"unroll": 5}}, "unroll has no effect"),
        ({"model": {"dropout": 1.5}}, "dropout must be from 0"),
    ],
)
def test_settings_that_make_no_sense_are_errors_before_anything_is_read(
    sections: dict[str, Any], says: str, tmp_path: Path
) -> None:
    with pytest.raises(SettingError, match=says):
        train_task(Classifier, ["missing.tsv"], classifier_settings(**sections), tmp_path / "out")


def test_a_choice_is_plain_data() -> None:
    found = ChosenLabel({"text": "x & y"}, "pos", {"pos": 0.75, "neg": 0.25})
    assert found.to_dict() == {
        "text": "x & y",
        "label": "pos",
        "probability": 0.75,
        "probabilities": {"pos": 0.75, "neg": 0.25},
    }
    assert repr(found) == "ChosenLabel('pos' 0.75, 'x & y')"
    assert found._repr_html_().startswith("<p>x &amp; y</p><table><tr><th>pos</th><td>0.7500</td>")
    (made,) = untrained().predict(["x"])
    assert json.loads(json.dumps(made.to_dict())) == made.to_dict()
    assert made.to_dict()["text"] == "x"
