"""Recurrent weights from units to the gates of other units of the layer: do syntax units open and close number units?

    result = connections(model, sources=syntax_units, targets=number_units)
    result.z[0, 0]          first source to the gates of the first target, in standard deviations

A unit reaches a gate at the next step through W_hh, a projected memory cell through its projection first. Weights are
standardised over all units of the layer for the same gate.

    Lakretz et al. 2019, The emergence of number and syntax units in LSTM language models, Figure 4
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from relmo.analysis.core.causal import Unit
from relmo.analysis.core.show import Table, format_number
from relmo.analysis.syntax.pair_scores import Reader
from relmo.errors import SettingError
from relmo.models.bilm import BiLM
from relmo.models.lm import LanguageModel


@dataclass(frozen=True)
class Connections:
    """Standardised weights from sources to the gates of targets; (S, T, G), nan for units of different layers."""

    sources: list[Unit]
    targets: list[Unit]
    gates: tuple[str, ...]
    z: np.ndarray

    def as_dict(self) -> dict[str, Any]:
        """Return one record per pair of units of the same layer."""
        rows = [
            {"from": str(source), "to": str(target)} | dict(zip(self.gates, self.z[s, t].tolist(), strict=True))
            for s, source in enumerate(self.sources)
            for t, target in enumerate(self.targets)
            if not np.isnan(self.z[s, t]).any()
        ]
        return {"connections": rows}

    def table(self) -> Table:
        """Return a table with one row per pair of units of the same layer."""
        rows = [
            [row["from"], row["to"], *(format_number(row[gate], 1, signed=True) for gate in self.gates)]
            for row in self.as_dict()["connections"]
        ]
        notes = ["weights to the next step, in standard deviations over all units of the layer for the same gate"]
        return Table(["from", "to", *self.gates], rows, "weights from units to gates", notes)

    def _repr_html_(self) -> str:
        return self.table().html()


def connections(model: LanguageModel | BiLM, sources: Sequence[Unit], targets: Sequence[Unit]) -> Connections:
    """Return the weights from units of h or c to units that have gates (in a projected layer only those of c)."""
    reader = Reader(model)
    if not sources or not targets:
        raise SettingError("give units that weights go out from, and units that they go to")
    for unit in (*sources, *targets):
        reader.check(unit)
    layer = reader.stack.layers[0]
    gates = tuple(layer.cell.recurrent_matrices(layer.weights[0]))
    if not gates:
        raise SettingError(f"the gates of a {layer.cell.name} do not read the previous state")
    z = np.full((len(sources), len(targets), len(gates)), np.nan)
    for t, target in enumerate(targets):
        if target.state == "h" and reader.stack.layers[target.layer].projection is not None:
            raise SettingError(f"unit {target}: h of a projected layer has no gates; use a unit of c")
        for s, source in enumerate(sources):
            if source.layer == target.layer:
                weights = gate_weights(reader, target, source.state)  # (G, U)
                deviations = np.maximum(weights.std(axis=1), 1e-12)
                z[s, t] = (weights[:, source.number] - weights.mean(axis=1)) / deviations
    return Connections(list(sources), list(targets), gates, z)


@torch.no_grad()
def gate_weights(reader: Reader, target: Unit, state: str) -> np.ndarray:
    """Return the weights from all units of a state to the gates of a unit of the layer, one step later; (G, U)."""
    layer = reader.stack.layers[target.layer]
    matrices = layer.cell.recurrent_matrices(layer.weights[0])
    weights = torch.stack([matrix[target.number] for matrix in matrices.values()])  # (G, P)
    if state != "h" and layer.projection is not None:
        weights = weights @ layer.projection  # (G, H)
    return weights.double().cpu().numpy()
