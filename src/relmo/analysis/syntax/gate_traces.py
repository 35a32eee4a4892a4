"""What a unit's states and gates do over the sentences of minimal pairs, by condition.

    gate_traces(model, pairs, Unit("c", 1, 338)).plot("unit.png")
    draw_gates([gate_traces(model, pairs, unit) for unit in units], "figure-1.png")

Lakretz et al. 2019, The emergence of number and syntax units in LSTM language models, Figure 1
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from relmo.analysis.core.causal import Unit
from relmo.analysis.core.intervals import Z
from relmo.analysis.core.show import Table, figure, picture
from relmo.analysis.core.trace import trace
from relmo.analysis.syntax.agreement import PER_CONDITION, drawn_pairs
from relmo.analysis.syntax.pair_scores import Reader, plan_of
from relmo.errors import SettingError
from relmo.models.bilm import BiLM
from relmo.models.lm import LanguageModel
from relmo.text.minimal_pairs import MinimalPair


@dataclass(frozen=True)
class GateTraces:
    """A unit's states and gates over the sentence, by condition: the mean over the pairs of the condition's commonest
    length, the standard deviation, and by how much the mean may be off (half of its 95% interval); each (T,), by name.
    `words` are the commonest at each place."""

    unit: Unit
    words: dict[str, list[str]]
    pairs: dict[str, int]
    means: dict[str, dict[str, np.ndarray]]
    deviations: dict[str, dict[str, np.ndarray]]

    @property
    def errors(self) -> dict[str, dict[str, np.ndarray]]:
        """Half of the 95% interval of each mean."""
        return {
            name: {key: Z * spread / max(self.pairs[name] - 1, 1) ** 0.5 for key, spread in some.items()}
            for name, some in self.deviations.items()
        }

    def as_dict(self) -> dict[str, Any]:
        """Everything by name, in plain numbers."""
        return {
            "unit": str(self.unit),
            "conditions": [
                {
                    "condition": name,
                    "pairs": self.pairs[name],
                    "words": self.words[name],
                    "means": {key: value.tolist() for key, value in self.means[name].items()},
                    "deviations": {key: value.tolist() for key, value in self.deviations[name].items()},
                    "errors": {key: value.tolist() for key, value in self.errors[name].items()},
                }
                for name in self.means
            ],
        }

    def table(self) -> Table:
        """A row for each condition and place."""
        names = list(next(iter(self.means.values())))
        rows = [
            [name, str(place), self.words[name][place], *(figure(float(self.means[name][key][place])) for key in names)]
            for name in self.means
            for place in range(len(self.words[name]))
        ]
        notes = ["means after each word; the word is the commonest at its place"]
        return Table(["condition", "place", "word", *names], rows, f"{self.unit} over the sentence", notes)

    def _repr_html_(self) -> str:
        return self.table().html()

    def plot(self, path: str | Path) -> None:
        """A line for each condition, a panel for each state and gate, as a picture."""
        draw_gates([self], path)


def draw_gates(traces: Sequence[GateTraces], path: str | Path) -> None:
    """Units side by side as in the paper's Figure 1: a column for each, a row for each state and gate, a line for each
    condition, with the 95% interval of its mean in a band and the standard deviation in a fainter one."""
    names = list(dict.fromkeys(key for each in traces for some in each.means.values() for key in some))
    with picture(path, width=max(9.0, 4.0 * len(traces)), height=1.3 * len(names) + 1.2) as drawn:
        panels = drawn.subplots(len(names), len(traces), sharex="col", squeeze=False)
        for column, each in zip(panels.T, traces, strict=True):
            column[0].set_title(str(each.unit))
            for axes, key in zip(column, names, strict=True):
                _draw_gate(axes, each, key)
            longest = max(each.words.values(), key=len)
            column[-1].set_xticks(range(len(longest)), longest, fontsize=8, rotation=30, ha="right")
        handles, labels = panels[-1, 0].get_legend_handles_labels()
        drawn.legend(handles, labels, fontsize=8, ncols=4, loc="outside lower center")


def _draw_gate(axes: Any, traced: GateTraces, key: str) -> None:
    """A line for each condition; nothing where the unit has no such gate."""
    for name, means in traced.means.items():
        if key not in means:
            axes.set_visible(False)
            return
        places = np.arange(len(means[key]))
        (line,) = axes.plot(places, means[key], marker=".", linewidth=1, label=f"{name} ({traced.pairs[name]})")
        for spread, alpha in ((traced.errors[name][key], 0.35), (traced.deviations[name][key], 0.1)):
            ends = means[key] - spread, means[key] + spread
            axes.fill_between(places, *ends, color=line.get_color(), alpha=alpha, linewidth=0)
    axes.set_ylabel(key, rotation=0, labelpad=12)


def gate_traces(
    model: LanguageModel | BiLM, pairs: Sequence[MinimalPair], unit: Unit, *, per_condition: int | None = PER_CONDITION
) -> GateTraces:
    """The states and gates of a unit over what is read before the forms that are compared, by condition. Of a
    projected layer a unit of h has no gates, and one of c no h of its own."""
    reader = Reader(model)
    reader.check(unit)
    layer = reader.stack.layers[unit.layer]
    names = [name for name, size in layer.sizes.items() if size == layer.sizes[unit.state]]
    if layer.projection is not None:
        names = [name for name in names if (name == "h") == (unit.state == "h")]
    found: dict[str, tuple[list[list[str]], dict[str, np.ndarray]]] = {}
    for name, texts in _read_before(model, drawn_pairs(pairs, per_condition, 0)):
        traced = trace(model, texts, layers=[unit.layer], keep=names).forward
        shape = (len(texts), len(texts[0]))
        found[name] = texts, {key: traced.unit(key, unit.layer, unit.number).reshape(shape) for key in names}
    if not found:
        raise SettingError("nothing stands before the forms that are compared: there is nothing to trace")
    words = {
        name: [Counter(column).most_common(1)[0][0] for column in zip(*texts, strict=True)]
        for name, (texts, _) in found.items()
    }
    means = {name: {key: v.mean(axis=0) for key, v in values.items()} for name, (_, values) in found.items()}
    spread = {name: {key: v.std(axis=0) for key, v in values.items()} for name, (_, values) in found.items()}
    return GateTraces(unit, words, {name: len(texts) for name, (texts, _) in found.items()}, means, spread)


def _read_before(model: LanguageModel | BiLM, pairs: Sequence[MinimalPair]) -> Iterator[tuple[str, list[list[str]]]]:
    """Each condition with the symbols before the forms that are compared, of the pairs in which these are of the
    commonest number."""
    parts: dict[str, list[MinimalPair]] = {}
    for pair in pairs:
        parts.setdefault(pair.condition, []).append(pair)
    for name, some in parts.items():
        plan = plan_of(model, some)
        _, first = np.unique(plan.item, return_index=True)  # the place of its first prediction is the shared beginning
        texts = [list(plan.readings[plan.reading[e]][: plan.place[e]]) for e in first]
        length = Counter(map(len, texts)).most_common(1)[0][0]
        if length:
            yield name, [text for text in texts if len(text) == length]
