"""Made-up sentences for networks of embedded words, and what every such network must do."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from relmo.networks.inputs import Encoded


def make_network(network: Callable[..., Any], settings: Callable[..., Any], **options: Any) -> Any:
    """Build a network from options that are settings of its model or sizes."""
    names = {field.name for field in dataclasses.fields(settings)}  # type: ignore[arg-type]
    chosen = {name: value for name, value in options.items() if name in names}
    return network(settings(**chosen), **{name: value for name, value in options.items() if name not in names})


Run = Callable[..., Tensor]  # sentences (one or two arguments) -> output (B, …)


def sentences(lengths: Sequence[int], *, size: int = 6, elmo: int = 0, seed: int = 0, padding: int = 0) -> Encoded:
    """Random vectors; not-a-number past each sentence's end, where nothing may look; `padding` more steps of it."""
    generator = torch.Generator().manual_seed(seed)
    steps = max(lengths) + padding
    x, vectors = (torch.randn(len(lengths), steps, width, generator=generator) for width in (size, elmo))
    for row, length in enumerate(lengths):
        x[row, length:], vectors[row, length:] = torch.nan, torch.nan
    return Encoded(x, torch.tensor(lengths), vectors if elmo else None)


def row(batch: Encoded, index: int, *, trim: bool = True) -> Encoded:
    """One sentence of a batch, without its padding."""
    steps = int(batch.lengths[index]) if trim else batch.x.shape[1]
    elmo = None if batch.elmo is None else batch.elmo[index : index + 1, :steps]
    return Encoded(batch.x[index : index + 1, :steps], batch.lengths[index : index + 1], elmo)


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
