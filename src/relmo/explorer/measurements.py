"""Bundled measurements: agreement with and without single units, and the layer weights that tasks have learned."""

import json
from functools import cache
from typing import TYPE_CHECKING, Any

from relmo.analysis.syntax.gate_traces import gate_traces
from relmo.errors import SettingError
from relmo.explorer.examples import DATA
from relmo.explorer.params import Answer, Params, format_unit, parse_unit
from relmo.models.bilm import BiLM
from relmo.text.noun_phrases import noun_pp

if TYPE_CHECKING:
    from relmo.explorer.session import Session

NUM_PAIRS = 12  # sentences per condition; more change the curves little


def conditions(session: "Session", params: Params) -> Answer:
    """Return the mean course of a unit over "The boys near the car", by the grammatical number of both nouns.

    If the unit was measured, the answer has the accuracy of the verb form with and without it.
    """
    unit, model = parse_unit(params.get("unit", "")), session.model
    if not isinstance(model, BiLM) and model.settings.text.unit == "char":
        raise SettingError("The sentences consist of words; this model reads characters.")
    if unit.direction == "backward":
        raise SettingError("The sentences are read forwards; choose a forward unit.")
    vocabulary = None if model.vocabulary is None else model.vocabulary.index
    traced = gate_traces(model, noun_pp(per_condition=NUM_PAIRS, known=vocabulary), unit).as_dict()
    rows = []
    for row in traced["conditions"]:
        means, errors = (
            {state: [round(value, 4) for value in values] for state, values in row[statistic].items()}
            for statistic in ("means", "errors")
        )
        rows.append({"condition": row["condition"], "words": row["words"], "means": means, "errors": errors})
    address = format_unit(unit)
    accuracy = get_agreement(session.name, address)
    return {"unit": address, "pairs": NUM_PAIRS, "conditions": rows, "right": accuracy}


@cache
def _load_agreement() -> dict[str, Any]:
    return json.loads((DATA / "agreement.json").read_text(encoding="utf-8"))


def get_agreement(model: str, unit: str) -> Answer | None:
    """Return the accuracies measured by experiments/recipes/agreement_figures.py; None for other units."""
    measured = _load_agreement()
    if model != measured["model"] or unit not in measured["without"]:
        return None
    return {"pairs": measured["pairs"], "all": measured["all"], "without": measured["without"][unit]}


def number_units(model: str) -> list[str]:
    """Return the units of a model that were measured."""
    return list(_load_agreement()["without"]) if model == _load_agreement()["model"] else []


@cache
def load_task_mixes() -> list[dict[str, Any]]:
    """Load the layer weights of the tasks in docs/results.md, averaged over seeds."""
    return json.loads((DATA / "task_mixes.json").read_text(encoding="utf-8"))["tasks"]
