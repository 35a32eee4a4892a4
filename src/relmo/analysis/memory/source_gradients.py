"""How much of a loss reaches the first word of the source, and over how many steps, by the source's length.

    sources = source_gradients(relmo.load("models/en-de"), "val.en,val.de")
    fresh_source_gradients("additive", lengths=[5, 10, 20, 40])

The loss of a target's units is differentiated by the vector x_j of each source unit. Three numbers are given for
sources of about one length, each a median over them:

first       ||dL/dx_1||, of the first unit
relative    ||dL/dx_1|| over the mean of ||dL/dx_j||: 1 where the first unit matters as much as the others
path        the fewest recurrent steps between reading the first unit and writing the target unit: with attention 0;
            from one vector, the steps of the encoder after the first unit, and of the decoder before that target unit.
            An encoder that also reads backwards ends at the first unit, and has no steps after it

Fresh networks have random weights, and read random vectors: what is there before anything is learned.

    Bahdanau, Cho & Bengio 2015;  Hochreiter et al. 2001, Gradient flow in recurrent nets (paths)
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from relmo.analysis.core.show import Table, figure, picture
from relmo.errors import SettingError
from relmo.networks.sentence_encoder import Encoded
from relmo.networks.seq2seq import Seq2SeqNetwork, TranslationBatch
from relmo.settings.arguments import Progress
from relmo.settings.cells import CellName
from relmo.tasks.seq2seq import Seq2Seq
from relmo.tasks.task import by_length
from relmo.tasks.text_scores import BOUNDS
from relmo.training.batch import on_device

Unit = Literal["all", "first", "last"]
FRESH = {"units": 50, "input_size": 32, "unit_size": 32}  # of fresh networks
ROWS = 32  # fresh sources of each length


@dataclass(frozen=True)
class FirstWord:
    """Sources that have from `least` to `most` units: how many there are, and the medians of what was measured."""

    least: int
    most: int
    sources: int
    first: float
    relative: float
    path: float


@dataclass(frozen=True)
class SourceGradients:
    """What was measured of one network, the shortest sources first."""

    name: str
    attention: str
    unit: Unit
    lengths: list[FirstWord]

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


@dataclass
class _Measured:
    """A source: its length, the norm of the gradient at each unit, the path."""

    length: int
    norms: np.ndarray
    path: int


def path_length(network: Seq2SeqNetwork, source: int, target: int, unit: Unit = "all") -> int:
    """The fewest recurrent steps from the first of `source` units to a target's unit: to its first one, its last one,
    or, of all, to the nearest, which is the first."""
    if network.attention is not None:
        return 0
    encoder = 0 if network.encoder.recurrent.directions == 2 else source - 1
    decoder = target - 1 if unit == "last" and not network.every else 0
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
    """What reaches the first unit of the sources of a file of pairs, of the first `most` of them."""
    examples = model.read(files, model.settings.text)[:most]
    encoded = model.encode(examples, answers=True)
    body: Any = model.network.body
    found: list[_Measured] = []
    for which in by_length(encoded.lengths):
        batch: TranslationBatch = on_device(encoded.batch(which), model.device)
        with torch.no_grad():
            x, lengths, again = model.network.inputs(batch.source)
        assert batch.inputs is not None
        targets = [encoded.targets[i] for i in which.tolist()] if encoded.targets is not None else []
        found += _measure(body, Encoded(x, lengths, again), batch.inputs, [len(t) + 1 for t in targets], unit)
        progress(len(found) / len(examples))
    return _summary(found, name, model.settings.model.attention, unit, [0, *BOUNDS])


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
    """The same for a network before training, which reads random vectors; targets are as long as sources."""
    if not lengths or min(lengths) < 1:
        raise SettingError("lengths are 1 or more, such as 5,10,20,40")
    torch.manual_seed(seed)
    network = Seq2SeqNetwork(
        **FRESH,  # type: ignore[arg-type]
        hidden=hidden,
        cell=cell,
        bidirectional=bidirectional,
        attention=attention,
        every=every,
    ).eval()
    found: list[_Measured] = []
    for length in sorted(lengths):
        x = torch.randn(ROWS, length, FRESH["input_size"])
        inputs = torch.randint(FRESH["units"], (ROWS, length))
        found += _measure(network, Encoded(x, torch.full((ROWS,), length)), inputs, [length] * ROWS, unit)
    name = f"fresh {cell}, {'both ways' if bidirectional else 'one way'}, attention {attention}"
    name += ", vector at every step" if every else ""
    return _summary(found, name, attention, unit, [0, *sorted(lengths)])


def fresh_beside(**options: Any) -> list[SourceGradients]:
    """Fresh networks beside each other: from one vector, from one vector at every step, with attention. The options are
    those of `fresh_source_gradients`."""
    one, every = (fresh_source_gradients("none", every=every, **options) for every in (False, True))
    return [one, every, fresh_source_gradients("additive", **options)]


def _measure(
    network: Seq2SeqNetwork, sources: Encoded, inputs: Tensor, targets: Sequence[int], unit: Unit
) -> Iterator[_Measured]:
    """The gradients at each of B sources; `targets` are the units of each target, its end counted."""
    x = sources.x.detach().requires_grad_()
    with torch.enable_grad():
        decoded = network.decode(network.encode(sources._replace(x=x)), inputs)
        log_probs = network.output.log_probs(decoded.readout.flatten(0, 1)).view(*inputs.shape, -1)
        following = torch.cat([inputs[:, 1:], inputs[:, :1]], dim=1)  # what comes first is the end
        losses = -log_probs.gather(2, following.unsqueeze(2)).squeeze(2)  # (B, T)
        ends = torch.tensor(targets, device=x.device).unsqueeze(1)
        steps = torch.arange(inputs.shape[1], device=x.device)
        wanted = {"all": steps < ends, "first": (steps == 0) & (ends > 0), "last": steps == ends - 1}[unit]
        (gradient,) = torch.autograd.grad((losses * wanted).sum(), x)
    norms = gradient.norm(dim=2).cpu().numpy()
    for row, length, target in zip(norms, sources.lengths.tolist(), targets, strict=True):
        if length:
            yield _Measured(length, row[:length], path_length(network, length, target, unit))


def _summary(
    found: Iterable[_Measured], name: str, attention: str, unit: Unit, bounds: Sequence[int]
) -> SourceGradients:
    rows, every = [], list(found)
    longest = max(each.length for each in every)
    for below, most in zip(bounds, [*bounds[1:], max(longest, bounds[-1])], strict=True):
        some = [each for each in every if below < each.length <= most]
        if some:
            first = [float(each.norms[0]) for each in some]
            relative = [float(each.norms[0] / max(each.norms.mean(), 1e-30)) for each in some]
            path = [each.path for each in some]
            medians = (float(np.median(values)) for values in (first, relative, path))
            sizes = [each.length for each in some]
            rows.append(FirstWord(min(sizes), max(sizes), len(some), *medians))
    return SourceGradients(name, attention, unit, rows)


def source_table(found: Sequence[SourceGradients]) -> Table:
    """A row for each network and length."""
    rows = [
        [
            each.name,
            str(row.most) if row.least == row.most else f"{row.least}-{row.most}",
            f"{row.sources:,}",
            f"{row.path:g}",
            f"{row.first:.2e}",
            figure(row.relative),
        ]
        for each in found
        for row in each.lengths
    ]
    columns = ["network", "source units", "sources", "path", "||dL/dx_1||", "over the mean"]
    return Table(columns, rows, "The gradient that reaches the first unit of the source")


def draw_source_gradients(found: Sequence[SourceGradients], path: str | Path) -> None:
    """The gradient and the path by length, a line for each network."""
    with picture(path, 9.0, 3.8) as drawn:
        left, right = drawn.subplots(1, 2)
        for each in found:
            lengths = [(row.least + row.most) / 2 for row in each.lengths]
            left.plot(lengths, [row.first for row in each.lengths], marker=".", label=each.name)
            right.plot(lengths, [row.path for row in each.lengths], marker=".")
        left.set(xlabel="units of the source", ylabel="norm of the gradient at the first", yscale="log")
        right.set(xlabel="units of the source", ylabel="recurrent steps to the first")
        drawn.legend(loc="outside upper center", fontsize="small")
