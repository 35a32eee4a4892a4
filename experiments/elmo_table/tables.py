"""Scores of the trainings as tables beside the paper's, as plain values, and as Markdown.

An increase is the difference of two means and the relative error reduction of the paper's Table 1,

    (with ELMo - plain) / (100 - plain)

for example for SQuAD (85.8 - 81.1) / (100 - 81.1) = 24.9%.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from experiments.elmo_table.fine_tuning import BEFORE
from experiments.elmo_table.plan import (
    PLAIN,
    TUNED,
    VARIANT_TABLES,
    TablePlan,
    Variant,
    default_variant,
    has_row,
    published_scores,
    training_name,
    tuning_name,
    weights_variant,
)
from experiments.elmo_table.rows import PAPER_BILM, ROWS, VECTORS, TaskRow
from experiments.trainings import get_score
from relmo.analysis.core.show import Table
from relmo.tasks.scores import mean_and_deviation

PLACES = ("input", "output")
TEXT_COLUMNS = ("task", "score", "biLM", "what differs")


class SeedScores(NamedTuple):
    """Mean and standard deviation of the scores of one network over its seeds, in percent."""

    mean: float
    deviation: float
    seeds: int

    def __str__(self) -> str:
        return f"{self.mean:.2f}" if self.seeds == 1 else f"{self.mean:.2f} ± {self.deviation:.2f} ({self.seeds})"


class Increase(NamedTuple):
    """Gain with ELMo in points, and error reduction in percent."""

    absolute: float
    relative: float

    def __str__(self) -> str:
        return f"{self.absolute:+.2f} / {self.relative:.1f}%"


class LayerMix(NamedTuple):
    """Mean over seeds of the layer weights at a place, from the character layer up, and gamma."""

    weights: list[float]
    gamma: float


def compute_increase(plain: float, with_elmo: float) -> Increase:
    """Return the increase between two scores in percent."""
    error = 100 - plain
    return Increase(with_elmo - plain, 100 * (with_elmo - plain) / error if error else 0.0)


def average_scores(scores: Sequence[float]) -> SeedScores | None:
    """Return mean and deviation of scores from 0 to 1; None without scores."""
    return SeedScores(*mean_and_deviation([100 * score for score in scores]), len(scores)) if scores else None


def average_mix(results: Sequence[Mapping[str, Any]], place: str) -> LayerMix | None:
    """Return the mean layer weights of networks with ELMo at this place; None if there are none."""
    mixes = [entry["elmo_mix"][place] for entry in results if place in entry.get("elmo_mix", ())]
    if not mixes:
        return None
    weights = [sum(column) / len(mixes) for column in zip(*(mix["weights"] for mix in mixes), strict=True)]
    return LayerMix(weights, sum(mix["gamma"] for mix in mixes) / len(mixes))


@dataclass(frozen=True)
class ElmoTables:
    """Tables of a plan from the results of its finished trainings; `bilms` describes each biLM."""

    plan: TablePlan
    results: Mapping[str, Mapping[str, Any]]
    bilms: Mapping[str, str]

    def seed_results(self, row: str, variant: Variant) -> list[Mapping[str, Any]]:
        """Return the results of a network by seed."""
        names = (training_name(row, variant, seed) for seed in self.plan.row_seeds(row))
        return [self.results[name] for name in names if name in self.results]

    def score(self, row: str, variant: Variant) -> SeedScores | None:
        """Return the score of a network; None if no seed is finished."""
        return average_scores([get_score(results) for results in self.seed_results(row, variant)])

    def increase(self, row: str, variant: Variant) -> Increase | None:
        """Return the increase of a network with ELMo over the plain one."""
        plain, with_elmo = self.score(row, PLAIN), self.score(row, variant)
        return None if plain is None or with_elmo is None else compute_increase(plain.mean, with_elmo.mean)

    def mix(self, row: str, bilm: str, place: str) -> LayerMix | None:
        """Return the layer weights that a row's network has learned at a place."""
        return average_mix(self.seed_results(row, weights_variant(ROWS[row], bilm)), place)

    def tables(self) -> list[Table]:
        """Return the tables of the plan."""
        tables = []
        for name in self.plan.tables:
            if name in VARIANT_TABLES:
                tables.append(self._variant_table(name))
            else:
                tables.append(self._table_1() if name == "1" else self._weights_table())
        if self.plan.fine_tune:
            tables.append(self._perplexity_table())
        if self.plan.reduced:
            tables[-1].notes.append("reduced: tiny networks, the beginning of each file; the scores mean nothing")
        return tables

    def _table_1(self) -> Table:
        rows = []
        for name, row in self._rows("1"):
            cells = [row.title, row.score, _format(self.score(name, PLAIN))]
            for bilm in self.plan.columns:
                variant = default_variant(row, bilm)
                cells += [_format(self.score(name, variant)), _format(self.increase(name, variant))]
            rows.append([*cells, *map(str, row.table1), str(compute_increase(*row.table1)), row.differs])
        titles = [title for bilm in self.plan.columns for title in (bilm, f"{bilm}: increase")]
        columns = ["task", "score", "plain", *titles, "paper: plain", "paper: ELMo", "paper: increase", "what differs"]
        notes = [
            "percent on the development set, by which the best epoch was chosen: mean ± standard deviation (number of "
            "seeds), or the score of one seed; the paper: test set",
            "increase: points / relative error reduction, (ELMo - plain) / (100 - plain)",
            VECTORS,
            *(f"{name}: {description}" for name, description in self.bilms.items()),
            PAPER_BILM,
        ]
        if self.plan.fine_tune:
            notes.append(f"NAME{TUNED}: the biLM NAME, fine-tuned on the texts of each task's training file")
        return Table(columns, rows, "Table 1: six tasks, plain and with ELMo", notes)

    def _variant_table(self, table: str) -> Table:
        make_variants = VARIANT_TABLES[table]
        rows = []
        for name, row in self._rows(table):
            for bilm in self.plan.columns:
                scores = [_format(self.score(name, variant)) for variant in make_variants(row, bilm).values()]
                rows.append([row.title, bilm, *scores, *map(str, published_scores(table, row))])
        titles = list(make_variants(ROWS["squad"], ""))
        columns = ["task", "biLM", *titles, *(f"paper: {title}" for title in titles)]
        note = "the paper: development sets"
        if table == "2":
            return Table(columns, rows, "Table 2: layers and lambda", [f"ELMo at the place of Table 1; {note}"])
        return Table(columns, rows, "Table 3: ELMo at the input, at the output, or both", [note])

    def _weights_table(self) -> Table:
        mixes = {
            (row.title, bilm): [self.mix(name, bilm, place) for place in PLACES]
            for name, row in self._rows("weights")
            for bilm in self.plan.columns
        }
        count = max((len(mix.weights) for pair in mixes.values() for mix in pair if mix is not None), default=3)
        rows = []
        for (title, bilm), pair in mixes.items():
            cells = [title, bilm]
            for mix in pair:
                weights = [] if mix is None else [f"{weight:.2f}" for weight in mix.weights]
                cells += [*weights, *[""] * (count - len(weights)), "" if mix is None else f"{mix.gamma:.2f}"]
            rows.append(cells)
        columns = [f"{place}: {layer}" for place in PLACES for layer in [*layer_names(count), "gamma"]]
        notes = ["softmax of the layer weights of networks with ELMo at both places; mean over seeds"]
        return Table(["task", "biLM", *columns], rows, "Figure 2: layer weights of each task", notes)

    def _perplexity_table(self) -> Table:
        rows = []
        for row, bilm in self.plan.tunings():
            tokens, *perplexities = self.perplexities(row, bilm).values()
            cells = [f"{tokens:,}" if tokens else "", *("" if p is None else f"{p:.1f}" for p in perplexities)]
            rows.append([ROWS[row].title, bilm, *cells])
        columns = ["task", "biLM", "training tokens", "perplexity before", "after"]
        notes = ["perplexity: forward and backward, of the texts of the development file, which it is not trained on"]
        return Table(columns, rows, "Fine-tuning on the training texts of each task", notes)

    def perplexities(self, row: str, bilm: str) -> dict[str, Any]:
        """Return the number of training tokens and the perplexities before and after fine-tuning; None if unknown."""
        results = self.results.get(tuning_name(row, f"{bilm}{TUNED}"), {})
        names = {"tokens": "train_tokens", "before": BEFORE, "after": "valid_perplexity"}
        return {title: results.get(name) for title, name in names.items()}

    def summary(self) -> dict[str, Any]:
        """Return all scores as plain values, as --json prints them."""
        return {
            "paper": "Peters et al. 2018, Deep contextualized word representations",
            "bilms": dict(self.bilms),
            "rows": {name: self._row_summary(name, ROWS[name]) for name in self.plan.rows},
            "results": {name: dict(results) for name, results in self.results.items()},
        }

    def _row_summary(self, name: str, row: TaskRow) -> dict[str, Any]:
        summary: dict[str, Any] = {"score": row.score, "differs": row.differs}
        for table in self.plan.tables:
            if table == "1":
                summary["plain"] = _as_dict(self.score(name, PLAIN))
                summary["elmo"] = {}
                for bilm in self.plan.columns:
                    variant = default_variant(row, bilm)
                    score, gain = _as_dict(self.score(name, variant)), _as_dict(self.increase(name, variant))
                    summary["elmo"][bilm] = None if score is None else score | (gain or {})
                paper = {"plain": row.table1[0], "elmo": row.table1[1]}
                summary["paper"] = paper | compute_increase(*row.table1)._asdict()
            elif table == "weights":
                summary[table] = {
                    bilm: {place: _as_dict(self.mix(name, bilm, place)) for place in PLACES}
                    for bilm in self.plan.columns
                }
            elif has_row(table, row):
                make_variants = VARIANT_TABLES[table]
                scores: dict[str, Any] = {
                    bilm: {title: _as_dict(self.score(name, v)) for title, v in make_variants(row, bilm).items()}
                    for bilm in self.plan.columns
                }
                scores["paper"] = dict(zip(make_variants(row, ""), published_scores(table, row), strict=True))
                summary["layers" if table == "2" else table] = scores
        tuned = [bilm for bilm in self.plan.bilms if (name, bilm) in self.plan.tunings()]
        if tuned:
            summary["fine_tuning"] = {bilm: self.perplexities(name, bilm) for bilm in tuned}
        return summary

    def _rows(self, table: str) -> Iterator[tuple[str, TaskRow]]:
        return ((name, ROWS[name]) for name in self.plan.rows if has_row(table, ROWS[name]))


def layer_names(count: int) -> list[str]:
    """Return the names of the layers of a biLM, from the lowest up."""
    return ["characters", *(f"layer {k}" for k in range(1, count))]


def _format(score: SeedScores | Increase | None) -> str:
    return "" if score is None else str(score)


def _as_dict(score: SeedScores | Increase | LayerMix | None) -> dict[str, Any] | None:
    return None if score is None else score._asdict()


def to_markdown(tables: Sequence[Table], figures: Sequence[str] = ()) -> str:
    """Return tables with titles and notes, and figures by file name, as Markdown."""
    lines = []
    for table in tables:
        lines.append(f"## {table.title}\n")
        for cells in (table.columns, ["---"] * len(table.columns), *table.rows):
            lines.append(f"| {' | '.join(cells)} |")
        lines += ["", *(f"- {note}" for note in table.notes), ""]
    return "\n".join([*lines, *(f"![]({name})" for name in figures)])
