"""The sLSTM, an LSTM with exponential input gates and a normalised memory.

Beck et al. 2024, xLSTM: Extended long short-term memory
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn.functional import logsigmoid

from relmo.nn.recurrence.base import BlockCell, Quantity, Record, State, gates, small_normal_, state, unchanged

BLOCKS = ("i", "f", "z", "o")  # order of the stacked weights
PIECE_STEPS = 32  # steps whose tensors fit the processor's cache
NEVER = -1e4  # logarithm of the weight of the memory before the first step: its exponential is 0 in every precision


class SLSTMCell(BlockCell):
    """LSTM with an exponential input gate, whose memory is a weighted mean of the candidates.

    m' = max(log(sigmoid(W_if x + R_f h + b_f)) + m, W_ii x + R_i h + b_i)
    i  = exp(W_ii x + R_i h + b_i - m')
    f  = sigmoid(W_if x + R_f h + b_f) * exp(m - m')
    z  = tanh(W_iz x + R_z h + b_z)
    o  = sigmoid(W_io x + R_o h + b_o)
    c' = f * c + i * z
    n' = f * n + i
    h' = o * c' / n'

    The gates i and f are scaled by exp(-m), which keeps them between 0 and 1 and cancels in h'. As nothing is carried
    into the first step, m' is the pre-activation of i there.

    heads   number of groups of units that read only their own group of h: R_i, R_f, R_z and R_o are block-diagonal;
            by default 4, 2 or 1, the most that divide H

    The matrices R start at 0, the bias of f falls from 5 to -7 over the units of a head, and the other biases start at
    0, as in the authors' code for the first block. Their block is not part of the cell: the convolution over the input
    of i and f, the norm of h' per head, the residual connection and the feed-forward layer.
    """

    name = "slstm"
    blocks = BLOCKS
    keeps = "f"

    def __init__(self, input_size: int, hidden_size: int, *, heads: int | None = None):
        super().__init__(input_size, hidden_size)
        self.heads, d = self.split_heads(heads)
        self.weight_ih = nn.Parameter(torch.empty(4 * hidden_size, input_size))
        self.weight_hh = nn.Parameter(torch.empty(self.heads, 4 * d, d))
        self.bias = nn.Parameter(torch.empty(4 * hidden_size))
        self.reset_parameters()

    def quantities(self) -> list[Quantity]:
        H = self.hidden_size
        return [
            Quantity("h", (H,), "output", "output", -1.0, 1.0, initial=0.0),
            state("c", H),
            Quantity("n", (H,), "normaliser", "normaliser", low=0.0, initial=0.0),
            state("m", H, role="stabiliser", initial=NEVER),
            *gates(H, i="input gate", f="forget gate", o="output gate"),
            Quantity("z", (H,), "candidate", "candidate", -1.0, 1.0),
        ]

    def equations(self) -> dict[str, str]:
        i, f, z, o = (f"W_i{block} x + R_{block} h + b_{block}" for block in BLOCKS)
        return {
            "m": f"max(log(sigmoid({f})) + m, {i})",
            "i": f"exp({i} - m')",
            "f": f"sigmoid({f}) * exp(m - m')",
            "z": f"tanh({z})",
            "o": f"sigmoid({o})",
            "c": "f * c + i * z",
            "n": "f * n + i",
            "h": "o * c' / n'",
        }

    def named_weights(self) -> dict[str, Tensor]:
        """Return the weights by name: W_if reads x for the block f, R_f (heads, d, d) reads h; b_f is a bias."""
        heads = {f"R_{block}": matrices for block, matrices in self._matrices_of_heads().items()}
        return self.split_blocks(self.weight_ih, "W_i") | heads | self.split_blocks(self.bias, "b_")

    def recurrent_matrices(self) -> dict[str, Tensor]:
        """Return the block-diagonal matrices (H, H) with which the gates and the candidate read h."""
        return {block: torch.block_diag(*matrices) for block, matrices in self._matrices_of_heads().items()}

    def _matrices_of_heads(self) -> dict[str, Tensor]:
        return dict(zip(BLOCKS, self.weight_hh.chunk(4, dim=1), strict=True))

    @torch.no_grad()
    def reset_parameters(self) -> None:
        small_normal_(self.weight_ih)
        nn.init.zeros_(self.weight_hh)
        nn.init.zeros_(self.bias)
        share = torch.linspace(0, 1, self.hidden_size // self.heads)
        self.bias[self.hidden_size : 2 * self.hidden_size] = (5 - 12 * share**0.3).repeat(self.heads)

    def step(self, x: Tensor, state: State, *, record: Record = unchanged) -> tuple[Tensor, State]:
        h, c, n, m = state
        blocks = self.weight_hh.unflatten(1, (4, -1))  # (heads, 4, d, d)
        from_h = torch.einsum("bkd,kged->bgke", h.unflatten(-1, (self.heads, -1)), blocks).flatten(1)  # (B, 4H)
        log_i, f, z, o = (x + from_h).chunk(4, dim=-1)  # each (B, H)
        past_m = logsigmoid(f) + m
        m = record("m", torch.maximum(past_m, log_i))
        i, f = record("i", torch.exp(log_i - m)), record("f", torch.exp(past_m - m))
        z, o = record("z", torch.tanh(z)), record("o", torch.sigmoid(o))
        c, n = record("c", f * c + i * z), record("n", f * n + i)
        h = record("h", o * c / n)
        return h, (h, c, n, m)

    def scan(self, x: Tensor, state: State, mask: Tensor | None = None) -> tuple[Tensor, State]:
        dtype = torch.promote_types(state[0].dtype, torch.float32)
        with torch.autocast(x.device.type, enabled=False):
            # (B, T, 4H) -> (T, heads, B, 4d): the states of a head are the rows of one product
            steps = x.to(dtype).unflatten(-1, (4, self.heads, -1)).permute(1, 3, 0, 2, 4).flatten(3).contiguous()
            start = [part.to(dtype).unflatten(-1, (self.heads, -1)).transpose(0, 1).contiguous() for part in state]
            pieces = steps.split(PIECE_STEPS)
            masks = [None] * len(pieces) if mask is None else mask.T[:, None, :, None].split(PIECE_STEPS)
            weight, outputs = self.weight_hh.to(dtype), []
            for piece, inside in zip(pieces, masks, strict=True):  # inside (T, 1, B, 1)
                hs, *memory = _SLSTMRecurrence.apply(piece, *start, weight, inside)[:4]
                start = [hs[-1], *memory]
                outputs.append(hs)
        final = (part.transpose(0, 1).flatten(1) for part in start)
        y = torch.cat(outputs).permute(2, 0, 1, 3).flatten(2)
        return y, tuple(part.to(before.dtype) for part, before in zip(final, state, strict=True))


class _SLSTMRecurrence(torch.autograd.Function):
    """All steps of the cell with a backward pass of its own, in which each weight gradient is one large product.

    Forward returns h (heads, B, d) after each step, c, n and m after the last one, and for the backward pass c, n, the
    pre-activation of f, and i, f, o and z of each step. Only operations out of place are used, from which torch
    generates the rule for `vmap`.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(
        x: Tensor, h: Tensor, c: Tensor, n: Tensor, m: Tensor, weight: Tensor, mask: Tensor | None
    ) -> tuple[Tensor, ...]:
        from_h = weight.mT.contiguous()
        rows: list[tuple[Tensor, ...]] = []
        for t, x_t in enumerate(x.unbind(0)):
            log_i, a_f, z, o = torch.baddbmm(x_t, h, from_h).chunk(4, dim=2)  # each (heads, B, d)
            past_m = logsigmoid(a_f) + m
            new_m = torch.maximum(past_m, log_i)
            i, f, z, o = torch.exp(log_i - new_m), torch.exp(past_m - new_m), torch.tanh(z), torch.sigmoid(o)
            new = [torch.addcmul(f * c, i, z), torch.addcmul(i, f, n), new_m]
            new.insert(0, o * new[0] / new[1])
            if mask is not None:
                new = [torch.where(mask[t], after, before) for after, before in zip(new, (h, c, n, m), strict=True)]
            h, c, n, m = new
            rows.append((h, c, n, a_f, i, f, o, z))
        hs, *saved = (torch.stack(tensors) for tensors in zip(*rows, strict=True))
        return hs, c, n, m, *saved

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        ctx.mark_non_differentiable(*output[4:])
        ctx.save_for_backward(*inputs[1:], *output)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_hs: Tensor, d_c: Tensor, d_n: Tensor, d_m: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
        """Compute the gradients of the pre-activations step by step, with factors from the forward pass.

        The gradient of m' other than through the scale of c' and n' is e = dm - c' dc - n' dn. It is zero unless the
        loss reads these states themselves, and max(…) passes it to m or to the input gate.
        """
        h_0, c_0, n_0, _, weight, mask, hs, c, n, _, cs, ns, a_f, i, f, o, z = ctx.saved_tensors
        past_h, past_c, past_n = (
            torch.cat([first.unsqueeze(0), rest[:-1]]) for first, rest in ((h_0, hs), (c_0, cs), (n_0, ns))
        )
        is_past = (f >= i).to(f)  # the larger of the two is 1: whether m' = log f + m
        to_a = torch.sigmoid(-a_f)
        to_c = o / ns
        if mask is not None:  # a step that keeps the state has the gates i = 0 and f = 1, and reads nothing
            i, to_a, to_c = (torch.where(mask, factor, 0.0) for factor in (i, to_a, to_c))
            f, is_past, ns = (torch.where(mask, factor, 1.0) for factor in (f, is_past, ns))  # n may still be 0
        to_o = to_c * cs
        to_n, to_o, to_z = to_o / ns, to_o * (1 - o), i * (1 - z.square())
        from_i, from_c, from_n = i * z, f * past_c, f * past_n
        e, d_h = d_m - c * d_c - n * d_n, torch.zeros_like(h_0)
        rows: list[Tensor] = []
        for t in range(len(f) - 1, -1, -1):
            d_h = d_h + d_hs[t]
            d_c, d_n = torch.addcmul(d_c, d_h, to_c[t]), torch.addcmul(d_n, d_h, to_n[t], value=-1)
            kept = e * is_past[t]
            d_i = torch.addcmul(torch.addcmul(e - kept, d_c, from_i[t]), d_n, i[t])
            d_m = torch.addcmul(torch.addcmul(kept, d_c, from_c[t]), d_n, from_n[t])
            rows.append(torch.cat([d_i, d_m * to_a[t], d_c * to_z[t], d_h * to_o[t]], dim=2))
            before = rows[-1] @ weight
            d_h = before if mask is None else before + torch.where(mask[t], 0.0, d_h)
            d_c, d_n, e = d_c * f[t], d_n * f[t], kept
        d_x = torch.stack(rows[::-1])
        d_weight = d_x.transpose(0, 1).flatten(1, 2).mT @ past_h.transpose(0, 1).flatten(1, 2)
        return d_x, d_h, d_c, d_n, d_m, d_weight, None
