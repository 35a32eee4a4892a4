"""The weights with which some units of a layer move the gates of another: do syntax units open and close number units?

    found = connections(model, sources=syntax_units, targets=number_units)
    found.z[0, 0]          of the first source to the gates of the first target, in standard deviations

What a unit hands to a gate at the next step goes through W_hh, a projected memory cell's through its projection first.
Weights are measured against those of all units of the layer to the same gate.

    Lakretz et al. 2019, The emergence of number and syntax units in LSTM language models, Figure 4
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from relmo.analysis.core.causal import Unit
from relmo.analysis.core.show import Table, figure
from relmo.analysis.syntax.pair_scores import Reader
from relmo.errors import SettingError
from relmo.models.bilm import BiLM
from relmo.models.lm import LanguageModel


@dataclass(frozen=True)
class Connections:
    """Weights from sources to the gates of targets, in standard deviations of those of all units; (S, T, G), nan where
    two units are of different layers."""

    sources: list[Unit]
    targets: list[Unit]
    gates: tuple[str, ...]
    z: np.ndarray

    def as_dict(self) -> dict[str, Any]:
        """Everything by name, in plain numbers."""
        rows = [
            {"from": str(source), "to": str(target)} | dict(zip(self.gates, self.z[s, t].tolist(), strict=True))
            for s, source in enumerate(self.sources)
            for t, target in enumerate(self.targets)
            if not np.isnan(self.z[s, t]).any()
        ]
        return {"connections": rows}

    def table(self) -> Table:
        """A row for each pair of units of one layer."""
        rows = [
            [row["from"], row["to"], *(figure(row[gate], 1, signed=True) for gate in self.gates)]
            for row in self.as_dict()["connections"]
        ]
        notes = ["weights at the next step, in standard deviations of those of all units of the layer to the same gate"]
        return Table(["from", "to", *self.gates], rows, "what units do to gates", notes)

    def _repr_html_(self) -> str:
        return self.table().html()


def connections(model: LanguageModel | BiLM, sources: Sequence[Unit], targets: Sequence[Unit]) -> Connections:
    """From units of h or c to those that have gates: any of an unprojected layer, c of a projected one."""
    reader = Reader(model)
    if not sources or not targets:
        raise SettingError("give units that weights go out from, and units that they go to")
    for unit in (*sources, *targets):
        reader.check(unit)
    first = reader.stack.layers[0]
    gates = tuple(first.cell.recurrent_matrices(first.weights[0]))
    if not gates:
        raise SettingError(f"the gates of a {first.cell.name} read no units of the step before")
    found = np.full((len(sources), len(targets), len(gates)), np.nan)
    for t, target in enumerate(targets):
        if target.state == "h" and reader.stack.layers[target.layer].projection is not None:
            raise SettingError(f"unit {target}: of a projected layer h has no gates; take a unit of c")
        for s, source in enumerate(sources):
            if source.layer == target.layer:
                weights = gate_weights(reader, target, source.state)  # (G, U)
                spread = np.maximum(weights.std(axis=1), 1e-12)
                found[s, t] = (weights[:, source.number] - weights.mean(axis=1)) / spread
    return Connections(list(sources), list(targets), gates, found)


@torch.no_grad()
def gate_weights(reader: Reader, target: Unit, state: str) -> np.ndarray:
    """The weights from all units of a state of a unit's layer to its gates, a step later; (G, U)."""
    layer = reader.stack.layers[target.layer]
    blocks = layer.cell.recurrent_matrices(layer.weights[0])
    weights = torch.stack([matrix[target.number] for matrix in blocks.values()])  # (G, P)
    if state != "h" and layer.projection is not None:
        weights = weights @ layer.projection  # (G, H)
    return weights.double().cpu().numpy()
