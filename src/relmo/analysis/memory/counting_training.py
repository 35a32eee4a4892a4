"""Training of small networks on a formal language, and the words they accept.

A network learns to predict the next symbol of words up to n = limit. It accepts a word if every symbol, and the end,
has a probability above a threshold. Several seeds are trained and validated repeatedly. The best checkpoint has the
fewest validation errors and, among equals, the largest margin. Validation words have some sizes up to the limit and all
sizes to a quarter above it; longer ones are only used for testing.
"""

import copy
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from relmo.analysis.core.progress import split_progress
from relmo.analysis.core.untrained import seeded
from relmo.analysis.memory.languages import Language, TrainingWord
from relmo.models.lm import LanguageModel
from relmo.networks.language_model import RecurrentLM
from relmo.settings.arguments import Progress
from relmo.settings.lm import LanguageModelSettings, LMSettings, TextSettings
from relmo.text.vocabulary import SPECIALS, Vocabulary
from relmo.training.optimizer import clip_factor, gradient_norm

MAX_BATCH_SYMBOLS = 1 << 15  # when words are judged
VALIDATION_INTERVAL = 250  # steps
NUM_VALIDATION_SIZES = 8  # up to the limit


@dataclass(frozen=True, kw_only=True)
class CountingOptions:
    """Options of training and testing.

    limit         largest n in training
    tested        largest n in testing; default four times the limit
    hidden        units
    steps         of training, per seed
    seeds         number of networks; training stops after the first one without validation errors
    threshold     minimum probability of every symbol of an accepted word
    strings       number of random words for the balanced accuracy
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
        """Largest n in testing."""
        return 4 * self.limit if self.tested is None else self.tested


@dataclass(frozen=True)
class Attempt:
    """Trained network at its best checkpoint.

    validation    balanced accuracy
    margin        distance of the worst word from the threshold, in nats; negative on the wrong side
    loss          of training, in nats per symbol
    """

    seed: int
    step: int
    validation: float
    margin: float
    loss: float
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
    best: tuple[tuple[float, float], LanguageModel] | None = None
    attempts: list[Attempt] = []
    for i, callback in enumerate(split_progress(progress, [1.0] * options.seeds)):
        model, attempt = train(language, cell, options, options.first_seed + i, callback)
        attempts.append(attempt)
        key = (attempt.validation, attempt.margin)
        if best is None or key > best[0]:
            best = (key, model)
        if attempt.validation == 1.0:
            break
    assert best is not None
    if progress is not None:
        progress(1.0)
    return best[1], attempts


def train(
    language: Language, cell: str, options: CountingOptions, seed: int, progress: Progress
) -> tuple[LanguageModel, Attempt]:
    """Train one network; return it at its best checkpoint in validation."""
    start_time = time.monotonic()
    vocabulary = Vocabulary([*SPECIALS, *language.symbols])
    model = new_model(cell, options.hidden, vocabulary, seed)
    network = model.network
    assert isinstance(network, RecurrentLM)
    network.train()
    examples = language.examples(options.limit, seed)
    words = PaddedWords([example.word for example in examples], vocabulary)
    weights = compute_weights(words, examples)
    validation_words = select_validation_words(language, options)
    optimizer = torch.optim.Adam(network.parameters(), lr=options.lr)
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
        loss = take_step(network, (nll * batch_weights).sum() / batch_weights.sum(), optimizer, options.clip)
        scheduler.step()
        mean_loss = loss if step == 1 else 0.98 * mean_loss + 0.02 * loss
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


def new_model(cell: str, hidden: int, vocabulary: Vocabulary, seed: int) -> LanguageModel:
    """Return an untrained language model over single characters; each word is a text."""
    settings = LanguageModelSettings(cell=cell, hidden=hidden, embedding=4)
    with seeded(seed):
        network = RecurrentLM(settings, vocab_size=len(vocabulary))
    return LanguageModel(network, vocabulary, LMSettings(text=TextSettings(text_per="line"), model=settings))


def take_step(network: RecurrentLM, loss: Tensor, optimizer: torch.optim.Optimizer, clip: float) -> float:
    """Take one optimiser step with gradient clipping; return the loss."""
    optimizer.zero_grad()
    loss.backward()
    parameters = list(network.parameters())
    factor = clip_factor(gradient_norm(parameters), clip)
    for parameter in parameters:
        if parameter.grad is not None:
            parameter.grad *= factor
    optimizer.step()
    return float(loss.detach())


def select_validation_words(language: Language, options: CountingOptions) -> list[str]:
    """Return positive and negative words of some sizes up to the limit and of all sizes just above it."""
    limit = options.limit
    sizes = np.unique(np.geomspace(1, limit, NUM_VALIDATION_SIZES).astype(int)).tolist()
    sizes += range(limit + 1, limit + limit // 4 + 1)
    return [word for n in sizes for word in (*language.right(n), *language.wrong(n).values())]


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
    assert isinstance(model.network, RecurrentLM)
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


def accepts(model: LanguageModel, words: Sequence[str], threshold: float) -> np.ndarray:
    """Whether every symbol of each word, and its end, has a probability above the threshold; (N,) of bool."""
    return max_nll(model, words) < -math.log(threshold)
