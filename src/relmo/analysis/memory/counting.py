"""Counting: small networks learn a formal language from its words alone and are tested on far longer words (Weiss,
Goldberg & Yahav 2018, On the practical computational power of finite precision RNNs for language recognition)."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from relmo.analysis.core.show import Report, Table, format_number, save_figure, split_progress
from relmo.analysis.core.stack import build_stack
from relmo.analysis.core.trace import trace
from relmo.analysis.memory import counting_training as training
from relmo.analysis.memory.counting_training import Attempt, Language, get_language
from relmo.analysis.memory.gradients import check_cell
from relmo.models.lm import LanguageModel
from relmo.settings.fields import Progress
from relmo.settings.options import CountingOptions

NUM_COUNTED_SIZES = 12  # sizes of words up to the limit in which counters are searched


@dataclass(frozen=True)
class CountingUnit:
    """Unit and a count: their correlation, and the change of the unit when the count rises by one."""

    count: str
    state: str
    unit: int
    r: float
    slope: float


@dataclass(frozen=True)
class Counting(Report):
    """Test results of a network on a language."""

    language: str
    cell: str
    hidden: int
    limit: int
    tested: int
    threshold: float
    accepted: list[tuple[int, int]]  #: ranges of n for which all words of the language are accepted
    first_failure: int | None  #: smallest n with a rejected word of the language, if any up to `tested`
    wrongly: dict[str, list[tuple[int, int]]]  #: ranges of n for which a wrong word is accepted, by its error
    first_wrong: int | None  #: smallest such n
    right: float  #: share of accepted words of the language among random ones
    rejected: float  #: share of rejected other words
    balanced: float  #: mean of the two
    accuracy: float
    always_no: float  #: accuracy of rejecting everything
    counters: list[CountingUnit]  #: for each count and state, the unit with the largest |r|, best first
    counting_units: int  #: number of units with |r| > 0.99 with some count
    tried: list[Attempt]  #: the networks of which this is the best
    model: LanguageModel = field(compare=False, repr=False)

    def table(self) -> Table:
        return counting_table([self])


def counting(
    language: str, cell: str = "lstm", options: CountingOptions | None = None, *, progress: Progress | None = None
) -> Counting:
    """Train networks of a cell on a language (anbn, anbncn, dyck-1 to dyck-4) and test the best of them."""
    options = options or CountingOptions()
    options.check()
    check_cell(cell)
    formal_language = get_language(language)
    model, attempts = training.train_best(formal_language, cell, options, progress)
    return judge(model, formal_language, options, attempts)


def counting_each(
    language: str, cell: str, options: CountingOptions, *, progress: Progress | None = None
) -> list[Counting]:
    """Train and test one network per seed."""
    callbacks = split_progress(progress, [1.0] * options.seeds)
    seeds = range(options.seed, options.seed + options.seeds)
    return [
        counting(language, cell, replace(options, seeds=1, seed=seed), progress=callback)
        for seed, callback in zip(seeds, callbacks, strict=True)
    ]


def judge(
    model: LanguageModel, language: Language, options: CountingOptions, attempts: Sequence[Attempt] = ()
) -> Counting:
    """Test a network, trained here or elsewhere, on a language."""
    sizes = range(1, options.largest + 1)
    right_words = [(n, word) for n in sizes for word in language.right(n)]
    wrong_words = [(n, kind, word) for n in sizes for kind, word in language.wrong(n).items()]
    words = [word for _, word in right_words] + [word for _, _, word in wrong_words]
    max_accepted_nll = -math.log(options.threshold)
    answers = training.max_nll(model, words) < max_accepted_nll
    failures = {n for (n, _), is_accepted in zip(right_words, answers, strict=False) if not is_accepted}
    wrongly: dict[str, list[int]] = {kind: [] for kind in language.wrong(options.largest)}
    for (n, kind, _), is_accepted in zip(wrong_words, answers[len(right_words) :], strict=True):
        wrongly[kind] += [n] if is_accepted else []
    strings = language.strings(options.largest, options.strings, seed=0)
    truth = np.array([language.has(word) for word in strings])
    string_answers = training.max_nll(model, strings) < max_accepted_nll
    right, rejected = (training.mean_or_nan(share) for share in (string_answers[truth], ~string_answers[~truth]))
    counted_sizes = np.unique(np.linspace(1, options.limit, NUM_COUNTED_SIZES).astype(int)).tolist()
    counted_words = [language.right(n)[-1] for n in counted_sizes]
    traced = trace(model, counted_words, keep=build_stack(model.network).layers[0].cell.unit_states)
    counts_by_name: dict[str, list[tuple[np.ndarray, np.ndarray]]] = {}
    for begin, word in zip(traced.starts, counted_words, strict=True):
        for name, (positions, values) in language.counts(word).items():
            counts_by_name.setdefault(name, []).append((begin + positions, values))
    counters, counting_units = [], 0  # the best unit of each count and state; the number of units with |r| > 0.99
    for state, array in traced.states.items():
        best = np.zeros(array.shape[2])
        for name, counts in counts_by_name.items():
            positions, values = map(np.concatenate, zip(*counts, strict=True))
            r, slope = correlations(array[0, positions], values)
            unit = int(np.abs(r).argmax())
            counters.append(CountingUnit(name, state, unit, float(r[unit]), float(slope[unit])))
            best = np.maximum(best, np.abs(r))
        counting_units = max(counting_units, int((best > 0.99).sum()))
    return Counting(
        language=language.name,
        cell=model.settings.model.cell,
        hidden=model.settings.model.hidden,
        limit=options.limit,
        tested=options.largest,
        threshold=options.threshold,
        accepted=intervals([n for n in sizes if n not in failures]),
        first_failure=min(failures, default=None),
        wrongly={kind: intervals(numbers) for kind, numbers in wrongly.items()},
        first_wrong=min((n for numbers in wrongly.values() for n in numbers), default=None),
        right=right,
        rejected=rejected,
        balanced=(right + rejected) / 2,
        accuracy=training.mean_or_nan(string_answers == truth),
        always_no=training.mean_or_nan(~truth),
        counters=sorted(counters, key=lambda counter: -abs(counter.r)),
        counting_units=counting_units,
        tried=list(attempts),
        model=model,
    )


def correlations(values: np.ndarray, count: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return Pearson's r of units (N, H) with a count (N,), 0 for constant units, and their slopes; (H,) each."""
    x = values - values.mean(axis=0, dtype=np.float64)
    y = count - count.mean(dtype=np.float64)
    products, scale = y @ x, np.sqrt((x**2).sum(axis=0) * (y @ y))
    return products / np.where(scale > 0, scale, 1.0), products / max(y @ y, 1e-300)


def intervals(numbers: Iterable[int]) -> list[tuple[int, int]]:
    """Group ascending numbers into runs without gaps, as pairs of their first and last number."""
    runs: list[tuple[int, int]] = []
    for number in numbers:
        if runs and runs[-1][1] == number - 1:
            runs[-1] = (runs[-1][0], number)
        else:
            runs.append((number, number))
    return runs


def format_ranges(ranges: Sequence[tuple[int, int]], limit: int = 4) -> str:
    """Format ranges such as 1-49, 52; if there are many, the first ones and the last."""
    texts = [str(a) if a == b else f"{a}-{b}" for a, b in ranges]
    if len(texts) > limit:
        texts = [*texts[: limit - 1], f"… ({len(texts) - limit} more)", texts[-1]]
    return ", ".join(texts) or "none"


def counting_table(results: Sequence[Counting]) -> Table:
    """Return a table with one row per network."""
    has_seeds = len({result.cell for result in results}) < len(results)
    rows, errors = [], []
    for result in results:
        counter = result.counters[0]
        name = f"{result.cell} {result.hidden}" + (f", seed {result.tried[0].seed}" if has_seeds else "")
        row = [name, format_ranges(result.accepted), str(result.first_failure or ""), str(result.first_wrong or "")]
        accuracy = f"{100 * result.accuracy:.1f} ({100 * result.always_no:.1f})"
        row += [format_number(100 * result.balanced, 1), accuracy, f"{counter.state}{counter.unit}"]
        r, slope = (format_number(figure, 4, signed=True) for figure in (counter.r, counter.slope))
        rows.append([*row, r, slope, str(result.counting_units)])
        for kind, ranges in result.wrongly.items():
            errors += [f"{name} wrongly accepts {kind}: n = {format_ranges(ranges)}"] if ranges else []
    notes = [
        f"trained on n = 1 to {results[0].limit}, tested to {results[0].tested}; a word is accepted if each of its "
        f"symbols and its end have p > {results[0].threshold:g}",
        ("" if has_seeds else "each network is the best of its seeds on words just above the limit; ")
        + "accuracy: in brackets, that of rejecting everything",
    ]
    columns = ["network", "accepts n =", "first failure", "first wrong", "balanced", "accuracy"]
    columns += ["counter", "r", "slope", "units with |r| > .99"]
    return Table(columns, rows, results[0].language, notes + errors)


def draw_counting(results: Sequence[Counting], path: str | Path) -> None:
    """Plot, for each network, the sizes of accepted words, and its counter over words of the limit and of twice it."""
    with save_figure(path, 11, 1.2 + 2.4 * len(results)) as figure:
        panels = figure.subplots(len(results), 2, squeeze=False)
        for (ranges_axes, counter_axes), result in zip(panels, results, strict=True):
            bars = {"right words": result.accepted, **result.wrongly}
            for height, (kind, ranges) in enumerate(reversed(bars.items())):
                colour = "#56a0e6" if kind == "right words" else "#e67e22"
                spans = [(a - 0.5, b - a + 1) for a, b in ranges]
                ranges_axes.broken_barh(spans, (height - 0.4, 0.8), color=colour)
            ranges_axes.set_yticks(range(len(bars)), list(reversed(bars)))
            ranges_axes.axvline(result.limit, color="black", linestyle=":")
            ranges_axes.set(xlim=(0, result.tested + 1), ylim=(-0.6, len(bars) - 0.4))
            name = f"{result.language}, {result.cell}"
            ranges_axes.set_title(f"{name}: accepted n (dotted: limit of training)", fontsize=10)
            language, counter = get_language(result.language), result.counters[0]
            for n, style in ((result.limit, "-"), (2 * result.limit, "--")):
                traced = trace(result.model, [language.right(n)[0]], keep=[counter.state])
                counter_axes.plot(traced.unit(counter.state, 0, counter.unit), style, label=f"n = {n}")
            name = f"{counter.state}{counter.unit}"
            counter_axes.set_title(f"{name}: r = {counter.r:.4f} with {counter.count}", fontsize=10)
            counter_axes.legend(fontsize=8)
        figure.axes[-1].set_xlabel("symbol")
