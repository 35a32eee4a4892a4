"""Gradients by the input: which symbols a prediction depends on, and what reaches the first unit of a source
(Madsen 2019, Visualizing memorization in RNNs, Distill;  Bahdanau, Cho & Bengio 2015;  Hochreiter et al. 2001)."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from relmo.analysis.core.show import ColouredText, Report, Table, format_number, save_figure
from relmo.analysis.core.stack import initial_states, unroll, unroll_layers
from relmo.errors import CorpusError, SettingError
from relmo.models.sequence_model import SequenceModel
from relmo.models.surprisal import Texts
from relmo.networks.inputs import Encoded, TaskBatch
from relmo.networks.seq2seq import Seq2SeqNetwork
from relmo.settings.fields import Progress
from relmo.settings.sections import CellName
from relmo.settings.tasks import Seq2SeqModelSettings
from relmo.tasks.scores import LENGTH_BOUNDS
from relmo.tasks.seq2seq import Seq2Seq
from relmo.tasks.task import batch_by_length
from relmo.training.batch import move_to_device

Unit = Literal["all", "first", "last"]
SourceFigures = tuple[int, float, float, int]  # length of a source, and the figures of `FirstWord`
VOCAB_SIZE, INPUT_SIZE, TARGET_DIM = 50, 32, 32  # of fresh networks
NUM_FRESH_SOURCES = 32  # of each length
MAX_STEPS = 2000  # of the gradient; earlier symbols are read, but the logit is not differentiated by them


@dataclass(frozen=True)
class Connectivity(Report):
    """Norm of the gradient at each symbol, in reading order."""

    symbols: list[str]
    values: list[float]
    position: int  # index of the last symbol before the prediction
    symbol: str  # predicted symbol; `log_p` is its log-probability
    log_p: float
    half: int  # number of last symbols that make up half of the sum of the values
    unit: str

    def text(self) -> ColouredText:
        """Return the symbols coloured by their values."""
        title = f"Gradient of {self.symbol!r} after position {self.position} (log p {self.log_p:.2f})"
        return ColouredText(self.symbols, np.array(self.values), title)

    def table(self, count: int = 10) -> Table:
        rows, total = [], max(sum(self.values), 1e-300)
        for i in np.argsort(-np.array(self.values), kind="stable")[:count].tolist():
            value = self.values[i]
            rows.append([self.symbols[i], str(self.position - i), f"{value:.4g}", f"{100 * value / total:.1f}"])
        notes = [f"half of the sum comes from the last {self.half} symbols"]
        return Table(["symbol", "symbols back", "gradient", "% of the sum"], rows, self.text().title, notes)

    def _repr_html_(self) -> str:
        return self.text().html()


def connectivity(
    model: SequenceModel,
    text: Texts,
    *,
    position: int = -1,
    symbol: str | None = None,
    direction: Literal["forward", "backward"] = "forward",
) -> Connectivity:
    """Measure how the prediction after a position of a text depends on every symbol up to there.

    position     index of a symbol in reading order; negative ones count from the end
    symbol       predicted symbol; default the one that follows, or the end of the text
    direction    of a bidirectional model, whose text is one sentence
    """
    reading = model.make_reading(text, direction)
    count = reading.num_steps - 1  # the first step reads the boundary before the text
    if not -count <= position < count:
        raise SettingError(f"Unknown position {position}; the text has symbols 0 to {count - 1}.")
    last = position % count + 1
    start = max(0, last + 1 - MAX_STEPS)
    steps = np.arange(start, last + 1)
    layers = unroll_layers(model.get_recurrent_network(), direction=reading.direction)
    with torch.no_grad():
        states = initial_states(layers, 1)
        if start:
            run = unroll(layers, reading.get_inputs(np.arange(start)[None])[0], states)
            states = [path[-1] for path in run.path]
        vectors, targets = reading.get_inputs(steps[None])
    target = targets[:, -1]
    if symbol is not None:
        if model.vocabulary is None or symbol not in model.vocabulary.index:
            raise CorpusError(f"{symbol!r} is not in the model's vocabulary.")
        target = torch.full_like(target, model.vocabulary.index[symbol])
    x = vectors.to(layers[0].like).requires_grad_()
    y = unroll(layers, x, states).output[-1]
    (gradient,) = torch.autograd.grad(reading.losses(y, target, logits=True).sum(), x)
    values = gradient[0].norm(dim=1).cpu().numpy()
    log_p = -float(reading.losses(y.detach(), target).detach())
    symbols = reading.get_symbols(steps)
    if start == 0:
        symbols, values = symbols[1:], values[1:]
    sums = np.cumsum(values[::-1])
    half = 1 + int(np.searchsorted(sums, sums[-1] / 2)) if len(sums) else 0
    predicted = model.get_output_vocabulary().symbols[int(target)]
    return Connectivity(symbols, values.tolist(), len(symbols) - 1, predicted, log_p, half, model.unit)


@dataclass(frozen=True)
class FirstWord:
    """Medians over sources of `least` to `most` units."""

    least: int
    most: int
    sources: int
    first: float  # ||dL/dx_1||, at the first unit
    relative: float  # ||dL/dx_1|| over the mean of ||dL/dx_j||: 1 if the first unit matters as much as the others
    path: float  # fewest recurrent steps between reading the first unit and writing the target unit


@dataclass(frozen=True)
class SourceGradients(Report):
    """Measurements of one network, shortest sources first."""

    name: str
    attention: str
    unit: Unit
    lengths: list[FirstWord]

    def table(self) -> Table:
        return source_table([self])


def path_length(network: Seq2SeqNetwork, source: int, target: int, unit: Unit = "all") -> int:
    """Return the fewest recurrent steps from the first of `source` units to the last, or first, of `target` units."""
    if network.attention is not None:
        return 0
    encoder = 0 if network.encoder.recurrent.directions == 2 else source - 1  # the backward direction ends there
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
    gradients: list[SourceFigures] = []
    for indices in batch_by_length(encoded.lengths):
        batch: TaskBatch = move_to_device(encoded.batch(indices), model.device)
        with torch.no_grad():
            sources = Encoded(*model.network.inputs(batch.texts[0]))
        inputs, positions, _ = batch.targets
        lengths = torch.bincount(positions // inputs.shape[1], minlength=len(inputs)).tolist()
        gradients += _compute_gradients(body, sources, inputs, lengths, unit)
        progress(len(gradients) / len(examples))
    return _summarise(gradients, name, model.settings.model.attention, unit, [0, *LENGTH_BOUNDS])


def fresh_source_gradients(
    attention: Literal["additive", "dot", "general", "concat", "none"],
    *,
    lengths: Sequence[int],
    cell: CellName = "lstm",
    hidden: int = 64,
    every: bool = False,
    unit: Unit = "all",
    seed: int = 0,
) -> SourceGradients:
    """Measure an untrained unidirectional network that reads random vectors; targets are as long as sources."""
    if not lengths or min(lengths) < 1:
        raise SettingError("lengths must be 1 or more, such as 5,10,20,40.")
    torch.manual_seed(seed)
    context: Literal["every", "start"] = "every" if every else "start"
    settings = Seq2SeqModelSettings(
        cell=cell, directions=1, hidden=hidden, attention=attention, context=context, target_dim=TARGET_DIM
    )
    network = Seq2SeqNetwork(settings, input_size=INPUT_SIZE, vocab_size=VOCAB_SIZE).eval()
    gradients: list[SourceFigures] = []
    for length in sorted(lengths):
        x = torch.randn(NUM_FRESH_SOURCES, length, INPUT_SIZE)
        inputs = torch.randint(VOCAB_SIZE, (NUM_FRESH_SOURCES, length))
        sources = Encoded(x, torch.full((NUM_FRESH_SOURCES,), length))
        gradients += _compute_gradients(network, sources, inputs, [length] * NUM_FRESH_SOURCES, unit)
    name = f"fresh {cell}, unidirectional, attention {attention}{', vector at every step' if every else ''}"
    return _summarise(gradients, name, attention, unit, [0, *sorted(lengths)])


def _compute_gradients(
    network: Seq2SeqNetwork, sources: Encoded, inputs: Tensor, targets: Sequence[int], unit: Unit
) -> list[SourceFigures]:
    """Return the gradients at each of B sources; `targets` are the numbers of target units, with the end."""
    x = sources.x.detach().requires_grad_()
    with torch.enable_grad():
        decoded = network.decode(network(sources._replace(x=x)), inputs)
        log_probs = network.output.log_probs(decoded.readout.flatten(0, 1)).view(*inputs.shape, -1)
        expected = torch.cat([inputs[:, 1:], inputs[:, :1]], dim=1)  # the first input is the end symbol
        losses = -log_probs.gather(2, expected.unsqueeze(2)).squeeze(2)  # (B, T)
        ends = torch.tensor(targets, device=x.device).unsqueeze(1)
        steps = torch.arange(inputs.shape[1], device=x.device)
        mask = {"all": steps < ends, "first": (steps == 0) & (ends > 0), "last": steps == ends - 1}[unit]
        (gradient,) = torch.autograd.grad((losses * mask).sum(), x)
    rows = zip(gradient.norm(dim=2).cpu().numpy(), sources.lengths.tolist(), targets, strict=True)
    return [
        (n, float(row[0]), float(row[0] / max(row[:n].mean(), 1e-30)), path_length(network, n, target, unit))
        for row, n, target in rows
        if n
    ]


def _summarise(
    gradients: Sequence[SourceFigures], name: str, attention: str, unit: Unit, bounds: Sequence[int]
) -> SourceGradients:
    rows = []
    for low, high in pairwise([*bounds, max(bounds[-1], *(length for length, *_ in gradients))]):
        if group := [gradient for gradient in gradients if low < gradient[0] <= high]:
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
