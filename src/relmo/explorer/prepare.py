"""Makes ahead the answers that take long, for the models that ship; `ready.py` keeps them.

    write_ready(folder / READY, make_ready(session, worker))

They are what the screens ask for when nothing has been changed, about the text that the model opens with. Beside them
stand the pictures of the cards on Start: a stretch of text under each named cell.
"""

from itertools import count
from typing import Any

import numpy as np

from relmo.analysis.core.features import Document, tracks
from relmo.analysis.core.progress import split_progress
from relmo.explorer.align import AlignSession
from relmo.explorer.beside import busiest
from relmo.explorer.examples import EXAMPLES
from relmo.explorer.lines import number_units
from relmo.explorer.session import Session, unit_of
from relmo.explorer.truth import usual_features
from relmo.explorer.work import Worker
from relmo.explorer.write import first_prompt
from relmo.models.bilm import BiLM
from relmo.settings.arguments import Progress
from relmo.settings.cells import CELLS

CARD = 150  # symbols of a card's picture
WRITTEN, TEMPERATURE = 165, 0.7  # symbols of the text that a model has written, and how they are drawn
LARGE = 1_000_000  # weights of a model that takes long for the first colours of a page
SENTENCE, POSITION = "The children play in the garden .", 2
SECOND, SECOND_POSITION = "The play was praised by the critics .", 1
FRESH = {"lags": 60, "positions": 16, "jacobians": 4}


def asked_at_first(session: Session) -> dict[str, tuple[str, dict[str, Any]]]:
    """What screens ask for when nothing has been changed: by name, the kind of work and what it is given."""
    text, unit = session.first, session.opened
    both_ways = isinstance(session.model, BiLM)
    features = usual_features(session, text)
    find = {"features": features, "ablate": "zero", "symbols": 2000 if both_ways else 10_000}
    networks = [{"cell": cell, **fresh_choice(cell)} for cell in sorted(CELLS)]
    leads = next(each.name for each in EXAMPLES if each.text == text) == session.name
    found: dict[str, tuple[str, dict[str, Any]]] = {
        "memory": ("memory", {"lags": 60, "positions": 16}),
    }
    if leads and (session.named or both_ways):  # of the others it is made when the screen opens
        found["find"] = ("find", find)
    if leads:
        found["fresh"] = ("memory", {"networks": networks, **FRESH})  # the others show the same
    if both_ways:
        found["meaning"] = ("mean", {"sentence": SENTENCE, "position": POSITION})
        found["meaning_second"] = ("mean", {"sentence": SECOND, "position": SECOND_POSITION})
        found["agree"] = ("agree", {})
        unit = next(iter(number_units(session.name)), unit)
        found["gates"] = ("gates", {"unit": unit, "conditions": [f"nounpp {way}" for way in ("SS", "SP", "PS", "PP")]})
    else:
        found["past"] = ("past", {})
        found["compare"] = ("compare", {"other": session.compared, "order": 6})
        feature = session.named[0].feature if session.named else features[0]
        found["emerge"] = ("emerge", {"feature": feature, "unit": session.opened if session.named else ""})
    return {name: (what, {"model": session.name, "text": text, **given}) for name, (what, given) in found.items()}


def make_aligned(session: AlignSession) -> dict[str, Any]:
    """What a model that translates opens with."""
    return {"align": session.align({"source": session.first})}


def fresh_choice(cell: str) -> dict[str, float]:
    """What is turned of a fresh network of this cell, at first."""
    return {"forget_bias": 1.0} if "forget_bias" in CELLS[cell] else {"spectral_radius": 1.0}


def make_ready(session: Session, worker: Worker, progress: Progress | None = None) -> dict[str, Any]:
    """All answers of a model, by name."""
    asked = asked_at_first(session)
    found: dict[str, Any] = {}
    for (name, (what, given)), tell in zip(asked.items(), split_progress(progress, [1.0] * len(asked)), strict=True):
        found[name] = worker.do(what, given, tell)
    if session.model.parameter_count() > LARGE:
        opening = session.values({"text": session.first, "page": "0", "unit": session.opened})
        found["opening"] = {"unit": session.opened, **opening}
    if session.name == "prose":
        found["writing"] = write_prose(session)
    found["cards"] = {cell.unit: card_of(session, cell.unit, cell.feature) for cell in session.named}
    return found


def write_prose(session: Session) -> dict[str, Any]:
    """Write a text as the screen Write does, with the first seed that gives no heading or blank line.

    Returns the state of that screen (prompt, temperature, seed, taken) and the text, which ends with a whole word.
    """
    prompt = first_prompt(session)
    for seed in count():
        params = {"prompt": prompt, "temperature": str(TEMPERATURE), "seed": str(seed)}
        ids: list[int] = []
        pieces: list[str] = []
        while len(ids) <= WRITTEN and "\n\n" not in "".join(pieces):
            answer = session.answer("next", params | {"taken": ",".join(map(str, ids))})
            pieces = answer["pieces"]
            if answer["ended"]:
                break
            ids.append(answer["drawn"])
        text = "".join(pieces)
        if len(pieces) == WRITTEN and "\n\n" not in text and "CHAPTER" not in text:
            size = max(text.rfind(space) for space in " \n")
            taken = ",".join(map(str, ids[:size]))
            return {
                "prompt": prompt,
                "temperature": TEMPERATURE,
                "seed": seed,
                "taken": taken,
                "text": prompt + text[:size],
            }
    raise AssertionError


def card_of(session: Session, unit: str, feature: str) -> dict[str, Any]:
    """A stretch of the session's text in which a feature changes much, with a unit's values and the truth."""
    reader = session.reader(session.first)
    document = reader.document
    track = tracks(document, [feature])[feature]
    begin = _line_start(document, busiest(track, CARD))
    values = reader.whole(unit_of({"unit": unit}))
    middle = values.mean(dtype=np.float64)
    piece = slice(begin, begin + CARD)
    return {
        "page": int(np.searchsorted(reader.bounds, begin, side="right")) - 1,
        "first": begin,
        "symbols": document.symbols[piece],
        "values": np.round(values[piece].astype(float) - middle, 3).tolist(),
        "scale": round(float(np.quantile(np.abs(values - middle), 0.97)), 4) or 1.0,
        "truth": np.round((track[piece] - track.min()) / (np.ptp(track) or 1.0), 3).tolist(),
    }


def _line_start(document: Document, begin: int) -> int:
    """The beginning of the line a place is in, where it is not far."""
    for place in range(begin, max(0, begin - 80), -1):
        if document.symbols[place - 1] == "\n":
            return place
    return begin
