"""Which units keep the number of a subject until its verb, and does the model need them?

    report = number_units(model, noun_pp(known=model.vocabulary.index))
    report.found, report.verdict, report.decoding.area

A unit is found in two steps that know nothing of each other: it tells the subject's number (`decoding`), and without it
the model gets verbs wrong (`agreement.sweep`).

    long-range      tells the number at every word from the subject to the verb, also past a noun of the other number
    short-range     tells it at the subject, but past a noun of the other number tells the number of that noun
    needed          costs more accuracy, where the two numbers differ, than any of many random units of the same layers

Beside these stand a unit's weights to verbs in the singular and in the plural. Many units can keep a number together.
Where no single unit keeps it, the report says so, and shows the best unit and what all units tell together.

    Lakretz et al. 2019, The emergence of number and syntax units in LSTM language models
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch

from relmo.analysis.core.causal import Unit
from relmo.analysis.core.effects import areas, ranked
from relmo.analysis.core.show import Table, colours, figure, picture
from relmo.analysis.core.untrained import untrained
from relmo.analysis.syntax.agreement import Sweep, Together, ablate_together, drawn_pairs, random_set, sweep
from relmo.analysis.syntax.decoding import Decoding, decode
from relmo.analysis.syntax.number_items import Items, number_items
from relmo.analysis.syntax.pair_scores import Reader
from relmo.analysis.syntax.syntax_units import forward_trace
from relmo.models.bilm import BiLM
from relmo.models.lm import LanguageModel
from relmo.networks.language_model import RecurrentLM
from relmo.nn.softmax import FullSoftmax
from relmo.settings.arguments import Progress
from relmo.text.minimal_pairs import MinimalPair

PER_CONDITION = 100  # pairs of a condition
DRAWS = 200  # random units
BEST = 10  # units of each reach that are set to zero
POINTS = 5.0  # that a needed unit costs at least
Reach = Literal["long", "short", "none"]
COLOURS: dict[Reach, str] = {"none": "tab:gray", "short": "tab:blue", "long": "tab:orange"}


class OutputWeights(NamedTuple):
    """A unit's weights to verbs: their means over forms in the singular and in the plural, and the area with which they
    tell the two apart. It is 1 where all weights to plural forms are larger, 0 where all are smaller."""

    singular: float
    plural: float
    area: float


@dataclass(frozen=True)
class NumberUnit:
    """A unit and what is known of it.

    area      how well it tells the number, at each place from the subject on
    plural    whether it is larger where the subject is in the plural
    costs     points of accuracy that it costs in each condition where the numbers differ
    margins   how much less the right form is preferred there without it, in nats
    p         how often a random unit of the same layer costs as much there or more, itself counted
    output    its weights to verbs, where the output layer reads it
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
        """Everything by name, in plain numbers."""
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
    """What was found.

    words       the places from the subject to the last before the verb
    found       the units that were looked at, long-range ones first
    fresh       the largest area that a unit of the same network untrained keeps; None where it was not asked
    sweep       the units set to zero, random ones included
    random      how many of them are random; 0 where every unit was set
    together    all long-range, and all short-range, units off at once, where there are any
    """

    words: list[str]
    items: int
    left_out: int
    decoding: Decoding
    found: list[NumberUnit]
    fresh: float | None
    sweep: Sweep
    random: int
    together: dict[str, Together] = field(default_factory=dict)

    def of(self, reach: Reach, *, needed: bool | None = None) -> list[NumberUnit]:
        """The units of a reach; with `needed`, only those that are needed, or only those that are not."""
        return [each for each in self.found if each.reach == reach and needed in (None, each.needed)]

    @property
    def verdict(self) -> str:
        """The result in a sentence."""
        needed = self.of("long", needed=True)
        long, short = (len(some(len(self.decoding.units))) for some in (self.decoding.keeping, self.decoding.turning))
        best = max(self.found, key=lambda each: min(each.area))
        spread = f"all units together tell it with {self.decoding.together[-1, -1]:.2f} before the verb"
        if needed:
            said = f"{', '.join(str(each.unit) for each in needed)}: long-range and needed; long-range in all: {long}"
        elif long:
            said = f"units that keep the number: {long}, of which none is needed by itself; {spread}"
        else:
            said = f"no unit keeps the number by itself: the best, {best.unit}, falls to {min(best.area):.2f}; {spread}"
        return f"{said}; short-range: {short}"

    def as_dict(self) -> dict[str, Any]:
        """Everything by name, in plain numbers."""
        return {
            "words": self.words,
            "items": self.items,
            "verdict": self.verdict,
            "units": [each.as_dict() for each in self.found],
            "untrained_best": self.fresh,
            "all_units": self.decoding.together.tolist(),
            "generalisation": {str(unit): each.tolist() for unit, each in self.decoding.generalisation.items()},
            "random_units": self.random,
            "sweep": self.sweep.as_dict(),
            "together": {name: each.as_dict() for name, each in self.together.items()},
        }

    def table(self) -> Table:
        """A row for each unit that was looked at."""
        conditions = list(self.found[0].costs)
        columns = ["unit", "reach", "subject", "least", "last", "larger for", *(f"cost, {name}" for name in conditions)]
        rows = []
        for each in self.found:
            row = [
                str(each.unit),
                each.reach,
                *(figure(value) for value in (each.area[0], min(each.area), each.area[-1])),
            ]
            row += ["plural" if each.plural else "singular"]
            row += [f"{each.costs[name]:+.1f} (p {each.p[name]:.3f})" for name in conditions]
            row += [
                ""
                if each.output is None
                else f"{each.output.plural:+.2f} / {each.output.singular:+.2f} ({each.output.area:.2f})"
            ]
            rows.append([*row, "yes" if each.needed else ""])
        return Table([*columns, "to plural / singular verbs", "needed"], rows, "the subject's number", self.notes())

    def notes(self) -> list[str]:
        """What the numbers are, and the verdict."""
        together = self.decoding.together
        null = f"{self.random} random units of the same layers" if self.random else "all other units"
        fresh = "" if self.fresh is None else f"; the best unit of the same network untrained keeps {self.fresh:.2f}"
        left = f"; {self.left_out} pairs of another length are left out" if self.left_out else ""
        return [
            self.verdict,
            f"areas under the curve for the subject's number over {self.items} sentences in which the noun between has "
            f"the other one, of other subjects than the sign is from: at the subject, least, before the verb{left}",
            f"all units together: {together[0, 0]:.2f} at the subject, {together[-1, -1]:.2f} before the verb, "
            f"{together[0, -1]:.2f} there as learned at the subject{fresh}",
            f"cost: points of accuracy with the unit at {self.sweep.how}, against {null}; needed: costs {POINTS:.0f} "
            "points or more, and more than any of these",
        ]

    def _repr_html_(self) -> str:
        return self.table().html()

    def plot(self, path: str | Path) -> None:
        """What units tell over the sentence, generalisation across time, and what they cost, as a picture."""
        with picture(path, width=12, height=4) as drawn:
            lines, matrix, costs = drawn.subplots(1, 3)
            _draw_lines(lines, self)
            image = matrix.imshow(self.decoding.together, cmap=colours(), vmin=0, vmax=1)
            places = range(len(self.words))
            matrix.set_xticks(places, self.words, rotation=45, ha="right", fontsize=8)
            matrix.set_yticks(places, self.words, fontsize=8)
            matrix.set(title="all units: learned (row), asked (column)")
            drawn.colorbar(image, ax=matrix, shrink=0.7, label="area")
            _draw_costs(costs, self)


def _draw_lines(axes: Any, report: NumberReport) -> None:
    for reach, colour in COLOURS.items():
        for number, each in enumerate(report.of(reach)):
            label = f"{reach}: {each.unit}" if reach != "none" else str(each.unit)
            axes.plot(each.area, color=colour, linewidth=1, alpha=0.7, label=label if number < 2 else None)
    axes.plot(report.decoding.together[0], "k--", linewidth=1.2, label="all units, learned at the subject")
    axes.axhline(0.5, color="gray", linewidth=0.6, linestyle=":")
    axes.set_xticks(range(len(report.words)), report.words, rotation=45, ha="right", fontsize=8)
    axes.set(ylim=(-0.03, 1.03), ylabel="area, subject's number", title="the noun between has the other number")
    axes.legend(fontsize=7)


def _draw_costs(axes: Any, report: NumberReport) -> None:
    own = {each.unit for each in report.found}
    rest = [u for u, unit in enumerate(report.sweep.units) if unit not in own]
    for row, name in enumerate(report.found[0].costs):
        column = report.sweep.drops[:, report.sweep.conditions.index(name)]
        axes.plot(column[rest], np.full(len(rest), row) + 0.15, ".", color="tab:gray", markersize=3, alpha=0.5)
        for reach, colour in COLOURS.items():
            some = [each.costs[name] for each in report.of(reach)]
            axes.plot(some, np.full(len(some), row) - 0.15, "o", color=colour, markersize=4)
    names = list(report.found[0].costs)
    axes.set_yticks(range(len(names)), names, fontsize=8, rotation=90, va="center")
    axes.set(ylim=(-0.6, len(names) - 0.4), xlabel="points lost without a unit", title="units (o), random ones (.)")


def number_units(
    model: LanguageModel | BiLM,
    pairs: Sequence[MinimalPair],
    *,
    subject: int | None = None,
    states: Sequence[str] | None = None,
    every: bool = False,
    how: Literal["zero", "mean"] = "zero",
    best: int = BEST,
    draws: int = DRAWS,
    per_condition: int | None = PER_CONDITION,
    control: bool = True,
    seed: int = 0,
    progress: Progress | None = None,
) -> NumberReport:
    """Units that tell the number of the subject of minimal pairs, and what they cost.

    subject         the subject's place from 0, where it cannot be found from the words
    states          whose units: h and, of an LSTM, c
    every           set every unit to zero, which takes long, and not only the best and random ones
    best            how many units of each reach are looked at
    draws           how many random units they are compared with
    per_condition   how many pairs of each condition are drawn; None takes all
    control         ask the same network untrained, too
    """
    items = number_items(model, drawn_pairs(pairs, per_condition, seed), subject=subject)
    names = tuple(states) if states is not None else Reader(model).stack.layers[0].states
    decoding = _decoded(model, items, names)
    fresh = float(_decoded(untrained(model, seed), items, names).least.max()) if control else None
    reach: dict[Unit, Reach] = dict.fromkeys(decoding.keeping(best), "long")
    reach |= {unit: "short" for unit in decoding.turning(best) if unit not in reach}
    if "long" not in reach.values():
        reach |= {unit: "none" for unit in decoding.best(best) if unit not in reach}
    chosen, null = list(reach), decoding.units
    if not every:
        null = _random_units(model, chosen, draws, seed)
    swept = sweep(
        model, items.pairs, units=list(dict.fromkeys([*chosen, *null])), how=how, per_condition=None, progress=progress
    )
    evidence = Evidence(items, decoding, swept, null)
    found = [_described(model, evidence, unit, reach[unit]) for unit in chosen]
    together = {}
    for kind in ("long", "short"):
        some = [unit for unit in chosen if reach[unit] == kind]
        if len(some) > 1:
            together[kind] = ablate_together(
                model, items.pairs, some, how=how, draws=draws // 2 or 1, per_condition=None
            )
    return NumberReport(
        items.words,
        int(items.tested.sum()),
        items.left_out,
        decoding,
        found,
        fresh,
        swept,
        0 if every else len(null),
        together,
    )


def _decoded(model: LanguageModel | BiLM, items: Items, states: Sequence[str]) -> Decoding:
    traced = forward_trace(model, items.texts, states)
    about: dict[str, Any] = {"groups": items.subjects, "tested": items.tested, "first": items.subject}
    return decode(traced, items.plural, states=states, **about)


def _random_units(model: LanguageModel | BiLM, units: Sequence[Unit], draws: int, seed: int) -> list[Unit]:
    """So many other units of the states and layers of these units, in the same proportions, or all there are."""
    generator, found = np.random.default_rng(seed), dict[Unit, None]()
    for _ in range(draws):
        if len(found) >= draws:
            break
        found |= dict.fromkeys(unit for unit in random_set(model, units, generator) if unit not in units)
    return list(found)[:draws]


class Evidence(NamedTuple):
    """What units tell of the items, and what they cost; `null` are the units to compare with."""

    items: Items
    decoding: Decoding
    sweep: Sweep
    null: Sequence[Unit]


def _described(model: LanguageModel | BiLM, evidence: Evidence, unit: Unit, reach: Reach) -> NumberUnit:
    """A unit with what it costs against others of its state and layer."""
    items, decoding, swept, null = evidence
    own = swept.units.index(unit)
    others = [swept.units.index(u) for u in null if u != unit and (u.state, u.layer) == (unit.state, unit.layer)]
    costs, margins, p, needed = {}, {}, {}, False
    for name in items.conditions:
        at = swept.conditions.index(name)
        column = swept.drops[:, at]
        costs[name], margins[name] = float(column[own]), float(swept.margin[own, at])
        p[name] = (1 + int(np.count_nonzero(column[others] >= column[own]))) / (1 + len(others))
        needed |= bool(costs[name] >= POINTS and all(column[others] < column[own]))
    place = decoding.units.index(unit)
    weights = output_weights(model, unit, items.forms)
    area, plural = decoding.area[place].tolist(), bool(decoding.high[place])
    return NumberUnit(unit, reach, area, plural, costs, margins, p, needed, weights)


@torch.no_grad()
def output_weights(
    model: LanguageModel | BiLM, unit: Unit, forms: tuple[Sequence[str], Sequence[str]]
) -> OutputWeights | None:
    """The weights from a unit to words in the singular and in the plural. They go through the projection from a
    projected memory cell, and through the residual sums from a lower layer. None where the output layer does not read
    the unit, or there are no such words."""
    reader = Reader(model)
    stack, softmax, vocabulary = reader.stack, reader.network.softmax, model.vocabulary
    reader.check(unit)
    above = stack.layers[unit.layer + 1 :]
    handed_on = stack.residual != "none" and all(layer.sizes["h"] == stack.layers[0].sizes["h"] for layer in above)
    if not isinstance(softmax, FullSoftmax) or vocabulary is None or not all(forms) or (above and not handed_on):
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
    area = areas(ranked(values).ranks[None], plural[:, None].astype(np.float32))[0, 0]
    return OutputWeights(float(values[~plural].mean()), float(values[plural].mean()), float(area))
