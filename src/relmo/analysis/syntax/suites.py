"""Targeted syntactic evaluation: accuracy on test suites of SyntaxGym, by circuit, and on sets of minimal pairs, by
phenomenon (Hu et al. 2020, A systematic assessment of syntactic generalization in neural language models)."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from relmo.analysis.core.effects import Interval, mean_interval
from relmo.analysis.core.show import Report, Table, split_progress
from relmo.analysis.syntax.agreement import MAX_PLOTTED, agreement, draw_accuracies, format_accuracy
from relmo.analysis.syntax.pair_scores import BATCH_TEXTS, accuracy
from relmo.errors import CorpusError, SettingError, quote
from relmo.models.evaluate import full_precision
from relmo.models.sequence_model import SequenceModel, untrained
from relmo.settings.fields import Progress
from relmo.settings.options import SurprisalOptions
from relmo.text.minimal_pairs import PAIR_SETS, MinimalPair, list_pair_files, read_pairs, read_rows
from relmo.text.sources import SourceText
from relmo.text.suites import EVERY, Suite, evaluate_formula, read_suite

SYNTAXGYM = "SyntaxGym"
PEERS = ("grnn", "jrnn", "gpt-2-pretrained", "rnng_bllip-lg")  # published models that are shown by default
METRICS: dict[str, Any] = {"sum": np.sum, "mean": np.mean, "median": np.median, "range": np.ptp}
METRICS |= {"max": np.max, "min": np.min}
PairSets = Mapping[tuple[str, str], Sequence[MinimalPair]]
"""Minimal pairs by source, such as BLiMP, and phenomenon."""
Published = Mapping[str, Mapping[str, float]]
"""Accuracies from 0 to 1 by model and suite."""


@dataclass(frozen=True)
class SuiteReport(Report):
    """Accuracy in percent by suite or condition, each source and group (circuit, phenomenon) preceded by its mean.

    A row has source, group, suite, the figures of `Accuracy.summary`, `unknown` (sentences with unknown words),
    `untrained`, `published` by model; that of a suite also `predictions` (items for which each formula holds) and
    `wrong` (numbers of items). `columns` are the published models in the table."""

    rows: list[dict[str, Any]]
    columns: Sequence[str] = ()

    def get_mean(self, source: str = SYNTAXGYM, group: str = "") -> dict[str, Any]:
        """Return the mean over the suites of a source, or of a group."""
        return next(x for x in self.rows if (x["source"], x["group"], x["suite"]) == (source, group, ""))

    def table(self) -> Table:
        names = [
            f"    {x['suite']}" if x["suite"] else f"  {x['group']}" if x["group"] else f"{x['source']}, mean"
            for x in self.rows
        ]
        figures = [(x["unknown"], x["untrained"], *map(x["published"].get, self.columns)) for x in self.rows]
        rows = [format_accuracy(*cells) for cells in zip(names, self.rows, figures, strict=True)]
        columns = ["suite", "items", "right", "95% interval", "known words", "unknown", "untrained", *self.columns]
        notes = [
            "percent of items for which all predictions hold, or of pairs (a tie is half a point); others are means",
            "known words: items whose compared words are all known; unknown: sentences with unknown words",
        ]
        return Table(columns, rows, "targeted syntactic evaluation", notes)

    def plot(self, path: str | Path) -> None:
        """Draw a bar with its interval for each suite, or for each mean if there are many suites."""
        rows = [row for row in self.rows if row["suite"]]
        if len(rows) > MAX_PLOTTED:
            rows = [row for row in self.rows if not row["suite"]]
        marks = {name: [row["published"].get(name) for row in rows] for name in self.columns}
        marks["untrained"] = [row["untrained"] for row in rows]
        names = [row["suite"] or row["group"] or row["source"] for row in rows]
        draw_accuracies(path, names, [[row["accuracy"], *row["interval"]] for row in rows], marks)


def evaluate_suites(
    model: SequenceModel,
    suites: Sequence[Suite],
    pair_sets: PairSets | None = None,
    *,
    published: Published | None = None,
    control: bool = True,
    seed: int = 0,
    progress: Progress | None = None,
) -> SuiteReport:
    """Return the accuracy on suites and minimal pairs; `control` adds the same network untrained."""
    pair_sets = pair_sets or {}
    sizes = [len(suite.items) for suite in suites] + [len(pairs) for pairs in pair_sets.values()]
    steps = iter(split_progress(progress, sizes))
    baseline = untrained(model, seed) if control and model.is_recurrent else None
    rows: list[dict[str, Any]] = []
    for suite in suites:
        names = {"source": SYNTAXGYM, "group": suite.circuit, "suite": suite.meta.name}
        peers = {name: 100 * x[suite.meta.name] for name, x in (published or {}).items() if suite.meta.name in x}
        share = None if baseline is None else score_suite(baseline, suite)["accuracy"]
        rows.append(names | score_suite(model, suite) | {"untrained": share, "published": peers})
        next(steps)(1.0)
    for (source, phenomenon), pairs in pair_sets.items():
        conditions = agreement(model, pairs, control=control, seed=seed, progress=next(steps)).as_dict()["conditions"]
        for row in conditions[len(conditions) > 1 :]:  # without the row of all pairs
            names = {"source": source, "group": phenomenon, "suite": row.pop("condition")}
            rows.append(names | row | {"unknown": None, "published": {}})
    report = []
    for source in dict.fromkeys(row["source"] for row in rows):
        members = [row for row in rows if row["source"] == source]
        report.append(_average(members, source))
        for group in dict.fromkeys(row["group"] for row in members):
            in_group = [row for row in members if row["group"] == group]
            report += [_average(in_group, source, group), *in_group]
    return SuiteReport(report)


def _average(rows: Sequence[dict[str, Any]], source: str, group: str = "") -> dict[str, Any]:
    """Return the mean of rows; published figures that a row lacks are left out."""
    share = mean_interval([Interval(row["accuracy"], *row["interval"]) for row in rows])
    average: dict[str, Any] = {"source": source, "group": group, "suite": "", "accuracy": share.value}
    average["interval"] = [share.low, share.high]
    average |= {name: sum(row[name] for row in rows) for name in ("pairs", "known_pairs")}
    for name in ("known_accuracy", "unknown", "untrained"):
        figures = [row[name] for row in rows if row[name] is not None and row[name] == row[name]]
        average[name] = float(np.mean(figures)) if figures else None
    shared = [name for name in rows[0]["published"] if all(name in row["published"] for row in rows)]
    return average | {"published": {name: float(np.mean([row["published"][name] for row in rows])) for name in shared}}


def measure_regions(model: SequenceModel, suite: Suite) -> dict[str, dict[str, np.ndarray]]:
    """Return for each condition and region number, as text, the region's value in bits (0 if it is empty) and whether
    it has unknown words (0 or 1), for each item; (2, N).

    Each sentence is read by itself, bidirectional models forward. A symbol belongs to the region in which its word
    begins; a space belongs to the word before it. Ends of sentences are not predicted."""
    vocabulary, is_character = model.get_output_vocabulary(), model.unit == "char"
    attach = is_character or model.settings.text.tokenizer == "words"  # other models read text that is tokenized
    options, metric = SurprisalOptions(context="sentence"), METRICS[suite.meta.metric]
    values: dict[str, dict[str, np.ndarray]] = {}
    sentences = [(i, condition) for i, item in enumerate(suite.items) for condition in item.conditions]
    for begin in range(0, len(sentences), BATCH_TEXTS):
        batch = sentences[begin : begin + BATCH_TEXTS]
        texts, starts = zip(*(condition.join(attach=attach) for _, condition in batch), strict=True)
        # A last word of characters ends with a space; otherwise it would be as probable as all that begin with it.
        sources = (SourceText(text + " " * is_character) for text in texts)
        lines: list[Any] = [model.read_line(source, options, last=False) for source in sources]
        with torch.no_grad(), full_precision():
            scores, _ = model.score_lines([[line] for line in lines], options, None)  # (2, B, T)
        for (i, condition), line, bits, offsets in zip(batch, lines, scores[0], starts, strict=True):
            word_starts = np.array([word.start for word in line.words])[line.owners]
            owners = np.searchsorted(offsets, word_starts, side="right") - 1  # earlier regions at an offset are empty
            is_unknown = vocabulary.ids(line.symbols) == vocabulary.unknown
            regions = values.setdefault(condition.condition_name, {})
            for index, region in enumerate(condition.regions):
                array = regions.setdefault(str(region.region_number), np.zeros((2, len(suite.items))))
                if (mask := owners == index).any():
                    array[:, i] = metric(bits[: len(owners)][mask]), is_unknown[mask].any()
    return values


def score_suite(model: SequenceModel, suite: Suite) -> dict[str, Any]:
    """Return the figures of a suite. An item is right if all predictions hold for it, as in the published results."""
    values = measure_regions(model, suite)
    is_known = np.ones(len(suite.items), dtype=bool)

    def lookup(region: str, condition: str) -> np.ndarray:
        bits, unknown = np.sum([*values[condition].values()], axis=0) if region == EVERY else values[condition][region]
        np.logical_and(is_known, unknown == 0, out=is_known)
        return bits

    formulas = [prediction.formula for prediction in suite.predictions]
    holds = np.stack([np.broadcast_to(evaluate_formula(x, lookup), is_known.shape) for x in formulas])  # (P, N)
    is_right = np.logical_and.reduce(holds)
    unknown = [np.any([array[1] for array in regions.values()], axis=0) for regions in values.values()]
    return accuracy(np.where(is_right, 1.0, -1.0), is_known).summary() | {
        "unknown": 100 * float(np.mean(unknown)),
        "predictions": dict(zip(formulas, (100 * holds.mean(axis=1)).tolist(), strict=True)),
        "wrong": [item.item_number for item, right in zip(suite.items, is_right, strict=True) if not right],
    }


def read_sets(paths: Sequence[Path]) -> tuple[list[Suite], PairSets]:
    """Read suites and minimal pairs. A folder stands for the suites in it or, without any, for its minimal pairs."""
    suites: list[Suite] = []
    pair_sets: dict[tuple[str, str], list[MinimalPair]] = {}
    for path in paths:
        for file in (sorted(path.glob("*.json")) if path.is_dir() else []) or list_pair_files(path):
            if file.suffix.lower() == ".json":
                suites.append(read_suite(file))
                continue
            source = PAIR_SETS.get(file.suffix.lower(), "minimal pairs")
            for pair in read_pairs(file):
                pair_sets.setdefault((source, pair.phenomenon or file.stem), []).append(pair)
    return suites, pair_sets


def read_published(path: Path, names: Sequence[str]) -> Published:
    """Read a table with a row per model and a column per suite; the models with these names must exist."""
    published = {}
    for place, row in read_rows(path, "\t", ("model",)):
        texts = {name: value for name, value in row.items() if name not in ("model", "mean") and value.strip()}
        if wrong := [text for text in texts.values() if not re.fullmatch(r"0?\.\d+|[01](\.0*)?", text)]:
            raise CorpusError(f"{place}: expected accuracies from 0 to 1, not {quote(wrong[0])}")
        published[row["model"]] = {name: float(text) for name, text in texts.items()}
    if missing := [name for name in names if name not in published]:
        raise SettingError(f"{path}: has no model {quote(missing[0])}; it has {', '.join(published)}")
    return published
