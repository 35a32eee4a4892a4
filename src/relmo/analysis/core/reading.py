"""A text as a model reads it. Any steps can be cut out of it: what the recurrent layers get, what follows, its loss.

    reading = read_text(model, text)
    reading.steps                              how many symbols are read, each predicting the next
    reading.cut(places)                        vectors (B, T, I) and targets (B, T) of the steps at places (B, T)
    reading.last_nll(places)                   what the network itself says of the last, read from no state

For a language model a text begins with the end of the text before it. For a bidirectional model it is a stream of
sentences, one a line; read backwards, each sentence is turned round in its place, as in training.
"""

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from relmo.analysis.core.trace import Texts, network_of, symbols_of
from relmo.errors import CorpusError, ModelError
from relmo.models.bilm import BiLM, bilm_text
from relmo.models.evaluate import full_precision
from relmo.models.lm import LanguageModel
from relmo.networks.language_model import NeuralLM, RecurrentLM
from relmo.nn.cells import State
from relmo.nn.softmax import AdaptiveSoftmax, FullSoftmax
from relmo.text.characters import BOS, EOS
from relmo.text.sentences import BOUNDARY

AT_ONCE = 1 << 14  # symbols that a network reads together


class Cut(NamedTuple):
    """What the recurrent layers read at some steps, (B, T, I), and the ids of what follows each, (B, T)."""

    vectors: Tensor
    targets: Tensor


class Reading:
    """A model's way through a text. `direction` 0 reads from the text's beginning; 1, which only bidirectional models
    have, reads each sentence from its end."""

    model: LanguageModel | BiLM
    steps: int
    direction = 0

    def symbols(self, places: np.ndarray) -> list[str]:
        """What is read at these steps (T,)."""
        raise NotImplementedError

    def id_of(self, symbol: str) -> int:
        """The id of a symbol of the vocabulary."""
        vocabulary = self.model.vocabulary
        assert vocabulary is not None
        if symbol not in vocabulary.index:
            raise CorpusError(f"{symbol!r} is not in the model's vocabulary; take a symbol that is")
        return vocabulary.index[symbol]

    def name_of(self, number: int) -> str:
        """The symbol of an id."""
        assert self.model.vocabulary is not None
        return self.model.vocabulary.symbols[number]

    def cut(self, places: np.ndarray) -> Cut:
        """The steps at places (B, T)."""
        raise NotImplementedError

    def features(self, y: Tensor) -> Tensor:
        """What the output layer sees of the recurrent layers' outputs (B, O)."""
        return y.to(self.softmax_weight)

    @property
    def softmax(self) -> FullSoftmax | AdaptiveSoftmax:
        """The output layer."""
        softmax = network_of(self.model).softmax
        assert softmax is not None
        return softmax

    @property
    def softmax_weight(self) -> Tensor:
        """A weight of the output layer, which tells its device and its precision."""
        return next(self.softmax.parameters())

    def losses(self, y: Tensor, targets: Tensor) -> Tensor:
        """-log p of the targets (B,), given the recurrent layers' outputs (B, O)."""
        return self.softmax.nll(self.features(y), targets)

    def logits(self, y: Tensor, targets: Tensor) -> Tensor:
        """The targets' scores before they are normalised (B,); for an adaptive softmax, their log-probabilities."""
        x = self.features(y)
        whole = self.softmax.logits(x) if isinstance(self.softmax, FullSoftmax) else self.softmax.log_probs(x)
        return whole.gather(1, targets.unsqueeze(1)).squeeze(1)

    def last_nll(self, places: np.ndarray) -> np.ndarray:
        """-log p of what follows the last of the steps at places (B, T), each row read from no state; (B,)."""
        with torch.no_grad(), full_precision():
            return self._nll(places, np.array([places.shape[1] - 1]), None)[0][:, 0].cpu().numpy()

    def whole_nll(self, ends: np.ndarray) -> np.ndarray:
        """-log p of what follows each of these steps (N,), in rising order, the state carried from the beginning."""
        state: State | None = None
        found = []
        for begin in range(0, int(ends[-1]) + 1, AT_ONCE):
            piece = np.arange(begin, min(begin + AT_ONCE, self.steps))
            wanted = ends[(ends >= piece[0]) & (ends <= piece[-1])] - begin
            with torch.no_grad(), full_precision():
                nll, state = self._nll(piece[None], wanted, state)
            found.append(nll[0].cpu().numpy())
        return np.concatenate(found)

    def _nll(self, places: np.ndarray, wanted: np.ndarray, state: State | None) -> tuple[Tensor, State]:
        """Reads the steps at places (B, T). -> -log p of what follows those that are wanted (W,) of the T, (B, W), and
        the state after all. The output layer, which is slow where it is large, sees no others."""
        raise NotImplementedError

    def ends(self, count: int, context: int, seed: int) -> np.ndarray:
        """Up to so many steps, drawn at random, that have at least `context` before them; sorted."""
        if self.steps <= context:
            raise CorpusError(
                f"the text has {self.steps} symbols and {context + 1} are needed; give more text, or look less far back"
            )
        generator = np.random.default_rng(seed)
        there = self.steps - context
        return np.sort(context + generator.choice(there, size=min(count, there), replace=False))


class LMReading(Reading):
    """How a language model reads a text."""

    def __init__(self, model: LanguageModel, text: Texts):
        self.model = model
        end = model.vocabulary.end
        self.ids = np.concatenate(
            [[end], *([*model.vocabulary.ids(each), end] for each in symbols_of(model, text))]
        ).astype(np.int64)
        self.steps = len(self.ids) - 1

    def symbols(self, places: np.ndarray) -> list[str]:
        return [self.name_of(int(self.ids[place])) for place in places]

    def cut(self, places: np.ndarray) -> Cut:
        network = network_of(self.model)
        assert isinstance(network, RecurrentLM)
        inputs, targets = (torch.from_numpy(self.ids[p]).to(self.model.device) for p in (places, places + 1))
        return Cut(network.encoder.embedding(inputs), targets)

    def features(self, y: Tensor) -> Tensor:
        network = network_of(self.model)
        assert isinstance(network, RecurrentLM)
        y = super().features(y)
        return y if network.bottleneck is None else network.bottleneck(y)

    def _nll(self, places: np.ndarray, wanted: np.ndarray, state: State | None) -> tuple[Tensor, State]:
        assert isinstance(self.model, LanguageModel)
        network = self.model.network
        inputs, targets = (torch.from_numpy(self.ids[p]).to(self.model.device) for p in (places, places + 1))
        state = network.initial_state(len(places)) if state is None else state
        if not isinstance(network, NeuralLM):
            nll, state = network.nll(inputs, targets, state)
            return nll[:, wanted], state
        x, state = network.features(inputs, state)
        return network.softmax.nll(x[:, wanted].flatten(0, 1), targets[:, wanted].flatten()).view(len(x), -1), state


class BiLMReading(Reading):
    """How one direction of a bidirectional language model reads a text."""

    def __init__(self, model: BiLM, text: Texts, direction: int):
        self.model, self.direction = model, direction
        vocabulary, sentences = model.output_words(), symbols_of(model, text)
        others = dict.fromkeys(word for words in sentences for word in words if word not in vocabulary.index)
        self.lexicon = [*vocabulary.symbols, *others]
        place = {word: i for i, word in enumerate(self.lexicon)}
        numbers = [BOUNDARY, *(n for words in sentences for n in (*(place[word] for word in words), BOUNDARY))]
        words = np.array(numbers, dtype=np.int32)
        self.text = bilm_text(words, self.lexicon, vocabulary, model.settings.model, model.device)
        self.steps = self.text.steps

    def symbols(self, places: np.ndarray) -> list[str]:
        sentence = np.searchsorted(self.text.bounds, places, side="right") - 1
        turned = self.text.bounds[sentence + 1] - (places - self.text.bounds[sentence])
        numbers = self.text.words[places if self.direction == 0 else turned]
        first = (BOS, EOS)[self.direction]
        return [first if number == BOUNDARY else self.lexicon[number] for number in numbers]

    def cut(self, places: np.ndarray) -> Cut:
        assert isinstance(self.model, BiLM)
        window = self.text.window(_with_next(places))
        vectors = self.model.network.encoder(window.words)[window.inputs[self.direction]]  # (T, B, I)
        return Cut(vectors.transpose(0, 1), window.targets[self.direction].transpose(0, 1))

    def _nll(self, places: np.ndarray, wanted: np.ndarray, state: State | None) -> tuple[Tensor, State]:
        assert isinstance(self.model, BiLM)
        window = self.text.window(_with_next(places))
        run = self.model.network.read(window, state)
        y = run.layers[-1][self.direction][wanted].transpose(0, 1)  # (B, W, P)
        targets = window.targets[self.direction][wanted].transpose(0, 1)
        return self.softmax.nll(y.flatten(0, 1), targets.flatten()).view(targets.shape), run.state


def _with_next(places: np.ndarray) -> np.ndarray:
    """(B, T) -> (B, T + 1): and the step after the last."""
    return np.concatenate([places, places[:, -1:] + 1], axis=1)


def read_text(model: LanguageModel | BiLM, text: Texts, *, direction: int = 0) -> Reading:
    """The text as the model reads it."""
    if isinstance(model, BiLM):
        return BiLMReading(model, text, direction)
    if direction:
        raise ModelError("a language model of one direction reads forwards; leave the direction out")
    return LMReading(model, text)
