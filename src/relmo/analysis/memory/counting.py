"""Can it count? Small networks learn a formal language from its words alone, and are asked far beyond what they have
seen.

    result = counting("anbn", "lstm")
    result.accepted, result.first_failure, result.counters[0].r

A network is trained to predict the next symbol of words up to n = limit, and accepts a word if every symbol of it, and
its end, has a probability above a threshold. What is reported, for every n to well above the limit: the stretches of n
whose right words are accepted, and those whose nearly right words are too; balanced accuracy over random words, since
most of those are wrong and a network that rejects everything would look good; and the units that count: their
correlation with the count, and how far they move by it.

Of several seeds, and of several moments in each one's training, the best is kept: the one that is right most often, and
then most clearly, on some sizes up to the limit and on all from there to a quarter above it. What it does further on
was not looked at.

    Weiss, Goldberg & Yahav 2018, On the practical computational power of finite precision RNNs for language recognition
"""

import copy
import dataclasses
import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from relmo.analysis.core.show import Table, figure, picture
from relmo.analysis.core.trace import trace
from relmo.analysis.core.untrained import seeded
from relmo.analysis.memory.fresh import CELL_NAMES, CellName
from relmo.analysis.memory.languages import Language, intervals, language_of
from relmo.errors import SettingError
from relmo.models.lm import LanguageModel
from relmo.networks.language_model import RecurrentLM
from relmo.settings.arguments import Progress
from relmo.settings.lm import LanguageModelSettings, LMSettings, TextSettings
from relmo.text.vocabulary import SPECIALS, Vocabulary
from relmo.training.optimizer import clip_factor, gradient_norm

SYMBOLS_AT_ONCE = 1 << 15  # read together when words are judged
WEIGHED = 250  # steps between two looks at the validation
LEARNT, COUNTED = 8, 12  # words up to the limit that are validated on, and that counters are looked for in


@dataclass(frozen=True, kw_only=True)
class CountingOptions:
    """How networks are trained and judged.

    limit         the largest n that is learnt from
    tested        the largest n that is asked; four times the limit where it is not given
    hidden        units
    steps         of training, for each seed
    seeds         how many networks are tried, one after the other; no more once one has made no mistake in validation
    threshold     the probability that every symbol of an accepted word has
    strings       random words for the balanced accuracy
    """

    limit: int = 50
    tested: int | None = None
    hidden: int = 10
    steps: int = 3000
    batch: int = 32
    lr: float = 0.03
    clip: float = 1.0
    seeds: int = 3
    first_seed: int = 0
    threshold: float = 0.01
    strings: int = 1000

    @property
    def largest(self) -> int:
        """The largest n that is asked."""
        return 4 * self.limit if self.tested is None else self.tested


@dataclass(frozen=True)
class CountingUnit:
    """A unit beside a count: their correlation, and by how much the unit changes when the count rises by one."""

    count: str
    state: str
    unit: int
    r: float
    slope: float


@dataclass(frozen=True)
class Tried:
    """A network that was trained: its seed, the step of its best moment; there the validation (balanced), how far the
    worst of its words was on the right side of the threshold, and the training loss, all in nats a symbol."""

    seed: int
    step: int
    validation: float
    margin: float
    loss: float
    seconds: float


@dataclass(frozen=True)
class Counting:
    """What a network does with a language.

    accepted            stretches of n all of whose right words are accepted
    first_failure       the smallest n with a right word that is not; None where there is none up to `tested`
    wrongly             by what is wrong with them, stretches of n whose wrong word is accepted
    first_wrong         the smallest such n
    right, rejected     of random words, the share of the right ones accepted and of the wrong ones rejected
    balanced            the mean of the two
    accuracy, always_no the plain accuracy, and that of rejecting everything
    counters            for each count, the unit nearest to it of each state, best first
    counting_units      how many units have |r| > 0.99 with some count
    tried               the networks of which this is the best
    """

    language: str
    cell: str
    hidden: int
    limit: int
    tested: int
    threshold: float
    accepted: list[tuple[int, int]]
    first_failure: int | None
    wrongly: dict[str, list[tuple[int, int]]]
    first_wrong: int | None
    right: float
    rejected: float
    balanced: float
    accuracy: float
    always_no: float
    counters: list[CountingUnit]
    counting_units: int
    tried: list[Tried]
    model: LanguageModel = dataclasses.field(compare=False, repr=False)

    def as_dict(self) -> dict[str, Any]:
        """Plain numbers by name, without the network."""
        return {
            field.name: plain(getattr(self, field.name)) for field in dataclasses.fields(self) if field.name != "model"
        }

    def _repr_html_(self) -> str:
        return counting_table([self]).html()


def plain(value: Any) -> Any:
    """Dataclasses, also in lists, as dictionaries; what is not a number as None."""
    if isinstance(value, list):
        return [plain(each) for each in value]
    if isinstance(value, float) and math.isnan(value):
        return None
    return dataclasses.asdict(value) if dataclasses.is_dataclass(value) and not isinstance(value, type) else value


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
    """As `counting`, but the networks of all seeds are trained and judged, each by itself."""
    return [
        counting(
            language,
            cell,
            dataclasses.replace(options, seeds=1, first_seed=options.first_seed + number),
            progress=told(progress, number, options.seeds),
        )
        for number in range(options.seeds)
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


class PaddedWords:
    """Words side by side as a network reads them: </s> first, and each symbol, and then </s> again, predicted."""

    def __init__(self, words: Sequence[str], vocabulary: Vocabulary):
        self.lengths = torch.tensor([len(word) + 1 for word in words])
        self.inputs = torch.full((len(words), int(self.lengths.max())), vocabulary.end)
        for row, word in zip(self.inputs, words, strict=True):
            row[1 : len(word) + 1] = torch.from_numpy(vocabulary.ids(word))
        self.targets = torch.roll(self.inputs, -1, dims=1)  # past a word's end stand only </s>, as at the row's start
        self.inside = torch.arange(self.inputs.shape[1]) < self.lengths.unsqueeze(1)  # (B, T)


def train_best(
    language: Language, cell: CellName, options: CountingOptions, progress: Progress | None
) -> tuple[LanguageModel, list[Tried]]:
    """Seed after seed, until one makes no mistake in validation or all have been tried. -> the best, and all."""
    best: tuple[tuple[float, float], LanguageModel] | None = None
    tried: list[Tried] = []
    for number in range(options.seeds):
        model, one = train(language, cell, options, options.first_seed + number, told(progress, number, options.seeds))
        tried.append(one)
        key = (one.validation, one.margin)
        if best is None or key > best[0]:
            best = (key, model)
        if one.validation == 1.0:
            break
    assert best is not None
    if progress is not None:
        progress(1.0)
    return best[1], tried


def told(progress: Progress | None, number: int, count: int) -> Progress:
    """What tells of the share of one of several equal parts."""
    return (lambda _: None) if progress is None else (lambda share: progress((number + share) / count))


def train(
    language: Language, cell: CellName, options: CountingOptions, seed: int, progress: Progress
) -> tuple[LanguageModel, Tried]:
    """One network, as it was at its best moment in validation."""
    began = time.monotonic()
    vocabulary = Vocabulary([*SPECIALS, *language.symbols])
    model = new_model(cell, options.hidden, vocabulary, seed)
    network = model.network
    assert isinstance(network, RecurrentLM)
    network.train()
    examples = language.examples(options.limit, seed)
    words = PaddedWords([example.word for example in examples], vocabulary)
    weights = torch.tensor([example.weight for example in examples])
    weight = words.inside * (weights / weights.mean()).unsqueeze(1)
    for row, example in zip(weight, examples, strict=True):
        row[list(example.untold)] = 0.0
        if example.certain is not None:
            row[example.certain : len(example.word) + 1].clamp_(min=1.0)
    asked = questions(language, options)
    optimizer = torch.optim.Adam(network.parameters(), lr=options.lr)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: rate(step, options.steps))
    generator = torch.Generator().manual_seed(seed)
    best, kept, recent = Tried(seed, 0, -1.0, -math.inf, math.inf, 0.0), network.state_dict(), math.nan
    for step in range(1, options.steps + 1):
        rows = torch.randperm(len(weight), generator=generator)[: options.batch]
        loss = descend(network, words, weight, rows, optimizer, options.clip)
        schedule.step()
        recent = loss if step == 1 else 0.98 * recent + 0.02 * loss
        if step % WEIGHED == 0 or step == options.steps:
            network.eval()
            now, margin = validate(model, language, asked, options.threshold)
            network.train()
            if (now, margin) > (best.validation, best.margin):
                best = Tried(seed, step, now, margin, recent, 0.0)
                kept = copy.deepcopy(network.state_dict())
            progress(step / options.steps)
    network.load_state_dict(kept)
    network.eval()
    return model, dataclasses.replace(best, seconds=time.monotonic() - began)


def rate(step: int, steps: int) -> float:
    """The share of the learning rate at a step, from 0: rising over the first twentieth, then falling as a cosine."""
    rise = max(1, steps // 20)
    if step < rise:
        return (step + 1) / rise
    return 0.5 * (1 + math.cos(math.pi * (step - rise) / max(1, steps - rise)))


def new_model(cell: CellName, hidden: int, vocabulary: Vocabulary, seed: int) -> LanguageModel:
    """An untrained language model over single characters, each word a text."""
    settings = LanguageModelSettings(cell=cell, hidden=hidden, embedding=4)
    with seeded(seed):
        network = RecurrentLM(settings, vocab_size=len(vocabulary))
    return LanguageModel(network, vocabulary, LMSettings(text=TextSettings(text_per="line"), model=settings))


def descend(
    network: RecurrentLM,
    words: PaddedWords,
    weight: Tensor,
    rows: Tensor,
    optimizer: torch.optim.Optimizer,
    clip: float,
) -> float:
    """One step on some of the words. -> their weighted mean loss."""
    steps = int(words.lengths[rows].max())
    inputs, targets, own = (tensor[rows, :steps] for tensor in (words.inputs, words.targets, weight))
    nll, _ = network.nll(inputs, targets, network.initial_state(len(rows)))
    loss = (nll * own).sum() / own.sum()
    optimizer.zero_grad()
    loss.backward()
    parameters = list(network.parameters())
    factor = clip_factor(gradient_norm(parameters), clip)
    for parameter in parameters:
        if parameter.grad is not None:
            parameter.grad *= factor
    optimizer.step()
    return float(loss.detach())


def questions(language: Language, options: CountingOptions) -> list[str]:
    """The words of the validation: right and wrong ones of some sizes up to the limit, and of all just above it."""
    limit = options.limit
    sizes = [*np.unique(np.geomspace(1, limit, LEARNT).astype(int)).tolist(), *range(limit + 1, limit + limit // 4 + 1)]
    return [word for n in sizes for word in (*language.right(n), *language.wrong(n).values())]


def validate(model: LanguageModel, language: Language, words: Sequence[str], threshold: float) -> tuple[float, float]:
    """The balanced share of words taken for what they are, and how far the worst of them is, in nats, on the right side
    of the threshold."""
    truth = np.array([language.has(word) for word in words])
    far = (-math.log(threshold) - least_probable(model, words)) * np.where(truth, 1, -1)
    return (share(far[truth] > 0) + share(far[~truth] > 0)) / 2, float(far.min())


def least_probable(model: LanguageModel, words: Sequence[str]) -> np.ndarray:
    """-log p of the least probable symbol of each word, its end included; (N,)."""
    assert isinstance(model.network, RecurrentLM)
    found = np.zeros(len(words))
    for part in _by_length(words):
        batch = PaddedWords([words[i] for i in part], model.vocabulary)
        with torch.no_grad():
            nll, _ = model.network.nll(batch.inputs, batch.targets, model.network.initial_state(len(part)))
        found[part] = nll.masked_fill(~batch.inside, 0.0).amax(dim=1).numpy()
    return found


def accepts(model: LanguageModel, words: Sequence[str], threshold: float) -> np.ndarray:
    """Whether every symbol of each word, and its end, has a probability above the threshold; (N,) bool."""
    return least_probable(model, words) < -math.log(threshold)


def _by_length(words: Sequence[str]) -> Iterator[list[int]]:
    """The places of words, the shorter first, in parts of bounded size."""
    part: list[int] = []
    for place in sorted(range(len(words)), key=lambda i: len(words[i])):
        if part and (len(part) + 1) * (len(words[place]) + 1) > SYMBOLS_AT_ONCE:
            yield part
            part = []
        part.append(place)
    if part:
        yield part


class Shares(NamedTuple):
    """The share of right words accepted, of wrong ones rejected, the mean of the two; the plain accuracy, and that of
    rejecting everything."""

    right: float
    rejected: float
    balanced: float
    accuracy: float
    always_no: float


def score(model: LanguageModel, language: Language, words: Sequence[str], threshold: float) -> Shares:
    """How many words are taken for what they are."""
    truth = np.array([language.has(word) for word in words])
    said = accepts(model, words, threshold)
    right, rejected = share(said[truth]), share(~said[~truth])
    return Shares(right, rejected, (right + rejected) / 2, share(said == truth), share(~truth))


def share(answers: np.ndarray) -> float:
    """Of bools that are true; nan where there are none."""
    return float(answers.mean()) if len(answers) else math.nan


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
        **score(model, language, strings, options.threshold)._asdict(),
        counters=counters,
        counting_units=counting_units,
        tried=list(tried),
        model=model,
    )


def find_counters(model: LanguageModel, language: Language, limit: int) -> tuple[list[CountingUnit], int]:
    """For each count the unit of each state that is nearest to it, over words up to the limit, the best first; and how
    many units have |r| > 0.99 with some count."""
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
    """Pearson's r of units (N, H) with a count (N,), 0 where a unit stands still, and the slope of each by it; (H,)."""
    x = values - values.mean(axis=0, dtype=np.float64)
    y = count - count.mean(dtype=np.float64)
    products, size = y @ x, np.sqrt((x**2).sum(axis=0) * (y @ y))
    return products / np.where(size > 0, size, 1.0), products / max(y @ y, 1e-300)


def stretches(found: Sequence[tuple[int, int]], most: int = 4) -> str:
    """1-49, 52; of many, the first and the last."""
    shown = [str(a) if a == b else f"{a}-{b}" for a, b in found]
    if len(shown) > most:
        shown = [*shown[: most - 1], f"… ({len(shown) - most} more)", shown[-1]]
    return ", ".join(shown) or "none"


def counting_table(results: Sequence[Counting]) -> Table:
    """Networks side by side."""
    rows = []
    several = len({each.cell for each in results}) < len(results)
    names = [f"{each.cell} {each.hidden}" + (f", seed {each.tried[0].seed}" if several else "") for each in results]
    for name, each in zip(names, results, strict=True):
        counter = each.counters[0]
        rows.append(
            [
                name,
                stretches(each.accepted),
                str(each.first_failure or ""),
                str(each.first_wrong or ""),
                figure(100 * each.balanced, 1),
                f"{100 * each.accuracy:.1f} ({100 * each.always_no:.1f})",
                f"{counter.state}{counter.unit}",
                figure(counter.r, 4, signed=True),
                figure(counter.slope, 4, signed=True),
                str(each.counting_units),
            ]
        )
    first = results[0]
    notes = [
        f"learnt from n = 1 to {first.limit}, asked to {first.tested}; a word is accepted if each symbol of it and its "
        f"end has p > {first.threshold:g}",
        ("" if several else "each is the best of its seeds by words just above the limit; ")
        + "accuracy: in brackets that of rejecting all",
    ]
    notes += [
        f"{name} wrongly accepts {kind}: n = {stretches(found)}"
        for name, each in zip(names, results, strict=True)
        for kind, found in each.wrongly.items()
        if found
    ]
    columns = [
        "network",
        "accepts n =",
        "first failure",
        "first wrong",
        "balanced",
        "accuracy",
        "counter",
        "r",
        "slope",
    ]
    return Table([*columns, "units with |r| > .99"], rows, first.language, notes)


def draw_counting(results: Sequence[Counting], path: str | Path) -> None:
    """For each network the sizes whose right and wrong words are accepted; and its counter over the longest word that
    was learnt from and over one twice as long."""
    with picture(path, 11, 1.2 + 2.4 * len(results)) as drawn:
        for (left, right), each in zip(drawn.subplots(len(results), 2, squeeze=False), results, strict=True):
            bars = {"right words": each.accepted, **each.wrongly}
            for height, (kind, found) in enumerate(reversed(bars.items())):
                good = kind == "right words"
                left.broken_barh(
                    [(a - 0.5, b - a + 1) for a, b in found],
                    (height - 0.4, 0.8),
                    color="#56a0e6" if good else "#e67e22",
                )
            left.set_yticks(range(len(bars)), list(reversed(bars)))
            left.axvline(each.limit, color="black", linestyle=":")
            left.set_xlim(0, each.tested + 1)
            left.set_ylim(-0.6, len(bars) - 0.4)
            left.set_title(f"{each.language}, {each.cell}: n accepted (dotted: learnt to here)", fontsize=10)
            language, counter = language_of(each.language), each.counters[0]
            for n, style in ((each.limit, "-"), (2 * each.limit, "--")):
                traced = trace(each.model, [language.right(n)[0]], keep=[counter.state])
                right.plot(traced.unit(counter.state, 0, counter.unit), style, label=f"n = {n}")
            right.set_title(f"{counter.state}{counter.unit}: r = {counter.r:.4f} with {counter.count}", fontsize=10)
            right.legend(fontsize=8)
        drawn.axes[-1].set_xlabel("symbol")
