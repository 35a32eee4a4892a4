"""Weights from units to gates: what a state a step before changes in them."""

import json

import numpy as np
import pytest
import torch

from relmo.analysis.core.causal import Unit
from relmo.analysis.syntax.gate_traces import connections
from relmo.analysis.syntax.pair_scores import Reader
from relmo.errors import SettingError
from support.small_models import bilm, language_model


@pytest.mark.parametrize("cell", ["lstm", "gru"])
def test_weights_are_what_h_changes_in_the_arguments_of_gates(cell: str) -> None:
    model = language_model(cell, scale=0.5)
    reader = Reader(model)
    layer = reader.stack.layers[0]
    zero = torch.zeros(1, 1, 1, layer.cell.input_size)
    gates = ("i", "f", "o") if cell == "lstm" else ("r", "z")
    rows = {"i": 0, "f": 1, "o": 3, "r": 0, "z": 1}

    @torch.no_grad()
    def arguments(h: torch.Tensor) -> dict[str, torch.Tensor]:
        state = (h.view(1, 1, -1), torch.zeros(1, 1, 7))[: len(layer.cell.states)]
        run = reader.stack.run(zero, [state], keep=gates)
        return {name: torch.logit(run.quantities[0][name][0, 0, 0].double()) for name in gates}

    units = [Unit("h", 0, number) for number in range(7)]
    found = connections(model, units, units)
    before, changed = arguments(torch.zeros(7)), [arguments(0.5 * row) for row in torch.eye(7)]
    for name in gates:
        weights = np.stack([(after[name] - before[name]).numpy() for after in changed]) / 0.5  # (source, target)
        expected = (weights - weights.mean(axis=0)) / weights.std(axis=0)
        assert found.z[:, :, rows[name]] == pytest.approx(expected, abs=2e-3)


def test_a_projected_cell_reaches_gates_through_its_projection() -> None:
    model = bilm()
    layer = Reader(model).stack.layers[1]
    found = connections(model, [Unit("c", 1, 3), Unit("c", 0, 1)], [Unit("c", 1, 5)])
    forget = layer.cell.recurrent_matrices()["f"][5] @ layer.projection
    forget = forget.detach().numpy()
    assert found.gates[1] == "f"
    assert found.z[0, 0, 1] == pytest.approx((forget[3] - forget.mean()) / forget.std(), abs=1e-4)
    assert np.isnan(found.z[1]).all()  # of another layer
    assert len(json.loads(json.dumps(found.as_dict()))["connections"]) == 1
    assert "c1.3" in found._repr_html_()


def test_mistakes_are_said() -> None:
    with pytest.raises(SettingError, match="gates"):
        connections(bilm(), [Unit("c", 0, 1)], [Unit("h", 0, 1)])
    with pytest.raises(SettingError, match="units"):
        connections(bilm(), [], [Unit("c", 0, 1)])
