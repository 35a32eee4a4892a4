"""How much a layer's recurrence stretches a disturbance: the largest singular value of J = ds_t/ds_(t-k) by the lag k,
and the spectral radius of the recurrent weights.

s is what the layer carries: h, or the LSTM's (h, c) as independent coordinates; the layer's input is held fixed. Where
several states are carried, each is a part of J: "h" and "c" of an LSTM are the blocks dh_t/dh_(t-k) and dc_t/dc_(t-k).

Small states get the whole matrix, a product of the steps' own Jacobians, and its singular values. For large ones no
matrix is formed: forward- and reverse-mode products J v and J^T u, as in power iteration on J^T J, and of all
directions met so far the best one (Golub & Kahan 1965), which needs far fewer of them.

    Pascanu et al. 2013, On the difficulty of training recurrent neural networks
    Saxe et al. 2014, Exact solutions to the nonlinear dynamics of learning (why singular values, not eigenvalues)
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate

import torch
from torch import Tensor
from torch.func import jacrev, jvp, vjp, vmap

from relmo.analysis.core.unrolled import UnrolledLayer, unroll
from relmo.nn.cells import State
from relmo.settings.arguments import Progress

LAGS = (1, 2, 3, 5, 7, 10, 15, 20, 30, 40, 60, 80, 100, 150, 200, 300, 500)
"""The lags that are looked at, as far as the window goes."""
EXACT = 256  # the largest state whose Jacobian is formed
ITERATIONS, FEWEST, TOLERANCE = 60, 4, 1e-5  # of the iteration
STEPS_AT_ONCE = 8  # whose own Jacobians are made together


@dataclass(frozen=True)
class JacobianCurve:
    """The largest singular value by lag: median, quartiles over the places. `part` is a state, or "state", all of
    them."""

    layer: int
    part: str
    lags: list[int]
    median: list[float]
    lower: list[float]
    upper: list[float]
    exact: bool


def jacobian_curves(
    layers: Sequence[UnrolledLayer],
    x: Tensor,
    states: Sequence[State],
    *,
    exact: bool | None = None,
    progress: Progress | None = None,
) -> list[JacobianCurve]:
    """Of every layer, over windows x (B, T, I) that are read from these states on; t is the last step. `exact` says
    whether matrices are formed; where it is not given, the state's size does. `progress` is told of the share that is
    done."""
    with torch.no_grad():
        run = unroll(layers, x, states)
    curves = []
    for depth, layer in enumerate(layers):
        past = [torch.cat(states[depth], dim=1)]
        past += [torch.cat(layer.cell.next_state(gates), dim=1) for gates in run.gates[depth]]
        path = torch.stack(past)  # (T + 1, B, S)
        lags = [lag for lag in LAGS if lag <= x.shape[1]]
        form = path.shape[2] <= EXACT if exact is None else exact
        find = _exact_norms if form else _iterated_norms
        told = (lambda share: None) if progress is None else partial(_of_layer, progress, depth, len(layers))
        for part, values in find(layer, run.inputs[depth].transpose(0, 1), path, lags, told).items():  # (lags, B)
            quartiles = torch.quantile(values, values.new_tensor([0.25, 0.5, 0.75]), dim=1)
            lower, median, upper = quartiles.tolist()
            curves.append(JacobianCurve(depth, part, lags, median, lower, upper, form))
    return curves


def _of_layer(progress: Progress, depth: int, layers: int, share: float) -> None:
    """Tells of a layer's share as one of the whole."""
    progress((depth + share) / layers)


def _parts_of(layer: UnrolledLayer) -> dict[str, slice]:
    """The coordinates of the state's parts."""
    names, sizes = layer.cell.states, layer.cell.state_sizes
    if len(names) == 1:
        return {names[0]: slice(None)}
    ends = [0, *accumulate(sizes)]
    return {name: slice(*ends[n : n + 2]) for n, name in enumerate(names)} | {"state": slice(None)}


def _step_state(layer: UnrolledLayer, x: Tensor, s: Tensor) -> Tensor:
    """One step of the whole state: x (B, I), s (B, S) -> (B, S)."""
    state = s.split(list(layer.cell.state_sizes), dim=1)
    return torch.cat(layer.cell.next_state(layer.gates(x, state)), dim=1)


def _exact_norms(
    layer: UnrolledLayer, x: Tensor, path: Tensor, lags: Sequence[int], tell: Progress
) -> dict[str, Tensor]:
    """x (T, B, I), the states before each step and after the last (T + 1, B, S) -> by part, (lags, B)."""

    def one(x: Tensor, s: Tensor) -> Tensor:
        return _step_state(layer, x.unsqueeze(0), s.unsqueeze(0)).squeeze(0)

    own = vmap(vmap(jacrev(one, argnums=1)))  # (steps, B, S, S)
    parts = _parts_of(layer)
    found: dict[str, list[Tensor]] = {part: [] for part in parts}
    product = torch.eye(path.shape[2], dtype=path.dtype, device=path.device)
    lag = 0
    for end in range(len(x), len(x) - max(lags), -STEPS_AT_ONCE):
        begin = max(end - STEPS_AT_ONCE, len(x) - max(lags))
        for jacobian in reversed(own(x[begin:end], path[begin:end]).detach().unbind(0)):
            product = product @ jacobian  # the step before stands to the right: J = A_t A_(t-1) …
            lag += 1
            if lag in lags:
                for part, at in parts.items():
                    found[part].append(torch.linalg.matrix_norm(product[:, at, at], ord=2))
            tell(lag / max(lags))
    return {part: torch.stack(values) for part, values in found.items()}


def _iterated_norms(
    layer: UnrolledLayer, x: Tensor, path: Tensor, lags: Sequence[int], tell: Progress
) -> dict[str, Tensor]:
    """As `_exact_norms`. Each lag begins with the direction in which the shorter one before it was largest."""
    found: dict[str, Tensor] = {}
    parts = _parts_of(layer)
    for number, (part, at) in enumerate(parts.items()):
        mask = torch.zeros_like(path[0, :1])
        mask[:, at] = 1.0
        generator = torch.Generator().manual_seed(0)
        noise = torch.randn(path[0].shape, dtype=path.dtype, generator=generator).to(path.device)
        noise = direction(noise * mask)  # a singular vector alone would lead to no other
        u, values = torch.zeros_like(noise), []
        done = 0
        for lag in lags:
            value, u = _largest_singular(layer, x[len(x) - lag :], path[-1 - lag], mask, u + noise)
            values.append(value)
            done += lag
            tell((number + done / sum(lags)) / len(parts))
        found[part] = torch.stack(values)
    return found


def _largest_singular(layer: UnrolledLayer, x: Tensor, start: Tensor, mask: Tensor, u: Tensor) -> tuple[Tensor, Tensor]:
    """Golub-Kahan iteration from a direction u (B, S) of the last state: orthonormal u_j and v_j in which J has two
    diagonals,

        J v_j = beta_{j-1} u_{j-1} + alpha_j u_j        J^T u_j = alpha_j v_j + beta_j v_{j+1}

    so that its largest singular value is nearly that of the small matrix. -> the values (B,), the left vectors."""

    def run(s: Tensor) -> Tensor:
        for x_t in x:
            s = _step_state(layer, x_t, s)
        return s

    pull = vjp(run, start)[1]
    v = direction(pull(u)[0].detach() * mask)
    us: list[Tensor] = []
    vs, value = [v], torch.zeros_like(start[:, 0])
    small = start.new_zeros(len(start), ITERATIONS, ITERATIONS + 1)
    for j in range(min(ITERATIONS, int(mask.sum()))):
        u = _apart(jvp(run, (start,), (v,))[1].detach() * mask, us)
        small[:, j, j] = u.norm(dim=1)
        us.append(direction(u))
        v = _apart(pull(us[-1])[0].detach() * mask, vs)
        small[:, j, j + 1] = v.norm(dim=1)
        v = direction(v)
        vs.append(v)
        left, values, _ = torch.linalg.svd(small[:, : j + 1, : j + 2], full_matrices=False)
        before, value = value, values[:, 0]
        u = torch.einsum("bj,jbs->bs", left[:, :, 0], torch.stack(us))
        if j >= FEWEST and bool(((value - before).abs() <= TOLERANCE * value).all()):
            break
    return value, u


def _apart(v: Tensor, others: Sequence[Tensor]) -> Tensor:
    """v (B, S) without what it has of the other, orthonormal, directions."""
    for _ in range(2):  # once more, for what rounding leaves
        for other in others:
            v = v - (v * other).sum(dim=1, keepdim=True) * other
    return v


def direction(v: Tensor) -> Tensor:
    """Rows (B, S) of length 1; zeros stay zeros."""
    length = v.norm(dim=1, keepdim=True)
    return v / torch.where(length > 0, length, 1.0)


def spectral_radii(layer: UnrolledLayer) -> dict[str, float]:
    """The largest absolute eigenvalue of the matrix by which each gate reads h."""
    return {gate: spectral_radius(matrix) for gate, matrix in layer.recurrent_matrices().items()}


def spectral_radius(matrix: Tensor) -> float:
    """The largest absolute value of a square matrix's eigenvalues."""
    return float(torch.linalg.eigvals(matrix.double().cpu()).abs().max())
