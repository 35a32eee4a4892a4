"""The rotational unit of memory, whose recurrence is a rotation that depends on the input.

Dangovski et al. 2017, Rotational unit of memory
Dangovski et al. 2019, Rotational unit of memory: a novel representation unit for RNNs with scalable applications
"""

import math

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from relmo.nn.recurrence.base import BlockCell, Quantity, Record, State, gate, orthogonal_, unchanged

BLOCKS = ("e", "t", "u")  # order of the stacked weights that read x; those that read h start at t
EPSILON = 1e-12  # smallest squared norm, as in the authors' code


class RUMCell(BlockCell):
    """A cell that rotates the previous output, by the rotation from the embedded input e to the target t.

    u  = sigmoid(W_iu x + W_hu h + b_u)
    e  = W_ie x + b_e
    t  = W_it x + W_ht h + b_t
    p  = e / norm(e)
    q  = t / norm(t)
    r  = h - 2 * dot(p + q, h) / dot(p + q, p + q) * (p + q) + 2 * dot(p, h) * q
    g  = relu(e + r)
    h' = u * h + (1 - u) * g

    The map of h to r rotates p to q in the plane of both and leaves vectors orthogonal to it as they are. If e points
    away from t, or one of them is zero, this plane is undefined, and the map is a reflection.

    rotations     0: this rotation alone (lambda in the paper); 1: the product R of all rotations so far, and r = R' h
    eta           norm to which h' is scaled; None leaves it
    forget_bias   initial bias of u; that of t starts at 1 and that of e at 0, and each matrix orthogonal
    """

    name = "rum"
    blocks = BLOCKS
    keeps: str | None = "u"

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        *,
        rotations: int = 0,
        eta: float | None = None,
        forget_bias: float = 1.0,
    ):
        super().__init__(input_size, hidden_size)
        if rotations not in (0, 1):
            raise ValueError(f"rotations must be 0 or 1, not {rotations}.")
        if eta is not None and not eta > 0:
            raise ValueError(f"eta must be positive, not {eta}.")
        self.rotations, self.eta, self.forget_bias = rotations, eta, forget_bias
        self.keeps = None if rotations or eta is not None else self.keeps
        self.options = ["a product of rotations"] * rotations + ([] if eta is None else [f"outputs of norm {eta:g}"])
        self.weight_ih = nn.Parameter(torch.empty(3 * hidden_size, input_size))
        self.weight_hh = nn.Parameter(torch.empty(2 * hidden_size, hidden_size))
        self.bias = nn.Parameter(torch.empty(3 * hidden_size))
        self.reset_parameters()

    def quantities(self) -> list[Quantity]:
        H = self.hidden_size
        R = Quantity("R", (H, H), "memory", "product of all rotations", -1.0, 1.0, initial="identity")
        return [
            Quantity("h", (H,), "output", "output", 0.0, math.inf if self.eta is None else self.eta, initial=0.0),
            *[R] * self.rotations,
            gate("u", H, description="update gate"),
            Quantity("e", (H,), "candidate", "embedded input"),
            Quantity("t", (H,), "candidate", "target of the rotation"),
            Quantity("p", (H,), "candidate", "direction of the embedded input", -1.0, 1.0),
            Quantity("q", (H,), "candidate", "direction of the target", -1.0, 1.0),
            Quantity("r", (H,), "candidate", "rotated output"),
            Quantity("g", (H,), "candidate", "candidate", 0.0),
        ]

    @property
    def identity(self) -> Tensor:
        """Initial value of R."""
        like = next(iter(self.weights().values()))
        return torch.eye(self.hidden_size, dtype=like.dtype, device=like.device)

    def equations(self) -> dict[str, str]:
        equations = {
            "u": "sigmoid(W_iu x + W_hu h + b_u)",
            "e": "W_ie x + b_e",
            "t": "W_it x + W_ht h + b_t",
            "p": "e / norm(e)",
            "q": "t / norm(t)",
            "r": "h - 2 * dot(p + q, h) / dot(p + q, p + q) * (p + q) + 2 * dot(p, h) * q",
            "g": "relu(e + r)",
            "h": "u * h + (1 - u) * g",
        }
        if self.rotations:
            R = "R - 2 * outer(R (p + q), p + q) / dot(p + q, p + q) + 2 * outer(R q, p)"
            equations |= {"R": R, "r": "R' h"}
        if self.eta is not None:
            equations["h"] = f"{self.eta} * ({equations['h']}) / norm({equations['h']})"
        return equations

    def reset_parameters(self) -> None:
        for matrix in (*self.weight_ih.chunk(3), *self.weight_hh.chunk(2)):
            orthogonal_(matrix)
        for bias, value in zip(self.bias.chunk(3), (0.0, 1.0, self.forget_bias), strict=True):
            nn.init.constant_(bias, value)

    def step(self, x: Tensor, state: State, *, record: Record = unchanged) -> tuple[Tensor, State]:
        h = state[0]
        x_e, x_t, x_u = x.chunk(3, dim=-1)  # each (B, H)
        h_t, h_u = linear(h, self.weight_hh).chunk(2, dim=-1)
        u = record("u", torch.sigmoid(x_u + h_u))
        e, t = record("e", x_e), record("t", x_t + h_t)
        p, q = record("p", normalise(e)), record("q", normalise(t))
        # A rotation from p to q is the reflection of p to -p followed by that of -p to q, along m. Unlike the sine and
        # a second axis of the plane, m has a finite gradient where p and q agree.
        m = normalise(p + q)
        if self.rotations:
            R = state[1].to(m.dtype)
            with torch.autocast(R.device.type, enabled=False):  # in low precision the product soon ceases to rotate
                along_m, along_q = (R @ torch.stack([m, q], dim=-1)).unsqueeze(-2).unbind(-1)  # each (B, H, 1)
                R = record("R", R - 2 * along_m * m.unsqueeze(-2) + 2 * along_q * p.unsqueeze(-2))
                rotated = (R @ h.to(R.dtype).unsqueeze(-1)).squeeze(-1)
        else:
            rotated = h - 2 * dot(m, h) * m + 2 * dot(p, h) * q
        g = record("g", torch.relu(e + record("r", rotated)))
        h = u * h + (1 - u) * g
        h = record("h", h if self.eta is None else self.eta * normalise(h))
        return h, (h, R) if self.rotations else (h,)


def dot(a: Tensor, b: Tensor) -> Tensor:
    """Return the scalar products of vectors (B, H), as (B, 1)."""
    return (a * b).sum(-1, keepdim=True)


def normalise(x: Tensor) -> Tensor:
    """Scale vectors (B, H) to length 1, at least in float32; the zero vector stays and has a finite gradient."""
    x = x.to(torch.promote_types(x.dtype, torch.float32))
    return x / dot(x, x).clamp(min=EPSILON).sqrt()
