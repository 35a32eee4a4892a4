"""What the trainings scored, as tables beside the paper's, as plain data, and as Markdown.

An increase is the difference of two means and, behind it, how much of the error is gone:

    (with ELMo - plain) / (100 - plain)

as the paper's "relative error reduction" in Table 1 (SQuAD: (85.8 - 81.1) / (100 - 81.1) = 24.9%).
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from relmo.analysis.core.show import Table
from relmo.reproduce.elmo_table.plan import (
    COMPARED,
    PLAIN,
    TablePlan,
    Variant,
    has_row,
    own_variant,
    published,
    training_name,
    weights_variant,
)
from relmo.reproduce.elmo_table.rows import PAPER_BILM, ROWS, VECTORS, TaskRow
from relmo.reproduce.trainings import score_of
from relmo.tasks.scores import spread

PLACES = ("input", "output")
OF_WORDS = ("task", "score", "biLM", "what differs")
"""The columns that are not of numbers."""


class SeedScores(NamedTuple):
    """The scores of one network with several seeds, in percent."""

    mean: float
    deviation: float
    seeds: int

    def __str__(self) -> str:
        return f"{self.mean:.2f}" if self.seeds == 1 else f"{self.mean:.2f} ± {self.deviation:.2f} ({self.seeds})"


class Increase(NamedTuple):
    """What ELMo adds: points, and the percentage of the error that is gone."""

    absolute: float
    relative: float

    def __str__(self) -> str:
        return f"{self.absolute:+.2f} / {self.relative:.1f}%"


def increase(plain: float, with_elmo: float) -> Increase:
    """Of two scores in percent."""
    error = 100 - plain
    return Increase(with_elmo - plain, 100 * (with_elmo - plain) / error if error else 0.0)


class LayerMix(NamedTuple):
    """The mean over seeds of the weights that the layers have at a place, from the characters' layer up, and gamma."""

    weights: list[float]
    gamma: float


def seed_scores(scores: Sequence[float]) -> SeedScores | None:
    """Of scores from 0 to 1, where there is one."""
    return SeedScores(*spread([100 * score for score in scores]), len(scores)) if scores else None


def mean_mix(results: Sequence[Mapping[str, Any]], place: str) -> LayerMix | None:
    """Of networks that have ELMo at this place, where there is one."""
    mixes = [each["elmo_mix"][place] for each in results if place in each.get("elmo_mix", ())]
    if not mixes:
        return None
    weights = [sum(column) / len(mixes) for column in zip(*(mix["weights"] for mix in mixes), strict=True)]
    return LayerMix(weights, sum(mix["gamma"] for mix in mixes) / len(mixes))


@dataclass(frozen=True)
class ElmoTables:
    """The tables of a plan, from the results of those of its trainings that are finished. `bilms` says of each biLM
    what it is."""

    plan: TablePlan
    results: Mapping[str, Mapping[str, Any]]
    bilms: Mapping[str, str]

    def found(self, row: str, variant: Variant) -> list[Mapping[str, Any]]:
        """The results of a network, a seed after the other."""
        names = (training_name(row, variant, seed) for seed in self.plan.seeds_of(row))
        return [self.results[name] for name in names if name in self.results]

    def score(self, row: str, variant: Variant) -> SeedScores | None:
        """What a network scored, where one seed of it is finished."""
        return seed_scores([score_of(results) for results in self.found(row, variant)])

    def gain(self, row: str, variant: Variant) -> Increase | None:
        """What a network with ELMo has more than the plain one."""
        plain, other = self.score(row, PLAIN), self.score(row, variant)
        return None if plain is None or other is None else increase(plain.mean, other.mean)

    def mix(self, row: str, bilm: str, place: str) -> LayerMix | None:
        """The weights of the layers that a row's network has learned at a place."""
        return mean_mix(self.found(row, weights_variant(ROWS[row], bilm)), place)

    def tables(self) -> list[Table]:
        """Those that were asked for."""
        tables = [self._table(name) for name in self.plan.tables]
        if self.plan.reduced:
            tables[-1].notes.append("reduced: tiny networks and the beginning of each file; the figures mean nothing")
        return tables

    def _table(self, name: str) -> Table:
        if name in COMPARED:
            return self.compared(name)
        return self.table_1() if name == "1" else self.weights()

    def table_1(self) -> Table:
        """Each task plain and with each biLM, and the paper's row."""
        rows = []
        for name, row in self._rows("1"):
            own = [own_variant(row, bilm) for bilm in self.plan.bilms]
            ours = [text for each in own for text in (_said(self.score(name, each)), _said(self.gain(name, each)))]
            paper = [*map(str, row.table1), str(increase(*row.table1))]
            rows.append([row.title, row.score, _said(self.score(name, PLAIN)), *ours, *paper, row.differs])
        ours = [title for bilm in self.plan.bilms for title in (bilm, f"{bilm}: increase")]
        columns = ["task", "score", "plain", *ours, "paper: plain", "paper: ELMo", "paper: increase", "what differs"]
        notes = [
            "percent on the development set, by which the best epoch was chosen: the mean of several seeds ± their "
            "standard deviation (how many), or the figure of one; the paper: test set",
            "increase: points / how much of the error is gone, (ELMo - plain) / (100 - plain)",
            VECTORS,
            *self._bilm_notes(),
        ]
        return Table(columns, rows, "Table 1: six tasks, plain and with ELMo", notes)

    def compared(self, table: str) -> Table:
        """Table 2, which layers and how strong the penalty on their weights; or Table 3, where ELMo goes in."""
        columns = COMPARED[table]
        rows = [
            [row.title, bilm, *(_said(self.score(name, each)) for each in columns(row, bilm).values())]
            + [str(figure) for figure in published(table, row)]
            for name, row in self._rows(table)
            for bilm in self.plan.bilms
        ]
        titles = list(columns(ROWS["squad"], ""))
        head = ["task", "biLM", *titles, *(f"paper: {title}" for title in titles)]
        note = "the paper: development sets"
        if table == "2":
            return Table(head, rows, "Table 2: which layers, and how even", [f"ELMo where Table 1 has it; {note}"])
        return Table(head, rows, "Table 3: ELMo at the input, at the output, or both", [note])

    def weights(self) -> Table:
        """The weights of the layers, as figure 2 has them."""
        found = [
            (row, bilm, [self.mix(name, bilm, place) for place in PLACES])
            for name, row in self._rows("weights")
            for bilm in self.plan.bilms
        ]
        count = max((len(mix.weights) for *_, mixes in found for mix in mixes if mix is not None), default=3)
        rows = [[row.title, bilm, *(text for mix in mixes for text in _mix(mix, count))] for row, bilm, mixes in found]
        columns = [f"{place}: {layer}" for place in PLACES for layer in [*layer_names(count), "gamma"]]
        notes = ["softmax of the weights of networks that have ELMo at both places; the mean of several seeds"]
        return Table(["task", "biLM", *columns], rows, "Figure 2: how much of each layer a task reads", notes)

    def summary(self) -> dict[str, Any]:
        """All figures by name, as --json prints them."""
        return {
            "paper": "Peters et al. 2018, Deep contextualized word representations",
            "bilms": dict(self.bilms),
            "rows": {name: self._row_summary(name, ROWS[name]) for name in self.plan.rows},
            "results": {name: dict(results) for name, results in self.results.items()},
        }

    def _row_summary(self, name: str, row: TaskRow) -> dict[str, Any]:
        told: dict[str, Any] = {"score": row.score, "differs": row.differs}
        for table in self.plan.tables:
            if table == "1":
                told["plain"] = _plain(self.score(name, PLAIN))
                told["elmo"] = {bilm: self._with_gain(name, own_variant(row, bilm)) for bilm in self.plan.bilms}
                told["paper"] = {"plain": row.table1[0], "elmo": row.table1[1], **increase(*row.table1)._asdict()}
            elif table == "weights":
                told[table] = {
                    bilm: {place: _plain(self.mix(name, bilm, place)) for place in PLACES} for bilm in self.plan.bilms
                }
            elif has_row(table, row):
                columns = COMPARED[table]
                ours = {
                    bilm: {title: _plain(self.score(name, each)) for title, each in columns(row, bilm).items()}
                    for bilm in self.plan.bilms
                }
                paper = dict(zip(columns(row, ""), published(table, row), strict=True))
                told["layers" if table == "2" else table] = ours | {"paper": paper}
        return told

    def _with_gain(self, name: str, variant: Variant) -> dict[str, Any] | None:
        score, gain = self.score(name, variant), self.gain(name, variant)
        return None if score is None else score._asdict() | (gain._asdict() if gain is not None else {})

    def _rows(self, table: str) -> Iterator[tuple[str, TaskRow]]:
        return ((name, ROWS[name]) for name in self.plan.rows if has_row(table, ROWS[name]))

    def _bilm_notes(self) -> list[str]:
        return [*(f"{name}: {what}" for name, what in self.bilms.items()), PAPER_BILM]


def layer_names(count: int) -> list[str]:
    """The layers of a biLM, from the lowest up."""
    return ["characters", *(f"layer {k}" for k in range(1, count))]


def _said(value: SeedScores | Increase | None) -> str:
    return "" if value is None else str(value)


def _plain(value: SeedScores | LayerMix | None) -> dict[str, Any] | None:
    return None if value is None else value._asdict()


def _mix(mix: LayerMix | None, count: int) -> list[str]:
    if mix is None:
        return [""] * (count + 1)
    empty = [""] * (count - len(mix.weights))
    return [*(f"{weight:.2f}" for weight in mix.weights), *empty, f"{mix.gamma:.2f}"]


def markdown(tables: Sequence[Table], pictures: Sequence[str] = ()) -> str:
    """Tables with their titles and notes, and pictures by the names of their files."""
    return "\n".join([*(line for table in tables for line in _markdown(table)), *(f"![]({name})" for name in pictures)])


def _markdown(table: Table) -> Iterator[str]:
    yield f"## {table.title}\n"
    for line in (table.columns, ["---"] * len(table.columns), *table.rows):
        yield f"| {' | '.join(line)} |"
    yield ""
    yield from (f"- {note}" for note in table.notes)
    yield ""
