"""A text as a model reads it, page by page: every state and gate, and what the model expects next.

Pages are traced when they are asked for. A language model carries its state from page to page, so the states between
them are kept, and any page can be made again from the one before it.
"""

import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch

from relmo.analysis.core.causal import Unit, values_of
from relmo.analysis.core.features import Document
from relmo.analysis.core.stack import LayerState, flat_states
from relmo.analysis.core.trace import Recorder, Trace, after_end, embedded, iter_trace, network_of, of_sentences
from relmo.errors import SettingError
from relmo.models.bilm import BiLM
from relmo.models.evaluate import full_precision
from relmo.models.lm import LanguageModel
from relmo.networks.language_model import RecurrentLM

CHARACTERS, WORDS = 4000, 1000  # symbols of a page, of a model of characters or of words
NUMBERS = 1 << 25  # of all units together, that are held of a text
KEPT = 3  # pages with all their gates
LIKELY = 5  # symbols that are shown of what the model expects
AT_ONCE = 1 << 22  # probabilities made together


@dataclass(frozen=True)
class Expected:
    """For each symbol of a page, its -log2 p (T,), and the likeliest symbols after it with their probabilities."""

    bits: np.ndarray
    likely: list[list[tuple[str, float]]]


class PagedReader:
    """A model that reads a document, of which it takes as much as fits."""

    def __init__(self, model: LanguageModel | BiLM, document: Document):
        self.model = model
        self.recorder = Recorder(network_of(model), None, None)
        stack = self.recorder.stack
        units = sum(layer.sizes[state] * stack.directions for layer in stack.layers for state in layer.states)
        self.most = max(1, NUMBERS // units)
        self.document = document.head(self.most)
        self.left_out = len(document) - len(self.document)
        self.bounds = _page_bounds(model, self.document)
        self.places: list[list[LayerState]] = []  # the layers' states before each page
        self.pages: OrderedDict[int, Trace] = OrderedDict()
        self.wholes: dict[str, np.ndarray] = {}
        self.filling = threading.Lock()

    @property
    def states(self) -> dict[str, int]:
        """The states and gates that can be looked at, with how many units a layer has of each in all directions."""
        stack = self.recorder.stack
        return {name: stack.layers[0].sizes[name] * stack.directions for name in self.recorder.keep}

    def __len__(self) -> int:
        return len(self.bounds) - 1

    def page(self, number: int) -> Trace:
        """The trace of a page."""
        if not 0 <= number < len(self):
            raise SettingError(f"page {number}: the text has the pages 0 to {len(self) - 1}")
        if number not in self.pages:
            self.pages[number] = self._stretch(number) if isinstance(self.model, LanguageModel) else self._lines(number)
        self.pages.move_to_end(number)
        while len(self.pages) > KEPT:
            self.pages.popitem(last=False)
        return self.pages[number]

    def symbols(self, number: int) -> list[str]:
        """The symbols of a page."""
        return self.document.symbols[self.bounds[number] : self.bounds[number + 1]]

    def sentences(self, number: int) -> list[list[str]]:
        """The sentences of a bidirectional model's page."""
        first, last = self.bounds[number : number + 2]
        starts = [start for start in self.document.starts.tolist() if first <= start < last]
        return [self.document.symbols[a:b] for a, b in pairwise([*starts, last])]

    def _lines(self, number: int) -> Trace:
        assert isinstance(self.model, BiLM)
        return of_sentences(self.model, self.recorder, self.sentences(number), self.model.embedder.cut_words())

    def _stretch(self, number: int) -> Trace:
        """A page from the state in which the one before it ended."""
        model = self.model
        assert isinstance(model, LanguageModel)
        if not self.places:
            self.places.append(after_end(model, self.recorder, 1))
        while len(self.places) <= number:
            self._stretch(len(self.places) - 1)
        symbols = self.symbols(number)
        found, states = self.recorder.run(embedded(model, [symbols]), self.places[number])
        if len(self.places) == number + 1:
            self.places.append(states)
        return self.recorder.trace(symbols, found, [len(symbols)])

    def expected(self, number: int) -> Expected | None:
        """What the model expected on a page; None where it predicts no words."""
        self.page(number)
        model = self.model
        if isinstance(model, BiLM):
            if model.vocabulary is None:
                return None
            log_p = model.log_probs(self.sentences(number), direction="forward")
            return Expected(-np.concatenate([each[:-1] for each in log_p]) / np.log(2), [])
        ids = model.vocabulary.ids(self.symbols(number))
        found = log_probs(model, ids.tolist(), self.places[number])  # (T, V)
        if number:
            before = model.vocabulary.ids(self.symbols(number - 1)).tolist()
            first = log_probs(model, before, self.places[number - 1], last=True)
        else:
            first = log_probs(model, [model.vocabulary.end], None)
        own = np.concatenate([first, found[:-1]])[np.arange(len(ids)), ids]
        return Expected(-own / np.log(2), likeliest(found, model.vocabulary.symbols))

    def values(self, number: int, unit: Unit) -> np.ndarray:
        """A unit on a page; (T,)."""
        return values_of(self.page(number), self.checked(unit))

    def fill(self) -> None:
        """Reads the whole text when it is first asked for. Who asks meanwhile waits for the same reading."""
        carried = self.recorder.stack.layers[0].states
        with self.filling:
            if self.wholes:
                return
            parts: dict[str, list[np.ndarray]] = {name: [] for name in carried}
            for piece in iter_trace(self.model, self.document.texts, keep=carried):
                for name in carried:
                    parts[name].append(piece.states[name].astype(np.float16))
            self.wholes = {name: np.concatenate(arrays, axis=1) for name, arrays in parts.items()}

    def whole(self, unit: Unit) -> np.ndarray:
        """A unit's h or c over all of the text; (T,) float32."""
        self.checked(unit)
        carried = self.recorder.stack.layers[0].states
        if unit.state not in carried:
            raise SettingError(f"{unit.state} is kept page by page; over the whole text there are {', '.join(carried)}")
        self.fill()
        array = self.wholes[unit.state]
        before = array.shape[2] // self.recorder.stack.directions if unit.direction == "backward" else 0
        return array[unit.layer, :, before + unit.number].astype(np.float32)

    def checked(self, unit: Unit) -> Unit:
        """Returns the unit where the network has it; else raises."""
        stack = self.recorder.stack
        if not 0 <= unit.layer < len(stack.layers):
            raise SettingError(f"layer {unit.layer}: the network has the layers 0 to {len(stack.layers) - 1}")
        if unit.state not in self.recorder.keep:
            raise SettingError(f"{unit.state!r} is not in this network's cells: they have {', '.join(self.states)}")
        size = stack.layers[unit.layer].sizes[unit.state]
        if not 0 <= unit.number < size or (unit.direction == "backward" and stack.directions == 1):
            raise SettingError(f"unit {unit}: {unit.state} of layer {unit.layer} has the units 0 to {size - 1}")
        return unit


def _page_bounds(model: LanguageModel | BiLM, document: Document) -> list[int]:
    """Where pages begin among the symbols, and the last one's end; a bidirectional model's sentences are not cut."""
    if isinstance(model, LanguageModel):
        size = CHARACTERS if model.settings.text.unit == "char" else WORDS
        return [*range(0, len(document), size), len(document)]
    bounds = [0]
    for start, end in pairwise([*document.starts.tolist(), len(document)]):
        if start > bounds[-1] and end - bounds[-1] > WORDS:
            bounds.append(start)
    return [*bounds, len(document)]


@torch.no_grad()
def log_probs(
    model: LanguageModel, ids: list[int], states: list[LayerState] | None, *, last: bool = False
) -> np.ndarray:
    """Log-probabilities of what comes after each of the ids, or after the last, read from these states; (T, V)."""
    network = model.network
    assert isinstance(network, RecurrentLM)
    with full_precision():
        state = network.initial_state(1) if states is None else flat_states(states)
        x, _ = network.features(torch.tensor([ids], device=model.device), state)
        rows = max(1, AT_ONCE // network.vocab_size)
        parts = [network.softmax.log_probs(part).cpu() for part in x[0, -1 if last else 0 :].split(rows)]
    return torch.cat(parts).numpy()


def likeliest(log_p: np.ndarray, names: Sequence[str]) -> list[list[tuple[str, float]]]:
    """The likeliest symbols of each row (T, V), the first one first, with their probabilities."""
    count = min(LIKELY, log_p.shape[1])
    some = np.argpartition(-log_p, count - 1, axis=1)[:, :count]
    order = np.argsort(-np.take_along_axis(log_p, some, axis=1), axis=1, kind="stable")
    best = np.take_along_axis(some, order, axis=1)
    p = np.exp(np.take_along_axis(log_p, best, axis=1))
    return [[(names[i], q) for i, q in zip(*row, strict=True)] for row in zip(best.tolist(), p.tolist(), strict=True)]
