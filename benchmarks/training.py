"""Cases of training: whole steps of the training loop.

A step reads a window, computes the loss and its gradients, and updates the weights. Loop, optimiser and windows are the
same for all cases; the network differs:

    textbook step          as the old tools: every token encoded at all columns, a loop for each layer and direction
    plain torch autograd   the definition on relmo's batches, each distinct word of a window encoded once, with no more
                           columns than it needs; every gradient by autograd. This is the baseline
    … all columns          the same, with all columns that a word can have
    relmo                  the network of `relmo train bilm`

Tokens are the steps of a window, batch x unroll, each counted once though both directions read it.
"""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, embedding, linear

from benchmarks.clock import Case
from benchmarks.floor import training_work
from benchmarks.lstms import Shape
from benchmarks.textbook import TextbookBiLM, pad_columns
from relmo.models.bilm import bilm_text
from relmo.networks.bilm import BiLMNetwork, BiWindow
from relmo.nn.softmax import Lesson, SampledSoftmax
from relmo.settings.bilm import BiLMModelSettings, BiLMTrainSettings
from relmo.text.characters import CHARACTERS
from relmo.text.encode import BOUNDARY
from relmo.text.vocabulary import SentenceVocabulary
from relmo.training.batch import BiLanes
from relmo.training.loop import Trainer

NUM_WINDOWS = 1 << 30  # practically endless
WARM_UP_STEPS = {"cpu": 1, "cuda": 16}  # on a GPU graphs are captured; peers take a quarter of them


class EndlessWindows:
    """Complete windows of lanes, epoch after epoch as one epoch, so that states are always carried. The last, shorter
    window of an epoch is left out. With `columns` every word is padded to that many."""

    def __init__(self, lanes: BiLanes, unroll: int, columns: int | None = None):
        self.lanes, self.unroll, self.columns = lanes, unroll, columns

    def __len__(self) -> int:
        return NUM_WINDOWS

    def get(self, epoch: int, index: int) -> BiWindow:
        """Return the window with this index, whatever the epoch."""
        window = self.lanes.get(*divmod(index, self.lanes.length // self.unroll))
        return window if self.columns is None else pad_columns(window, self.columns)


class PlainSampledSoftmax(SampledSoftmax):
    """Sampled softmax with its loss as plain cross-entropy over all logits, without a teacher."""

    def loss(self, x: Tensor, targets: Tensor, lesson: Lesson | None = None) -> Tensor:
        assert lesson is None
        noise = -torch.log(torch.empty_like(self.log_p).exponential_())
        sample = torch.topk(self.log_p + noise, self.samples, sorted=False).indices  # (S,)
        target_logits = (
            (x * embedding(targets, self.weight)).sum(-1) + self.bias[targets] - self.log_count[targets]
        )  # (N,)
        sample_logits = linear(x, self.weight[sample], self.bias[sample] - self.log_count[sample])  # (N, S)
        sample_logits = sample_logits.masked_fill(targets.unsqueeze(1) == sample, -torch.inf)
        logits = torch.cat([target_logits.unsqueeze(1), sample_logits], dim=1).float()
        return cross_entropy(logits, torch.zeros_like(targets))


class TrainingBench:
    """Training steps of one geometry, over windows of `shape`, those of the textbook over windows of `textbook`; the
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
        self.token_ids, self.lexicon = _encode(sentences, vocab_size)
        self.network = BiLMNetwork(settings, vocab_size=vocab_size).to(device)

    def cases(self) -> list[Case]:
        """Return one training step of each network."""
        textbook_shape, shape = self.textbook_shape, self.shape
        name = "textbook step"
        if textbook_shape != shape:
            name += f", {textbook_shape.batch} x {textbook_shape.unroll}"
        plain, facts = "plain torch autograd", {"precision": self.peer}
        definition, columns = self.plain(), self.settings.max_characters
        cases = [
            self._case(name, self.textbook(), self.windows(textbook_shape), textbook_shape, facts),
            self._case(f"{plain}, all columns", definition, self.windows(shape, columns), shape, facts),
            self._case(plain, definition, self.windows(shape), shape, facts | {"baseline": True}),
        ]
        for precision in self.precisions:
            facts = {"precision": precision, "floor": "train"}
            cases.append(self._case(f"relmo {precision}", self.network, self.windows(shape), shape, facts))
        return cases

    def textbook(self) -> nn.Module:
        """Return the textbook network with the same weights."""
        return TextbookBiLM(self.network).to(self.device)

    def plain(self) -> nn.Module:
        """Return the definition with the same weights and all gradients by autograd."""
        network = BiLMNetwork(self.settings, vocab_size=self.vocab_size, fast=False).to(self.device)
        network.load_state_dict(self.network.state_dict())
        if isinstance(network.softmax, SampledSoftmax):
            softmax = PlainSampledSoftmax(self.settings.projection, self.vocab_size, samples=self.settings.samples)
            softmax.load_state_dict(network.softmax.state_dict())
            network.softmax = softmax.to(self.device)
        network.graphs = False
        return network

    def windows(self, shape: Shape, columns: int | None = None) -> EndlessWindows:
        """Return windows over a separate text, as several trainers may prefetch in threads."""
        vocabulary = SentenceVocabulary(self.lexicon[: self.vocab_size])
        text = bilm_text(self.token_ids, self.lexicon, vocabulary, self.settings, self.device)
        return EndlessWindows(BiLanes(text, batch=shape.batch, unroll=shape.unroll, seed=1), shape.unroll, columns)

    def work(self) -> float:
        """Return the least operations per token, by the distinct words of the first four windows."""
        windows = self.windows(self.shape)
        return sum(self._window_work(windows.get(0, i)) for i in range(4)) / 4

    def _window_work(self, window: BiWindow) -> float:
        groups = [window.words] if isinstance(window.words, Tensor) else window.words
        lengths = torch.cat([(group < CHARACTERS).sum(dim=1) - 2 for group in groups])  # without marks and padding
        input_lengths = lengths[window.inputs.unique()].tolist()
        return training_work(self.settings, input_lengths, self.shape.tokens, self.vocab_size)

    def _case(self, name: str, model: nn.Module, windows: EndlessWindows, shape: Shape, facts: dict[str, Any]) -> Case:
        settings = BiLMTrainSettings(
            epochs=1, batch=shape.batch, unroll=shape.unroll, precision=facts["precision"], average=0.0
        )
        steps = Trainer(model, windows, settings).steps()
        num_warm_up = WARM_UP_STEPS[self.device.type] if "floor" in facts else WARM_UP_STEPS[self.device.type] // 4
        return Case(
            name,
            shape.tokens,
            lambda: next(steps),
            warm_up=lambda: [next(steps) for _ in range(num_warm_up)],
            facts=facts,
        )


def _encode(sentences: Sequence[Sequence[str]], vocab_size: int) -> tuple[np.ndarray, list[str]]:
    """Return token ids and the lexicon, which begins with a vocabulary of this size: the most frequent words, and if
    there are too few, words that do not occur."""
    counts = Counter(word for sentence in sentences for word in sentence)
    words = SentenceVocabulary.from_counts(list(counts), np.array(list(counts.values()))).symbols
    lexicon = words + [f"no word {i}" for i in range(vocab_size - len(words))]
    index = {word: i for i, word in enumerate(lexicon)}
    ids = [BOUNDARY]
    for sentence in sentences:
        ids += [index[word] for word in sentence]
        ids.append(BOUNDARY)
    return np.array(ids, dtype=np.int32), lexicon
