"""Interface of recurrent cells, by which they are run, traced and changed.

A cell is one step in time. It declares its quantities (states, gates and others, each with shape, role and range) and
its equations, so that training, traces, interventions, analyses and the explorer need not know it.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any, ClassVar, Literal, NamedTuple, Self

import torch
from torch import Tensor, nn
from torch.nn.functional import linear
from torch.overrides import handle_torch_function, has_torch_function

State = tuple[Tensor, ...]
"""One tensor (batch, *shape) per carried state, in the order of `Cell.states`."""

Role = Literal["output", "memory", "normaliser", "stabiliser", "gate", "candidate"]

Record = Callable[[str, Tensor], Tensor]
"""Hook of `Cell.step`, called with each quantity's name and value before anything reads it. It returns the value that
the rest of the step reads, so it can record quantities and change them."""


def unchanged(name: str, value: Tensor) -> Tensor:
    """Return the value: record nothing and change nothing."""
    return value


class Quantity(NamedTuple):
    """Quantity of a step.

    shape         of one example; any rank
    role          of a state: output, memory, normaliser (divides the memory), stabiliser (keeps numbers in range);
                  otherwise gate or candidate, or output if the output is not carried
    description   in words, for tables and labels
    low, high     range of the values
    initial       value before the first step, if it is carried: a constant, or the name of a parameter or property
    """

    name: str
    shape: tuple[int, ...]
    role: Role
    description: str
    low: float = -math.inf
    high: float = math.inf
    initial: float | str | None = None


def state(name: str, *shape: int, role: Role = "memory", initial: float | str = 0.0, description: str = "") -> Quantity:
    """Return the declaration of a carried state."""
    return Quantity(name, shape, role, description or role, initial=initial)


def gate(name: str, *shape: int, description: str, low: float = 0.0, high: float = 1.0) -> Quantity:
    """Return the declaration of a gate, by default between 0 and 1."""
    return Quantity(name, shape, "gate", description, low, high)


def gates(*shape: int, **descriptions: str) -> list[Quantity]:
    """Return the declarations of gates of one shape between 0 and 1, from their descriptions by name."""
    return [gate(name, *shape, description=description) for name, description in descriptions.items()]


class Cell(nn.Module):
    """A recurrent cell. A subclass defines:

    quantities      the declarations of its states and of the other quantities of a step, in the order of tables
    project_input   the part of a step that depends on the input alone, for all steps in one product
    step            one step
    equations       the right side of each quantity's equation, as data

    and may define `scan`, all steps at once; `reset_parameters`, its initialisation; `named_weights`, the weights by
    their names in the equations; and these attributes:

    keeps       the gate that multiplies the memory, if any: memory' = keeps * memory + new content
    recurrent   names of the weights that read the state, to which DropConnect applies
    fused       name of the torch function that computes the same over a whole sequence, from the same weights; the
                gates of such a cell depend on x and h alone

    The output is the quantity h of shape (output_size,), which is the first carried state if it is carried.
    """

    name: ClassVar[str] = ""
    """Name under which the class is registered."""
    keeps: str | None = None
    inputs: ClassVar[tuple[str, ...]] = ()
    recurrent: ClassVar[tuple[str, ...]] = ()
    fused: str | None = None
    options: Sequence[str] = ()
    """Options that change the equations, in words."""

    def __init__(self, input_size: int, hidden_size: int, output_size: int | None = None):
        super().__init__()
        self.input_size, self.hidden_size, self.output_size = input_size, hidden_size, output_size or hidden_size

    def quantities(self) -> Sequence[Quantity]:
        """Return the declarations of all quantities: states first, then gates, then others."""
        raise NotImplementedError

    def project_input(self, x: Tensor) -> Tensor:
        """Return the part of a step that depends on x (…, I) alone, (…, G); by default x."""
        return x

    def step(self, x: Tensor, state: State, *, record: Record = unchanged) -> tuple[Tensor, State]:
        """Return the output (B, O) and the new state, from the projected input x (B, G) and the state.

        Each quantity is passed to `record` with its name, and its return value is used.
        """
        raise NotImplementedError

    def scan(self, x: Tensor, state: State, mask: Tensor | None = None) -> tuple[Tensor, State]:
        """Return the outputs (B, T, O) and the final state of all steps at once, from the projected input (B, T, G).

        It equals repeated `step`, in value and gradient. Where `mask` (B, T) is false the state is kept; outputs there
        may have any value.
        """
        raise NotImplementedError

    def equations(self) -> dict[str, str]:
        """Return the right side of each quantity's equation; h' is the state after the step, h the one before it.

        The language of equations is that of `analysis.core.one_step`.
        """
        return {}

    def named_weights(self) -> dict[str, Tensor]:
        """Return the weights by their names in the equations."""
        return self.weights()

    def reset_parameters(self) -> None:
        """Draw every weight and bias uniformly from ±1/sqrt(H), as torch does."""
        bound = 1 / math.sqrt(self.hidden_size)
        for parameter in self.parameters():
            nn.init.uniform_(parameter, -bound, bound)

    def initialise(self) -> None:
        """Initialise for a task; by default as for a language model."""
        self.reset_parameters()

    def raise_forget_bias(self, by: float) -> None:
        """Increase the bias of the gate that keeps memory; for cells with the option `forget_bias`."""
        raise NotImplementedError

    def input_matrices(self) -> dict[str, Tensor]:
        """Return the matrix with which each gate or candidate reads x, by its name: (H, I), or one row per head."""
        return {}

    def recurrent_matrices(self) -> dict[str, Tensor]:
        """Return the matrix (H, O) with which each gate or candidate reads the previous output, by its name."""
        return {}

    def projection_matrix(self) -> Tensor | None:
        """Return the matrix (P, H) that projects hidden units to the carried h; None without projection."""
        return None

    @cached_property
    def specs(self) -> dict[str, Quantity]:
        """Declared quantities by name."""
        return {quantity.name: quantity for quantity in self.quantities()}

    @cached_property
    def states(self) -> tuple[str, ...]:
        """Names of the carried states."""
        return tuple(name for name, quantity in self.specs.items() if quantity.initial is not None)

    @cached_property
    def sizes(self) -> dict[str, int]:
        """Number of units of each quantity; those of a matrix are counted row by row."""
        return {name: math.prod(quantity.shape) for name, quantity in self.specs.items()}

    @cached_property
    def words(self) -> dict[str, str]:
        """Description of each quantity."""
        return {name: quantity.description for name, quantity in self.specs.items()}

    @cached_property
    def gate_names(self) -> list[str]:
        """Names of the gates."""
        return [name for name, quantity in self.specs.items() if quantity.role == "gate"]

    @cached_property
    def vectors(self) -> tuple[str, ...]:
        """Names of the quantities that are vectors; the others, such as matrix memories, are traced on request only."""
        return tuple(name for name, quantity in self.specs.items() if len(quantity.shape) == 1)

    @cached_property
    def unit_states(self) -> tuple[str, ...]:
        """Names of the states whose units analyses examine: the output, and memories that are vectors."""
        roles = {name: self.specs[name].role for name in self.vectors if name == "h" or name in self.states}
        return tuple(name for name, role in roles.items() if role in ("output", "memory"))

    @cached_property
    def memory(self) -> str:
        """Name of the state that remembers."""
        return next((name for name in self.states if self.specs[name].role == "memory"), self.states[0])

    def corresponding_unit(self, source: str, unit: int, target: str) -> int | None:
        """Return the unit of a quantity that belongs with a unit of another one, such as the gate of its head.

        Return None if the quantities have units of their own.
        """
        if "h" in (source, target) and self.output_size != self.hidden_size:  # units of a projection are its own
            return unit if unit < self.sizes[target] else None
        small, large = sorted((self.sizes[source], self.sizes[target]))
        return None if large % small else unit * self.sizes[target] // self.sizes[source]

    @classmethod
    def bare(cls, *sizes: int, **options: Any) -> Self:
        """Create a cell without weights, for `with_weights`."""
        with torch.device("meta"):
            return cls(*sizes, **options)

    def weights(self) -> dict[str, Tensor]:
        """Return the weights by name, in the order of their creation."""
        return vars(self).get("substitutes") or dict(self.named_parameters())

    def with_weights(self, weights: Mapping[str, Tensor]) -> Self:
        """Return a copy that computes with these tensors in place of its parameters of the same names."""
        copy = _substitute(self, weights)
        vars(copy)["substitutes"] = weights
        return copy

    def for_many_steps(self) -> Self:
        """Return a cell that computes the same, faster if it is used for many steps; by default itself."""
        return self

    def describe(self) -> str:
        """Return the name and the options that change the equations."""
        return f"{self.name} with {', '.join(self.options)}" if self.options else self.name

    def initial_state(self, batch: int) -> State:
        """Return the state before the first step, on the cell's device and in its type."""
        like = next(iter(self.weights().values()))
        tensors = []
        for name in self.states:
            shape, initial = self.specs[name].shape, self.specs[name].initial
            if isinstance(initial, str):
                tensors.append(getattr(self, initial).expand(batch, *shape))
            else:
                tensors.append(like.new_full((batch, *shape), initial) if initial else like.new_zeros(batch, *shape))
        return tuple(tensors)

    def forward(self, x: Tensor, state: State, record: Record = unchanged) -> tuple[Tensor, State]:
        """Return the output (B, O) and the new state of x (B, I) and the state."""
        return self.step(self.project_input(x), state, record=record)

    def split_heads(self, heads: int | None, *, min_units: int = 1) -> tuple[int, int]:
        """Return the number of heads and of units of each; by default 4, 2 or 1 heads, the most that divide the units.

        By default, heads have at least `min_units` units if possible.
        """
        H = self.hidden_size
        if heads is None:
            heads = next(n for n in (4, 2, 1) if n == 1 or (H % n == 0 and H // n >= min_units))
        if heads < 1 or H % heads or heads != int(heads):
            divisors = ", ".join(str(n) for n in range(1, min(H, 64) + 1) if H % n == 0)
            raise ValueError(f"{heads} heads do not divide {H} hidden units; choose one of {divisors}.")
        return int(heads), H // int(heads)


def check_cell(cell: Cell) -> None:
    """Raise `ValueError` if the declarations of a cell are inconsistent."""
    quantities = list(cell.quantities())
    names = [quantity.name for quantity in quantities]
    problem = None
    if names[:1] != ["h"]:
        problem = "the first quantity must be h, the output"
    elif invalid := [name for name in names if len(name) != 1 or not name.isalpha() or name == "x"]:
        problem = f"names of quantities are single letters other than x, not {invalid[0]!r}"
    elif len({*names}) < len(names):
        problem = f"each quantity needs a name of its own, not {' '.join(names)}"
    elif shapeless := [q.name for q in quantities if not q.shape or not all(isinstance(n, int) for n in q.shape)]:
        problem = f"the quantity {shapeless[0]} has no shape; vectors have the shape (hidden_size,)"
    elif quantities[0].shape != (cell.output_size,):
        problem = f"h has the shape {quantities[0].shape}, but the output size is {cell.output_size}"
    elif not cell.states:
        problem = "no quantity is carried; a state needs an initial value"
    elif not cell.weights():
        problem = "it has no parameters"
    elif missing := [str(q.initial) for q in quantities if isinstance(q.initial, str) and not hasattr(cell, q.initial)]:
        problem = f"the initial value {missing[0]!r} is not an attribute of the cell"
    elif cell.keeps is not None and cell.keeps not in cell.gate_names:
        problem = f"keeps names {cell.keeps!r}, which is not a gate"
    elif unknown := {*cell.recurrent} - {name for name, _ in cell.named_parameters()}:
        problem = f"recurrent names {', '.join(sorted(unknown))}, which is not a parameter"
    elif unknown := {*cell.equations()} - {*names}:
        problem = f"there are equations of {', '.join(sorted(unknown))}, which is not declared"
    if problem is not None:
        raise ValueError(f"{type(cell).__name__}: {problem}.")


def _substitute(module: Any, weights: Mapping[str, Tensor], prefix: str = "") -> Any:
    """Copy a module, its modules included, with tensors as plain attributes in place of its parameters."""
    copy = object.__new__(type(module))
    parts = {name.removeprefix(prefix): tensor for name, tensor in weights.items() if name.startswith(prefix)}
    tensors = {name: tensor for name, tensor in parts.items() if "." not in name}
    vars(copy).update(vars(module))
    vars(copy)["_parameters"] = {name: None for name in module._parameters if name not in tensors}
    vars(copy).update(tensors)
    vars(copy)["_modules"] = {
        name: _substitute(child, weights, f"{prefix}{name}.") for name, child in module._modules.items()
    }
    return copy


def prefixed(prefix: str, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the weights with a prefix before their names."""
    return {f"{prefix}{name}": weight for name, weight in weights.items()}


class BlockCell(Cell):
    """A cell with stacked weights: blocks of rows, one for each quantity that they compute.

    weight_ih reads x for all `blocks`; weight_hh, which reads h, and bias have the last ones. In the equations W_if
    reads x for the block f, W_hf reads h, and b_f is the bias.
    """

    blocks: Sequence[str] = ()
    """Names of the quantities that the stacked weights compute, in their order."""
    input_prefix: ClassVar[str] = "W_i"
    """Beginning of the names of the blocks of weight_ih in the equations."""
    inputs: ClassVar[tuple[str, ...]] = ("weight_ih",)
    recurrent: ClassVar[tuple[str, ...]] = ("weight_hh",)
    weight_ih: nn.Parameter
    weight_hh: nn.Parameter
    bias: nn.Parameter

    def project_input(self, x: Tensor) -> Tensor:
        return linear(x, self.weight_ih, self.bias)

    def split_blocks(self, weight: Tensor, prefix: str = "") -> dict[str, Tensor]:
        """Return the blocks of a weight or a bias by name; if it has fewer than the cell, they are the last ones."""
        parts = weight.split(self.hidden_size)
        return prefixed(prefix, dict(zip(self.blocks[-len(parts) :], parts, strict=True)))

    def input_matrices(self) -> dict[str, Tensor]:
        return self.split_blocks(self.weight_ih)

    def recurrent_matrices(self) -> dict[str, Tensor]:
        return self.split_blocks(self.weight_hh) if self.recurrent else {}

    def biases(self) -> dict[str, Tensor]:
        """Return the bias of each block that has one, by its name."""
        return self.split_blocks(self.bias)

    def named_weights(self) -> dict[str, Tensor]:
        """Return the weights by their names in the equations."""
        named = prefixed(self.input_prefix, self.input_matrices()) | prefixed("W_h", self.recurrent_matrices())
        return named | prefixed("b_", self.biases())

    @torch.no_grad()
    def raise_forget_bias(self, by: float) -> None:
        bias = self.biases().get(type(self).keeps or "")
        if bias is None:
            raise NotImplementedError
        bias.add_(by)


class StackedCell(BlockCell):
    """A cell with weights as in `torch.nn.RNN/GRU/LSTM`: blocks stacked along the rows, two bias vectors.

    So weights can be copied from and to torch, and torch's fused kernels can run on them.
    """

    recurrent = ("weight_hh",)

    def __init__(self, input_size: int, hidden_size: int, output_size: int | None = None):
        super().__init__(input_size, hidden_size, output_size)
        rows = len(self.blocks) * hidden_size
        self.weight_ih = nn.Parameter(torch.empty(rows, input_size))
        self.weight_hh = nn.Parameter(torch.empty(rows, self.output_size))
        self.bias_ih = nn.Parameter(torch.empty(rows))
        self.bias_hh = nn.Parameter(torch.empty(rows))

    def project_input(self, x: Tensor) -> Tensor:
        return linear(x, self.weight_ih, self.bias_ih)

    def biases(self) -> dict[str, Tensor]:
        """Return the bias of each block that is added to its product with x, by the block's name."""
        return self.split_blocks(self.bias_ih)

    def named_weights(self) -> dict[str, Tensor]:
        """Return the weights by name: W_if reads x for the block f, W_hf reads h; b_if and b_hf are its biases."""
        named = prefixed("W_i", self.input_matrices()) | prefixed("W_h", self.recurrent_matrices())
        named |= prefixed("b_i", self.biases())
        return named | self.split_blocks(self.bias_hh, "b_h")

    def initialise(self) -> None:
        """Initialise for a task: recurrent matrices of each block orthogonal, other matrices Xavier, biases 0."""
        recurrent_matrices = self.recurrent_matrices()
        for name, matrix in self.input_matrices().items():
            nn.init.xavier_uniform_(matrix)
            orthogonal_(recurrent_matrices[name])
        for name, weight in self.named_parameters(recurse=False):
            if name not in (*self.inputs, *self.recurrent):
                (nn.init.zeros_ if weight.dim() == 1 else nn.init.xavier_uniform_)(weight)


def small_normal_(weight: Tensor) -> Tensor:
    """Draw a matrix from a normal distribution of variance 2 / (5 * columns) (Nguyen & Salazar 2019)."""
    return nn.init.normal_(weight, std=math.sqrt(2 / (5 * weight.shape[-1])))


def orthogonal_(tensor: Tensor) -> Tensor:
    """Apply torch's function, which is slow in large layers; loading a model skips it by this name."""
    if has_torch_function((tensor,)):
        return handle_torch_function(orthogonal_, (tensor,), tensor)
    with torch.no_grad():
        return nn.init.orthogonal_(tensor)


def initialise(network: nn.Module) -> None:
    """Initialise the weights of all linear layers and recurrent cells of a network for a task.

    Matrices are Xavier (uniform in ±sqrt(6 / (in + out)); Glorot & Bengio 2010), recurrent ones orthogonal (Saxe et al.
    2014), each gate by itself; biases are 0, but b_ih of the LSTM's forget gate its cell's `forget_bias`. Cells with a
    published initialisation of their own keep it.
    """
    for module in network.modules():
        if isinstance(module, nn.Linear):
            nn.init.xavier_uniform_(module.weight)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
        if isinstance(module, Cell):
            module.initialise()
