"""`relmo evaluate` and `relmo surprisal` with adaptation."""

import csv
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from relmo.models.adapt import Adaptation
from support.small_models import SENTENCES, TEXT, bilm, language_model, ngram_model

Relmo = Callable[..., str]


@pytest.fixture
def run(command: Relmo) -> Relmo:
    """Return a function that runs a command on the CPU and returns its output, or its error."""
    return lambda *arguments, code=0: command(*arguments, "--device", "cpu", code=code)


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """Return a folder with models and texts."""
    language_model("gru").save_pretrained(tmp_path / "lm", results={})
    bilm().save_pretrained(tmp_path / "bilm", results={})
    ngram_model().save_pretrained(tmp_path / "ngram", results={})
    (tmp_path / "a.txt").write_text(TEXT[:60])
    (tmp_path / "b.txt").write_text(TEXT[20:90])
    (tmp_path / "sentences.txt").write_text(SENTENCES)
    return tmp_path


def test_evaluate_shows_the_plain_and_the_adapted_score(run: Relmo, files: Path) -> None:
    flags = ["--adapt", 0.01, "--segment", 7, "--cache", 9, "--adapt-statistics", files / "b.txt"]
    options = {"adapt": 0.01, "segment": 7, "cache": 9, "adapt_statistics": str(files / "b.txt")}
    command = ["evaluate", files / "lm", files / "a.txt", files / "b.txt", *flags]
    record = json.loads(run(*command, "--json"))
    assert {name: record["adaptation"][name] for name in options} == options
    model = language_model("gru")
    adaptation = Adaptation(model, **options)
    scores = [model.evaluate(files / name, adaptation=adaptation) for name in ("a.txt", "b.txt")]
    for row, score in zip([*record["files"], record["total"]], [*scores, scores[0] + scores[1]], strict=True):
        assert row["perplexity"] == pytest.approx(score.perplexity, rel=1e-4)
        assert row["adapted"]["perplexity"] == pytest.approx(score.adapted.perplexity, rel=1e-4)
        assert row["adapted"]["perplexity"] != pytest.approx(row["perplexity"], rel=1e-3)
    table = run(*command)
    assert f"{record['total']['adapted']['perplexity']:,.3f}" in table
    assert [line.split("  ")[0] for line in table.splitlines()[1:]] == [
        str(files / "a.txt"), str(files / "b.txt"), "all",
        f"{files / 'a.txt'} adapted", f"{files / 'b.txt'} adapted", "all adapted",
    ]  # fmt: skip
    first, second = run(*command, "--quiet").splitlines()[0].split("\t")
    assert float(first) == pytest.approx(record["files"][0]["perplexity"], abs=1e-3)
    assert float(second) == pytest.approx(record["files"][0]["adapted"]["perplexity"], abs=1e-3)


def test_evaluate_of_a_bilm_adapts_both_directions(run: Relmo, files: Path) -> None:
    command = ["evaluate", files / "bilm", files / "sentences.txt"]
    plain = json.loads(run(*command, "--json"))["total"]
    total = json.loads(run(*command, "--adapt", 0.02, "--json"))["total"]
    adapted = total.pop("adapted")
    assert total == plain
    assert adapted["forward_perplexity"] < plain["forward_perplexity"]
    assert adapted["backward_perplexity"] < plain["backward_perplexity"]
    assert adapted["tokens"] == plain["tokens"]


def test_standard_input_is_read_once(run: Relmo, files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stdin = io.TextIOWrapper(io.BytesIO((files / "a.txt").read_bytes()))
    monkeypatch.setattr("sys.stdin", stdin)
    output = run("evaluate", files / "lm", "-", "--cache", 5, "--quiet")
    assert output == run("evaluate", files / "lm", files / "a.txt", "--cache", 5, "--quiet")


def surprisal(run: Relmo, *arguments: Any) -> list[str]:
    return [row["surprisal"] for row in csv.DictReader(run("surprisal", *arguments).splitlines(), delimiter="\t")]


def test_surprisal_adapts_and_resets(run: Relmo, files: Path) -> None:
    (files / "table.csv").write_text("id,text\n1,the cat\n1,a cat\n2,the mat\n2,a mat\n")
    (files / "first.txt").write_text("the cat\na cat\n")
    table, first = [files / "lm", files / "table.csv"], [files / "lm", files / "first.txt"]
    flags = ["--context", "sentence", "--adapt", 0.1]
    never, text = surprisal(run, *table, *flags), surprisal(run, *table, *flags, "--reset", "text")
    alone = surprisal(run, *first, *flags)
    assert text[:4] == never[:4] == alone
    assert surprisal(run, *first, "--context", "sentence") != alone
    assert text[4] != never[4]
    assert text[4] == surprisal(run, *first, "--context", "sentence")[0]  # "the ", with the original weights
    expected = language_model("gru").surprisal(["the cat", "a cat"], context="sentence", adapt=0.1)
    assert [float(bits) for bits in alone] == pytest.approx([row.surprisal for row in expected], abs=1e-4)


def test_options_without_effect_are_errors(run: Relmo, files: Path) -> None:
    text = files / "a.txt"
    for arguments, message in (
        (["evaluate", files / "ngram", text, "--adapt", 0.1], "neural network"),
        (["evaluate", files / "lm", text, "--segment", 3], "without adapt"),
        (["evaluate", files / "lm", text, "--cache-lambda", 0.3], "without cache"),
        (["surprisal", files / "ngram", text, "--adapt", 0.1], "neural network"),
        (["surprisal", files / "lm", text, "--reset", "text"], "without adapt"),
        (["surprisal", files / "lm", text, "--adapt", 1, "--reset", "text", "--split", "sentences"], "--id"),
    ):
        error = run(*arguments, code=2)
        assert message in error
        assert error.count("\n") == 1
