"""Gradient of a loss at the first source unit, and the number of recurrent steps to it, by the length of the source.

    sources = source_gradients(relmo.load("models/en-de"), "val.en,val.de")
    fresh_source_gradients("additive", lengths=[5, 10, 20, 40])

The loss of the target units is differentiated by the vector x_j of each source unit. Medians over sources of similar
length are reported:

first       ||dL/dx_1||, at the first unit
relative    ||dL/dx_1|| over the mean of ||dL/dx_j||: 1 if the first unit matters as much as the others
path        fewest recurrent steps between reading the first unit and writing the target unit: 0 with attention; from
            one vector, the encoder's steps after the first unit (none in the backward direction, which ends there) and
            the decoder's steps before the target unit

Fresh networks have random weights and read random vectors.

    Bahdanau, Cho & Bengio 2015;  Hochreiter et al. 2001, Gradient flow in recurrent nets (paths)
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from relmo.analysis.core.show import Table, format_number, save_figure
from relmo.errors import SettingError
from relmo.networks.sentence_encoder import Encoded
from relmo.networks.seq2seq import Seq2SeqNetwork, TranslationBatch
from relmo.settings.arguments import Progress
from relmo.settings.cells import CellName
from relmo.settings.seq2seq import Seq2SeqModelSettings
from relmo.tasks.seq2seq import Seq2Seq
from relmo.tasks.task import batch_by_length
from relmo.tasks.text_scores import LENGTH_BOUNDS
from relmo.training.batch import move_to_device

Unit = Literal["all", "first", "last"]
VOCAB_SIZE, INPUT_SIZE, TARGET_DIM = 50, 32, 32  # of fresh networks
NUM_FRESH_SOURCES = 32  # of each length


@dataclass(frozen=True)
class FirstWord:
    """Medians over sources of `least` to `most` units."""

    least: int
    most: int
    sources: int
    first: float
    relative: float
    path: float


@dataclass(frozen=True)
class SourceGradients:
    """Measurements of one network, shortest sources first."""

    name: str
    attention: str
    unit: Unit
    lengths: list[FirstWord]

    def as_dict(self) -> dict[str, Any]:
        """Return all fields as JSON types."""
        return asdict(self)


class _SourceGradient(NamedTuple):
    length: int
    first: float
    relative: float
    path: int


def path_length(network: Seq2SeqNetwork, source: int, target: int, unit: Unit = "all") -> int:
    """Return the fewest recurrent steps from the first of `source` units to the first or the last of `target` units.

    For all target units it is the path to the nearest, which is the first.
    """
    if network.attention is not None:
        return 0
    encoder = 0 if network.encoder.recurrent.directions == 2 else source - 1
    decoder = target - 1 if unit == "last" and not network.reads_vector else 0
    return encoder + decoder


def source_gradients(
    model: Seq2Seq,
    files: str | Path,
    *,
    unit: Unit = "all",
    most: int | None = 1000,
    name: str = "",
    progress: Progress = lambda _: None,
) -> SourceGradients:
    """Measure the gradient at the first unit of the sources in a file of pairs, at most the first `most` pairs."""
    examples = model.read(files, model.settings.text)[:most]
    encoded = model.encode(examples, answers=True)
    body: Any = model.network.body
    gradients: list[_SourceGradient] = []
    for indices in batch_by_length(encoded.lengths):
        batch: TranslationBatch = move_to_device(encoded.batch(indices), model.device)
        with torch.no_grad():
            sources = Encoded(*model.network.inputs(batch.source))
        assert batch.inputs is not None
        targets = [encoded.targets[i] for i in indices.tolist()] if encoded.targets is not None else []
        gradients += _compute_gradients(body, sources, batch.inputs, [len(target) + 1 for target in targets], unit)
        progress(len(gradients) / len(examples))
    return _summarise(gradients, name, model.settings.model.attention, unit, [0, *LENGTH_BOUNDS])


def fresh_source_gradients(
    attention: Literal["additive", "dot", "general", "concat", "none"],
    *,
    lengths: Sequence[int],
    cell: CellName = "lstm",
    hidden: int = 64,
    bidirectional: bool = False,
    every: bool = False,
    unit: Unit = "all",
    seed: int = 0,
) -> SourceGradients:
    """Measure an untrained network that reads random vectors; targets are as long as sources."""
    if not lengths or min(lengths) < 1:
        raise SettingError("lengths must be 1 or more, such as 5,10,20,40.")
    torch.manual_seed(seed)
    settings = Seq2SeqModelSettings(
        cell=cell,
        directions=2 if bidirectional else 1,
        hidden=hidden,
        attention=attention,
        context="every" if every else "start",
        target_dim=TARGET_DIM,
    )
    network = Seq2SeqNetwork(settings, input_size=INPUT_SIZE, vocab_size=VOCAB_SIZE).eval()
    gradients: list[_SourceGradient] = []
    for length in sorted(lengths):
        x = torch.randn(NUM_FRESH_SOURCES, length, INPUT_SIZE)
        inputs = torch.randint(VOCAB_SIZE, (NUM_FRESH_SOURCES, length))
        sources = Encoded(x, torch.full((NUM_FRESH_SOURCES,), length))
        gradients += _compute_gradients(network, sources, inputs, [length] * NUM_FRESH_SOURCES, unit)
    name = f"fresh {cell}, {'bidirectional' if bidirectional else 'unidirectional'}, attention {attention}"
    name += ", vector at every step" if every else ""
    return _summarise(gradients, name, attention, unit, [0, *sorted(lengths)])


def compare_fresh(**options: Any) -> list[SourceGradients]:
    """Measure untrained networks that decode from one vector, from one vector at every step, and with attention.

    `options` are those of `fresh_source_gradients`.
    """
    start, every = (fresh_source_gradients("none", every=every, **options) for every in (False, True))
    return [start, every, fresh_source_gradients("additive", **options)]


def _compute_gradients(
    network: Seq2SeqNetwork, sources: Encoded, inputs: Tensor, targets: Sequence[int], unit: Unit
) -> list[_SourceGradient]:
    """Return the gradients at each of B sources; `targets` are the numbers of target units, with the end."""
    x = sources.x.detach().requires_grad_()
    with torch.enable_grad():
        decoded = network.decode(network.encode(sources._replace(x=x)), inputs)
        log_probs = network.output.log_probs(decoded.readout.flatten(0, 1)).view(*inputs.shape, -1)
        expected = torch.cat([inputs[:, 1:], inputs[:, :1]], dim=1)  # the first input is the end symbol
        losses = -log_probs.gather(2, expected.unsqueeze(2)).squeeze(2)  # (B, T)
        ends = torch.tensor(targets, device=x.device).unsqueeze(1)
        steps = torch.arange(inputs.shape[1], device=x.device)
        mask = {"all": steps < ends, "first": (steps == 0) & (ends > 0), "last": steps == ends - 1}[unit]
        (gradient,) = torch.autograd.grad((losses * mask).sum(), x)
    gradients = []
    norms = gradient.norm(dim=2).cpu().numpy()
    for row, length, target in zip(norms, sources.lengths.tolist(), targets, strict=True):
        if length:
            relative = float(row[0] / max(row[:length].mean(), 1e-30))
            path = path_length(network, length, target, unit)
            gradients.append(_SourceGradient(length, float(row[0]), relative, path))
    return gradients


def _summarise(
    gradients: Sequence[_SourceGradient], name: str, attention: str, unit: Unit, bounds: Sequence[int]
) -> SourceGradients:
    rows = []
    max_length = max(gradient.length for gradient in gradients)
    for low, high in pairwise([*bounds, max(max_length, bounds[-1])]):
        group = [gradient for gradient in gradients if low < gradient.length <= high]
        if group:
            lengths, *columns = zip(*group, strict=True)
            medians = (float(np.median(column)) for column in columns)
            rows.append(FirstWord(min(lengths), max(lengths), len(group), *medians))
    return SourceGradients(name, attention, unit, rows)


def source_table(networks: Sequence[SourceGradients]) -> Table:
    """Return a table with one row per network and length."""
    rows = []
    for network in networks:
        for row in network.lengths:
            length = str(row.most) if row.least == row.most else f"{row.least}-{row.most}"
            numbers = [f"{row.sources:,}", f"{row.path:g}", f"{row.first:.2e}", format_number(row.relative)]
            rows.append([network.name, length, *numbers])
    columns = ["network", "source units", "sources", "path", "||dL/dx_1||", "over the mean"]
    return Table(columns, rows, "Gradient at the first source unit")


def draw_source_gradients(networks: Sequence[SourceGradients], path: str | Path) -> None:
    """Plot the gradient and the path by length, one line per network."""
    with save_figure(path, 9.0, 3.8) as figure:
        gradient_axes, path_axes = figure.subplots(1, 2)
        for network in networks:
            lengths = [(row.least + row.most) / 2 for row in network.lengths]
            gradient_axes.plot(lengths, [row.first for row in network.lengths], marker=".", label=network.name)
            path_axes.plot(lengths, [row.path for row in network.lengths], marker=".")
        gradient_axes.set(xlabel="source units", ylabel="norm of the gradient at the first unit", yscale="log")
        path_axes.set(xlabel="source units", ylabel="recurrent steps to the first unit")
        figure.legend(loc="outside upper center", fontsize="small")
