"""Classifiers and pairs on the command line: train, evaluate, predict, info."""

import io
import json
import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import relmo
from relmo.cli import main
from support.sentence_tasks import language_model, reviews, same_words, similar

Relmo = Callable[..., str]
QUICK = "--lr 0.02 --batch 16 --epochs 6 --device cpu --quiet"
SMALL = f"--word-dim 8 --char-dim 0 --hidden 12 --dropout 0 {QUICK}"


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a classifier, a model of labelled pairs and one of scores, which have learned all there is."""
    folder = tmp_path_factory.mktemp("models")
    for name, make, kind, more in (
        ("reviews", reviews, "classifier", ""),
        ("same", same_words, "pairs", "--network decomposable"),
        ("alike", similar, "pairs", "--task score --network cosine --pool mean"),
    ):
        train, dev = make(folder / f"{name}-train", 150), make(folder / f"{name}-dev", 30, seed=1)
        arguments = f"--valid {dev} {SMALL} {more} --out {folder / name}".split()
        with pytest.raises(SystemExit) as end:
            main(["train", kind, str(train), *arguments])
        assert end.value.code == 0
    return folder


def test_a_classifier_answers_each_line_with_a_label(command: Relmo, models: Path, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("A lovely plot.\nA dull film.\n")
    lines = [line.split("\t") for line in command("predict", models / "reviews", tmp_path / "a.txt").splitlines()]
    assert [label for label, _ in lines] == ["pos", "neg"]
    records = [
        json.loads(line) for line in command("predict", models / "reviews", tmp_path / "a.txt", "--json").splitlines()
    ]
    assert [record["text"] for record in records] == ["A lovely plot.", "A dull film."]
    for (label, probability), record in zip(lines, records, strict=True):
        assert record["label"] == label
        assert f"{record['probabilities'][label]:.4f}" == probability
        assert sum(record["probabilities"].values()) == pytest.approx(1)


def test_pairs_are_two_columns_and_get_a_label_or_a_score(
    command: Relmo, models: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def answers(model: str, *options: str) -> list[str]:
        text = io.BytesIO(b"The film\tSome film.\nThe film\tSome plot.\n")
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(text))
        return command("predict", models / model, *options).splitlines()

    assert [line.split("\t")[0] for line in answers("same")] == ["same", "different"]
    first, second = map(json.loads, answers("same", "--json"))
    assert (first["first"], first["second"], first["label"]) == ("The film", "Some film.", "same")
    assert first["probabilities"].keys() == second["probabilities"].keys() == {"same", "different"}
    more, less = map(float, answers("alike"))
    assert more > less
    assert f"{json.loads(answers('alike', '--json')[0])['score']:.4f}" == f"{more:.4f}"


def test_evaluate_shows_each_kind_s_own_scores(command: Relmo, models: Path) -> None:
    assert command("evaluate", models / "reviews", models / "reviews-dev", "--quiet") == "1.000000\n"
    shown = command("evaluate", models / "same", models / "same-dev", "--confusion")
    assert all(
        word in shown for word in ("accuracy", "macro_f1", "matthews", "precision", "different", "predicted labels")
    )
    (row,) = json.loads(command("evaluate", models / "alike", models / "alike-dev", "--json"))["files"]
    assert row["metric"] == "pearson"
    assert row["pearson"] > 0.9
    assert row["spearman"] > 0.5
    assert row["confusion"] is None


def test_info_and_convert_know_them(command: Relmo, models: Path, tmp_path: Path) -> None:
    for name, kind in (("reviews", "classifier"), ("same", "pairs"), ("alike", "pairs")):
        assert json.loads(command("info", models / name, "--json"))["kind"] == kind
    command("convert", models / "reviews", tmp_path / "half", "--precision", "float16")
    assert command("evaluate", tmp_path / "half", models / "reviews-dev", "--quiet") == "1.000000\n"


@pytest.mark.parametrize(
    ("kind", "preset", "make", "section", "key", "value"),
    [
        ("classifier", "sst5", reviews, "model", "pool", "attention"),
        ("classifier", "bcn", reviews, "model", "network", "bcn"),
        ("classifier", "cola", reviews, "train", "metric", "mcc"),
        ("pairs", "snli", same_words, "model", "network", "esim"),
        ("pairs", "encoder", same_words, "model", "pool", "max"),
        ("pairs", "stsb", similar, "text", "task", "score"),
    ],
)
def test_each_preset_trains(
    kind: str,
    preset: str,
    make: Callable[..., Path],
    section: str,
    key: str,
    value: str,
    command: Relmo,
    tmp_path: Path,
) -> None:
    presets = (Path(relmo.__file__).parent / "presets").glob(f"{kind}-*.toml")
    assert f"{kind}-{preset}.toml" in {path.name for path in presets}
    file = make(tmp_path / "train", 40)
    arguments = ["train", kind, file, "--preset", preset, "--hidden", "8", "--epochs", "1", "--device", "cpu"]
    results = json.loads(command(*arguments, "--out", tmp_path / "m", "--json", "--quiet"))
    assert results["train_examples"] == 36
    assert json.loads((tmp_path / "m" / "config.json").read_text())["settings"][section][key] == value


def test_a_classifier_starts_from_a_language_model(command: Relmo, tmp_path: Path) -> None:
    file = reviews(tmp_path / "train.tsv", 60)
    language_model(tmp_path / "lm", hidden=6)
    arguments = ["train", "classifier", file, "--init", tmp_path / "lm", "--pool", "final", *QUICK.split()[:-1]]
    shown = command(*arguments, "--out", tmp_path / "m")
    assert all(word in shown for word in ("valid_accuracy", "precision", "recall", "neg", "saved to"))
    settings = json.loads((tmp_path / "m" / "config.json").read_text())["settings"]
    assert (settings["input"]["word_dim"], settings["model"]["hidden"], settings["model"]["directions"]) == (6, 6, 1)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["predict", "same", "ONE"], "one.txt:2: expected two texts"),
        (["evaluate", "alike", "same-dev"], "same-dev:2: 'different' is not a number"),
        (["evaluate", "reviews", "same-dev"], "there is no column text or sentence or review"),
        (["train", "classifier", "reviews-dev", "--preset", "stsb", "--out", "x"], "unknown preset 'stsb'"),
        (["train", "pairs", "alike-dev", "--network", "cosine", "--out", "x"], "task label and network"),
        (["train", "classifier", "reviews-dev", "--init", "none", "--out", "x"], "none"),
    ],
)
def test_mistakes_are_one_line(
    command: Relmo, models: Path, tmp_path: Path, arguments: list[str], says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(models)
    (tmp_path / "one.txt").write_text("a\tb\nonly one\n")
    said = command(*(str(tmp_path / "one.txt") if argument == "ONE" else argument for argument in arguments), code=2)
    assert says in said
    assert said.count("\n") == 1
    assert not Path("x").exists()


def test_a_users_own_table_is_learnt_from_scored_and_answered(command: Relmo, tmp_path: Path) -> None:
    rows = "".join(
        f'{i},"A {"lovely" if i % 2 else "dull"}, quiet film",{"good" if i % 2 else "bad"}\n' for i in range(60)
    )
    (tmp_path / "mine.csv").write_text("nr,comment,verdict\n" + rows)
    names = ["--text-column", "comment", "--column", "verdict"]
    command("train", "classifier", tmp_path / "mine.csv", *names, *SMALL.split(), "--out", tmp_path / "model")
    assert float(command("evaluate", tmp_path / "model", tmp_path / "mine.csv", "--quiet")) == 1.0
    (tmp_path / "new.csv").write_text('comment,other\n"Lovely, lovely",x\n"dull,\ndull",y\n')
    answers = command("predict", tmp_path / "model", tmp_path / "new.csv").splitlines()
    assert [answer.split("\t")[0] for answer in answers] == ["good", "bad"]
    assert len(command("predict", tmp_path / "model", tmp_path / "new.csv", "--column", "other").splitlines()) == 2
    (tmp_path / "old.csv").write_text("words\nLovely\n")
    said = command("predict", tmp_path / "model", tmp_path / "old.csv", code=2)
    assert "old.csv:1: there is no column comment; the columns (from the first line) are words" in said


def test_evaluate_reads_a_table_with_other_columns(command: Relmo, models: Path, tmp_path: Path) -> None:
    rows = ["A lovely plot.,pos", "A dull film.,neg"]
    (tmp_path / "c.csv").write_text("\n".join(["comment,verdict", *rows]) + "\n")
    arguments = ["evaluate", models / "reviews", tmp_path / "c.csv", "--quiet"]
    flags = set(re.findall("--[a-z-]+", command("evaluate", "--help")))
    error = command(*arguments, code=2)
    assert "--text-column" in error
    assert set(re.findall("--[a-z-]+", error)) <= flags
    error = command(*arguments, "--text-column", "comment", code=2)
    assert "--column" in error
    named = ["--text-column", "comment", "--column", "verdict"]
    assert float(command(*arguments, *named)) == 1.0
    report = relmo.load(models / "reviews").evaluate(tmp_path / "c.csv", text_column="comment", column="verdict")
    assert report.score == 1.0
    (tmp_path / "latin.csv").write_bytes("comment,verdict\nA lovely plot caf\xe9,pos\n".encode("latin-1"))
    assert "--errors replace" in command(*arguments, tmp_path / "latin.csv", *named, code=2)
    assert command(*arguments, tmp_path / "latin.csv", *named, "--errors", "replace").startswith("1.0")


def test_evaluate_reads_pairs_from_two_named_columns(command: Relmo, models: Path, tmp_path: Path) -> None:
    (tmp_path / "p.tsv").write_text("one\ttwo\tlabel\na b\ta b\tsame\na b\tc d\tother\n")
    arguments = ["evaluate", models / "same", tmp_path / "p.tsv", "--quiet"]
    assert "--text-columns" in command(*arguments, code=2)
    assert 0 <= float(command(*arguments, "--text-columns", "one", "--text-columns", "two")) <= 1
    assert "text_columns" in command(*arguments, "--text-columns", "one", code=2)
    assert "text_column" in command(*arguments, "--text-column", "one", code=2)


def test_pairs_are_taken_from_two_columns_of_a_table(command: Relmo, models: Path, tmp_path: Path) -> None:
    (tmp_path / "p.csv").write_text('premise,hypothesis\n"a, b","a, b"\n"a, b",c\n')
    expected = command("predict", models / "same", tmp_path / "p.csv")
    (tmp_path / "q.tsv").write_text("one\ttwo\na, b\ta, b\na, b\tc\n")
    assert command("predict", models / "same", tmp_path / "q.tsv", "--column", "one", "--column", "two") == expected
    (tmp_path / "plain.txt").write_text("a, b\ta, b\na, b\tc\n")
    assert command("predict", models / "same", tmp_path / "plain.txt") == expected
