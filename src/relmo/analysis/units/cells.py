"""Search for interpretable units: every unit is scored against features of a text, with controls, as of hundreds of
units one always correlates with a feature, and with ablation, which tells whether the model uses the unit (Karpathy et
al. 2015, Visualizing and understanding recurrent networks;  Lakretz et al. 2019)."""

import warnings
from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from relmo.analysis.core import effects
from relmo.analysis.core.causal import How, Unit, ablate_units, compute_hold_values, list_units, stack_unit_rows
from relmo.analysis.core.features import Document
from relmo.analysis.core.show import split_progress
from relmo.analysis.core.stack import build_stack
from relmo.analysis.core.trace import Trace, trace
from relmo.analysis.units.cell_report import BestUnit, CellReport, Effect, Scores, UnitControls, UnitR
from relmo.errors import SettingError
from relmo.models.sequence_model import SequenceModel, untrained
from relmo.settings.fields import Progress

ORDER = 3  # symbols that the n-gram control reads
BLOCK_UNITS = 64  # units scored together
MAX_PROBE_UNITS = 4096  # of the linear probe; if there are more, it reads h alone
SIMILAR_SHARE = 0.7  # of a unit's |r|, from which another feature is a similarly good name for it


def find_cells(
    model: SequenceModel,
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
    """Score every unit of a model, c and h of every layer, against features of a text.

    tracks            features by name, (T,) each: from `features`, or any array with one number per symbol
    ablate            also change units one by one ("zero", "mean" or "hold") and measure the loss
    ablate_symbols    number of symbols for that; default 20,000, or 1,000 words for a bidirectional model
    among             number of units among which the best ones are ranked, drawn at random; default 512, or 32
    control           also score the same network untrained
    order             number of symbols that the n-gram control reads
    """
    _check_tracks(len(document), tracks)
    on_trace, on_untrained, on_score, on_ablation = split_progress(progress, [3, 3, 4, 20 if ablate else 0])
    stack = build_stack(model.get_recurrent_network())
    states = stack.layers[0].cell.unit_states[::-1]
    traced = trace(model, document.texts, keep=states, progress=on_trace)
    ids = np.unique(np.array(document.symbols), return_inverse=True)[1]
    untrained_trace = None
    if control:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the first trace has given the warnings about the text
            untrained_trace = trace(untrained(model, seed), document.texts, keep=states, progress=on_untrained)
    report = score_cells(traced, tracks, ids, fresh=untrained_trace, order=order, seed=seed, progress=on_score)
    if ablate is None:
        return report
    # Without an input table, the model is run once per unit.
    num_symbols, num_units = (1_000, 32) if model.input_table is None else (20_000, 512)
    head = document.head(ablate_symbols or num_symbols)
    best = [best_unit.unit for best_unit in report.best_units]
    if ablate == "zero" and stack.layers[0].projection is None:
        best = [unit._replace(state="h") for unit in best]
    # Signs of the strongest correlations tell which way "hold" goes.
    strongest = np.take_along_axis(report.scores.r, np.abs(report.scores.r).argmax(axis=1)[:, None], axis=1)[:, 0]
    signs = dict(zip(report.units, strongest.tolist(), strict=True))
    kinds = list(dict.fromkeys((unit.state, unit.direction) for unit in best))
    ablations = []
    for kind, callback in zip(kinds, split_progress(on_ablation, [1.0] * len(kinds)), strict=True):
        units = list(dict.fromkeys(unit for unit in best if (unit.state, unit.direction) == kind))
        pool = [unit for unit in report.units if (unit.state, unit.direction) == kind and unit not in units]
        draws = np.random.default_rng(seed).permutation(len(pool))[: max(0, (among or num_units) - len(units))]
        units += [pool[i] for i in sorted(draws)]
        values = compute_hold_values(traced, units, ablate, [signs[unit] for unit in units])
        head_tracks = {name: track[: len(head)] for name, track in tracks.items()}
        ablations.append(ablate_units(model, head, head_tracks, units, how=ablate, values=values, progress=callback))
    return replace(report, ablations=ablations)


def _check_tracks(symbols: int, tracks: Mapping[str, np.ndarray]) -> None:
    if not tracks:
        raise SettingError("At least one feature is required.")
    for name, track in tracks.items():
        if np.shape(track) != (symbols,):
            raise SettingError(f"Feature {name!r} has shape {np.shape(track)}; expected ({symbols},).")
        if not np.isfinite(track).all():
            raise SettingError(f"Feature {name!r} has values that are not finite.")
        if np.ptp(track) == 0:
            value = f"{track[0]:g} at all {symbols:,} symbols"
            raise SettingError(f"Feature {name!r} is {value}; use a text where it varies.")


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
    """Score every unit of a trace, its c and h, against features. `ids` (T,) are those of the symbols for the n-gram
    control, by default one for each name; `fresh` is the trace of the same network untrained, over the same symbols."""
    _check_tracks(len(traced), tracks)
    states = [state for state in reversed(traced.carried) if state in traced.states]
    units = list_units(traced, states)
    ids = np.unique(np.array(traced.symbols), return_inverse=True)[1] if ids is None else ids
    rows = stack_unit_rows(traced, states)
    scorer = Scorer(tracks, ids, seed)
    scores = scorer.score(rows, split_progress(progress, [8, 2])[0])
    untrained_effects = None
    if fresh is not None:
        fresh_rows = stack_unit_rows(fresh, states)
        blocks = (fresh_rows[begin : begin + BLOCK_UNITS] for begin in range(0, len(fresh_rows), BLOCK_UNITS))
        r = np.concatenate([effects.pearson(effects.standardize(block, 1), scorer.standard) for block in blocks])
        untrained_effects = scorer.score_predictions(fresh_rows[np.abs(r).argmax(axis=0)].T)
    ngrams = scorer.score_predictions(effects.predict_from_ngrams(ids, scorer.features, order))
    probe_rows = rows if len(rows) <= MAX_PROBE_UNITS else rows[[unit.state == "h" for unit in units]]
    probes = scorer.score_predictions(effects.predict_from_units(effects.standardize(probe_rows, 1), scorer.features))
    chance = np.quantile(scorer.null, 0.99, axis=0)
    best_units = []
    for j in range(len(tracks)):
        untrained_effect = None if untrained_effects is None else untrained_effects[j]
        controls = UnitControls(ngrams[j], probes[j], float(chance[j]), untrained_effect)
        best_units.append(_describe_best(scorer, units, rows, scores, j, controls))
    notes = [] if len(probe_rows) == len(rows) else ["the probe reads h alone"]
    if progress is not None:
        progress(1.0)
    return CellReport(len(traced), units, list(tracks), scores, best_units, order, notes=notes)


class Scorer:
    """Scores of rows, such as units, against features."""

    def __init__(self, tracks: Mapping[str, np.ndarray], ids: np.ndarray, seed: int):
        self.names = list(tracks)
        self.features = np.stack([np.asarray(track, dtype=np.float32) for track in tracks.values()], axis=1)  # (T, F)
        self.binary = np.array([set(np.unique(column)) == {0.0, 1.0} for column in self.features.T])
        self.standard = effects.standardize(self.features, 0)  # (T, F)
        ranks = [effects.rank_values(column).ranks for column in self.features.T]
        self.ranks = effects.standardize(np.stack(ranks, axis=1), 0)
        self.partial = effects.PartialCorrelation(self.standard, ids)
        num_symbols = len(self.features)
        low, high = max(1, num_symbols // 20), max(2, num_symbols - num_symbols // 20)
        self.shifts = np.random.default_rng(seed).integers(low, high, size=effects.NUM_SHIFTS)
        self.null = np.zeros((effects.NUM_SHIFTS, len(self.names)))

    def score(self, rows: np.ndarray, progress: Progress) -> Scores:
        """Return all scores of rows (U, T); chance correlations are accumulated in `null`."""
        count, width = len(rows), len(self.names)
        r, rho, auc, f1, partial = (np.full((count, width), np.nan, dtype=np.float32) for _ in range(5))
        truths = self.features[:, self.binary].astype(bool)
        for begin in range(0, count, BLOCK_UNITS):
            block = slice(begin, min(begin + BLOCK_UNITS, count))
            standard = effects.standardize(rows[block], 1)
            r[block] = effects.pearson(standard, self.standard)
            partial[block] = self.partial.compute(standard)
            for start in range(0, len(self.shifts), 10):  # chance: the largest |r| with rotated features
                shifts = self.shifts[start : start + 10]
                rotated = np.concatenate([np.roll(self.standard, shift, axis=0) for shift in shifts], axis=1)
                largest = np.abs(effects.pearson(standard, rotated)).max(axis=0).reshape(len(shifts), -1)
                null = self.null[start : start + len(shifts)]
                np.maximum(null, largest, out=null)
            rankings = [effects.rank_values(row) for row in rows[block]]
            ranks = np.stack([ranking.ranks for ranking in rankings])
            rho[block] = effects.pearson(effects.standardize(ranks, 1), self.ranks)
            auc[block, self.binary] = effects.compute_auc(ranks, self.features[:, self.binary])
            for u, ranking in enumerate(rankings, start=begin):
                for j, truth in zip(np.flatnonzero(self.binary), truths.T, strict=True):
                    f1[u, j] = effects.held_out_f1(rows[u], ranking.order, truth, high=bool(r[u, j] >= 0))[1]
            progress(block.stop / count)
        return Scores(r, rho, auc, f1, partial)

    def score_predictions(self, predictions: np.ndarray) -> list[Effect]:
        """Return the effect of each column of predictions (T, F) for its feature."""
        r = (effects.standardize(predictions, 0) * self.standard).mean(axis=0, dtype=np.float64)
        scores = []
        for j, column in enumerate(predictions.T):
            area = np.nan
            if self.binary[j]:
                area = float(effects.compute_row_auc(column[None], self.features[:, j])[0])
                area = max(area, 1 - area)
            scores.append(Effect(abs(float(r[j])), area))
        return scores


def _describe_best(
    scorer: Scorer, units: list[Unit], rows: np.ndarray, scores: Scores, j: int, controls: UnitControls
) -> BestUnit:
    column = scores.r[:, j]
    order = np.argsort(-np.abs(column), kind="stable").tolist()
    best = order[0]
    by_state: dict[str, UnitR] = {}
    for u in order[1:]:
        by_state.setdefault(units[u].state, UnitR(units[u], float(column[u])))
    second = by_state.pop(units[best].state, None)
    partial = scores.partial[:, j]
    best_partial = None if np.isnan(partial).all() else int(np.nanargmax(np.abs(partial)))
    values, truth, high = rows[best], scorer.features[:, j] > 0, bool(column[best] >= 0)
    threshold, separation, delay = np.nan, np.nan, effects.Delay(np.nan, np.nan, np.nan)
    if scorer.binary[j]:
        threshold, _ = effects.held_out_f1(values, effects.rank_values(values).order, truth, high=high)
        separation = float((values[truth].mean() - values[~truth].mean()) / (values.std() or 1))
        if threshold == threshold:
            delay = effects.measure_delay(values >= threshold if high else values <= threshold, truth)
    similar = {
        name: float(r)
        for name, r in zip(scorer.names, scores.r[best], strict=True)
        if name != scorer.names[j] and abs(r) >= SIMILAR_SHARE * abs(column[best])
    }
    return BestUnit(
        feature=scorer.names[j],
        binary=bool(scorer.binary[j]),
        mean=float(scorer.features[:, j].mean(dtype=np.float64)),
        unit=units[best],
        **{name: float(array[best, j]) for name, array in vars(scores).items()},
        second=second,
        by_state=by_state,
        partial_unit=None if best_partial is None else UnitR(units[best_partial], float(partial[best_partial])),
        threshold=threshold,
        separation=separation,
        delay=delay,
        controls=controls,
        similar=similar,
    )
