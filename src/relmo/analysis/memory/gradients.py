"""Gradient of a loss by earlier states: the norm of dLoss_t/dh_(t-k), and of an LSTM's dLoss_t/dc_(t-k), by lag k.

    flow = gradient_flow(relmo.load("models/mine"), text)
    flow.curve("c").median[20], flow.curve("c").factor, flow.curve("c").memory
    torch_gradient_flow(nn.GRU(8, 32), inputs)

At many positions t of a text, the loss of the next symbol is differentiated by the states before it, and the norms are
divided by the norm at lag 0. Medians and quartiles over the positions are reported beside the mean, which a few large
gradients dominate.

- Derivatives are total: by c_s, for example, through everything that depends on it, h_s too.
- "path" is the gradient through the memory gates alone: the LSTM's dLoss/dc_t times the product of the forget gates,
  the GRU's dLoss/dh_t times that of the update gates z, unit by unit.
- The factor is the median's ratio per step back: a line fitted to its logarithm between two lags.
- The memory is the first lag at which the median is below a hundredth.

    Bengio et al. 1994, Learning long-term dependencies with gradient descent is difficult
    Hochreiter & Schmidhuber 1997, Long short-term memory
    Pascanu et al. 2013, On the difficulty of training recurrent neural networks
"""

import dataclasses
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from relmo.analysis.core.progress import split_progress
from relmo.analysis.core.reading import make_reading
from relmo.analysis.core.show import Table, format_number, save_figure
from relmo.analysis.core.trace import Texts, get_network
from relmo.analysis.core.unrolled import UnrolledLayer, unroll, unroll_layers, zero_states
from relmo.analysis.memory.jacobian import JacobianCurve, jacobian_curves, spectral_radii
from relmo.errors import ModelError, SettingError
from relmo.models.bilm import BiLM
from relmo.models.lm import LanguageModel
from relmo.nn.cells import State
from relmo.settings.arguments import Progress

Loss = Callable[[Tensor], Tensor]
"""Function from the top layer's output at the last step (B, O) to one number per row (B,)."""

FIT_LAGS = (5, 40)  # range of lags to which the factor is fitted
MEMORY_THRESHOLD = 0.01  # of the gradient at lag 0
TABLE_LAGS = (1, 5, 10, 20, 40, 99)
MAX_GRAPH_NUMBERS = 1 << 26  # numbers of a graph in memory at a time
NUMBERS_PER_UNIT = 16  # of a graph for a unit and a step, about
JACOBIAN_SHARE = 0.9  # of the running time, if Jacobians are computed


@dataclass(frozen=True)
class Curve:
    """Norm of the gradient of one state of one layer by lag, relative to lag 0.

    of          a state, such as "h" or "c", or "path", the gradient through the memory gates alone
    mean        ratio of the mean norms
    factor      ratio of the median per step back; `mean_factor` of the mean
    memory      first lag at which the median is below 1 %, if any
    """

    layer: int
    of: str
    median: list[float]
    lower: list[float]
    upper: list[float]
    mean: list[float]
    factor: float | None
    mean_factor: float | None
    memory: int | None


@dataclass(frozen=True)
class GradientFlow:
    """Gradient flow of one network.

    memory_state        state that is the cell's memory: c of an LSTM, h of the others
    keeping_gate        gate that keeps the memory: f of an LSTM, z of a GRU, None of an Elman network
    positions, lags     number of positions, and how far back they go
    curves              of each layer's states and, if a gate keeps memory, path
    jacobians           largest singular value of each layer's ds_t/ds_(t-k), if requested
    spectral_radius     of the recurrent weights, by layer and gate
    gate_mean           mean of each gate over positions, steps and units, by layer
    """

    name: str
    cell: str
    memory_state: str
    keeping_gate: str | None
    hidden: int
    positions: int
    lags: int
    curves: list[Curve]
    jacobians: list[JacobianCurve]
    spectral_radius: list[dict[str, float]]
    gate_mean: list[dict[str, float]]

    def curve(self, of: str, layer: int = -1) -> Curve:
        """Return the curve of a state or of "path" of a layer, by default the top one."""
        num_layers = 1 + max(curve.layer for curve in self.curves)
        for curve in self.curves:
            if curve.of == of and curve.layer == layer % num_layers:
                return curve
        names = {curve.of for curve in self.curves}
        raise SettingError(f"Unknown curve {of!r}; the {self.cell} cell has {', '.join(names)}.")

    def as_dict(self) -> dict[str, Any]:
        """Return all fields as JSON types."""
        return dataclasses.asdict(self)

    def layer_name(self, layer: int) -> str:
        """Return the name of a layer for tables; of the network if it has one layer only."""
        return f"{self.name}, layer {layer}" if len(self.spectral_radius) > 1 else self.name

    def _repr_html_(self) -> str:
        return flow_table([self]).html()


def gradient_flow(
    model: LanguageModel | BiLM,
    text: Texts,
    *,
    lags: int = 100,
    positions: int = 64,
    warm_up: int = 100,
    jacobian_positions: int = 0,
    direction: Literal["forward", "backward"] = "forward",
    seed: int = 0,
    name: str | None = None,
    progress: Progress | None = None,
) -> GradientFlow:
    """Measure the gradient flow of a model at random positions of a text.

    lags                 how far back
    positions            number of positions
    warm_up              symbols that are read before the first lag, from the initial state
    jacobian_positions   number of positions at which Jacobians are computed, which is slow for large networks
    direction            of a bidirectional model; its text is a stream of sentences, one per line
    progress             callback with the completed share
    """
    check_counts(lags=lags, positions=positions)
    reading = make_reading(model, text, direction=("forward", "backward").index(direction))
    layers = unroll_layers(get_network(model), direction=reading.direction)
    length = warm_up + lags + 1
    ends = reading.sample_ends(positions, length - 1, seed)
    graph_numbers = NUMBERS_PER_UNIT * len(ends) * (lags + 1) * sum(layer.cell.hidden_size for layer in layers)
    num_batches = min(len(ends), 1 + graph_numbers // MAX_GRAPH_NUMBERS)

    def iter_batches() -> Iterator[tuple[Tensor, Loss]]:
        for batch in np.array_split(ends, num_batches):
            with torch.no_grad():
                vectors, targets = reading.get_inputs(batch[:, None] + np.arange(1 - length, 1))
            last = targets[:, -1]
            yield vectors, lambda y, last=last: reading.losses(y, last)  # type: ignore[misc]

    default_name = model.settings.model.cell if isinstance(model, LanguageModel) else "bilm"
    return measure(name or default_name, layers, iter_batches(), len(ends), lags, jacobian_positions, progress)


def torch_gradient_flow(
    module: nn.Module,
    inputs: Tensor,
    *,
    loss: Loss | None = None,
    lags: int | None = None,
    jacobian_positions: int = 0,
    seed: int = 0,
    name: str | None = None,
) -> GradientFlow:
    """Measure the gradient flow of torch's nn.RNN, nn.GRU or nn.LSTM, or of a network that contains one of them.

    inputs    (B, T, I) of the recurrent layers, whatever their `batch_first` is; the position is each row's last step
    loss      function of the top layer's output at that step, (B, O) -> (B,); default a product with a random direction
    lags      default T - 1; earlier steps are read from the initial state
    """
    if inputs.dim() != 3:
        raise SettingError(f"inputs must have the shape (batch, steps, size), not {tuple(inputs.shape)}.")
    lags = inputs.shape[1] - 1 if lags is None else lags
    check_counts(lags=lags, positions=len(inputs))
    if lags >= inputs.shape[1]:
        raise SettingError(f"{lags} lags require inputs of {lags + 1} steps or more, not {inputs.shape[1]}.")
    layers = unroll_layers(module)
    width = layers[-1].cell.output_size
    readout = torch.randn(width, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    readout = readout.to(layers[0].weights[0].device)
    loss = loss or (lambda y: y @ (readout / readout.norm()))
    batches = iter([(inputs, loss)])
    return measure(name or layers[0].cell.name, layers, batches, len(inputs), lags, jacobian_positions, None)


def check_counts(**counts: int) -> None:
    """Check that all counts are 1 or more."""
    for name, count in counts.items():
        if count < 1:
            raise SettingError(f"{name} must be 1 or more, not {count}.")


def measure(
    name: str,
    layers: Sequence[UnrolledLayer],
    batches: Iterator[tuple[Tensor, Loss]],
    positions: int,
    lags: int,
    jacobian_positions: int,
    progress: Progress | None,
) -> GradientFlow:
    """Measure a network over batches of inputs (B, T, I) with the loss at their last step."""
    norms: list[dict[str, list[Tensor]]] = [{} for _ in layers]
    gates: list[dict[str, list[Tensor]]] = [{} for _ in layers]
    jacobians: list[JacobianCurve] = []
    jacobian_share = JACOBIAN_SHARE if jacobian_positions else 0.0
    on_jacobian, on_gradient = split_progress(progress, [jacobian_share, 1 - jacobian_share])
    done = 0
    for vectors, loss in batches:
        assert vectors.shape[1] > lags
        states, warm_up = zero_states(layers, len(vectors)), vectors[:, : -lags - 1]
        if warm_up.shape[1]:
            with torch.no_grad():
                states = unroll(layers, warm_up, states).states
        window = vectors[:, -lags - 1 :]
        if jacobian_positions and not jacobians:
            starts = [tuple(tensor[:jacobian_positions] for tensor in state) for state in states]
            jacobians = jacobian_curves(layers, window[:jacobian_positions], starts, progress=on_jacobian)
        for depth, layer_norms in enumerate(_compute_gradient_norms(layers, window, states, loss)):
            for of, tensor in layer_norms.norms.items():
                norms[depth].setdefault(of, []).append(tensor)
            for gate, mean in layer_norms.gate_means.items():
                gates[depth].setdefault(gate, []).append(mean)
        done += len(vectors)
        on_gradient(done / positions)
    curves = []
    for depth, tensors_by_state in enumerate(norms):
        curves += [make_curve(depth, of, torch.cat(parts).cpu().numpy()) for of, parts in tensors_by_state.items()]
    return GradientFlow(
        name=name,
        cell=layers[0].cell.name,
        memory_state=layers[0].cell.memory,
        keeping_gate=layers[0].cell.keeps,
        hidden=layers[0].cell.hidden_size,
        positions=positions,
        lags=lags,
        curves=curves,
        jacobians=jacobians,
        spectral_radius=[spectral_radii(layer) for layer in layers],
        gate_mean=[{gate: float(torch.cat(parts).mean()) for gate, parts in means.items()} for means in gates],
    )


@dataclass(frozen=True)
class LayerNorms:
    """Norms (B, lags + 1) by name, in ascending lag, and the mean of each gate in each row (B,)."""

    norms: dict[str, Tensor]
    gate_means: dict[str, Tensor]


def _compute_gradient_norms(
    layers: Sequence[UnrolledLayer], x: Tensor, states: Sequence[State], loss: Loss
) -> list[LayerNorms]:
    """Return each layer's norms of d loss_t / d state_(t-k) for k = 0 … T - 1, with t the last step of x (B, T, I)."""
    # Initial states require gradients so that the first step is part of the graph.
    leaves = [tuple(tensor.detach().requires_grad_() for tensor in state) for state in states]
    run = unroll(layers, x.detach(), leaves)
    total = loss(run.output[-1]).sum()  # rows are independent, so each gets its own gradient
    nodes = []
    for steps, layer in zip(run.gates, layers, strict=True):
        nodes += [getattr(gates, of) for of in layer.cell.states for gates in reversed(steps)]
    flat = torch.autograd.grad(total, nodes, materialize_grads=True)
    stacked = (torch.stack(flat[begin : begin + len(run.output)]) for begin in range(0, len(flat), len(run.output)))
    all_norms = []
    for steps, layer in zip(run.gates, layers, strict=True):
        gradients = {of: next(stacked) for of in layer.cell.states}  # each (lags + 1, B, size)
        norms = {of: gradient.norm(dim=2).T for of, gradient in gradients.items()}
        if layer.cell.keeps is not None:
            gate = torch.stack([getattr(gates, layer.cell.keeps) for gates in reversed(steps)]).detach()
            product = torch.cat([torch.ones_like(gate[:1]), gate[:-1].cumprod(dim=0)])  # (lags + 1, B, H)
            norms["path"] = (product * gradients[layer.cell.memory][0]).norm(dim=2).T
        gate_means = {
            name: torch.stack([getattr(gates, name) for gates in steps]).detach().mean(dim=(0, 2))
            for name in layer.cell.gate_names
        }
        all_norms.append(LayerNorms(norms, gate_means))
    return all_norms


def make_curve(layer: int, of: str, norms: np.ndarray) -> Curve:
    """Summarise norms (positions, lags + 1); positions without any gradient are ignored."""
    norms = norms[norms[:, 0] > 0]
    if not len(norms):
        raise ModelError("The loss does not depend on the states; the output layer's weights may be zero.")
    lower, median, upper = np.quantile(norms / norms[:, :1], (0.25, 0.5, 0.75), axis=0)
    mean = norms.mean(axis=0) / norms[:, 0].mean()
    below = np.flatnonzero(median < MEMORY_THRESHOLD)
    return Curve(
        layer,
        of,
        median.tolist(),
        lower.tolist(),
        upper.tolist(),
        mean.tolist(),
        factor=step_factor(median),
        mean_factor=step_factor(mean),
        memory=int(below[0]) if len(below) else None,
    )


def step_factor(curve: np.ndarray, fit: tuple[int, int] = FIT_LAGS) -> float | None:
    """Return e to the slope of log curve over the lags of `fit`, both included.

    A shorter curve is fitted over its available lags, from 1 if it ends before `fit`. None without two positive values.
    """
    start, end = fit if len(curve) > fit[0] + 1 else (1, fit[1])
    lags = np.arange(start, min(end, len(curve) - 1) + 1)
    lags = lags[curve[lags] > 0]
    if len(lags) < 2:
        return None
    return math.exp(np.polyfit(lags, np.log(curve[lags]), 1)[0])


def flow_table(flows: Sequence[GradientFlow]) -> Table:
    """Return a table of networks: medians at some lags, the factor and the memory."""
    lags = [lag for lag in TABLE_LAGS if lag <= min(flow.lags for flow in flows)]
    rows = []
    for flow in flows:
        for curve in flow.curves:
            gradient = f"through {flow.keeping_gate} alone" if curve.of == "path" else f"d{curve.of}"
            rows.append(
                [
                    f"{flow.layer_name(curve.layer)}: {gradient}",
                    *(f"{curve.median[lag]:.2g}" for lag in lags),
                    format_number(curve.factor),
                    format_number(curve.mean_factor),
                    f"> {flow.lags}" if curve.memory is None else str(curve.memory),
                ]
            )
    notes = [
        "gradient of the next symbol's loss by the state k symbols before, relative to k = 0: median of "
        f"{flows[0].positions} positions",
        f"factor: ratio per step back, fitted to the median (mean) over k = {FIT_LAGS[0]} to {FIT_LAGS[1]}",
        "memory: first k with less than 1 % of the gradient",
    ]
    return Table(["gradient", *(f"k = {lag}" for lag in lags), "factor", "(mean)", "memory"], rows, notes=notes)


def jacobian_table(flows: Sequence[GradientFlow]) -> Table:
    """Return a table of the largest singular values of the networks' Jacobians, medians, by lag."""
    lags = sorted({lag for flow in flows for jacobian in flow.jacobians for lag in jacobian.lags})
    rows = []
    for flow in flows:
        for jacobian in flow.jacobians:
            values = dict(zip(jacobian.lags, jacobian.median, strict=True))
            name = f"{flow.layer_name(jacobian.layer)}: d{jacobian.part}/d{jacobian.part}"
            rows.append([name, *(f"{values[lag]:.2g}" if lag in values else "" for lag in lags)])
    columns = ["of the state k symbols before", *(f"k = {lag}" for lag in lags)]
    return Table(columns, rows, "largest singular value of the Jacobian")


def radius_table(flows: Sequence[GradientFlow]) -> Table:
    """Return a table of the spectral radii of the recurrent weights and the means of the gates."""
    rows = []
    for flow in flows:
        for depth, by_gate in enumerate(zip(flow.spectral_radius, flow.gate_mean, strict=True)):
            columns = [", ".join(f"{gate} {number:.2f}" for gate, number in numbers.items()) for numbers in by_gate]
            rows.append([flow.layer_name(depth), *columns])
    return Table(["network", "spectral radius of W_hh", "mean of the gates"], rows)


def draw_flows(flows: Sequence[GradientFlow], path: str | Path) -> None:
    """Plot the top layers' gradients by lag on a logarithmic scale, medians with quartiles.

    The memory has a thick line, an LSTM's h a thin one. Jacobians, if computed, have a second panel.
    """
    has_jacobians = any(flow.jacobians for flow in flows)
    with save_figure(path, 13 if has_jacobians else 8, 5) as figure:
        panels = figure.subplots(1, 2 if has_jacobians else 1, squeeze=False)[0]
        for i, flow in enumerate(flows):
            colour = f"C{i % 10}"
            minor_states = {curve.of for curve in flow.curves} - {"path", flow.memory_state}
            for of in (flow.memory_state, *sorted(minor_states)):
                curve, is_memory = flow.curve(of), of == flow.memory_state
                lags = range(len(curve.median))
                label = f"{flow.name}: d{of}" + ("" if curve.factor is None else f", x {curve.factor:.3f} per step")
                style = {"lw": 2, "ls": "-"} if is_memory else {"lw": 0.8, "ls": "--"}
                panels[0].plot(lags, curve.median, color=colour, label=label, **style)
                if is_memory:
                    panels[0].fill_between(lags, curve.lower, curve.upper, color=colour, alpha=0.2, lw=0)
            for jacobian in flow.jacobians[-1:]:
                panels[1].plot(jacobian.lags, jacobian.median, "o-", color=colour, label=flow.name)
                panels[1].fill_between(jacobian.lags, jacobian.lower, jacobian.upper, color=colour, alpha=0.2, lw=0)
        for axes in figure.axes:
            axes.set_yscale("log")
            axes.set_xlabel("lag k")
            axes.grid(True, alpha=0.3)
        panels[0].legend(fontsize=8, loc="upper left", bbox_to_anchor=(0, -0.12), ncols=2)
        panels[0].axhline(MEMORY_THRESHOLD, color="black", lw=0.8, ls=":")
        panels[0].set_ylabel("|dLoss_t / dstate_(t-k)| relative to k = 0")
        if has_jacobians:
            panels[1].set_ylabel("largest singular value of dstate_t / dstate_(t-k)")
