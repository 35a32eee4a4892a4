"""Networks as they are before training, with two things to turn: the forget gate's bias, and how strongly a layer reads
itself.

    flows = forget_bias_sweep(text, (0, 1, 2, 4));  spectral_radius_sweep(text, (1, 2, 3))

What becomes of gradients is decided at first by the weights that training starts from. `start` says how they are drawn:
"torch", every weight as torch's own modules draw it; "relmo", as `relmo train lm` does, where embeddings begin smaller
and the forget gate's bias at 1.

    Gers et al. 2000, Learning to forget;  Jozefowicz et al. 2015, An empirical exploration of recurrent network
    architectures (the forget gate's bias);  Pascanu et al. 2013 (the spectral radius)
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import nn

from relmo.analysis.core.untrained import seeded
from relmo.analysis.memory.gradients import GradientFlow, gradient_flow
from relmo.analysis.memory.jacobian import spectral_radius
from relmo.errors import SettingError
from relmo.models.lm import LanguageModel
from relmo.networks.language_model import RecurrentLM
from relmo.nn.cells import Cell
from relmo.settings.arguments import Progress
from relmo.settings.cells import CELLS, CellName, cells_with
from relmo.settings.lm import LanguageModelSettings, LMSettings, TextSettings
from relmo.text.vocabulary import SPECIALS, Vocabulary


@dataclass(frozen=True, kw_only=True)
class Fresh:
    """What a fresh network is like.

    forget_bias        added to that of the gate which keeps memory, of cells with such a setting
    spectral_radius    of the recurrent weights, of each gate by itself, which is scaled to it; None leaves it as it was
                       drawn
    """

    cell: CellName = "lstm"
    hidden: int = 128
    embedding: int = 64
    layers: int = 1
    forget_bias: float = 0.0
    spectral_radius: float | None = None
    start: Literal["torch", "relmo"] = "torch"
    seed: int = 0

    @property
    def name(self) -> str:
        """In words."""
        turned = f", forget bias {self.forget_bias:+g}" if self.forget_bias else ""
        scaled = "" if self.spectral_radius is None else f", spectral radius {self.spectral_radius:g}"
        return f"{self.cell}, fresh{turned}{scaled}"


def check_cell(name: str) -> None:
    """Raises where there is no such cell."""
    if name not in CELLS:
        raise SettingError(f"cell is {name!r}; it can be {', '.join(sorted(CELLS))}")


def fresh_model(fresh: Fresh, vocabulary: Vocabulary, text: TextSettings | None = None) -> LanguageModel:
    """An untrained language model over a vocabulary; torch's random state stays as it was."""
    check_cell(fresh.cell)
    if fresh.forget_bias and fresh.cell not in cells_with("forget_bias"):
        raise SettingError(f"a {fresh.cell} has no forget gate; leave the forget bias out")
    if fresh.spectral_radius is not None and fresh.spectral_radius < 0:
        raise SettingError(f"the spectral radius must be 0 or more, not {fresh.spectral_radius:g}")
    settings = LanguageModelSettings(
        cell=fresh.cell, hidden=fresh.hidden, embedding=fresh.embedding, layers=fresh.layers
    )
    with seeded(fresh.seed):
        network = RecurrentLM(settings, vocab_size=len(vocabulary))
        if fresh.start == "torch":
            _draw_as_torch(network)
    for (cell,) in network.encoder.recurrent.cells:
        _turn(cell, fresh.forget_bias, fresh.spectral_radius)
    return LanguageModel(network, vocabulary, LMSettings(text=text or TextSettings(), model=settings))


@torch.no_grad()
def _draw_as_torch(network: RecurrentLM) -> None:
    """Weights as torch's nn.Embedding, nn.RNN, nn.GRU, nn.LSTM and nn.Linear draw them."""
    nn.init.normal_(network.encoder.embedding.weight)
    for (cell,) in network.encoder.recurrent.cells:
        Cell.reset_parameters(cell)  # the forget gate's bias too
    bound = 1 / math.sqrt(network.encoder.recurrent.output_size)
    for parameter in network.softmax.parameters():
        nn.init.uniform_(parameter, -bound, bound)


@torch.no_grad()
def _turn(cell: Cell, forget_bias: float, radius: float | None) -> None:
    """Adds to the forget gate's bias; scales each gate's recurrent weights to a spectral radius."""
    if forget_bias:
        cell.raise_forget_bias(forget_bias)
    if radius is not None:
        if not cell.recurrent:
            raise SettingError(f"a {cell.name} has no recurrent weights; leave the spectral radius out")
        for block in (part for name in cell.recurrent for part in getattr(cell, name).split(cell.hidden_size)):
            block *= radius / spectral_radius(block if block.dim() == 2 else block.diag())


def character_vocabulary(text: str) -> Vocabulary:
    """The characters of a text."""
    return Vocabulary([*SPECIALS, *sorted({*text} - {*SPECIALS})])


def fresh_flows(
    text: str, networks: Sequence[Fresh], *, progress: Progress | None = None, **options: Any
) -> list[GradientFlow]:
    """The gradient flow of fresh character models over one text, at the same places; `options` as of
    `gradient_flow`."""
    vocabulary = character_vocabulary(text)
    flows = []
    for number, fresh in enumerate(networks):
        told = None if progress is None else lambda share, n=number: progress((n + share) / len(networks))
        model = fresh_model(fresh, vocabulary)
        flows.append(gradient_flow(model, text, name=fresh.name, progress=told, **options))
    return flows


def forget_bias_sweep(text: str, biases: Sequence[float] = (0, 1, 2, 4), **options: Any) -> list[GradientFlow]:
    """Fresh LSTMs whose forget gates get these numbers more; `options` as of `Fresh` and `gradient_flow`."""
    own, rest = _split_options(options)
    return fresh_flows(text, [Fresh(cell="lstm", forget_bias=bias, **own) for bias in biases], **rest)


def spectral_radius_sweep(text: str, radii: Sequence[float] = (1, 2, 3), **options: Any) -> list[GradientFlow]:
    """Fresh Elman networks (or `cell=`) with recurrent weights of these spectral radii; `options` as of `Fresh` and
    `gradient_flow`."""
    own, rest = _split_options({"cell": "elman"} | options)
    return fresh_flows(text, [Fresh(spectral_radius=radius, **own) for radius in radii], **rest)


def _split_options(options: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Those of `Fresh`, and the others."""
    own = {name: value for name, value in options.items() if name in Fresh.__dataclass_fields__ and name != "seed"}
    own |= {"seed": options["seed"]} if "seed" in options else {}
    return own, {name: value for name, value in options.items() if name not in own or name == "seed"}
