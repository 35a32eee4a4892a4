"""`relmo analyse suite`: what it prints, draws and refuses."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from support.small_models import bilm
from support.suites import word_ngram, write_suite

Run = Callable[..., tuple[int, str, str]]
COMMAND = "analyse suite"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Models in bilm/ and ngram/, a suite with published accuracies in suites/, and pairs."""
    bilm().save_pretrained(tmp_path / "bilm")
    word_ngram().save_pretrained(tmp_path / "ngram")
    (tmp_path / "suites").mkdir()
    write_suite(tmp_path / "suites" / "number_test.json")
    (tmp_path / "suites" / "published.tsv").write_text("model\tnumber_test\ngrnn\t0.5\nmine\t1\n")
    (tmp_path / "pairs.csv").write_text("condition,context,right,wrong\none,the cat,sat,a\none,a cat,sat,mat\n")
    return tmp_path


def test_suites_and_pairs_are_one_json_object(run: Run, folder: Path) -> None:
    options = ["--published-models", "grnn", "--plot", folder / "a.png", "--json", "--quiet"]
    status, out, _ = run(folder / "bilm", folder / "suites", folder / "pairs.csv", *options)
    assert status == 0
    report = json.loads(out)
    names = [(row["source"], row["group"], row["suite"]) for row in report["suite"]["rows"]]
    assert names[:3] == [
        ("SyntaxGym", "", ""),
        ("SyntaxGym", "Agreement", ""),
        ("SyntaxGym", "Agreement", "number_test"),
    ]
    assert names[-1] == ("minimal pairs", "pairs", "one")
    row = report["suite"]["rows"][2]
    assert row["published"] == {"grnn": 50.0, "mine": 100.0}
    assert (row["pairs"], row["known_pairs"]) == (3, 0)
    assert 0 <= row["untrained"] <= 100
    assert (folder / "a.png").read_bytes().startswith(b"\x89PNG")


def test_a_table_has_the_published_models_that_are_named(run: Run, folder: Path) -> None:
    suite = folder / "suites" / "number_test.json"
    status, out, _ = run(folder / "ngram", suite, "--published-models", "mine", "--quiet")
    assert status == 0
    header, mean, circuit, row = out.splitlines()[1:5]
    assert header.split()[-1] == "mine"
    assert (mean.split()[0], circuit.split()[0], row.split()[0]) == ("SyntaxGym,", "Agreement", "number_test")
    assert row.split()[1:3] == ["3", "66.7"]
    assert row.split()[-1] == "100.0"
    assert "grnn" in run(folder / "ngram", suite, "--quiet")[1]  # one of those that are shown by default
    (folder / "suites" / "published.tsv").rename(folder / "other.tsv")
    assert "grnn" not in run(folder / "ngram", suite, "--quiet")[1]
    options = ["--published", folder / "other.tsv", "--published-models", "grnn", "--quiet"]
    assert "50.0" in run(folder / "ngram", suite, *options)[1]


@pytest.mark.parametrize(
    ("files", "options", "message"),
    [
        ([], [], "FILES"),
        (["suites"], ["--published-models", "jrnn"], "has no model 'jrnn'; it has grnn, mine"),
        (["pairs.csv"], ["--published-models", "grnn"], "--published FILE"),
        (["pairs.doc"], [], "pairs.doc"),
        (["broken.json"], [], "broken.json: is not a SyntaxGym suite"),
        (["suites"], ["--plot", "a.pdf"], ".png"),
    ],
)
def test_mistakes_are_one_line(files: list[str], options: list[str], message: str, run: Run, folder: Path) -> None:
    (folder / "broken.json").write_text('{"meta": {}')
    status, _, err = run(folder / "bilm", *(folder / file for file in files), *options, "--quiet")
    assert status == 2
    assert message in " ".join(err.split())
