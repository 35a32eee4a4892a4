"""Training steps as CUDA graphs.

A step of a recurrent network is a thousand small kernels; to start them one by one from Python takes longer than to run
them. A graph is recorded once for each shape of batch and then started as a whole. What it computes is what the model
computes, random numbers included: they are drawn anew at every replay, from the generator's state at that time.

RELMO_GRAPHS=0 in the environment turns graphs off.
"""

import os
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from relmo.networks.language_model import Loss
from relmo.nn.cells import State

MOST = 12  # graphs that are kept; each holds gradients of its own
WARM_UPS = 2  # steps before recording, in which libraries take what they need

LossOf = Callable[[Any, State | None], Loss]


def suits(model: nn.Module, device: torch.device) -> bool:
    """Whether steps of the model can be recorded: it says so of itself (`graphs = True`)."""
    return device.type == "cuda" and getattr(model, "graphs", False) and os.environ.get("RELMO_GRAPHS") != "0"


class RecordedStep(NamedTuple):
    """A graph, what it reads (the batch's and the carried state's tensors) and what it leaves."""

    graph: torch.cuda.CUDAGraph
    inputs: list[Tensor]
    loss: Loss
    gradients: list[Tensor | None]


class GraphedLoss:
    """`loss(batch, carry)` and its gradients, which come to the parameters' `grad`; recorded at the first batch of its
    shape."""

    def __init__(self, loss: LossOf, parameters: Sequence[nn.Parameter]):
        self.loss = loss
        self.parameters = list(parameters)
        self.recorded: OrderedDict[Any, RecordedStep] = OrderedDict()  # the least recently used first
        self.pool = torch.cuda.graph_pool_handle()

    def __call__(self, batch: Any, carry: State) -> Loss:
        """The batch's loss, without a graph of autograd's, after its backward pass."""
        given = [*tensors(batch), *carry]
        key = tuple((tensor.shape, tensor.dtype) for tensor in given)
        if key not in self.recorded:
            if len(self.recorded) == MOST:
                self.recorded.popitem(last=False)
            self.recorded[key] = self._record(batch, carry)
        self.recorded.move_to_end(key)
        recorded = self.recorded[key]
        torch._foreach_copy_(recorded.inputs, given)
        recorded.graph.replay()
        for parameter, gradient in zip(self.parameters, recorded.gradients, strict=True):
            parameter.grad = gradient
        mean, predictions, after = recorded.loss
        return Loss(mean.clone(), predictions, None if after is None else tuple(tensor.clone() for tensor in after))

    def _record(self, batch: Any, carry: State) -> RecordedStep:
        batch, carry = copied(batch), tuple(tensor.clone() for tensor in carry)
        device = carry[0].device
        random = torch.cuda.get_rng_state(device)
        aside = torch.cuda.Stream(device)
        aside.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(aside):
            for _ in range(WARM_UPS):
                self._run(batch, carry)
        torch.cuda.current_stream(device).wait_stream(aside)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self.pool):
            loss = self._run(batch, carry)
        torch.cuda.set_rng_state(random, device)  # as if nothing had been drawn
        gradients = [parameter.grad for parameter in self.parameters]
        return RecordedStep(graph, [*tensors(batch), *carry], loss, gradients)

    def _run(self, batch: Any, carry: State) -> Loss:
        for parameter in self.parameters:
            parameter.grad = None
        loss = self.loss(batch, carry)
        loss.mean.backward()
        return loss._replace(mean=loss.mean.detach())


def tensors(batch: Any) -> list[Tensor]:
    """All tensors of a batch: itself, or those in the tuples and lists it is made of."""
    if isinstance(batch, Tensor):
        return [batch]
    return [tensor for part in batch for tensor in tensors(part)] if isinstance(batch, list | tuple) else []


def copied(batch: Any) -> Any:
    """A batch with tensors of its own."""
    if isinstance(batch, Tensor):
        return batch.clone()
    parts = [copied(part) for part in batch]
    return type(batch)(*parts) if hasattr(batch, "_fields") else type(batch)(parts)
