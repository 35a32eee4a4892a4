"""The peers of the bench compute what they are set against."""

import pytest
import torch

from benchmarks import table, translation
from benchmarks.table import Bench, BenchOptions
from benchmarks.translation import PlainJoey, TranslationBench

SENTENCES = [text.split() for text in ("a b c d", "b a", "the cat sat on a mat", "c")]


def test_joeys_network_in_plain_torch_has_our_loss_and_gradients() -> None:
    bench = TranslationBench(SENTENCES, device=torch.device("cpu"))
    ours = bench.network.train()
    joey = PlainJoey(ours)
    batch = bench.batch(bench.ids, targets=True)
    first, second = ours.loss(batch).mean, joey.loss(batch).mean
    torch.testing.assert_close(first, second)
    first.backward()
    second.backward()
    torch.testing.assert_close(ours.body.readout.weight.grad, joey.vector.weight.grad)  # type: ignore[union-attr]
    assert ours.inputs.words is not None
    torch.testing.assert_close(ours.inputs.words.weight.grad, joey.source.weight.grad)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(translation, "NUM_UNITS", 30)
    monkeypatch.setattr(table, "QUICK_TRANSLATION_SENTENCES", 4)
    monkeypatch.setattr(translation, "SIZE", 8)


@pytest.mark.usefixtures("small")
def test_batches_write_what_the_textbooks_loop_writes() -> None:
    bench = TranslationBench(SENTENCES, device=torch.device("cpu"))
    assert bench.decode_batch(1) == bench.decode_single()
    assert [len(ids) for ids in bench.decode_batch(5)] == [len(ids) for ids in bench.ids]


@pytest.mark.usefixtures("small")
def test_the_table_has_both_sections() -> None:
    report = Bench(BenchOptions(what="translate", rounds=1, quick=True, device="cpu")).run()
    assert [(section.what, section.baseline, len(section.rows)) for section in report.sections] == [
        ("decode", "textbook greedy, one by one", 3),
        ("translate", "Joey NMT's network, plain torch", 3),
    ]
    assert all(row.tokens_per_second > 0 for section in report.sections for row in section.rows)
