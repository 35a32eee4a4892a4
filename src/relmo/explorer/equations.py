"""One step of a cell with its numbers."""

from typing import TYPE_CHECKING

import numpy as np
import torch

from relmo.analysis.core.causal import Unit
from relmo.analysis.core.one_step import OneStep, trace_symbol_step, trace_word_step
from relmo.explorer.params import Answer, Params, get_position, get_text_name, parse_unit, round_values
from relmo.explorer.reader import PagedReader, most_probable
from relmo.models.bilm import BiLM

if TYPE_CHECKING:
    from relmo.explorer.session import Session

NUM_NEIGHBOURS = 9  # symbols on each side of the current one


def step(session: "Session", params: Params) -> Answer:
    """Return the step that reads a symbol: every quantity, and one unit's equations in numbers."""
    reader = session.reader(get_text_name(params))
    unit = reader.check_unit(parse_unit(params.get("unit", "")))
    position = get_position(params, len(reader.document))
    is_bilm = isinstance(session.model, BiLM)
    traced = _trace_bilm_step(reader, position, unit) if is_bilm else _trace_lm_step(reader, position, unit.layer)
    names, equations = traced.names(), traced.cell.equations()
    quantities = []
    for name in dict.fromkeys([*(name for name in equations if name in traced.after), *traced.after]):
        expression, values = traced.work_out(name, names), traced.after[name]
        lines = [] if expression is None or unit.number >= len(values) else expression.lines(unit.number)
        quantities.append(
            {
                "name": name,
                "word": traced.cell.words[name],
                "equation": equations.get(name, ""),
                "state": name in traced.cell.states,
                "lines": lines,
                "values": round_values(values),
            }
        )
    begin = max(0, position - NUM_NEIGHBOURS)
    likely = []
    if traced.log_probs is not None:
        likely = most_probable(traced.log_probs[None], session.model.vocabulary.symbols)[0]  # type: ignore[union-attr]
    return {
        "at": position,
        "total": len(reader.document),
        "first": begin,
        "symbols": reader.document.symbols[begin : position + NUM_NEIGHBOURS + 1],
        "cell": traced.cell.describe(),
        "x": round_values(traced.x),
        "before": {name: round_values(values) for name, values in traced.before.items()},
        "quantities": quantities,
        "likely": [[symbol, round(p, 3)] for symbol, p in likely],
    }


def _trace_lm_step(reader: PagedReader, position: int, layer: int) -> OneStep:
    """Trace the step from the state that the page's trace has after the previous symbol."""
    page = int(np.searchsorted(reader.bounds, position, side="right")) - 1
    traced, begin, stack = reader.page(page), reader.bounds[page], reader.recorder.stack
    states = reader.page_states[page]
    if position > begin:
        states = []
        for depth, stack_layer in enumerate(stack.layers):
            arrays = [traced.states[name][depth, position - begin - 1] for name in stack_layer.states]
            states.append(tuple(torch.from_numpy(array).to(stack.like).view(1, 1, -1) for array in arrays))
    symbol = reader.document.symbols[position]
    return trace_symbol_step(reader.model, reader.recorder, states, symbol, layer=layer)  # type: ignore[arg-type]


def _trace_bilm_step(reader: PagedReader, position: int, unit: Unit) -> OneStep:
    model, starts = reader.model, reader.document.starts
    assert isinstance(model, BiLM)
    begin = int(starts[starts <= position][-1])
    end = next(iter(starts[starts > position].tolist()), len(reader.document))
    words = reader.document.symbols[begin:end]
    options = {"layer": unit.layer, "backward": unit.direction == "backward", "cut": model.embedder.cut_words()}
    return trace_word_step(model, reader.recorder, words, position - begin, **options)  # type: ignore[arg-type]
