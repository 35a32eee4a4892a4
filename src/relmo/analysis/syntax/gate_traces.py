"""States and gates of a unit over the sentences of minimal pairs, by condition.

    gate_traces(model, pairs, Unit("c", 1, 338)).plot("unit.png")
    draw_gates([gate_traces(model, pairs, unit) for unit in units], "figure-1.png")

Lakretz et al. 2019, The emergence of number and syntax units in LSTM language models, Figure 1
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from relmo.analysis.core.causal import Unit
from relmo.analysis.core.effects import Z
from relmo.analysis.core.show import Table, format_number, save_figure, to_plain
from relmo.analysis.core.trace import trace
from relmo.analysis.syntax.agreement import PER_CONDITION, group_by_condition, sample_pairs
from relmo.analysis.syntax.pair_scores import Reader, plan_pairs
from relmo.errors import SettingError
from relmo.models.bilm import BiLM
from relmo.models.lm import LanguageModel
from relmo.text.minimal_pairs import MinimalPair

Quantities = dict[str, np.ndarray]


@dataclass(frozen=True)
class GateTraces:
    """States and gates of a unit over the sentence, by condition and name, each (T,): the mean over the pairs of the
    condition's most common length, and the standard deviation. `words` has the most common word at each position."""

    unit: Unit
    words: dict[str, list[str]]
    pairs: dict[str, int]
    means: dict[str, Quantities]
    deviations: dict[str, Quantities]

    @property
    def errors(self) -> dict[str, Quantities]:
        """Half of the 95% interval of each mean."""
        return {
            name: {key: Z * deviation / max(self.pairs[name] - 1, 1) ** 0.5 for key, deviation in quantities.items()}
            for name, quantities in self.deviations.items()
        }

    def as_dict(self) -> dict[str, Any]:
        """Return all figures as plain Python values."""
        fields = {name: getattr(self, name) for name in ("pairs", "words", "means", "deviations", "errors")}
        conditions = [
            {"condition": name} | {field: to_plain(by_condition[name]) for field, by_condition in fields.items()}
            for name in self.means
        ]
        return {"unit": str(self.unit), "conditions": conditions}

    def table(self) -> Table:
        """Return a table with one row per condition and position."""
        names = list(next(iter(self.means.values())))
        rows = []
        for condition, words in self.words.items():
            for position, word in enumerate(words):
                means = (format_number(float(self.means[condition][name][position])) for name in names)
                rows.append([condition, str(position), word, *means])
        notes = ["means after each word; the word is the most common at its position"]
        return Table(["condition", "position", "word", *names], rows, f"{self.unit} over the sentence", notes)

    def _repr_html_(self) -> str:
        return self.table().html()

    def plot(self, path: str | Path) -> None:
        """Draw one panel per state and gate, with one line per condition."""
        draw_gates([self], path)


def draw_gates(traces: Sequence[GateTraces], path: str | Path) -> None:
    """Draw units side by side as in Figure 1 of the paper: one column per unit, one row per state and gate, one line
    per condition with bands of the 95% interval of the mean and, fainter, of the standard deviation."""
    names = list(dict.fromkeys(key for traced in traces for means in traced.means.values() for key in means))
    with save_figure(path, width=max(9.0, 4.0 * len(traces)), height=1.3 * len(names) + 1.2) as figure:
        panels = figure.subplots(len(names), len(traces), sharex="col", squeeze=False)
        for column, traced in zip(panels.T, traces, strict=True):
            column[0].set_title(str(traced.unit))
            for axes, key in zip(column, names, strict=True):
                _draw_gate(axes, traced, key)
            longest = max(traced.words.values(), key=len)
            column[-1].set_xticks(range(len(longest)), longest, fontsize=8, rotation=30, ha="right")
        handles, labels = panels[-1, 0].get_legend_handles_labels()
        figure.legend(handles, labels, fontsize=8, ncols=4, loc="outside lower center")


def _draw_gate(axes: Any, traced: GateTraces, key: str) -> None:
    for name, means in traced.means.items():
        if key not in means:
            axes.set_visible(False)
            return
        x = np.arange(len(means[key]))
        (line,) = axes.plot(x, means[key], marker=".", linewidth=1, label=f"{name} ({traced.pairs[name]})")
        for width, alpha in ((traced.errors[name][key], 0.35), (traced.deviations[name][key], 0.1)):
            bounds = means[key] - width, means[key] + width
            axes.fill_between(x, *bounds, color=line.get_color(), alpha=alpha, linewidth=0)
    axes.set_ylabel(key, rotation=0, labelpad=12)


def gate_traces(
    model: LanguageModel | BiLM, pairs: Sequence[MinimalPair], unit: Unit, *, per_condition: int | None = PER_CONDITION
) -> GateTraces:
    """Return the states and gates of a unit over the context before the compared forms, by condition. In a projected
    layer a unit of h has no gates, and a unit of c no h."""
    reader = Reader(model)
    reader.check(unit)
    layer = reader.stack.layers[unit.layer]
    names = [name for name, size in layer.sizes.items() if size == layer.sizes[unit.state]]
    if layer.projection is not None:
        names = [name for name in names if (name == "h") == (unit.state == "h")]
    traces = GateTraces(unit, {}, {}, {}, {})
    sample = sample_pairs(pairs, per_condition, 0)
    for condition, indices in group_by_condition(sample).items():
        contexts = plan_pairs(model, [sample[index] for index in indices]).contexts()
        length = Counter(map(len, contexts.values())).most_common(1)[0][0]
        if not length:
            continue
        texts = [text for text in contexts.values() if len(text) == length]
        traced = trace(model, texts, layers=[unit.layer], keep=names).forward
        values = {name: traced.unit(name, unit.layer, unit.number).reshape(len(texts), length) for name in names}
        traces.words[condition] = [Counter(column).most_common(1)[0][0] for column in zip(*texts, strict=True)]
        traces.pairs[condition] = len(texts)
        traces.means[condition] = {name: rows.mean(axis=0) for name, rows in values.items()}
        traces.deviations[condition] = {name: rows.std(axis=0) for name, rows in values.items()}
    if not traces.means:
        raise SettingError("no symbols precede the compared forms; there is nothing to trace")
    return traces
