"""log p(acceptable) - log p(not) of minimal pairs, by a model that reads forwards; with sets of its units changed, too.

    plan = plan_of(model, pairs)
    gaps(model, plan)                         (N,), above 0 where the acceptable text is preferred
    gaps_without(model, plan, [[Unit("h", 1, 3)], [Unit("h", 0, 5), Unit("h", 1, 3)]])       (S, N)

Only what follows the shared beginning of two texts is scored, since the beginning is the same in both. Texts that begin
alike are read once. Many sets of units are run side by side: row r of a batch has the units of set r changed, at
everything that reads them, and no others. Where two words are compared after the same context, the difference of their
logits is that of their log-probabilities, so no softmax is taken.

A bidirectional model reads forwards here, from the sentence's beginning. For a model of characters a word ends with a
space; without it "admire" would be as probable as everything that begins with it.
"""

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor, nn

from relmo.analysis.core.ablate import active_changes
from relmo.analysis.core.causal import Unit
from relmo.analysis.core.stack import Change, Changes, Run, Stack, recurrent_part, stack_of
from relmo.analysis.core.trace import embedded, network_of
from relmo.errors import CorpusError, ModelError, SettingError
from relmo.models.bilm import BiLM
from relmo.models.evaluate import full_precision
from relmo.models.lm import LanguageModel
from relmo.networks.language_model import RecurrentLM
from relmo.nn.softmax import FullSoftmax
from relmo.settings.arguments import Progress
from relmo.settings.embedding import EmbedOptions
from relmo.text.characters import BOS, EOS
from relmo.text.encode import encode_text
from relmo.text.minimal_pairs import MinimalPair
from relmo.text.vocabulary import END

SIDE_BY_SIDE = 64  # texts read together
AT_ONCE = 1 << 23  # numbers of gates, or of predictions, made at a time


@dataclass(frozen=True)
class PairPlan:
    """What is read, and which symbols are predicted where: entry e is symbol `target[e]` after `place[e]` symbols of
    `readings[reading[e]]`, for or against pair `item[e]`.

    single    whether every pair is two symbols after the same context
    known     (N,) whether the symbols that differ are in the vocabulary
    """

    readings: list[tuple[str, ...]]
    reading: np.ndarray
    place: np.ndarray
    target: np.ndarray
    item: np.ndarray
    sign: np.ndarray
    single: bool
    known: np.ndarray

    def __len__(self) -> int:
        return len(self.known)


def plan_of(model: LanguageModel | BiLM, pairs: Sequence[MinimalPair]) -> PairPlan:
    """How these pairs are read by a model."""
    if not pairs:
        raise CorpusError("there are no minimal pairs; give at least one")
    vocabulary = model.output_words() if isinstance(model, BiLM) else model.vocabulary
    index: dict[tuple[str, ...], int] = {}
    entries: list[tuple[int, int, str, int, float]] = []
    single = True
    for item, pair in enumerate(pairs):
        good, bad = (_symbols_of(model, text, whole=pair.whole) for text in (pair.good, pair.bad))
        shared = _shared_beginning(good, bad)
        if good == bad:
            continue  # a tie, as two unknown words are
        alone = len(good) == len(bad) == shared + 1
        single &= alone
        for symbols, sign in ((good, 1.0), (bad, -1.0)):
            read = index.setdefault(tuple(symbols[:shared] if alone else symbols[:-1]), len(index))
            entries += [(read, place, symbols[place], item, sign) for place in range(shared, len(symbols))]
    if not entries:
        raise CorpusError(f"the two texts of every pair are the same to this model, as in {pairs[0].good!r}")
    ids = vocabulary.ids(entry[2] for entry in entries)
    reading, places, items = (np.array([entry[i] for entry in entries], dtype=np.int64) for i in (0, 1, 3))
    known = np.ones(len(pairs), dtype=bool)
    known[items[ids == vocabulary.unknown]] = False
    return PairPlan(list(index), reading, places, ids, items, np.array([entry[4] for entry in entries]), single, known)


def _symbols_of(model: LanguageModel | BiLM, text: str | Sequence[str], *, whole: bool) -> list[str]:
    """The symbols that a model predicts of a text, its end included where it is a whole sentence."""
    if isinstance(model, BiLM):
        return [*(model.tokens(text) if isinstance(text, str) else text), *([EOS] if whole else [])]
    settings = model.settings.text
    if settings.unit == "char":
        raw = text if isinstance(text, str) else " ".join(text)
        return encode_text(raw + ("\n" if whole else " "), settings)
    if isinstance(text, str):
        words = encode_text(text, settings)
    else:
        words = [word.lower() if settings.lowercase else word for word in text]
    line_end = "\n" if "\n" in model.vocabulary.index else END
    return [*words, *([line_end] if whole else [])]


def _shared_beginning(a: Sequence[str], b: Sequence[str]) -> int:
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


def gaps(model: LanguageModel | BiLM, plan: PairPlan, progress: Progress | None = None) -> np.ndarray:
    """log p(acceptable) - log p(not) of every pair, as the model is, interventions under way included; (N,)."""
    if isinstance(model, LanguageModel) and not isinstance(model.network, RecurrentLM):
        return _plain_gaps(model, plan)
    return gaps_without(model, plan, [()], progress=progress)[0]


def gaps_without(
    model: LanguageModel | BiLM,
    plan: PairPlan,
    sets: Sequence[Sequence[Unit]],
    *,
    values: Sequence[Sequence[float]] | None = None,
    progress: Progress | None = None,
) -> np.ndarray:
    """The same with the units of each set held at their values, which are 0 where none are given; (S, N)."""
    reader = Reader(model)
    at = [[0.0] * len(units) for units in sets] if values is None else values
    for unit in {unit for units in sets for unit in units}:
        reader.check(unit)
    found = np.zeros((len(sets), len(plan)))
    order = sorted(range(len(plan.readings)), key=lambda i: len(plan.readings[i]))
    groups = [order[begin : begin + SIDE_BY_SIDE] for begin in range(0, len(order), SIDE_BY_SIDE)]
    for number, group in enumerate(groups):
        row = np.full(len(plan.readings), -1)
        row[group] = np.arange(len(group))
        entries = np.flatnonzero(row[plan.reading] >= 0)
        rows, places, targets = (
            torch.from_numpy(array[entries]) for array in (row[plan.reading], plan.place, plan.target)
        )
        for which, tops in reader.tops([plan.readings[i] for i in group], sets, at):
            for s, top in zip(which, tops, strict=True):  # top (T, C, P)
                log_p = reader.log_p(top[places, rows], targets, single=plan.single)
                np.add.at(found[s], plan.item[entries], plan.sign[entries] * log_p)
        if progress is not None:
            progress((number + 1) / len(groups))
    return found


class Reader:
    """The forward direction of a model, run with units changed."""

    def __init__(self, model: LanguageModel | BiLM):
        self.model = model
        self.network = network_of(model)
        part = recurrent_part(self.network)
        whole = stack_of(part)
        self.stack = _one_way(whole)
        self.base = {
            key: Change(change.scale[:1], change.offset[:1]) for key, change in active_changes(part, whole).items()
        }

    def check(self, unit: Unit) -> None:
        """Raises where the model has no such unit."""
        layers = self.stack.layers
        if unit.direction != "forward":
            raise SettingError(f"unit {unit}: pairs are read forwards; take one of the forward direction")
        if not 0 <= unit.layer < len(layers):
            raise SettingError(f"unit {unit}: the network has the layers 0 to {len(layers) - 1}")
        own = layers[unit.layer]
        if unit.state not in own.states:
            raise SettingError(f"unit {unit}: a layer of this network carries {' and '.join(own.states)}")
        if not 0 <= unit.number < own.sizes[unit.state]:
            raise SettingError(f"unit {unit}: {unit.state} has the units 0 to {own.sizes[unit.state] - 1}")

    @torch.no_grad()
    def tops(
        self, readings: Sequence[Sequence[str]], sets: Sequence[Sequence[Unit]], values: Sequence[Sequence[float]]
    ) -> Iterator[tuple[list[int], Tensor]]:
        """Yields the numbers of some sets, and what the top layer hands to the output layer with each of them changed,
        (S, T, C, P). Layers below the lowest changed unit are run once for all sets."""
        x, lengths = self.inputs(readings)
        with full_precision():
            plain = self.stack.run(x, None, lengths, changes=self.base)
            for depth in range(len(self.stack.layers) + 1):
                mine = [s for s, units in enumerate(sets) if min((u.layer for u in units), default=-1) == depth - 1]
                if not mine:
                    continue
                if depth == 0:
                    yield mine, plain.outputs[-1].expand(len(mine), -1, -1, -1)
                    continue
                layer = depth - 1
                upper = _from_layer(self.stack, layer)
                given = x if layer == 0 else plain.outputs[layer - 1]
                first = upper.input_gates(given)
                step = max(1, AT_ONCE // first.numel())
                for begin in range(0, len(mine), step):
                    some = mine[begin : begin + step]
                    changes = self.changes([sets[s] for s in some], [values[s] for s in some], len(readings), layer)
                    yield some, self.side_by_side(upper, given, first, lengths, len(some), changes)

    def side_by_side(
        self, stack: Stack, x: Tensor, first: Tensor, lengths: Tensor, sets: int, changes: Changes
    ) -> Tensor:
        """Reads the same texts for each of several sets of changes; (S, T, C, P)."""
        steps, texts = x.shape[1:3]
        x, first = (t.unsqueeze(2).expand(-1, -1, sets, -1, -1).flatten(2, 3) for t in (x, first))
        run: Run = stack.run(x, None, lengths.repeat(sets), changes=changes, first=first)
        return run.outputs[-1][0].view(steps, sets, texts, -1).transpose(0, 1)

    def changes(
        self, sets: Sequence[Sequence[Unit]], values: Sequence[Sequence[float]], texts: int, lowest: int
    ) -> Changes:
        """The changes of each layer, counted from the lowest one, and state: set after set, the same for all texts of
        a set."""
        found: dict[tuple[int, str], Change] = {}
        keys = {(unit.layer, unit.state) for units in sets for unit in units} | self.base.keys()
        for layer, state in keys:
            if layer < lowest:
                continue
            own = self.stack.layers[layer]
            base = self.base.get((layer, state), own.no_change(state))
            scale, offset = (t.repeat(1, len(sets), 1) for t in base)
            for row, (units, at) in enumerate(zip(sets, values, strict=True)):
                for unit, value in zip(units, at, strict=True):
                    if (unit.layer, unit.state) == (layer, state):
                        scale[0, row, unit.number], offset[0, row, unit.number] = 0.0, value
            found[layer - lowest, state] = Change(
                *(tensor.repeat_interleave(texts, dim=1) for tensor in (scale, offset))
            )
        return found

    def inputs(self, readings: Sequence[Sequence[str]]) -> tuple[Tensor, Tensor]:
        """What the first layer reads of texts, the boundary before them included: (1, T, C, I), and lengths (C,)."""
        lengths = torch.tensor([1 + len(words) for words in readings])
        if isinstance(self.model, LanguageModel):
            return embedded(self.model, [[END, *words] for words in readings]), lengths
        cut = self.model.embedder.cut_words()
        vectors = self.model.embedder.stream(([BOS, *words] for words in readings), EmbedOptions(layers=0), cut)
        padded = nn.utils.rnn.pad_sequence([torch.from_numpy(each) for each in vectors]).to(self.model.device)
        if cut.count:
            warnings.warn(cut.message(), stacklevel=2)
        return padded[..., : padded.shape[2] // 2].unsqueeze(0), lengths

    @torch.no_grad()
    def log_p(self, x: Tensor, targets: Tensor, *, single: bool) -> np.ndarray:
        """Log-probabilities (E,) of targets from the top layer's output (E, P); with `single` up to what is the same
        for all targets of one output."""
        targets = targets.to(x.device)
        if isinstance(self.network, RecurrentLM) and self.network.bottleneck is not None:
            x = self.network.bottleneck(x)
        softmax = self.network.softmax
        assert softmax is not None
        with full_precision():
            if single and isinstance(softmax, FullSoftmax):
                made = (x * softmax.vectors(targets)).sum(dim=1, dtype=torch.float64) + softmax.bias[targets]
            else:
                made = -softmax.nll(x, targets).double()
        return made.cpu().numpy()


def _one_way(stack: Stack) -> Stack:
    """The forward direction of layers."""
    if stack.joined and stack.directions == 2:
        raise ModelError("layers that read both directions of the layers below cannot predict the next word")
    return replace(stack, layers=[replace(layer, weights=layer.weights[:1]) for layer in stack.layers])


def _from_layer(stack: Stack, layer: int) -> Stack:
    """The layers from one on. Above the first, residual sums are where sizes agree, which they do there."""
    if layer == 0:
        return stack
    residual = stack.residual if stack.residual == "none" else "where sizes agree"
    return replace(stack, layers=stack.layers[layer:], residual=residual)


@torch.no_grad()
def _plain_gaps(model: LanguageModel, plan: PairPlan) -> np.ndarray:
    """The gaps of any language model, n-gram models too: each predicted symbol is read with all before it; (N,)."""
    found = np.zeros(len(plan))
    end = model.vocabulary.end
    for begin in range(0, len(plan.target), SIDE_BY_SIDE):
        part = slice(begin, begin + SIDE_BY_SIDE)
        texts = [plan.readings[r][:p] for r, p in zip(plan.reading[part], plan.place[part], strict=True)]
        inputs = np.full((len(texts), 1 + max(map(len, texts))), end, dtype=np.int64)
        for row, text in zip(inputs, texts, strict=True):
            row[1 : 1 + len(text)] = model.vocabulary.ids(text)
        last = plan.place[part]
        targets = inputs.copy()
        targets[np.arange(len(texts)), last] = plan.target[part]
        state = model.network.initial_state(len(texts))
        x, y = (torch.from_numpy(array).to(model.device) for array in (inputs, targets))
        with full_precision():
            nll, _ = model.network.nll(x, y, state)
        log_p = -nll[torch.arange(len(texts)), torch.from_numpy(last)].double().cpu().numpy()
        np.add.at(found, plan.item[part], plan.sign[part] * log_p)
    return found
