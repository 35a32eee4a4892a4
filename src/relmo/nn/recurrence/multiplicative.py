"""The multiplicative LSTM, whose recurrent transition depends on the input.

Krause et al. 2016, Multiplicative LSTM for sequence modelling (called mLSTM there, which is not xLSTM's matrix LSTM)
Radford et al. 2017, Learning to generate reviews and discovering sentiment (the form that is used)
Sutskever et al. 2011, Generating text with recurrent neural networks (the multiplicative network)
"""

from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn.functional import linear, pad

from relmo.nn.recurrence.base import BlockCell, Quantity, Record, State, gates, orthogonal_, state, unchanged

BLOCKS = ("m", "i", "f", "o", "g")  # order of the stacked weights that read x; those that read m start at i


class MultiplicativeLSTMCell(BlockCell):
    """LSTM whose gates read m, a product of the input and the previous output, in place of the previous output.

    m  = (W_im x) * (W_hm h)
    i  = sigmoid(W_ii x + W_mi m + b_i)
    f  = sigmoid(W_if x + W_mf m + b_f)
    o  = sigmoid(W_io x + W_mo m + b_o)
    g  = tanh(W_ig x + W_mg m + b_g)
    c' = f * c + i * g
    h' = o * tanh(c')

    variant       "openai": these equations, as in the code of the authors and of Radford et al. 2017;
                  "paper": g without tanh, and h' = tanh(c' * o)
    forget_bias   initial bias of the forget gate; the other biases start at 0

    The matrices that read m or h start orthogonal, each block by itself, and those that read x Xavier, which the paper
    leaves open.
    """

    name = "multiplicative"
    blocks = BLOCKS
    keeps = "f"
    recurrent = ("weight_hh", "weight_mh")

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        *,
        variant: Literal["openai", "paper"] = "openai",
        forget_bias: float = 1.0,
    ):
        super().__init__(input_size, hidden_size)
        if variant not in ("openai", "paper"):
            raise ValueError(f"Unknown variant {variant!r}; choose openai or paper.")
        self.variant, self.forget_bias = variant, forget_bias
        self.options = [] if variant == "openai" else ["the paper's output"]
        self.weight_ih = nn.Parameter(torch.empty(5 * hidden_size, input_size))
        self.weight_hh = nn.Parameter(torch.empty(hidden_size, hidden_size))
        self.weight_mh = nn.Parameter(torch.empty(4 * hidden_size, hidden_size))
        self.bias = nn.Parameter(torch.empty(4 * hidden_size))
        self.reset_parameters()

    def quantities(self) -> list[Quantity]:
        H = self.hidden_size
        limit = float("inf") if self.variant == "paper" else 1.0
        return [
            Quantity("h", (H,), "output", "output", -1.0, 1.0, initial=0.0),
            state("c", H),
            *gates(H, i="input gate", f="forget gate", o="output gate"),
            Quantity("g", (H,), "candidate", "candidate", -limit, limit),
            Quantity("m", (H,), "candidate", "intermediate state"),
        ]

    def equations(self) -> dict[str, str]:
        equations = {"m": "(W_im x) * (W_hm h)"}
        for block in ("i", "f", "o", "g"):
            equations[block] = f"sigmoid(W_i{block} x + W_m{block} m + b_{block})"
        equations["g"] = equations["g"].replace("sigmoid", "tanh")
        equations |= {"c": "f * c + i * g", "h": "o * tanh(c')"}
        if self.variant == "paper":
            equations |= {"g": "W_ig x + W_mg m + b_g", "h": "tanh(c' * o)"}
        return equations

    def named_weights(self) -> dict[str, Tensor]:
        """Return the weights by name: W_if reads x for the block f, W_mf reads m; W_hm reads h; b_f is a bias."""
        named = self.split_blocks(self.weight_ih, "W_i") | self.split_blocks(self.weight_mh, "W_m")
        return named | self.split_blocks(self.bias, "b_") | {"W_hm": self.weight_hh}

    def recurrent_matrices(self) -> dict[str, Tensor]:
        """Return the only matrix that reads the previous output, that of m.

        The gates read m, so their matrices map m and not h: their spectra say nothing of the recurrence by themselves.
        """
        return {"m": self.weight_hh}

    def reset_parameters(self) -> None:
        for matrix in self.weight_ih.chunk(5):
            nn.init.xavier_uniform_(matrix)
        for matrix in (self.weight_hh, *self.weight_mh.chunk(4)):
            orthogonal_(matrix)
        nn.init.zeros_(self.bias)
        nn.init.constant_(self.biases()["f"], self.forget_bias)

    def project_input(self, x: Tensor) -> Tensor:
        return linear(x, self.weight_ih, pad(self.bias, (self.hidden_size, 0)))  # m has no bias

    def step(self, x: Tensor, state: State, *, record: Record = unchanged) -> tuple[Tensor, State]:
        h, c = state
        H = self.hidden_size
        m = record("m", x[..., :H] * linear(h, self.weight_hh))
        i, f, o, g = (x[..., H:] + linear(m, self.weight_mh)).chunk(4, dim=-1)  # each (B, H)
        i, f, o = record("i", torch.sigmoid(i)), record("f", torch.sigmoid(f)), record("o", torch.sigmoid(o))
        g = record("g", g if self.variant == "paper" else torch.tanh(g))
        c = record("c", f * c + i * g)
        h = record("h", torch.tanh(c * o) if self.variant == "paper" else o * torch.tanh(c))
        return h, (h, c)

    def scan(self, x: Tensor, state: State, mask: Tensor | None = None) -> tuple[Tensor, State]:
        h, c = state
        dtype = torch.promote_types(h.dtype, torch.float32)
        with torch.autocast(x.device.type, enabled=False):
            steps = x.to(dtype).transpose(0, 1).contiguous()
            mask = None if mask is None else mask.T.unsqueeze(2)  # (T, B, 1)
            weights = self.weight_hh.to(dtype), self.weight_mh.to(dtype)
            hs, cs, *_ = _MultiplicativeSteps.apply(
                steps, h.to(dtype), c.to(dtype), *weights, mask, self.variant == "paper"
            )
        return hs.transpose(0, 1), (hs[-1].to(h.dtype), cs[-1].to(c.dtype))


class _MultiplicativeSteps(torch.autograd.Function):
    """All steps of the cell with a backward pass of its own, in which each weight gradient is one large product.

    Forward returns h and c after each step, and W_hm h, m and the gates i, f, o, g of each step for the backward pass.
    Only operations out of place are used, from which torch generates the rule for `vmap`.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(
        x: Tensor, h: Tensor, c: Tensor, weight_hh: Tensor, weight_mh: Tensor, mask: Tensor | None, is_paper: bool
    ) -> tuple[Tensor, ...]:
        H = h.shape[-1]
        from_h, into_gates = weight_hh.T.contiguous(), weight_mh.T.contiguous()
        rows: list[tuple[Tensor, ...]] = []
        for t, (x_m, x_gates) in enumerate(zip(x[..., :H].unbind(0), x[..., H:].unbind(0), strict=True)):
            a = h @ from_h
            m = x_m * a
            z = torch.addmm(x_gates, m, into_gates)
            sigmoids, g = torch.sigmoid(z[:, : 3 * H]), z[:, 3 * H :] if is_paper else torch.tanh(z[:, 3 * H :])
            i, f, o = sigmoids.chunk(3, dim=1)
            new_c = torch.addcmul(f * c, i, g)
            new_h = torch.tanh(new_c * o) if is_paper else o * torch.tanh(new_c)
            if mask is not None:
                new_h, new_c = torch.where(mask[t], new_h, h), torch.where(mask[t], new_c, c)
            h, c = new_h, new_c
            rows.append((h, c, a, m, sigmoids, g))
        return tuple(torch.stack(tensors) for tensors in zip(*rows, strict=True))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        x, h, c, weight_hh, weight_mh, mask, ctx.is_paper = inputs
        ctx.mark_non_differentiable(*output[2:])
        ctx.save_for_backward(x, h, c, weight_hh, weight_mh, mask, *output)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_hs: Tensor, d_cs: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
        """Compute dL/dz = factor * dL/dc for the pre-activations of i, f, g, and factor * dL/du for that of o, where
        u is h, or in the paper's variant c * o. The factors of all steps follow from the forward pass at once."""
        x, h_0, c_0, weight_hh, weight_mh, mask, hs, cs, a, m, sigmoids, g = ctx.saved_tensors
        H = h_0.shape[-1]
        past_h, past_c = (torch.cat([first.unsqueeze(0), rest[:-1]]) for first, rest in ((h_0, hs), (c_0, cs)))
        i, f, o = sigmoids.chunk(3, dim=2)
        c = torch.addcmul(f * past_c, i, g) if mask is not None else cs
        if ctx.is_paper:
            to_u = 1 - torch.tanh(c * o).square()  # du/dh, of u = c * o
            to_c, to_o, to_g = to_u * o, to_u * c * o * (1 - o), i
        else:
            tanh_c = torch.tanh(c)
            to_c, to_o, to_g = o * (1 - tanh_c.square()), tanh_c * o * (1 - o), i * (1 - g.square())
        factors = torch.cat([g * i * (1 - i), past_c * f * (1 - f), to_o, to_g], dim=2)  # (T, B, 4H)
        d_h, d_c = torch.zeros_like(h_0), torch.zeros_like(c_0)
        rows: list[tuple[Tensor, Tensor]] = []
        for t in range(len(x) - 1, -1, -1):
            d_h, d_c = d_h + d_hs[t], d_c + d_cs[t]
            kept_h = kept_c = None
            if mask is not None:
                kept_h, kept_c = torch.where(mask[t], 0.0, d_h), torch.where(mask[t], 0.0, d_c)
                d_h, d_c = torch.where(mask[t], d_h, 0.0), torch.where(mask[t], d_c, 0.0)
            d_c = torch.addcmul(d_c, d_h, to_c[t])
            d_z = torch.cat([d_c, d_c, d_h, d_c], dim=1) * factors[t]
            d_m = d_z @ weight_mh
            d_h, d_c = (d_m * x[t, :, :H]) @ weight_hh, d_c * f[t]
            if kept_h is not None and kept_c is not None:
                d_h, d_c = d_h + kept_h, d_c + kept_c
            rows.append((d_z, d_m))
        d_z, d_m = (torch.stack(tensors[::-1]) for tensors in zip(*rows, strict=True))
        d_a = d_m * x[..., :H]
        d_hh = d_a.flatten(0, 1).T @ past_h.flatten(0, 1)
        d_mh = d_z.flatten(0, 1).T @ m.flatten(0, 1)
        return torch.cat([d_m * a, d_z], dim=2), d_h, d_c, d_hh, d_mh, None, None
