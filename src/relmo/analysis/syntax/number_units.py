"""Number units: units that keep the number of a subject until its verb, and whether the model needs them.

    report = number_units(model, noun_pp(known=model.vocabulary.index))
    report.units, report.verdict, report.decoding.area

Two independent tests: the unit carries the subject's number (`decoding`), and without it the model gets verbs wrong
(`agreement.sweep`).

    long-range      carries the number at every word from the subject to the verb, also past a noun of the other number
    short-range     carries it at the subject, but past a noun of the other number carries the number of that noun
    needed          costs more accuracy, where the two numbers differ, than any of many random units of the same layers

The report also has a unit's weights to singular and plural verbs. Many units can keep a number jointly: if no single
unit keeps it, the report says so, and shows the best unit and the decoding from all units.

The numbers are the last words of a pair's condition, the subject's first: "nounpp singular plural", "PP", "sg_pl". The
position of a noun is the first at which its singular and plural forms have no word in common.

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

from relmo.analysis.core.causal import Unit
from relmo.analysis.core.effects import compute_auc, rank_values
from relmo.analysis.core.show import Table, format_number, make_colormap, save_figure
from relmo.analysis.core.untrained import untrained
from relmo.analysis.syntax.agreement import Sweep, Together, ablate_together, sample_pairs, sample_units, sweep
from relmo.analysis.syntax.decoding import Decoding, decode
from relmo.analysis.syntax.pair_scores import Reader, plan_pairs
from relmo.analysis.syntax.syntax_units import trace_forward
from relmo.errors import CorpusError, SettingError
from relmo.models.bilm import BiLM
from relmo.models.lm import LanguageModel
from relmo.networks.language_model import RecurrentLM
from relmo.nn.softmax import FullSoftmax
from relmo.settings.arguments import Progress
from relmo.text.minimal_pairs import MinimalPair

PLURAL = {"singular": False, "plural": True, "sg": False, "pl": True, "sing": False, "plur": True}
PER_CONDITION = 100  # pairs of a condition
DRAWS = 200  # random units
NUM_BEST = 10  # units of each reach that are ablated
MIN_COST = 5.0  # accuracy points that a needed unit costs
Reach = Literal["long", "short", "none"]
COLOURS: dict[Reach, str] = {"none": "tab:gray", "short": "tab:blue", "long": "tab:orange"}


@dataclass(frozen=True)
class Items:
    """Sentences of equal length up to the verb.

    pairs       minimal pairs of the sentences
    texts       symbols before the verb; N of T each
    plural      (N,) whether the subject is plural
    attractor   (N,) whether the noun after it is plural; None if there is none
    subject     position of the subject
    forms       singular and plural verbs
    left_out    number of pairs of another length
    """

    pairs: list[MinimalPair]
    texts: list[list[str]]
    plural: np.ndarray
    attractor: np.ndarray | None
    subject: int
    forms: tuple[list[str], list[str]]
    left_out: int = 0

    @property
    def words(self) -> list[str]:
        """Labels of the positions from the subject on: "subject", "attractor", else the most common word, in brackets
        if fewer than half of the sentences have it."""
        labels = []
        for column in zip(*self.texts, strict=True):
            word, count = Counter(column).most_common(1)[0]
            labels.append(word if 2 * count > len(self.texts) else f"({word})")
        labels[self.subject] = "subject"
        if self.attractor is not None:
            position = _find_noun([text[self.subject + 1 :] for text in self.texts], self.attractor)
            if position is not None:
                labels[self.subject + 1 + position] = "attractor"
        return labels[self.subject :]

    @property
    def tested(self) -> np.ndarray:
        """(N,) sentences with an attractor of the other number, or all if there is no attractor."""
        return np.ones(len(self.texts), dtype=bool) if self.attractor is None else self.attractor != self.plural

    @property
    def conditions(self) -> list[str]:
        """Conditions of the tested sentences."""
        return list(dict.fromkeys(self.pairs[i].condition for i in np.flatnonzero(self.tested)))


def number_items(model: LanguageModel | BiLM, pairs: Sequence[MinimalPair], *, subject: int | None = None) -> Items:
    """Return pairs of one kind as items, without pairs that do not have the most common length. `subject` is the
    subject's position from 0; by default it is inferred."""
    if not isinstance(model, BiLM) and model.settings.text.unit == "char":
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
    forms = _verb_forms(selected, plural, model)
    return Items(selected, texts, plural, attractor, position, forms, len(pairs) - len(selected))


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


def _verb_forms(
    pairs: Sequence[MinimalPair], plural: np.ndarray, model: LanguageModel | BiLM
) -> tuple[list[str], list[str]]:
    """Return the singular and plural verbs, without unknown forms and forms on both sides."""
    sides: tuple[set[str], set[str]] = (set(), set())
    for pair, is_plural in zip(pairs, plural.tolist(), strict=True):
        for text, side in ((pair.good, is_plural), (pair.bad, not is_plural)):
            sides[side].add((text.split() if isinstance(text, str) else text)[-1])
    assert model.vocabulary is not None
    index = model.vocabulary.index
    singular, plural_forms = (sorted(w for w in side - sides[1 - n] if w in index) for n, side in enumerate(sides))
    return singular, plural_forms


class OutputWeights(NamedTuple):
    """A unit's weights to verbs: means over singular and plural forms, and the area with which they separate the two
    (1 if all weights to plural forms are larger, 0 if all are smaller)."""

    singular: float
    plural: float
    area: float


@dataclass(frozen=True)
class NumberUnit:
    """A unit and its evidence.

    area      area under the ROC curve for the subject's number, at each position from the subject on
    plural    whether it is larger for plural subjects
    costs     accuracy points that it costs in each condition in which the numbers differ
    margins   mean decrease of the preference for the right form there, in nats
    p         share of units, random ones of the same layer and the unit itself, that cost at least as much there
    output    weights to verbs, if the output layer reads the unit
    """

    unit: Unit
    reach: Reach
    area: list[float]
    plural: bool
    costs: dict[str, float]
    margins: dict[str, float]
    p: dict[str, float]
    needed: bool
    output: OutputWeights | None

    def as_dict(self) -> dict[str, Any]:
        """Return all figures as plain Python values."""
        return {
            "unit": str(self.unit),
            "reach": self.reach,
            "area": self.area,
            "larger_for": "plural" if self.plural else "singular",
            "costs": self.costs,
            "margins": self.margins,
            "p": self.p,
            "needed": self.needed,
            "output": None if self.output is None else self.output._asdict(),
        }


@dataclass(frozen=True)
class NumberReport:
    """Number units of a model.

    words             labels of the positions from the subject to the last before the verb
    units             examined units, long-range ones first
    untrained_best    largest minimum area of a unit of the same network untrained; None without control
    sweep             ablation of these units and of random ones
    random            number of random units in it; 0 if every unit was ablated
    together          joint ablation of all long-range, and of all short-range, units
    """

    words: list[str]
    items: int
    left_out: int
    decoding: Decoding
    units: list[NumberUnit]
    untrained_best: float | None
    sweep: Sweep
    random: int
    together: dict[str, Together] = field(default_factory=dict)

    @property
    def found(self) -> list[NumberUnit]:
        """Deprecated alias of `units`."""
        return self.units

    def of(self, reach: Reach, *, needed: bool | None = None) -> list[NumberUnit]:
        """Return the units of a reach; `needed` selects units that are needed, or that are not."""
        return [unit for unit in self.units if unit.reach == reach and needed in (None, unit.needed)]

    @property
    def verdict(self) -> str:
        """The result in one sentence."""
        needed, num_units = self.of("long", needed=True), len(self.decoding.units)
        num_long = len(self.decoding.stable_units(num_units))
        best = max(self.units, key=lambda unit: min(unit.area))
        joint = f"all units jointly reach {self.decoding.together[-1, -1]:.2f} before the verb"
        if needed:
            names = ", ".join(str(unit.unit) for unit in needed)
            result = f"{names}: long-range and needed; long-range units: {num_long}"
        elif num_long:
            result = f"{num_long} units keep the number, but none is needed by itself; {joint}"
        else:
            result = f"no unit keeps the number by itself: the best ({best.unit}) has {min(best.area):.2f}; {joint}"
        return f"{result}; short-range units: {len(self.decoding.reversing_units(num_units))}"

    def as_dict(self) -> dict[str, Any]:
        """Return all figures as plain Python values."""
        return {
            "words": self.words,
            "items": self.items,
            "verdict": self.verdict,
            "units": [unit.as_dict() for unit in self.units],
            "untrained_best": self.untrained_best,
            "all_units": self.decoding.together.tolist(),
            "generalisation": {str(unit): matrix.tolist() for unit, matrix in self.decoding.generalisation.items()},
            "random_units": self.random,
            "sweep": self.sweep.as_dict(),
            "together": {name: ablation.as_dict() for name, ablation in self.together.items()},
        }

    def table(self) -> Table:
        """Return a table with one row per examined unit."""
        conditions, rows = list(self.units[0].costs), []
        columns = ["unit", "reach", "subject", "least", "last", "larger for", *(f"cost, {name}" for name in conditions)]
        for unit in self.units:
            areas = (format_number(area) for area in (unit.area[0], min(unit.area), unit.area[-1]))
            row = [str(unit.unit), unit.reach, *areas, "plural" if unit.plural else "singular"]
            row += [f"{unit.costs[name]:+.1f} (p {unit.p[name]:.3f})" for name in conditions]
            output = unit.output
            row.append("" if output is None else f"{output.plural:+.2f} / {output.singular:+.2f} ({output.area:.2f})")
            rows.append([*row, "yes" if unit.needed else ""])
        together = self.decoding.together
        null = f"{self.random} random units of the same layers" if self.random else "all other units"
        control, left_out = "", ""
        if self.untrained_best is not None:
            control = f"; the best unit of the same network untrained keeps {self.untrained_best:.2f}"
        if self.left_out:
            left_out = f"; {self.left_out} pairs of another length are left out"
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

    def _repr_html_(self) -> str:
        return self.table().html()

    def plot(self, path: str | Path) -> None:
        """Draw the areas over the sentence, generalisation across time, and the costs of units."""
        with save_figure(path, width=12, height=4) as figure:
            lines, matrix, costs = figure.subplots(1, 3)
            _draw_lines(lines, self)
            image = matrix.imshow(self.decoding.together, cmap=make_colormap(), vmin=0, vmax=1)
            positions = range(len(self.words))
            matrix.set_xticks(positions, self.words, rotation=45, ha="right", fontsize=8)
            matrix.set_yticks(positions, self.words, fontsize=8)
            matrix.set(title="all units: trained (row), tested (column)")
            figure.colorbar(image, ax=matrix, shrink=0.7, label="area")
            _draw_costs(costs, self)


def _draw_lines(axes: Any, report: NumberReport) -> None:
    for reach, colour in COLOURS.items():
        for number, unit in enumerate(report.of(reach)):
            label = f"{reach}: {unit.unit}" if reach != "none" else str(unit.unit)
            axes.plot(unit.area, color=colour, linewidth=1, alpha=0.7, label=label if number < 2 else None)
    axes.plot(report.decoding.together[0], "k--", linewidth=1.2, label="all units, trained at the subject")
    axes.axhline(0.5, color="gray", linewidth=0.6, linestyle=":")
    axes.set_xticks(range(len(report.words)), report.words, rotation=45, ha="right", fontsize=8)
    axes.set(ylim=(-0.03, 1.03), ylabel="area, subject's number", title="the noun in between has the other number")
    axes.legend(fontsize=7)


def _draw_costs(axes: Any, report: NumberReport) -> None:
    examined = {unit.unit for unit in report.units}
    random = [u for u, unit in enumerate(report.sweep.units) if unit not in examined]
    names = list(report.units[0].costs)
    for row, name in enumerate(names):
        column = report.sweep.drops[:, report.sweep.conditions.index(name)]
        axes.plot(column[random], np.full(len(random), row) + 0.15, ".", color="tab:gray", markersize=3, alpha=0.5)
        for reach, colour in COLOURS.items():
            costs = [unit.costs[name] for unit in report.of(reach)]
            axes.plot(costs, np.full(len(costs), row) - 0.15, "o", color=colour, markersize=4)
    axes.set_yticks(range(len(names)), names, fontsize=8, rotation=90, va="center")
    axes.set(ylim=(-0.6, len(names) - 0.4), xlabel="points lost without a unit", title="units (o), random units (.)")


def number_units(
    model: LanguageModel | BiLM,
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
    names = tuple(states) if states is not None else Reader(model).stack.layers[0].states
    decoding = _decode_number(model, items, names)
    untrained_best = None
    if control:
        untrained_best = float(_decode_number(untrained(model, seed), items, names).min_area.max())
    reach: dict[Unit, Reach] = dict.fromkeys(decoding.stable_units(best), "long")
    reach |= {unit: "short" for unit in decoding.reversing_units(best) if unit not in reach}
    if "long" not in reach.values():
        reach |= {unit: "none" for unit in decoding.best_units(best) if unit not in reach}
    null = decoding.units if every else _random_units(model, list(reach), draws, seed)
    ablated = list(dict.fromkeys([*reach, *null]))
    swept = sweep(model, items.pairs, units=ablated, how=how, per_condition=None, progress=progress)
    units = [_describe_unit(model, items, decoding, swept, null, unit, reach[unit]) for unit in reach]
    together = {}
    for kind in ("long", "short"):
        group = [unit for unit in reach if reach[unit] == kind]
        if len(group) > 1:
            num_sets = draws // 2 or 1
            together[kind] = ablate_together(model, items.pairs, group, how=how, draws=num_sets, per_condition=None)
    return NumberReport(
        items.words,
        int(items.tested.sum()),
        items.left_out,
        decoding,
        units,
        untrained_best,
        swept,
        0 if every else len(null),
        together,
    )


def _decode_number(model: LanguageModel | BiLM, items: Items, states: Sequence[str]) -> Decoding:
    traced = trace_forward(model, items.texts, states)
    subjects = [text[items.subject] for text in items.texts]
    return decode(traced, items.plural, groups=subjects, tested=items.tested, states=states, start=items.subject)


def _random_units(model: LanguageModel | BiLM, units: Sequence[Unit], draws: int, seed: int) -> list[Unit]:
    """Draw other units of the same states and layers, in the same proportions; all, if there are not enough."""
    generator, sample = np.random.default_rng(seed), dict[Unit, None]()
    for _ in range(draws):
        if len(sample) >= draws:
            break
        sample |= dict.fromkeys(unit for unit in sample_units(model, units, generator) if unit not in units)
    return list(sample)[:draws]


def _describe_unit(
    model: LanguageModel | BiLM,
    items: Items,
    decoding: Decoding,
    swept: Sweep,
    null: Sequence[Unit],
    unit: Unit,
    reach: Reach,
) -> NumberUnit:
    """Return a unit with its costs, compared with the `null` units of its state and layer."""
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
    return NumberUnit(unit, reach, area, is_plural, costs, margins, p, needed, weights)


@torch.no_grad()
def output_weights(
    model: LanguageModel | BiLM, unit: Unit, forms: tuple[Sequence[str], Sequence[str]]
) -> OutputWeights | None:
    """Return the weights from a unit to singular and plural words: through the projection from a projected memory cell,
    and through the residual sums from a lower layer. None if the output layer does not read the unit, or there are no
    such words."""
    reader = Reader(model)
    stack, softmax, vocabulary = reader.stack, reader.network.softmax, model.vocabulary
    reader.check(unit)
    above = stack.layers[unit.layer + 1 :]
    is_residual = stack.residual != "none" and all(layer.sizes["h"] == stack.layers[0].sizes["h"] for layer in above)
    if not isinstance(softmax, FullSoftmax) or vocabulary is None or not all(forms) or (above and not is_residual):
        return None
    symbols = torch.as_tensor(vocabulary.ids([*forms[0], *forms[1]])).to(softmax.weight.device)
    weight = softmax.vectors(symbols)  # (F, D)
    if isinstance(reader.network, RecurrentLM) and reader.network.bottleneck is not None:
        weight = weight @ reader.network.bottleneck.weight
    projection = stack.layers[unit.layer].projection
    if unit.state != "h" and projection is not None:
        weight = weight @ projection  # (F, H)
    values = weight[:, unit.number].double().cpu().numpy()
    plural = np.arange(len(values)) >= len(forms[0])
    area = compute_auc(rank_values(values).ranks[None], plural[:, None].astype(np.float32))[0, 0]
    return OutputWeights(float(values[~plural].mean()), float(values[plural].mean()), float(area))
