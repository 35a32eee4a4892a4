"""Long short-term memory.

Hochreiter & Schmidhuber 1997, Long short-term memory;  Gers et al. 2000, Learning to forget (the forget gate)
Gers & Schmidhuber 2000, Recurrent nets that time and count (peepholes)
Greff et al. 2017, LSTM: a search space odyssey (coupled gates)
Sak et al. 2014, Long short-term memory recurrent neural network architectures (the projection)
Jozefowicz et al. 2015, An empirical exploration of recurrent network architectures (the forget gate's bias)
Ba et al. 2016, Layer normalization
"""

import torch
from torch import Tensor, nn
from torch.nn.functional import layer_norm, linear

from relmo.nn.recurrence.base import Quantity, Record, StackedCell, State, gates, state, unchanged


class LSTMCell(StackedCell):
    """Long short-term memory with a forget gate.

    i  = sigmoid(W_ii x + b_ii + W_hi h + b_hi)
    f  = sigmoid(W_if x + b_if + W_hf h + b_hf)
    g  = tanh(W_ig x + b_ig + W_hg h + b_hg)
    o  = sigmoid(W_io x + b_io + W_ho h + b_ho)
    c' = f * c + i * g
    h' = o * tanh(c')

    projection        h' = W_hr (o * tanh(c')), with this number of units
    cell_clip         c' is clipped to plus or minus this value, as in ELMo; the clipped c' is carried
    projection_clip   the same for h', with a projection
    forget_bias       initial bias of the forget gate; 1 lets memory pass from the first step on
    peephole          the gates also read the memory of their unit: i and f read p * c, o reads p * c'
    coupled           i = 1 - f
    layer_norm        W_i x and W_h h are normalised for all gates together, and c' where h' reads it
    learned_start     the initial states are parameters, which begin at zero
    """

    name = "lstm"
    keeps = "f"

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        *,
        projection: int | None = None,
        cell_clip: float | None = None,
        projection_clip: float | None = None,
        forget_bias: float = 1.0,
        peephole: bool = False,
        coupled: bool = False,
        layer_norm: bool = False,
        learned_start: bool = False,
    ):
        self.blocks = ("f", "g", "o") if coupled else ("i", "f", "g", "o")
        super().__init__(input_size, hidden_size, projection)
        self.cell_clip, self.projection_clip = cell_clip, projection_clip if projection else None
        self.coupled, self.forget_bias = coupled, forget_bias
        clips = {"cell": self.cell_clip, "projection": self.projection_clip}
        self.options = [f"{name} clipped at {limit:g}" for name, limit in clips.items() if limit is not None]
        variants = {"peepholes": peephole, "coupled gates": coupled, "layer normalisation": layer_norm}
        self.options += [name for name, is_on in variants.items() if is_on]
        self.weight_hr = nn.Parameter(torch.empty(projection, hidden_size)) if projection else None
        gates = [block for block in self.blocks if block != "g"]
        self.peephole = nn.Parameter(torch.empty(len(gates), hidden_size)) if peephole else None
        rows = len(self.blocks) * hidden_size
        self.gain_ih, self.gain_hh, self.gain_c, self.shift_c = (
            nn.Parameter(torch.empty(size)) if layer_norm else None for size in (rows, rows, hidden_size, hidden_size)
        )
        self.start_h = nn.Parameter(torch.zeros(projection or hidden_size)) if learned_start else None
        self.start_c = nn.Parameter(torch.zeros(hidden_size)) if learned_start else None
        is_smaller = projection is None or projection < hidden_size  # required by the fused kernels
        self.fused = "lstm" if is_smaller and not self.options else None
        self.reset_parameters()

    def quantities(self) -> list[Quantity]:
        H = self.hidden_size
        return [
            state("h", self.output_size, role="output", initial=0.0 if self.start_h is None else "start_h"),
            state("c", H, initial=0.0 if self.start_c is None else "start_c"),
            *gates(H, i="input gate", f="forget gate", o="output gate"),
            Quantity("g", (H,), "candidate", "candidate", -1.0, 1.0),
        ]

    def equations(self) -> dict[str, str]:
        equations = {}
        for block in ("i", "f", "g", "o"):
            terms = f"W_i{block} x + b_i{block} + W_h{block} h + b_h{block}"
            if self.gain_ih is not None:  # for display: the norm is over all gates
                terms = f"norm(W_i{block} x) + b_i{block} + norm(W_h{block} h) + b_h{block}"
            if self.peephole is not None and block != "g":
                terms += " + p_o * c'" if block == "o" else f" + p_{block} * c"
            equations[block] = f"{'tanh' if block == 'g' else 'sigmoid'}({terms})"
        if self.coupled:
            equations["i"] = "1 - f"
        equations["c"] = "f * c + i * g"
        if self.cell_clip is not None:
            equations["c"] = f"clip({equations['c']}, ±{self.cell_clip:g})"
        equations["h"] = "o * tanh(c')" if self.gain_c is None else "o * tanh(norm(c'))"
        if self.weight_hr is not None:
            equations["h"] = f"W_hr ({equations['h']})"
        if self.projection_clip is not None:
            equations["h"] = f"clip({equations['h']}, ±{self.projection_clip:g})"
        return equations

    def named_weights(self) -> dict[str, Tensor]:
        named = super().named_weights()
        if self.weight_hr is not None:
            named["W_hr"] = self.weight_hr
        if self.peephole is not None:
            gates = (block for block in self.blocks if block != "g")
            named |= {f"p_{block}": row for block, row in zip(gates, self.peephole, strict=True)}
        return named

    def projection_matrix(self) -> Tensor | None:
        return self.weight_hr

    def reset_parameters(self) -> None:
        super().reset_parameters()
        nn.init.zeros_(self.named_weights()["b_hf"])
        self._set_forget_bias()

    def initialise(self) -> None:
        super().initialise()
        self._set_forget_bias()

    def _set_forget_bias(self) -> None:
        nn.init.constant_(self.biases()["f"], self.forget_bias)
        for start in (self.peephole, self.start_h, self.start_c):
            if start is not None:
                nn.init.zeros_(start)
        if self.gain_ih is not None:
            for gain in (self.gain_ih, self.gain_hh, self.gain_c):
                nn.init.ones_(gain)  # type: ignore[arg-type]
            nn.init.zeros_(self.shift_c)  # type: ignore[arg-type]

    def project_input(self, x: Tensor) -> Tensor:
        if self.gain_ih is None:
            return super().project_input(x)
        return layer_norm(linear(x, self.weight_ih), self.gain_ih.shape, self.gain_ih, self.bias_ih)

    def step(self, x: Tensor, state: State, *, record: Record = unchanged) -> tuple[Tensor, State]:
        h, c = state
        if self.gain_hh is None:
            from_h = linear(h, self.weight_hh, self.bias_hh)
        else:
            from_h = layer_norm(linear(h, self.weight_hh), self.gain_hh.shape, self.gain_hh, self.bias_hh)
        *i, f, g, o = (x + from_h).chunk(len(self.blocks), dim=-1)  # each (B, H)
        if self.peephole is not None:
            *p_i, p_f, _ = self.peephole
            i, f = [a + p * c for a, p in zip(i, p_i, strict=True)], f + p_f * c
        f, g = record("f", torch.sigmoid(f)), record("g", torch.tanh(g))
        i_t = record("i", 1 - f if self.coupled else torch.sigmoid(i[0]))
        c = record("c", clip(f * c + i_t * g, self.cell_clip))
        o = record("o", torch.sigmoid(o if self.peephole is None else o + self.peephole[-1] * c))
        inner = c if self.gain_c is None else layer_norm(c, self.gain_c.shape, self.gain_c, self.shift_c)
        h = o * torch.tanh(inner)
        if self.weight_hr is not None:
            h = clip(linear(h, self.weight_hr), self.projection_clip)
        h = record("h", h)
        return h, (h, c)


def clip(x: Tensor, limit: float | None) -> Tensor:
    """Clamp x to ±limit; None does nothing."""
    return x if limit is None else x.clamp(-limit, limit)
