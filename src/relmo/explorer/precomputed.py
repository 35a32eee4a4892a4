"""Precomputed answers: results of long computations for the bundled models, which the views show at once.

    write_answers(folder / ANSWERS_FILE, precompute(session, worker))

They answer the requests that the views make with their default settings about the model's initial text, and hold the
pictures of the cards on Start. experiments/recipes/explorer_answers.py writes them to each model folder.
"""

import json
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from relmo.analysis.core.features import tracks
from relmo.analysis.core.progress import split_progress
from relmo.disk.files import parse_json, read_text_file
from relmo.disk.outputs import atomic
from relmo.errors import ModelError
from relmo.explorer.examples import EXAMPLES
from relmo.explorer.features import cut_window, find_busiest, suitable_features
from relmo.explorer.measurements import number_units
from relmo.explorer.params import parse_unit
from relmo.explorer.write import get_initial_prompt
from relmo.models.bilm import BiLM
from relmo.settings.arguments import Progress
from relmo.settings.cells import CELLS

if TYPE_CHECKING:
    from relmo.explorer.session import Session
    from relmo.explorer.work import Worker

ANSWERS_FILE = "answers.json"
MAX_BYTES = 1 << 22
CARD_SYMBOLS = 150
SAMPLE_SYMBOLS, TEMPERATURE = 165, 0.7
LARGE_MODEL = 1_000_000  # parameters from which the initial colours are precomputed
SENTENCES = (("The children play in the garden .", 2), ("The play was praised by the critics .", 1))


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


def read_answers(path: Path) -> dict[str, Any]:
    """Read the answers of a file; empty if there is no file."""
    if not path.is_file():
        return {}
    hint = "write it again: experiments/recipes/explorer_answers.py"
    try:
        answers = parse_json(read_text_file(path, MAX_BYTES))
    except ValueError as error:
        raise ModelError(f"{path}: {error}; {hint}") from None
    if not isinstance(answers, dict) or not all(isinstance(answer, dict) for answer in answers.values()):
        raise ModelError(f"{path}: has no answers by name; {hint}")
    return answers


def list_jobs(session: "Session") -> dict[str, tuple[str, dict[str, Any]]]:
    """Return the default requests of the views: kind of work and request body, by name."""
    text, unit = session.texts.initial, session.initial_unit
    is_bilm = isinstance(session.model, BiLM)
    features = suitable_features(session, text)
    jobs: dict[str, tuple[str, dict[str, Any]]] = {"memory": ("memory", {"lags": 60, "positions": 16})}
    if next(model.name for model in EXAMPLES if model.text == text) == session.name:  # others show the same
        if session.named or is_bilm:
            jobs["find"] = ("find", {"features": features, "ablate": "zero", "symbols": 2000 if is_bilm else 10_000})
        networks = []
        for cell in sorted(CELLS):
            parameter = "forget_bias" if "forget_bias" in CELLS[cell] else "spectral_radius"
            networks.append({"cell": cell, parameter: 1.0})
        jobs["fresh"] = ("memory", {"networks": networks, "lags": 60, "positions": 16, "jacobians": 4})
    if is_bilm:
        for name, (sentence, position) in zip(("meaning", "meaning_second"), SENTENCES, strict=True):
            jobs[name] = ("mean", {"sentence": sentence, "position": position})
        jobs["agree"] = ("agree", {})
        unit = next(iter(number_units(session.name)), unit)
        conditions = [f"nounpp {numbers}" for numbers in ("SS", "SP", "PS", "PP")]
        jobs["gates"] = ("gates", {"unit": unit, "conditions": conditions})
    else:
        jobs["past"] = ("past", {})
        jobs["compare"] = ("compare", {"other": session.default_comparison, "order": 6})
        feature = session.named[0].feature if session.named else features[0]
        jobs["emerge"] = ("emerge", {"feature": feature, "unit": unit if session.named else ""})
    return {name: (kind, {"model": session.name, "text": text, **body}) for name, (kind, body) in jobs.items()}


def precompute(session: "Session", worker: "Worker", progress: Progress | None = None) -> dict[str, Any]:
    """Compute all answers of a model, by name."""
    jobs, answers = list_jobs(session), dict[str, Any]()
    for (name, (kind, body)), report in zip(jobs.items(), split_progress(progress, [1.0] * len(jobs)), strict=True):
        answers[name] = worker.run(kind, body, report)
    if session.model.parameter_count() > LARGE_MODEL:
        params = {"text": session.texts.initial, "page": "0", "unit": session.initial_unit}
        answers["opening"] = {"unit": session.initial_unit, **session.answer("values", params)}
    if session.name == "prose":
        answers["writing"] = write_sample(session)
    answers["cards"] = {cell.unit: _make_picture(session, cell.unit, cell.feature) for cell in session.named}
    return answers


def write_sample(session: "Session") -> dict[str, Any]:
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


def _make_picture(session: "Session", unit: str, feature: str) -> dict[str, Any]:
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
