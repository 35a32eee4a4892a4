"""What is timed of training: whole steps of the one training loop.

A step reads a window, computes the loss and its gradients, and takes the optimiser's step; the loop, the optimiser
and the windows are the same for all, the network differs:

    textbook step          the old tools' shape: every token encoded at all columns, a loop for each layer and direction
    plain torch autograd   the definition on relmo's own batches, each distinct word of a window encoded once, with no
                           more columns than it needs; every gradient by autograd. The ratios are to this one
    … all columns          the same, with all the columns that a word can have
    relmo                  what `relmo train bilm` runs

Tokens are the steps of a window, batch x unroll, each counted once though both directions read it.
"""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, embedding, linear

from relmo.bench.clock import Case
from relmo.bench.floor import training_work
from relmo.bench.lstms import Shape
from relmo.bench.textbook import TextbookBiLM, all_columns
from relmo.models.bilm import bilm_text
from relmo.networks.bilm import BiLMNetwork, BiWindow
from relmo.nn.softmax import Lesson, SampledSoftmax
from relmo.settings.bilm import BiLMModelSettings, BiLMTrainSettings
from relmo.text.characters import CHARACTERS
from relmo.text.sentences import BOUNDARY
from relmo.text.vocabulary import SentenceVocabulary
from relmo.training.batch import BiLanes
from relmo.training.loop import Trainer

ENDLESS = 1 << 30  # windows
WARM = {"cpu": 1, "cuda": 16}  # steps before timing begins: on a GPU graphs are recorded; peers take a quarter of them


class EndlessWindows:
    """The whole windows of some lanes, epoch after epoch as if all were one, so that states are always carried. The
    last window of an epoch may be shorter and is left out. With `columns` every word has that many, padding
    included."""

    def __init__(self, lanes: BiLanes, unroll: int, columns: int | None = None):
        self.lanes, self.unroll, self.columns = lanes, unroll, columns

    def __len__(self) -> int:
        return ENDLESS

    def get(self, epoch: int, index: int) -> BiWindow:
        """The window of a number, whatever the epoch."""
        window = self.lanes.get(*divmod(index, self.lanes.length // self.unroll))
        return window if self.columns is None else all_columns(window, self.columns)


class PlainSampledSoftmax(SampledSoftmax):
    """The sampled softmax's loss, without a teacher, as a cross entropy over all its logits."""

    def loss(self, x: Tensor, targets: Tensor, lesson: Lesson | None = None) -> Tensor:
        assert lesson is None
        noise = -torch.log(torch.empty_like(self.log_p).exponential_())
        sample = torch.topk(self.log_p + noise, self.samples, sorted=False).indices  # (S,)
        own = (x * embedding(targets, self.weight)).sum(-1) + self.bias[targets] - self.log_count[targets]  # (N,)
        others = linear(x, self.weight[sample], self.bias[sample] - self.log_count[sample])  # (N, S)
        others = others.masked_fill(targets.unsqueeze(1) == sample, -torch.inf)
        logits = torch.cat([own.unsqueeze(1), others], dim=1).float()
        return cross_entropy(logits, torch.zeros_like(targets))


class TrainingBench:
    """The whole steps of one geometry, over windows of `shape`, the textbook's over windows of a shape of its own; the
    peers compute in `peer`, relmo in each of `precisions`."""

    def __init__(
        self,
        settings: BiLMModelSettings,
        sentences: Sequence[Sequence[str]],
        *,
        shape: Shape,
        textbook: Shape,
        vocab_size: int,
        device: torch.device,
        peer: str,
        precisions: Sequence[str],
    ):
        torch.manual_seed(0)
        self.settings, self.shape, self.textbook_shape = settings, shape, textbook
        self.vocab_size, self.device = vocab_size, device
        self.peer, self.precisions = peer, precisions
        self.numbers, self.lexicon = _numbered(sentences, vocab_size)
        self.network = BiLMNetwork(settings, vocab_size=vocab_size).to(device)

    def cases(self) -> list[Case]:
        """One training step of each network."""
        own, shape = self.textbook_shape, self.shape
        name = "textbook step" if own == shape else f"textbook step, {own.batch} x {own.unroll}"
        plain, facts = "plain torch autograd", {"precision": self.peer}
        definition, columns = self.plain(), self.settings.max_characters
        peers = [
            self._case(name, self.textbook(), self.windows(own), own, facts),
            self._case(f"{plain}, all columns", definition, self.windows(shape, columns), shape, facts),
            self._case(plain, definition, self.windows(shape), shape, facts | {"baseline": True}),
        ]
        ours = {precision: {"precision": precision, "floor": "train"} for precision in self.precisions}
        return peers + [self._case(f"relmo {p}", self.network, self.windows(shape), shape, ours[p]) for p in ours]

    def textbook(self) -> nn.Module:
        """The old tools' shape, with the same weights."""
        return TextbookBiLM(self.network).to(self.device)

    def plain(self) -> nn.Module:
        """The definition, with the same weights, and nothing but autograd for its gradients."""
        network = BiLMNetwork(self.settings, vocab_size=self.vocab_size, fast=False).to(self.device)
        network.load_state_dict(self.network.state_dict())
        if isinstance(network.softmax, SampledSoftmax):
            softmax = PlainSampledSoftmax(self.settings.projection, self.vocab_size, samples=self.settings.samples)
            softmax.load_state_dict(network.softmax.state_dict())
            network.softmax = softmax.to(self.device)
        network.graphs = False
        return network

    def windows(self, shape: Shape, columns: int | None = None) -> EndlessWindows:
        """What is read; each has a text of its own, as threads of several trainers may read ahead."""
        vocabulary = SentenceVocabulary(self.lexicon[: self.vocab_size])
        text = bilm_text(self.numbers, self.lexicon, vocabulary, self.settings, self.device)
        return EndlessWindows(BiLanes(text, batch=shape.batch, unroll=shape.unroll, seed=1), shape.unroll, columns)

    def work(self) -> float:
        """The least operations a token, by the distinct words of the first windows."""
        windows = self.windows(self.shape)
        return sum(self._work(windows.get(0, i)) for i in range(4)) / 4

    def _work(self, window: BiWindow) -> float:
        groups = [window.words] if isinstance(window.words, Tensor) else window.words
        lengths = torch.cat([(group < CHARACTERS).sum(dim=1) - 2 for group in groups])  # all but marks and padding
        used = lengths[window.inputs.unique()].tolist()
        return training_work(self.settings, used, self.shape.tokens, self.vocab_size)

    def _case(self, name: str, model: nn.Module, windows: EndlessWindows, shape: Shape, facts: dict[str, Any]) -> Case:
        settings = BiLMTrainSettings(
            epochs=1, batch=shape.batch, unroll=shape.unroll, precision=facts["precision"], average=0.0
        )
        steps = Trainer(model, windows, settings).steps()
        first = WARM[self.device.type] if "floor" in facts else WARM[self.device.type] // 4
        return Case(
            name,
            shape.tokens,
            lambda: next(steps),
            warm=lambda: [next(steps) for _ in range(first)],
            facts=facts,
        )


def _numbered(sentences: Sequence[Sequence[str]], vocab_size: int) -> tuple[np.ndarray, list[str]]:
    """The sentences as numbers in a lexicon that begins with a vocabulary of this size: the most frequent words, and
    where there are too few, words that do not occur."""
    counts = Counter(word for sentence in sentences for word in sentence)
    words = SentenceVocabulary.from_counts(list(counts), np.array(list(counts.values()))).symbols
    lexicon = words + [f"no word {i}" for i in range(vocab_size - len(words))]
    number = {word: i for i, word in enumerate(lexicon)}
    numbers = [BOUNDARY]
    for sentence in sentences:
        numbers += [number[word] for word in sentence]
        numbers.append(BOUNDARY)
    return np.array(numbers, dtype=np.int32), lexicon
