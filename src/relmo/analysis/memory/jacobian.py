"""Jacobians of recurrent layers over many steps: their largest singular values by lag, and spectral radii of weights
(Pascanu et al. 2013, On the difficulty of training recurrent neural networks;  Saxe et al. 2014, Exact solutions to the
nonlinear dynamics of learning in deep linear neural networks)."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

import torch
from torch import Tensor
from torch.func import jacrev, jvp, vjp, vmap

from relmo.analysis.core.show import split_progress
from relmo.analysis.core.stack import StackLayer, unroll
from relmo.nn.recurrence.base import Cell, State
from relmo.settings.fields import Progress

JACOBIAN_LAGS = (1, 2, 3, 5, 7, 10, 15, 20, 30, 40, 60, 80, 100, 150, 200, 300, 500)
MAX_EXACT_SIZE = 256  # of a state whose Jacobian is formed
MAX_ITERATIONS, MIN_ITERATIONS, TOLERANCE = 60, 4, 1e-5
CHUNK_STEPS = 8  # steps whose Jacobians are computed together


@dataclass(frozen=True)
class JacobianCurve:
    """Largest singular value by lag, median and quartiles over the positions; `part` is a state, or "state" for all."""

    layer: int
    part: str
    lags: list[int]
    median: list[float]
    lower: list[float]
    upper: list[float]
    exact: bool


def content_states(cell: Cell) -> list[str]:
    """Return the names of outputs and memories; the loss need not depend on a stabiliser of the last step."""
    return [name for name in cell.states if cell.specs[name].role in ("output", "memory")]


def jacobian_curves(
    layers: Sequence[StackLayer],
    x: Tensor,
    states: Sequence[State],
    *,
    exact: bool | None = None,
    progress: Progress | None = None,
) -> list[JacobianCurve]:
    """Return the largest singular values of J = ds_t/ds_(t-k) of every layer over windows x (B, T, I) read from these
    states; t is the last step, and the layer's input is fixed. s is the layer's state: h, or the LSTM's (h, c) as
    independent coordinates, whose blocks are curves too. `exact` forms matrices, by default if the state is small.
    """
    with torch.no_grad():
        run = unroll(layers, x, states)
    lags = [lag for lag in JACOBIAN_LAGS if lag <= x.shape[1]]
    curves = []
    for depth, callback in enumerate(split_progress(progress, [1.0] * len(layers))):
        layer = layers[depth]
        path = torch.stack([flatten_state(state) for state in (states[depth], *run.path[depth])])  # (T + 1, B, S)
        is_exact = path.shape[2] <= MAX_EXACT_SIZE if exact is None else exact
        compute_norms = _compute_exact_norms if is_exact else _iterate_norms
        names, parts = layer.cell.states, {layer.cell.states[0]: slice(None)}
        if len(names) > 1:
            bounds = pairwise([0, *accumulate(layer.cell.sizes[name] for name in names)])
            parts = {name: slice(*bound) for name, bound in zip(names, bounds, strict=True)}
            parts = {name: parts[name] for name in content_states(layer.cell)} | {"state": slice(None)}
        norms_by_part = compute_norms(layer, run.inputs[depth].transpose(0, 1), path, parts, lags, callback)
        for part, norms in norms_by_part.items():  # (lags, B)
            lower, median, upper = torch.quantile(norms, norms.new_tensor([0.25, 0.5, 0.75]), dim=1).tolist()
            curves.append(JacobianCurve(depth, part, lags, median, lower, upper, is_exact))
    return curves


def _step_state(layer: StackLayer, x: Tensor, s: Tensor) -> Tensor:
    """Compute one step of the concatenated state: x (B, I), s (B, S) -> (B, S)."""
    cell = layer.cell
    parts = s.split([cell.sizes[name] for name in cell.states], dim=1)
    state = tuple(part.view(-1, *cell.specs[name].shape) for part, name in zip(parts, cell.states, strict=True))
    return flatten_state(cell(x, state)[1])


def flatten_state(state: State) -> Tensor:
    """Concatenate the states (B, *shape) of a layer to (B, S)."""
    return torch.cat([tensor.flatten(1) for tensor in state], dim=1)


def _compute_exact_norms(
    layer: StackLayer, x: Tensor, path: Tensor, parts: dict[str, slice], lags: Sequence[int], progress: Progress
) -> dict[str, Tensor]:
    """Return norms (lags, B) by part, from x (T, B, I) and the states around its steps (T + 1, B, S)."""

    def step(x: Tensor, s: Tensor) -> Tensor:
        return _step_state(layer, x.unsqueeze(0), s.unsqueeze(0)).squeeze(0)

    compute_jacobians = vmap(vmap(jacrev(step, argnums=1)))  # (steps, B, S, S)
    norms: dict[str, list[Tensor]] = {part: [] for part in parts}
    product = torch.eye(path.shape[2], dtype=path.dtype, device=path.device)
    lag = 0
    for end in range(len(x), len(x) - max(lags), -CHUNK_STEPS):
        begin = max(end - CHUNK_STEPS, len(x) - max(lags))
        for jacobian in reversed(compute_jacobians(x[begin:end], path[begin:end]).detach().unbind(0)):
            product = product @ jacobian  # earlier steps are multiplied from the right: J = A_t A_(t-1) …
            lag += 1
            if lag in lags:
                for part, at in parts.items():
                    norms[part].append(torch.linalg.matrix_norm(product[:, at, at], ord=2))
            progress(lag / max(lags))
    return {part: torch.stack(values) for part, values in norms.items()}


def _iterate_norms(
    layer: StackLayer, x: Tensor, path: Tensor, parts: dict[str, slice], lags: Sequence[int], progress: Progress
) -> dict[str, Tensor]:
    """Estimate the norms by products J v and J^T u; each lag starts from the best direction of the previous one."""
    norms: dict[str, Tensor] = {}
    for i, (part, at) in enumerate(parts.items()):
        mask = torch.zeros_like(path[0, :1])
        mask[:, at] = 1.0
        generator = torch.Generator().manual_seed(0)
        noise = torch.randn(path[0].shape, dtype=path.dtype, generator=generator).to(path.device)
        noise = _normalize(noise * mask)  # from a singular vector alone, the iteration would find no other
        u, values, done = torch.zeros_like(noise), [], 0
        for lag in lags:
            value, u = _find_largest_singular(layer, x[len(x) - lag :], path[-1 - lag], mask, u + noise)
            values.append(value)
            done += lag
            progress((i + done / sum(lags)) / len(parts))
        norms[part] = torch.stack(values)
    return norms


def _find_largest_singular(
    layer: StackLayer, x: Tensor, start: Tensor, mask: Tensor, u: Tensor
) -> tuple[Tensor, Tensor]:
    """Run the Golub-Kahan iteration (1965) from a direction u (B, S) of the last state; return values (B,) and left
    vectors. It finds orthonormal u_j and v_j in which J is bidiagonal,

        J v_j = beta_{j-1} u_{j-1} + alpha_j u_j        J^T u_j = alpha_j v_j + beta_j v_{j+1}

    so that its largest singular value is nearly that of the small matrix.
    """

    def run(s: Tensor) -> Tensor:
        for x_t in x:
            s = _step_state(layer, x_t, s)
        return s

    pull = vjp(run, start)[1]
    v = _normalize(pull(u)[0].detach() * mask)
    us: list[Tensor] = []
    vs, value = [v], torch.zeros_like(start[:, 0])
    small = start.new_zeros(len(start), MAX_ITERATIONS, MAX_ITERATIONS + 1)
    for j in range(min(MAX_ITERATIONS, int(mask.sum()))):
        u = _orthogonalize(jvp(run, (start,), (v,))[1].detach() * mask, us)
        small[:, j, j] = u.norm(dim=1)
        us.append(_normalize(u))
        v = _orthogonalize(pull(us[-1])[0].detach() * mask, vs)
        small[:, j, j + 1] = v.norm(dim=1)
        v = _normalize(v)
        vs.append(v)
        left_vectors, values, _ = torch.linalg.svd(small[:, : j + 1, : j + 2], full_matrices=False)
        previous, value = value, values[:, 0]
        u = torch.einsum("bj,jbs->bs", left_vectors[:, :, 0], torch.stack(us))
        if j >= MIN_ITERATIONS and bool(((value - previous).abs() <= TOLERANCE * value).all()):
            break
    return value, u


def _orthogonalize(v: Tensor, basis: Sequence[Tensor]) -> Tensor:
    """Remove the components of v (B, S) along orthonormal vectors."""
    for _ in range(2):  # twice, against rounding errors
        for vector in basis:
            v = v - (v * vector).sum(dim=1, keepdim=True) * vector
    return v


def _normalize(v: Tensor) -> Tensor:
    length = v.norm(dim=1, keepdim=True)
    return v / torch.where(length > 0, length, 1.0)  # zeros stay zeros


def spectral_radius(matrix: Tensor) -> float:
    """Return the largest absolute eigenvalue of a square matrix."""
    return float(torch.linalg.eigvals(matrix.double().cpu()).abs().max())
