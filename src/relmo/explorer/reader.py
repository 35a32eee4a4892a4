"""Document reader: traces a text page by page, with every state and gate, and the model's predictions.

A page is traced on request, in one forward pass. A language model carries its state from page to page, so the states
before each page are stored, and any page can be traced again.
"""

import threading
from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from relmo.analysis.core import trace as tracing
from relmo.analysis.core.causal import Unit, get_unit_values
from relmo.analysis.core.features import Document
from relmo.analysis.core.stack import LayerState
from relmo.errors import SettingError
from relmo.models.evaluate import full_precision
from relmo.models.sequence_model import SequenceModel
from relmo.text.vocabulary import END

PAGE_CHARACTERS, PAGE_WORDS = 4000, 1000  # symbols of a page
MAX_VALUES = 1 << 25  # of all units together, per text
MAX_PAGES = 3  # cached pages
NUM_PREDICTIONS = 5  # per symbol
MAX_PROBABILITIES = 1 << 22  # computed at once


class Predictions(NamedTuple):
    """Surprisal (T,) of each symbol of a page in bits, and the most probable symbols after it with probabilities."""

    bits: np.ndarray
    likely: list[list[tuple[str, float]]]


class PagedReader:
    """Reader of a document, cut to the length that fits into memory; `states` has the units per layer by state."""

    def __init__(self, model: SequenceModel, document: Document):
        self.model = model
        self.recorder = tracing.Recorder(model.get_recurrent_network(), None, None)
        stack = self.recorder.stack
        cells = [layer.cell for layer in stack.layers]
        self.states = {name: stack.directions * max(c.sizes[name] for c in cells) for name in self.recorder.keep}
        num_units = sum(layer.cell.sizes[state] for layer in stack.layers for state in layer.cell.unit_states)
        self.max_symbols = max(1, MAX_VALUES // (num_units * stack.directions))
        self.document = document.head(self.max_symbols)
        length = len(self.document)
        self.num_omitted = len(document) - length
        self.bounds = [0]  # first positions of pages, and the end; sentences stay whole
        if not model.reads_sentences:
            self.bounds = [*range(0, length, PAGE_CHARACTERS if model.unit == "char" else PAGE_WORDS)]
        else:
            for start, end in pairwise([*self.document.starts.tolist(), length]):
                if start > self.bounds[-1] and end - self.bounds[-1] > PAGE_WORDS:
                    self.bounds.append(start)
        self.bounds.append(length)
        self.page_states: list[list[LayerState]] = []  # states of the layers before each page
        self.page_outputs: list[np.ndarray] = []  # h of the layers (layers, 1, H) before each page
        self._traces = lru_cache(MAX_PAGES)(self._trace_page)
        self.text_states: dict[str, np.ndarray] = {}
        self.reading = threading.Lock()

    def __len__(self) -> int:
        return len(self.bounds) - 1

    def check_page(self, page: int) -> int:
        """Return the page index; raise if the text has no such page."""
        if not 0 <= page < len(self):
            raise SettingError(f"page {page} is out of range; the text has pages 0 to {len(self) - 1}.")
        return page

    def page(self, page: int) -> tracing.Trace:
        """Return the trace of a page."""
        return self._traces(self.check_page(page))

    def symbols(self, page: int) -> list[str]:
        """Return the symbols of a page."""
        return self.document.symbols[self.bounds[page] : self.bounds[page + 1]]

    def sentences(self, page: int) -> list[list[str]]:
        """Return the sentences of a page."""
        begin, end = self.bounds[page : page + 2]
        starts = [start for start in self.document.starts.tolist() if begin <= start < end]
        return [self.document.symbols[a:b] for a, b in pairwise([*starts, end])]

    def _trace_page(self, page: int) -> tracing.Trace:
        if self.model.reads_sentences:
            return tracing.trace_batch(self.model, self.recorder, self.sentences(page))[0]
        if not self.page_states:
            boundary, states = self.model.recurrent_inputs([[]]), self.recorder.stack.initial_state(1)
            traced, states = self.recorder.run(boundary, states, [[END]])
            self.page_states.append(states)
            self.page_outputs.append(traced.states["h"])
        while len(self.page_states) <= page:
            self._trace_page(len(self.page_states) - 1)
        states = self.page_states[page]
        traced, states = tracing.trace_batch(self.model, self.recorder, [self.symbols(page)], states)
        if len(self.page_states) == page + 1:
            self.page_states.append(states)
            self.page_outputs.append(traced.states["h"][:, -1:])
        return traced

    def predictions(self, page: int) -> Predictions | None:
        """Return the predictions on a page; None if the model has no output layer."""
        traced, model = self.page(page), self.model
        if model.vocabulary is None:
            return None
        if model.reads_sentences:
            return Predictions(model.symbol_losses(self.sentences(page)) / np.log(2), [])
        symbols = self.symbols(page)
        log_p = self._log_probs(symbols, torch.from_numpy(traced.states["h"]))  # (T, V)
        previous = self.symbols(page - 1)[-1] if page else END
        initial = self._log_probs([previous], torch.from_numpy(self.page_outputs[page]))
        ids = model.vocabulary.ids(symbols)
        symbol_log_p = np.concatenate([initial, log_p[:-1]])[np.arange(len(ids)), ids]
        return Predictions(-symbol_log_p / np.log(2), most_probable(log_p, model.vocabulary.symbols))

    @torch.no_grad()
    def _log_probs(self, symbols: list[str], h: Tensor) -> np.ndarray:
        """Return log-probabilities (T, V) after symbols at which the layers' hidden states are h (layers, T, H)."""
        model = self.model
        with full_precision():
            x = model.recurrent_inputs([symbols], boundary=False)[0, :, 0]
            for depth, output in enumerate(h.to(x)):  # residual connections add a layer's input to its output
                x = output + x if self.recorder.stack.layers[depth].adds_input else output
            x = model.output_features(x)
            rows = max(1, MAX_PROBABILITIES // len(model.get_output_vocabulary()))
            return torch.cat([model.softmax.log_probs(part).cpu() for part in x.split(rows)]).numpy()

    def values(self, page: int, unit: Unit) -> np.ndarray:
        """Return a unit's values on a page; (T,)."""
        return get_unit_values(self.page(page), self.check_unit(unit))

    def read_text(self) -> None:
        """Trace the carried states over the whole text, once; concurrent callers wait for the same pass."""
        carried = self.recorder.stack.layers[0].cell.unit_states
        with self.reading:
            if self.text_states:
                return
            parts: dict[str, list[np.ndarray]] = {name: [] for name in carried}
            for piece in tracing.iter_trace(self.model, self.document.texts, keep=carried):
                for name in carried:
                    parts[name].append(piece.states[name].astype(np.float16))
            self.text_states = {name: np.concatenate(arrays, axis=1) for name, arrays in parts.items()}

    def text_values(self, unit: Unit) -> np.ndarray:
        """Return the values of a unit of a carried state (h or c) over the whole text; (T,) float32."""
        self.check_unit(unit)
        carried = self.recorder.stack.layers[0].cell.unit_states
        if unit.state not in carried:
            names = ", ".join(carried)
            raise SettingError(f"{unit.state} is only available page by page; over the whole text there are {names}.")
        self.read_text()
        sides = np.split(self.text_states[unit.state], self.recorder.stack.directions, axis=2)
        return sides[unit.direction == "backward"][unit.layer, :, unit.number].astype(np.float32)

    def check_unit(self, unit: Unit) -> Unit:
        """Return the unit; raise if the network does not have it."""
        return self.recorder.stack.check_unit(unit, self.recorder.keep)


def most_probable(log_p: np.ndarray, names: Sequence[str]) -> list[list[tuple[str, float]]]:
    """Return the most probable symbols of each row (T, V) with their probabilities, best first."""
    count = min(NUM_PREDICTIONS, log_p.shape[1])
    candidates = np.argpartition(-log_p, count - 1, axis=1)[:, :count]
    order = np.argsort(-np.take_along_axis(log_p, candidates, axis=1), axis=1, kind="stable")
    best = np.take_along_axis(candidates, order, axis=1)
    p = np.exp(np.take_along_axis(log_p, best, axis=1))
    return [[(names[i], q) for i, q in zip(*row, strict=True)] for row in zip(best.tolist(), p.tolist(), strict=True)]
