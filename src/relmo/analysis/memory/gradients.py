"""How far back a loss reaches: the norm of dLoss_t/dh_(t-k), and of an LSTM's dLoss_t/dc_(t-k), by the lag k.

    flow = gradient_flow(relmo.load("models/mine"), text)
    flow.curve("c").median[20], flow.curve("c").factor, flow.curve("c").memory
    torch_gradient_flow(nn.GRU(8, 32), inputs)

At many places t of a text the loss of the next symbol is differentiated by the states before it; at each place the norm
is taken relative to that at lag 0. Medians and quartiles over the places are given beside the mean, which a few places
with large gradients make.

- The derivatives are whole: by c_s, say, through everything that depends on it, h_s too.
- "path" is the gradient that comes back through the gates alone that keep memory: the LSTM's dLoss/dc_t times the
  product of the forget gates, the GRU's dLoss/dh_t times that of the update gates z, unit by unit.
- The factor is what a step back multiplies the median by: a line fitted to its logarithm between two lags.
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

from relmo.analysis.core.reading import read_text
from relmo.analysis.core.show import Table, figure, picture
from relmo.analysis.core.trace import Texts, network_of
from relmo.analysis.core.unrolled import UnrolledLayer, initial_states, unroll, unrollable
from relmo.analysis.memory.jacobian import JacobianCurve, jacobian_curves, spectral_radii
from relmo.errors import ModelError, SettingError
from relmo.models.bilm import BiLM
from relmo.models.lm import LanguageModel
from relmo.nn.cells import State
from relmo.settings.arguments import Progress

Loss = Callable[[Tensor], Tensor]
"""From the top layer's output at the last step (B, O) to a number for each row (B,)."""

FIT = (5, 40)  # the lags between which the factor is fitted
FORGOTTEN = 0.01  # of the gradient at lag 0
SHOWN = (1, 5, 10, 20, 40, 99)  # lags in tables
NUMBERS_AT_ONCE = 1 << 26  # numbers of a graph that are held together
JACOBIANS = 0.9  # of the time, where they are looked at
PER_UNIT = 16  # numbers that a graph holds for a unit and a step, about


@dataclass(frozen=True)
class Curve:
    """One state of one layer: the gradient's norm by lag, from 0 on, relative to that at lag 0.

    of          a state, such as "h" or "c", or "path", what comes back through the gates alone that keep memory
    mean        the ratio of the mean norms
    factor      of the median, by step back; `mean_factor` of the mean
    memory      the first lag at which the median is below 1 %; None where it is at none
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
    """What was measured of one network.

    cell                its name
    memory_state        the state that the cell remembers with: c of an LSTM, h of the others
    keeping_gate        the gate by which it keeps memory: f of an LSTM, z of a GRU, None of an Elman network
    positions, lags     how many places were looked at, and how far back
    curves              of each layer, its states and, where a gate keeps memory, path
    jacobians           the largest singular value of each layer's ds_t/ds_(t-k), where it was asked for
    spectral_radius     of the recurrent weights, layer by layer and gate by gate
    gate_mean           the mean of each gate over places, steps and units, layer by layer
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
        """The curve of a state or of "path" of a layer, of the top one where none is said."""
        layers = 1 + max(curve.layer for curve in self.curves)
        for curve in self.curves:
            if curve.of == of and curve.layer == layer % layers:
                return curve
        raise SettingError(f"there is no curve of {of!r}; a {self.cell} has {', '.join({c.of for c in self.curves})}")

    def as_dict(self) -> dict[str, Any]:
        """Plain numbers by name."""
        return dataclasses.asdict(self)

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
    """Of a model, at so many places of a text, drawn at random.

    lags                 how far back
    warm_up              symbols read before that, from no state
    jacobian_positions   at how many of the places Jacobians are looked at too: that is slow in large networks
    direction            of a bidirectional model; its text is a stream of sentences, one a line
    progress             told, as it goes, of the share that is done
    """
    check_counts(lags=lags, positions=positions)
    reading = read_text(model, text, direction=("forward", "backward").index(direction))
    layers = unrollable(network_of(model), direction=reading.direction)
    length = warm_up + lags + 1
    ends = reading.ends(positions, length - 1, seed)

    def batches() -> Iterator[tuple[Tensor, Loss]]:
        for part in np.array_split(ends, pieces(layers, len(ends), lags)):
            with torch.no_grad():
                vectors, targets = reading.cut(part[:, None] + np.arange(1 - length, 1))
            last = targets[:, -1]
            yield vectors, lambda y, last=last: reading.losses(y, last)  # type: ignore[misc]

    known = name or f"{model.settings.model.cell if isinstance(model, LanguageModel) else 'bilm'}"
    return measure(known, layers, batches(), len(ends), lags, jacobian_positions, progress)


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
    """Of torch's nn.RNN, nn.GRU or nn.LSTM, or a network with one of them in it, over inputs (B, T, I) to the recurrent
    layers, whatever their `batch_first` says: each row's last step is the place that is looked at.

    `loss` is a function of the top layer's output at that step, (B, O) -> (B,); where none is given, the output's
    product with a random direction. `lags` is T - 1 where it is not given; steps before are read from no state.
    """
    if inputs.dim() != 3:
        raise SettingError(f"inputs are of the shape {tuple(inputs.shape)}; they are (batch, steps, size)")
    lags = inputs.shape[1] - 1 if lags is None else lags
    check_counts(lags=lags, positions=len(inputs))
    if lags >= inputs.shape[1]:
        raise SettingError(f"{lags} lags need inputs of {lags + 1} steps or more, not {inputs.shape[1]}")
    layers = unrollable(module)
    width = layers[-1].cell.output_size
    readout = torch.randn(width, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    readout = readout.to(layers[0].weights[0].device)
    given = loss or (lambda y: y @ (readout / readout.norm()))
    batch = [(inputs, given)]
    return measure(name or layers[0].cell.name, layers, iter(batch), len(inputs), lags, jacobian_positions, None)


def check_counts(**counts: int) -> None:
    """All are 1 or more."""
    for name, count in counts.items():
        if count < 1:
            raise SettingError(f"{name} must be 1 or more, not {count}")


def pieces(layers: Sequence[UnrolledLayer], positions: int, lags: int) -> int:
    """In how many pieces the places are looked at, so that memory is bounded."""
    numbers = PER_UNIT * positions * (lags + 1) * sum(layer.cell.hidden_size for layer in layers)
    return min(positions, 1 + numbers // NUMBERS_AT_ONCE)


def measure(
    name: str,
    layers: Sequence[UnrolledLayer],
    batches: Iterator[tuple[Tensor, Loss]],
    positions: int,
    lags: int,
    jacobian_positions: int,
    progress: Progress | None,
) -> GradientFlow:
    """All figures of a network over batches of inputs (B, T, I) with the loss at their last step."""
    norms: list[dict[str, list[Tensor]]] = [{} for _ in layers]
    gates: list[dict[str, list[Tensor]]] = [{} for _ in layers]
    jacobians: list[JacobianCurve] = []
    done = 0
    for vectors, loss in batches:
        assert vectors.shape[1] > lags
        before, warming = initial_states(layers, len(vectors)), vectors[:, : -lags - 1]
        if warming.shape[1]:
            with torch.no_grad():
                before = unroll(layers, warming, before).states
        window = vectors[:, -lags - 1 :]
        if jacobian_positions and not jacobians:
            some = [tuple(tensor[:jacobian_positions] for tensor in state) for state in before]
            early = None if progress is None else lambda share: progress(JACOBIANS * share)
            jacobians = jacobian_curves(layers, window[:jacobian_positions], some, progress=early)
        for depth, found in enumerate(_gradient_norms(layers, window, before, loss)):
            for of, tensor in found.norms.items():
                norms[depth].setdefault(of, []).append(tensor)
            for gate, mean in found.gate_means.items():
                gates[depth].setdefault(gate, []).append(mean)
        done += len(vectors)
        if progress is not None:
            first = JACOBIANS if jacobian_positions else 0.0
            progress(first + (1 - first) * done / positions)
    curves = [
        make_curve(depth, of, torch.cat(parts).cpu().numpy())
        for depth, found in enumerate(norms)
        for of, parts in found.items()
    ]
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
        gate_mean=[{gate: float(torch.cat(means).mean()) for gate, means in found.items()} for found in gates],
    )


@dataclass(frozen=True)
class LayerNorms:
    """Norms by name, each (B, lags + 1), the lag rising; the mean of each gate in each row (B,)."""

    norms: dict[str, Tensor]
    gate_means: dict[str, Tensor]


def _gradient_norms(
    layers: Sequence[UnrolledLayer], x: Tensor, states: Sequence[State], loss: Loss
) -> list[LayerNorms]:
    """Each layer's norms of d loss_t / d state_(t-k), t being the last step of x (B, T, I), for k = 0 … T - 1."""
    leaves = [
        tuple(tensor.detach().requires_grad_() for tensor in state) for state in states
    ]  # so that there is a graph
    run = unroll(layers, x.detach(), leaves)
    total = loss(run.output[-1]).sum()  # rows do not depend on each other: each gets its own gradient
    nodes = [
        [getattr(gates, of) for gates in reversed(run.gates[depth])]
        for depth, layer in enumerate(layers)
        for of in layer.cell.states
    ]
    flat = torch.autograd.grad(total, [node for row in nodes for node in row], materialize_grads=True)
    gradients = (torch.stack(flat[begin : begin + len(run.output)]) for begin in range(0, len(flat), len(run.output)))
    found = []
    for depth, layer in enumerate(layers):
        own = {of: next(gradients) for of in layer.cell.states}  # each (lags + 1, B, size)
        norms = {of: gradient.norm(dim=2).T for of, gradient in own.items()}
        if layer.cell.keeps is not None:
            kept = torch.stack([getattr(gates, layer.cell.keeps) for gates in reversed(run.gates[depth])]).detach()
            direct = torch.cat([torch.ones_like(kept[:1]), kept[:-1].cumprod(dim=0)])  # (lags + 1, B, H)
            norms["path"] = (direct * own[layer.cell.memory][0]).norm(dim=2).T
        found.append(LayerNorms(norms, _gate_means(run.gates[depth], layer.cell.gate_names)))
    return found


def _gate_means(steps: Sequence[Any], names: Sequence[str]) -> dict[str, Tensor]:
    """The mean of each gate over steps and units; (B,)."""
    return {name: torch.stack([getattr(step, name) for step in steps]).detach().mean(dim=(0, 2)) for name in names}


def make_curve(layer: int, of: str, norms: np.ndarray) -> Curve:
    """The curve of norms (positions, lags + 1). A place without any gradient says nothing and is left out."""
    norms = norms[norms[:, 0] > 0]
    if not len(norms):
        raise ModelError("the loss does not depend on the states at all: are the output layer's weights zero?")
    lower, median, upper = np.quantile(norms / norms[:, :1], (0.25, 0.5, 0.75), axis=0)
    mean = norms.mean(axis=0) / norms[:, 0].mean()
    below = np.flatnonzero(median < FORGOTTEN)
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


def step_factor(curve: np.ndarray, fit: tuple[int, int] = FIT) -> float | None:
    """e to the slope of log curve over the lags between the two of `fit`, both included; of what there is of them, or
    of all lags from 1 where the curve is shorter. None where there are not two positive numbers."""
    first, last = fit if len(curve) > fit[0] + 1 else (1, fit[1])
    lags = np.arange(first, min(last, len(curve) - 1) + 1)
    lags = lags[curve[lags] > 0]
    if len(lags) < 2:
        return None
    return math.exp(np.polyfit(lags, np.log(curve[lags]), 1)[0])


def flow_table(flows: Sequence[GradientFlow]) -> Table:
    """Networks side by side: medians at some lags, the factor, the memory."""
    lags = [lag for lag in SHOWN if lag <= min(flow.lags for flow in flows)]
    rows = []
    for flow in flows:
        deep = len(flow.spectral_radius) > 1
        for curve in flow.curves:
            layer = f", layer {curve.layer}" if deep else ""
            what = f"through {flow.keeping_gate} alone" if curve.of == "path" else f"d{curve.of}"
            rows.append(
                [
                    f"{flow.name}{layer}: {what}",
                    *(f"{curve.median[lag]:.2g}" for lag in lags),
                    figure(curve.factor),
                    figure(curve.mean_factor),
                    f"> {flow.lags}" if curve.memory is None else str(curve.memory),
                ]
            )
    first = flows[0]
    notes = [
        f"the gradient of the next symbol's loss by the state k symbols before, relative to k = 0: medians of "
        f"{first.positions} places",
        f"factor: what a step back multiplies it by, fitted to the median (mean) over k = {FIT[0]} to {FIT[1]}",
        "memory: the first k at which less than 1 % is left",
    ]
    return Table(["gradient", *(f"k = {lag}" for lag in lags), "factor", "(mean)", "memory"], rows, notes=notes)


def jacobian_table(flows: Sequence[GradientFlow]) -> Table:
    """The largest singular values of networks' Jacobians, medians, by lag."""
    lags = sorted({lag for flow in flows for jacobian in flow.jacobians for lag in jacobian.lags})
    rows = []
    for flow in flows:
        for jacobian in flow.jacobians:
            layer = f", layer {jacobian.layer}" if len(flow.spectral_radius) > 1 else ""
            values = dict(zip(jacobian.lags, jacobian.median, strict=True))
            shown = [f"{values[lag]:.2g}" if lag in values else "" for lag in lags]
            rows.append([f"{flow.name}{layer}: d{jacobian.part}/d{jacobian.part}", *shown])
    title = "largest singular value of the Jacobian"
    return Table(["of the state k symbols before", *(f"k = {lag}" for lag in lags)], rows, title)


def radius_table(flows: Sequence[GradientFlow]) -> Table:
    """The spectral radius of the recurrent weights, and the mean of the gates."""
    rows = []
    for flow in flows:
        for depth, (radii, means) in enumerate(zip(flow.spectral_radius, flow.gate_mean, strict=True)):
            name = f"{flow.name}, layer {depth}" if len(flow.spectral_radius) > 1 else flow.name
            rows.append([name, *(", ".join(f"{k} {v:.2f}" for k, v in each.items()) for each in (radii, means))])
    return Table(["network", "spectral radius of W_hh", "mean of the gates"], rows)


def draw_flows(flows: Sequence[GradientFlow], path: str | Path) -> None:
    """The top layers' gradients by lag on a logarithmic scale, medians with quartiles: of the
    memory, and thinner of the LSTM's h. Where Jacobians were looked at, their largest singular values beside them."""
    wide = any(flow.jacobians for flow in flows)
    with picture(path, 13 if wide else 8, 5) as drawn:
        left, *more = drawn.subplots(1, 2 if wide else 1, squeeze=False)[0]
        for number, flow in enumerate(flows):
            colour = f"C{number % 10}"
            states = {curve.of for curve in flow.curves} - {"path", flow.memory_state}
            for of in (flow.memory_state, *sorted(states)):
                curve, main = flow.curve(of), of == flow.memory_state
                lags = range(len(curve.median))
                label = f"{flow.name}: d{of}" + ("" if curve.factor is None else f", x {curve.factor:.3f} a step")
                left.plot(
                    lags, curve.median, color=colour, label=label, lw=2 if main else 0.8, ls="-" if main else "--"
                )
                if main:
                    left.fill_between(lags, curve.lower, curve.upper, color=colour, alpha=0.2, lw=0)
            for jacobian in flow.jacobians[-1:] if wide else []:
                more[0].plot(jacobian.lags, jacobian.median, "o-", color=colour, label=flow.name)
                more[0].fill_between(jacobian.lags, jacobian.lower, jacobian.upper, color=colour, alpha=0.2, lw=0)
        for axes in drawn.axes:
            axes.set_yscale("log")
            axes.set_xlabel("lag k")
            axes.grid(True, alpha=0.3)
        left.legend(fontsize=8, loc="upper left", bbox_to_anchor=(0, -0.12), ncols=2)
        left.axhline(FORGOTTEN, color="black", lw=0.8, ls=":")
        left.set_ylabel("|dLoss_t / dstate_(t-k)| relative to k = 0")
        if wide:
            more[0].set_ylabel("largest singular value of dstate_t / dstate_(t-k)")
