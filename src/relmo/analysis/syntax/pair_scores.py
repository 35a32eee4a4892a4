"""Scores log p(acceptable) - log p(unacceptable) of minimal pairs, also with units of the model ablated; a
bidirectional model is read forward (Linzen et al. 2016;  Marvin & Linzen 2018, Targeted syntactic evaluation)."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from relmo.analysis.core.ablate import collect_changes
from relmo.analysis.core.causal import Unit
from relmo.analysis.core.effects import Interval, wilson
from relmo.analysis.core.stack import Change, Changes, build_stack
from relmo.errors import CorpusError, ModelError
from relmo.models.evaluate import full_precision
from relmo.models.sequence_model import SequenceModel
from relmo.nn.softmax import FullSoftmax
from relmo.settings.fields import Progress
from relmo.text.minimal_pairs import MinimalPair

BATCH_TEXTS = 64  # texts read together
MAX_NUMBERS = 1 << 23  # gate values, or predictions, computed together


@dataclass(frozen=True)
class PairPlan:
    """Entries: `target[e]` after `place[e]` symbols of `readings[reading[e]]`, with `sign[e]` for pair `item[e]`."""

    readings: list[tuple[str, ...]]
    reading: np.ndarray
    place: np.ndarray
    target: np.ndarray
    item: np.ndarray
    sign: np.ndarray
    single: bool  # whether every pair is two symbols after the same context
    known: np.ndarray  # (N,) whether the differing symbols are in the vocabulary

    def contexts(self) -> dict[int, list[str]]:
        """Return the shared prefix of each pair by the pair's index; without pairs that are a tie by definition."""
        items, entries = np.unique(self.item, return_index=True)  # a pair's first entry follows the shared prefix
        prefixes = [list(self.readings[self.reading[e]][: self.place[e]]) for e in entries]
        return dict(zip(items.tolist(), prefixes, strict=True))


def plan_pairs(model: SequenceModel, pairs: Sequence[MinimalPair]) -> PairPlan:
    """Return what a model has to read and predict to score these pairs."""
    if not pairs:
        raise CorpusError("no minimal pairs; give at least one")
    vocabulary = model.get_output_vocabulary()
    readings: dict[tuple[str, ...], int] = {}
    entries: list[tuple[int, int, str, int, float]] = []
    single = True
    for item, pair in enumerate(pairs):
        good, bad = (model.target_symbols(text, is_sentence=pair.whole) for text in (pair.good, pair.bad))
        if good == bad:
            continue  # a tie
        differing = (i for i, (a, b) in enumerate(zip(good, bad, strict=False)) if a != b)
        shared = next(differing, min(len(good), len(bad)))
        is_choice = len(good) == len(bad) == shared + 1
        single &= is_choice
        for symbols, sign in ((good, 1.0), (bad, -1.0)):
            reading = readings.setdefault(tuple(symbols[:shared] if is_choice else symbols[:-1]), len(readings))
            entries += [(reading, place, symbols[place], item, sign) for place in range(shared, len(symbols))]
    if not entries:
        raise CorpusError(f"the two texts of every pair are the same to this model, as in {pairs[0].good!r}")
    ids = vocabulary.ids(entry[2] for entry in entries)
    reading_ids, places, items = (np.array([entry[i] for entry in entries], dtype=np.int64) for i in (0, 1, 3))
    has_known_words = np.ones(len(pairs), dtype=bool)
    has_known_words[items[ids == vocabulary.unknown]] = False
    signs = np.array([entry[4] for entry in entries])
    return PairPlan(list(readings), reading_ids, places, ids, items, signs, single, has_known_words)


def score_pairs(model: SequenceModel, plan: PairPlan, progress: Progress | None = None) -> np.ndarray:
    """Return log p(acceptable) - log p(unacceptable) of every pair, under any active interventions; (N,)."""
    if model.is_recurrent:
        return score_ablated(model, plan, [()], progress=progress)[0]
    # Other models, such as n-grams, read every predicted symbol with its full prefix.
    scores, vocabulary = np.zeros(len(plan.known)), model.get_output_vocabulary()
    for begin in range(0, len(plan.target), BATCH_TEXTS):
        batch = slice(begin, begin + BATCH_TEXTS)
        last = plan.place[batch]
        texts = [plan.readings[r][:p] for r, p in zip(plan.reading[batch], last, strict=True)]
        inputs = np.full((len(texts), 1 + max(map(len, texts))), vocabulary.end, dtype=np.int64)
        for row, text in zip(inputs, texts, strict=True):
            row[1 : 1 + len(text)] = vocabulary.ids(text)
        targets = inputs.copy()
        targets[np.arange(len(texts)), last] = plan.target[batch]
        x, y = (torch.from_numpy(array).to(model.device) for array in (inputs, targets))
        with torch.no_grad(), full_precision():
            nll, _ = model.network.nll(x, y, model.network.initial_state(len(texts)))
        log_p = -nll[torch.arange(len(texts)), torch.from_numpy(last)].double().cpu().numpy()
        np.add.at(scores, plan.item[batch], plan.sign[batch] * log_p)
    return scores


def score_ablated(
    model: SequenceModel,
    plan: PairPlan,
    sets: Sequence[Sequence[Unit]],
    *,
    values: Sequence[Sequence[float]] | None = None,
    progress: Progress | None = None,
) -> np.ndarray:
    """Return the scores with the units of each set held at `values` (by default 0); (S, N)."""
    reader = Reader(model)
    if values is None:
        values = [[0.0] * len(units) for units in sets]
    for unit in {unit for units in sets for unit in units}:
        reader.stack.check_unit(unit)
    scores = np.zeros((len(sets), len(plan.known)))
    order = sorted(range(len(plan.readings)), key=lambda i: len(plan.readings[i]))
    batches = [order[begin : begin + BATCH_TEXTS] for begin in range(0, len(order), BATCH_TEXTS)]
    for number, batch in enumerate(batches):
        row = np.full(len(plan.readings), -1)
        row[batch] = np.arange(len(batch))
        entries = np.flatnonzero(row[plan.reading] >= 0)
        arrays = (row[plan.reading], plan.place, plan.target)
        rows, places, targets = (torch.from_numpy(array[entries]) for array in arrays)
        for set_indices, tops in reader.run_sets([plan.readings[i] for i in batch], sets, values):
            for s, top in zip(set_indices, tops, strict=True):  # top (T, C, P)
                log_p = reader.log_probs(top[places, rows], targets, single=plan.single)
                np.add.at(scores[s], plan.item[entries], plan.sign[entries] * log_p)
        if progress is not None:
            progress((number + 1) / len(batches))
    return scores


class Reader:
    """The forward direction of a model, run with units changed."""

    def __init__(self, model: SequenceModel):
        self.model = model
        stack = build_stack(model.get_recurrent_network())
        if stack.joined and stack.directions == 2:
            raise ModelError("layers that read both directions of the layers below cannot predict the next word")
        layers = (replace(x, cells=x.cells[:1], projections=x.projections[:1]) for x in stack.layers)
        self.stack = replace(stack, layers=list(layers))
        self.base = {key: Change(change.scale[:1], change.offset[:1]) for key, change in collect_changes(stack).items()}

    @torch.no_grad()
    def run_sets(
        self, readings: Sequence[Sequence[str]], sets: Sequence[Sequence[Unit]], values: Sequence[Sequence[float]]
    ) -> Iterator[tuple[list[int], Tensor]]:
        """Yield the indices of some sets and the top layer's outputs with each of them changed, (S, T, C, P)."""
        lengths = torch.tensor([1 + len(words) for words in readings])
        x = self.model.recurrent_inputs(readings)[:1]  # (1, T, C, I)
        self.model.warn_truncated(readings)
        num_steps, num_texts = x.shape[1:3]
        # Layers below the lowest changed unit run once for all sets.
        lowest = [min((unit.layer for unit in units), default=None) for units in sets]
        with full_precision():
            base_run = self.stack.run(x, None, lengths, changes=self.base)
            unchanged = [s for s, layer in enumerate(lowest) if layer is None]
            if unchanged:
                yield unchanged, base_run.outputs[-1].expand(len(unchanged), -1, -1, -1)
            for layer in range(len(self.stack.layers)):
                indices = [s for s, depth in enumerate(lowest) if depth == layer]
                if not indices:
                    continue
                upper, inputs = self.stack, x
                if layer > 0:
                    upper = replace(self.stack, layers=self.stack.layers[layer:])
                    inputs = base_run.outputs[layer - 1]
                gates = upper.input_gates(inputs)
                step = max(1, MAX_NUMBERS // gates.numel())
                for begin in range(0, len(indices), step):
                    part = indices[begin : begin + step]
                    changes = self._changes([sets[s] for s in part], [values[s] for s in part], num_texts, layer)
                    x_repeated, gates_repeated = (
                        tensor.unsqueeze(2).expand(-1, -1, len(part), -1, -1).flatten(2, 3)
                        for tensor in (inputs, gates)
                    )
                    run = upper.run(x_repeated, None, lengths.repeat(len(part)), changes=changes, gates=gates_repeated)
                    yield part, run.outputs[-1][0].view(num_steps, len(part), num_texts, -1).transpose(0, 1)

    def _changes(
        self, sets: Sequence[Sequence[Unit]], values: Sequence[Sequence[float]], num_texts: int, lowest: int
    ) -> Changes:
        """Return the changes of each layer from `lowest` on and state: set by set, the same for all texts of a set."""
        changes: dict[tuple[int, str], Change] = {}
        for layer, state in {(unit.layer, unit.state) for units in sets for unit in units} | self.base.keys():
            if layer < lowest:
                continue
            base = self.base.get((layer, state), self.stack.layers[layer].no_change(state))
            scale, offset = (tensor.repeat(1, len(sets), 1) for tensor in base)
            for row, (units, unit_values) in enumerate(zip(sets, values, strict=True)):
                for unit, value in zip(units, unit_values, strict=True):
                    if (unit.layer, unit.state) == (layer, state):
                        scale[0, row, unit.number], offset[0, row, unit.number] = 0.0, value
            repeated = (tensor.repeat_interleave(num_texts, dim=1) for tensor in (scale, offset))
            changes[layer - lowest, state] = Change(*repeated)
        return changes

    @torch.no_grad()
    def log_probs(self, x: Tensor, targets: Tensor, *, single: bool) -> np.ndarray:
        """Return log p (E,) of targets from top outputs (E, P); with `single`, up to a constant for each output."""
        targets, softmax = targets.to(x.device), self.model.softmax
        x = self.model.output_features(x)
        with full_precision():
            if single and isinstance(softmax, FullSoftmax):
                log_p = (x * softmax.vectors(targets)).sum(dim=1, dtype=torch.float64) + softmax.bias[targets]
            else:
                log_p = -softmax.nll(x, targets).double()
        return log_p.cpu().numpy()


class Accuracy(NamedTuple):
    """Share of points of all pairs, and of the pairs whose differing words are known, with 95% intervals."""

    share: Interval
    pairs: int
    known: Interval
    known_pairs: int

    def summary(self) -> dict[str, float | int | list[float]]:
        """Return the figures by name, shares in percent."""
        return {
            "accuracy": 100 * self.share.value,
            "interval": [100 * self.share.low, 100 * self.share.high],
            "pairs": self.pairs,
            "known_accuracy": 100 * self.known.value,
            "known_interval": [100 * self.known.low, 100 * self.known.high],
            "known_pairs": self.known_pairs,
        }


def to_points(scores: np.ndarray) -> np.ndarray:
    """Return 1 for each score above 0 (the acceptable form is preferred), 0.5 for a tie, 0 otherwise."""
    return np.where(scores > 0, 1.0, np.where(scores == 0, 0.5, 0.0))


def accuracy(scores: np.ndarray, known: np.ndarray) -> Accuracy:
    """Return the accuracy of pairs with these scores (N,); `known` (N,) marks pairs of known words."""
    points = to_points(scores)
    shares = [wilson(float(subset.sum()), len(subset)) for subset in (points, points[known])]
    return Accuracy(shares[0], len(points), shares[1], int(np.count_nonzero(known)))
