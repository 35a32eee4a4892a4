"""Training a task, tried on taggers: from files to a folder, on after a kill, several seeds, ELMo in all its ways."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import relmo
from relmo.errors import CorpusError, ModelError, RelmoError, SettingError
from relmo.loading import load
from relmo.models.vectors import WordVectors
from relmo.runs.progress import Reporter
from relmo.runs.run import read_metrics
from relmo.runs.train_task import hold_out, train_task
from relmo.store.folder import named_tensors, read_config
from relmo.tasks.scores import mean_and_deviation
from relmo.tasks.tagger import Tagger
from relmo.text.vocabulary import Vocabulary
from support.tagging import StopAfter, conllu, iob2, settings, tiny_bilm, word_bilm


@pytest.fixture
def files(tmp_path: Path) -> tuple[str, str]:
    return str(conllu(tmp_path / "train.conllu", 40)), str(conllu(tmp_path / "dev.conllu", 15, seed=1))


@pytest.fixture
def bilm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("RELMO_CACHE", str(tmp_path / "cache"))
    tiny_bilm().save_pretrained(tmp_path / "bilm")
    return str(tmp_path / "bilm")


def same_weights(one: Path, other: Path) -> bool:
    a, b = (named_tensors(Tagger.from_pretrained(folder, device="cpu").network) for folder in (one, other))
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def test_a_tagger_learns_and_its_folder_says_how_well(files: tuple[str, str], tmp_path: Path) -> None:
    out = tmp_path / "out"
    results = train_task(Tagger, files[:1], settings(text={"valid": files[1]}, train={"epochs": 6}), out)
    assert results["valid_accuracy"] == 1.0
    assert results["train_examples"] == 40
    model = load(out, device="cpu")
    assert isinstance(model, Tagger)
    found = model.predict(["The cat runs."])[0]
    assert (found.words, found.tags) == (["The", "cat", "runs", "."], ["DET", "NOUN", "VERB", "PUNCT"])
    assert read_config(out)["results"] == results
    assert not (out / "run").exists()
    records = list(read_metrics(out / "metrics.jsonl"))
    scores = [record["valid_accuracy"] for record in records if "valid" in record]
    assert len(scores) == 6
    assert max(scores) == 1.0
    assert all(
        record["valid"] == pytest.approx(1 - record["valid_accuracy"]) for record in records if "valid" in record
    )
    assert "valid_accuracy: 1.0000" in (out / "README.md").read_text()
    report = json.loads((out / "report.json").read_text())
    assert report == json.loads(json.dumps(model.evaluate(files[1]).summary()))
    assert [label["label"] for label in report["labels"]] == report["confusion"]["labels"]


def test_the_best_is_at_the_top_and_the_last_beside_it(files: tuple[str, str], tmp_path: Path) -> None:
    out = tmp_path / "out"
    made = settings(text={"valid": files[1]}, train={"epochs": 4, "lr": 0.3, "patience": 2})
    results = train_task(Tagger, files[:1], made, out)
    best, last = (Tagger.from_pretrained(folder, device="cpu") for folder in (out, out / "last"))
    assert best.evaluate(files[1]).score == results["valid_accuracy"]
    scores = [r["valid_accuracy"] for r in read_metrics(out / "metrics.jsonl") if "valid" in r]
    assert results["valid_accuracy"] == max(scores)
    assert last.evaluate(files[1]).score == scores[-1]


@pytest.mark.slow
@pytest.mark.parametrize("seeds", [1, 2])
def test_a_run_that_was_killed_goes_on_to_the_same_bits(
    files: tuple[str, str], bilm: str, tmp_path: Path, seeds: int
) -> None:
    made = settings(
        text={"valid": files[1]},
        input={"elmo": bilm, "word_dropout": 0.2},
        train={"epochs": 2, "checkpoint_every": 0.0, "seeds": seeds, "average": 0.9},
    )
    train_task(Tagger, files[:1], made, tmp_path / "whole")
    broken = tmp_path / "broken"
    for steps in (3, 4):
        with pytest.raises(KeyboardInterrupt):
            train_task(Tagger, files[:1], made, broken, resume=broken.exists(), reporter=StopAfter(steps))
    train_task(Tagger, files[:1], made, broken, resume=True)
    assert same_weights(broken, tmp_path / "whole")
    inner = "seed-2" if seeds == 2 else "last"
    assert same_weights(broken / inner, tmp_path / "whole" / inner)


def test_going_on_with_other_files_is_an_error(files: tuple[str, str], tmp_path: Path) -> None:
    made = settings(text={"valid": files[1]}, train={"checkpoint_every": 0.0})
    with pytest.raises(KeyboardInterrupt):
        train_task(Tagger, files[:1], made, tmp_path / "out", reporter=StopAfter(2))
    conllu(Path(files[0]), 39)
    with pytest.raises(CorpusError, match="have changed"):
        train_task(Tagger, files[:1], made, tmp_path / "out", resume=True)


def test_several_seeds_give_mean_and_deviation_and_the_best_is_the_model(
    files: tuple[str, str], tmp_path: Path
) -> None:
    out = tmp_path / "out"
    made = settings(text={"valid": files[1]}, train={"epochs": 1, "seeds": 3, "seed": 5, "lr": 0.003})
    results = train_task(Tagger, files[:1], made, out)
    every = [read_config(out / f"seed-{k}")["results"] for k in (1, 2, 3)]
    scores = [each["valid_accuracy"] for each in every]
    assert [each["seed"] for each in every] == [5, 6, 7]
    assert results["seeds"] == scores
    assert len(set(scores)) > 1
    assert (results["valid_accuracy_mean"], results["valid_accuracy_deviation"]) == pytest.approx(
        mean_and_deviation(scores)
    )
    macro = [each["valid_macro_f1"] for each in every]
    assert (results["valid_macro_f1_mean"], results["valid_macro_f1_deviation"]) == pytest.approx(
        mean_and_deviation(macro)
    )
    assert results["valid_accuracy"] == max(scores)
    assert "elmo_mix" not in results
    assert json.loads((out / "report.json").read_text())["accuracy"] == max(scores)
    assert same_weights(out, out / f"seed-{1 + scores.index(max(scores))}")
    assert Tagger.from_pretrained(out, device="cpu").evaluate(files[1]).score == max(scores)


def test_seeds_that_are_finished_are_kept_when_a_later_one_fails(files: tuple[str, str], tmp_path: Path) -> None:
    class Failing(Reporter):
        def on_message(self, message: str) -> None:
            if message.startswith("seed 2"):
                raise RelmoError("the loss is nan")

    made = settings(text={"valid": files[1]}, train={"epochs": 1, "seeds": 2})
    with pytest.raises(RelmoError, match="nan"):
        train_task(Tagger, files[:1], made, tmp_path / "out", reporter=Failing())
    assert Tagger.from_pretrained(tmp_path / "out" / "seed-1", device="cpu").evaluate(files[1]).count
    assert len(train_task(Tagger, files[:1], made, tmp_path / "out", resume=True)["seeds"]) == 2


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"elmo_at": "output"},
        {"elmo_at": "both", "elmo_norm": True},
        {"elmo_layers": "top"},
        {"cache": "none"},
        {"elmo_tune": True},
        {"elmo_tune": True, "elmo_layers": "top", "elmo_at": "both"},
        {"word_dim": 0, "char_dim": 0, "filters": ("3x128",)},
    ],
)
def test_elmo_in_every_way_is_trained_saved_and_loaded_alike(
    files: tuple[str, str], bilm: str, tmp_path: Path, options: dict[str, Any]
) -> None:
    out = tmp_path / "out"
    made = settings(text={"valid": files[1]}, input={"elmo": bilm, "elmo_dropout": 0.0} | options, train={"epochs": 6})
    results = train_task(Tagger, files[:1], made, out)
    assert Tagger.from_pretrained(out, device="cpu").evaluate(files[1]).score == results["valid_accuracy"]
    assert results["valid_accuracy"] > 0.3  # the share of the most frequent tag is less
    mixes = read_config(out)["results"]["elmo_mix"]
    at = options.get("elmo_at", "input")
    assert list(mixes) == (["input", "output"] if at == "both" else [at])
    for mix in mixes.values():
        assert len(mix["weights"]) == (1 if options.get("elmo_layers") == "top" else 3)
        assert sum(mix["weights"]) == pytest.approx(1)
    keeps = not options.get("elmo_tune") and options.get("cache") != "none"
    assert (tmp_path / "cache").exists() == keeps


def test_normalised_layers_do_not_depend_on_what_else_is_predicted(
    files: tuple[str, str], bilm: str, tmp_path: Path
) -> None:
    made = settings(text={"valid": files[1]}, input={"elmo": bilm, "elmo_norm": True}, train={"epochs": 1})
    train_task(Tagger, files[:1], made, tmp_path / "out")
    model = Tagger.from_pretrained(tmp_path / "out", device="cpu")
    assert model.network.inputs.means.any()
    sentences = ["the dog sees a cat", "dogs see", "a large and old cat sleeps here today"]
    alone = [model.predict([sentence])[0] for sentence in sentences]
    for one, together in zip(alone, model.predict(sentences), strict=True):
        assert one.tags == together.tags
        assert one.probabilities == pytest.approx(together.probabilities, abs=1e-5)


def test_the_cache_changes_nothing(files: tuple[str, str], bilm: str, tmp_path: Path) -> None:
    for cache in (None, "none"):
        made = settings(text={"valid": files[1]}, input={"elmo": bilm, "cache": cache}, train={"epochs": 1})
        train_task(Tagger, files[:1], made, tmp_path / str(cache))
    assert same_weights(tmp_path / "None", tmp_path / "none")


def test_a_tuned_bilm_changes_and_needs_no_original(files: tuple[str, str], bilm: str, tmp_path: Path) -> None:
    made = settings(text={"valid": files[1]}, input={"elmo": bilm, "elmo_tune": True}, train={"epochs": 1})
    train_task(Tagger, files[:1], made, tmp_path / "out")
    before = tiny_bilm().network
    shutil.rmtree(bilm)
    after = Tagger.from_pretrained(tmp_path / "out", device="cpu").network.inputs.bilm
    assert after is not None
    pairs = zip(before.lstm.parameters(), after.network.lstm.parameters(), strict=True)
    assert all(not torch.equal(a, b) for a, b in pairs)


@pytest.mark.parametrize("tune", [False, True])
def test_a_bilm_that_reads_words_by_number_serves_as_well(files: tuple[str, str], tmp_path: Path, tune: bool) -> None:
    word_bilm().save_pretrained(tmp_path / "bilm")
    read = {"elmo": str(tmp_path / "bilm"), "elmo_tune": tune, "elmo_dropout": 0.0}
    read |= {} if tune else {"cache": str(tmp_path / "cache")}
    made = settings(text={"valid": files[1]}, input=read, train={"epochs": 2})
    results = train_task(Tagger, files[:1], made, tmp_path / "out")
    if tune:
        shutil.rmtree(tmp_path / "bilm")
    assert Tagger.from_pretrained(tmp_path / "out", device="cpu").evaluate(files[1]).score == results["valid_accuracy"]


def test_copies_make_a_folder_that_needs_nothing_else(files: tuple[str, str], bilm: str, tmp_path: Path) -> None:
    (tmp_path / "glove.txt").write_text("the 1 2\ndog 0.5 -1\n")
    made = settings(
        text={"valid": files[1]},
        input={"elmo": bilm, "vectors": str(tmp_path / "glove.txt"), "vectors_tune": True, "copy": True},
        train={"epochs": 1, "seeds": 2},
    )
    train_task(Tagger, files[:1], made, tmp_path / "out")
    shutil.rmtree(bilm)
    (tmp_path / "glove.txt").unlink()
    (tmp_path / "out").rename(tmp_path / "moved")
    folders = [tmp_path / "moved", tmp_path / "moved" / "seed-1", tmp_path / "moved" / "seed-2" / "last"]
    for folder in folders:
        assert Tagger.from_pretrained(folder, device="cpu").predict(["The dog"])[0].words == ["The", "dog"]


def test_another_model_in_the_place_of_the_bilm_is_an_error(
    files: tuple[str, str], bilm: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    WordVectors(Vocabulary(["<unk>", "</s>", "the"]), np.array([[0, 0], [0, 0], [1, 2.0]])).save_pretrained("vectors")
    made = settings(text={"valid": files[1]}, input={"elmo": "bilm", "vectors": "vectors"}, train={"epochs": 1})
    train_task(Tagger, files[:1], made, Path("out"))
    monkeypatch.chdir(tmp_path.parent)
    Tagger.from_pretrained(tmp_path / "out", device="cpu")  # its models are named by their whole paths
    shutil.rmtree(bilm)
    with pytest.raises(ModelError, match=r"bilm: does not exist\); if it has moved, .* --elmo PATH, .* --copy holds"):
        Tagger.from_pretrained(tmp_path / "out", device="cpu")
    tiny_bilm(seed=1).save_pretrained(bilm)
    with pytest.raises(ModelError, match=r"the biLM at .* is not the one this model was trained with .* --elmo PATH"):
        Tagger.from_pretrained(tmp_path / "out", device="cpu")


def test_models_that_have_moved_are_found_where_the_user_says(
    files: tuple[str, str], bilm: str, tmp_path: Path
) -> None:
    WordVectors(Vocabulary(["<unk>", "</s>", "the"]), np.array([[0, 0], [0, 0], [1, 2.0]])).save_pretrained(
        tmp_path / "vectors"
    )
    made = settings(
        text={"valid": files[1]}, input={"elmo": bilm, "vectors": str(tmp_path / "vectors")}, train={"epochs": 1}
    )
    train_task(Tagger, files[:1], made, tmp_path / "out")
    before = relmo.load(tmp_path / "out", device="cpu").predict(["The dog"])
    moved = {"elmo": tmp_path / "there", "vectors": str(tmp_path / "others")}
    shutil.move(bilm, moved["elmo"])
    shutil.move(tmp_path / "vectors", moved["vectors"])
    assert relmo.load(tmp_path / "out", device="cpu", **moved).predict(["The dog"]) == before
    with pytest.raises(ModelError, match=r"static vectors that .* --vectors PATH"):
        relmo.load(tmp_path / "out", elmo=moved["elmo"])
    tiny_bilm(seed=1).save_pretrained(tmp_path / "another")
    with pytest.raises(ModelError, match=r"another is not the one this model was trained with .*; give that one"):
        relmo.load(tmp_path / "out", elmo=tmp_path / "another", vectors=moved["vectors"])
    with pytest.raises(SettingError, match="--elmo applies to task models"):
        relmo.load(moved["elmo"], elmo=moved["elmo"])
    train_task(Tagger, files[:1], settings(text={"valid": files[1]}, train={"epochs": 1}), tmp_path / "plain")
    with pytest.raises(SettingError, match=r"--vectors"):
        relmo.load(tmp_path / "plain", vectors=moved["vectors"])


def test_names_are_found_with_legal_tags_only(tmp_path: Path) -> None:
    train, dev = iob2(tmp_path / "train.iob2", 60), iob2(tmp_path / "dev.iob2", 20, seed=1)
    made = settings(text={"task": "ner", "valid": str(dev)}, model={"decoder": "crf"}, train={"epochs": 6})
    results = train_task(Tagger, [str(train)], made, tmp_path / "out")
    assert results["metric"] == "f1"
    assert results["valid_f1"] == 1.0
    model = Tagger.from_pretrained(tmp_path / "out", device="cpu")
    assert "L-PER" in model.labels.symbols
    assert model.predict([["Bob", "Lee", "sees", "Anna", "."]])[0].tags == ["B-PER", "I-PER", "O", "B-PER", "O"]
    line = "Bob Lee sees New York"
    (found,) = model.predict([line])
    assert [(each.label, each.text) for each in found.entities] == [("PER", "Bob Lee"), ("LOC", "New York")]
    assert repr(found) == "TaggedText('Bob Lee' PER, 'New York' LOC)"
    record = found.to_dict()
    assert json.loads(json.dumps(record)) == record
    place = {"start": 13, "end": 21, "start_word": 3, "end_word": 5}
    share = found.entities[1].probability
    assert record["entities"][1] == {"text": "New York", **place, "label": "LOC", "probability": share}
    new, york = found.probabilities[3:]
    assert max(0.1, new + york - 1) <= share <= min(new, york) + 1e-6


def test_examples_are_held_out_evenly_where_no_file_is_given(files: tuple[str, str], tmp_path: Path) -> None:
    results = train_task(Tagger, files[:1], settings(text={"valid_fraction": 0.2}, train={"epochs": 1}), tmp_path / "o")
    assert (results["train_examples"], results["valid_examples"]) == (32, 8)
    train, valid = hold_out(list(range(10)), 0.3)
    assert valid == [1, 5, 8]
    assert sorted(train + valid) == list(range(10))
    with pytest.raises(CorpusError, match="--valid"):
        hold_out([1, 2, 3], 0.1)


def test_each_class_is_among_the_examples_to_learn_from_and_among_those_held_out() -> None:
    texts = ["good", "bad"] * 20 + ["rare", "rare", "once"]
    train, valid = hold_out(texts, 0.1, lambda text: [text])
    assert set(valid) == {"good", "bad", "rare"}
    assert set(train) == {"good", "bad", "rare", "once"}
    assert (valid.count("good"), valid.count("bad")) == (2, 2)


def test_an_example_of_several_classes_is_held_out_for_its_rarest() -> None:
    sentences = [["O", "PER"]] * 30 + [["O", "PER", "LOC"]] * 4 + [["O"]] * 30
    train, valid = hold_out(sentences, 0.05, lambda tags: tags)
    assert {tag for tags in valid for tag in tags} == {tag for tags in train for tag in tags} == {"O", "PER", "LOC"}


def test_a_dry_run_prints_the_plan_and_leaves_nothing(files: tuple[str, str], bilm: str, tmp_path: Path) -> None:
    plans: list[Any] = []

    class Plans(Reporter):
        def on_plan(self, plan: Any) -> None:
            plans.append(plan)

    made = settings(text={"valid": files[1]}, input={"elmo": bilm}, train={"seeds": 3})
    assert train_task(Tagger, files[:1], made, tmp_path / "out", dry_run=True, reporter=Plans()) == {}
    assert len(plans) == 1
    assert not (tmp_path / "out").exists()
    assert not (tmp_path / "cache").exists()


@pytest.mark.slow
def test_learning_curves_are_a_picture(files: tuple[str, str], tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    made = settings(text={"valid": files[1]}, train={"epochs": 2, "plot": True, "log_every": 1})
    train_task(Tagger, files[:1], made, tmp_path / "out")
    assert (tmp_path / "out" / "curves.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"input": {"word_dim": 0, "char_dim": 0, "filters": ("3x128",)}}, "no input"),
        ({"input": {"char_dim": 0}}, "filters has no effect"),
        ({"input": {"elmo_at": "both"}}, "elmo_at has no effect"),
        ({"input": {"elmo": "x", "elmo_tune": True, "cache": "none"}}, "cache has no effect"),
        ({"input": {"copy": True}}, "copy has no effect"),
        ({"input": {"vectors_tune": True}}, "vectors_tune has no effect"),
        ({"input": {"word_dim": 0, "min_count": 2}}, "min_count has no effect"),
        ({"input": {"filters": ("60x2",)}}, "do not fit into max_characters"),
        ({"text": {"task": "column"}}, "task column needs a column"),
        ({"text": {"task": "pos"}, "model": {"encoding": "bio"}}, "encoding has no effect"),
        ({"train": {"unroll": 5}}, "unroll has no effect"),
        ({"train": {"seeds": 0}}, "seeds must be from 1"),
        ({"input": {"word_dropout": 1.5}}, "word_dropout must be from 0"),
    ],
)
def test_settings_that_make_no_sense_are_errors_before_anything_is_read(
    changed: dict[str, Any], says: str, tmp_path: Path
) -> None:
    with pytest.raises(SettingError, match=says):
        train_task(Tagger, ["missing.conllu"], settings(**changed), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_mistakes_in_the_data_leave_no_folder(files: tuple[str, str], tmp_path: Path) -> None:
    (tmp_path / "one.conllu").write_text("1\ta\t_\tX\t_\t_\t0\t_\t_\t_\n\n" * 20)
    for file, text, says in (
        (files[0], {"task": "ner"}, "'DET' is not a tag of a span"),
        (str(tmp_path / "one.conllu"), {}, "1 label"),
        ("<stdin>", {}, "standard input"),
    ):
        with pytest.raises((CorpusError, SettingError), match=says):
            train_task(Tagger, [file], settings(text=text), tmp_path / "out")
        assert not (tmp_path / "out").exists()


def test_a_damaged_folder_is_one_clear_line(files: tuple[str, str], tmp_path: Path) -> None:
    out = tmp_path / "out"
    train_task(Tagger, files[:1], settings(text={"valid": files[1]}, train={"epochs": 1}), out)
    config = json.loads((out / "config.json").read_text())
    for change, says in (
        ({"labels": 99}, "labels.txt has 4 labels, config.json says 99"),
        ({"vocab_size": 1}, "vocabulary.txt has"),
        ({"elmo": {"source": "small", "digest": "x"}}, "disagree"),
        ({"kind": "lm"}, "is a lm model, not a tagger"),
    ):
        (out / "config.json").write_text(json.dumps(config | change))
        with pytest.raises(ModelError, match=says):
            Tagger.from_pretrained(out)


class Messages(Reporter):
    """Collects what a run says."""

    def __init__(self) -> None:
        self.messages: list[str] = []

    def on_message(self, message: str) -> None:
        self.messages.append(message)


@pytest.mark.parametrize(
    ("task", "metric", "announced"), [("auto", "f1", True), ("ner", "f1", False), ("pos", "accuracy", False)]
)
def test_tags_that_mark_spans_are_scored_as_spans_unless_the_task_is_set(
    task: str, metric: str, announced: bool, tmp_path: Path
) -> None:
    train, reporter = iob2(tmp_path / "train.iob2", 20), Messages()
    made = settings(text={"task": task}, train={"epochs": 1})
    results = train_task(Tagger, [str(train)], made, tmp_path / "out", reporter=reporter)
    assert results["metric"] == metric
    assert any("task ner" in message for message in reporter.messages) == announced
    model = Tagger.from_pretrained(tmp_path / "out", device="cpu")
    assert model.settings.text.task == ("ner" if task == "auto" else task)
    assert model.evaluate(train).metric == metric


def test_parts_of_speech_stay_parts_of_speech(files: tuple[str, str], tmp_path: Path) -> None:
    results = train_task(Tagger, files[:1], settings(train={"epochs": 1}), tmp_path / "out")
    assert results["metric"] == "accuracy"
    assert Tagger.from_pretrained(tmp_path / "out", device="cpu").settings.text.task == "pos"


def test_early_stopping_is_announced(files: tuple[str, str], tmp_path: Path) -> None:
    for patience, announced in ((1, True), (None, False)):
        reporter = Messages()
        train = {"epochs": 8, "lr": 0.3, "patience": patience}
        made = settings(text={"valid": files[1]}, train=train)
        train_task(Tagger, files[:1], made, tmp_path / str(patience), reporter=reporter)
        assert any("Stopped early" in message for message in reporter.messages) == announced
