"""Gradient flow of untrained networks, by the forget gate's bias and the scale of the recurrent weights.

    flows = forget_bias_sweep(text, (0, 1, 2, 4));  spectral_radius_sweep(text, (1, 2, 3))

The initial weights decide what happens to gradients at first. `start` selects their distribution: "torch" as torch's
own modules, "relmo" as `relmo train lm`, with smaller embeddings and a forget gate's bias of 1.

    Gers et al. 2000, Learning to forget;  Jozefowicz et al. 2015, An empirical exploration of recurrent network
    architectures (the forget gate's bias);  Pascanu et al. 2013 (the spectral radius)
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import nn

from relmo.analysis.core.progress import split_progress
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
    """Settings of an untrained network.

    forget_bias        added to the bias of the gate that keeps memory, for cells with this setting
    spectral_radius    to which the recurrent weights of each gate are scaled; None leaves them unscaled
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
        """Name for tables and figures."""
        bias = f", forget bias {self.forget_bias:+g}" if self.forget_bias else ""
        radius = "" if self.spectral_radius is None else f", spectral radius {self.spectral_radius:g}"
        return f"{self.cell}, fresh{bias}{radius}"


def check_cell(name: str) -> None:
    """Check that a cell of this name exists."""
    if name not in CELLS:
        raise SettingError(f"Unknown cell {name!r}; expected one of {', '.join(sorted(CELLS))}.")


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
    with seeded(fresh.seed):
        network = RecurrentLM(settings, vocab_size=len(vocabulary))
        if fresh.start == "torch":
            _reset_as_torch(network)
    for (cell,) in network.encoder.recurrent.cells:
        _adjust_weights(cell, fresh.forget_bias, fresh.spectral_radius)
    return LanguageModel(network, vocabulary, LMSettings(text=text or TextSettings(), model=settings))


@torch.no_grad()
def _reset_as_torch(network: RecurrentLM) -> None:
    """Draw weights as torch's nn.Embedding, nn.RNN, nn.GRU, nn.LSTM and nn.Linear do."""
    nn.init.normal_(network.encoder.embedding.weight)
    for (cell,) in network.encoder.recurrent.cells:
        Cell.reset_parameters(cell)  # the forget gate's bias too
    bound = 1 / math.sqrt(network.encoder.recurrent.output_size)
    for parameter in network.softmax.parameters():
        nn.init.uniform_(parameter, -bound, bound)


@torch.no_grad()
def _adjust_weights(cell: Cell, forget_bias: float, radius: float | None) -> None:
    if forget_bias:
        cell.raise_forget_bias(forget_bias)
    if radius is not None:
        if not cell.recurrent:
            raise SettingError(f"The {cell.name} cell has no recurrent weights, so spectral_radius cannot be set.")
        for block in (part for name in cell.recurrent for part in getattr(cell, name).split(cell.hidden_size)):
            block *= radius / spectral_radius(block if block.dim() == 2 else block.diag())


def character_vocabulary(text: str) -> Vocabulary:
    """Return the vocabulary of a text's characters."""
    return Vocabulary([*SPECIALS, *sorted({*text} - {*SPECIALS})])


def fresh_flows(
    text: str, networks: Sequence[Fresh], *, progress: Progress | None = None, **options: Any
) -> list[GradientFlow]:
    """Measure the gradient flow of untrained character models at the same positions of a text.

    `options` are those of `gradient_flow`.
    """
    vocabulary = character_vocabulary(text)
    flows = []
    for fresh, callback in zip(networks, split_progress(progress, [1.0] * len(networks)), strict=True):
        model = fresh_model(fresh, vocabulary)
        flows.append(gradient_flow(model, text, name=fresh.name, progress=callback, **options))
    return flows


def forget_bias_sweep(text: str, biases: Sequence[float] = (0, 1, 2, 4), **options: Any) -> list[GradientFlow]:
    """Measure LSTMs with these biases added to the forget gates; `options` as for `Fresh` and `gradient_flow`."""
    network_options, flow_options = _split_options(options)
    networks = [Fresh(cell="lstm", forget_bias=bias, **network_options) for bias in biases]
    return fresh_flows(text, networks, **flow_options)


def spectral_radius_sweep(text: str, radii: Sequence[float] = (1, 2, 3), **options: Any) -> list[GradientFlow]:
    """Measure Elman networks (or `cell=`) with recurrent weights of these spectral radii.

    `options` are those of `Fresh` and `gradient_flow`.
    """
    network_options, flow_options = _split_options({"cell": "elman"} | options)
    return fresh_flows(text, [Fresh(spectral_radius=radius, **network_options) for radius in radii], **flow_options)


def _split_options(options: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Split options into those of `Fresh` and those of `gradient_flow`; both take the seed."""
    fields = Fresh.__dataclass_fields__
    network_options = {name: value for name, value in options.items() if name in fields}
    return network_options, {name: value for name, value in options.items() if name not in fields or name == "seed"}
