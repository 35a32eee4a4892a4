"""Sequence to sequence on the command line: pairs made, learned, scored, predicted, drawn."""

import io
import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from relmo.cli import main

Run = Callable[..., tuple[int, str, str]]
SMALL = "--source-unit char --target-unit char --word-dim 16 --target-dim 16 --hidden 24 --dropout 0 --batch 8"
MORE = "--metric exact --limit 12 --validate-every 64 --lr 0.02 --device cpu --quiet"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Strings and a model that copies them; another without attention that has learned nothing."""
    folder = tmp_path_factory.mktemp("copy")
    make = f"make copy --size 3 --letters 4 --count 60 --held-out 20 --longer 4 --out {folder} --quiet"
    tsv = f"{folder}/train.tsv --valid {folder}/held-out.tsv"
    train = f"train seq2seq {tsv} {SMALL} {MORE} --out"
    for command in (make, f"{train} {folder}/m --epochs 24", f"{train} {folder}/fixed --attention none --epochs 0.1"):
        with pytest.raises(SystemExit) as end:
            main(command.split())
        assert not end.value.code
    return folder


def test_made_pairs_are_tables_and_are_not_replaced(folder: Path, run: Run) -> None:
    assert (folder / "train.tsv").read_text().splitlines()[0] == "source\ttarget"
    status, _, error = run("make", "copy", "--out", folder)
    assert status == 2
    assert "train.tsv" in error
    status, output, _ = run("make", "dates", "--count", 20, "--held-out", 5, "--out", folder / "dates", "--json")
    assert json.loads(output)["files"][str(folder / "dates" / "longer.tsv")] == 100


def test_evaluation_is_by_length(folder: Path, run: Run) -> None:
    status, output, _ = run("evaluate", folder / "m", folder / "held-out.tsv", folder / "longer.tsv", "--json")
    near, far = json.loads(output)["files"]
    assert status == 0
    assert near["exact"] > 0.7
    assert [row["texts"] for row in far["by_length"]] == [8, 4, 4]
    status, output, _ = run("evaluate", folder / "m", folder / "held-out.tsv")
    assert "source units" in output


def test_a_pipe_is_answered_line_by_line_with_candidates_and_attention(
    folder: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def typed(text: str) -> None:
        monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=io.BytesIO(text.encode()), fileno=lambda: -1))

    typed("abc\n\ndab\n")
    status, output, error = run("predict", folder / "m")
    assert (status, output.splitlines()[::2]) == (0, ["abc", "dab"]), error
    typed("abc\n")
    _, output, _ = run("predict", folder / "m", "--beams", 4, "--best", 3)
    scores = [float(line.split("\t")[0]) for line in output.splitlines()]
    assert len(scores) == 3
    assert scores == sorted(scores, reverse=True)
    typed("abc\n")
    record = json.loads(run("predict", folder / "m", "--json", "--best", 2)[1])
    assert record["text"] == "abc"
    assert record["source_units"] == ["a", "b", "c"]
    assert [len(row) for row in record["candidates"][0]["attention"]] == [3, 3, 3, 3]
    typed("abc\n")
    assert "a b c" in run("predict", folder / "m", "--attention")[1].splitlines()[2]


def test_a_file_of_pairs_is_read_as_in_training_or_by_a_column(folder: Path, run: Run) -> None:
    """Copies are their own sources."""
    by_pairs = run("predict", folder / "m", folder / "held-out.tsv")
    assert len(by_pairs[1].splitlines()) == 20
    assert run("predict", folder / "m", folder / "held-out.tsv", "--column", "target") == by_pairs


def test_attention_is_drawn_to_a_file(folder: Path, run: Run, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="needs relmo[plot]")
    (tmp_path / "lines.txt").write_text("abc\n\nda\n")
    picture = tmp_path / "attention.png"
    assert run("predict", folder / "m", tmp_path / "lines.txt", "--plot", picture)[0] == 0
    assert picture.read_bytes()[:4] == b"\x89PNG"
    assert "exists" in run("predict", folder / "m", tmp_path / "lines.txt", "--plot", picture)[2]
    (tmp_path / "many.txt").write_text("ab\n" * 21)
    error = run("predict", folder / "m", tmp_path / "many.txt", "--plot", picture, "--overwrite")[2]
    assert "at most 20" in error


def test_info_convert_and_what_makes_no_sense(folder: Path, run: Run, tmp_path: Path) -> None:
    assert "seq2seq" in run("info", folder / "m")[1]
    assert run("convert", folder / "m", tmp_path / "int8", "--precision", "int8", "--quiet")[0] == 0
    (tmp_path / "lines.txt").write_text("abc\n")
    assert run("predict", tmp_path / "int8", tmp_path / "lines.txt")[1] == "abc\n"
    for flags, message in (
        ("--attention", "attention"),
        ("--coverage 1", "coverage needs attention"),
        ("--best 3 --beams 2", "best 3 is more than beams 2"),
    ):
        assert message in run("predict", folder / "fixed", tmp_path / "lines.txt", *flags.split())[2]
