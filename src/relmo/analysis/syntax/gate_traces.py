"""States and gates of a unit over the sentences of minimal pairs, and the recurrent weights that reach its gates
(Lakretz et al. 2019, The emergence of number and syntax units in LSTM language models, Figures 1 and 4)."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from relmo.analysis.core.causal import Unit
from relmo.analysis.core.effects import Z
from relmo.analysis.core.show import Report, Table, format_number, save_figure, to_plain
from relmo.analysis.core.trace import trace
from relmo.analysis.syntax.agreement import PER_CONDITION, group_by_condition, sample_pairs
from relmo.analysis.syntax.pair_scores import Reader, plan_pairs
from relmo.errors import SettingError
from relmo.models.sequence_model import SequenceModel
from relmo.text.minimal_pairs import MinimalPair

Quantities = dict[str, np.ndarray]


@dataclass(frozen=True)
class GateTraces(Report):
    """States and gates (T,) of a unit by condition and name, over the pairs of the condition's most common length."""

    unit: Unit
    words: dict[str, list[str]]  # most common word at each position
    pairs: dict[str, int]
    means: dict[str, Quantities]
    deviations: dict[str, Quantities]
    errors: dict[str, Quantities]  # half of the 95% interval of the mean

    def as_dict(self) -> dict[str, Any]:
        fields = {name: getattr(self, name) for name in ("pairs", "words", "means", "deviations", "errors")}
        conditions = [
            {"condition": name} | {field: to_plain(by_condition[name]) for field, by_condition in fields.items()}
            for name in self.means
        ]
        return {"unit": str(self.unit), "conditions": conditions}

    def table(self) -> Table:
        names = list(next(iter(self.means.values())))
        rows = []
        for condition, words in self.words.items():
            for position, word in enumerate(words):
                means = (format_number(float(self.means[condition][name][position])) for name in names)
                rows.append([condition, str(position), word, *means])
        notes = ["means after each word; the word is the most common at its position"]
        return Table(["condition", "position", "word", *names], rows, f"{self.unit} over the sentence", notes)

    def plot(self, path: str | Path) -> None:
        """Draw one panel per state and gate, with one line per condition."""
        draw_gates([self], path)


def draw_gates(traces: Sequence[GateTraces], path: str | Path) -> None:
    """Draw units side by side as in Figure 1 of the paper: one column per unit, one row per state and gate."""
    names = list(dict.fromkeys(key for traced in traces for means in traced.means.values() for key in means))
    with save_figure(path, width=max(9.0, 4.0 * len(traces)), height=1.3 * len(names) + 1.2) as figure:
        panels = figure.subplots(len(names), len(traces), sharex="col", squeeze=False)
        for column, traced in zip(panels.T, traces, strict=True):
            column[0].set_title(str(traced.unit))
            for axes, key in zip(column, names, strict=True):
                if key not in next(iter(traced.means.values())):
                    axes.set_visible(False)
                    continue
                for name, means in traced.means.items():
                    x = np.arange(len(means[key]))
                    (line,) = axes.plot(x, means[key], marker=".", linewidth=1, label=f"{name} ({traced.pairs[name]})")
                    # bands of the 95% interval of the mean and, fainter, of the standard deviation
                    for width, alpha in ((traced.errors[name][key], 0.35), (traced.deviations[name][key], 0.1)):
                        bounds = means[key] - width, means[key] + width
                        axes.fill_between(x, *bounds, color=line.get_color(), alpha=alpha, linewidth=0)
                axes.set_ylabel(key, rotation=0, labelpad=12)
            longest = max(traced.words.values(), key=len)
            column[-1].set_xticks(range(len(longest)), longest, rotation=30, ha="right")
        handles, labels = panels[-1, 0].get_legend_handles_labels()
        figure.legend(handles, labels, fontsize="small", ncols=4 if len(traces) > 2 else 2, loc="outside lower center")


def gate_traces(
    model: SequenceModel, pairs: Sequence[MinimalPair], unit: Unit, *, per_condition: int | None = PER_CONDITION
) -> GateTraces:
    """Return the states and gates of a unit over the context before the compared forms, by condition. In a projected
    layer a unit of h has no gates, and a unit of c no h."""
    reader = Reader(model)
    reader.stack.check_unit(unit)
    layer = reader.stack.layers[unit.layer]
    units: dict[str, int] = {}
    for name in layer.cell.vectors:
        number = layer.cell.corresponding_unit(unit.state, unit.number, name)
        is_separate = layer.projection is not None and (name == "h") != (unit.state == "h")
        if number is not None and not is_separate:
            units[name] = number
    traces = GateTraces(unit, {}, {}, {}, {}, {})
    sample = sample_pairs(pairs, per_condition, 0)
    for condition, indices in group_by_condition(sample).items():
        contexts = plan_pairs(model, [sample[index] for index in indices]).contexts()
        length = Counter(map(len, contexts.values())).most_common(1)[0][0]
        if not length:
            continue
        texts = [text for text in contexts.values() if len(text) == length]
        traced = trace(model, texts, layers=[unit.layer], keep=list(units)).forward
        traces.words[condition] = [Counter(column).most_common(1)[0][0] for column in zip(*texts, strict=True)]
        traces.pairs[condition] = len(texts)
        for quantities in (traces.means, traces.deviations, traces.errors):
            quantities[condition] = {}
        for name, number in units.items():
            rows = traced.unit(name, unit.layer, number).reshape(len(texts), length)
            traces.means[condition][name], traces.deviations[condition][name] = rows.mean(axis=0), rows.std(axis=0)
            traces.errors[condition][name] = Z * rows.std(axis=0) / max(len(texts) - 1, 1) ** 0.5
    if not traces.means:
        raise SettingError("no symbols precede the compared forms; there is nothing to trace")
    return traces


@dataclass(frozen=True)
class Connections(Report):
    """Standardised weights from sources to the gates of targets; (S, T, G), nan for units of different layers."""

    sources: list[Unit]
    targets: list[Unit]
    gates: tuple[str, ...]
    z: np.ndarray

    def as_dict(self) -> dict[str, Any]:
        rows = [
            {"from": str(source), "to": str(target)} | dict(zip(self.gates, self.z[s, t].tolist(), strict=True))
            for s, source in enumerate(self.sources)
            for t, target in enumerate(self.targets)
            if not np.isnan(self.z[s, t]).any()
        ]
        return {"connections": rows}

    def table(self) -> Table:
        rows = [
            [row["from"], row["to"], *(format_number(row[gate], 1, signed=True) for gate in self.gates)]
            for row in self.as_dict()["connections"]
        ]
        notes = ["weights to the next step, in standard deviations over all units of the layer for the same gate"]
        return Table(["from", "to", *self.gates], rows, "weights from units to gates", notes)


@torch.no_grad()
def connections(model: SequenceModel, sources: Sequence[Unit], targets: Sequence[Unit]) -> Connections:
    """Return the weights from units of h or c to units that have gates (in a projected layer only those of c),
    standardised over all units of the layer for the same gate."""
    reader = Reader(model)
    if not sources or not targets:
        raise SettingError("give units that weights go out from, and units that they go to")
    for unit in (*sources, *targets):
        reader.stack.check_unit(unit)
    cell = reader.stack.layers[0].cell
    gates = tuple(cell.recurrent_matrices())
    if not gates:
        raise SettingError(f"the gates of a {cell.name} do not read the previous state")
    z = np.full((len(sources), len(targets), len(gates)), np.nan)
    for t, target in enumerate(targets):
        layer = reader.stack.layers[target.layer]
        if target.state == "h" and layer.projection is not None:
            raise SettingError(f"unit {target}: h of a projected layer has no gates; use a unit of c")
        matrices = layer.cell.recurrent_matrices()
        rows = torch.stack([matrix[target.number] for matrix in matrices.values()])  # (G, P)
        for s, source in enumerate(sources):
            if source.layer == target.layer:
                projection = None if source.state == "h" else layer.projection
                weights = (rows if projection is None else rows @ projection).double().cpu().numpy()  # (G, U)
                deviations = np.maximum(weights.std(axis=1), 1e-12)
                z[s, t] = (weights[:, source.number] - weights.mean(axis=1)) / deviations
    return Connections(list(sources), list(targets), gates, z)
