"""The first weights of networks that are trained for a task.

Glorot & Bengio 2010, Understanding the difficulty of training deep feedforward neural networks (Xavier)
Saxe et al. 2014, Exact solutions to the nonlinear dynamics of learning in deep linear neural networks (orthogonal)
Jozefowicz et al. 2015, An empirical exploration of recurrent network architectures (the forget gate's bias)
"""

import torch
from torch import Tensor, nn
from torch.overrides import handle_torch_function, has_torch_function

from relmo.nn.cells import Cell, LSTMCell


def initialise(network: nn.Module) -> None:
    """Fills the weights of all linear layers and recurrent cells in the network.

    layer             weight      starts as
    Linear            W           Xavier: uniform in ±sqrt(6 / (in + out))
                      b           0
    Elman, GRU, LSTM  W_ih        Xavier, each gate by itself
                      W_hh        orthogonal, each gate by itself
                      W_hr        Xavier
                      b_ih, b_hh  0, but b_ih of the LSTM's forget gate its cell's `forget_bias`: 1
    """
    for module in network.modules():
        if isinstance(module, nn.Linear):
            nn.init.xavier_uniform_(module.weight)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
        if isinstance(module, Cell):
            _initialise_cell(module)


def _initialise_cell(cell: Cell) -> None:
    """A cell as the table of `initialise` has it."""
    for block in range(cell.blocks):
        rows = slice(block * cell.hidden_size, (block + 1) * cell.hidden_size)
        nn.init.xavier_uniform_(cell.weight_ih[rows])
        _orthogonal_(cell.weight_hh[rows])
    nn.init.zeros_(cell.bias_ih)
    nn.init.zeros_(cell.bias_hh)
    if isinstance(cell, LSTMCell):
        nn.init.constant_(cell.bias_ih[cell.hidden_size : 2 * cell.hidden_size], cell.forget_bias)
        if cell.weight_hr is not None:
            nn.init.xavier_uniform_(cell.weight_hr)


def _orthogonal_(tensor: Tensor) -> Tensor:
    """torch's; what loads a model's weights may leave it out by its name, as it is slow in large layers."""
    if has_torch_function((tensor,)):
        return handle_torch_function(_orthogonal_, (tensor,), tensor)
    with torch.no_grad():
        return nn.init.orthogonal_(tensor)
