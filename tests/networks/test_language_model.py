"""Recurrent language models: state carried in pieces is one go, a step is a score, tied weights are one; it trains."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from relmo.networks.language_model import NeuralLM, RecurrentLM, Window, make_softmax
from relmo.nn.recurrence.elman import ElmanCell
from relmo.nn.recurrence.gru import GRUCell
from relmo.nn.recurrence.lstm import LSTMCell
from relmo.nn.softmax import AdaptiveSoftmax, FullSoftmax, MixtureSoftmax, SampledSoftmax
from relmo.settings.lm import LanguageModelSettings

VOCAB = 11
SOFTMAXES = {
    "full": {"softmax": "full"},
    "sampled": {"softmax": "sampled", "samples": 5},
    "adaptive": {"softmax": "adaptive", "cutoffs": (3, 7)},
    "mixture": {"softmax": "mixture", "mixtures": 3},
}
CELLS = {
    "elman": {"cell": "elman"},
    "elman_relu": {"cell": "elman", "nonlinearity": "relu"},
    "gru": {"cell": "gru"},
    "lstm": {"cell": "lstm"},
    "lstm_projected": {"cell": "lstm", "projection": 16},
    "lstm_tied": {"cell": "lstm", "tied": True},
    "lstm_residual": {"cell": "lstm", "layers": 3, "residual": True},
    "lstm_awd": {"cell": "lstm", "layers": 3, "last_hidden": 16, "tied": True},
    "lstm_start": {"cell": "lstm", "cell_options": ("learned_start=true",)},
}
KINDS = [
    (cell, softmax) for cell in CELLS for softmax in SOFTMAXES if "tied" not in CELLS[cell] or softmax != "adaptive"
]


def network(cell: str = "lstm", softmax: str = "full", **more: object) -> RecurrentLM:
    torch.manual_seed(0)
    options = {"hidden": 32, "embedding": 16, "layers": 2} | CELLS[cell] | SOFTMAXES[softmax] | more
    return RecurrentLM(LanguageModelSettings(**options), vocab_size=VOCAB)  # type: ignore[arg-type]


def random_text(batch: int, steps: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    ids = torch.randint(VOCAB, (batch, steps + 1), generator=torch.Generator().manual_seed(seed))
    return ids[:, :-1], ids[:, 1:]


@pytest.mark.parametrize(("cell", "softmax"), KINDS)
@given(pieces=st.lists(st.integers(1, 5), min_size=1, max_size=4), seed=st.integers(0, 100))
@settings(max_examples=6, deadline=None)
def test_nll_in_pieces_with_carried_state_equals_one_go(cell: str, softmax: str, pieces: list[int], seed: int) -> None:
    model = network(cell, softmax).eval()
    inputs, targets = random_text(3, sum(pieces), seed)
    whole, final = model.nll(inputs, targets, model.initial_state(3))
    state, parts = model.initial_state(3), []
    for piece_in, piece_out in zip(inputs.split(pieces, dim=1), targets.split(pieces, dim=1), strict=True):
        nll, state = model.nll(piece_in, piece_out, state)
        parts.append(nll)
    assert whole.shape == targets.shape
    torch.testing.assert_close(torch.cat(parts, dim=1), whole, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(state, final, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("cell", "softmax"), KINDS)
def test_step_gives_the_distribution_that_nll_scores_with(cell: str, softmax: str) -> None:
    model = network(cell, softmax).eval()
    inputs, targets = random_text(3, 6)
    whole, final = model.nll(inputs, targets, model.initial_state(3))
    state = model.initial_state(3)
    for t in range(6):
        log_probs, state = model.step(inputs[:, t], state)
        assert log_probs.shape == (3, VOCAB)
        torch.testing.assert_close(log_probs.exp().sum(dim=1), torch.ones(3))
        torch.testing.assert_close(-log_probs.gather(1, targets[:, t : t + 1])[:, 0], whole[:, t], rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(state, final, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("cell", "softmax"), KINDS)
def test_no_prediction_sees_its_own_target_or_beyond(cell: str, softmax: str) -> None:
    model = network(cell, softmax).eval()
    inputs, targets = random_text(2, 6)
    before, _ = model.nll(inputs, targets, model.initial_state(2))
    changed = inputs.clone()
    changed[:, 4:] = (changed[:, 4:] + 1) % VOCAB
    after, _ = model.nll(changed, targets, model.initial_state(2))
    torch.testing.assert_close(after[:, :4], before[:, :4], rtol=0, atol=0)
    assert not torch.equal(after[:, 4:], before[:, 4:])


@pytest.mark.parametrize(("cell", "softmax"), KINDS)
def test_loss_outside_of_training_is_the_mean_nll_and_carries_a_detached_state(cell: str, softmax: str) -> None:
    model = network(cell, softmax).eval()
    inputs, targets = random_text(3, 6)
    first = model.loss(Window(inputs[:, :2], targets[:, :2]), None)
    second = model.loss(Window(inputs[:, 2:], targets[:, 2:]), first.carry)
    nll, _ = model.nll(inputs, targets, model.initial_state(3))
    torch.testing.assert_close(first.mean, nll[:, :2].mean())
    torch.testing.assert_close(second.mean, nll[:, 2:].mean())
    assert first.mean.requires_grad
    assert not any(tensor.requires_grad for tensor in first.carry)


def overfit(model: NeuralLM, steps: int = 90) -> tuple[float, float]:
    """The mean exact nll of one batch before and after some steps of Adam on it."""
    inputs, targets = random_text(4, 8)

    def score() -> float:
        return model.nll(inputs, targets, model.initial_state(4))[0].mean().item()

    before = score()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.03)
    for _ in range(steps):
        optimizer.zero_grad()
        model.loss(Window(inputs, targets), None).mean.backward()
        optimizer.step()
    return before, score()


@pytest.mark.parametrize(("cell", "softmax"), KINDS)
def test_overfits_one_batch(cell: str, softmax: str) -> None:
    before, after = overfit(network(cell, softmax, embedding=32, samples=8))
    assert before > 2
    assert after < 0.5


@pytest.mark.parametrize(("hidden", "embedding", "projection"), [(16, 16, None), (16, 8, None), (16, 8, 8), (16, 6, 8)])
def test_tied_weights_are_one_tensor_trained_from_both_ends(
    hidden: int, embedding: int, projection: int | None
) -> None:
    model = network("lstm_tied", hidden=hidden, embedding=embedding, projection=projection)
    weight = model.encoder.embedding.weight
    assert isinstance(model.softmax, FullSoftmax)
    assert model.softmax.weight is weight
    assert sum(p is weight for p in model.parameters()) == 1
    assert (model.bottleneck is None) == (embedding == (projection or hidden))
    inputs, targets = torch.zeros(1, 1, dtype=torch.int64), torch.ones(1, 1, dtype=torch.int64)
    model.loss(Window(inputs, targets), None).mean.backward()
    assert weight.grad is not None
    assert weight.grad.any(dim=1).all(), "every row is an output weight"
    with torch.no_grad():
        before = model.step(inputs[:, 0], model.initial_state(1))[0]
        weight[5] += 1  # the symbol was not read: it changes the output only
        after = model.step(inputs[:, 0], model.initial_state(1))[0]
    assert not torch.equal(before, after)


def test_untied_weights_are_two_tensors() -> None:
    model = network("lstm")
    assert isinstance(model.softmax, FullSoftmax)
    assert model.softmax.weight is not model.encoder.embedding.weight
    assert model.bottleneck is None


@pytest.mark.parametrize("option", ["dropout", "output_dropout", "input_dropout", "word_dropout", "weight_drop"])
@pytest.mark.parametrize("variational", [False, True])
def test_every_dropout_acts_in_training_and_not_in_evaluation(option: str, variational: bool) -> None:
    model, plain = network(**{option: 0.5, "variational": variational}), network()
    plain.load_state_dict(model.state_dict())
    inputs, _ = random_text(2, 6)
    state = model.initial_state(2)
    assert not torch.equal(model.features(inputs, state)[0], model.features(inputs, state)[0])
    assert torch.equal(model.eval().features(inputs, state)[0], plain.features(inputs, state)[0])


def test_penalties_are_those_of_a_loop_over_the_top_layers_outputs() -> None:
    """Activation regularisation of what was dropped, the temporal one of what was not; in training alone."""
    options = {"activation_penalty": 2.0, "temporal_penalty": 3.0, "output_dropout": 0.5}
    model, plain = network("lstm_awd", **options), network("lstm_awd", output_dropout=0.5)
    window = Window(*random_text(3, 6))
    losses: list[Tensor] = []
    outputs: list[Tensor] = []
    model.dropout.register_forward_hook(lambda _, args, output: outputs.extend([args[0], output]))
    for lm in (model, plain):
        torch.manual_seed(1)
        losses.append(lm.loss(window, None).mean)
    raw, dropped = outputs
    assert not torch.equal(raw, dropped)
    squares, differences = [], []
    for b in range(3):
        for unit in range(raw.shape[2]):
            squares += [dropped[b, t, unit] ** 2 for t in range(6)]
            differences += [(raw[b, t, unit] - raw[b, t - 1, unit]) ** 2 for t in range(1, 6)]
    penalty = 2.0 * torch.stack(squares).mean() + 3.0 * torch.stack(differences).mean()
    torch.testing.assert_close(losses[0], losses[1] + penalty)
    weights = list(model.encoder.parameters())
    expected = torch.autograd.grad(losses[1], list(plain.encoder.parameters()))
    extra = torch.autograd.grad(penalty, weights, retain_graph=True)
    assert all(gradient.any() for gradient in extra)
    total = [one + other for one, other in zip(expected, extra, strict=True)]
    torch.testing.assert_close(list(torch.autograd.grad(losses[0], weights)), total)
    assert model.loss(Window(*random_text(3, 1)), None).mean.isfinite(), "a window of one step has no difference"
    torch.testing.assert_close(model.eval().loss(window, None).mean, plain.eval().loss(window, None).mean)


def test_a_mixture_has_its_own_way_to_the_size_of_tied_embeddings() -> None:
    model = network("lstm_tied", "mixture")
    assert isinstance(model.softmax, MixtureSoftmax)
    assert model.bottleneck is None
    assert model.softmax.output.weight is model.encoder.embedding.weight
    assert model.softmax.latent.weight.shape == (3 * 16, 32)


def test_settings_choose_cell_and_softmax() -> None:
    cells = {"elman": ElmanCell, "gru": GRUCell, "lstm": LSTMCell}
    for name, kind in cells.items():
        cell = network(name, hidden=7, embedding=3).encoder.recurrent.cells[0][0]
        assert type(cell) is kind
        assert (cell.input_size, cell.hidden_size) == (3, 7)
    lstm = network("lstm", hidden=7, projection=2, forget_bias=-2.5).encoder.recurrent.cells[0][0]
    assert lstm.output_size == 2
    assert lstm.bias_ih[7:14].eq(-2.5).all()
    softmaxes = {"full": FullSoftmax, "sampled": SampledSoftmax, "adaptive": AdaptiveSoftmax, "mixture": MixtureSoftmax}
    for name, kind in softmaxes.items():
        assert type(make_softmax(LanguageModelSettings(**SOFTMAXES[name]), 16, VOCAB)) is kind  # type: ignore[arg-type]


def test_embedding_is_as_large_as_the_hidden_layer_where_not_given() -> None:
    assert network(embedding=None, hidden=9).encoder.embedding.weight.shape == (VOCAB, 9)


def test_encoder_reads_padded_rows_as_if_alone() -> None:
    model = network("lstm", "full", residual=True).eval()
    ids, lengths = torch.tensor([[1, 2, 3, 4], [5, 6, 9, 9]]), torch.tensor([4, 2])
    together = model.encoder(ids, lengths=lengths)
    alone = model.encoder(ids[1:, :2])
    torch.testing.assert_close(together.output[1, :2], alone.output[0])
    torch.testing.assert_close(tuple(t[1] for t in together.state), tuple(t[0] for t in alone.state))
    assert not together.output[1, 2:].any()


@pytest.mark.parametrize(("cell", "softmax"), KINDS)
def test_loss_under_bfloat16_is_near_float32_and_trains(cell: str, softmax: str) -> None:
    model = network(cell, softmax)
    window = Window(*random_text(3, 6))
    torch.manual_seed(1)
    exact = model.loss(window, None)
    torch.manual_seed(1)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = model.loss(window, None)
        model.loss(window, loss.carry)
    assert loss.mean.dtype == torch.float32
    torch.testing.assert_close(loss.mean, exact.mean, rtol=0.02, atol=0.02)
    loss.mean.backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())


def test_the_last_layer_may_have_another_size() -> None:
    model = network("lstm_awd")
    assert [cells[0].output_size for cells in model.encoder.recurrent.cells] == [32, 32, 16]
    assert model.bottleneck is None
    assert model.softmax.weight is model.encoder.embedding.weight


def test_a_learned_initial_state_is_trained_and_the_fused_layers_start_from_it() -> None:
    model = network("lstm_start")
    cells = [cell for cells in model.encoder.recurrent.cells for cell in cells]
    starts = [parameter for cell in cells for parameter in (cell.start_h, cell.start_c)]
    inputs, targets = random_text(3, 6)
    gradients = torch.autograd.grad(model.loss(Window(inputs, targets), None).mean, starts)
    assert all(gradient.abs().sum() > 0 for gradient in gradients)
    with torch.no_grad():
        for start in starts:
            start.normal_()
        fused, _ = model.nll(inputs, targets, model.initial_state(3))
        model.encoder.recurrent.fast = False
        stepped, _ = model.nll(inputs, targets, model.initial_state(3))
    torch.testing.assert_close(fused, stepped, rtol=1e-5, atol=1e-5)
