"""Which units stand for what: every unit scored against features of a text, beside controls, and checked by ablation.

    report = find_cells(model, document, tracks(document, ["depth", "column"]), ablate="zero")
    report.best("depth").unit, report.best("depth").verdict
    score_cells(traced, tracks, ids)                     for any trace, such as that of torch's nn.LSTM

Correlations come easily. Of hundreds of units one always goes with a feature, and nearly all do so significantly. A
score means little by itself, so every score has controls:

    untrained     the best unit of the same network before training
    n-gram        a prediction from the last few symbols
    chance        the best unit when the text is turned against itself
    partial r     what is left when the other features and the current symbol are held constant

A linear probe of all units is an upper bound. Where no unit is clearly better than its controls, the report says that
there is no such cell. Whether the model uses a unit is another question, which ablation answers.

    Karpathy et al. 2015, Visualizing and understanding recurrent networks (cells found by eye);  Lakretz et al. 2019
"""

import warnings
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from relmo.analysis.core.causal import Ablation, How, Unit, ablate_units, held_values, rows_of, units_of
from relmo.analysis.core.effects import (
    SHIFTS,
    Delay,
    PartialCorrelation,
    SymbolGroups,
    areas,
    delays,
    held_out_f1,
    ngram_predictions,
    pearson,
    probe_predictions,
    ranked,
    shifted,
    standard,
    switched_on,
)
from relmo.analysis.core.features import Document
from relmo.analysis.core.progress import split_progress
from relmo.analysis.core.stack import stack_of
from relmo.analysis.core.trace import Trace, network_of, trace
from relmo.analysis.core.untrained import untrained
from relmo.analysis.units.cell_report import BestUnit, CellReport, Effect, Scores, UnitControls
from relmo.errors import SettingError
from relmo.models.bilm import BiLM
from relmo.models.lm import LanguageModel
from relmo.settings.arguments import Progress

ORDER = 3  # symbols that the n-gram control sees
AT_ONCE = 64  # units scored together
MOST_PROBED = 4096  # units of the linear probe; where there are more, it reads h alone
ALIKE = 0.7  # the share of a unit's |r| from which another feature is as good a name for it


def find_cells(
    model: LanguageModel | BiLM,
    document: Document,
    tracks: Mapping[str, np.ndarray],
    *,
    ablate: How | None = None,
    ablate_symbols: int | None = None,
    among: int | None = None,
    control: bool = True,
    order: int = ORDER,
    seed: int = 0,
    progress: Progress | None = None,
) -> CellReport:
    """Scores every unit of a model, c and h of every layer, against features of a text.

    tracks            features by name, (T,) each: `features` makes them, or any array with a number for each symbol
    ablate            also change units one by one, "zero", "mean" or "hold", and see what breaks
    ablate_symbols    over so many symbols at the text's beginning; 20,000, or 1,000 words of a bidirectional model
    among             the best units are ranked among so many, drawn at random where there are more; 512, or 32
    control           score the same network untrained, too
    order             how many symbols the n-gram control sees
    seed              of the untrained network, and of what is drawn
    """
    _check_tracks(len(document), tracks)
    tracing, tracing_fresh, scoring, ablating = split_progress(progress, [3, 3, 4, 20 if ablate else 0])
    states = stack_of(network_of(model)).layers[0].states[::-1]
    traced = trace(model, document.texts, keep=states, progress=tracing)
    ids = np.unique(np.array(document.symbols), return_inverse=True)[1]
    fresh = None
    if control:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the first trace has said what there is to say of the text
            fresh = trace(untrained(model, seed), document.texts, keep=states, progress=tracing_fresh)
    report = score_cells(traced, tracks, ids, fresh=fresh, order=order, seed=seed, progress=scoring)
    if ablate is None:
        return report
    over, most = (1_000, 32) if isinstance(model, BiLM) else (20_000, 512)
    head = document.head(ablate_symbols or over)
    shorter = {name: track[: len(head)] for name, track in tracks.items()}
    asked = AblationTest(head, shorter, ablate, among or most, seed)
    return replace(report, ablations=_ablate_best(model, traced, report, asked, ablating))


def _check_tracks(symbols: int, tracks: Mapping[str, np.ndarray]) -> None:
    """Raises where a feature does not fit the text, or never changes in it."""
    if not tracks:
        raise SettingError("no features to score units against; name one or more")
    for name, track in tracks.items():
        if np.shape(track) != (symbols,):
            raise SettingError(f"the feature {name!r} has the shape {np.shape(track)} for {symbols} symbols")
        if not np.isfinite(track).all():
            raise SettingError(f"the feature {name!r} has values that are not finite numbers")
        if np.ptp(track) == 0:
            raise SettingError(
                f"the feature {name!r} is {track[0]:g} at all of {symbols:,} symbols; give a text where it changes"
            )


class AblationTest(NamedTuple):
    """Over what, how, and beside how many others the best units are changed."""

    document: Document
    tracks: Mapping[str, np.ndarray]
    how: How
    among: int
    seed: int


def _ablate_best(
    model: LanguageModel | BiLM, traced: Trace, report: CellReport, asked: AblationTest, progress: Progress
) -> list[Ablation]:
    """The best unit of each feature, and others of its state and direction to rank it among, each changed by itself."""
    best = [found.unit for found in report.found]
    if asked.how == "zero" and not projected(model):
        best = [unit._replace(state="h") for unit in best]
    kinds = list(dict.fromkeys((unit.state, unit.direction) for unit in best))
    strongest = np.take_along_axis(report.scores.r, np.abs(report.scores.r).argmax(axis=1)[:, None], axis=1)[:, 0]
    sign = dict(zip(report.units, strongest.tolist(), strict=True))
    found = []
    for kind, tell in zip(kinds, split_progress(progress, [1.0] * len(kinds)), strict=True):
        chosen = list(dict.fromkeys(unit for unit in best if (unit.state, unit.direction) == kind))
        rest = [unit for unit in report.units if (unit.state, unit.direction) == kind and unit not in chosen]
        drawn = np.random.default_rng(asked.seed).permutation(len(rest))[: max(0, asked.among - len(chosen))]
        units = [*chosen, *(rest[i] for i in sorted(drawn))]
        values = held_values(traced, units, asked.how, [sign[unit] for unit in units])
        options: dict[str, Any] = {"how": asked.how, "values": values, "progress": tell}
        found.append(ablate_units(model, asked.document, asked.tracks, units, **options))
    return found


def projected(model: LanguageModel | BiLM) -> bool:
    """Whether h has other units than c."""
    return stack_of(network_of(model)).layers[0].projection is not None


def score_cells(
    traced: Trace,
    tracks: Mapping[str, np.ndarray],
    ids: np.ndarray | None = None,
    *,
    fresh: Trace | None = None,
    order: int = ORDER,
    seed: int = 0,
    progress: Progress | None = None,
) -> CellReport:
    """Scores every unit of a trace, its c and h, against features.

    ids      the symbols as numbers (T,), for the n-gram control; where they are not given, equal names are one symbol
    fresh    the trace of the same network untrained, over the same symbols
    """
    _check_tracks(len(traced), tracks)
    states = [state for state in reversed(traced.carried) if state in traced.states]
    units = units_of(traced, states)
    numbers = np.unique(np.array(traced.symbols), return_inverse=True)[1] if ids is None else ids
    features = np.stack([np.asarray(track, dtype=np.float32) for track in tracks.values()], axis=1)  # (T, F)
    binary = np.array([set(np.unique(column)) == {0.0, 1.0} for column in features.T])
    rows = rows_of(traced, states)
    scoring = Scoring(features, binary, SymbolGroups(numbers), seed)
    scored = ScoredUnits(list(tracks), units, rows, scoring.every(rows, split_progress(progress, [8, 2])[0]))
    reached = None if fresh is None else scoring.best(rows_of(fresh, states))
    guesses = ngram_predictions(numbers, features, order)
    probed = rows if len(rows) <= MOST_PROBED else rows[[unit.state == "h" for unit in units]]
    probes = scoring.effects(probe_predictions(standard(probed, 1), features))
    ngrams, chance = scoring.effects(guesses), np.quantile(scoring.null, 0.99, axis=0)
    found = []
    for j in range(len(tracks)):
        controls = UnitControls(ngrams[j], probes[j], float(chance[j]), None if reached is None else reached[j])
        found.append(_describe(scored, scoring, j, controls))
    notes = [] if len(probed) == len(rows) else ["the probe reads h alone"]
    if progress is not None:
        progress(1.0)
    return CellReport(len(traced), units, scored.features, scored.scores, found, order, notes=notes)


def _blocks(rows: np.ndarray) -> Iterator[np.ndarray]:
    return (rows[begin : begin + AT_ONCE] for begin in range(0, len(rows), AT_ONCE))


class ScoredUnits(NamedTuple):
    """The names of features; the units, their values (U, T) and their scores."""

    features: list[str]
    units: list[Unit]
    rows: np.ndarray
    scores: Scores


class Scoring:
    """Scores rows, such as units, against one set of features."""

    def __init__(self, features: np.ndarray, binary: np.ndarray, groups: SymbolGroups, seed: int):
        self.features, self.binary = features, binary
        self.standard = standard(features, 0)  # (T, F)
        self.ranks = standard(np.stack([ranked(column).ranks for column in features.T], axis=1), 0)
        self.partial = PartialCorrelation(self.standard, groups)
        steps = len(features)
        generator = np.random.default_rng(seed)
        self.shifts = generator.integers(max(1, steps // 20), max(2, steps - steps // 20), size=SHIFTS)
        self.null = np.zeros((SHIFTS, features.shape[1]))

    def every(self, rows: np.ndarray, progress: Progress | None = None) -> Scores:
        """All scores of rows (U, T). What chance gives goes into `null`."""
        count, width = len(rows), self.features.shape[1]
        r, rho, auc, f1, partial = (np.full((count, width), np.nan, dtype=np.float32) for _ in range(5))
        yes = self.features[:, self.binary].astype(bool)
        for begin in range(0, count, AT_ONCE):
            some = slice(begin, min(begin + AT_ONCE, count))
            block = standard(rows[some], 1)
            r[some] = pearson(block, self.standard)
            partial[some] = self.partial.of(block)
            self.null = np.maximum(self.null, shifted(block, self.standard, self.shifts))
            orders = [ranked(row) for row in rows[some]]
            ranks = np.stack([each.ranks for each in orders])
            rho[some] = pearson(standard(ranks, 1), self.ranks)
            auc[some, self.binary] = areas(ranks, self.features[:, self.binary])
            for u, tied in enumerate(orders, start=begin):
                for j, truth in zip(np.flatnonzero(self.binary), yes.T, strict=True):
                    f1[u, j] = held_out_f1(rows[u], tied.order, truth, high=bool(r[u, j] >= 0))[1]
            if progress is not None:
                progress(some.stop / count)
        return Scores(r, rho, auc, f1, partial)

    def best(self, rows: np.ndarray) -> list[Effect]:
        """How well the best of the rows (U, T) goes with each feature."""
        r = np.concatenate([pearson(standard(some, 1), self.standard) for some in _blocks(rows)])  # (U, F)
        best = np.abs(r).argmax(axis=0)
        return self.effects(rows[best].T)

    def effects(self, predictions: np.ndarray) -> list[Effect]:
        """How well each column of predictions (T, F) goes with its own feature."""
        r = (standard(predictions, 0) * self.standard).mean(axis=0, dtype=np.float64)
        found = []
        for j, column in enumerate(predictions.T):
            area = np.nan
            if self.binary[j]:
                area = float(areas(ranked(column).ranks[None], self.features[:, [j]])[0, 0])
                area = max(area, 1 - area)
            found.append(Effect(abs(float(r[j])), area))
        return found


def _describe(scored: ScoredUnits, scoring: Scoring, j: int, controls: UnitControls) -> BestUnit:
    """The best unit of the feature with the number j."""
    names, units, rows, scores = scored
    column = scores.r[:, j]
    by_size = np.argsort(-np.abs(column), kind="stable")
    best = int(by_size[0])
    same = [int(u) for u in by_size[1:] if units[u].state == units[best].state]
    states = dict.fromkeys(unit.state for unit in units if unit.state != units[best].state)
    others = {state: next(int(u) for u in by_size if units[u].state == state) for state in states}
    partial = scores.partial[:, j]
    leader = None if np.isnan(partial).all() else int(np.nanargmax(np.abs(partial)))
    values, truth, high = rows[best], scoring.features[:, j] > 0, bool(column[best] >= 0)
    threshold, apart, delay = np.nan, np.nan, Delay(np.nan, np.nan, np.nan)
    if scoring.binary[j]:
        threshold, _ = held_out_f1(values, ranked(values).order, truth, high=high)
        apart = float((values[truth].mean() - values[~truth].mean()) / (values.std() or 1))
        if threshold == threshold:
            delay = delays(switched_on(values, threshold, high=high), truth)
    alike = {
        name: float(r)
        for name, r in zip(names, scores.r[best], strict=True)
        if name != names[j] and abs(r) >= ALIKE * abs(column[best])
    }
    return BestUnit(
        feature=names[j],
        binary=bool(scoring.binary[j]),
        mean=float(scoring.features[:, j].mean(dtype=np.float64)),
        unit=units[best],
        **{name: float(array[best, j]) for name, array in vars(scores).items()},
        second=(units[same[0]], float(column[same[0]])) if same else None,
        others={state: (units[u], float(column[u])) for state, u in others.items()},
        partial_unit=None if leader is None else (units[leader], float(partial[leader])),
        threshold=threshold,
        separation=apart,
        delay=delay,
        controls=controls,
        also=alike,
    )
