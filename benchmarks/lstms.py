"""Cases of the LSTMs alone, without characters and output layer, over windows without padding: the forward pass, or
both passes.

The baseline is torch's nn.LSTM, which neither clips nor adds skip connections. relmo's weights are float32 whatever the
precision of the products, as in training; those of nn.LSTM are stored in that precision. A further forward case is that
of embedding, where the first layer's input gates are cached, since they depend on the word alone. With both passes on a
GPU relmo's step is a CUDA graph, as in training; nn.LSTM is timed with and without a graph.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from benchmarks.clock import Case
from benchmarks.textbook import TextbookStacks, TorchStacks
from relmo.nn.quantize import Precision
from relmo.nn.recurrence.elmo_lstm import ElmoLSTM


class Shape(NamedTuple):
    """Shape of a window: number of lanes, and of steps of each."""

    batch: int
    unroll: int

    @property
    def tokens(self) -> int:
        """Number of steps of all lanes together."""
        return self.batch * self.unroll


class LSTMBench:
    """Cases of the LSTMs of one geometry, over windows of one shape."""

    def __init__(self, lstm: ElmoLSTM, shape: Shape, *, device: torch.device, precision: Precision):
        self.lstm, self.shape, self.device, self.precision = lstm.eval(), shape, device, precision
        self.dtype = getattr(torch, precision)
        size = lstm.stack[0].weight_ih.shape[2]
        self.x = torch.randn(2, shape.unroll, shape.batch, size, device=device)
        self.gradient = torch.randn(2, shape.unroll, shape.batch, lstm.output_size, device=device)

    def cases(self, *, backward: bool, textbook: bool) -> list[Case]:
        """Return the cases of the forward pass, or with `backward` of both passes; with `textbook` also that loop."""
        variants: list[tuple[str, nn.Module, Callable[[Tensor], Tensor], Tensor, dict[str, Any]]] = [
            ("torch nn.LSTM, no clipping", *self._torch(), self.x.to(self.dtype), {"baseline": True}),
            ("relmo", self.lstm, lambda x: self.lstm(x).layers[-1], self.x, {"floor": "lstm"}),
        ]
        if not backward:
            variants.append(("relmo, cached input gates", self.lstm, self._from_table(), self.x, {}))
        if textbook:
            variants.insert(0, ("textbook loop", *self._textbook(), self.x, {}))
        cases = []
        for name, module, forward, x, extra_facts in variants:
            run = self._forward_backward(module, forward, x) if backward else self._forward(forward, x)
            shape = f"{self.shape.batch} x {self.shape.unroll}"
            facts = {"precision": self.precision, "shape": shape, "backward": backward} | extra_facts
            has_graph = backward and self.device.type == "cuda" and name != "textbook loop"
            if name != "relmo" or not has_graph:
                cases.append(Case(f"{name}, {shape}", self.shape.tokens, run, facts=facts))
            if has_graph:
                facts = {key: fact for key, fact in facts.items() if key != "baseline"}
                cases.append(Case(f"{name}, as a graph, {shape}", self.shape.tokens, _capture_graph(run), facts=facts))
        return cases

    def _torch(self) -> tuple[nn.Module, Callable[[Tensor], Tensor]]:
        stacks = TorchStacks(self.lstm).to(self.device, self.dtype)  # in training mode, for cuDNN's backward pass
        return stacks, lambda x: torch.stack(stacks(x[0], x[1]))

    def _from_table(self) -> Callable[[Tensor], Tensor]:
        with torch.no_grad():
            gates = self.lstm.stack[0].input_gates(self.x.flatten(1, 2))  # (2, TB, 4H): one row per token
        rows = torch.arange(self.shape.tokens, device=self.device).view(self.shape.unroll, self.shape.batch)
        words = torch.stack([rows, rows])
        return lambda _: self.lstm.infer(gates, words, precision=self.precision).layers[-1]

    def _textbook(self) -> tuple[nn.Module, Callable[[Tensor], Tensor]]:
        stacks = TextbookStacks(self.lstm).to(self.device).eval()

        def forward(x: Tensor) -> Tensor:
            rows = x.transpose(1, 2)  # (2, B, T, I)
            outputs, _ = stacks((rows[0], rows[1]), [self.shape.unroll] * self.shape.batch, mirrored=True)
            return torch.stack(outputs[-1]).transpose(1, 2)

        return stacks, forward

    def _forward(self, forward: Callable[[Tensor], Tensor], x: Tensor) -> Callable[[], None]:
        @torch.no_grad()
        def run() -> None:
            with self._autocast(x):
                forward(x)

        return run

    def _forward_backward(
        self, module: nn.Module, forward: Callable[[Tensor], Tensor], x: Tensor
    ) -> Callable[[], None]:
        x = x.detach().clone().requires_grad_()

        def run() -> None:
            with self._autocast(x):
                y = forward(x)
            y.backward(self.gradient.to(y.dtype))
            x.grad = None
            module.zero_grad(set_to_none=True)

        return run

    def _autocast(self, x: Tensor) -> torch.autocast:
        """Return mixed precision, unless everything is in the lower precision already."""
        enabled = self.precision == "bfloat16" and x.dtype == torch.float32
        return torch.autocast(self.device.type, dtype=torch.bfloat16, enabled=enabled)


def _capture_graph(run: Callable[[], None]) -> Callable[[], None]:
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            run()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    return graph.replay
