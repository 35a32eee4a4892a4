"""One step of a cell with its numbers, as the page shows it."""

from typing import TYPE_CHECKING

import numpy as np
import torch

from relmo.analysis.core.causal import Unit
from relmo.analysis.core.one_step import OneStep, of_symbol, of_word
from relmo.analysis.core.stack import LayerState
from relmo.errors import SettingError
from relmo.explorer.asked import Answer, Asked, rounded, text_of, unit_of, whole_number
from relmo.explorer.reader import PagedReader, likeliest
from relmo.models.bilm import BiLM

if TYPE_CHECKING:
    from relmo.explorer.session import Session

SHOWN = 9  # symbols on each side of the one that is read
DIGITS = 4


def step(session: "Session", asked: Asked) -> Answer:
    """The step in which a symbol is read: x, the state before, every quantity after with its equation; and, for one
    unit, each equation with its numbers."""
    reader, at = session.reader(text_of(asked)), whole_number(asked, "at")
    unit = reader.checked(unit_of(asked))
    if not 0 <= at < len(reader.document):
        raise SettingError(f"position {at}: the text has the symbols 0 to {len(reader.document) - 1}")
    found = _bilm_step(reader, at, unit) if isinstance(session.model, BiLM) else _lm_step(reader, at, unit.layer)
    names, equations = found.names(), found.cell.equations()
    quantities = []
    for name in dict.fromkeys([*(name for name in equations if name in found.after), *found.after]):
        written = found.written(name, names)
        values = found.after[name]
        lines = [] if written is None or unit.number >= len(values) else written.lines(unit.number)
        quantities.append(
            {
                "name": name,
                "word": found.cell.words[name],
                "equation": equations.get(name, ""),
                "state": name in found.cell.states,
                "lines": lines,
                "values": rounded(values, DIGITS),
            }
        )
    first = max(0, at - SHOWN)
    likely = [] if found.likely is None else likeliest(found.likely[None], session.model.vocabulary.symbols)[0]  # type: ignore[union-attr]
    return {
        "at": at,
        "total": len(reader.document),
        "first": first,
        "symbols": reader.document.symbols[first : at + SHOWN + 1],
        "cell": found.cell.describe(),
        "x": rounded(found.x, DIGITS),
        "before": {name: rounded(value, DIGITS) for name, value in found.before.items()},
        "quantities": quantities,
        "likely": [[symbol, round(p, 3)] for symbol, p in likely],
    }


def _lm_step(reader: PagedReader, at: int, layer: int) -> OneStep:
    """Of a language model, from the state that its page has after the symbol before."""
    number = int(np.searchsorted(reader.bounds, at, side="right")) - 1
    trace, first = reader.page(number), reader.bounds[number]
    states: list[LayerState] = reader.places[number]
    if at > first:
        like = reader.recorder.stack.like
        states = [
            tuple(
                torch.from_numpy(trace.states[name][depth, at - first - 1]).to(like).view(1, 1, -1)
                for name in each.states
            )
            for depth, each in enumerate(reader.recorder.stack.layers)
        ]
    return of_symbol(reader.model, reader.recorder, states, reader.document.symbols[at], layer=layer)  # type: ignore[arg-type]


def _bilm_step(reader: PagedReader, at: int, unit: Unit) -> OneStep:
    """Of a bidirectional model, in its sentence."""
    starts = reader.document.starts
    begin = int(starts[starts <= at][-1])
    after = starts[starts > at]
    words = reader.document.symbols[begin : int(after[0]) if len(after) else len(reader.document)]
    model = reader.model
    assert isinstance(model, BiLM)
    backward = unit.direction == "backward"
    return of_word(
        model,
        reader.recorder,
        words,
        at - begin,
        layer=unit.layer,
        backward=backward,
        cut=model.embedder.cut_words(),
    )
