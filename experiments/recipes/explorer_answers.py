"""Precompute the explorer's answers for the bundled models: answers.json in each model folder, counting.json, and the
cards of the start page, cards.json.

    python -m experiments.recipes.explorer_answers [MODEL …]     by default all models; minutes on one CPU core

Name the cells first, since the answers are about them (experiments/recipes/example_models.sh does both):

    relmo analyse cells MODEL TEXT --ablate zero --name-cells
"""

import json
import sys
import time
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np

from experiments.recipes.explorer_cards import make_cards
from relmo.analysis.core.features import tracks
from relmo.disk.outputs import atomic
from relmo.explorer.align import AlignSession, is_seq2seq
from relmo.explorer.examples import (
    ANSWERS_FILE,
    CARDS,
    COUNTING,
    find_example,
    get_agreement,
    installed_examples,
    list_examples,
)
from relmo.explorer.params import parse_unit
from relmo.explorer.session import Session, cut_window, find_busiest
from relmo.explorer.work import Worker
from relmo.explorer.write import get_initial_prompt
from relmo.models.bilm import BiLM
from relmo.registry import BASIC_CELLS, cell_entry

CARD_SYMBOLS = 150
SAMPLE_SYMBOLS, TEMPERATURE = 165, 0.7
LARGE_MODEL = 1_000_000  # parameters from which the initial colours are precomputed
SENTENCES = (("The children play in the garden .", 2), ("The play was praised by the critics .", 1))


def main(names: list[str]) -> None:
    """Write the answers of these models."""
    for name in names:
        start_time, model = time.monotonic(), find_example(name)
        assert model is not None, f"{name} is not bundled"
        (model.folder / ANSWERS_FILE).unlink(missing_ok=True)
        if is_seq2seq(name):
            session = AlignSession.open(name, device="cpu")
            answers = {"align": session.align({"source": session.initial_source})}
        else:
            worker = Worker(Session.open(name, device="cpu"), lambda other: Session.open(other, device="cpu"))
            answers = precompute(worker.session, worker)
            if not COUNTING.exists():
                write_answers(COUNTING, {"count": worker.run("count", {}, lambda share: None)})
            worker.close()
        write_answers(model.folder / ANSWERS_FILE, answers)
        size = (model.folder / ANSWERS_FILE).stat().st_size
        print(f"{name}: {', '.join(answers)}; {size:,} bytes, {time.monotonic() - start_time:.0f} s", flush=True)
    CARDS.write_text(json.dumps(make_cards(), ensure_ascii=False, separators=(",", ":")) + "\n", encoding="utf-8")


def write_answers(path: Path, answers: dict[str, Any]) -> None:
    """Write answers to a file atomically; numbers are rounded to five digits, more than a page shows."""
    text = json.dumps(_round_numbers(answers), ensure_ascii=False, separators=(",", ":")) + "\n"
    with atomic(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def _round_numbers(node: Any) -> Any:
    if isinstance(node, dict):
        return {name: _round_numbers(child) for name, child in node.items()}
    if isinstance(node, list | tuple):
        return [_round_numbers(child) for child in node]
    return float(f"{node:.5g}") if isinstance(node, float) else node


def list_jobs(session: Session) -> dict[str, tuple[str, dict[str, Any]]]:
    """Return the default requests of the views: kind of work and request body, by name."""
    text, unit = session.texts.initial, session.initial_unit
    is_bilm = isinstance(session.model, BiLM)
    features = session.suitable_features(text)
    jobs: dict[str, tuple[str, dict[str, Any]]] = {"memory": ("memory", {"lags": 60, "positions": 16})}
    if next(model.name for model in installed_examples() if model.text == text) == session.name:  # others show the same
        if session.named or is_bilm:
            jobs["find"] = ("find", {"features": features, "ablate": "zero", "symbols": 2000 if is_bilm else 10_000})
        networks = []
        for cell in BASIC_CELLS:
            parameter = "forget_bias" if "forget_bias" in cell_entry(cell).options else "spectral_radius"
            networks.append({"cell": cell, parameter: 1.0})
        jobs["fresh"] = ("memory", {"networks": networks, "lags": 60, "positions": 16, "jacobians": 4})
    if is_bilm:
        for name, (sentence, position) in zip(("meaning", "meaning_second"), SENTENCES, strict=True):
            jobs[name] = ("mean", {"sentence": sentence, "position": position})
        jobs["agree"] = ("agree", {})
        unit = next(iter(get_agreement(session.name)), unit)
        conditions = [f"nounpp {numbers}" for numbers in ("SS", "SP", "PS", "PP")]
        jobs["gates"] = ("gates", {"unit": unit, "conditions": conditions})
    else:
        jobs["past"] = ("past", {})
        jobs["compare"] = ("compare", {"other": session.answer("about", {})["compared"], "order": 6})
        feature = session.named[0].feature if session.named else features[0]
        jobs["emerge"] = ("emerge", {"feature": feature, "unit": unit if session.named else ""})
    return {name: (kind, {"model": session.name, "text": text, **body}) for name, (kind, body) in jobs.items()}


def precompute(session: Session, worker: Worker) -> dict[str, Any]:
    """Compute all answers of a model, by name."""
    jobs = list_jobs(session)
    answers = {name: worker.run(kind, body, lambda share: None) for name, (kind, body) in jobs.items()}
    if session.model.parameter_count() > LARGE_MODEL:
        params = {"text": session.texts.initial, "page": "0", "unit": session.initial_unit}
        answers["opening"] = {"unit": session.initial_unit, **session.answer("values", params)}
    if session.name == "prose":
        answers["writing"] = write_sample(session)
    answers["cards"] = {cell.unit: _make_picture(session, cell.unit, cell.feature) for cell in session.named}
    return answers


def write_sample(session: Session) -> dict[str, Any]:
    """Write a text as the view Write does, with the smallest seed that gives no heading or blank line.

    Returns the state of that view (prompt, temperature, seed, taken) and the text, which ends with a whole word.
    """
    prompt = get_initial_prompt(session)
    for seed in count():
        params = {"prompt": prompt, "temperature": str(TEMPERATURE), "seed": str(seed)}
        ids: list[int] = []
        pieces: list[str] = []
        while len(ids) <= SAMPLE_SYMBOLS and "\n\n" not in "".join(pieces):
            answer = session.answer("next", params | {"taken": ",".join(map(str, ids))})
            pieces = answer["pieces"]
            if answer["ended"]:
                break
            ids.append(answer["drawn"])
        text = "".join(pieces)
        if len(pieces) == SAMPLE_SYMBOLS and "\n\n" not in text and "CHAPTER" not in text:
            size = max(text.rfind(space) for space in " \n")
            taken = ",".join(map(str, ids[:size]))
            state = {"prompt": prompt, "temperature": TEMPERATURE, "seed": seed, "taken": taken}
            return state | {"text": prompt + text[:size]}
    raise AssertionError


def _make_picture(session: Session, unit: str, feature: str) -> dict[str, Any]:
    """Return the window of the text in which a feature changes most, with a unit's values and the truth."""
    reader = session.reader(session.texts.initial)
    symbols, track = reader.document.symbols, tracks(reader.document, [feature])[feature]
    busiest = begin = find_busiest(track, CARD_SYMBOLS)
    for position in range(busiest, max(0, busiest - 80), -1):  # start at the beginning of the line if it is near
        if symbols[position - 1] == "\n":
            begin = position
            break
    values = reader.text_values(parse_unit(unit))
    values = values.astype(float) - values.mean(dtype=np.float64)
    return cut_window(reader.document, values, track, begin, CARD_SYMBOLS) | {
        "page": int(np.searchsorted(reader.bounds, begin, side="right")) - 1,
        "scale": round(float(np.quantile(np.abs(values), 0.97)), 4) or 1.0,
    }


if __name__ == "__main__":
    main(sys.argv[1:] or list_examples())
