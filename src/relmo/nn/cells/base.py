"""Interface of recurrent cells, by which they are run, traced and changed.

A cell is one step in time, `(x, state) -> (y, state)`. Methods that compute take weights in place of the cell's own, in
the order of `cell.weights()`. So weights with dropout reach a cell, and analyses run the weights of any network.
"""

import inspect
import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn
from torch.nn.functional import linear
from torch.overrides import handle_torch_function, has_torch_function

State = tuple[Tensor, ...]  # every tensor has the batch as its first dimension
Weights = Sequence[Tensor]
EQUATION = re.compile(r"^([a-z])'? *= (.+?)(?: {3,}.*)?$", re.MULTILINE)
Intervene = Callable[[str, Tensor], Tensor]
"""Function of a state's letter and value, applied before anything reads the state; returns the new value."""


def unchanged(letter: str, value: Tensor) -> Tensor:
    """Return the value: no intervention."""
    return value


class Cell(nn.Module):
    """A recurrent cell, whose quantities have names of one letter. Its class defines:

    states      carried states, the output h first: h has `output_size` units, every other state `hidden_size`
    blocks      quantities computed by the stacked weights, H rows each, in their order, with a description each;
                quantities between 0 and 1 are called gates
    memory      the state that remembers
    keeps       the gate that keeps memory, if any: memory' = keeps * memory + new content
    inputs      names of the weights that read x
    recurrent   names of the weights that read the state, to which DropConnect applies

    and the equations as `from_input` and `step`. Its docstring has them too, one per line: a name, an equals sign, and
    new states with a prime (h'). A cell may be fast in one of two ways:

    fused       name of the torch function that computes the same over a whole sequence, from the same weights;
                the gates of such a cell depend on x and h alone
    parallel    whether `sequence` computes all steps at once
    """

    states: ClassVar[tuple[str, ...]] = ("h",)
    blocks: ClassVar[Mapping[str, str]]
    memory: ClassVar[str] = "h"
    keeps: ClassVar[str | None] = None
    inputs: ClassVar[tuple[str, ...]] = ("weight_ih",)
    recurrent: ClassVar[tuple[str, ...]] = ("weight_hh",)
    fused: str | None = None
    parallel: bool = False
    options: Sequence[str] = ()
    """Options of a cell that change its equations, in words."""

    def __init__(self, input_size: int, hidden_size: int, output_size: int | None = None):
        super().__init__()
        self.input_size, self.hidden_size, self.output_size = input_size, hidden_size, output_size or hidden_size
        self.name = type(self).__module__.rpartition(".")[2]
        """Name of the cell's file, used in settings and tables."""
        self.state_sizes = tuple(self.output_size if state == "h" else hidden_size for state in self.states)
        """Width of each tensor of the state."""
        self.gate_names = [letter for letter, word in self.blocks.items() if word.endswith("gate")]
        states = dict.fromkeys(self.states, "state") | {self.memory: "memory", "h": "output"}
        self.words = states | {gate: self.blocks[gate] for gate in self.gate_names} | {**self.blocks}
        """Quantities of a step with a description each: states, gates, others."""
        self.sizes = dict.fromkeys(self.words, hidden_size) | dict(zip(self.states, self.state_sizes, strict=True))
        """Width of each quantity of a step."""

    @classmethod
    def bare(cls, *sizes: int, **options: Any) -> Self:
        """Create the equations without weights, which must then be passed to its methods."""
        with torch.device("meta"):
            return cls(*sizes, **options)

    def describe(self) -> str:
        """Return the name and the options that change the equations."""
        return f"{self.name} with {', '.join(self.options)}" if self.options else self.name

    def equations(self) -> dict[str, str]:
        """Return the right side of each quantity's equation, from the docstring of the class."""
        equations: dict[str, str] = {}
        for letter, expression in EQUATION.findall(inspect.getdoc(type(self)) or ""):
            equations.setdefault(letter, expression)
        return equations

    def named_weights(self, weights: Weights) -> dict[str, Tensor]:
        """Return the weights by their names in the equations: W_n is the matrix with which n reads x."""
        return {f"W_{letter}": matrix for letter, matrix in self.matrices(self.inputs, weights).items()}

    def reset_parameters(self) -> None:
        """Draw every weight and bias uniformly from ±1/sqrt(H), as torch does."""
        bound = 1 / math.sqrt(self.hidden_size)
        for parameter in self.parameters():
            nn.init.uniform_(parameter, -bound, bound)

    def initialise(self) -> None:
        """Initialise for a task: recurrent matrices of each block orthogonal, other matrices Xavier, biases 0."""
        input_matrices, recurrent_matrices = (
            self.matrices(names, self.weights()) for names in (self.inputs, self.recurrent)
        )
        for letter in self.blocks:
            if letter in input_matrices:
                nn.init.xavier_uniform_(input_matrices[letter])
            if letter in recurrent_matrices:
                orthogonal_(recurrent_matrices[letter])
        for name, weight in self.named_parameters(recurse=False):
            if name not in (*self.inputs, *self.recurrent):
                (nn.init.zeros_ if weight.dim() == 1 else nn.init.xavier_uniform_)(weight)

    def weights(self) -> list[Tensor]:
        """Return the weights in the order of their creation."""
        return list(self.parameters(recurse=False))

    def matrices(self, names: Sequence[str], weights: Weights) -> dict[str, Tensor]:
        """Return for each block the matrix with which it reads x (H, I) or h (H, P), for the names `inputs` or
        `recurrent`; diagonal for independent units, empty if there are none."""
        for (name, _), weight in zip(self.named_parameters(recurse=False), weights, strict=True):
            if name in names and len(weight) == len(self.blocks) * self.hidden_size:
                parts = [part.diag() if part.dim() == 1 else part for part in weight.split(self.hidden_size)]
                return dict(zip(self.blocks, parts, strict=True))
        return {}

    def projection_matrix(self, weights: Weights) -> Tensor | None:
        """Return the matrix (P, H) that projects hidden units to h, `weight_hr`; None without projection."""
        names = [name for name, _ in self.named_parameters(recurse=False)]
        return weights[names.index("weight_hr")] if "weight_hr" in names else None

    def raise_forget_bias(self, by: float) -> None:
        """Increase the bias of the gate that keeps memory; for cells with the option `forget_bias`."""
        raise NotImplementedError

    def initial_state(self, batch: int) -> State:
        """Return zeros on the cell's device and in its type."""
        like = next(self.parameters())
        return tuple(like.new_zeros(batch, size) for size in self.state_sizes)

    def from_input(self, x: Tensor, weights: Weights) -> Tensor:
        """Return the part of a step that depends on x (…, I) alone: (…, G), for many steps in one product."""
        raise NotImplementedError

    def step(self, from_x: Tensor, state: State, weights: Weights, intervene: Intervene = unchanged) -> Any:
        """Return every quantity of a step as a named tuple, from the input's part from_x (…, G) and the previous state.

        Each new state is passed to `intervene` with its letter before anything reads it.
        """
        raise NotImplementedError

    def sequence(self, from_x: Tensor, state: State, weights: Weights) -> State:
        """Return the states after all steps, (B, T, size) each, from the input's part (B, T, G); for parallel cells."""
        raise NotImplementedError

    def next_state(self, gates: Any) -> State:
        """Return the state among a step's quantities."""
        return tuple(getattr(gates, state) for state in self.states)

    def gates(self, x: Tensor, state: State, weights: Weights | None = None) -> Any:
        """Return every quantity of the step that reads x (B, I)."""
        weights = weights or self.weights()
        return self.step(self.from_input(x, weights), state, weights)

    def forward(self, x: Tensor, state: State, weights: Weights | None = None) -> tuple[Tensor, State]:
        """Return y = h' (B, P) and the new state of x (B, I) and the state."""
        gates = self.gates(x, state, weights)
        return gates.h, self.next_state(gates)


class StackedCell(Cell):
    """A cell with weights as in `torch.nn.RNN/GRU/LSTM`: blocks stacked along the rows, two bias vectors.

    So weights can be copied from and to torch, and torch's fused kernels can run on them.
    """

    def __init__(self, input_size: int, hidden_size: int, output_size: int | None = None):
        super().__init__(input_size, hidden_size, output_size)
        rows = len(self.blocks) * hidden_size
        self.weight_ih = nn.Parameter(torch.empty(rows, input_size))
        self.weight_hh = nn.Parameter(torch.empty(rows, self.output_size))
        self.bias_ih = nn.Parameter(torch.empty(rows))
        self.bias_hh = nn.Parameter(torch.empty(rows))

    def named_weights(self, weights: Weights) -> dict[str, Tensor]:
        """Return the weights by name: W_if reads x for the block f, W_hf reads h; b_if and b_hf are its biases."""
        _, _, b_ih, b_hh, *_ = weights
        named = {f"W_i{letter}": matrix for letter, matrix in self.matrices(self.inputs, weights).items()}
        named |= {f"W_h{letter}": matrix for letter, matrix in self.matrices(self.recurrent, weights).items()}
        for side, bias in (("i", b_ih), ("h", b_hh)):
            parts = bias.split(self.hidden_size)
            named |= {f"b_{side}{letter}": part for letter, part in zip(self.blocks, parts, strict=True)}
        projection = self.projection_matrix(weights)
        return named if projection is None else named | {"W_hr": projection}

    def from_input(self, x: Tensor, weights: Weights) -> Tensor:
        W_ih, _, b_ih, *_ = weights
        return linear(x, W_ih, b_ih)


def orthogonal_(tensor: Tensor) -> Tensor:
    """Apply torch's function, which is slow in large layers; loading a model skips it by this name."""
    if has_torch_function((tensor,)):
        return handle_torch_function(orthogonal_, (tensor,), tensor)
    with torch.no_grad():
        return nn.init.orthogonal_(tensor)


def initialise(network: nn.Module) -> None:
    """Initialise the weights of all linear layers and recurrent cells of a network for a task.

    Matrices are Xavier (uniform in ±sqrt(6 / (in + out)); Glorot & Bengio 2010), recurrent ones orthogonal (Saxe et al.
    2014), each gate by itself; biases are 0, but b_ih of the LSTM's forget gate its cell's `forget_bias`.
    """
    for module in network.modules():
        if isinstance(module, nn.Linear):
            nn.init.xavier_uniform_(module.weight)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
        if isinstance(module, Cell):
            module.initialise()
