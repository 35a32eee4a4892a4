"""Can it count? Small networks learn a formal language from its words alone, and are tested on far longer words.

    result = counting("anbn", "lstm")
    result.accepted, result.first_failure, result.counters[0].r

`counting_training` says how networks are trained and when they accept a word. For every n to well above the limit of
training, the report says whether right words are accepted, and whether nearly right words are. Balanced accuracy over
random words stands beside, since most of these are wrong and a network that rejects everything would look good. Last
come the units that count: their correlation with the count, and how far they move when it rises by one.

    Weiss, Goldberg & Yahav 2018, On the practical computational power of finite precision RNNs for language recognition
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from relmo.analysis.core.progress import split_progress
from relmo.analysis.core.trace import trace
from relmo.analysis.memory.counting_report import Counting, CountingUnit
from relmo.analysis.memory.counting_training import CountingOptions, Tried, accepts, share_of, train_best
from relmo.analysis.memory.fresh import CELL_NAMES, CellName
from relmo.analysis.memory.languages import Language, intervals, language_of
from relmo.errors import SettingError
from relmo.models.lm import LanguageModel
from relmo.settings.arguments import Progress

COUNTED = 12  # sizes up to the limit in whose words counters are looked for


def counting(
    language: str,
    cell: CellName = "lstm",
    options: CountingOptions | None = None,
    *,
    progress: Progress | None = None,
) -> Counting:
    """Trains networks of a cell on a language (anbn, anbncn, dyck-1 to dyck-4), and judges the best of them."""
    options = options or CountingOptions()
    check(cell, options)
    known = language_of(language)
    model, tried = train_best(known, cell, options, progress)
    return judge(model, known, options, tried)


def counting_each(
    language: str, cell: CellName, options: CountingOptions, *, progress: Progress | None = None
) -> list[Counting]:
    """As `counting`, but the network of every seed is trained and judged, each by itself."""
    return [
        counting(language, cell, replace(options, seeds=1, first_seed=options.first_seed + number), progress=tell)
        for number, tell in enumerate(split_progress(progress, [1.0] * options.seeds))
    ]


def check(cell: str, options: CountingOptions) -> None:
    """Raises where the options make no sense."""
    if cell not in CELL_NAMES:
        raise SettingError(f"cell is {cell!r}; it can be {', '.join(CELL_NAMES)}")
    for name in ("hidden", "steps", "batch", "seeds", "strings"):
        if getattr(options, name) < 1:
            raise SettingError(f"{name} must be 1 or more, not {getattr(options, name)}")
    if options.limit < 4 or options.largest < options.limit:
        raise SettingError(
            f"limit is {options.limit} and tested {options.largest}; limit must be 4 or more, and tested not below it"
        )
    if not 0 < options.threshold < 1 or options.lr <= 0 or options.clip <= 0:
        raise SettingError(
            f"threshold {options.threshold:g} must be between 0 and 1, "
            f"lr {options.lr:g} and clip {options.clip:g} above 0"
        )


class Shares(NamedTuple):
    """Of random words: the share of right ones accepted, of wrong ones rejected, and the mean of the two; the plain
    accuracy, and that of rejecting everything."""

    right: float
    rejected: float
    balanced: float
    accuracy: float
    always_no: float


def _score(model: LanguageModel, language: Language, words: Sequence[str], threshold: float) -> Shares:
    truth = np.array([language.has(word) for word in words])
    said = accepts(model, words, threshold)
    right, rejected = share_of(said[truth]), share_of(~said[~truth])
    return Shares(right, rejected, (right + rejected) / 2, share_of(said == truth), share_of(~truth))


def judge(model: LanguageModel, language: Language, options: CountingOptions, tried: Sequence[Tried] = ()) -> Counting:
    """What a network, trained here or elsewhere, does with a language."""
    sizes = range(1, options.largest + 1)
    right = [(n, word) for n in sizes for word in language.right(n)]
    wrong = [(n, kind, word) for n in sizes for kind, word in language.wrong(n).items()]
    words = [word for _, word in right] + [word for _, _, word in wrong]
    answers = accepts(model, words, options.threshold)
    failed = {n for (n, _), yes in zip(right, answers, strict=False) if not yes}
    fooled: dict[str, list[int]] = {kind: [] for kind in language.wrong(options.largest)}
    for (n, kind, _), yes in zip(wrong, answers[len(right) :], strict=True):
        fooled[kind] += [n] if yes else []
    strings = language.strings(options.largest, options.strings, seed=0)
    counters, counting_units = find_counters(model, language, options.limit)
    return Counting(
        language=language.name,
        cell=model.settings.model.cell,
        hidden=model.settings.model.hidden,
        limit=options.limit,
        tested=options.largest,
        threshold=options.threshold,
        accepted=intervals([n for n in sizes if n not in failed]),
        first_failure=min(failed, default=None),
        wrongly={kind: intervals(numbers) for kind, numbers in fooled.items()},
        first_wrong=min((n for numbers in fooled.values() for n in numbers), default=None),
        **_score(model, language, strings, options.threshold)._asdict(),
        counters=counters,
        counting_units=counting_units,
        tried=list(tried),
        model=model,
    )


def find_counters(model: LanguageModel, language: Language, limit: int) -> tuple[list[CountingUnit], int]:
    """For each count and state the unit that follows the count best, over words up to the limit, the best first; and
    how many units have |r| > 0.99 with some count."""
    sizes = np.unique(np.linspace(1, limit, COUNTED).astype(int)).tolist()
    words = [language.right(n)[-1] for n in sizes]
    traced = trace(
        model, words, keep=[name for name in ("h", "c") if model.settings.model.cell == "lstm" or name == "h"]
    )
    counts: dict[str, list[np.ndarray]] = {}
    places: dict[str, list[np.ndarray]] = {}
    for begin, word in zip(traced.starts, words, strict=True):
        for name, count in language.counts(word).items():
            places.setdefault(name, []).append(begin + count.places)
            counts.setdefault(name, []).append(count.values)
    found, counting_units = [], 0
    for state, values in traced.states.items():
        best = np.zeros(values.shape[2])
        for name in counts:
            r, slope = correlations(values[0, np.concatenate(places[name])], np.concatenate(counts[name]))
            unit = int(np.abs(r).argmax())
            found.append(CountingUnit(name, state, unit, float(r[unit]), float(slope[unit])))
            best = np.maximum(best, np.abs(r))
        counting_units = max(counting_units, int((best > 0.99).sum()))
    return sorted(found, key=lambda counter: -abs(counter.r)), counting_units


def correlations(values: np.ndarray, count: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Pearson's r of units (N, H) with a count (N,), 0 where a unit stands still; and by how much each unit moves when
    the count rises by one; (H,) each."""
    x = values - values.mean(axis=0, dtype=np.float64)
    y = count - count.mean(dtype=np.float64)
    products, size = y @ x, np.sqrt((x**2).sum(axis=0) * (y @ y))
    return products / np.where(size > 0, size, 1.0), products / max(y @ y, 1e-300)
