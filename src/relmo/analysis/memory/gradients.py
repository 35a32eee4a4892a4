"""Gradient of the next symbol's loss by earlier states, by lag, and Jacobians, of trained and untrained networks
(Bengio et al. 1994, Learning long-term dependencies with gradient descent is difficult;  Hochreiter & Schmidhuber 1997;
Pascanu et al. 2013, On the difficulty of training recurrent neural networks)."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from relmo.analysis.core.show import Report, Table, format_number, save_figure, split_progress
from relmo.analysis.core.stack import StackLayer, initial_states, unroll, unroll_layers
from relmo.analysis.memory.jacobian import JacobianCurve, content_states, jacobian_curves, spectral_radius
from relmo.errors import ModelError, SettingError
from relmo.models.lm import LanguageModel
from relmo.models.sequence_model import SequenceModel
from relmo.models.surprisal import Texts
from relmo.networks.language_model import RecurrentLM
from relmo.nn.recurrence.base import Cell, StackedCell, State
from relmo.registry import cell_names, cells_with
from relmo.settings.fields import Progress
from relmo.settings.lm import LanguageModelSettings, LMSettings, TextSettings
from relmo.text.vocabulary import SPECIALS, Vocabulary

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
    """Norm of the gradient of one state of one layer by lag, relative to lag 0."""

    layer: int
    of: str  #: a state, such as "h" or "c", or "path", the gradient through the memory gates alone
    median: list[float]
    lower: list[float]
    upper: list[float]
    mean: list[float]  #: ratio of the mean norms
    factor: float | None  #: ratio of the median per step back; `mean_factor` of the mean
    mean_factor: float | None
    memory: int | None  #: first lag at which the median is below 1 %, if any


@dataclass(frozen=True)
class GradientFlow(Report):
    """Gradient flow of one network."""

    name: str
    cell: str
    memory_state: str  #: state that is the cell's memory: c of an LSTM, h of the others
    keeping_gate: str | None  #: gate that keeps the memory: f of an LSTM, z of a GRU, None of an Elman network
    hidden: int
    positions: int  #: number of positions
    lags: int  #: how far back they go
    curves: list[Curve]  #: of each layer's states and, if a gate keeps memory, path
    jacobians: list[JacobianCurve]  #: largest singular value of each layer's ds_t/ds_(t-k), if requested
    spectral_radius: list[dict[str, float]]  #: of the recurrent weights, by layer and gate
    gate_mean: list[dict[str, float]]  #: mean of each gate over positions, steps and units, by layer

    def curve(self, of: str, layer: int = -1) -> Curve:
        """Return the curve of a state or of "path" of a layer, by default the top one."""
        num_layers = 1 + max(curve.layer for curve in self.curves)
        for curve in self.curves:
            if curve.of == of and curve.layer == layer % num_layers:
                return curve
        names = {curve.of for curve in self.curves}
        raise SettingError(f"Unknown curve {of!r}; the {self.cell} cell has {', '.join(names)}.")

    def layer_name(self, layer: int) -> str:
        """Return the name of a layer for tables; of the network if it has one layer only."""
        return f"{self.name}, layer {layer}" if len(self.spectral_radius) > 1 else self.name

    def table(self) -> Table:
        return flow_table([self])


def gradient_flow(
    model: SequenceModel,
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

    warm_up              symbols that are read before the first lag, from the initial state
    jacobian_positions   number of positions at which Jacobians are computed, which is slow for large networks
    direction            of a bidirectional model; its text is a stream of sentences, one per line
    """
    check_counts(lags=lags, positions=positions)
    reading = model.make_reading(text, direction)
    layers = unroll_layers(model.get_recurrent_network(), direction=reading.direction)
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

    return measure(name or model.label, layers, iter_batches(), len(ends), lags, jacobian_positions, progress)


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
    readout = readout.to(layers[0].like.device)
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
    layers: Sequence[StackLayer],
    batches: Iterator[tuple[Tensor, Loss]],
    positions: int,
    lags: int,
    jacobian_positions: int,
    progress: Progress | None,
) -> GradientFlow:
    """Measure a network over batches of inputs (B, T, I) with the loss at their last step."""
    norms_by_batch = []
    jacobians: list[JacobianCurve] = []
    jacobian_share = JACOBIAN_SHARE if jacobian_positions else 0.0
    on_jacobian, on_gradient = split_progress(progress, [jacobian_share, 1 - jacobian_share])
    done = 0
    for vectors, loss in batches:
        assert vectors.shape[1] > lags
        states, warm_up = initial_states(layers, len(vectors)), vectors[:, : -lags - 1]
        if warm_up.shape[1]:
            with torch.no_grad():
                states = [path[-1] for path in unroll(layers, warm_up, states).path]
        window = vectors[:, -lags - 1 :]
        if jacobian_positions and not jacobians:
            starts = [tuple(tensor[:jacobian_positions] for tensor in state) for state in states]
            jacobians = jacobian_curves(layers, window[:jacobian_positions], starts, progress=on_jacobian)
        norms_by_batch.append(_compute_gradient_norms(layers, window, states, loss))
        done += len(vectors)
        on_gradient(done / positions)
    curves, gate_mean = [], []
    for depth, parts in enumerate(zip(*norms_by_batch, strict=True)):
        norms, gates = (
            {name: torch.cat([part[name] for part in column]) for name in column[0]}
            for column in zip(*parts, strict=True)
        )
        gate_mean.append({gate: float(means.mean()) for gate, means in gates.items()})
        for of, tensor in norms.items():
            array = tensor.cpu().numpy()  # (positions, lags + 1)
            array = array[array[:, 0] > 0]  # positions without any gradient are ignored
            if not len(array):  # such as a stabiliser that cancels in the output
                continue
            lower, median, upper = np.quantile(array / array[:, :1], (0.25, 0.5, 0.75), axis=0)
            mean = array.mean(axis=0) / array[:, 0].mean()
            memory = next(iter(np.flatnonzero(median < MEMORY_THRESHOLD).tolist()), None)
            quartiles = median.tolist(), lower.tolist(), upper.tolist()
            curves.append(Curve(depth, of, *quartiles, mean.tolist(), step_factor(median), step_factor(mean), memory))
    if not curves:
        raise ModelError("The loss does not depend on the states; the output layer's weights may be zero.")
    radii = [{gate: spectral_radius(matrix) for gate, matrix in layer.recurrent_matrices().items()} for layer in layers]
    cell = layers[0].cell
    return GradientFlow(
        name, cell.name, cell.memory, cell.keeps, cell.hidden_size, positions, lags, curves, jacobians, radii, gate_mean
    )


def _compute_gradient_norms(
    layers: Sequence[StackLayer], x: Tensor, states: Sequence[State], loss: Loss
) -> list[tuple[dict[str, Tensor], dict[str, Tensor]]]:
    """Return each layer's norms (B, T) of d loss_t / d state_(t-k) for k = 0 … T - 1, with t the last step of x
    (B, T, I), and the mean of each gate in each row (B,)."""
    # Initial states require gradients so that the first step is part of the graph.
    leaves = [tuple(tensor.detach().requires_grad_() for tensor in state) for state in states]
    run = unroll(layers, x.detach(), leaves)
    total = loss(run.output[-1]).sum()  # rows are independent, so each gets its own gradient
    nodes: list[Tensor] = []
    for path, layer in zip(run.path, layers, strict=True):
        for name, tensors in zip(layer.cell.states, zip(*reversed(path), strict=True), strict=True):
            nodes += tensors if name in content_states(layer.cell) else ()
    flat = torch.autograd.grad(total, nodes, materialize_grads=True)
    stacked = (torch.stack(flat[begin : begin + len(run.output)]) for begin in range(0, len(flat), len(run.output)))
    all_norms = []
    for steps, layer in zip(run.quantities, layers, strict=True):
        gradients = {of: next(stacked) for of in content_states(layer.cell)}  # each (lags + 1, B, *shape)
        norms = {of: gradient.flatten(2).norm(dim=2).T for of, gradient in gradients.items()}
        if layer.cell.keeps is not None:
            gate = torch.stack([quantities[layer.cell.keeps] for quantities in reversed(steps)]).detach()
            product = torch.cat([torch.ones_like(gate[:1]), gate[:-1].cumprod(dim=0)])  # (lags + 1, B, H)
            gradient = gradients[layer.cell.memory][0]
            # a gate of a matrix memory has one value per head or row
            product = product.view(*product.shape, *[1] * (gradient.dim() + 1 - product.dim()))
            norms["path"] = (product * gradient).flatten(2).norm(dim=2).T
        gate_means = {
            name: torch.stack([quantities[name] for quantities in steps]).detach().flatten(2).mean(dim=(0, 2))
            for name in layer.cell.gate_names
        }
        all_norms.append((norms, gate_means))
    return all_norms


def step_factor(curve: np.ndarray, fit: tuple[int, int] = FIT_LAGS) -> float | None:
    """Return e to the slope of log curve over the lags of `fit`, both included; None without two positive values. A
    shorter curve is fitted over its available lags, from 1 if it ends before `fit`."""
    start, end = fit if len(curve) > fit[0] + 1 else (1, fit[1])
    lags = np.arange(start, min(end, len(curve) - 1) + 1)
    lags = lags[curve[lags] > 0]
    if len(lags) < 2:
        return None
    return math.exp(np.polyfit(lags, np.log(curve[lags]), 1)[0])


def flow_tables(flows: Sequence[GradientFlow]) -> list[Table]:
    """Return tables of networks: gradients by lag, spectral radii with means of gates, and Jacobians, if computed."""
    lags = [lag for lag in TABLE_LAGS if lag <= min(flow.lags for flow in flows)]
    jacobian_lags = sorted({lag for flow in flows for jacobian in flow.jacobians for lag in jacobian.lags})
    gradients, radii, jacobians = [], [], []
    for flow in flows:
        for curve in flow.curves:
            gradient = f"through {flow.keeping_gate} alone" if curve.of == "path" else f"d{curve.of}"
            row = [f"{flow.layer_name(curve.layer)}: {gradient}", *(f"{curve.median[lag]:.2g}" for lag in lags)]
            row += [format_number(curve.factor), format_number(curve.mean_factor)]
            gradients.append([*row, f"> {flow.lags}" if curve.memory is None else str(curve.memory)])
        for depth, by_gate in enumerate(zip(flow.spectral_radius, flow.gate_mean, strict=True)):
            columns = [", ".join(f"{gate} {number:.2f}" for gate, number in numbers.items()) for numbers in by_gate]
            radii.append([flow.layer_name(depth), columns[0] or "no recurrent matrix", columns[1] or "no gates"])
        for jacobian in flow.jacobians:
            values = dict(zip(jacobian.lags, jacobian.median, strict=True))
            name = f"{flow.layer_name(jacobian.layer)}: d{jacobian.part}/d{jacobian.part}"
            jacobians.append([name, *(f"{values[lag]:.2g}" if lag in values else "" for lag in jacobian_lags)])
    notes = [
        "gradient of the next symbol's loss by the state k symbols before, relative to k = 0: median of "
        f"{flows[0].positions} positions",
        f"factor: ratio per step back, fitted to the median (mean) over k = {FIT_LAGS[0]} to {FIT_LAGS[1]}",
        "memory: first k with less than 1 % of the gradient",
    ]
    columns = ["gradient", *(f"k = {lag}" for lag in lags), "factor", "(mean)", "memory"]
    tables = [Table(columns, gradients, notes=notes)]
    tables.append(Table(["network", "spectral radius of W_hh", "mean of the gates"], radii))
    if jacobians:
        columns = ["of the state k symbols before", *(f"k = {lag}" for lag in jacobian_lags)]
        tables.append(Table(columns, jacobians, "largest singular value of the Jacobian"))
    return tables


def flow_table(flows: Sequence[GradientFlow]) -> Table:
    """Return the table of the gradients alone."""
    return flow_tables(flows)[0]


def draw_flows(flows: Sequence[GradientFlow], path: str | Path) -> None:
    """Plot the top layers' gradients by lag, medians with quartiles, and Jacobians, if computed, in a second panel."""
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
            axes.set(yscale="log", xlabel="lag k")
            axes.grid(True, alpha=0.3)
        panels[0].legend(fontsize=8, loc="upper left", bbox_to_anchor=(0, -0.12), ncols=2)
        panels[0].axhline(MEMORY_THRESHOLD, color="black", lw=0.8, ls=":")
        panels[0].set_ylabel("|dLoss_t / dstate_(t-k)| relative to k = 0")
        if has_jacobians:
            panels[1].set_ylabel("largest singular value of dstate_t / dstate_(t-k)")


@dataclass(frozen=True, kw_only=True)
class Fresh:
    """Settings of an untrained network."""

    cell: str = "lstm"
    hidden: int = 128
    embedding: int = 64
    layers: int = 1
    forget_bias: float = 0.0  # added to the bias of the gate that keeps memory, for cells with this setting
    spectral_radius: float | None = None  # to which the recurrent weights of each gate are scaled
    start: Literal["torch", "relmo"] = "torch"  # initial weights as torch's modules, or as `relmo train lm`
    seed: int = 0

    @property
    def name(self) -> str:
        """Name for tables and figures."""
        bias = f", forget bias {self.forget_bias:+g}" if self.forget_bias else ""
        radius = "" if self.spectral_radius is None else f", spectral radius {self.spectral_radius:g}"
        return f"{self.cell}, fresh{bias}{radius}"


def check_cell(name: str) -> None:
    """Check that a cell of this name exists."""
    if name not in cell_names():
        raise SettingError(f"Unknown cell {name!r}; expected one of {', '.join(cell_names())}.")


def fresh_model(fresh: Fresh, vocabulary: Vocabulary, text: TextSettings | None = None) -> LanguageModel:
    """Return an untrained language model over a vocabulary; torch's random state is restored."""
    check_cell(fresh.cell)
    if fresh.forget_bias and fresh.cell not in cells_with("forget_bias"):
        raise SettingError(f"The {fresh.cell} cell has no forget gate, so forget_bias cannot be set.")
    if fresh.spectral_radius is not None and fresh.spectral_radius < 0:
        raise SettingError(f"The spectral radius must be 0 or more, not {fresh.spectral_radius:g}.")
    settings = LanguageModelSettings(
        cell=fresh.cell, hidden=fresh.hidden, embedding=fresh.embedding, layers=fresh.layers
    )
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(fresh.seed)
        network = RecurrentLM(settings, vocab_size=len(vocabulary))
        cells = [cell for (cell,) in network.encoder.recurrent.cells]
        if fresh.start == "torch":  # as nn.Embedding, nn.RNN, nn.GRU, nn.LSTM and nn.Linear draw their weights
            nn.init.normal_(network.encoder.embedding.weight)
            for cell in cells:
                if isinstance(cell, StackedCell):
                    Cell.reset_parameters(cell)  # the forget gate's bias too
            bound = 1 / math.sqrt(network.encoder.recurrent.output_size)
            for parameter in network.softmax.parameters():
                nn.init.uniform_(parameter, -bound, bound)
        for cell in cells:
            if fresh.forget_bias:
                cell.raise_forget_bias(fresh.forget_bias)
            if fresh.spectral_radius is None:
                continue
            if not isinstance(cell, StackedCell):
                raise SettingError(f"The {cell.name} cell has no recurrent matrix, so spectral_radius cannot be set.")
            for block in cell.weight_hh.split(cell.hidden_size):
                block *= fresh.spectral_radius / spectral_radius(block)
    return LanguageModel(network, vocabulary, LMSettings(text=text or TextSettings(), model=settings))


def fresh_flows(
    text: str, networks: Sequence[Fresh], *, progress: Progress | None = None, **options: Any
) -> list[GradientFlow]:
    """Measure untrained character models at the same positions of a text; `options` as for `gradient_flow`."""
    vocabulary = Vocabulary([*SPECIALS, *sorted({*text} - {*SPECIALS})])
    flows = []
    for fresh, callback in zip(networks, split_progress(progress, [1.0] * len(networks)), strict=True):
        model = fresh_model(fresh, vocabulary)
        flows.append(gradient_flow(model, text, name=fresh.name, progress=callback, **options))
    return flows


def forget_bias_sweep(text: str, biases: Sequence[float] = (0, 1, 2, 4), **options: Any) -> list[GradientFlow]:
    """Measure LSTMs with these biases added to the forget gates; `options` as for `Fresh` and `gradient_flow`."""
    return _sweep(text, [{"forget_bias": bias} for bias in biases], {"cell": "lstm"} | options)


def spectral_radius_sweep(text: str, radii: Sequence[float] = (1, 2, 3), **options: Any) -> list[GradientFlow]:
    """Measure Elman networks (or `cell=`) with recurrent weights of these spectral radii; `options` as above."""
    return _sweep(text, [{"spectral_radius": radius} for radius in radii], {"cell": "elman"} | options)


def _sweep(text: str, variants: Sequence[dict[str, Any]], options: dict[str, Any]) -> list[GradientFlow]:
    fields = Fresh.__dataclass_fields__
    network_options = {name: value for name, value in options.items() if name in fields}
    flow_options = {name: value for name, value in options.items() if name not in fields or name == "seed"}
    return fresh_flows(text, [Fresh(**network_options, **variant) for variant in variants], **flow_options)
