"""What an exported page keeps of Equations, Write, Trace and Layers: the first steps of the text, what is written after
the first prompt, and the models that stand beside."""

from collections.abc import Iterator
from typing import Any

from relmo.explorer.session import Session
from relmo.models.bilm import BiLM

STEPS = 24  # symbols whose steps are kept
FEW = 4  # units of which all are kept
WRITTEN = 16  # symbols that can be drawn one after the other
DRAWN = {"temperature": "1", "top_k": "0", "top_p": "0", "seed": "0"}
BEAM = {"beams": "3", "deep": "8"}

Asks = Iterator[tuple[str, dict[str, Any]]]


def screen_asks(session: Session) -> Asks:
    """What the page asks of the model itself, the most wanted first."""
    text, opened = session.first, session.opened
    yield from _steps(session, text, opened)
    if isinstance(session.model, BiLM):
        yield "layers", {}
        for unit in session.about({})["number_units"]:
            yield "conditions", {"unit": unit}
        return
    prompt, taken = session.about({})["prompt"], list[str]()
    yield "beam", {"prompt": prompt, "taken": "", **BEAM}
    for _ in range(WRITTEN):
        asked = {"prompt": prompt, "taken": ",".join(taken), **DRAWN}
        yield "next", asked
        drawn = session.answer("next", asked)["drawn"]
        if drawn is None:
            return
        taken.append(str(drawn))


def beside_asks(session: Session, text: str) -> Asks:
    """What the page asks of a model that stands beside, about the same text."""
    yield "about", {}
    yield from _steps(session, text, session.opened)
    about = session.about({})
    yield "units", {"text": text, "page": 0, "state": about["memory"], "layer": 0}


def _steps(session: Session, text: str, opened: str) -> Asks:
    reader = session.reader(text)
    name, _, _ = opened.rpartition(".")
    count = reader.states[opened[0]] // reader.recorder.stack.directions
    units = [f"{name}.{number}" for number in range(count)] if count <= FEW else [opened]
    for at in range(min(STEPS, len(reader.document))):
        for unit in units:
            yield "step", {"text": text, "at": at, "unit": unit}
