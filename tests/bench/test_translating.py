"""The peers of the bench compute what they are set against."""

import torch

from relmo.bench import translating
from relmo.bench.translating import PlainJoey, TranslationBench

SENTENCES = [text.split() for text in ("a b c d", "b a", "the cat sat on a mat", "c")]


def test_joeys_network_in_plain_torch_has_our_loss_and_gradients() -> None:
    bench = TranslationBench(SENTENCES, device=torch.device("cpu"))
    ours = bench.fed.train()
    joey = PlainJoey(ours)
    batch = bench.batch(bench.ids, answers=True)
    first, second = ours.loss(batch).mean, joey.loss(batch).mean
    torch.testing.assert_close(first, second)
    first.backward()
    second.backward()
    torch.testing.assert_close(ours.body.readout.weight.grad, joey.vector.weight.grad)  # type: ignore[union-attr]
    assert ours.inputs.words is not None
    torch.testing.assert_close(ours.inputs.words.weight.grad, joey.source.weight.grad)


def test_batches_write_what_the_textbooks_loop_writes(monkeypatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setattr(translating, "UNITS", 30)
    bench = TranslationBench(SENTENCES, device=torch.device("cpu"))
    assert bench.batched(1) == bench.one_by_one()
    assert [len(ids) for ids in bench.batched(5)] == [len(ids) for ids in bench.ids]
    for case in (*bench.decoding(), *bench.training()):
        case.run()
