"""Steps of recurrent cells with all of their quantities, and a cell with states of other shapes."""

from types import SimpleNamespace

import torch
from torch import Tensor, nn

from relmo.analysis.core.stack import record_step
from relmo.nn.recurrence import Cell, Quantity, Record, State, gate, state, unchanged


def record_gates(cell: Cell, x: Tensor, state: State) -> SimpleNamespace:
    """Return every quantity of the step that reads x (B, I), as attributes."""
    return SimpleNamespace(**record_step(cell, cell.project_input(x), state)[0])


def random_state(cell: Cell, batch: int, dtype: torch.dtype = torch.float32) -> State:
    """Draw a state of a cell."""
    return tuple(torch.randn(batch, *cell.specs[name].shape, dtype=dtype) for name in cell.states)


class MatrixCell(Cell):
    """A matrix memory whose output is not carried, a normaliser that starts at 1 and a learned initial state.

    C' = f * C + outer(v, k);   n' = f * n + k;   h' = tanh(C' q / max(|n' q|, 1) + s);   s' = f * s
    """

    name = "matrix"
    keeps = "f"

    def __init__(self, input_size: int, hidden_size: int):
        super().__init__(input_size, hidden_size)
        self.weight_ih = nn.Parameter(torch.empty(3 * hidden_size + 1, input_size))
        self.start = nn.Parameter(torch.empty(hidden_size))
        self.reset_parameters()

    def quantities(self) -> list[Quantity]:
        H = self.hidden_size
        return [
            Quantity("h", (H,), "output", "output"),
            state("C", H, H),
            state("n", H, role="normaliser", initial=1.0),
            state("s", H, initial="start"),
            gate("f", 1, description="forget gate"),
        ]

    def project_input(self, x: Tensor) -> Tensor:
        return x @ self.weight_ih.T

    def step(self, x: Tensor, state: State, *, record: Record = unchanged) -> tuple[Tensor, State]:
        C, n, s = state
        q, k, v, f = x.split([*[self.hidden_size] * 3, 1], dim=-1)
        f = record("f", torch.sigmoid(f))
        C = record("C", f.unsqueeze(2) * C + v.unsqueeze(2) * k.unsqueeze(1))
        n, s = record("n", f * n + k), record("s", f * s)
        divisor = (n * q).sum(dim=-1, keepdim=True).abs().clamp(min=1.0)
        h = record("h", torch.tanh((C * q.unsqueeze(1)).sum(dim=2) / divisor + s))
        return h, (C, n, s)
