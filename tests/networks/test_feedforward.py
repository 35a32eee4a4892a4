"""The fixed-window model equals Bengio's equation, sees its window and nothing more, carries it, and trains."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from relmo.networks.language_model import FeedforwardLM, Window
from relmo.settings.lm import LanguageModelSettings

VOCAB = 11
SOFTMAXES = {
    "full": {"softmax": "full"},
    "sampled": {"softmax": "sampled", "samples": 5},
    "adaptive": {"softmax": "adaptive", "cutoffs": (3, 7)},
}


def network(order: int, softmax: str = "full", **more: object) -> FeedforwardLM:
    torch.manual_seed(0)
    options = {"cell": "feedforward", "hidden": 9, "embedding": 7, "order": order} | SOFTMAXES[softmax] | more
    return FeedforwardLM(LanguageModelSettings(**options), vocab_size=VOCAB)  # type: ignore[arg-type]


def random_text(batch: int, steps: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    ids = torch.randint(VOCAB, (batch, steps + 1), generator=torch.Generator().manual_seed(seed))
    return ids[:, :-1], ids[:, 1:]


@pytest.mark.parametrize("order", [2, 3, 5])
def test_equals_the_equation_of_bengio_2003(order: int) -> None:
    """y = b + W x + U tanh(d + H x), x the embeddings of the last order - 1 symbols one after the other."""
    model = network(order).double()
    C, H, d = (p.detach().numpy() for p in (model.embedding.weight, model.hidden.weight, model.hidden.bias))
    output, b = model.softmax.weight.detach().numpy(), model.softmax.bias.detach().numpy()  # type: ignore[union-attr]
    W, U = output[:, : (order - 1) * 7], output[:, (order - 1) * 7 :]
    inputs, targets = random_text(2, 7)
    nll, _ = model.nll(inputs, targets, model.initial_state(2))
    for row in range(2):
        for t in range(7):
            past = [VOCAB] * (order - 1) + inputs[
                row, : t + 1
            ].tolist()  # the row after the last stands before the text
            x = np.concatenate([C[symbol] for symbol in past[-(order - 1) :]])
            y = b + W @ x + U @ np.tanh(d + H @ x)
            expected = np.log(np.exp(y).sum()) - y[targets[row, t]]
            assert abs(nll[row, t].item() - expected) < 1e-5


@pytest.mark.parametrize("softmax", SOFTMAXES)
@given(
    order=st.integers(2, 6),
    pieces=st.lists(st.integers(1, 5), min_size=1, max_size=4),
    seed=st.integers(0, 100),
)
@settings(max_examples=10, deadline=None)
def test_nll_in_pieces_with_carried_state_equals_one_go(softmax: str, order: int, pieces: list[int], seed: int) -> None:
    model = network(order, softmax).eval()
    inputs, targets = random_text(3, sum(pieces), seed)
    whole, final = model.nll(inputs, targets, model.initial_state(3))
    state, parts = model.initial_state(3), []
    for piece_in, piece_out in zip(inputs.split(pieces, dim=1), targets.split(pieces, dim=1), strict=True):
        nll, state = model.nll(piece_in, piece_out, state)
        parts.append(nll)
    torch.testing.assert_close(torch.cat(parts, dim=1), whole, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(state, final, rtol=0, atol=0)
    assert state[0].shape == (3, order - 2)


@pytest.mark.parametrize("softmax", SOFTMAXES)
@pytest.mark.parametrize("order", [2, 4])
def test_step_gives_the_distribution_that_nll_scores_with(order: int, softmax: str) -> None:
    model = network(order, softmax).eval()
    inputs, targets = random_text(3, 6)
    whole, _ = model.nll(inputs, targets, model.initial_state(3))
    state = model.initial_state(3)
    for t in range(6):
        log_probs, state = model.step(inputs[:, t], state)
        torch.testing.assert_close(log_probs.exp().sum(dim=1), torch.ones(3))
        torch.testing.assert_close(-log_probs.gather(1, targets[:, t : t + 1])[:, 0], whole[:, t], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("order", [2, 3, 5])
def test_a_prediction_depends_on_the_last_order_minus_one_symbols_and_no_others(order: int) -> None:
    model = network(order)
    inputs, targets = random_text(1, 9)
    before, _ = model.nll(inputs, targets, model.initial_state(1))
    for place in range(9):
        changed = inputs.clone()
        changed[0, place] = (changed[0, place] + 1) % VOCAB
        after, _ = model.nll(changed, targets, model.initial_state(1))
        moved = ((after - before)[0].abs() > 1e-6).nonzero().flatten().tolist()
        assert moved == list(range(place, min(place + order - 1, 9)))


@pytest.mark.parametrize("softmax", SOFTMAXES)
def test_overfits_one_batch(softmax: str) -> None:
    model = network(4, softmax, hidden=32, embedding=16)
    inputs, targets = random_text(4, 8)
    state = model.initial_state(4)
    before = model.nll(inputs, targets, state)[0].mean().item()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    for _ in range(60):
        optimizer.zero_grad()
        model.loss(Window(inputs, targets), None).mean.backward()
        optimizer.step()
    assert before > 2
    assert model.nll(inputs, targets, state)[0].mean().item() < 0.2


@pytest.mark.parametrize("option", ["dropout", "output_dropout", "input_dropout"])
def test_every_dropout_acts_in_training_and_not_in_evaluation(option: str) -> None:
    model, plain = network(4, **{option: 0.5}), network(4)
    inputs, _ = random_text(2, 6)
    state = model.initial_state(2)
    assert not torch.equal(model.features(inputs, state)[0], model.features(inputs, state)[0])
    assert torch.equal(model.eval().features(inputs, state)[0], plain.features(inputs, state)[0])


@pytest.mark.parametrize("softmax", SOFTMAXES)
def test_loss_under_bfloat16_is_near_float32_and_trains(softmax: str) -> None:
    model = network(4, softmax, embedding=16)
    window = Window(*random_text(3, 6))
    torch.manual_seed(1)
    exact = model.loss(window, None)
    torch.manual_seed(1)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = model.loss(window, None)
    torch.testing.assert_close(loss.mean, exact.mean, rtol=0.02, atol=0.02)
    loss.mean.backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())
