"""Print the gradient norm by lag for an untrained Elman network, GRU and LSTM.

Each cell reads 40 random inputs. The gradient of the last output is computed with respect to each earlier state. The
forget bias of an LSTM determines how fast it vanishes.
"""

import torch

from relmo.nn.recurrence import Cell
from relmo.nn.recurrence.elman import ElmanCell
from relmo.nn.recurrence.gru import GRUCell
from relmo.nn.recurrence.lstm import LSTMCell

STEPS, SIZE = 40, 64


def gradient_by_lag(cell: Cell) -> list[float]:
    """Return |d sum(h_T) / d state_t| for t = T, T-1, …, relative to the first."""
    state, states = cell.initial_state(batch=8), []
    for x in torch.randn(STEPS, 8, SIZE):
        state = tuple(tensor.requires_grad_() if tensor.is_leaf else tensor for tensor in state)
        for tensor in state:
            tensor.retain_grad()
        states.append(state)
        y, state = cell(x, state)
    y.sum().backward()
    norms = [sum(t.grad.norm() ** 2 for t in s if t.grad is not None) ** 0.5 for s in reversed(states)]
    return [float(norm / norms[0]) for norm in norms]


torch.manual_seed(0)
cells = {
    "Elman": ElmanCell(SIZE, SIZE),
    "GRU": GRUCell(SIZE, SIZE),
    "LSTM, forget bias 0": LSTMCell(SIZE, SIZE, forget_bias=0.0),
    "LSTM, forget bias 1": LSTMCell(SIZE, SIZE),
    "LSTM, forget bias 3": LSTMCell(SIZE, SIZE, forget_bias=3.0),
}
for name, cell in cells.items():
    print(name)
    for lag in (0, 5, 10, 20, 39):
        share = gradient_by_lag(cell)[lag]
        print(f"  {lag:2} steps back  {share:9.2e}  {'#' * round(40 * min(share, 1))}")
