"""Small networks that learn a formal language, and the words they accept.

A network learns to predict the next symbol of words up to n = limit. It accepts a word if every symbol of the word, and
its end, has a probability above a threshold.

Several seeds are tried, and each network is looked at several times during its training. The best moment is kept: the
one with the fewest mistakes in validation and, of equal ones, with the clearest answers. Validation has words of some
sizes up to the limit and of all sizes from there to a quarter above it. Longer words are never looked at.
"""

import copy
import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from relmo.analysis.core.progress import split_progress
from relmo.analysis.core.untrained import seeded
from relmo.analysis.memory.languages import Language, LearntWord
from relmo.models.lm import LanguageModel
from relmo.networks.language_model import RecurrentLM
from relmo.settings.arguments import Progress
from relmo.settings.lm import LanguageModelSettings, LMSettings, TextSettings
from relmo.text.vocabulary import SPECIALS, Vocabulary
from relmo.training.optimizer import clip_factor, gradient_norm

SYMBOLS_AT_ONCE = 1 << 15  # read together when words are judged
VALIDATE_EVERY = 250  # steps
VALIDATED = 8  # sizes up to the limit that are validated on


@dataclass(frozen=True, kw_only=True)
class CountingOptions:
    """How networks are trained and tested.

    limit         the largest n that is learned from
    tested        the largest n that is tested; four times the limit where it is not given
    hidden        units
    steps         of training, for each seed
    seeds         how many networks are tried; the first that makes no mistake in validation is the last
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
        """The largest n that is tested."""
        return 4 * self.limit if self.tested is None else self.tested


@dataclass(frozen=True)
class Tried:
    """A network that was trained, at the step of its best moment.

    validation    the balanced share of right answers
    margin        how far the worst word is on the right side of the threshold, in nats
    loss          of training, in nats a symbol
    """

    seed: int
    step: int
    validation: float
    margin: float
    loss: float
    seconds: float


class PaddedWords:
    """Words side by side as a network reads them: </s> first; each symbol, and then </s> again, is predicted."""

    def __init__(self, words: Sequence[str], vocabulary: Vocabulary):
        self.lengths = torch.tensor([len(word) + 1 for word in words])
        self.inputs = torch.full((len(words), int(self.lengths.max())), vocabulary.end)
        for row, word in zip(self.inputs, words, strict=True):
            row[1 : len(word) + 1] = torch.from_numpy(vocabulary.ids(word))
        self.targets = torch.roll(self.inputs, -1, dims=1)  # past a word's end stand only </s>, as at the row's start
        self.inside = torch.arange(self.inputs.shape[1]) < self.lengths.unsqueeze(1)  # (B, T)


class WeightedBatch(NamedTuple):
    """What some words are learned from; (B, T) each."""

    inputs: Tensor
    targets: Tensor
    weight: Tensor


def train_best(
    language: Language, cell: str, options: CountingOptions, progress: Progress | None
) -> tuple[LanguageModel, list[Tried]]:
    """Trains seed after seed, until one makes no mistake in validation. -> the best network, and all that were
    tried."""
    best: tuple[tuple[float, float], LanguageModel] | None = None
    tried: list[Tried] = []
    for number, tell in enumerate(split_progress(progress, [1.0] * options.seeds)):
        model, one = train(language, cell, options, options.first_seed + number, tell)
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


def train(
    language: Language, cell: str, options: CountingOptions, seed: int, progress: Progress
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
    weight = _weights_of(words, examples)
    asked = questions(language, options)
    optimizer = torch.optim.Adam(network.parameters(), lr=options.lr)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: _rate(step, options.steps))
    generator = torch.Generator().manual_seed(seed)
    best, kept, recent = Tried(seed, 0, -1.0, -math.inf, math.inf, 0.0), network.state_dict(), math.nan
    for step in range(1, options.steps + 1):
        rows = torch.randperm(len(weight), generator=generator)[: options.batch]
        longest = int(words.lengths[rows].max())
        batch = WeightedBatch(*(tensor[rows, :longest] for tensor in (words.inputs, words.targets, weight)))
        loss = _descend(network, batch, optimizer, options.clip)
        schedule.step()
        recent = loss if step == 1 else 0.98 * recent + 0.02 * loss
        if step % VALIDATE_EVERY == 0 or step == options.steps:
            network.eval()
            now, margin = validate(model, language, asked, options.threshold)
            network.train()
            if (now, margin) > (best.validation, best.margin):
                best = Tried(seed, step, now, margin, recent, 0.0)
                kept = copy.deepcopy(network.state_dict())
            progress(step / options.steps)
    network.load_state_dict(kept)
    network.eval()
    return model, replace(best, seconds=time.monotonic() - began)


def _weights_of(words: PaddedWords, examples: Sequence[LearntWord]) -> Tensor:
    """What each prediction weighs in the loss: its word's weight, 0 where it is not learned; (B, T)."""
    own = torch.tensor([example.weight for example in examples])
    weight = words.inside * (own / own.mean()).unsqueeze(1)
    for row, example in zip(weight, examples, strict=True):
        row[list(example.untold)] = 0.0
        if example.certain is not None:
            row[example.certain : len(example.word) + 1].clamp_(min=1.0)
    return weight


def _rate(step: int, steps: int) -> float:
    """The share of the learning rate at a step, from 0: rising over the first twentieth, then falling as a cosine."""
    rise = max(1, steps // 20)
    if step < rise:
        return (step + 1) / rise
    return 0.5 * (1 + math.cos(math.pi * (step - rise) / max(1, steps - rise)))


def new_model(cell: str, hidden: int, vocabulary: Vocabulary, seed: int) -> LanguageModel:
    """An untrained language model over single characters, each word a text."""
    settings = LanguageModelSettings(cell=cell, hidden=hidden, embedding=4)
    with seeded(seed):
        network = RecurrentLM(settings, vocab_size=len(vocabulary))
    return LanguageModel(network, vocabulary, LMSettings(text=TextSettings(text_per="line"), model=settings))


def _descend(network: RecurrentLM, batch: WeightedBatch, optimizer: torch.optim.Optimizer, clip: float) -> float:
    """One step on some of the words. -> their weighted mean loss."""
    nll, _ = network.nll(batch.inputs, batch.targets, network.initial_state(len(batch.inputs)))
    loss = (nll * batch.weight).sum() / batch.weight.sum()
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
    learnt = np.unique(np.geomspace(1, limit, VALIDATED).astype(int)).tolist()
    sizes = [*learnt, *range(limit + 1, limit + limit // 4 + 1)]
    return [word for n in sizes for word in (*language.right(n), *language.wrong(n).values())]


def validate(model: LanguageModel, language: Language, words: Sequence[str], threshold: float) -> tuple[float, float]:
    """The balanced share of right answers, and how far the worst word is on the right side of the threshold, in
    nats."""
    truth = np.array([language.has(word) for word in words])
    far = (-math.log(threshold) - least_probable(model, words)) * np.where(truth, 1, -1)
    return (share_of(far[truth] > 0) + share_of(far[~truth] > 0)) / 2, float(far.min())


def share_of(answers: np.ndarray) -> float:
    """The share of bools that are true; nan where there are none."""
    return float(answers.mean()) if len(answers) else math.nan


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
