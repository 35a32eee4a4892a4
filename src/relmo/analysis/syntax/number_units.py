"""Number units: units that keep the number of a subject until its verb, and whether the model needs them.

    long-range      carries the number at every word from the subject to the verb, also past a noun of the other number
    short-range     carries it at the subject, but past a noun of the other number carries the number of that noun
    needed          costs more accuracy, where the two numbers differ, than any of many random units of the same layers

The numbers are the last words of a pair's condition, the subject's first: "nounpp singular plural", "PP", "sg_pl".

    Lakretz et al. 2019, The emergence of number and syntax units in LSTM language models
"""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch

from relmo.analysis.core.causal import Unit, list_units, stack_unit_rows
from relmo.analysis.core.effects import compute_row_auc
from relmo.analysis.core.show import PALETTE, Report, Table, format_number, make_colormap, save_figure, to_plain
from relmo.analysis.core.trace import Trace
from relmo.analysis.syntax.agreement import Sweep, Together, ablate_together, sample_pairs, sample_units, sweep
from relmo.analysis.syntax.pair_scores import Reader, plan_pairs
from relmo.analysis.syntax.syntax_units import trace_forward
from relmo.errors import CorpusError, SettingError
from relmo.models.sequence_model import SequenceModel, untrained
from relmo.nn.softmax import FullSoftmax
from relmo.settings.fields import Progress
from relmo.text.minimal_pairs import MinimalPair

RIDGE = 0.1  # penalty on the squared weights of all units, relative to the mean of the kernel's diagonal
Reach = Literal["long", "short", "none"]
HIGH_AREA, LOW_AREA = 0.9, 0.1  # areas of a unit that carries the label, and of one that has reversed
PLURAL = {"singular": False, "plural": True, "sg": False, "pl": True, "sing": False, "plur": True}
PER_CONDITION = 100  # pairs of a condition
DRAWS = 200  # random units
NUM_BEST = 10  # units of each reach that are ablated
NUM_MATRICES = 4  # stable, and reversing, units whose generalisation matrix is computed
MIN_COST = 5.0  # accuracy points that a needed unit costs
COLOURS: dict[Reach, str] = {"none": PALETTE[2], "short": PALETTE[0], "long": PALETTE[1]}


@dataclass(frozen=True)
class Decoding:
    """Areas under the ROC curve, and `generalisation` (T, T): accuracy with a row's threshold at another position."""

    units: list[Unit]
    area: np.ndarray  # each unit at each position, with its sign at the first; (U, T)
    high: np.ndarray  # whether the unit is larger for a positive label at the first position; (U,)
    together: np.ndarray  # all units, trained at a position (row) and tested at another; (T, T)
    generalisation: dict[Unit, np.ndarray] = field(default_factory=dict)

    def rank_units(self, reach: Reach, count: int) -> list[Unit]:
        """Return up to `count` units, best first: "long" carry the label at every position, "short" at the first and
        the opposite at the last; "none" are all units by their smallest area."""
        least, start, end = self.area.min(axis=1), self.area[:, 0], self.area[:, -1]
        if reach == "long":
            scores = np.where(least >= HIGH_AREA, least + 1e-3 * self.area.mean(axis=1), -1)
        elif reach == "short":
            scores = np.where((start >= HIGH_AREA) & (end <= LOW_AREA), start - end, -1)
        else:
            scores = least
        return [self.units[u] for u in np.argsort(-scores, kind="stable")[:count] if scores[u] >= 0]


def decode(
    traced: Trace,
    labels: np.ndarray,
    *,
    groups: Sequence[str],
    tested: np.ndarray | None = None,
    states: Sequence[str] | None = None,
    start: int = 0,
) -> Decoding:
    """Decode labels (N,) of bool from the trace of N texts of equal length.

    groups    a name for each text, such as its subject: a group is either in the training or in the test half
    tested    (N,) texts that are tested; all by default
    states    states whose units are used; by default h and, for an LSTM, c
    start     first position
    """
    count = len(labels)
    if len(traced.starts) != count or len(traced) % count or np.ptp(np.diff(traced.starts, append=len(traced))):
        raise SettingError(f"{count} labels need as many texts of one length, not {len(traced.starts)} texts")
    names = [name for name in traced.carried if name in traced.states] if states is None else list(states)
    values = stack_unit_rows(traced, names).reshape(-1, count, len(traced) // count)[:, :, start:]  # (U, N, T)
    tested = np.ones(count, dtype=bool) if tested is None else tested
    half = split_halves(groups, labels)
    units, folds = list_units(traced, names), [(half == side, (half != side) & tested) for side in (0, 1)]
    if not all(0 < labels[part].sum() < part.sum() for fold in folds for part in fold):
        raise SettingError("each half of the groups needs texts with either label; give more texts")
    area, signs = np.zeros((len(units), values.shape[2])), []
    for train, test in folds:
        signs.append(compute_row_auc(values[:, train, 0], labels[train]) >= 0.5)
        for position in range(values.shape[2]):
            areas = compute_row_auc(values[:, test, position], labels[test])
            area[:, position] += np.where(signs[-1], areas, 1 - areas) / 2
    together = np.zeros((2, values.shape[2], values.shape[2]))  # of a ridge regression on all units, by its position
    for fold, (train, test) in enumerate(folds):
        y = np.where(labels[train], 1.0, -1.0)
        y -= y.mean()
        for position in range(values.shape[2]):
            x = values[:, train, position].T.astype(np.float64)  # (n, U)
            mean, scale = x.mean(axis=0), x.std(axis=0)
            scale = np.where(scale > 1e-6 * (1 + np.abs(mean)), scale, np.inf)  # constant units get weight 0
            x = (x - mean) / scale
            kernel = x @ x.T
            kernel[np.diag_indices_from(kernel)] += RIDGE * max(np.trace(kernel) / len(x), 1e-12)
            # With fewer texts than units: X' (X X' + lambda I)^-1 y
            weights = x.T @ np.linalg.solve(kernel, y) / scale  # (U,)
            scores = np.tensordot(weights, values[:, test].astype(np.float64), axes=1)  # (n, T)
            together[fold, position] = compute_row_auc(scores.T, labels[test])
    decoding = Decoding(units, area, signs[0], together.mean(axis=0))
    selected = decoding.rank_units("long", NUM_MATRICES) + decoding.rank_units("short", NUM_MATRICES)
    for unit in dict.fromkeys(selected + decoding.rank_units("none", 1)):
        row, matrices = values[units.index(unit)], []  # (N, T)
        for train, test in folds:  # the threshold of a position is half-way between its two class means
            positive, negative = (row[train & (labels == label)].mean(axis=0) for label in (True, False))  # (T,)
            threshold, sign = (positive + negative) / 2, np.where(positive >= negative, 1.0, -1.0)
            predictions = (row[None, test] - threshold[:, None, None]) * sign[:, None, None] > 0  # (T, n, T)
            matrices.append((predictions == labels[test][None, :, None]).mean(axis=1))
        decoding.generalisation[unit] = np.mean(matrices, axis=0)
    return decoding


def split_halves(groups: Sequence[str], labels: np.ndarray) -> np.ndarray:
    """Return 0 or 1 for each text: 1 for every second group of either label, or second text if there is one group."""
    half = np.zeros(len(groups), dtype=np.int64)
    for label in (False, True):
        indices = np.flatnonzero(labels == label).tolist()
        names, number = np.unique([groups[index] for index in indices], return_inverse=True)
        half[indices] = (number if len(names) > 1 else np.arange(len(indices))) % 2
    return half


@dataclass(frozen=True)
class Items:
    """Sentences of equal length up to the verb."""

    words: list[str]  #: labels of the positions from the subject on
    pairs: list[MinimalPair]  #: minimal pairs of the sentences
    texts: list[list[str]]  #: symbols before the verb; N of T each
    plural: np.ndarray  #: (N,) whether the subject is plural
    attractor: np.ndarray | None  #: (N,) whether the noun after it is plural; None if there is none
    subject: int  #: position of the subject
    tested: np.ndarray  #: (N,) sentences with an attractor of the other number, or all if there is no attractor
    conditions: list[str]  #: conditions of the tested sentences
    forms: tuple[list[str], ...]  #: singular and plural verbs that the model knows
    left_out: int  #: number of pairs of another length


def number_items(model: SequenceModel, pairs: Sequence[MinimalPair], *, subject: int | None = None) -> Items:
    """Return pairs of one kind as items, without pairs of other lengths than the most common one."""
    if model.unit == "char":
        raise SettingError("number units need a model of words; this model reads characters")
    conditions = [parse_condition(pair.condition) for pair in pairs]
    kinds, numbers = [kind for kind, _ in conditions], [plurals for _, plurals in conditions]
    for pair, plurals in zip(pairs, numbers, strict=True):
        if not plurals:
            raise CorpusError(
                f"condition {pair.condition!r} does not state the subject's number; end it with singular or plural, "
                "followed by the number of the noun after it, if any: 'nounpp singular plural'"
            )
    if len(set(kinds)) > 1 or len(set(map(len, numbers))) > 1:
        names = ", ".join(sorted(set(kinds)))
        raise CorpusError(f"pairs are of several kinds ({names}); give pairs of one kind, as in nounpp.txt")
    contexts = plan_pairs(model, pairs).contexts()
    length = Counter(map(len, contexts.values())).most_common(1)[0][0]
    contexts = {item: text for item, text in contexts.items() if len(text) == length}
    selected, texts = [pairs[item] for item in contexts], list(contexts.values())
    plural = np.array([numbers[item][0] for item in contexts])
    if plural.all() or not plural.any():
        raise CorpusError("all subjects have the same number; give singular and plural subjects")
    position = _find_noun(texts, plural) if subject is None else subject
    if position is None or not 0 <= position < length:
        raise SettingError("the subject's position cannot be inferred from the words; give it, from 0: --subject 1")
    attractor = np.array([numbers[item][1] for item in contexts]) if len(numbers[0]) > 1 else None
    labels = []  # "subject", "attractor", else the most common word, in brackets if most sentences have another one
    for column in zip(*texts, strict=True):
        word, count = Counter(column).most_common(1)[0]
        labels.append(word if 2 * count > len(texts) else f"({word})")
    labels[position] = "subject"
    offset = None if attractor is None else _find_noun([text[position + 1 :] for text in texts], attractor)
    if offset is not None:
        labels[position + 1 + offset] = "attractor"
    tested = np.ones(len(texts), dtype=bool) if attractor is None else attractor != plural
    tested_conditions = list(dict.fromkeys(selected[i].condition for i in np.flatnonzero(tested)))
    sides: tuple[set[str], set[str]] = (set(), set())
    for pair, is_plural in zip(selected, plural.tolist(), strict=True):
        for form, side in ((pair.good, is_plural), (pair.bad, not is_plural)):
            sides[side].add((form.split() if isinstance(form, str) else form)[-1])
    assert model.vocabulary is not None
    index, left_out = model.vocabulary.index, len(pairs) - len(selected)
    forms = tuple(sorted(w for w in side - sides[1 - n] if w in index) for n, side in enumerate(sides))
    words = labels[position:]
    return Items(words, selected, texts, plural, attractor, position, tested, tested_conditions, forms, left_out)


def parse_condition(condition: str) -> tuple[str, tuple[bool, ...]]:
    """Return the name of a condition without the numbers at its end, and whether each noun is plural."""
    words, plurals = re.split(r"[\s_:,./-]+", condition), list[bool]()
    while words and words[-1].lower() in PLURAL:
        plurals.insert(0, PLURAL[words.pop().lower()])
    if not plurals and words and re.fullmatch("[SP]{1,2}", words[-1]):
        plurals = [letter == "P" for letter in words.pop()]
    return " ".join(words), tuple(plurals[:2])


def _find_noun(texts: Sequence[Sequence[str]], plural: np.ndarray) -> int | None:
    for position, column in enumerate(zip(*texts, strict=True)):
        words = np.array(column, dtype=object)
        if not {*words[plural]} & {*words[~plural]}:
            return position
    return None


class OutputWeights(NamedTuple):
    """A unit's weights to verbs: means over singular and plural forms, and the area that separates the two."""

    singular: float
    plural: float
    area: float


@dataclass(frozen=True)
class NumberUnit:
    """A unit and its evidence."""

    unit: Unit
    reach: Reach
    area: list[float]  #: area under the ROC curve for the subject's number, at each position from the subject on
    plural: bool  #: whether it is larger for plural subjects
    costs: dict[str, float]  #: accuracy points that it costs in each condition in which the numbers differ
    margins: dict[str, float]  #: mean decrease of the preference for the right form there, in nats
    p: dict[str, float]  #: share of units of the same layer, including the unit, that cost at least as much there
    needed: bool
    output: OutputWeights | None  #: weights to verbs, if the output layer reads the unit

    @property
    def larger_for(self) -> str:
        """Number of the subjects for which the unit is larger."""
        return "plural" if self.plural else "singular"

    def as_dict(self) -> dict[str, Any]:
        """Return all figures as plain Python values."""
        figures = to_plain(self)
        del figures["plural"]
        return figures | {"larger_for": self.larger_for}


@dataclass(frozen=True)
class NumberReport(Report):
    """Number units of a model; `together` is the joint ablation of all long-range, and of all short-range, units."""

    words: list[str]  #: labels of the positions from the subject to the last before the verb
    items: int
    left_out: int
    decoding: Decoding
    units: list[NumberUnit]  #: examined units, long-range ones first
    untrained_best: float | None  #: largest minimum area of a unit of the same network untrained; None without control
    sweep: Sweep  #: ablation of these units and of random ones
    random: int  #: number of random units in it; 0 if every unit was ablated
    together: dict[str, Together] = field(default_factory=dict)

    def of(self, reach: Reach, *, needed: bool | None = None) -> list[NumberUnit]:
        """Return the units of a reach; `needed` selects units that are needed, or that are not."""
        return [unit for unit in self.units if unit.reach == reach and needed in (None, unit.needed)]

    @property
    def verdict(self) -> str:
        """The result in one sentence."""
        needed, num_units = self.of("long", needed=True), len(self.decoding.units)
        num_long = len(self.decoding.rank_units("long", num_units))
        best = max(self.units, key=lambda unit: min(unit.area))
        joint = f"all units jointly reach {self.decoding.together[-1, -1]:.2f} before the verb"
        if needed:
            names = ", ".join(str(unit.unit) for unit in needed)
            result = f"{names}: long-range and needed; long-range units: {num_long}"
        elif num_long:
            result = f"{num_long} units keep the number, but none is needed by itself; {joint}"
        else:
            result = f"no unit keeps the number by itself: the best ({best.unit}) has {min(best.area):.2f}; {joint}"
        return f"{result}; short-range units: {len(self.decoding.rank_units('short', num_units))}"

    def as_dict(self) -> dict[str, Any]:
        return {
            "words": self.words,
            "items": self.items,
            "verdict": self.verdict,
            "units": [unit.as_dict() for unit in self.units],
            "untrained_best": self.untrained_best,
            "all_units": self.decoding.together.tolist(),
            "generalisation": to_plain(self.decoding.generalisation),
            "random_units": self.random,
            "sweep": self.sweep.as_dict(),
            "together": {name: ablation.as_dict() for name, ablation in self.together.items()},
        }

    def table(self) -> Table:
        conditions, rows = list(self.units[0].costs), []
        columns = ["unit", "reach", "subject", "least", "last", "larger for", *(f"cost, {name}" for name in conditions)]
        for unit in self.units:
            areas = (format_number(area) for area in (unit.area[0], min(unit.area), unit.area[-1]))
            row = [str(unit.unit), unit.reach, *areas, unit.larger_for]
            row += [f"{unit.costs[name]:+.1f} (p {unit.p[name]:.3f})" for name in conditions]
            output = unit.output
            row.append("" if output is None else f"{output.plural:+.2f} / {output.singular:+.2f} ({output.area:.2f})")
            rows.append([*row, "yes" if unit.needed else ""])
        together = self.decoding.together
        null = f"{self.random} random units of the same layers" if self.random else "all other units"
        best = self.untrained_best
        control = "" if best is None else f"; the best unit of the same network untrained keeps {best:.2f}"
        left_out = f"; {self.left_out} pairs of another length are left out" if self.left_out else ""
        notes = [
            self.verdict,
            f"areas under the ROC curve for the subject's number over {self.items} sentences in which the noun in "
            f"between has the other number, on held-out subjects: at the subject, least, before the verb{left_out}",
            f"all units jointly: {together[0, 0]:.2f} at the subject, {together[-1, -1]:.2f} before the verb, "
            f"{together[0, -1]:.2f} there as learned at the subject{control}",
            f"cost: accuracy points with the unit at {self.sweep.how}, against {null}; needed: costs {MIN_COST:.0f} "
            "points or more, and more than any of these",
        ]
        return Table([*columns, "to plural / singular verbs", "needed"], rows, "the subject's number", notes)

    def plot(self, path: str | Path) -> None:
        """Draw the areas over the sentence, generalisation across time, and the costs of units."""
        examined, names = {unit.unit for unit in self.units}, list(self.units[0].costs)
        random = [u for u, unit in enumerate(self.sweep.units) if unit not in examined]
        ticks = (range(len(self.words)), self.words)
        with save_figure(path, width=15, height=4.6) as figure:
            lines, matrix, costs = figure.subplots(1, 3)
            for reach, colour in COLOURS.items():
                for number, unit in enumerate(self.of(reach)):
                    label = f"{reach}: {unit.unit}" if reach != "none" else str(unit.unit)
                    lines.plot(unit.area, color=colour, linewidth=1, alpha=0.7, label=label if number < 2 else None)
            lines.plot(self.decoding.together[0], "k--", linewidth=1.2, label="all units, trained at the subject")
            lines.axhline(0.5, color=PALETTE[-1], linewidth=0.6, linestyle=":")
            for axes in (lines, matrix):
                axes.set_xticks(*ticks, rotation=30, ha="right")
            lines.set(ylim=(-0.03, 1.03), ylabel="AUC", title="AUC of the subject number")
            figure.legend(fontsize="small", loc="outside lower center", ncols=6)
            image = matrix.imshow(self.decoding.together, cmap=make_colormap(), vmin=0, vmax=1)
            matrix.set_yticks(*ticks)
            matrix.set(xlabel="tested at", ylabel="trained at", title="Generalisation across time")
            figure.colorbar(image, ax=matrix, shrink=0.8, label="AUC")
            for row, name in enumerate(names):
                drops = self.sweep.drops[random, self.sweep.conditions.index(name)]
                y, title = np.full(len(random), row + 0.15), None if row else "random units"
                costs.plot(drops, y, ".", color=PALETTE[-1], markersize=5, alpha=0.7, label=title)
                for reach, colour in COLOURS.items():
                    points = [unit.costs[name] for unit in self.of(reach)]
                    title = None if row or not points else "best units" if reach == "none" else f"{reach}-range"
                    y = np.full(len(points), row - 0.15)
                    costs.plot(points, y, "o", color=colour, markersize=5, alpha=0.7, label=title)
            costs.set_yticks(range(len(names)), [name.replace(" ", "\n") for name in names])
            costs.set(ylim=(-0.6, len(names) - 0.4), xlabel="points lost by ablation", title="Effect of ablation")
            costs.legend(fontsize="small", loc="center right")


def number_units(
    model: SequenceModel,
    pairs: Sequence[MinimalPair],
    *,
    subject: int | None = None,
    states: Sequence[str] | None = None,
    every: bool = False,
    how: Literal["zero", "mean"] = "zero",
    best: int = NUM_BEST,
    draws: int = DRAWS,
    per_condition: int | None = PER_CONDITION,
    control: bool = True,
    seed: int = 0,
    progress: Progress | None = None,
) -> NumberReport:
    """Find units that carry the number of the subject of minimal pairs, and measure what they cost.

    subject         the subject's position from 0, if it cannot be inferred from the words
    states          states whose units are used; by default h and, for an LSTM, c
    every           ablate every unit (slow), not only the best and random ones
    best            number of units of each reach that are examined
    draws           number of random units for comparison
    per_condition   number of pairs drawn from each condition; None takes all
    control         also examine the same network untrained
    """
    items = number_items(model, sample_pairs(pairs, per_condition, seed), subject=subject)
    names = tuple(states) if states is not None else Reader(model).stack.layers[0].cell.unit_states
    decodings, subjects = [], [text[items.subject] for text in items.texts]
    for network in (model, untrained(model, seed)) if control else (model,):
        traced = trace_forward(network, items.texts, names)
        options: dict[str, Any] = {"tested": items.tested, "states": names, "start": items.subject}
        decodings.append(decode(traced, items.plural, groups=subjects, **options))
    decoding = decodings[0]
    reach: dict[Unit, Reach] = dict.fromkeys(decoding.rank_units("long", best), "long")
    reach |= {unit: "short" for unit in decoding.rank_units("short", best) if unit not in reach}
    if "long" not in reach.values():
        reach |= {unit: "none" for unit in decoding.rank_units("none", best) if unit not in reach}
    null = decoding.units
    if not every:  # other units of the same states and layers, in the same proportions; all, if there are not enough
        generator, sample = np.random.default_rng(seed), dict[Unit, None]()
        for _ in range(draws):
            if len(sample) < draws:
                drawn = sample_units(model, list(reach), generator)
                sample |= dict.fromkeys(unit for unit in drawn if unit not in reach)
        null = list(sample)[:draws]
    ablated = list(dict.fromkeys([*reach, *null]))
    swept = sweep(model, items.pairs, units=ablated, how=how, per_condition=None, progress=progress)
    units = []
    for unit in reach:  # compared with the `null` units of its state and layer
        u = swept.units.index(unit)
        peers = [swept.units.index(v) for v in null if v != unit and (v.state, v.layer) == (unit.state, unit.layer)]
        costs, margins, p, needed = {}, {}, {}, False
        for name in items.conditions:
            c = swept.conditions.index(name)
            column = swept.drops[:, c]
            costs[name], margins[name] = float(column[u]), float(swept.margin[u, c])
            p[name] = (1 + int(np.count_nonzero(column[peers] >= column[u]))) / (1 + len(peers))
            needed |= bool(costs[name] >= MIN_COST and all(column[peers] < column[u]))
        row = decoding.units.index(unit)
        weights = output_weights(model, unit, items.forms)
        area, is_plural = decoding.area[row].tolist(), bool(decoding.high[row])
        units.append(NumberUnit(unit, reach[unit], area, is_plural, costs, margins, p, needed, weights))
    together = {}
    for kind in ("long", "short"):
        group = [unit for unit in reach if reach[unit] == kind]
        if len(group) > 1:
            num_sets = draws // 2 or 1
            together[kind] = ablate_together(model, items.pairs, group, how=how, draws=num_sets, per_condition=None)
    untrained_best = float(decodings[1].area.min(axis=1).max()) if control else None
    num_items, num_random = int(items.tested.sum()), 0 if every else len(null)
    return NumberReport(
        items.words, num_items, items.left_out, decoding, units, untrained_best, swept, num_random, together
    )


@torch.no_grad()
def output_weights(model: SequenceModel, unit: Unit, forms: tuple[Sequence[str], ...]) -> OutputWeights | None:
    """Return the weights from a unit to singular and plural words; None if the output layer does not read it."""
    reader = Reader(model)
    stack, softmax, vocabulary = reader.stack, model.softmax, model.vocabulary
    reader.stack.check_unit(unit)
    above = stack.layers[unit.layer + 1 :]
    is_residual = all(layer.adds_input for layer in above)
    if not isinstance(softmax, FullSoftmax) or vocabulary is None or not all(forms) or (above and not is_residual):
        return None
    symbols = torch.as_tensor(vocabulary.ids([*forms[0], *forms[1]])).to(softmax.weight.device)
    weight = softmax.vectors(symbols)  # (F, D)
    if model.bottleneck is not None:
        weight = weight @ model.bottleneck.weight
    projection, projections = stack.layers[unit.layer].projection, stack.layers[unit.layer].projections
    if projections:
        weight = weight @ projections[unit.direction == "backward"]
    if unit.state != "h" and projection is not None:
        weight = weight @ projection  # (F, H)
    values = weight[:, unit.number].double().cpu().numpy()
    plural = np.arange(len(values)) >= len(forms[0])
    area = compute_row_auc(values[None], plural)[0]
    return OutputWeights(float(values[~plural].mean()), float(values[plural].mean()), float(area))
