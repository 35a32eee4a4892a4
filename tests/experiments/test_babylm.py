"""Training under a budget of words: the text, the epochs of its checkpoints, the table, and the script, in small."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import relmo
from experiments import babylm
from experiments.recipes import pretraining_text
from relmo.errors import CorpusError, SettingError

SCRIPT = Path(__file__).parents[2] / "experiments" / "babylm.sh"
ALICE = Path(relmo.__file__).parent / "data" / "alice.txt"
NO_GRAMS = np.zeros(1, dtype=np.uint64)
SUITE = {
    "meta": {"name": "number_orc", "metric": "sum"},
    "predictions": [{"type": "formula", "formula": "(1;%right%) < (1;%wrong%)"}],
    "items": [
        {
            "item_number": 1,
            "conditions": [
                {"condition_name": name, "regions": [{"region_number": 1, "content": text}]}
                for name, text in (("right", "She was tired."), ("wrong", "She were tired."))
            ],
        }
    ],
}


def count(lines: list[str]) -> int:
    return sum(len(line.split()) for line in lines)


@pytest.fixture
def parts(tmp_path: Path) -> list[Path]:
    """Two parts, the second three times as long, with paragraphs of one to three sentences."""
    paths = [tmp_path / "pretrain-0.txt", tmp_path / "pretrain-1.txt"]
    for number, (path, size) in enumerate(zip(paths, (200, 600), strict=True)):
        paragraphs = [
            " ".join(f"Part {number} has a paragraph {i} here." for _ in range(1 + i % 3)) for i in range(size)
        ]
        path.write_text("\n\n".join(paragraphs) + "\n", encoding="utf-8")
    return paths


@pytest.mark.parametrize("num_words", [100, 777, 5000])
def test_a_sample_has_whole_paragraphs_of_all_parts_and_never_too_many_words(num_words: int, parts: list[Path]) -> None:
    sample = list(babylm.sample_paragraphs(parts, num_words, NO_GRAMS))
    assert sample == list(babylm.sample_paragraphs(parts, num_words, NO_GRAMS))
    sizes = {part: sum(count(lines) for source, lines in sample if source == part) for part in parts}
    assert num_words - 24 < sum(sizes.values()) <= num_words
    assert abs(sizes[parts[0]] - num_words / 4) <= 24
    paragraphs = [line for part in parts for line in part.read_text(encoding="utf-8").split("\n") if line]
    texts = [" ".join(lines) for _, lines in sample]
    assert [text for text in paragraphs if text in set(texts)] == texts, "whole, in order, once each"
    indices = [paragraphs.index(text) for text in texts]
    assert max(np.diff([-1, *indices, len(paragraphs)])) <= 3 * len(paragraphs) / len(indices), "evenly spread"
    lengths = [text.count(".") for text in texts]
    assert abs(np.mean(lengths) - 2) < 0.35, "long and short paragraphs alike"


def test_paragraphs_of_evaluation_texts_and_repetitions_are_left_out(parts: list[Path]) -> None:
    held_out = np.unique(pretraining_text.grams(pretraining_text.words("Part 1 has a paragraph 7 here. Part 1")))
    parts[0].write_text(parts[0].read_text() + "\n" + parts[0].read_text().upper())
    texts = [" ".join(lines) for _, lines in babylm.sample_paragraphs(parts, 1 << 20, held_out)]
    assert len(texts) == 800 - 1
    assert not any("Part 1 has a paragraph 7 here. Part" in text for text in texts)


def test_words_are_those_between_white_space() -> None:
    assert babylm.count_words("It's a well-known\u00a0fact\u2060, 3.5 % \n") == 7
    assert [babylm.parse_words(text) for text in ("10M", "100M", "12345")] == [10**7, 10**8, 12345]
    for text in ("", "M", "0", "10k", "1e7", "-5", "1.5M"):
        with pytest.raises(SettingError, match="WORDS"):
            babylm.parse_words(text)
    assert [babylm.format_words(x) for x in (999_996, 1e7, 123_456_789, 100_000)] == ["1M", "10M", "123M", "0.1M"]


def test_checkpoints_are_those_of_the_challenge() -> None:
    millions = [*range(1, 10), *range(10, 100, 10), *range(100, 1001, 100)]
    assert [round(100 * epoch) for epoch in babylm.checkpoint_epochs(10**8, 10)] == millions
    assert [round(10 * epoch) for epoch in babylm.checkpoint_epochs(10**7, 10)] == millions[:19]
    assert babylm.checkpoint_epochs(10**6, 0.35) == pytest.approx([0.1, 0.2, 0.3])
    for epochs in (0, -1, 10.5):
        with pytest.raises(SettingError, match="at most 10"):
            babylm.checkpoint_epochs(10**7, epochs)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A data folder with all that the script reads, in small."""
    data = tmp_path / "data"
    lines = [paragraph.replace("\n", " ") for paragraph in ALICE.read_text(encoding="utf-8").split("\n\n")]
    for pattern in pretraining_text.HELD_OUT:
        path = data / pattern.replace("*", "x")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text('"x"', encoding="utf-8")
    shutil.rmtree(data / "tasks" / "agreement")
    blimp, suites = data / "tasks" / "agreement" / "blimp", data / "tasks" / "syntaxgym"
    for path in (blimp, suites):
        path.mkdir(parents=True)
    for i in range(8):
        (data / "lm" / f"pretrain-{i}.txt").write_text("\n\n".join(lines[30 * i : 30 * i + 30]), encoding="utf-8")
    (data / "lm" / "pretrain-valid.txt").write_text("\n".join(lines[300:340]), encoding="utf-8")
    pair = {"sentence_good": "She was not there .", "sentence_bad": "She were not there .", "UID": "number"}
    pair |= {"linguistics_term": "subject_verb_agreement"}
    (blimp / "number.jsonl").write_text(f"{json.dumps(pair)}\n" * 3, encoding="utf-8")
    (suites / "number_orc.json").write_text(json.dumps(SUITE), encoding="utf-8")
    (suites / "published.tsv").write_text("model\tnumber_orc\ngrnn\t0.25\n", encoding="utf-8")
    return data


def run_script(data: Path, out: Path, words: int, **variables: str) -> "subprocess.CompletedProcess[str]":
    python = sys.executable
    variables = {"RELMO": f"{python} -m relmo", "PYTHON": python, "OMP_NUM_THREADS": "1", "EPOCHS": "0.2"} | variables
    command = ["bash", str(SCRIPT), str(data), str(out), str(words)]
    return subprocess.run(command, env=os.environ | variables, capture_output=True, text=True, check=False)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["lm", "bilm"])
def test_the_script_trains_on_a_counted_text_and_scores_its_checkpoints(
    kind: str, folder: Path, tmp_path: Path
) -> None:
    small = {"lm": "--hidden 8 --embedding 4 --last-hidden 4 --batch 4 --unroll 8 --device cpu"}
    small["bilm"] = "--hidden 8 --projection 4 --filters 1x4 --samples 8 --batch 4 --unroll 8 --device cpu"
    variables, out = {"KIND": kind, "SETTINGS": small[kind]}, tmp_path / "out"
    stopped = run_script(folder, out, 9000, LIMIT="1", **variables)
    assert stopped.returncode == 124, stopped.stderr
    done = run_script(folder, out, 9000, **variables)
    assert done.returncode == 0, done.stderr
    num_words = json.loads((out / "text.json").read_text())["words"]
    assert 8500 < num_words == len((out / "text.txt").read_text(encoding="utf-8").split()) <= 9000
    model = out / f"{kind}-lstm" / "model"
    assert relmo.load(model, device="cpu").results["trained_on"] == ["text.txt"]
    assert sorted(path.name for path in (model / "snapshots").iterdir()) == ["0.1", "0.2"]
    rows = [line.split() for line in done.stdout.splitlines()]
    assert [row[:3] for row in rows if row[0] in ("epoch", "best")][:2] == [
        ["epoch", "0.1", babylm.format_words(0.1 * num_words)],
        ["epoch", "0.2", babylm.format_words(0.2 * num_words)],
    ]
    for name, row in (("0.1", rows[2]), ("0.2", rows[3])):
        result = relmo.load(model / "snapshots" / name, device="cpu").evaluate(folder / "lm" / "pretrain-valid.txt")
        perplexity = result.forward_perplexity if kind == "bilm" else result.perplexity
        assert float(row[3]) == pytest.approx(perplexity, abs=0.06)
        assert set(row[4:]) <= {"0.0", "100.0"}
    assert ["published:", "LSTM,", "Wikipedia", "83M", "69.8", "25.0"] in rows
    times: dict[Path, Any] = {path: path.stat().st_mtime_ns for path in out.rglob("*.json")}
    again = run_script(folder, out, 9000, **variables)
    assert again.stdout == done.stdout
    assert times == {path: path.stat().st_mtime_ns for path in out.rglob("*.json")}
    other = run_script(folder, out, 8000, **variables)
    assert other.returncode == 1
    assert "use another folder" in other.stderr


def test_a_text_that_is_too_short_is_one_line_and_leaves_nothing(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    with pytest.raises(CorpusError, match="not 1,000,000"):
        babylm.write_text(folder, tmp_path / "out", 10**6)
    assert list((tmp_path / "out").iterdir()) == []
    with pytest.raises(SystemExit, match="error: WORDS"):
        babylm.main(["epochs", "many", "1"])
