"""The first weights of networks that are trained for a task.

Glorot & Bengio 2010, Understanding the difficulty of training deep feedforward neural networks (Xavier)
Saxe et al. 2014, Exact solutions to the nonlinear dynamics of learning in deep linear neural networks (orthogonal)
"""

from torch import nn

from relmo.nn.cells import Cell


def initialise(network: nn.Module) -> None:
    """Fills the weights of all linear layers and recurrent cells in the network.

    layer             weight      starts as
    Linear            W           Xavier: uniform in ±sqrt(6 / (in + out))
                      b           0
    a cell            W_ih        Xavier, each gate by itself
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
            module.initialise()
