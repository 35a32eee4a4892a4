"""Endpoints of a session: functions that answer requests about a model and a text with plain data."""

import base64
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
import torch

from relmo.analysis.core.causal import Unit, describe_feature
from relmo.analysis.core.features import FEATURES, tracks
from relmo.analysis.core.one_step import trace_symbol_step, trace_word_step
from relmo.analysis.core.stack import Stack
from relmo.analysis.memory.connectivity import connectivity
from relmo.analysis.syntax.gate_traces import gate_traces
from relmo.errors import RelmoError, SettingError
from relmo.explorer import write
from relmo.explorer.examples import COUNTING, get_agreement, list_models, load_cards, load_task_mixes, read_answers
from relmo.explorer.params import Answer, Query, colour_scale, format_unit, parse_unit, round_values
from relmo.explorer.reader import most_probable
from relmo.explorer.session import MAX_CHARACTERS, Session, answer_key
from relmo.models.sequence_model import SequenceModel
from relmo.nn.recurrence.base import StackedCell
from relmo.nn.softmax import FullSoftmax
from relmo.registry import BASIC_CELLS, cell_class, cell_entry, cell_names
from relmo.text.minimal_pairs import noun_pp

NUM_BINS = 1000  # of the map of the text
MAX_UNITS = 200  # per request
MAX_GRADIENT_LAG = 400  # symbols before a prediction
NUM_CONTEXTS = 20
CHARACTERS_BEFORE, CHARACTERS_AFTER = 60, 30  # of a context
MIN_DISTANCE = 20  # symbols between two contexts
LAGS = (-20, 40)  # around an event
MAX_EVENTS = 5000  # in an average
NUM_WEIGHTS = 10
NUM_NEIGHBOURS = 9  # symbols on each side of the current one
NUM_PAIRS = 12  # sentences per condition; more change the curves little


def about(session: Session, query: Query) -> Answer:
    """Describe the model, the texts and the features; with `opening`, include the answers of the initial view."""
    answer = {
        "name": session.name,
        "parameters": session.model.parameter_count(),
        "texts": [
            {"name": p.name, "title": p.title, "length": len(p.text), "tagged": p.name in session.texts.annotations}
            for p in session.texts.passages.values()
        ],
        "first": session.texts.initial,
        "examples": [{"name": m.name, "about": m.about, "text": m.text} for m in list_models()],
        "alike": [],
        "number_units": [],
        **session.extras.about(session.kind),
        "answers": {},
    }
    if not session.model.is_recurrent:
        settings = session.model.settings
        window = {"kind": "window", "cell": settings.model.cell, "window": settings.model.order - 1}
        return answer | window | {"unit": settings.text.unit, "prompt": write.get_initial_prompt(session)}
    text, unit, peers = session.texts.initial, session.initial_unit, session.peers()
    reader, trained = session.reader(text), [peer["model"] for peer in peers if "model" in peer]
    stack, cell = reader.recorder.stack, reader.recorder.stack.layers[0].cell
    if "opening" in query:
        page = {"text": text, "page": "0"}
        for endpoint, request in (("page", page), ("values", page | {"unit": unit})):
            answer["answers"][answer_key(session.name, endpoint, request)] = session.answer(endpoint, request)
    varied: dict[str, str | None] = {}  # the parameter of each untrained cell that the page varies
    for name in sorted({*BASIC_CELLS, cell.name} & {*cell_names()}):
        fallback = "spectral_radius" if issubclass(cell_class(name), StackedCell) else None
        varied[name] = "forget_bias" if "forget_bias" in cell_entry(name).options else fallback
    last = cell.sizes[cell.unit_states[-1]] - 1
    separate = [name for name in reader.states if cell.corresponding_unit(cell.unit_states[-1], last, name) is None]
    return answer | {
        "kind": session.kind,
        "cell": cell.name,
        "cells": varied,
        "unit": session.model.unit,
        "layers": len(stack.layers),
        "directions": stack.directions,
        "states": reader.states,
        "words": cell.words,
        "carried": list(cell.unit_states),
        "memory": cell.unit_states[-1],
        "gates": {name: [cell.specs[name].low, cell.specs[name].high] for name in cell.gate_names},
        "separate": separate,
        "opened": unit,
        "mode": "centred" if session.named else "value",
        "named": [
            asdict(named)
            | {
                "words": describe_feature(named.feature),
                "event": get_event(session, named.unit),
                "prompt": write.get_initial_prompt(session, named.feature),
                "strength": named.strength,
            }
            for named in session.named
        ],
        "shipped": text == session.precomputed_text,
        "usual": session.suitable_features(text),
        "features": [
            {"name": name, "about": " ".join((function.__doc__ or "").split()), "words": describe_feature(name)}
            for name, function in FEATURES.items()
        ],
        "limit": {"characters": MAX_CHARACTERS, "symbols": reader.max_symbols},
        "alike": peers,
        "compared": trained[0] if trained and text == "story" else "n-gram",  # of the model that Compare shows at first
        "prompt": write.get_initial_prompt(session),
        "number_units": list(get_agreement(session.name)),
    }


def get_event(session: Session, unit: str) -> str:
    """Return the symbol around which a unit is shown at first, related to its feature; the line end by default."""
    text = session.texts.initial
    feature = next((cell.feature for cell in session.named if cell.unit == unit), "")
    if not feature and "surplus" in session.suitable_features(text):
        feature = "surplus"
    symbols = session.reader(text).document.symbols
    return next((symbol for symbol in write.FEATURE_CUES.get(feature, ("",))[0] if symbol in symbols), "\n")


def page(session: Session, query: Query) -> Answer:
    """Return the symbols of a page, and the text between them if they are words."""
    text, index = query.text, query.index("page")
    reader = session.reader(text)
    reader.page(index)
    begin, end = reader.bounds[index : index + 2]
    document = reader.document
    answer: Answer = {
        "title": session.texts.get_passage(text).title,
        "pages": len(reader),
        "first": begin,
        "symbols": reader.symbols(index),
        "total": len(document),
        "left_out": reader.num_omitted,
    }
    if session.model.settings.text.__dict__.get("unit") != "char":
        spans = document.spans[begin:end]
        previous = int(document.spans[begin - 1, 1]) if begin else 0
        gaps = zip([previous, *spans[:-1, 1].tolist()], spans[:, 0].tolist(), strict=True)
        answer["gaps"] = [document.text[a:b] for a, b in gaps]
    return answer


def expected(session: Session, query: Query) -> Answer:
    """Return the surprisal of each symbol of a page in bits, and the most probable symbols after it."""
    predictions = session.reader(query.text).predictions(query.index("page"))
    if predictions is None:
        return {"bits": [], "likely": []}
    likely = [[[symbol, round(p, 3)] for symbol, p in row] for row in predictions.likely]
    return {"bits": round_values(predictions.bits, 2), "likely": likely}


def values(session: Session, query: Query) -> Answer:
    """Return a unit's values on a page, and their colour scale."""
    text, unit = query.text, query.get("unit", "")
    opening = session.precomputed().get("opening", {})  # the initial colours of a large model
    if unit == opening.get("unit") and text == session.precomputed_text and query.get("page") == "0":
        return {"values": opening["values"], "scale": opening["scale"]}
    array = session.reader(text).values(query.index("page"), parse_unit(unit))
    return {"values": round_values(array), "scale": colour_scale(array)}


def units(session: Session, query: Query, names: Sequence[str] = ()) -> Answer:
    """Return all units of a layer's state on a page, or the named ones, in 127ths of each unit's largest value."""
    reader, answer = session.reader(query.text), {"units": names} if names else {}
    if names:
        array = np.stack([reader.values(query.index("page"), parse_unit(name)) for name in names], axis=1)  # (T, U)
    else:
        state, layer = query.get("state", "h"), query.index("layer")
        reader.check_unit(Unit(state, layer, 0))
        array = reader.page(query.index("page")).states[state][layer]
    largest = np.abs(array).max(axis=0) + 1e-12
    steps = np.rint(array / largest * 127).astype(np.int8).T
    content = base64.b64encode(np.ascontiguousarray(steps).tobytes()).decode()
    scales = [colour_scale(column) for column in array.T]
    return answer | {"largest": round_values(largest), "scales": scales, "data": content, "symbols": len(array)}


def strip(session: Session, query: Query) -> Answer:
    """Return all states and gates of one unit on a page."""
    reader = session.reader(query.text)
    unit, states = reader.check_unit(query.unit), {}
    for name in reader.states:
        number = reader.recorder.stack.layers[unit.layer].cell.corresponding_unit(unit.state, unit.number, name)
        if number is not None:
            values = reader.values(query.index("page"), unit._replace(state=name, number=number))
            states[name] = round_values(values, 3)
    return {"states": states}


def truth(session: Session, query: Query) -> Answer:
    """Return a feature's values on a page, scaled to 0 to 1."""
    reader, name = session.reader(query.text), query.get("feature", "")
    if name not in FEATURES:
        raise SettingError(f"Unknown feature {name[:40]!r}.")
    index = reader.check_page(query.index("page"))
    try:
        track = tracks(reader.document, [name])[name]
    except RelmoError:  # the text cannot have this feature
        track = np.zeros(len(reader.document), dtype=np.float32)
    begin, end = reader.bounds[index : index + 2]
    low, size = float(track.min()), float(np.ptp(track))
    return {
        "values": round_values((track[begin:end] - low) / (size or 1.0), 3),
        "changes": size > 0,
        "binary": {*np.unique(track).tolist()} <= {0.0, 1.0},
        "words": describe_feature(name),
    }


def overview(session: Session, query: Query) -> Answer:
    """Return a map and a histogram of a unit over the text, and the positions where it is highest and lowest."""
    reader = session.reader(query.text)
    array, text = reader.text_values(query.unit), reader.document.text
    starts = np.linspace(0, len(array), min(NUM_BINS, len(array)), endpoint=False).astype(int)
    means = np.add.reduceat(array, starts) / np.diff([*starts, len(array)])
    counts, edges = np.histogram(array, bins=40)
    low, high = round(float(edges[0]), 4), round(float(edges[-1]), 4)
    contexts: dict[str, list[Answer]] = {}
    for side, sign in (("high", 1), ("low", -1)):  # positions at some distance from each other
        covered, contexts[side] = np.zeros(len(array), dtype=bool), []
        for position in np.argsort(-sign * array, kind="stable").tolist():
            if covered[position]:
                continue
            covered[max(0, position - MIN_DISTANCE) : position + MIN_DISTANCE] = True
            begin, end = reader.document.spans[position].tolist()
            context = {"at": position, "value": round(float(sign * array[position]), 3)}
            context["before"] = text[max(0, begin - CHARACTERS_BEFORE) : begin]
            context |= {"symbol": text[begin:end], "after": text[end : end + CHARACTERS_AFTER]}
            contexts[side].append(context)
            if len(contexts[side]) == NUM_CONTEXTS:
                break
    return {
        "map": round_values(means, 3),
        "scale": colour_scale(array),
        "total": len(array),
        "bounds": reader.bounds[:-1],
        "histogram": {"counts": counts.tolist(), "low": low, "high": high},
        "mean": round(float(array.mean(dtype=np.float64)), 4),
        "sd": round(float(array.std(dtype=np.float64)), 4),
        **contexts,
    }


def cell(session: Session, query: Query) -> Answer:
    """Return a unit's strongest weights, the saturation of its gates, and its average course around an event."""
    reader = session.reader(query.text)
    unit, saturation = reader.check_unit(query.unit), {}
    layer = reader.recorder.stack.layers[unit.layer]
    for gate in layer.cell.gate_names:
        number = layer.cell.corresponding_unit(unit.state, unit.number, gate)
        if number is not None:
            array = reader.values(0, unit._replace(state=gate, number=number))
            low, high = layer.cell.specs[gate].low, layer.cell.specs[gate].high
            array = (array - low) / (high - low)
            saturation[gate] = [round(float(share), 3) for share in ((array < 0.1).mean(), (array > 0.9).mean())]
    event, array = query.get("event", "\n")[:64], reader.text_values(unit)
    positions = np.flatnonzero(np.array(reader.document.symbols) == event)
    inside = positions[(positions + LAGS[0] >= 0) & (positions + LAGS[1] < len(array))][:MAX_EVENTS]
    around: Answer = {"count": len(inside)}
    if len(inside):  # mean and quartiles at each lag
        rows = array[inside[:, None] + np.arange(LAGS[0], LAGS[1] + 1)]  # (N, lags)
        lower, median, upper = np.quantile(rows, (0.25, 0.5, 0.75), axis=0)
        series = {"mean": rows.mean(axis=0), "lower": lower, "median": median, "upper": upper}
        around |= {"first": LAGS[0]} | {name: np.round(row.astype(float), 4).tolist() for name, row in series.items()}
    weights = _find_weights(session.model, reader.recorder.stack, unit)
    return {"saturation": dict(sorted(saturation.items())), "event": event, "around": around, "weights": weights}


@torch.no_grad()
def _find_weights(model: SequenceModel, stack: Stack, unit: Unit) -> Answer:
    """Return a unit's strongest weights: recurrent (from), of input symbols, and of the scores it raises or lowers."""
    layer = stack.layers[unit.layer]
    unit_cell = layer.cells[1 if unit.direction == "backward" else 0]
    answer: Answer = {"from": {}, "symbols": {}}

    def strongest(row: np.ndarray) -> list[list[Any]]:
        return [[int(i), round(float(row[i]), 3)] for i in np.argsort(-np.abs(row), kind="stable")[:NUM_WEIGHTS]]

    for gate, matrix in unit_cell.recurrent_matrices().items():
        number = unit_cell.corresponding_unit(unit.state, unit.number, gate)
        if number is not None:
            answer["from"][gate] = strongest(matrix[number].cpu().numpy())
    if model.input_table is None:
        return answer
    names = model.get_output_vocabulary().symbols
    if unit.layer == 0:
        for gate, matrix in unit_cell.input_matrices().items():
            number = unit_cell.corresponding_unit(unit.state, unit.number, gate)
            if number is not None:
                inputs = (model.input_table @ matrix[number]).cpu().numpy()
                answer["symbols"][gate] = [[names[int(i)], weight] for i, weight in strongest(inputs)]
    is_output = unit.layer == len(stack.layers) - 1 and layer.projection is None
    if is_output and isinstance(model.softmax, FullSoftmax):
        matrix = model.softmax.weight  # (V, H), or (V, E) after a bottleneck
        if model.bottleneck is None:
            scores = matrix[:, unit.number].cpu().numpy()
        else:
            scores = (matrix @ model.bottleneck.weight[:, unit.number]).cpu().numpy()
        order = np.argsort(scores)
        count = min(NUM_WEIGHTS, len(order) // 2)  # in a small vocabulary, no symbol is in both lists
        for side, indices in (("more", order[::-1][:count]), ("less", order[:count])):
            answer[side] = [[names[int(i)], round(float(scores[i]), 3)] for i in indices]
    return answer


def gradient(session: Session, query: Query) -> Answer:
    """Return the gradient norm of the prediction after a symbol with respect to the symbols before it."""
    document = session.reader(query.text).document
    position, starts = query.position(len(document)), document.starts
    has_sentences = session.model.reads_sentences
    begin = int(starts[starts <= position][-1]) if has_sentences else max(0, position - MAX_GRADIENT_LAG)
    flow = connectivity(session.model, [document.symbols[begin : position + 2]], position=position - begin)
    return {"first": begin, "values": round_values(np.array(flow.values)), "symbol": flow.symbol, "half": flow.half}


def step(session: Session, query: Query) -> Answer:
    """Return the step that reads a symbol: every quantity, and one unit's equations in numbers."""
    reader = session.reader(query.text)
    unit = reader.check_unit(query.unit)
    document, stack, position = reader.document, reader.recorder.stack, query.position(len(reader.document))
    if session.model.reads_sentences:
        begin = int(document.starts[document.starts <= position][-1])
        end = next(iter(document.starts[document.starts > position].tolist()), len(document))
        words, backward = document.symbols[begin:end], unit.direction == "backward"
        at = position - begin
        traced = trace_word_step(session.model, reader.recorder, words, at, layer=unit.layer, backward=backward)
    else:
        index = int(np.searchsorted(reader.bounds, position, side="right")) - 1
        page_trace, begin = reader.page(index), reader.bounds[index]
        states, symbols = reader.page_states[index], document.symbols[begin : position + 1]
        cells = [layer.cell for layer in stack.layers]
        if position > begin and {*cells[0].states} <= {*page_trace.states}:
            # from the state that the page's trace has after the previous symbol, if the trace has all states
            states, symbols = [], symbols[-1:]
            for depth, layer_cell in enumerate(cells):
                arrays = [page_trace.states[name][depth, position - begin - 1] for name in layer_cell.states]
                states.append(tuple(torch.from_numpy(array).to(stack.like).view(1, 1, -1) for array in arrays))
        traced = trace_symbol_step(session.model, reader.recorder, states, symbols, layer=unit.layer)
    names, equations = traced.names(), traced.cell.equations()
    quantities = []
    for name in dict.fromkeys([*(name for name in equations if name in traced.after), *traced.after]):
        expression, array = traced.work_out(name, names), traced.after[name]
        number = traced.cell.corresponding_unit(unit.state, unit.number, name)
        quantities.append(
            {
                "name": name,
                "word": traced.cell.words[name],
                "equation": equations.get(name, ""),
                "state": name in traced.cell.states,
                "output": traced.cell.specs[name].role == "output",
                "shape": traced.cell.specs[name].shape,
                "unit": number,
                "lines": [] if expression is None or number is None else expression.lines(number),
                "values": round_values(array.ravel()),  # of a matrix row by row
            }
        )
    begin = max(0, position - NUM_NEIGHBOURS)
    likely = []
    if traced.log_probs is not None:
        likely = most_probable(traced.log_probs[None], session.model.get_output_vocabulary().symbols)[0]
    return {
        "at": position,
        "total": len(document),
        "first": begin,
        "symbols": document.symbols[begin : position + NUM_NEIGHBOURS + 1],
        "cell": traced.cell.describe(),
        "x": round_values(traced.x),
        "before": {name: round_values(array.ravel()) for name, array in traced.before.items()},
        "quantities": quantities,
        "likely": [[symbol, round(p, 3)] for symbol, p in likely],
    }


def conditions(session: Session, query: Query) -> Answer:
    """Return a unit's mean course over "The boys near the car" by the nouns' numbers, and its measured accuracies."""
    unit, model = query.unit, session.model
    if model.unit == "char":
        raise SettingError("The sentences consist of words; this model reads characters.")
    if unit.direction == "backward":
        raise SettingError("The sentences are read forwards; choose a forward unit.")
    vocabulary = None if model.vocabulary is None else model.vocabulary.index
    traced = gate_traces(model, noun_pp(per_condition=NUM_PAIRS, known=vocabulary), unit).as_dict()
    rows = []
    for condition in traced["conditions"]:
        row = {"condition": condition["condition"], "words": condition["words"]}
        for statistic in ("means", "errors"):
            states = condition[statistic].items()
            row[statistic] = {state: [round(value, 4) for value in series] for state, series in states}
        rows.append(row)
    address = format_unit(unit)
    accuracy = get_agreement(session.name).get(address)
    return {"unit": address, "pairs": NUM_PAIRS, "conditions": rows, "right": accuracy}


def precomputed(session: Session, query: Query) -> Answer:
    """Return a precomputed answer; null if there is none for this text."""
    name = query.get("what", "")
    if name == "count":
        return {"result": read_answers(COUNTING).get("count")}
    return {"result": session.precomputed().get(name) if query.text == session.precomputed_text else None}


ENDPOINTS: dict[str, Callable[[Session, Query], Answer]] = {
    "about": about,
    "page": page,
    "expected": expected,
    "values": values,
    "units": units,
    "some": lambda session, query: units(session, query, query.get("units", "").split(",")[:MAX_UNITS]),
    "strip": strip,
    "overview": overview,
    "cell": cell,
    "gradient": gradient,
    "truth": truth,
    "features": lambda session, query: {"usual": session.suitable_features(query.text)},
    "ready": precomputed,
    "start": lambda session, query: {"cards": load_cards()},
    "mixes": lambda session, query: {"tasks": session.extras.mixes()},
    "step": step,
    "next": write.next_symbol,
    "beam": write.beam_tree,
    "ngrams": write.ngram_samples,
    "conditions": conditions,
    "layers": lambda session, query: {"shipped": load_task_mixes(), "given": session.extras.mixes()},
}
"""Endpoints by name."""
