"""Experiments that the explorer runs: counting; minimal pairs, and what units do over them."""

from collections.abc import Iterator
from itertools import product
from typing import Any

import numpy as np

from relmo.analysis.core.progress import split_progress
from relmo.analysis.memory import counting as counting_analysis
from relmo.analysis.memory.counting_training import CountingOptions
from relmo.analysis.syntax.agreement import agreement, drawn_pairs, places_by_condition, sweep
from relmo.analysis.syntax.gate_traces import gate_traces
from relmo.errors import SettingError
from relmo.explorer.asked import unit_of
from relmo.explorer.given import Given, listed, number, plain_unit, string
from relmo.settings.arguments import Progress
from relmo.settings.cells import CELLS
from relmo.text.minimal_pairs import MinimalPair

CONDITIONS = 6  # whose gates are drawn
HEAVIEST = 24  # units of a sweep that are sent
NOUNS = (("boy", "boys"), ("woman", "women"), ("farmer", "farmers"), ("lawyer", "lawyers"), ("girl", "girls"))
VERBS = (("knows", "know"), ("likes", "like"), ("sees", "see"), ("wants", "want"))
PLACES = (("near the car", "near the cars"), ("behind the table", "behind the tables"))
KEYS, CABINETS = ("key", "keys"), ("to the cabinet", "to the cabinets")
FORMS = (("is", "are"), ("was", "were"))


def count(worker: Any, given: Given, progress: Progress) -> dict[str, Any]:
    """Small networks learn to count, and are tested far beyond what they have seen."""
    cells = listed(given, "cells") or sorted(CELLS)
    options = CountingOptions(
        limit=number(given, "limit", 30, 5, 100),
        steps=number(given, "steps", 1500, 50, 10_000),
        seeds=number(given, "seeds", 1, 1, 5),
        hidden=number(given, "hidden", 10, 1, 64),
    )
    found = []
    for cell, tell in zip(cells, split_progress(progress, [1.0] * len(cells)), strict=True):
        counting_analysis.check(cell, options)
        done = counting_analysis.counting(
            string(given, "language") or "anbn",
            cell,
            options,
            progress=tell,
        )
        found.append(done.as_dict())
    return {"networks": found, "limit": options.limit, "tested": options.largest}


def agree(worker: Any, given: Given, progress: Progress) -> dict[str, Any]:
    """How often the right one of two forms is preferred, by condition; with `sweep`, what each unit costs."""
    pairs, title = _pairs_of(worker, given)
    units = given.get("sweep") is True
    reading, sweeping = split_progress(progress, [0.2, 0.8 if units else 0.0])
    report = agreement(worker.model, pairs, progress=reading)
    answer: dict[str, Any] = {"title": title, **report.as_dict()}
    if units:
        per = number(given, "per_condition", 20, 2, 500)
        swept = sweep(worker.model, pairs, per_condition=per, progress=sweeping)
        worst = np.argsort(-swept.drops.max(axis=1), kind="stable")[:HEAVIEST]
        answer["sweep"] = {
            "conditions": swept.as_dict()["conditions"],
            "of": len(swept.units),
            "units": [plain_unit(swept.units[u]) for u in worst],
            "drops": np.round(swept.drops[worst], 1).tolist(),
        }
    return answer


def _pairs_of(worker: Any, given: Given) -> tuple[list[MinimalPair], str]:
    """The pairs that are asked about, and their title: the user's own, or drawn from a pack, or else subjects and
    verbs."""
    own = [_pair_of(each) for each in listed(given, "pairs", list, most=2000)]
    if own:
        return own, "yours"
    if not (name := string(given, "pack")):
        return list(subject_and_verb()), "subjects and verbs"
    packs = worker.session.extras.packs
    if name not in packs:
        raise SettingError(f"there are no pairs called {name[:80]!r}; start with relmo explore MODEL --data DIR")
    most = number(given, "most", 100, 2, 100_000)
    return drawn_pairs(packs[name].pairs(), most, 0), packs[name].title


def gates(worker: Any, given: Given, progress: Progress) -> dict[str, Any]:
    """What a unit's states and gates do over the words before the forms that are compared, by condition."""
    pairs, title = _pairs_of(worker, given)
    unit = unit_of({"unit": string(given, "unit")})
    if unit.direction == "backward":
        raise SettingError("pairs are read forwards; choose a unit that reads so")
    parts = {name: [pairs[place] for place in places] for name, places in places_by_condition(pairs).items()}
    if unknown := [name for name in listed(given, "conditions") if name not in parts]:
        raise SettingError(f"there is no condition {unknown[0][:80]!r} among these pairs")
    chosen = (listed(given, "conditions") or list(parts))[:CONDITIONS]
    found: list[dict[str, Any]] = []
    for place, name in enumerate(chosen):
        traced = gate_traces(worker.model, parts[name], unit, per_condition=100)
        found += traced.as_dict()["conditions"]
        progress((place + 1) / len(chosen))
    return {"unit": plain_unit(unit), "title": title, "conditions": found, "all": list(parts)}


def _pair_of(given: list[Any]) -> MinimalPair:
    """A pair from JSON: condition, the right text, the wrong one."""
    match given:
        case [str(condition), str(good), str(bad)] if good.strip() and bad.strip():
            return MinimalPair(condition[:80] or "mine", good[:2000], bad[:2000])
    raise SettingError("a pair is a list of a condition, a right text and a wrong one")


def subject_and_verb() -> Iterator[MinimalPair]:
    """Subjects and verbs in the singular (S) and plural (P), and with another noun between, in the manner of Lakretz et
    al. 2019."""
    for form, noun, verb in product((0, 1), NOUNS, VERBS):
        begin = f"The {noun[form]}"
        yield MinimalPair(f"simple {'SP'[form]}", f"{begin} {verb[form]}", f"{begin} {verb[1 - form]}")
    between = [*product(NOUNS, VERBS, PLACES), *product((KEYS,), FORMS, (CABINETS,))]
    for form, other, (noun, verb, place) in product((0, 1), (0, 1), between):
        begin = f"The {noun[form]} {place[other]}"
        yield MinimalPair(f"nounpp {'SP'[form]}{'SP'[other]}", f"{begin} {verb[form]}", f"{begin} {verb[1 - form]}")
