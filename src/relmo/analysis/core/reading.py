"""A text as the steps of a model: the inputs of the recurrent layers, the targets and the losses at any steps.

For a language model, a text begins with the end of a previous one. For a bidirectional model it is a stream of
sentences, one per line; in the backward direction each sentence is reversed in its place, as in training.
"""

import numpy as np
import torch
from torch import Tensor

from relmo.analysis.core.trace import Texts, get_network, split_texts
from relmo.errors import CorpusError, ModelError
from relmo.models.bilm import BiLM, bilm_text
from relmo.models.evaluate import full_precision
from relmo.models.lm import LanguageModel
from relmo.networks.language_model import NeuralLM, RecurrentLM
from relmo.nn.recurrence import State
from relmo.nn.softmax import FullSoftmax
from relmo.text.characters import BOS, EOS
from relmo.text.encode import BOUNDARY

BATCH_SYMBOLS = 1 << 14  # symbols per batch


class Reading:
    """Steps of a language model over a text."""

    model: LanguageModel | BiLM
    num_steps: int
    direction = 0

    def __init__(self, model: LanguageModel, text: Texts):
        self.model = model
        end = model.vocabulary.end
        texts = ([*model.vocabulary.ids(symbols), end] for symbols in split_texts(model, text))
        self.ids = np.concatenate([[end], *texts]).astype(np.int64)
        self.num_steps = len(self.ids) - 1

    def get_symbols(self, steps: np.ndarray) -> list[str]:
        """Return the symbols that are read at steps (T,)."""
        assert self.model.vocabulary is not None
        return [self.model.vocabulary.symbols[i] for i in self.ids[steps].tolist()]

    def get_inputs(self, steps: np.ndarray) -> tuple[Tensor, Tensor]:
        """Return the inputs (B, T, I) of the recurrent layers at steps (B, T), and the ids (B, T) of the targets."""
        network = get_network(self.model)
        assert isinstance(network, RecurrentLM)
        inputs, targets = (torch.from_numpy(self.ids[i]).to(self.model.device) for i in (steps, steps + 1))
        return network.encoder.embedding(inputs), targets

    def compute_nll(self, steps: np.ndarray, selection: np.ndarray, state: State | None) -> tuple[Tensor, State]:
        """Read steps (B, T); return the losses (B, W) after the selected ones (W,) of the T, and the final state."""
        assert isinstance(self.model, LanguageModel)
        network = self.model.network
        inputs, targets = (torch.from_numpy(self.ids[i]).to(self.model.device) for i in (steps, steps + 1))
        state = network.initial_state(len(steps)) if state is None else state
        if not isinstance(network, NeuralLM):
            nll, state = network.nll(inputs, targets, state)
            return nll[:, selection], state
        x, state = network.features(inputs, state)
        # A large output layer is slow: it is applied to the selected steps only.
        nll = network.softmax.nll(x[:, selection].flatten(0, 1), targets[:, selection].flatten())
        return nll.view(len(x), -1), state

    def losses(self, y: Tensor, targets: Tensor, *, logits: bool = False) -> Tensor:
        """Return -log p of targets (B,) for the top outputs (B, O), or their logits (adaptive softmax: log p)."""
        network = get_network(self.model)
        softmax = network.softmax
        assert softmax is not None
        x = y.to(next(softmax.parameters()))
        if isinstance(network, RecurrentLM) and network.bottleneck is not None:
            x = network.bottleneck(x)
        if not logits:
            return softmax.nll(x, targets)
        scores = softmax.logits(x) if isinstance(softmax, FullSoftmax) else softmax.log_probs(x)
        return scores.gather(1, targets.unsqueeze(1)).squeeze(1)

    def full_context_nll(self, ends: np.ndarray) -> np.ndarray:
        """Return -log p after each of these ascending steps (N,), with the state carried from the beginning."""
        state: State | None = None
        losses = []
        for begin in range(0, int(ends[-1]) + 1, BATCH_SYMBOLS):
            steps = np.arange(begin, min(begin + BATCH_SYMBOLS, self.num_steps))
            selection = ends[(ends >= steps[0]) & (ends <= steps[-1])] - begin
            with torch.no_grad(), full_precision():
                nll, state = self.compute_nll(steps[None], selection, state)
            losses.append(nll[0].cpu().numpy())
        return np.concatenate(losses)

    def sample_ends(self, count: int, context: int, seed: int) -> np.ndarray:
        """Draw up to `count` steps with at least `context` steps before them; sorted."""
        num_candidates = self.num_steps - context
        if num_candidates <= 0:
            raise CorpusError(
                f"The text has {self.num_steps} symbols, but {context + 1} are required; use more text or less context."
            )
        generator = np.random.default_rng(seed)
        return np.sort(context + generator.choice(num_candidates, size=min(count, num_candidates), replace=False))


class BiLMReading(Reading):
    """Steps of one direction of a bidirectional language model over a text; 1 is the backward direction."""

    def __init__(self, model: BiLM, text: Texts, direction: int):
        self.model, self.direction = model, direction
        vocabulary, sentences = model.get_output_vocabulary(), split_texts(model, text)
        unknown = dict.fromkeys(word for words in sentences for word in words if word not in vocabulary.index)
        self.lexicon = [*vocabulary.symbols, *unknown]
        index = {word: i for i, word in enumerate(self.lexicon)}
        ids = [BOUNDARY, *(i for words in sentences for i in (*(index[word] for word in words), BOUNDARY))]
        self.text = bilm_text(
            np.array(ids, dtype=np.int32), self.lexicon, vocabulary, model.settings.model, model.device
        )
        self.num_steps = self.text.steps

    def get_symbols(self, steps: np.ndarray) -> list[str]:
        bounds = self.text.bounds
        sentence = np.searchsorted(bounds, steps, side="right") - 1
        ids = self.text.words[steps if self.direction == 0 else bounds[sentence + 1] - (steps - bounds[sentence])]
        boundary = (BOS, EOS)[self.direction]
        return [boundary if i == BOUNDARY else self.lexicon[i] for i in ids]

    def get_inputs(self, steps: np.ndarray) -> tuple[Tensor, Tensor]:
        assert isinstance(self.model, BiLM)
        window = self.text.window(np.concatenate([steps, steps[:, -1:] + 1], axis=1))
        vectors = self.model.network.encoder(window.words)[window.inputs[self.direction]]  # (T, B, I)
        return vectors.transpose(0, 1), window.targets[self.direction].transpose(0, 1)

    def compute_nll(self, steps: np.ndarray, selection: np.ndarray, state: State | None) -> tuple[Tensor, State]:
        assert isinstance(self.model, BiLM)
        window = self.text.window(np.concatenate([steps, steps[:, -1:] + 1], axis=1))
        run = self.model.network.read(window, state)
        y = run.layers[-1][self.direction][selection].transpose(0, 1)  # (B, W, P)
        targets = window.targets[self.direction][selection].transpose(0, 1)
        assert self.model.network.softmax is not None
        nll = self.model.network.softmax.nll(y.flatten(0, 1), targets.flatten())
        return nll.view(targets.shape), run.state


def make_reading(model: LanguageModel | BiLM, text: Texts, *, direction: int = 0) -> Reading:
    """Return the steps of a model over a text."""
    if isinstance(model, BiLM):
        return BiLMReading(model, text, direction)
    if direction:
        raise ModelError("Only bidirectional language models have a backward direction.")
    return Reading(model, text)
