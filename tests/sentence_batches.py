"""Made-up sentences for networks of embedded words, and what every such network must do."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from relmo.networks.sentence_encoder import Encoded

Run = Callable[..., Tensor]  # sentences (one or two arguments) -> output (B, …)


def sentences(lengths: Sequence[int], *, size: int = 6, again: int = 0, seed: int = 0, padding: int = 0) -> Encoded:
    """Random vectors; not-a-number past each sentence's end, where nothing may look; `padding` more steps of it."""
    generator = torch.Generator().manual_seed(seed)
    steps = max(lengths) + padding
    x, beside = (torch.randn(len(lengths), steps, width, generator=generator) for width in (size, again))
    for row, length in enumerate(lengths):
        x[row, length:], beside[row, length:] = torch.nan, torch.nan
    return Encoded(x, torch.tensor(lengths), beside if again else None)


def row(batch: Encoded, index: int, *, trim: bool = True) -> Encoded:
    """One sentence of a batch, without its padding."""
    steps = int(batch.lengths[index]) if trim else batch.x.shape[1]
    again = None if batch.again is None else batch.again[index : index + 1, :steps]
    return Encoded(batch.x[index : index + 1, :steps], batch.lengths[index : index + 1], again)


def assert_each_sentence_stands_alone(network: nn.Module, run: Run, *batches: Encoded) -> None:
    """In evaluation mode an output is what it is without batch mates and without padding, whatever the weights."""
    network.eval()
    with torch.no_grad():
        for parameter in network.parameters():  # biases begin as zeros, which would hide a padded word
            parameter.add_(0.1 * torch.randn_like(parameter))
        together = run(*batches)
        alone = [run(*(row(batch, index) for batch in batches)) for index in range(len(together))]
    assert together.isfinite().all()
    torch.testing.assert_close(together, torch.cat(alone), rtol=1e-5, atol=1e-5)


def assert_gradients_reach_everything(network: nn.Module, loss: Tensor) -> None:
    """Every parameter has a gradient that is finite and not zero."""
    network.zero_grad()
    loss.backward()
    for name, parameter in network.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name
        assert parameter.grad.abs().max() > 0, name


def overfit(network: nn.Module, loss: Callable[[], Tensor], *, steps: int = 150, rate: float = 0.01) -> None:
    """Trains on one batch."""
    optimizer = torch.optim.Adam(network.parameters(), lr=rate)
    network.train()
    for _ in range(steps):
        optimizer.zero_grad()
        loss().backward()
        optimizer.step()
    network.eval()
