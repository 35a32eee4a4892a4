"""Output layers: each is one distribution, scored exactly; the sampled one trains towards the full one."""

from collections.abc import Sequence
from itertools import pairwise, permutations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from relmo.nn import softmax as softmax_module
from relmo.nn.dropout import SequenceDropout
from relmo.nn.kernels import elementwise_triton
from relmo.nn.softmax import (
    AdaptiveSoftmax,
    FullSoftmax,
    MixtureSoftmax,
    SampledSoftmax,
    expected_draws,
    log_uniform,
    softmax_shares,
)

KINDS = ("full", "sampled", "adaptive", "mixture")


def make(kind: str, size: int, vocab_size: int) -> FullSoftmax | AdaptiveSoftmax | MixtureSoftmax:
    if kind == "full":
        return FullSoftmax(size, vocab_size)
    if kind == "sampled":
        return SampledSoftmax(size, vocab_size, samples=max(1, vocab_size // 2))
    if kind == "mixture":
        return MixtureSoftmax(size, vocab_size, components=3, bottleneck=8)
    return AdaptiveSoftmax(size, vocab_size, cutoffs=sorted({vocab_size // 3 + 1, 2 * vocab_size // 3 + 1}))


@pytest.mark.parametrize("kind", KINDS)
@given(vocab_size=st.integers(5, 40), rows=st.integers(1, 9), seed=st.integers(0, 1000), training=st.booleans())
@settings(max_examples=25, deadline=None)
def test_log_probs_are_a_distribution_and_nll_reads_the_targets_off_it(
    kind: str, vocab_size: int, rows: int, seed: int, training: bool
) -> None:
    torch.manual_seed(seed)
    layer = make(kind, 16, vocab_size).train(training)
    x, targets = 3 * torch.randn(rows, 16), torch.randint(vocab_size, (rows,))
    log_probs = layer.log_probs(x)
    assert log_probs.shape == (rows, vocab_size)
    torch.testing.assert_close(log_probs.exp().sum(dim=1), torch.ones(rows))
    nll = layer.nll(x, targets)
    torch.testing.assert_close(nll, -log_probs.gather(1, targets.unsqueeze(1)).squeeze(1), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_loss_is_the_mean_nll_outside_of_training(kind: str) -> None:
    layer = make(kind, 16, 20).eval()
    x, targets = torch.randn(7, 16), torch.randint(20, (7,))
    torch.testing.assert_close(layer.loss(x, targets), layer.nll(x, targets).mean())


@pytest.mark.parametrize("kind", KINDS)
def test_every_symbol_has_its_own_place_in_the_distribution(kind: str) -> None:
    torch.manual_seed(0)
    layer = make(kind, 16, 20)
    x = torch.randn(1, 16)
    every = torch.stack([layer.nll(x, torch.tensor([symbol])) for symbol in range(20)])
    torch.testing.assert_close((-every).exp().sum(), torch.tensor(1.0))
    assert len(every.unique()) == 20


GPU = pytest.param("cuda", marks=pytest.mark.gpu)


@pytest.mark.parametrize("device", ["cpu", GPU])
@pytest.mark.parametrize("kind", KINDS)
def test_autocast_scores_in_float32_whatever_the_features_are(kind: str, device: str) -> None:
    torch.manual_seed(0)
    layer = make(kind, 16, 20).to(device)
    x, targets = torch.randn(7, 16, device=device), torch.randint(20, (7,), device=device)
    for features in (x, x.bfloat16()):
        with torch.autocast(device, dtype=torch.bfloat16):
            loss, nll, log_probs = (
                layer.loss(features, targets),
                layer.nll(features, targets),
                layer.log_probs(features),
            )
        assert loss.dtype == nll.dtype == log_probs.dtype == torch.float32
        torch.testing.assert_close(nll, layer.nll(x, targets), rtol=0.02, atol=0.05)
        loss.backward()


def test_full_softmax_is_torchs_cross_entropy_of_the_affine_logits() -> None:
    torch.manual_seed(0)
    layer = FullSoftmax(5, 11)
    nn.init.normal_(layer.bias)
    x, targets = torch.randn(7, 5, requires_grad=True), torch.randint(11, (7,))
    logits = x @ layer.weight.T + layer.bias
    expected = nn.functional.cross_entropy(logits, targets, reduction="none")
    torch.testing.assert_close(layer.nll(x, targets), expected)
    torch.testing.assert_close(layer.loss(x, targets), expected.mean())
    inputs = [x, layer.weight, layer.bias]
    torch.testing.assert_close(
        torch.autograd.grad(layer.loss(x, targets), inputs), torch.autograd.grad(expected.mean(), inputs)
    )


def hold(at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Has only so many logits held at a time."""
    monkeypatch.setattr(softmax_module, "MAX_LOGITS", {"cpu": at_once})
    monkeypatch.setattr(softmax_module, "MIN_ROWS", 1)


@pytest.mark.parametrize("at_once", [1, 11, 30, 33, 1000])
def test_scoring_in_pieces_changes_nothing(at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    layer = FullSoftmax(5, 11)
    x, targets = torch.randn(7, 5), torch.randint(11, (7,))
    expected = nn.functional.cross_entropy(layer.logits(x), targets, reduction="none")
    hold(at_once, monkeypatch)
    torch.testing.assert_close(layer.nll(x, targets), expected)


def full_and_naive(device: str = "cpu") -> tuple[FullSoftmax, Tensor, Tensor, Tensor]:
    """A layer, features and targets of it, and the naive loss: torch's cross-entropy of all logits at once."""
    torch.manual_seed(0)
    layer = FullSoftmax(5, 11).to(device)
    nn.init.normal_(layer.bias)
    x = torch.randn(7, 5, device=device, requires_grad=True)
    targets = torch.randint(11, (7,), device=device)
    return layer, x, targets, nn.functional.cross_entropy(x @ layer.weight.T + layer.bias, targets)


@pytest.mark.parametrize("at_once", [1, 30, 33, 1000])
def test_training_in_pieces_changes_neither_loss_nor_gradients(at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    hold(at_once, monkeypatch)
    held: list[int] = []

    def spied(logits: Tensor, *rest: Tensor) -> tuple[Tensor, ...]:
        held.append(len(logits))
        return softmax_shares(logits, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(softmax_module, "softmax_shares", spied)
    layer, x, targets, naive = full_and_naive()
    loss, inputs = layer.loss(x, targets), [x, layer.weight, layer.bias]
    torch.testing.assert_close(loss, naive)
    own, expected = torch.autograd.grad(3 * loss, inputs), torch.autograd.grad(3 * naive, inputs)
    torch.testing.assert_close(own, expected)
    assert sum(held) == 7
    assert max(held) == min(7, max(1, at_once // 11)), "never more logits than these"


def mixture_and_naive(variational: bool = False) -> tuple[MixtureSoftmax, Tensor, Tensor, Tensor]:
    """A mixture, features (B, T, D), targets, and the probabilities (B T, V) as defined, in float64."""
    torch.manual_seed(0)
    layer = MixtureSoftmax(5, 11, components=3, bottleneck=4)
    for parameter in layer.parameters():
        nn.init.normal_(parameter)
    x, targets = torch.randn(2, 4, 5, requires_grad=True), torch.randint(11, (2, 4))
    flat = x.flatten(0, 1).double()
    prior = torch.softmax(flat @ layer.prior.weight.double().T, dim=1)
    p = torch.zeros(8, 11, dtype=torch.float64)
    for k in range(3):
        rows = slice(4 * k, 4 * k + 4)
        h = torch.tanh(flat @ layer.latent.weight[rows].double().T + layer.latent.bias[rows].double())
        p = p + prior[:, k : k + 1] * torch.softmax(h @ layer.output.weight.double().T + layer.output.bias, dim=1)
    return layer, x, targets, p


@pytest.mark.parametrize("at_once", [1, 70, 100, 1000])
def test_a_mixture_is_the_weighted_mean_of_its_softmaxes(at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    hold(at_once, monkeypatch)
    layer, x, targets, p = mixture_and_naive()
    torch.testing.assert_close(layer.log_probs(x.flatten(0, 1)), p.log().float())
    nll = -p.log().gather(1, targets.flatten().unsqueeze(1)).squeeze(1)
    torch.testing.assert_close(layer.nll(x.flatten(0, 1), targets.flatten()), nll.float())
    inputs = [x, *layer.parameters()]
    loss = layer.loss(x, targets)
    torch.testing.assert_close(loss, nll.mean().float())
    torch.testing.assert_close(torch.autograd.grad(3 * loss, inputs), torch.autograd.grad(3 * nll.mean(), inputs))


def test_a_mixture_of_huge_logits_is_finite() -> None:
    layer, x, targets, _ = mixture_and_naive()
    with torch.no_grad():
        layer.output.weight *= 1e4
        layer.prior.weight *= 1e4
    loss = layer.loss(x, targets)
    torch.testing.assert_close(loss, layer.nll(x.flatten(0, 1), targets.flatten()).mean())
    assert loss.isfinite()
    assert all(gradient.isfinite().all() for gradient in torch.autograd.grad(loss, list(layer.parameters())))


def test_a_mixture_under_autocast_has_gradients_near_the_exact_ones() -> None:
    found = []
    for enabled in (False, True):
        layer, x, targets, _ = mixture_and_naive()
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=enabled):
            loss = layer.loss(x, targets)
        found.append((loss, *torch.autograd.grad(loss, [x, *layer.parameters()])))
    for exact, low in zip(*found, strict=True):
        assert low.dtype == torch.float32
        assert 0 < (exact - low).norm() / exact.norm() < 0.05


@pytest.mark.parametrize("variational", [False, True])
def test_dropout_in_a_mixture_acts_on_each_component_in_training_alone(variational: bool) -> None:
    layer = MixtureSoftmax(5, 11, components=3, bottleneck=40, dropout=SequenceDropout(0.5, variational=variational))
    x = torch.randn(2, 6, 5)
    h, _ = layer._components(x)
    dropped = (h == 0).view(2, 6, 3, 40)
    assert 0.3 < dropped.float().mean() < 0.7
    assert torch.equal(dropped[:, 0], dropped[:, 1]) == variational
    assert not torch.equal(dropped[:, :, 0], dropped[:, :, 1])
    assert layer.eval()._components(x)[0].all()


def test_training_the_sampled_layer_in_pieces_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    for at_once in (4, 1000):
        hold(at_once, monkeypatch)
        layer, _ = sampled_twins(9, samples=4)
        x, targets = torch.randn(6, 4, requires_grad=True), torch.randint(9, (6,))
        loss = layer.loss(x, targets)
        found.append((loss, *torch.autograd.grad(loss, [x, layer.weight, layer.bias])))
    torch.testing.assert_close(found[0], found[1])


def test_a_weight_that_is_the_embedding_too_gets_both_gradients() -> None:
    layer, _, targets, _ = full_and_naive()
    words = torch.randint(11, (7,))
    for loss in (
        layer.loss(nn.functional.embedding(words, layer.weight), targets),
        nn.functional.cross_entropy(layer.weight[words] @ layer.weight.T + layer.bias, targets),
    ):
        loss.backward()
    assert layer.weight.grad is not None
    twice = layer.weight.grad.clone()
    layer.weight.grad = None
    layer.loss(nn.functional.embedding(words, layer.weight), targets).backward()
    torch.testing.assert_close(twice, 2 * layer.weight.grad)


def test_the_loss_is_the_same_without_gradients_and_where_logits_are_huge() -> None:
    layer, x, targets, _ = full_and_naive()
    huge = 1e4 * x.detach()
    losses = [layer.loss(huge, targets)]
    with torch.no_grad():
        losses.append(layer.loss(huge, targets))
    assert not losses[1].requires_grad
    expected = nn.functional.cross_entropy(layer.logits(huge), targets)
    for loss in losses:
        torch.testing.assert_close(loss, expected)
    (gradient,) = torch.autograd.grad(losses[0], layer.weight)
    assert gradient.isfinite().all()


@pytest.mark.parametrize("kind", ["full", "sampled"])
def test_under_autocast_products_are_in_bfloat16_and_gradients_near(kind: str) -> None:
    found = []
    for enabled in (False, True):
        torch.manual_seed(0)
        layer = make(kind, 64, 200)
        x, targets = torch.randn(50, 64, requires_grad=True), torch.randint(200, (50,))
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=enabled):
            loss = layer.loss(x, targets)
        assert loss.dtype == torch.float32
        found.append((loss, *torch.autograd.grad(loss, [x, layer.weight, layer.bias])))
    for exact, low in zip(*found, strict=True):
        assert low.dtype == torch.float32
        assert 0 < (exact - low).norm() / exact.norm() < 0.02


@pytest.mark.gpu
@pytest.mark.parametrize("whole", [0, elementwise_triton.MAX_ROW], ids=["long rows", "whole rows"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("apart", [True, False])
@pytest.mark.parametrize(("rows", "size"), [(5, 7), (700, 8192), (33, 5000)])
def test_triton_kernels_equal_their_twin_in_torch(
    whole: int, dtype: torch.dtype, apart: bool, rows: int, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not elementwise_triton.supports_softmax(torch.zeros(1, device="cuda")):
        pytest.skip("no Triton here")
    monkeypatch.setattr(elementwise_triton, "MAX_ROW", whole)
    torch.manual_seed(0)
    logits = (3 * torch.randn(rows, size, device="cuda")).to(dtype)
    bias, own = torch.randn(size, device="cuda"), torch.randn(rows, device="cuda") if apart else None
    place = torch.randint(-1 if apart else 0, size, (rows,), device="cuda")
    expected, found = (
        (given, *shares(given, bias, own, place))
        for shares, given in ((softmax_shares, logits.clone()), (elementwise_triton.softmax_shares, logits.clone()))
    )
    near = 1e-5 if dtype == torch.float32 else 1e-2
    for a, b in zip(expected, found, strict=True):
        assert a.dtype == b.dtype
        assert (a.float() - b.float()).norm() / a.float().norm() < near


@pytest.mark.gpu
def test_a_recorded_loss_draws_another_sample_at_each_replay() -> None:
    layer = SampledSoftmax(16, 5000, samples=64).cuda()
    x, targets = torch.randn(300, 16, device="cuda"), torch.randint(5000, (300,), device="cuda")
    aside = torch.cuda.Stream()
    with torch.cuda.stream(aside):
        layer.loss(x, targets).backward()
    torch.cuda.current_stream().wait_stream(aside)
    layer.zero_grad()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        loss = layer.loss(x, targets)
        loss.backward()
    losses = set()
    for _ in range(5):
        graph.replay()
        losses.add(float(loss.detach()))
    assert len(losses) == 5


def sampled_twins(vocab_size: int, samples: int, size: int = 4) -> tuple[SampledSoftmax, FullSoftmax]:
    """A sampled layer and a full one with its weights."""
    torch.manual_seed(0)
    sampled, full = SampledSoftmax(size, vocab_size, samples=samples), FullSoftmax(size, vocab_size)
    nn.init.normal_(sampled.bias)
    full.load_state_dict(sampled.state_dict())
    return sampled, full


@pytest.mark.parametrize("samples", [9, 100])
def test_sample_of_the_whole_vocabulary_is_the_full_softmax_loss_and_gradient(samples: int) -> None:
    sampled, full = sampled_twins(9, samples)
    x, targets = torch.randn(6, 4, requires_grad=True), torch.randint(9, (6,))
    losses = sampled.loss(x, targets), full.loss(x, targets)
    torch.testing.assert_close(losses[0], losses[1])
    own, expected = (
        torch.autograd.grad(loss, [x, layer.weight, layer.bias])
        for loss, layer in zip(losses, (sampled, full), strict=True)
    )
    torch.testing.assert_close(own, expected, rtol=1e-5, atol=1e-6)


def mean_bias_gradient(layer: FullSoftmax, x: Tensor, targets: Tensor, calls: int) -> Tensor:
    """(V,)"""
    return sum(torch.autograd.grad(layer.loss(x, targets), layer.bias)[0] for _ in range(calls)) / calls  # type: ignore[return-value]


@pytest.mark.slow
def test_expected_gradient_approaches_the_full_softmaxs_as_samples_grow() -> None:
    x, targets = torch.randn(3, 4, generator=torch.Generator().manual_seed(1)), torch.tensor([0, 5, 20])
    gaps = []
    for samples in (2, 6, 12, 20, 24):
        sampled, full = sampled_twins(24, samples)
        expected = mean_bias_gradient(full, x, targets, calls=1)
        gaps.append((mean_bias_gradient(sampled, x, targets, calls=800) - expected).norm() / expected.norm())
    assert all(after < before / 1.5 for before, after in pairwise(gaps)), gaps
    assert gaps[0] > 0.1
    assert gaps[-1] < 1e-5


def test_corrected_logits_have_the_true_distribution_as_their_optimum() -> None:
    """Where the targets come from the layer's own distribution the expected gradient is near zero, as the full one's;
    without the correction it is not."""
    sampled, full = sampled_twins(24, samples=6)
    x = torch.randn(1, 4, generator=torch.Generator().manual_seed(1))
    targets = torch.multinomial(full.log_probs(x).exp()[0], 2000, replacement=True)
    x = x.expand(2000, 4)
    expected = mean_bias_gradient(full, x, targets, calls=1)
    gap = (mean_bias_gradient(sampled, x, targets, calls=200) - expected).norm()
    sampled.log_count.zero_()  # type: ignore[operator]
    uncorrected = (mean_bias_gradient(sampled, x, targets, calls=200) - expected).norm()
    assert gap < 0.04
    assert uncorrected > 0.1


def drawn(layer: SampledSoftmax, target: int) -> list[int]:
    """The negatives of one call, read off the gradient: a symbol that took no part has none."""
    x, targets = torch.zeros(1, layer.weight.shape[1]), torch.tensor([target])
    (gradient,) = torch.autograd.grad(layer.loss(x, targets), layer.bias)
    return [symbol for symbol in gradient.nonzero().flatten().tolist() if symbol != target]


def frequencies(layer: SampledSoftmax, target: int, calls: int) -> Tensor:
    counts = torch.zeros(len(layer.weight))
    for _ in range(calls):
        counts[drawn(layer, target)] += 1
    return counts / calls


def inclusion_by_enumeration(p: Sequence[float], samples: int) -> list[float]:
    """The chance of each symbol to be among `samples` distinct ones drawn one after the other, over all orders."""
    inclusion = [0.0] * len(p)
    for order in permutations(range(len(p)), samples):
        chance, left = 1.0, 1.0
        for symbol in order:
            chance *= p[symbol] / left
            left -= p[symbol]
        for symbol in order:
            inclusion[symbol] += chance
    return inclusion


@pytest.mark.slow
def test_sampler_draws_log_uniformly_without_replacement() -> None:
    torch.manual_seed(0)
    layer = SampledSoftmax(2, 6, samples=3)
    expected = torch.tensor(inclusion_by_enumeration(log_uniform(6).exp().tolist(), 3))
    calls = 3000
    found = frequencies(layer, target=5, calls=calls)[:5]
    deviation = (expected * (1 - expected) / calls).sqrt()[:5]
    assert ((found - expected[:5]).abs() < 4 * deviation).all(), (found, expected)


@pytest.mark.slow
@pytest.mark.parametrize(("vocab_size", "samples"), [(20, 5), (50, 10), (10, 9)])
def test_log_count_is_near_the_log_of_how_often_a_symbol_is_sampled(vocab_size: int, samples: int) -> None:
    torch.manual_seed(0)
    layer = SampledSoftmax(2, vocab_size, samples=samples)
    found = frequencies(layer, target=vocab_size - 1, calls=1500)[:-1]
    expected = layer.log_count.exp()[:-1]  # type: ignore[operator]
    assert (found - expected).abs().max() < 0.06  # an approximation good to 0.03, and four deviations of the noise
    assert abs((found - expected).mean().item()) < 0.01


@given(vocab_size=st.integers(1, 3000), share=st.floats(0.001, 1))
@settings(max_examples=40, deadline=None)
def test_expected_counts_add_up_to_the_number_of_samples(vocab_size: int, share: float) -> None:
    samples = max(1, int(share * vocab_size))
    layer = SampledSoftmax(1, vocab_size, samples=samples)
    counts = layer.log_count.double().exp()  # type: ignore[operator]
    assert abs(counts.sum().item() - samples) < 1e-4 * samples
    assert counts.max() <= 1
    assert (counts.diff() <= 1e-7).all(), "the more frequent, the likelier sampled"


def test_sample_has_that_many_distinct_symbols_and_never_the_target() -> None:
    torch.manual_seed(0)
    layer = SampledSoftmax(2, 8, samples=3)
    for target in range(8):
        sizes = {len(drawn(layer, target)) for _ in range(150)}
        assert sizes == {2, 3}  # one less where the target itself was drawn


def test_target_among_the_sampled_counts_once() -> None:
    """Of two symbols one is sampled: the loss is zero where it is the target, which then stands alone."""
    torch.manual_seed(0)
    layer = SampledSoftmax(2, 2, samples=1)
    x, target = torch.randn(1, 2), torch.tensor([0])
    corrected = layer.logits(x)[0] - layer.log_count
    against_the_other = torch.log1p((corrected[1] - corrected[0]).exp()).item()
    losses = torch.tensor([layer.loss(x, target).item() for _ in range(200)])
    alone = losses == 0
    assert 0 < alone.sum() < 200
    torch.testing.assert_close(losses[~alone], torch.full_like(losses[~alone], against_the_other))


def test_log_uniform_is_a_distribution_that_falls_with_the_rank() -> None:
    for size in (1, 2, 17, 5000):
        p = log_uniform(size).exp()
        assert abs(p.sum().item() - 1) < 1e-12
        assert (p.diff() < 0).all()


@given(st.lists(st.floats(0.01, 1), min_size=2, max_size=30), st.data())
@settings(max_examples=40, deadline=None)
def test_expected_draws_solves_its_equation(weights: list[float], data: st.DataObject) -> None:
    p = torch.tensor(weights, dtype=torch.float64)
    p /= p.sum()
    distinct = data.draw(st.integers(1, len(weights) - 1))
    draws = expected_draws(p, distinct)
    assert abs((1 - (1 - p) ** draws).sum().item() - distinct) < 1e-6


@pytest.mark.parametrize("vocab_size", [2, 3, 50, 2000, 2001, 12_000])
def test_adaptive_softmax_chooses_its_own_cutoffs(vocab_size: int) -> None:
    layer = AdaptiveSoftmax(16, vocab_size)
    log_probs = layer.log_probs(torch.randn(2, 16))
    torch.testing.assert_close(log_probs.exp().sum(dim=1), torch.ones(2))
    assert log_probs.shape == (2, vocab_size)


def test_adaptive_clusters_have_a_quarter_of_the_dimensions_each_time() -> None:
    layer = AdaptiveSoftmax(64, 100, cutoffs=[10, 40])
    assert layer.clusters.cutoffs == [10, 40, 100]
    assert [tail[0].out_features for tail in layer.clusters.tail] == [16, 4]  # type: ignore[index,union-attr]


@pytest.mark.parametrize("kind", KINDS)
def test_training_a_layer_brings_the_exact_nll_down(kind: str) -> None:
    torch.manual_seed(0)
    layer = make(kind, 16, 30)
    x, targets = torch.randn(8, 16), torch.randint(30, (8,))
    optimizer = torch.optim.Adam(layer.parameters(), lr=0.05)
    before = layer.nll(x, targets).mean().item()
    for _ in range(60):
        optimizer.zero_grad()
        layer.loss(x, targets).backward()
        optimizer.step()
    assert before > 2
    assert layer.nll(x, targets).mean().item() < 0.1


@pytest.mark.parametrize("size", [3, 12, 128])
def test_no_cluster_of_an_adaptive_softmax_is_left_without_dimensions(size: int) -> None:
    clusters = AdaptiveSoftmax(size, 300_000).clusters
    widths = [tail[0].out_features for tail in clusters.tail]  # type: ignore[index,union-attr]
    assert len(widths) == 4
    assert min(widths) >= min(size, 3)
    assert widths == sorted(widths, reverse=True)


@pytest.mark.parametrize("sampled", [False, True])
def test_a_bottleneck_is_the_same_as_the_product_of_its_matrices(sampled: bool) -> None:
    torch.manual_seed(1)
    narrow = SampledSoftmax(6, 20, samples=7, bottleneck=3) if sampled else FullSoftmax(6, 20, bottleneck=3)
    whole = SampledSoftmax(6, 20, samples=7) if sampled else FullSoftmax(6, 20)
    assert narrow.weight.shape == (20, 3)
    with torch.no_grad():
        torch.nn.init.normal_(narrow.bias)
        whole.weight.copy_(narrow.vectors(torch.arange(20)))
        whole.bias.copy_(narrow.bias)
    x, targets = torch.randn(9, 6), torch.randint(20, (9,))
    torch.testing.assert_close(narrow.log_probs(x), whole.log_probs(x))
    torch.testing.assert_close(narrow.nll(x, targets), whole.nll(x, targets))
    losses = []
    for layer in (narrow, whole):
        torch.manual_seed(2)  # the same sample
        losses.append(layer.loss(x, targets))
    torch.testing.assert_close(*losses)
    losses[0].backward()
    losses[1].backward()
    assert narrow.bottleneck is not None
    assert whole.weight.grad is not None
    torch.testing.assert_close(narrow.bottleneck.weight.grad, narrow.weight.detach().T @ whole.weight.grad)
    torch.testing.assert_close(narrow.weight.grad, whole.weight.grad @ narrow.bottleneck.weight.detach().T)
