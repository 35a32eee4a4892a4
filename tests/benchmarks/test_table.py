"""The whole table, of a model small enough to wait for."""

import json
import sys
from pathlib import Path

import pytest
import torch

from benchmarks import clock, table, translation
from benchmarks.lstms import Shape
from benchmarks.machine import Calibration
from benchmarks.table import Bench, BenchOptions, BenchReport, read_text, take_tokens
from relmo.errors import CorpusError, SettingError


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """One run a round."""
    monkeypatch.setitem(clock.MIN_SECONDS, "cpu", 0.0)
    monkeypatch.setitem(table.VOCABULARY_SIZES, "cpu", 600)
    monkeypatch.setattr("benchmarks.machine.SHAPES", {"cpu": [(64, 64, 64)]})
    monkeypatch.setattr("benchmarks.machine.CALIBRATION", {"cpu": (64, 64, 64)})


def test_embedding_is_timed_against_every_peer_and_agrees_with_the_definition() -> None:
    told: list[str] = []
    report = Bench(BenchOptions(what="embed", geometry="tiny", tokens=150, rounds=1, device="cpu"), told.append).run()
    text, single = report.sections
    names = [row.name for row in text.rows]
    assert names[:4] == [
        "textbook loop, input order",
        "textbook loop, sorted by length",
        "definition (fast=False)",
        "torch nn.LSTM, no clipping, LSTMs only",
    ]
    for precision in ("float32", "bfloat16", "int8"):
        for cache in ("cold", "warm"):
            row = text.rows[names.index(f"relmo {precision}, {cache} cache")]
            floor = text.rows[names.index(f"floor {precision}, {cache} cache")]
            assert row.of_floor == pytest.approx(row.tokens_per_second / floor.tokens_per_second)
            assert row.ratio == pytest.approx(row.tokens_per_second / text.rows[0].tokens_per_second)
            assert row.mean_cosine is not None
            assert row.mean_cosine > 0.999
            if precision == "float32":
                assert row.max_difference is not None
                assert row.max_difference < 1e-5
    assert text.rows[0].ratio == 1.0
    assert 150 <= text.tokens < 250
    assert single.rows[0].name == "textbook loop"
    assert any("round 1 of 1" in line for line in told)


def test_training_is_timed_against_plain_autograd_and_the_textbook_step() -> None:
    options = BenchOptions(what="train", geometry="tiny", dtype="float32,int8", rounds=1, quick=True, device="cpu")
    report = Bench(options).run()
    step, lstms = report.sections
    names = [row.name for row in step.rows]
    plain = "plain torch autograd"
    assert names == ["textbook step", f"{plain}, all columns", plain, "relmo float32", "floor float32"]
    assert step.baseline == plain
    assert step.tokens == lstms.tokens == 640
    assert [row.name for row in lstms.rows] == [
        "torch nn.LSTM, no clipping, 32 x 20",
        "relmo, 32 x 20",
        "floor float32",
    ]


@pytest.mark.slow
def test_on_a_gpu_each_precision_has_peers_of_its_own_and_the_lstms_are_timed_in_three_sizes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sizes = (Shape(2, 5), Shape(3, 5), Shape(4, 5))
    small = {
        "GPU_STEP": sizes[2],
        "GPU_TEXTBOOK": sizes[1],
        "GPU_SHAPES": sizes,
        "GPU_TOKENS": 30,
        "TRANSLATION_SENTENCES": 2,
    }
    for name, value in small.items():
        monkeypatch.setattr(table, name, value)
    monkeypatch.setattr(translation, "NUM_UNITS", 30)
    monkeypatch.setitem(table.VOCABULARY_SIZES, "cuda", 600)
    timing = Bench(BenchOptions(geometry="tiny", rounds=1, dtype="bfloat16", device="cpu"))
    timing.kind = "cuda"  # all but the device itself
    titles = [section.title.removesuffix(", forward and backward pass") for section in timing.run().sections]
    assert titles[0].startswith("Embedding, tiny, bfloat16: ")
    assert titles[2:5] == [f"Embedding, tiny, bfloat16: the LSTMs alone, {n} x 5" for n in (2, 3, 4)]
    assert titles[5].startswith("Training, tiny, bfloat16: a whole step of 4 x 5 tokens, softmax over 512 of 600")
    assert titles[6:9] == [title.replace("Embedding", "Training") for title in titles[2:5]]
    others = ["Sequence to sequence, decoding", "Sequence to sequence, training", "Explorer, prose"]
    assert [title.split(":")[0] for title in titles[9:]] == others


@pytest.mark.slow
def test_the_explorers_answers_are_timed_through_its_server() -> None:
    report = Bench(BenchOptions(what="explore", rounds=2, device="cpu")).run()
    (section,) = report.sections
    assert [row.name for row in section.rows] == ["a page opened", "another unit"]
    assert section.title.endswith("a page of 4,000 symbols")
    assert (section.tokens, report.gemm) == (4000, {})
    assert all(len(row.seconds) == 2 for row in section.rows)


def test_where_the_explorers_packages_are_missing_it_is_left_out_or_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "relmo.web.connections", None)
    calibration = Calibration(torch.device("cpu"))
    everything = Bench(BenchOptions(geometry="tiny", device="cpu"))
    report = BenchReport({}, {}, {})
    (said,) = everything._add_explorer(report, calibration)
    assert "not timed" in said
    assert "pip install 'relmo[explore]'" in said
    assert report.sections == []
    with pytest.raises(SettingError, match=r"relmo\[explore\]"):
        Bench(BenchOptions(what="explore", device="cpu")).run()


def test_the_report_is_one_object_of_plain_values() -> None:
    report = Bench(
        BenchOptions(what="embed", geometry="tiny", dtype="float32", tokens=30, rounds=2, device="cpu")
    ).run()
    found = json.loads(json.dumps(report.json()))
    assert {"machine", "versions", "threads", "date", "text", "gemm", "warnings", "rows"} <= found.keys()
    row = found["rows"][0]
    assert (row["what"], row["geometry"], row["precision"], len(row["seconds"])) == ("embed", "tiny", "float32", 2)
    assert row["tokens_per_second"] == pytest.approx(row["tokens"] / sorted(row["seconds"])[0], rel=10)


def test_the_bundled_text_is_split_into_sentences() -> None:
    sentences = read_text(None)
    assert 1000 < len(sentences) < 3000
    assert ["Down", ",", "down", ",", "down", "."] in sentences
    assert sum(map(len, sentences)) > 25_000
    assert [len(part) for part in take_tokens([["a"] * 3, ["b"] * 4, ["c"]], 5)] == [3, 4]


def test_a_text_of_ones_own_has_a_sentence_a_line(tmp_path: Path) -> None:
    (tmp_path / "t.txt").write_text("One two .\n\nThree !\n")
    assert read_text(str(tmp_path / "t.txt")) == [["One", "two", "."], ["Three", "!"]]
    (tmp_path / "empty.txt").write_text("\n")
    with pytest.raises(CorpusError, match=r"empty\.txt"):
        read_text(str(tmp_path / "empty.txt"))
    short = BenchOptions(what="train", text=str(tmp_path / "t.txt"), geometry="tiny", quick=True, device="cpu")
    with pytest.raises(CorpusError, match="640"):
        Bench(short)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"geometry": "huge"}, "--geometry huge: .*tiny, small, medium, original"),
        ({"dtype": "float32,float64"}, "--dtype float32,float64: .*float32, bfloat16, int8"),
        ({"rounds": 0}, "--rounds"),
        ({"tokens": -1}, "--tokens"),
        ({"what": "train", "dtype": "int8"}, "int8"),
    ],
)
def test_what_cannot_be_timed_is_refused_before_anything_is(options: dict[str, str], says: str) -> None:
    with pytest.raises(SettingError, match=says):
        Bench(BenchOptions(**options, device="cpu"))  # type: ignore[arg-type]
