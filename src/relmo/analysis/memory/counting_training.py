"""Formal languages that require a counter or a stack, and the training of small networks on them; the size n of a word
is the number of a's, or the nesting depth of brackets (Chomsky & Schützenberger 1963;  Gers & Schmidhuber 2001, LSTM
recurrent networks learn simple context-free and context-sensitive languages;  Weiss et al. 2018)."""

import copy
import math
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from relmo.analysis.core.show import split_progress
from relmo.analysis.memory.gradients import Fresh, fresh_model
from relmo.errors import SettingError
from relmo.models.lm import LanguageModel
from relmo.settings.fields import Progress
from relmo.settings.lm import TextSettings
from relmo.settings.options import CountingOptions
from relmo.text.vocabulary import SPECIALS, Vocabulary
from relmo.training.optimizer import clip_factor, gradient_norm

BRACKETS = ("()", "[]", "{}", "<>")
MEAN_RUN = 1 / 3  # mean number of a's in training words, as a share of the limit
NUM_DYCK_WORDS = 400  # in training
END_PROBABILITY = 0.2  # of a balanced word, wherever it could end
NUM_MIXED_WORDS = 2  # per depth, beside the purely nested one
MAX_GRADIENT_NORM = 1.0
MAX_BATCH_SYMBOLS = 1 << 15  # when words are judged
VALIDATION_INTERVAL = 250  # steps
NUM_VALIDATION_SIZES = 8  # up to the limit
Counts = tuple[np.ndarray, np.ndarray]  # positions and values


class TrainingWord(NamedTuple):
    """Word to learn from, with its weight in the loss. Long words have little weight, but positions from `certain_from`
    on, whose symbols are determined by the previous ones, weigh at least as much as in a word of mean weight."""

    word: str
    weight: float
    ignored: tuple[int, ...]  # positions whose prediction is not learned; position i is before symbol i
    certain_from: int | None = None


class Blocks:
    """a^n b^n with the letters ab, a^n b^n c^n with abc, and so on; n from 1."""

    def __init__(self, symbols: str = "ab"):
        self.symbols = symbols
        self.name = "".join(f"{letter}n" for letter in symbols)

    def spell(self, sizes: list[int]) -> str:
        """Return a word with these numbers of each letter."""
        return "".join(letter * max(size, 0) for letter, size in zip(self.symbols, sizes, strict=True))

    def examples(self, limit: int, seed: int) -> list[TrainingWord]:
        """Return training words of sizes up to the limit."""
        # Words must not reveal the limit: after n a's, another a or the first b is equally probable for all n below it,
        # and the symbol after the a's of the longest words is not learned.
        stay = 1 - 1 / max(MEAN_RUN * limit, 1.5)
        words = [TrainingWord(self.right(n)[0], stay**n, (), certain_from=n + 1) for n in range(1, limit)]
        # The longest word stands for all longer ones.
        weight = stay**limit / (1 - stay)
        return [*words, TrainingWord(self.right(limit)[0], weight, (limit,), certain_from=limit + 1)]

    def right(self, n: int, seed: int = 0) -> list[str]:
        """Return words of size n."""
        return [self.spell([n] * len(self.symbols))]

    def wrong(self, n: int, seed: int = 0) -> dict[str, str]:
        """Return words of size n that are nearly in the language, by their error."""
        sizes, last = [n] * (len(self.symbols) - 1), self.symbols[-1]
        return {
            f"{last}^(n{excess:+d})": self.spell([*sizes, n + excess]) for excess in (-2, -1, 1, 2) if n + excess >= 0
        }

    def has(self, word: str) -> bool:
        """Whether a word is in the language; the empty one is not."""
        return bool(word) and word == self.right(word.count(self.symbols[0]))[0]

    def strings(self, largest: int, count: int, seed: int) -> list[str]:
        """Draw a^(n+i) b^(n+j) …, n up to the largest and i, j from -2 to 2, as Weiss et al. test."""
        generator = np.random.default_rng(seed)
        words: list[str] = []
        while len(words) < count:
            n = int(generator.integers(0, largest + 1))
            word = self.spell((n + generator.integers(-2, 3, size=len(self.symbols))).tolist())
            words += [word] if word else []
        return words

    def counts(self, word: str) -> dict[str, Counts]:
        """Return the positions of symbols at which each counter changes, and its values there."""
        counts = {}
        for up, down in pairwise(self.symbols):
            steps = np.array([(symbol == up) - int(symbol == down) for symbol in word])
            positions = np.array([i for i, symbol in enumerate(word) if symbol in (up, down)])
            counts[f"#{up} - #{down}"] = (positions, np.cumsum(steps)[positions])
        return counts


class Dyck:
    """Balanced brackets of `kinds` kinds; n is the nesting depth."""

    def __init__(self, kinds: int = 1):
        self.kinds = kinds
        self.symbols = "".join(BRACKETS[:kinds])
        self.name = f"dyck-{kinds}"

    def examples(self, limit: int, seed: int) -> list[TrainingWord]:
        """Return training words of sizes up to the limit."""
        generator = np.random.default_rng(seed)
        words = []
        for _ in range(NUM_DYCK_WORDS):
            word = self.draw(generator, limit, 8 * limit)
            _, depths = self.counts(word)["depth"]
            words.append(TrainingWord(word, 1.0, tuple((1 + np.flatnonzero(depths == limit)).tolist())))
        return words

    def draw(self, generator: np.random.Generator, max_depth: int, max_length: int) -> str:
        """Draw a word that opens and closes with equal probability, of limited depth and length."""
        open_kinds = [int(generator.integers(self.kinds))]
        word = BRACKETS[open_kinds[0]][0]
        while open_kinds or generator.random() > END_PROBABILITY:
            can_open = len(open_kinds) < max_depth and len(word) + len(open_kinds) < max_length
            if not open_kinds and not can_open:
                break
            if can_open and (not open_kinds or generator.random() < 0.5):
                open_kinds.append(int(generator.integers(self.kinds)))
                word += BRACKETS[open_kinds[-1]][0]
            else:
                word += BRACKETS[open_kinds.pop()][1]
        return word

    def nested(self, n: int, seed: int) -> str:
        """Return a word of n opening brackets, followed by the closing ones."""
        kinds = np.random.default_rng((seed, n)).integers(self.kinds, size=n).tolist()
        return "".join(BRACKETS[kind][0] for kind in kinds) + "".join(BRACKETS[kind][1] for kind in reversed(kinds))

    def right(self, n: int, seed: int = 0) -> list[str]:
        """Return the nested word, and some of depth n with other words inside."""
        generator = np.random.default_rng((seed, n, 1))
        words = [self.nested(n, seed)]
        for _ in range(NUM_MIXED_WORDS if n > 2 else 0):
            outer, at = self.nested(n, seed), int(generator.integers(1, n))
            words.append(outer[:at] + self.draw(generator, max(1, n - at), 2 * n) + outer[at:])
        return words

    def wrong(self, n: int, seed: int = 0) -> dict[str, str]:
        """Return words of size n that are nearly in the language, by their error."""
        word = self.nested(n, seed)
        words = {"one closed too few": word[:-1], "one closed too many": word + word[-1]}
        if self.kinds > 1:  # the outermost bracket is closed with another kind
            substitute = next(pair[1] for pair in BRACKETS[: self.kinds] if pair[1] != word[-1])
            words["last of another kind"] = word[:-1] + substitute
        return words

    def has(self, word: str) -> bool:
        """Whether a word is in the language; the empty one is not."""
        expected: list[str] = []
        closing = {pair[0]: pair[1] for pair in BRACKETS[: self.kinds]}
        for symbol in word:
            if symbol in closing:
                expected.append(closing[symbol])
            elif not expected or expected.pop() != symbol:
                return False
        return bool(word) and not expected

    def strings(self, largest: int, count: int, seed: int) -> list[str]:
        """Draw words, half of them in the language and half with one bracket removed, inserted or replaced."""
        generator = np.random.default_rng(seed)
        words: list[str] = []
        while len(words) < count:
            n = int(generator.integers(1, largest + 1))
            word = self.right(n, int(generator.integers(1 << 30)))[-1]
            words.append(self.damage(word, generator) if len(words) % 2 else word)
        return words

    def damage(self, word: str, generator: np.random.Generator) -> str:
        """Return a word that is not in the language and differs in one bracket."""
        while True:
            at, bracket = int(generator.integers(len(word))), self.symbols[int(generator.integers(2 * self.kinds))]
            start, end = word[:at], word[at + 1 :]
            candidates = [start + end, start + bracket + word[at:], start + bracket + end]
            candidate = candidates[int(generator.integers(3))]
            if candidate and not self.has(candidate):
                return candidate

    def counts(self, word: str) -> dict[str, Counts]:
        """Return the positions of symbols at which each counter changes, and its values there."""
        opening = {pair[0] for pair in BRACKETS}
        depth = np.cumsum([1 if symbol in opening else -1 for symbol in word])
        return {"depth": (np.arange(len(word)), depth)}


Language = Blocks | Dyck


def get_language(name: str) -> Language:
    """Return the language with this name: anbn, anbncn, dyck-1 to dyck-4."""
    if re.fullmatch(r"(?:[a-z]n){2,}", name) and len(set(name[::2])) == len(name) // 2:
        return Blocks(name[::2])
    if (match := re.fullmatch(r"dyck-([1-4])", name)) is not None:
        return Dyck(int(match[1]))
    raise SettingError(f"Unknown language {name!r}; expected anbn, anbncn, or dyck-1 to dyck-{len(BRACKETS)}.")


@dataclass(frozen=True)
class Attempt:
    """Trained network at its best checkpoint."""

    seed: int
    step: int
    validation: float  # balanced accuracy
    margin: float  # distance of the worst word from the threshold, in nats; negative on the wrong side
    loss: float  # of training, in nats per symbol
    seconds: float


class PaddedWords:
    """Batch of words: </s> is read first; every symbol, and </s> at the end, is predicted."""

    def __init__(self, words: Sequence[str], vocabulary: Vocabulary):
        self.lengths = torch.tensor([len(word) + 1 for word in words])
        self.inputs = torch.full((len(words), int(self.lengths.max())), vocabulary.end)
        for row, word in zip(self.inputs, words, strict=True):
            row[1 : len(word) + 1] = torch.from_numpy(vocabulary.ids(word))
        self.targets = torch.roll(self.inputs, -1, dims=1)  # the padding is </s>, as at the start of the row
        self.inside = torch.arange(self.inputs.shape[1]) < self.lengths.unsqueeze(1)  # (B, T)


def train_best(
    language: Language, cell: str, options: CountingOptions, progress: Progress | None
) -> tuple[LanguageModel, list[Attempt]]:
    """Train one seed after the other until one has no validation errors; return the best network and all attempts."""
    trained: list[tuple[LanguageModel, Attempt]] = []
    for seed, callback in enumerate(split_progress(progress, [1.0] * options.seeds), start=options.seed):
        trained.append(train(language, cell, options, seed, callback))
        if trained[-1][1].validation == 1.0:
            break
    if progress is not None:
        progress(1.0)
    best, _ = max(trained, key=lambda pair: (pair[1].validation, pair[1].margin))
    return best, [attempt for _, attempt in trained]


def train(
    language: Language, cell: str, options: CountingOptions, seed: int, progress: Progress
) -> tuple[LanguageModel, Attempt]:
    """Train one network; return it at its best checkpoint in validation.

    The recurrent weights grow: at each step they are multiplied by 1 + growth * lr, the opposite of weight decay. So
    gates become 0 or 1 in float32, and a cell that can count adds and subtracts the same at any length; otherwise an
    error too small to matter in short words adds up (saturated networks: Merrill et al. 2020, A formal hierarchy of
    RNN architectures).
    """
    start_time = time.monotonic()
    vocabulary = Vocabulary([*SPECIALS, *language.symbols])
    settings = Fresh(cell=cell, hidden=options.hidden, embedding=4, start="relmo", seed=seed)
    model = fresh_model(settings, vocabulary, TextSettings(text_per="line"))
    network = model.get_recurrent_network()
    network.train()
    examples = language.examples(options.limit, seed)
    words = PaddedWords([example.word for example in examples], vocabulary)
    weights = compute_weights(words, examples)
    sizes = np.unique(np.geomspace(1, options.limit, NUM_VALIDATION_SIZES).astype(int)).tolist()
    sizes += range(options.limit + 1, options.limit + options.limit // 4 + 1)
    validation_words = [word for n in sizes for word in (*language.right(n), *language.wrong(n).values())]
    parameters, recurrent = list(network.parameters()), list(network.encoder.recurrent.parameters())
    optimizer = torch.optim.Adam(parameters, lr=options.lr)
    warm_up = max(1, options.steps // 20)

    def schedule(step: int) -> float:
        if step < warm_up:
            return (step + 1) / warm_up
        return 0.5 * (1 + math.cos(math.pi * (step - warm_up) / max(1, options.steps - warm_up)))

    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, schedule)
    generator = torch.Generator().manual_seed(seed)
    best, checkpoint, mean_loss = Attempt(seed, 0, -1.0, -math.inf, math.inf, 0.0), network.state_dict(), math.nan
    for step in range(1, options.steps + 1):
        rows = torch.randperm(len(weights), generator=generator)[: options.batch]
        length = int(words.lengths[rows].max())
        inputs, targets, batch_weights = (t[rows, :length] for t in (words.inputs, words.targets, weights))
        nll, _ = network.nll(inputs, targets, network.initial_state(len(inputs)))
        loss = (nll * batch_weights).sum() / batch_weights.sum()
        optimizer.zero_grad()
        loss.backward()
        factor = clip_factor(gradient_norm(parameters), MAX_GRADIENT_NORM)
        for parameter in parameters:
            if parameter.grad is not None:
                parameter.grad *= factor
        optimizer.step()
        with torch.no_grad():
            for parameter in recurrent:
                parameter.mul_(1 + options.growth * float(scheduler.get_last_lr()[0]))
        scheduler.step()
        mean_loss = float(loss.detach()) if step == 1 else 0.98 * mean_loss + 0.02 * float(loss.detach())
        if step % VALIDATION_INTERVAL == 0 or step == options.steps:
            network.eval()
            accuracy, margin = validate(model, language, validation_words, options.threshold)
            network.train()
            if (accuracy, margin) > (best.validation, best.margin):
                best = Attempt(seed, step, accuracy, margin, mean_loss, 0.0)
                checkpoint = copy.deepcopy(network.state_dict())
            progress(step / options.steps)
    network.load_state_dict(checkpoint)
    network.eval()
    return model, replace(best, seconds=time.monotonic() - start_time)


def compute_weights(words: PaddedWords, examples: Sequence[TrainingWord]) -> Tensor:
    """Return the weight of each prediction in the loss (B, T): its word's weight, 0 if it is ignored."""
    word_weights = torch.tensor([example.weight for example in examples])
    weights = words.inside * (word_weights / word_weights.mean()).unsqueeze(1)
    for row, example in zip(weights, examples, strict=True):
        row[list(example.ignored)] = 0.0
        if example.certain_from is not None:
            row[example.certain_from : len(example.word) + 1].clamp_(min=1.0)
    return weights


def validate(model: LanguageModel, language: Language, words: Sequence[str], threshold: float) -> tuple[float, float]:
    """Return the balanced accuracy and the margin of the worst word, in nats."""
    truth = np.array([language.has(word) for word in words])
    margins = (-math.log(threshold) - max_nll(model, words)) * np.where(truth, 1, -1)
    return (mean_or_nan(margins[truth] > 0) + mean_or_nan(margins[~truth] > 0)) / 2, float(margins.min())


def mean_or_nan(answers: np.ndarray) -> float:
    """Return the share of true answers; nan if there are none."""
    return float(answers.mean()) if len(answers) else math.nan


def max_nll(model: LanguageModel, words: Sequence[str]) -> np.ndarray:
    """Return -log p of the least probable symbol of each word, its end included; (N,)."""
    maxima = np.zeros(len(words))
    batches: list[list[int]] = [[]]
    for i in sorted(range(len(words)), key=lambda i: len(words[i])):
        if batches[-1] and (len(batches[-1]) + 1) * (len(words[i]) + 1) > MAX_BATCH_SYMBOLS:
            batches.append([])
        batches[-1].append(i)
    for indices in batches if words else []:
        batch = PaddedWords([words[i] for i in indices], model.vocabulary)
        with torch.no_grad():
            nll, _ = model.network.nll(batch.inputs, batch.targets, model.network.initial_state(len(indices)))
        maxima[indices] = nll.masked_fill(~batch.inside, 0.0).amax(dim=1).numpy()
    return maxima
