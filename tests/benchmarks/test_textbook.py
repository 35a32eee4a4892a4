"""The peers that relmo is timed against compute the same numbers from the same weights."""

import copy
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.nn.utils.rnn import pack_padded_sequence, pad_sequence

from benchmarks.embedding import compare_vectors, embed_batches
from benchmarks.lstms import LSTMBench, Shape
from benchmarks.textbook import TextbookBiLM, TorchStacks
from benchmarks.training import TrainingBench
from relmo.models.bilm import BiLM
from relmo.networks.bilm import BiLMNetwork
from relmo.settings.bilm import BiLMModelSettings, BiLMSettings

TINY = BiLMModelSettings(
    char_dim=4,
    filters=("1x8", "2x8", "3x16"),
    hidden=24,
    projection=8,
    samples=20,
    dropout=0.0,
    state_dropout=0.0,
    cell_clip=0.5,
    projection_clip=0.3,
)
SENTENCES = [
    ["The", "Queen", "of", "Hearts", ",", "she", "made", "some", "tarts"],
    ["So"],
    ["a", "summer", "day", "with", "an-exceedingly-long-word-that-no-room-of-fifty-characters-could-ever-hold"],
    ["Ganz", "schön", "spät", "!"],
]


def network(settings: BiLMModelSettings, vocab_size: int | None = None) -> BiLMNetwork:
    torch.manual_seed(1)
    made = BiLMNetwork(settings, vocab_size=vocab_size)
    with torch.no_grad():
        for layer in made.lstm.stack:  # large enough that both clips act, and biases that are not zero
            for weight in layer.parameters():
                weight.copy_(torch.randn_like(weight) * 0.5)
    return made.eval()


@pytest.mark.parametrize("highway", [1, 2])
@pytest.mark.parametrize("activation", ["relu", "tanh"])
def test_the_textbook_loop_embeds_as_relmo_does(highway: int, activation: str) -> None:
    settings = replace(TINY, highway=highway, activation=activation)
    made = network(settings)
    with pytest.warns(UserWarning, match="cut"):
        expected = BiLM(made, BiLMSettings(model=settings)).embed(SENTENCES)
    found = embed_batches(TextbookBiLM(made), SENTENCES, 50, torch.device("cpu"))
    assert [len(v[0]) for v in found] == [9, 1, 5, 4]
    assert max(float(np.abs(v[1]).max()) for v in found) == pytest.approx(0.3)  # something was clipped
    for ours, theirs in zip(expected, found, strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-5)


def test_peers_take_none_of_relmos_compiled_paths() -> None:
    made = network(TINY)
    shape, device = Shape(3, 7), torch.device("cpu")
    about = {"shape": shape, "textbook": shape, "vocab_size": 40, "device": device, "peer": "float32"}
    plain = TrainingBench(TINY, SENTENCES * 8, precisions=[], **about).plain()  # type: ignore[arg-type]
    for peer in (TextbookBiLM(made), plain):
        assert not any(getattr(module, "fast", False) for module in peer.modules())


def test_a_textbook_step_has_relmos_loss_gradients_and_state() -> None:
    shape, device = Shape(3, 7), torch.device("cpu")
    about = {"shape": shape, "textbook": shape, "vocab_size": 40, "device": device, "peer": "float32"}
    bench = TrainingBench(TINY, SENTENCES * 8, precisions=[], **about)  # type: ignore[arg-type]
    bench.network = network(TINY, vocab_size=40)
    window, next_window = (bench.windows(shape).get(0, i) for i in range(2))
    found = []
    for model in (copy.deepcopy(bench.network), bench.textbook(), bench.plain()):
        model.train()
        torch.manual_seed(2)
        first = model.loss(window, None)  # type: ignore[operator]
        second = model.loss(next_window, first.carry)  # type: ignore[operator]
        second.mean.backward()
        softmax = model.softmax.weight.grad.to_dense()  # type: ignore[union-attr]
        highway = model.encoder.highways[0].carry.weight.grad  # type: ignore[union-attr]
        found.append((first.mean.detach(), second.mean.detach(), softmax, highway, *second.carry))
    for ours, *theirs in zip(*found, strict=True):
        for other in theirs:
            torch.testing.assert_close(other, ours, atol=1e-5, rtol=1e-4)


def test_torchs_lstm_has_relmos_numbers_where_nothing_is_clipped() -> None:
    settings = replace(TINY, cell_clip=0.0, projection_clip=0.0, skip_connections=False)
    lstm = network(settings).lstm
    lengths = [5, 3, 2]
    rows = [torch.randn(n, 8) for n in lengths]
    x = torch.stack([pad_sequence(rows), pad_sequence([row.flip(0) for row in rows])])  # (2, T, B, P)
    packed = [pack_padded_sequence(direction, torch.tensor(lengths)) for direction in x]
    with torch.no_grad():
        expected = lstm(x, None, [3, 3, 2, 1, 1]).layers[-1]
        found = TorchStacks(lstm)(*packed)
    for ours, theirs in zip(expected, found, strict=True):
        torch.testing.assert_close(pack_padded_sequence(ours, torch.tensor(lengths)).data, theirs, atol=1e-5, rtol=0)


def test_the_lstms_alone_give_the_textbooks_outputs_and_leave_no_gradients() -> None:
    made = network(TINY)
    bench = LSTMBench(made.lstm, Shape(3, 4), device=torch.device("cpu"), precision="float32")
    _, loop = bench._textbook()
    expected = made.lstm(bench.x).layers[-1]
    torch.testing.assert_close(loop(bench.x), expected, atol=1e-5, rtol=0)
    torch.testing.assert_close(bench._from_table()(bench.x), expected, atol=1e-5, rtol=0)
    for case in bench.cases(backward=True, textbook=True) + bench.cases(backward=False, textbook=False):
        case.run()
    assert all(parameter.grad is None for parameter in made.parameters())


def test_agreement_is_the_largest_difference_and_the_mean_cosine() -> None:
    a = [np.ones((1, 2, 4), np.float32), np.ones((1, 1, 4), np.float32)]
    b = [a[0].copy(), -a[1]]
    assert compare_vectors(a, a) == (0.0, pytest.approx(1.0))
    assert compare_vectors(b, a) == (2.0, pytest.approx(1 / 3))
