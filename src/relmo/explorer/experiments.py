"""Experiments: counting, and minimal pairs with the units that matter for them."""

from collections.abc import Iterator
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np

from relmo.analysis.core.progress import split_progress
from relmo.analysis.memory import counting as counting_analysis
from relmo.analysis.memory.counting_training import CountingOptions
from relmo.analysis.syntax.agreement import agreement, group_by_condition, sample_pairs, sweep
from relmo.analysis.syntax.gate_traces import gate_traces
from relmo.errors import SettingError
from relmo.explorer.params import Body, format_unit, get_int, get_list, get_string, parse_unit
from relmo.settings.arguments import Progress
from relmo.settings.cells import CELLS
from relmo.text.minimal_pairs import MinimalPair

if TYPE_CHECKING:
    from relmo.explorer.work import Worker

MAX_CONDITIONS = 6  # whose gates are drawn
NUM_SWEPT_UNITS = 24  # units of a sweep that are sent
NOUNS = (("boy", "boys"), ("woman", "women"), ("farmer", "farmers"), ("lawyer", "lawyers"), ("girl", "girls"))
VERBS = (("knows", "know"), ("likes", "like"), ("sees", "see"), ("wants", "want"))
PLACES = (("near the car", "near the cars"), ("behind the table", "behind the tables"))
KEYS, CABINETS = ("key", "keys"), ("to the cabinet", "to the cabinets")
FORMS = (("is", "are"), ("was", "were"))


def count(worker: "Worker", body: Body, progress: Progress) -> dict[str, Any]:
    """Train small networks to count, and test them on longer words."""
    cells = get_list(body, "cells") or sorted(CELLS)
    options = CountingOptions(
        limit=get_int(body, "limit", 30, 5, 100),
        steps=get_int(body, "steps", 1500, 50, 10_000),
        seeds=get_int(body, "seeds", 1, 1, 5),
        hidden=get_int(body, "hidden", 10, 1, 64),
    )
    language, networks = get_string(body, "language") or "anbn", []
    for cell, report in zip(cells, split_progress(progress, [1.0] * len(cells)), strict=True):
        counting_analysis.check(cell, options)
        networks.append(counting_analysis.counting(language, cell, options, progress=report).as_dict())
    return {"networks": networks, "limit": options.limit, "tested": options.largest}


def agree(worker: "Worker", body: Body, progress: Progress) -> dict[str, Any]:
    """Return the accuracy on minimal pairs by condition; with `sweep`, its drop without each unit."""
    pairs, title = _get_pairs(worker, body)
    should_sweep = body.get("sweep") is True
    reading, sweeping = split_progress(progress, [0.2, 0.8 if should_sweep else 0.0])
    answer: dict[str, Any] = {"title": title, **agreement(worker.model, pairs, progress=reading).as_dict()}
    if should_sweep:
        per_condition = get_int(body, "per_condition", 20, 2, 500)
        report = sweep(worker.model, pairs, per_condition=per_condition, progress=sweeping)
        worst = np.argsort(-report.drops.max(axis=1), kind="stable")[:NUM_SWEPT_UNITS]
        answer["sweep"] = {
            "conditions": report.as_dict()["conditions"],
            "of": len(report.units),
            "units": [format_unit(report.units[u]) for u in worst],
            "drops": np.round(report.drops[worst], 1).tolist(),
        }
    return answer


def gates(worker: "Worker", body: Body, progress: Progress) -> dict[str, Any]:
    """Return the mean course of a unit's states and gates over the words before the compared forms, by condition."""
    pairs, title = _get_pairs(worker, body)
    unit, conditions = parse_unit(get_string(body, "unit")), get_list(body, "conditions")
    if unit.direction == "backward":
        raise SettingError("Pairs are read forwards; choose a forward unit.")
    pairs_by_condition = {name: [pairs[i] for i in indices] for name, indices in group_by_condition(pairs).items()}
    if unknown := [name for name in conditions if name not in pairs_by_condition]:
        raise SettingError(f"Unknown condition {unknown[0][:80]!r}.")
    names = (conditions or list(pairs_by_condition))[:MAX_CONDITIONS]
    rows: list[dict[str, Any]] = []
    for index, name in enumerate(names):
        rows += gate_traces(worker.model, pairs_by_condition[name], unit, per_condition=100).as_dict()["conditions"]
        progress((index + 1) / len(names))
    return {"unit": format_unit(unit), "title": title, "conditions": rows, "all": list(pairs_by_condition)}


def _get_pairs(worker: "Worker", body: Body) -> tuple[list[MinimalPair], str]:
    """Return the requested pairs and their title: the user's, a sample of a data set, or else `subject_verb_pairs`."""
    user_pairs = []
    for row in get_list(body, "pairs", list, max_length=2000):
        match row:
            case [str(condition), str(good), str(bad)] if good.strip() and bad.strip():
                user_pairs.append(MinimalPair(condition[:80] or "mine", good[:2000], bad[:2000]))
            case _:
                raise SettingError("A pair must be a list of a condition, a correct text and an incorrect text.")
    if user_pairs:
        return user_pairs, "your pairs"
    if not (name := get_string(body, "pack")):
        return list(subject_verb_pairs()), "subjects and verbs"
    packs = worker.session.extras.packs
    if name not in packs:
        raise SettingError(f"Unknown pairs {name[:80]!r}; start with relmo explore MODEL --data DIR.")
    max_pairs = get_int(body, "most", 100, 2, 100_000)
    return sample_pairs(packs[name].pairs(), max_pairs, 0), packs[name].title


def subject_verb_pairs() -> Iterator[MinimalPair]:
    """Yield pairs with singular (S) and plural (P) subjects, alone and with an attractor, after Lakretz et al. 2019."""
    for number, noun, verb in product((0, 1), NOUNS, VERBS):
        prefix = f"The {noun[number]}"
        yield MinimalPair(f"simple {'SP'[number]}", f"{prefix} {verb[number]}", f"{prefix} {verb[1 - number]}")
    phrases = [*product(NOUNS, VERBS, PLACES), *product((KEYS,), FORMS, (CABINETS,))]
    for number, attractor, (noun, verb, place) in product((0, 1), (0, 1), phrases):
        prefix, condition = f"The {noun[number]} {place[attractor]}", f"nounpp {'SP'[number]}{'SP'[attractor]}"
        yield MinimalPair(condition, f"{prefix} {verb[number]}", f"{prefix} {verb[1 - number]}")
