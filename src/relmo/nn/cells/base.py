"""What a recurrent cell says of itself, so that whatever runs it, traces it or changes it need not know which it is.

A cell is one step in time, `(x, state) -> (y, state)`. Its state is a tuple of tensors with the batch first: `(h,)` for
Elman and GRU, `(h, c)` for the LSTM. `cell.gates(x, state)` gives every quantity of the step by name.

Every method that computes takes weights in place of the cell's own, in the order of `cell.weights()`. So dropped-out
weights reach a cell, and so the analyses run one cell's equations with the weights of any network.
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
"""What is done to a state as soon as it is computed, before anything reads it: from its letter and value to a value."""


def unchanged(letter: str, value: Tensor) -> Tensor:
    """No intervention."""
    return value


class Cell(nn.Module):
    """A recurrent cell. Quantities have names of one letter. A cell says of itself, in its class:

    states      what is carried, the output h first: h has `output_size` units, every other state `hidden_size`
    blocks      what its stacked weights compute, H rows each, in their order, with a plain word for each; what lies
                between 0 and 1 is called a gate
    memory      the state that remembers
    keeps       the gate by which memory is kept, if there is one: memory' = keeps * memory + what is new
    inputs      the names of the weights that read x
    recurrent   the names of the weights that read the state: DropConnect drops them

    and has `from_input` and `step`, its equations. Its docstring has them too, a line each, as people read them: a
    name, an equals sign, and the new states with a prime (h'). A cell may be fast in one of two ways:

    fused       the name of the torch function that computes the same over a whole sequence, from the same weights.
                The gates of such a cell depend on x and h alone
    parallel    whether `sequence` computes all steps side by side
    """

    states: ClassVar[tuple[str, ...]] = ("h",)
    blocks: ClassVar[Mapping[str, str]]
    memory: ClassVar[str] = "h"
    keeps: ClassVar[str | None] = None
    inputs: ClassVar[tuple[str, ...]] = ("weight_ih",)
    recurrent: ClassVar[tuple[str, ...]] = ("weight_hh",)
    fused: str | None = None
    parallel: bool = False

    def __init__(self, input_size: int, hidden_size: int, output_size: int | None = None):
        super().__init__()
        self.input_size = input_size
        self.hidden_size = hidden_size
        self.output_size = output_size or hidden_size

    @classmethod
    def bare(cls, *sizes: int, **options: Any) -> Self:
        """The equations without memory for weights, which must then be given."""
        with torch.device("meta"):
            return cls(*sizes, **options)

    @property
    def name(self) -> str:
        """By which settings and tables know the cell: that of its file."""
        return type(self).__module__.rpartition(".")[2]

    @property
    def state_sizes(self) -> tuple[int, ...]:
        """The width of each tensor of the state."""
        return tuple(self.output_size if state == "h" else self.hidden_size for state in self.states)

    @property
    def gate_names(self) -> list[str]:
        """The blocks that are gates."""
        return [letter for letter, word in self.blocks.items() if word.endswith("gate")]

    @property
    def words(self) -> dict[str, str]:
        """All quantities of a step with a plain word for each: the states, the gates, what else there is."""
        states = dict.fromkeys(self.states, "a state") | {self.memory: "the memory", "h": "what others read"}
        return states | {gate: self.blocks[gate] for gate in self.gate_names} | {**self.blocks}

    @property
    def sizes(self) -> dict[str, int]:
        """How many numbers of each quantity a step has."""
        return dict.fromkeys(self.words, self.hidden_size) | dict(zip(self.states, self.state_sizes, strict=True))

    def describe(self) -> str:
        """The name, and in words the options that change the equations."""
        return self.name

    def equations(self) -> dict[str, str]:
        """By quantity, the right side of its equation, as the docstring of the class has it."""
        found: dict[str, str] = {}
        for letter, right in EQUATION.findall(inspect.getdoc(type(self)) or ""):
            found.setdefault(letter, right)
        return found

    def named_weights(self, weights: Weights) -> dict[str, Tensor]:
        """The weights by the names that the equations give them: W_n is the matrix with which n reads x."""
        return {f"W_{letter}": matrix for letter, matrix in self.input_matrices(weights).items()}

    def reset_parameters(self) -> None:
        """Every weight and bias uniform in ±1/sqrt(H), as torch does."""
        bound = 1 / math.sqrt(self.hidden_size)
        for parameter in self.parameters():
            nn.init.uniform_(parameter, -bound, bound)

    def initialise(self) -> None:
        """The first weights of a network for a task: of each block by itself, Xavier for what reads x and orthogonal
        for what reads h; other matrices Xavier; biases 0."""
        weights = self.weights()
        reads, recurs = self.input_matrices(weights), self.recurrent_matrices(weights)
        for letter in self.blocks:
            if letter in reads:
                nn.init.xavier_uniform_(reads[letter])
            if letter in recurs:
                orthogonal_(recurs[letter])
        for name, weight in self.named_parameters(recurse=False):
            if name not in (*self.inputs, *self.recurrent):
                (nn.init.zeros_ if weight.dim() == 1 else nn.init.xavier_uniform_)(weight)

    def weights(self) -> list[Tensor]:
        """In the order in which they were made."""
        return list(self.parameters(recurse=False))

    def input_matrices(self, weights: Weights) -> dict[str, Tensor]:
        """By block, the matrix (H, I) with which it reads x."""
        return self._by_block(self.inputs, weights)

    def recurrent_matrices(self, weights: Weights) -> dict[str, Tensor]:
        """By block, the matrix (H, P) with which it reads h; none where the blocks read no h. Units that read
        themselves alone have a diagonal."""
        return self._by_block(self.recurrent, weights)

    def _by_block(self, names: Sequence[str], weights: Weights) -> dict[str, Tensor]:
        for (name, _), weight in zip(self.named_parameters(recurse=False), weights, strict=True):
            if name in names and len(weight) == len(self.blocks) * self.hidden_size:
                parts = weight.split(self.hidden_size)
                return {
                    letter: part.diag() if part.dim() == 1 else part
                    for letter, part in zip(self.blocks, parts, strict=True)
                }
        return {}

    def projection_matrix(self, weights: Weights) -> Tensor | None:
        """The matrix (P, H) through which hidden units become h; None where they are the units of h."""
        return None

    def raise_forget_bias(self, by: float) -> None:
        """Adds to the bias of the gate that keeps memory; of cells that have the option `forget_bias`."""
        raise NotImplementedError

    def initial_state(self, batch: int) -> State:
        """Zeros on the cell's device and in its precision."""
        like = next(self.parameters())
        return tuple(like.new_zeros(batch, size) for size in self.state_sizes)

    def from_input(self, x: Tensor, weights: Weights) -> Tensor:
        """What of a step depends on x (…, I) alone: (…, G). Of many steps it is computed in one product."""
        raise NotImplementedError

    def step(self, from_x: Tensor, state: State, weights: Weights, intervene: Intervene = unchanged) -> Any:
        """One step from the input's part from_x (…, G) and the state before: every quantity, as a named tuple. Each new
        state goes through `intervene`, under its letter, before anything reads it."""
        raise NotImplementedError

    def sequence(self, from_x: Tensor, state: State, weights: Weights) -> State:
        """Of a parallel cell, the states after every step, (B, T, size) each, from the input's part of all steps
        (B, T, G)."""
        raise NotImplementedError

    def next_state(self, gates: Any) -> State:
        """What is carried of a step's quantities."""
        return tuple(getattr(gates, state) for state in self.states)

    def gates(self, x: Tensor, state: State, weights: Weights | None = None) -> Any:
        """Reads x (B, I) from the state: every quantity of the equations."""
        weights = weights or self.weights()
        return self.step(self.from_input(x, weights), state, weights)

    def forward(self, x: Tensor, state: State, weights: Weights | None = None) -> tuple[Tensor, State]:
        """x (B, I), the state -> y = h' (B, P), the new state."""
        gates = self.gates(x, state, weights)
        return gates.h, self.next_state(gates)


class StackedCell(Cell):
    """A cell with weights laid out as in `torch.nn.RNN/GRU/LSTM`: blocks stacked along the rows, two bias vectors. So
    weights can be copied from and to torch, and torch's fused kernels can run on them."""

    def __init__(self, input_size: int, hidden_size: int, output_size: int | None = None):
        super().__init__(input_size, hidden_size, output_size)
        rows = len(self.blocks) * hidden_size
        self.weight_ih = nn.Parameter(torch.empty(rows, input_size))
        self.weight_hh = nn.Parameter(torch.empty(rows, self.output_size))
        self.bias_ih = nn.Parameter(torch.empty(rows))
        self.bias_hh = nn.Parameter(torch.empty(rows))

    def named_weights(self, weights: Weights) -> dict[str, Tensor]:
        """W_if reads x for the block f, W_hf reads h for it; b_if and b_hf are its biases."""
        _, _, b_ih, b_hh, *_ = weights
        named = {f"W_i{letter}": matrix for letter, matrix in self.input_matrices(weights).items()}
        named |= {f"W_h{letter}": matrix for letter, matrix in self.recurrent_matrices(weights).items()}
        for side, bias in (("i", b_ih), ("h", b_hh)):
            parts = bias.split(self.hidden_size)
            named |= {f"b_{side}{letter}": part for letter, part in zip(self.blocks, parts, strict=True)}
        return named

    def from_input(self, x: Tensor, weights: Weights) -> Tensor:
        W_ih, _, b_ih, *_ = weights
        return linear(x, W_ih, b_ih)


def orthogonal_(tensor: Tensor) -> Tensor:
    """torch's; what loads a model's weights leaves it out by its name, as it is slow in large layers."""
    if has_torch_function((tensor,)):
        return handle_torch_function(orthogonal_, (tensor,), tensor)
    with torch.no_grad():
        return nn.init.orthogonal_(tensor)
