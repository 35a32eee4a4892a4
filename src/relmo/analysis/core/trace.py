"""Every state and gate of every recurrent layer at every symbol of a text, in plain arrays.

    traced = trace(relmo.load("models/mine"), text)
    traced.symbols[t], traced.states["c"][layer, t, unit]
    traced = trace_torch(nn.LSTM(8, 16), inputs)

The numbers at t are those after symbol t was read. A text is read as the model reads it when it is scored: a language
model begins with the end of the text before, a bidirectional one takes each sentence for itself, between its
boundaries; what is read there is not in the trace.
"""

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from relmo.analysis.core.ablate import active_changes, both_ways
from relmo.analysis.core.show import ColouredText, Table, picture, visible, write_arrays
from relmo.analysis.core.stack import LayerState, mirror, recurrent_part, stack_of
from relmo.embedding.engine import CutWords
from relmo.errors import CorpusError, ModelError, SettingError
from relmo.models.bilm import BiLM
from relmo.models.evaluate import full_precision
from relmo.models.lm import LanguageModel
from relmo.networks.bilm import BiLMNetwork
from relmo.networks.language_model import RecurrentLM
from relmo.settings.arguments import Progress
from relmo.settings.embedding import EmbedOptions
from relmo.text.characters import BOS, EOS
from relmo.text.encode import encode_text
from relmo.text.vocabulary import END

Texts = str | Sequence[str | Sequence[str]]

WINDOW = 4096  # symbols whose numbers are made at a time
SIDE_BY_SIDE = 64  # texts


@dataclass(frozen=True)
class Trace:
    """Symbols, and what a network holds after each of them.

    states      by name, each (layers, T, units) float32: all quantities of the cell's step, such as "h", an LSTM's
                "c", its gates i, f, o and candidate g. Of a network that reads both ways, the forward units come before
                the backward ones
    starts      where each text, or sentence, begins among the symbols
    layers      the numbers of the layers that are there
    carried     which of the states are carried from step to step, h first
    """

    symbols: list[str]
    states: dict[str, np.ndarray]
    starts: np.ndarray
    layers: tuple[int, ...]
    directions: int = 1
    carried: tuple[str, ...] = ("h",)

    def __len__(self) -> int:
        return len(self.symbols)

    @property
    def forward(self) -> "Trace":
        """The direction that reads from the beginning."""
        return self._direction(0)

    @property
    def backward(self) -> "Trace":
        """The direction that reads from the end."""
        if self.directions == 1:
            raise SettingError("the network reads one way: its trace has no backward direction")
        return self._direction(1)

    def _direction(self, which: int) -> "Trace":
        parts = {name: np.split(array, self.directions, axis=2)[which] for name, array in self.states.items()}
        return replace(self, states=parts, directions=1)

    def unit(self, state: str, layer: int, unit: int) -> np.ndarray:
        """One unit's values; (T,)."""
        return self.states[state][self.layers.index(layer), :, unit]

    def mean(self, state: str, layer: int) -> np.ndarray:
        """Each unit's mean over the text; (units,)."""
        return self.states[state][self.layers.index(layer)].mean(axis=0, dtype=np.float64)

    def saturation(self, gate: str, *, low: float = 0.1, high: float = 0.9) -> np.ndarray:
        """The share of symbols at which a gate is below `low`, and above `high`; (2, layers, units).

        Karpathy et al. 2015, Visualizing and understanding recurrent networks"""
        values = self.states[gate]
        return np.stack([(values < low).mean(axis=1), (values > high).mean(axis=1)])

    def show(self, state: str = "h", layer: int = 0, unit: int = 0) -> ColouredText:
        """The text, each symbol on the colour of one unit; shows itself in a notebook."""
        space = "" if all(len(symbol) == 1 for symbol in self.symbols) else " "
        return ColouredText(self.symbols, self.unit(state, layer, unit), f"{state}{unit} of layer {layer}", space)

    def _repr_html_(self) -> str:
        sizes = [[name, str(len(self.layers)), f"{len(self):,}", str(a.shape[2])] for name, a in self.states.items()]
        return Table(["state", "layers", "symbols", "units"], sizes, "trace").html()

    def __getitem__(self, part: slice) -> "Trace":
        """A stretch of it."""
        begin, end, step = part.indices(len(self))
        if step != 1:
            raise SettingError("a part of a trace is a stretch: trace[begin:end]")
        inside = self.starts[(self.starts > begin) & (self.starts < end)] - begin
        return replace(
            self,
            symbols=self.symbols[begin:end],
            states={name: array[:, begin:end] for name, array in self.states.items()},
            starts=np.concatenate([[0], inside]),
        )


def trace(
    model: LanguageModel | BiLM,
    text: Texts,
    *,
    layers: Sequence[int] | None = None,
    keep: Sequence[str] | None = None,
    progress: Progress | None = None,
) -> Trace:
    """The trace of a text, or of several, each read from the beginning.

    text        a string, of a bidirectional model with a sentence a line; or several, each a string or its symbols
    layers      which recurrent layers, from 0; all where it is not given
    keep        the names to keep; all that the cell has where it is not given
    progress    told, as it goes, of the share that is done
    """
    texts = symbols_of(model, text)
    total, pieces, done = sum(map(len, texts)), [], 0
    for piece in iter_trace(model, texts, layers=layers, keep=keep):
        pieces.append(piece)
        done += len(piece)
        if progress is not None:
            progress(done / max(total, 1))
    return join_traces(pieces, np.cumsum([0, *map(len, texts[:-1])]))


def iter_trace(
    model: LanguageModel | BiLM,
    text: Texts,
    *,
    layers: Sequence[int] | None = None,
    keep: Sequence[str] | None = None,
    window: int = WINDOW,
) -> Iterator[Trace]:
    """The trace in pieces of about `window` symbols, one after the other, in bounded memory. A language model's long
    text comes in pieces without a seam; shorter texts, and sentences of a bidirectional model, are not cut."""
    texts = symbols_of(model, text)
    recorder = Recorder(network_of(model), layers, keep)
    if isinstance(model, BiLM):
        cut = model.embedder.cut_words()
        for batch in batches(texts, window):
            yield of_sentences(model, recorder, batch, cut)
        if cut.count:
            warnings.warn(cut.message(), stacklevel=2)
        return
    for batch in batches(texts, window):
        if len(batch) == 1:
            yield from _of_long_text(model, recorder, batch[0], window)
        else:
            yield _of_texts(model, recorder, batch)


def trace_torch(
    module: nn.Module,
    inputs: Tensor,
    *,
    lengths: Sequence[int] | None = None,
    symbols: Sequence[str] | None = None,
    layers: Sequence[int] | None = None,
    keep: Sequence[str] | None = None,
) -> Trace:
    """The trace of torch's nn.RNN, nn.GRU or nn.LSTM (or of the one in a module) over what it reads: inputs (T, I), or
    (B, T, I) as several texts of these lengths, whatever its `batch_first` says. `symbols` name the steps of all texts,
    one after the other."""
    x = inputs.unsqueeze(0) if inputs.dim() == 2 else inputs
    sizes = [x.shape[1]] * len(x) if lengths is None else [int(n) for n in lengths]
    if len(sizes) != len(x) or not all(0 < size <= x.shape[1] for size in sizes):
        raise SettingError(f"lengths {sizes} do not fit {len(x)} texts of {x.shape[1]} steps")
    names = [str(t) for size in sizes for t in range(size)] if symbols is None else list(symbols)
    if len(names) != sum(sizes):
        raise SettingError(f"{len(names)} symbols for {sum(sizes)} steps; give one for each")
    recorder = Recorder(module, layers, keep)
    stack = recorder.stack
    read = both_ways(x.detach().to(stack.like).transpose(0, 1), stack, torch.tensor(sizes))
    found, _ = recorder.run(read, stack.initial_state(len(x)), torch.tensor(sizes))
    return recorder.trace(names, found, sizes)


class Recorder:
    """Runs the recurrent layers of a network and keeps what is wanted."""

    def __init__(self, network: nn.Module, layers: Sequence[int] | None, keep: Sequence[str] | None):
        self.part = recurrent_part(network)
        self.stack = stack_of(self.part)
        there, count = tuple(self.stack.layers[0].cell.words), len(self.stack.layers)
        self.layers = tuple(range(count)) if layers is None else tuple(layers)
        self.keep = there if keep is None else tuple(keep)
        if wrong := [layer for layer in self.layers if not 0 <= layer < count]:
            raise SettingError(f"layer {wrong[0]}: the network has the layers 0 to {count - 1}")
        if unknown := [name for name in self.keep if name not in there]:
            raise SettingError(f"{unknown[0]!r} is not in this network's cells: they have {', '.join(there)}")

    @torch.no_grad()
    def run(
        self, x: Tensor, states: list[LayerState], lengths: Tensor | None = None, *, skip: int = 0
    ) -> tuple[dict[str, np.ndarray], list[LayerState]]:
        """x (D, T, B, I) -> by name (layers, B, T, D * units) in the order of the text, and the states at the ends. The
        first `skip` steps of each direction are read and not kept."""
        with full_precision(), torch.autocast(x.device.type, enabled=False):
            changes = active_changes(self.part, self.stack)
            run = self.stack.run(x, states, lengths, keep=self.keep, changes=changes)
        rest = None if lengths is None else lengths - skip
        found = {}
        for name in self.keep:
            arrays = []
            for layer in self.layers:
                both = run.quantities[layer][name][:, skip:]  # (D, T, B, units)
                sides = [both[0], *(mirror(side.unsqueeze(0), rest)[0] for side in both[1:])]
                arrays.append(torch.cat(sides, dim=-1).transpose(0, 1))
            found[name] = torch.stack(arrays).float().cpu().numpy()
        return found, run.states

    def trace(self, symbols: list[str], found: dict[str, np.ndarray], sizes: Sequence[int]) -> Trace:
        """The rows of a batch, each as far as its text goes, one after the other."""
        states = {
            name: np.concatenate([array[:, row, :size] for row, size in enumerate(sizes)], axis=1)
            for name, array in found.items()
        }
        starts = np.cumsum([0, *sizes[:-1]])
        return Trace(symbols, states, starts, self.layers, self.stack.directions, self.stack.layers[0].states)


def network_of(model: LanguageModel | BiLM) -> RecurrentLM | BiLMNetwork:
    """The model's network, which must have recurrent layers."""
    if not isinstance(model.network, RecurrentLM | BiLMNetwork):
        raise ModelError(f"a {model.settings.model.cell} model has no recurrent layers; train one with --cell lstm")
    return model.network


def symbols_of(model: LanguageModel | BiLM, text: Texts) -> list[list[str]]:
    """Texts, or of a bidirectional model sentences, as the symbols that the model reads; without those that are
    empty."""
    if isinstance(model, BiLM):
        given = text.split("\n") if isinstance(text, str) else text
        texts = [model.tokens(each) if isinstance(each, str) else list(each) for each in given]
    else:
        given = [text] if isinstance(text, str) else text
        texts = [encode_text(each, model.settings.text) if isinstance(each, str) else list(each) for each in given]
    texts = [each for each in texts if each]
    if not texts:
        raise CorpusError("the text is empty; give one with symbols in it")
    return texts


def batches(texts: Sequence[Sequence[str]], window: int) -> Iterator[list[list[str]]]:
    """Consecutive texts of together about so many symbols, and not more of them than are run side by side."""
    batch: list[list[str]] = []
    held = 0
    for text in texts:
        if batch and (held + len(text) > window or len(batch) == SIDE_BY_SIDE):
            yield batch
            batch, held = [], 0
        batch.append(list(text))
        held += len(text)
    if batch:
        yield batch


def _of_long_text(model: LanguageModel, recorder: Recorder, symbols: list[str], window: int) -> Iterator[Trace]:
    """One text in pieces, the state carried from one to the next."""
    states = after_end(model, recorder, 1)
    for begin in range(0, len(symbols), window):
        piece = symbols[begin : begin + window]
        found, states = recorder.run(embedded(model, [piece]), states)
        yield recorder.trace(piece, found, [len(piece)])


def _of_texts(model: LanguageModel, recorder: Recorder, texts: list[list[str]]) -> Trace:
    """Several texts side by side."""
    sizes = [len(text) for text in texts]
    found, _ = recorder.run(embedded(model, texts), after_end(model, recorder, len(texts)), torch.tensor(sizes))
    return recorder.trace([symbol for text in texts for symbol in text], found, sizes)


def embedded(model: LanguageModel, texts: Sequence[Sequence[str]]) -> Tensor:
    """The embeddings of symbols, texts filled up to the longest; (1, T, B, I)."""
    ids = np.full((len(texts), max(map(len, texts))), model.vocabulary.end, dtype=np.int64)
    for row, text in zip(ids, texts, strict=True):
        row[: len(text)] = model.vocabulary.ids(text)
    with torch.no_grad():
        return model.encoder.embedding(torch.from_numpy(ids).to(model.device)).transpose(0, 1).unsqueeze(0)


def after_end(model: LanguageModel, recorder: Recorder, rows: int) -> list[LayerState]:
    """The states in which texts begin: the end of a text before them has been read."""
    _, states = recorder.run(embedded(model, [[END]]), recorder.stack.initial_state(1))
    return [tuple(tensor.expand(-1, rows, -1) for tensor in state) for state in states]


def of_sentences(model: BiLM, recorder: Recorder, sentences: list[list[str]], cut: CutWords) -> Trace:
    """Sentences side by side, each by itself between its boundaries."""
    sizes = torch.tensor([len(words) for words in sentences])
    whole = ([BOS, *words, EOS] for words in sentences)
    vectors = model.embedder.stream(whole, EmbedOptions(layers=0), cut)  # each (words + 2, 2P)
    padded = nn.utils.rnn.pad_sequence([torch.from_numpy(each) for each in vectors]).to(model.device)  # (T, B, 2P)
    x = padded[..., : padded.shape[2] // 2]
    both = torch.stack([x[:-1], mirror(x.unsqueeze(0), sizes + 2)[0, :-1]])  # the last boundary is not needed
    found, _ = recorder.run(both, recorder.stack.initial_state(len(sentences)), sizes + 1, skip=1)
    return recorder.trace([word for words in sentences for word in words], found, sizes.tolist())


def join_traces(pieces: Sequence[Trace], starts: np.ndarray) -> Trace:
    """Pieces as one, with texts that begin at `starts`."""
    states = {name: np.concatenate([piece.states[name] for piece in pieces], axis=1) for name in pieces[0].states}
    symbols = [symbol for piece in pieces for symbol in piece.symbols]
    return replace(pieces[0], symbols=symbols, states=states, starts=starts)


def write_trace(traced: Trace, path: str | Path) -> None:
    """All states by name, (layers, symbols, units), with `symbols` and `starts`, as .npz or .h5."""
    write_arrays(path, {**traced.states, "starts": traced.starts, "symbols": np.array(traced.symbols)})


def draw_unit(traced: Trace, layer: int, unit: int, path: str | Path, *, title: str = "") -> None:
    """A unit's states and gates over the text, as a picture; of a projected layer the states alone that have it."""
    names = [name for name, array in traced.states.items() if unit < array.shape[2]]
    with picture(path, width=min(4 + 0.12 * len(traced), 40), height=1.1 * len(names) + 0.6) as figure:
        for axes, name in zip(np.atleast_1d(figure.subplots(len(names), 1, sharex=True)), names, strict=True):
            axes.plot(
                traced.unit(name, layer, unit), color="tab:blue" if name in traced.carried else "tab:gray", linewidth=1
            )
            axes.axhline(0, color="black", linewidth=0.5)
            axes.set_ylabel(name, rotation=0, labelpad=12)
            axes.margins(x=0.005)
        if len(traced) <= 300:
            axes.set_xticks(range(len(traced)), [visible(symbol) for symbol in traced.symbols], fontsize=7)
        figure.suptitle(title or f"unit {unit} of layer {layer}")
