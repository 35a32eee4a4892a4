"""States and gates of every recurrent layer at every symbol of a text, in plain arrays.

    traced = trace(relmo.load("models/mine"), text)
    traced.symbols[t], traced.states["c"][layer, t, unit]
    traced = trace_torch(nn.LSTM(8, 16), inputs)

The numbers at t are those after symbol t was read. Texts are read as for scoring: a language model starts from the end
of a previous text, a bidirectional one reads each sentence between its boundaries; these symbols are not in the trace.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from relmo.analysis.core.ablate import collect_changes
from relmo.analysis.core.show import ColouredText, Table, save_figure, show_whitespace
from relmo.analysis.core.stack import LayerState, build_stack, reverse_time, stack_directions
from relmo.disk.outputs import atomic, create_hdf5
from relmo.errors import SettingError
from relmo.models.evaluate import full_precision
from relmo.models.sequence_model import SequenceModel
from relmo.models.surprisal import Texts
from relmo.settings.fields import Progress

WINDOW = 4096  # symbols per batch
MAX_TEXTS = 64  # per batch
ARRAY_FORMATS = (".npz", ".h5")


@dataclass(frozen=True)
class Trace:
    """Symbols and the state of a network after each of them.

    states      arrays (layers, T, units) float32 by name: all quantities of the cell's step, such as "h", an LSTM's
                "c", its gates i, f, o and candidate g; in a bidirectional network, forward units precede backward ones;
                if a quantity has fewer units in one layer than in another, the rest are 0
    starts      index of the first symbol of each text or sentence
    layers      indices of the traced layers
    carried     names of the states whose units are analysed, h first: the output and carried memories
    gates       range of each gate of the cell, by name
    """

    symbols: list[str]
    states: dict[str, np.ndarray]
    starts: np.ndarray
    layers: tuple[int, ...]
    directions: int = 1
    carried: tuple[str, ...] = ("h",)
    gates: Mapping[str, tuple[float, float]] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.symbols)

    @property
    def forward(self) -> "Trace":
        """Trace of the forward direction."""
        states = {name: np.split(array, self.directions, axis=2)[0] for name, array in self.states.items()}
        return replace(self, states=states, directions=1)

    @property
    def backward(self) -> "Trace":
        """Trace of the backward direction."""
        if self.directions == 1:
            raise SettingError("The trace has no backward direction; the network is unidirectional.")
        states = {name: np.split(array, self.directions, axis=2)[1] for name, array in self.states.items()}
        return replace(self, states=states, directions=1)

    def unit(self, state: str, layer: int, unit: int) -> np.ndarray:
        """Return one unit's values (T,)."""
        return self.states[state][self.layers.index(layer), :, unit]

    def mean(self, state: str, layer: int) -> np.ndarray:
        """Return each unit's mean over the text (units,)."""
        return self.states[state][self.layers.index(layer)].mean(axis=0, dtype=np.float64)

    def saturation(self, gate: str, *, low: float = 0.1, high: float = 0.9) -> np.ndarray:
        """Return the shares of symbols at which a gate is below `low` and above `high`, as shares of its range; (2,
        layers, units): Karpathy et al. 2015, Visualizing and understanding recurrent networks."""
        bottom, top = self.gates.get(gate, (0.0, 1.0))
        values = (self.states[gate] - bottom) / (top - bottom)
        return np.stack([(values < low).mean(axis=1), (values > high).mean(axis=1)])

    def show(self, state: str = "h", layer: int = 0, unit: int = 0) -> ColouredText:
        """Return the text coloured by one unit's values, for notebooks."""
        return ColouredText(self.symbols, self.unit(state, layer, unit), f"{state}{unit} of layer {layer}")

    def _repr_html_(self) -> str:
        rows = [[name, str(len(self.layers)), f"{len(self):,}", str(a.shape[2])] for name, a in self.states.items()]
        return Table(["state", "layers", "symbols", "units"], rows, "trace").html()

    def __getitem__(self, part: slice) -> "Trace":
        """Return a contiguous part of the trace."""
        begin, end, step = part.indices(len(self))
        if step != 1:
            raise SettingError("Traces support slices without a step only: trace[begin:end].")
        inside = self.starts[(self.starts > begin) & (self.starts < end)] - begin
        return replace(
            self,
            symbols=self.symbols[begin:end],
            states={name: array[:, begin:end] for name, array in self.states.items()},
            starts=np.concatenate([[0], inside]),
        )


def trace(
    model: SequenceModel,
    text: Texts,
    *,
    layers: Sequence[int] | None = None,
    keep: Sequence[str] | None = None,
    progress: Progress | None = None,
) -> Trace:
    """Trace a text, or several, each read from the initial state.

    text        a string (for a bidirectional model, one sentence per line), or several texts as strings or symbols
    layers      indices of the recurrent layers; default all
    keep        names of the quantities; default all of the cell's that are vectors
    progress    callback with the completed share
    """
    texts = model.split_texts(text)
    total, pieces, done = sum(map(len, texts)), [], 0
    for piece in iter_trace(model, texts, layers=layers, keep=keep):
        pieces.append(piece)
        done += len(piece)
        if progress is not None:
            progress(done / max(total, 1))
    return join_traces(pieces, np.cumsum([0, *map(len, texts[:-1])]))


def iter_trace(
    model: SequenceModel,
    text: Texts,
    *,
    layers: Sequence[int] | None = None,
    keep: Sequence[str] | None = None,
    window: int = WINDOW,
) -> Iterator[Trace]:
    """Yield the trace in consecutive pieces of about `window` symbols, in bounded memory. Only long texts
    are split (the state is carried over); short texts and sentences are not."""
    texts = model.split_texts(text)
    recorder = Recorder(model.get_recurrent_network(), layers, keep)
    batches: list[list[list[str]]] = [[]]
    num_symbols = 0
    for symbols in texts:
        if batches[-1] and (num_symbols + len(symbols) > window or len(batches[-1]) == MAX_TEXTS):
            batches.append([])
            num_symbols = 0
        batches[-1].append(symbols)
        num_symbols += len(symbols)
    for batch in batches:
        if len(batch) > 1 or model.reads_sentences:
            yield trace_batch(model, recorder, batch)[0]
            continue
        states: list[LayerState] | None = None
        for begin in range(0, len(batch[0]), window):
            traced, states = trace_batch(model, recorder, [batch[0][begin : begin + window]], states)
            yield traced
    model.warn_truncated(texts)


def trace_torch(
    module: nn.Module,
    inputs: Tensor,
    *,
    lengths: Sequence[int] | None = None,
    symbols: Sequence[str] | None = None,
    layers: Sequence[int] | None = None,
    keep: Sequence[str] | None = None,
) -> Trace:
    """Trace torch's nn.RNN, nn.GRU or nn.LSTM (or a module that contains one) over its inputs.

    inputs     (T, I), or (B, T, I) for several texts of these `lengths`, whatever the module's `batch_first` is
    symbols    names of the steps of all texts, one after the other
    """
    x = inputs.unsqueeze(0) if inputs.dim() == 2 else inputs
    sizes = [x.shape[1]] * len(x) if lengths is None else [int(n) for n in lengths]
    if len(sizes) != len(x) or not all(0 < size <= x.shape[1] for size in sizes):
        raise SettingError(f"lengths {sizes} do not match {len(x)} texts of {x.shape[1]} steps.")
    names = [str(t) for size in sizes for t in range(size)] if symbols is None else list(symbols)
    if len(names) != sum(sizes):
        raise SettingError(f"Expected one symbol per step; got {len(names)} symbols for {sum(sizes)} steps.")
    recorder = Recorder(module, layers, keep)
    stack = recorder.stack
    x = stack_directions(x.detach().to(stack.like).transpose(0, 1), stack, torch.tensor(sizes))
    texts = [names[end - size : end] for end, size in zip(np.cumsum(sizes).tolist(), sizes, strict=True)]
    return recorder.run(x, stack.initial_state(len(sizes)), texts, torch.tensor(sizes))[0]


class Recorder:
    """Runner of a network's recurrent layers that records selected quantities."""

    def __init__(self, network: nn.Module, layers: Sequence[int] | None, keep: Sequence[str] | None):
        self.stack = build_stack(network)
        cell, num_layers = self.stack.layers[0].cell, len(self.stack.layers)
        names = tuple(cell.words)
        self.layers = tuple(range(num_layers)) if layers is None else tuple(layers)
        self.keep = cell.vectors if keep is None else tuple(keep)
        if invalid := [layer for layer in self.layers if not 0 <= layer < num_layers]:
            raise SettingError(f"Unknown layer {invalid[0]}; the network has layers 0 to {num_layers - 1}.")
        if unknown := [name for name in self.keep if name not in names]:
            raise SettingError(f"Unknown quantity {unknown[0]!r}; the network's cells have {', '.join(names)}.")

    @torch.no_grad()
    def run(
        self,
        x: Tensor,
        states: list[LayerState],
        texts: Sequence[Sequence[str]],
        lengths: Tensor | None = None,
        *,
        skip: int = 0,
    ) -> tuple[Trace, list[LayerState]]:
        """Run x (D, T, B, I), the input of texts of these symbols; return the trace and the final states. The first
        `skip` steps of each direction are read but not recorded; `lengths` (B,) includes them."""
        with full_precision(), torch.autocast(x.device.type, enabled=False):
            changes = collect_changes(self.stack)
            run = self.stack.run(x, states, lengths, keep=self.keep, changes=changes)
        lengths = None if lengths is None else lengths - skip
        arrays = {}
        for name in self.keep:
            layers, size = [], max(layer.cell.sizes[name] for layer in self.stack.layers)
            for layer in self.layers:
                quantity = run.quantities[layer][name][:, skip:].flatten(3)
                quantity = pad(quantity, (0, size - quantity.shape[-1]))  # (D, T, B, units)
                sides = torch.cat([quantity[:1], reverse_time(quantity[1:], lengths)])
                layers.append(sides.permute(2, 1, 0, 3).flatten(2))
            batch = torch.stack(layers).float().cpu().numpy()  # (layers, B, T, D * units)
            arrays[name] = np.concatenate([batch[:, row, : len(text)] for row, text in enumerate(texts)], axis=1)
        symbols = [symbol for text in texts for symbol in text]
        starts = np.cumsum([0, *map(len, texts[:-1])])
        cell = self.stack.layers[0].cell
        gates = {name: (cell.specs[name].low, cell.specs[name].high) for name in cell.gate_names}
        traced = Trace(symbols, arrays, starts, self.layers, self.stack.directions, cell.unit_states, gates)
        return traced, run.states


def compute_initial_states(model: SequenceModel, recorder: Recorder, rows: int) -> list[LayerState]:
    """Return the states in which texts begin: zero for sentences, otherwise those after the end of a previous text."""
    if model.reads_sentences:
        return recorder.stack.initial_state(rows)
    _, states = recorder.run(model.recurrent_inputs([[]]), recorder.stack.initial_state(1), [[]], skip=1)
    return [tuple(tensor.expand(-1, rows, *tensor.shape[2:]) for tensor in state) for state in states]


def trace_batch(
    model: SequenceModel, recorder: Recorder, texts: Sequence[Sequence[str]], states: list[LayerState] | None = None
) -> tuple[Trace, list[LayerState]]:
    """Trace a batch of texts from these states, by default from their beginning; return the final states too."""
    states = compute_initial_states(model, recorder, len(texts)) if states is None else states
    skip = int(model.reads_sentences)  # the boundary before each sentence
    lengths = torch.tensor([len(symbols) + skip for symbols in texts]) if skip or len(texts) > 1 else None
    x = model.recurrent_inputs(texts, boundary=model.reads_sentences)
    return recorder.run(x, states, texts, lengths, skip=skip)


def join_traces(pieces: Sequence[Trace], starts: np.ndarray) -> Trace:
    """Join consecutive traces into one, with texts that begin at `starts`."""
    states = {name: np.concatenate([piece.states[name] for piece in pieces], axis=1) for name in pieces[0].states}
    symbols = [symbol for piece in pieces for symbol in piece.symbols]
    return replace(pieces[0], symbols=symbols, states=states, starts=starts)


def write_trace(traced: Trace, path: str | Path) -> None:
    """Write all states (layers, symbols, units) by name, `symbols` and `starts` to .npz or .h5, atomically."""
    arrays = {**traced.states, "starts": traced.starts, "symbols": np.array(traced.symbols)}
    path = Path(path)
    if path.suffix.lower() not in ARRAY_FORMATS:
        raise SettingError(f"{path}: unknown array format; the file must end in {' or '.join(ARRAY_FORMATS)}.")
    if path.suffix.lower() == ".npz":
        with atomic(path) as temporary, temporary.open("wb") as file:
            np.savez(file, **arrays)  # type: ignore[arg-type]
        return
    with create_hdf5(path) as new:
        for name, array in arrays.items():
            new.add(name, data=array.astype(object) if array.dtype.kind == "U" else array)


def draw_unit(traced: Trace, layer: int, unit: int, path: str | Path, *, title: str = "") -> None:
    """Plot a unit's states and gates over the text; in a projected layer, only the states that have this unit."""
    hidden = traced.states["h"].shape[2] if "h" in traced.states else 0
    units = {}  # by quantity; a gate of a head serves all of its units
    for name, array in traced.states.items():
        count = array.shape[2]
        is_per_head = count < hidden and hidden % count == 0 and name not in traced.carried
        units[name] = unit * count // hidden if is_per_head else unit
    names = [name for name, array in traced.states.items() if units[name] < array.shape[2]]
    with save_figure(path, width=min(4 + 0.12 * len(traced), 40), height=1.1 * len(names) + 0.6) as figure:
        for axes, name in zip(np.atleast_1d(figure.subplots(len(names), 1, sharex=True)), names, strict=True):
            colour = "tab:blue" if name in traced.carried else "tab:gray"
            axes.plot(traced.unit(name, layer, units[name]), color=colour, linewidth=1)
            axes.axhline(0, color="black", linewidth=0.5)
            axes.set_ylabel(name, rotation=0, labelpad=12)
            axes.margins(x=0.005)
        if len(traced) <= 300:
            axes.set_xticks(range(len(traced)), [show_whitespace(symbol) for symbol in traced.symbols], fontsize=7)
        figure.suptitle(title or f"unit {unit} of layer {layer}")
