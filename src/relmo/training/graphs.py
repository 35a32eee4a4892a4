"""Training steps as CUDA graphs.

A step of a recurrent network is a thousand small kernels, which Python launches more slowly than they run. A graph is
recorded once for each shape of batch and then launched as a whole. It computes what the model computes: random numbers
are drawn at every replay, from the generator's current state. RELMO_GRAPHS=0 in the environment turns graphs off.
"""

import os
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from relmo.networks.language_model import Loss
from relmo.nn.cells import State

MAX_GRAPHS = 12  # each has gradients of its own
WARM_UP_STEPS = 2  # before recording, while libraries allocate their workspaces

LossFunction = Callable[[Any, State | None], Loss]


def supports_graphs(model: nn.Module, device: torch.device) -> bool:
    """Return whether steps of the model can be recorded: on a GPU, for models with `graphs = True`."""
    return device.type == "cuda" and getattr(model, "graphs", False) and os.environ.get("RELMO_GRAPHS") != "0"


class RecordedStep(NamedTuple):
    """A graph, its input tensors (batch and carried state), and the loss and gradients that it writes."""

    graph: torch.cuda.CUDAGraph
    inputs: list[Tensor]
    loss: Loss
    gradients: list[Tensor | None]


class GraphedLoss:
    """A loss function with its backward pass, replayed from one graph per shape of batch."""

    def __init__(self, loss: LossFunction, parameters: Sequence[nn.Parameter]):
        self.loss = loss
        self.parameters = list(parameters)
        self.steps: OrderedDict[Any, RecordedStep] = OrderedDict()  # least recently used first
        self.pool = torch.cuda.graph_pool_handle()

    def __call__(self, batch: Any, carry: State) -> Loss:
        """Return the detached loss of the batch and set the gradients of the parameters."""
        inputs = [*list_tensors(batch), *carry]
        key = tuple((tensor.shape, tensor.dtype) for tensor in inputs)
        if key not in self.steps:
            if len(self.steps) == MAX_GRAPHS:
                self.steps.popitem(last=False)
            self.steps[key] = self._record(batch, carry)
        self.steps.move_to_end(key)
        step = self.steps[key]
        torch._foreach_copy_(step.inputs, inputs)
        step.graph.replay()
        for parameter, gradient in zip(self.parameters, step.gradients, strict=True):
            parameter.grad = gradient
        mean, predictions, state = step.loss
        return Loss(mean.clone(), predictions, None if state is None else tuple(tensor.clone() for tensor in state))

    def _record(self, batch: Any, carry: State) -> RecordedStep:
        batch, carry = clone_batch(batch), tuple(tensor.clone() for tensor in carry)
        device = carry[0].device
        rng_state = torch.cuda.get_rng_state(device)
        stream = torch.cuda.Stream(device)
        stream.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(stream):
            for _ in range(WARM_UP_STEPS):
                self._run(batch, carry)
        torch.cuda.current_stream(device).wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self.pool):
            loss = self._run(batch, carry)
        torch.cuda.set_rng_state(rng_state, device)  # recording must not advance the generator
        gradients = [parameter.grad for parameter in self.parameters]
        return RecordedStep(graph, [*list_tensors(batch), *carry], loss, gradients)

    def _run(self, batch: Any, carry: State) -> Loss:
        for parameter in self.parameters:
            parameter.grad = None
        loss = self.loss(batch, carry)
        loss.mean.backward()
        return loss._replace(mean=loss.mean.detach())


def list_tensors(batch: Any) -> list[Tensor]:
    """Return all tensors of a batch, in nested tuples and lists."""
    if isinstance(batch, Tensor):
        return [batch]
    return [tensor for part in batch for tensor in list_tensors(part)] if isinstance(batch, list | tuple) else []


def clone_batch(batch: Any) -> Any:
    """Return a deep copy of a batch."""
    if isinstance(batch, Tensor):
        return batch.clone()
    parts = [clone_batch(part) for part in batch]
    return type(batch)(*parts) if hasattr(batch, "_fields") else type(batch)(parts)
