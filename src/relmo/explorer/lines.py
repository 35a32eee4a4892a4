"""What units do over time, for the lines of the page: of sentences of four kinds, with what breaks without the unit."""

import json
from functools import cache
from typing import TYPE_CHECKING, Any

from relmo.analysis.syntax.gate_traces import gate_traces
from relmo.errors import SettingError
from relmo.explorer.asked import Answer, Asked, unit_of
from relmo.explorer.examples import DATA
from relmo.explorer.given import plain_unit
from relmo.models.bilm import BiLM
from relmo.text.noun_phrases import noun_pp

if TYPE_CHECKING:
    from relmo.explorer.session import Session

PAIRS = 12  # sentences of a condition; more change the lines by little


def conditions(session: "Session", asked: Asked) -> Answer:
    """A unit's states and gates after each word of "The boys near the car", by the numbers of both nouns: the mean of
    some sentences of each kind. Where it was measured, how often the verb's right form is preferred, with and without
    the unit."""
    unit, model = unit_of(asked), session.model
    if not isinstance(model, BiLM) and model.settings.text.unit == "char":
        raise SettingError("the sentences are of words; this model reads characters")
    if unit.direction == "backward":
        raise SettingError("the sentences are read forwards; choose a unit that reads so")
    known = None if model.vocabulary is None else model.vocabulary.index
    pairs = noun_pp(per_condition=PAIRS, known=known)
    found = gate_traces(model, pairs, unit).as_dict()
    rows = [
        {
            "condition": row["condition"],
            "words": row["words"],
            "means": {name: [round(value, 4) for value in values] for name, values in row["means"].items()},
            "errors": {name: [round(value, 4) for value in values] for name, values in row["errors"].items()},
        }
        for row in found["conditions"]
    ]
    return {
        "unit": plain_unit(unit),
        "pairs": PAIRS,
        "conditions": rows,
        "right": measured(session.name, plain_unit(unit)),
    }


@cache
def _figures() -> dict[str, Any]:
    return json.loads((DATA / "agreement.json").read_text(encoding="utf-8"))


def measured(model: str, unit: str) -> Answer | None:
    """Shares of right forms that recipes/agreement_figures.py measured, where it measured this unit."""
    found = _figures()
    if model != found["model"] or unit not in found["without"]:
        return None
    return {"pairs": found["pairs"], "all": found["all"], "without": found["without"][unit]}


def number_units(model: str) -> list[str]:
    """The units of a model that were measured."""
    return list(_figures()["without"]) if model == _figures()["model"] else []


@cache
def shipped_mixes() -> list[dict[str, Any]]:
    """How tasks mixed the layers of biLMs: the means over the seeds of the trainings that docs/results.md reports."""
    return json.loads((DATA / "task_mixes.json").read_text(encoding="utf-8"))["tasks"]


def layers(session: "Session", asked: Asked) -> Answer:
    """The shares of the layers in tasks: those that ship, and those of tasks that were given."""
    return {"shipped": shipped_mixes(), "given": session.extras.mixes()}
