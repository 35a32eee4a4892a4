"""The mLSTM, whose memory is a matrix per head and whose gates read the input alone, so that it is parallel over time.

Beck et al. 2024, xLSTM: Extended long short-term memory
"""

import math

import torch
from torch import Tensor, nn
from torch.nn.functional import layer_norm, linear, logsigmoid

from relmo.nn.recurrence.base import BlockCell, Quantity, Record, State, gates, small_normal_, state, unchanged

BLOCKS = ("q", "k", "v", "o", "i", "f")  # order of the stacked weights
CHUNK_STEPS = 48  # steps that are computed at once
EPSILON = 1e-6  # of the denominator
MAX_EXPONENT = 80.0  # the exponential of a larger one leaves the range of float32


class MLSTMCell(BlockCell):
    """Matrix LSTM: per head, the memory C stores values v under keys k, and the query q reads them.

    q  = W_iq x + b_q
    k  = (W_ik x + b_k) / sqrt(d)
    v  = W_iv x + b_v
    o  = sigmoid(W_io x + b_o)
    m' = max(log(sigmoid(W_if x + b_f)) + m, W_ii x + b_i)
    i  = exp(W_ii x + b_i - m')
    f  = sigmoid(W_if x + b_f) * exp(m - m')
    C' = f * C + i * outer(v, k)
    n' = f * n + i * k
    r  = C' q / (max(abs(dot(q, n')), exp(-m')) + 1e-6)
    h' = o * gain * layernorm(r)

    The gates i and f are scaled by exp(-m), which keeps them between 0 and 1 and cancels in r, but for 1e-6.

    heads   number of heads, each with d = H / heads units, a matrix of d x d, one gate i and one gate f; by default 4,
            2 or 1, the most that divide H

    The matrices of i and f start at 0, the bias of f rises from 3 to 6 over the heads, that of i is drawn from a normal
    distribution of standard deviation 0.1, and the other biases start at 0, as in the authors' code. Their block is not
    part of the cell: the projections to twice the size and back, the convolution over the input of q and k, the
    learnable skip and the residual connection; there, the gates read q, k and v, and o is silu without sigmoid.
    """

    name = "mlstm"
    blocks = BLOCKS
    keeps = "f"
    inputs = ("weight_ih", "weight_if")
    recurrent = ()

    def __init__(self, input_size: int, hidden_size: int, *, heads: int | None = None):
        super().__init__(input_size, hidden_size)
        self.heads, self.head_size = self.split_heads(heads, min_units=2)
        if self.head_size == 1:
            raise ValueError("A head of one unit is 0 after its norm; choose fewer heads or more hidden units.")
        self.rows = [hidden_size] * 4 + [self.heads] * 2
        self.weight_ih = nn.Parameter(torch.empty(4 * hidden_size, input_size))
        self.weight_if = nn.Parameter(torch.empty(2 * self.heads, input_size))  # of the gates i and f
        self.bias = nn.Parameter(torch.empty(sum(self.rows)))
        self.gain = nn.Parameter(torch.empty(hidden_size))
        self.reset_parameters()

    def quantities(self) -> list[Quantity]:
        H, heads, d = self.hidden_size, self.heads, self.head_size
        return [
            Quantity("h", (H,), "output", "output"),
            state("C", heads, d, d),
            state("n", heads, d, role="normaliser"),
            state("m", heads, role="stabiliser"),
            *gates(heads, i="input gate", f="forget gate"),
            *gates(H, o="output gate"),
            Quantity("q", (heads, d), "candidate", "query"),
            Quantity("k", (heads, d), "candidate", "key"),
            Quantity("v", (heads, d), "candidate", "value"),
            Quantity("r", (heads, d), "candidate", "value read from the memory"),
        ]

    def equations(self) -> dict[str, str]:
        return {
            "q": "W_iq x + b_q",
            "k": f"(W_ik x + b_k) / sqrt({self.head_size})",
            "v": "W_iv x + b_v",
            "o": "sigmoid(W_io x + b_o)",
            "m": "max(log(sigmoid(W_if x + b_f)) + m, W_ii x + b_i)",
            "i": "exp(W_ii x + b_i - m')",
            "f": "sigmoid(W_if x + b_f) * exp(m - m')",
            "C": "f * C + i * outer(v, k)",
            "n": "f * n + i * k",
            "r": f"C' q / (max(abs(dot(q, n')), exp(-m')) + {EPSILON:g})",
            "h": "o * gain * layernorm(r)",
        }

    def named_weights(self) -> dict[str, Tensor]:
        return super().named_weights() | {"gain": self.gain}

    def biases(self) -> dict[str, Tensor]:
        return dict(zip(BLOCKS, self.bias.split(self.rows), strict=True))

    def input_matrices(self) -> dict[str, Tensor]:
        """Return the matrices that read x: (H, I), but (heads, I) for the gates i and f."""
        return dict(zip(BLOCKS, (*self.weight_ih.chunk(4), *self.weight_if.chunk(2)), strict=True))

    @torch.no_grad()
    def reset_parameters(self) -> None:
        for matrix in self.weight_ih.chunk(4):
            small_normal_(matrix)
        for weight in (self.weight_if, self.bias):
            nn.init.zeros_(weight)
        biases = self.biases()
        nn.init.normal_(biases["i"], std=0.1)
        biases["f"].copy_(torch.linspace(3, 6, self.heads))
        nn.init.ones_(self.gain)

    def project_input(self, x: Tensor) -> Tensor:
        return linear(x, torch.cat([self.weight_ih, self.weight_if]), self.bias)

    def step(self, x: Tensor, state: State, *, record: Record = unchanged) -> tuple[Tensor, State]:
        C, n, m = state
        q, k, v, o, log_i, f = x.to(m.dtype).split(self.rows, dim=-1)
        q, k, v = (part.unflatten(-1, (self.heads, -1)) for part in (q, k, v))  # each (B, heads, d)
        q, k, v = record("q", q), record("k", k / math.sqrt(self.head_size)), record("v", v)
        o = record("o", torch.sigmoid(o))
        past_m = logsigmoid(f) + m
        m = record("m", torch.maximum(past_m, log_i))
        i, f = record("i", torch.exp(log_i - m)), record("f", torch.exp(past_m - m))  # each (B, heads)
        i_k = i.unsqueeze(-1) * k
        C = record("C", f[..., None, None] * C + v.unsqueeze(-1) * i_k.unsqueeze(-2))
        n = record("n", f.unsqueeze(-1) * n + i_k)
        # sums in place of matrix products, which autocast would compute in bfloat16
        r = record("r", self._divide((C * q.unsqueeze(-2)).sum(-1), (n * q).sum(-1), m))
        h = record("h", self._normalise(r, o))
        return h, (C, n, m)

    def _divide(self, numerator: Tensor, denominator: Tensor, m: Tensor) -> Tensor:
        """Return what the query reads, (…, d), from its products with C (…, d) and with n (…), and m (…)."""
        least = torch.exp(torch.clamp(-m, max=MAX_EXPONENT))
        return numerator / (torch.maximum(denominator.abs(), least) + EPSILON).unsqueeze(-1)

    def _normalise(self, r: Tensor, o: Tensor) -> Tensor:
        """Return the output (…, H) from the output gate and r (…, heads, d), normalised per head."""
        return o * self.gain.to(o.dtype) * layer_norm(r, (self.head_size,)).flatten(-2)

    def scan(self, x: Tensor, state: State, mask: Tensor | None = None) -> tuple[Tensor, State]:
        dtype = torch.promote_types(state[0].dtype, torch.float32)
        with torch.autocast(x.device.type, enabled=False):
            C, n, m = (part.to(dtype) for part in state)
            *qkv, o, log_i, f = x.to(dtype).split(self.rows, dim=-1)
            q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in qkv)  # each (B, heads, T, d)
            k = k / math.sqrt(self.head_size)
            log_i, log_f = log_i.mT, logsigmoid(f).mT  # each (B, heads, T)
            if mask is not None:  # i = 0 and f = 1 keep the state
                log_i = torch.where(mask.unsqueeze(1), log_i, -math.inf)
                log_f = torch.where(mask.unsqueeze(1), log_f, 0.0)
            steps = [part.split(CHUNK_STEPS, dim=2) for part in (q, k, v, log_i, log_f)]
            parts = []
            for chunk in zip(*steps, strict=True):
                r, (C, n, m) = self._scan_chunk(chunk, (C, n, m))
                parts.append(r)
            h = self._normalise(torch.cat(parts, dim=2).transpose(1, 2), torch.sigmoid(o))
        return h, tuple(after.to(before.dtype) for after, before in zip((C, n, m), state, strict=True))

    def _scan_chunk(self, steps: tuple[Tensor, ...], state: State) -> tuple[Tensor, State]:
        """Return what is read at each of L steps (B, heads, L, d), and C, n and m after the last one.

        With F_t the sum of log f up to step t, the content of step s has in C_t the weight exp(F_t - F_s + log i_s),
        and the state before the chunk has exp(F_t + m). m_t is the largest of these exponents. All contain F_t, so that
        only log i_s - F_s and m are compared, and one running maximum gives those of all steps.
        """
        (q, k, v, log_i, log_f), (C, n, m) = steps, state
        total = log_f.cumsum(-1)
        content = log_i - total
        largest = torch.maximum(content.cummax(-1).values, m.unsqueeze(-1))  # m_t - F_t
        is_future = torch.ones(2 * [q.shape[2]], dtype=torch.bool, device=q.device).triu(1)
        exponents = content.unsqueeze(-2) - largest.unsqueeze(-1)  # (B, heads, t, s)
        weights = torch.exp(exponents.masked_fill(is_future, -math.inf))
        carried = torch.exp(m.unsqueeze(-1) - largest).unsqueeze(-1)  # (B, heads, t, 1)
        attention = weights * (q @ k.mT)
        numerator = attention @ v + carried * (q @ C.mT)
        denominator = attention.sum(-1) + (carried * (q @ n.unsqueeze(-1))).squeeze(-1)
        all_m = total + largest
        last = weights[..., -1, :, None] * k  # (B, heads, s, d)
        C = carried[..., -1:, :] * C + v.mT @ last
        n = carried[..., -1, :] * n + last.sum(-2)
        return self._divide(numerator, denominator, all_m), (C, n, all_m[..., -1])
