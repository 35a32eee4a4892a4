"""Endpoints of a session: functions that answer requests about a model and a text with plain data."""

import base64
from collections.abc import Callable
from dataclasses import asdict

import numpy as np

from relmo.analysis.core.causal import Unit
from relmo.analysis.core.feature_words import describe_feature
from relmo.analysis.core.features import FEATURES
from relmo.analysis.memory.connectivity import connectivity
from relmo.explorer import equations, features, measurements, write
from relmo.explorer.cells import (
    compute_event_average,
    compute_histogram,
    find_contexts,
    find_weights,
    get_initial_event,
    get_initial_prompt,
)
from relmo.explorer.examples import COUNTING, installed_examples
from relmo.explorer.params import (
    Answer,
    Params,
    colour_scale,
    get_index,
    get_position,
    get_text_name,
    parse_unit,
    round_values,
)
from relmo.explorer.precomputed import read_answers
from relmo.explorer.session import Session, answer_key
from relmo.explorer.start import make_cards
from relmo.explorer.texts import MAX_CHARACTERS
from relmo.models.bilm import BiLM
from relmo.models.lm import LanguageModel
from relmo.nn.cells import cell_class
from relmo.settings.cells import CELLS

NUM_BINS = 1000  # of the map of the text
MAX_UNITS = 200  # per request
MAX_GRADIENT_LAG = 400  # symbols before a prediction


def about(session: Session, params: Params) -> Answer:
    """Describe the model, the texts and the features; with `opening`, include the answers of the initial view."""
    answer = {
        "name": session.name,
        "parameters": session.model.parameter_count(),
        "texts": [
            {"name": p.name, "title": p.title, "length": len(p.text), "tagged": p.name in session.texts.annotations}
            for p in session.texts.passages.values()
        ],
        "first": session.texts.initial,
        "examples": [{"name": m.name, "about": m.about, "text": m.text} for m in installed_examples()],
        "alike": [],
        "number_units": [],
        **session.extras.about(session.kind),
        "answers": {},
    }
    if not session.recurrent:
        assert isinstance(session.model, LanguageModel)
        settings = session.model.settings
        window = {"kind": "window", "cell": settings.model.cell, "window": settings.model.order - 1}
        return answer | window | {"unit": settings.text.unit, "prompt": write.get_initial_prompt(session)}
    text, unit = session.texts.initial, session.initial_unit
    reader = session.reader(text)
    stack, cell = reader.recorder.stack, reader.recorder.stack.layers[0].cell
    if "opening" in params:
        page = {"text": text, "page": "0"}
        for endpoint, query in (("page", page), ("values", page | {"unit": unit})):
            answer["answers"][answer_key(session.name, endpoint, query)] = session.answer(endpoint, query)
    return answer | {
        "kind": session.kind,
        "cell": cell.name,
        "cells": {name: _get_initial_parameter(name) for name in sorted(CELLS)},
        "unit": "word" if session.kind == "bilm" else session.model.settings.text.unit,  # type: ignore[union-attr]
        "layers": len(stack.layers),
        "directions": stack.directions,
        "states": reader.states,
        "words": cell.words,
        "carried": list(cell.states),
        "memory": cell.memory,
        "gates": cell.gate_names,
        "opened": unit,
        "mode": "centred" if session.named else "value",
        "named": [
            asdict(named)
            | {
                "words": describe_feature(named.feature),
                "event": get_event(session, named.unit),
                "prompt": get_initial_prompt(named.feature, session.model),
                "strength": named.strength,
            }
            for named in session.named
        ],
        "shipped": text == session.precomputed_text,
        "usual": features.suitable_features(session, text),
        "features": [
            {"name": name, "about": " ".join((function.__doc__ or "").split()), "words": describe_feature(name)}
            for name, function in FEATURES.items()
        ],
        "limit": {"characters": MAX_CHARACTERS, "symbols": reader.max_symbols},
        "alike": session.peers(),
        "compared": session.default_comparison,
        "prompt": "" if session.kind == "bilm" else write.get_initial_prompt(session),
        "number_units": measurements.number_units(session.name),
    }


def _get_initial_parameter(cell: str) -> str | None:
    """Return the parameter of an untrained cell that the page varies: forget bias, else size of recurrent weights."""
    if "forget_bias" in CELLS[cell]:
        return "forget_bias"
    return "spectral_radius" if cell_class(cell).recurrent else None


def get_event(session: Session, unit: str) -> str:
    """Return the symbol around which a unit is shown at first, related to its feature."""
    text = session.texts.initial
    feature = next((cell.feature for cell in session.named if cell.unit == unit), "")
    if not feature and "surplus" in features.suitable_features(session, text):
        feature = "surplus"
    return get_initial_event(feature, session.reader(text).document)


def page(session: Session, params: Params) -> Answer:
    """Return the symbols of a page, and the text between them if they are words."""
    text, index = get_text_name(params), get_index(params, "page")
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


def expected(session: Session, params: Params) -> Answer:
    """Return the surprisal of each symbol of a page in bits, and the most probable symbols after it."""
    predictions = session.reader(get_text_name(params)).predictions(get_index(params, "page"))
    if predictions is None:
        return {"bits": [], "likely": []}
    likely = [[[symbol, round(p, 3)] for symbol, p in row] for row in predictions.likely]
    return {"bits": round_values(predictions.bits, 2), "likely": likely}


def values(session: Session, params: Params) -> Answer:
    """Return a unit's values on a page, and their colour scale."""
    text, unit = get_text_name(params), params.get("unit", "")
    opening = session.precomputed().get("opening", {})  # the initial colours of a large model
    if unit == opening.get("unit") and text == session.precomputed_text and params.get("page") == "0":
        return {"values": opening["values"], "scale": opening["scale"]}
    array = session.reader(text).values(get_index(params, "page"), parse_unit(unit))
    return {"values": round_values(array), "scale": colour_scale(array)}


def units(session: Session, params: Params) -> Answer:
    """Return all units of a layer's state on a page, quantised."""
    reader, state, layer = session.reader(get_text_name(params)), params.get("state", "h"), get_index(params, "layer")
    reader.check_unit(Unit(state, layer, 0))
    return _quantise(reader.page(get_index(params, "page")).states[state][layer])


def some_units(session: Session, params: Params) -> Answer:
    """Return the units named in `units`, separated by commas, on a page, quantised."""
    reader, index = session.reader(get_text_name(params)), get_index(params, "page")
    names = params.get("units", "").split(",")[:MAX_UNITS]
    columns = [reader.values(index, parse_unit(name)) for name in names]
    return {"units": names, **_quantise(np.stack(columns, axis=1))}


def _quantise(array: np.ndarray) -> Answer:
    """Return units' values (T, U) as signed bytes, in steps of a 127th of each unit's largest absolute value."""
    largest = np.abs(array).max(axis=0) + 1e-12
    steps = np.rint(array / largest * 127).astype(np.int8).T
    content = base64.b64encode(np.ascontiguousarray(steps).tobytes()).decode()
    scales = [colour_scale(column) for column in array.T]
    return {"largest": round_values(largest), "scales": scales, "data": content, "symbols": len(array)}


def strip(session: Session, params: Params) -> Answer:
    """Return all states and gates of one unit on a page."""
    reader = session.reader(get_text_name(params))
    unit, states = reader.check_unit(parse_unit(params.get("unit", ""))), {}
    for name in reader.states:
        if unit.number < reader.recorder.stack.layers[unit.layer].sizes[name]:
            states[name] = round_values(reader.values(get_index(params, "page"), unit._replace(state=name)), 3)
    return {"states": states}


def overview(session: Session, params: Params) -> Answer:
    """Return a map and a histogram of a unit over the text, and the positions where it is highest and lowest."""
    reader = session.reader(get_text_name(params))
    array = reader.text_values(parse_unit(params.get("unit", "")))
    starts = np.linspace(0, len(array), min(NUM_BINS, len(array)), endpoint=False).astype(int)
    means = np.add.reduceat(array, starts) / np.diff([*starts, len(array)])
    return {
        "map": round_values(means, 3),
        "scale": colour_scale(array),
        "total": len(array),
        "bounds": reader.bounds[:-1],
        "histogram": compute_histogram(array),
        "mean": round(float(array.mean(dtype=np.float64)), 4),
        "sd": round(float(array.std(dtype=np.float64)), 4),
        "high": find_contexts(reader.document, array, 20),
        "low": find_contexts(reader.document, -array, 20),
    }


def cell(session: Session, params: Params) -> Answer:
    """Return a unit's strongest weights, the saturation of its gates, and its average course around an event."""
    reader = session.reader(get_text_name(params))
    unit, saturation = reader.check_unit(parse_unit(params.get("unit", ""))), {}
    layer = reader.recorder.stack.layers[unit.layer]
    for gate in layer.cell.gate_names:
        if unit.number < layer.sizes[gate]:
            array = reader.values(0, unit._replace(state=gate))
            saturation[gate] = [round(float(share), 3) for share in ((array < 0.1).mean(), (array > 0.9).mean())]
    event = params.get("event", "\n")[:64]
    return {
        "saturation": dict(sorted(saturation.items())),
        "event": event,
        "around": compute_event_average(reader.document, reader.text_values(unit), event),
        "weights": find_weights(session.model, reader.recorder.stack, unit),
    }


def gradient(session: Session, params: Params) -> Answer:
    """Return the gradient norm of the prediction after a symbol with respect to the symbols before it."""
    document = session.reader(get_text_name(params)).document
    position, starts = get_position(params, len(document)), document.starts
    is_bilm = isinstance(session.model, BiLM)
    begin = int(starts[starts <= position][-1]) if is_bilm else max(0, position - MAX_GRADIENT_LAG)
    flow = connectivity(session.model, [document.symbols[begin : position + 2]], position=position - begin)
    return {"first": begin, "values": round_values(np.array(flow.values)), "symbol": flow.symbol, "half": flow.half}


def precomputed(session: Session, params: Params) -> Answer:
    """Return a precomputed answer; null if there is none for this text."""
    name = params.get("what", "")
    if name == "count":
        return {"result": read_answers(COUNTING).get("count")}
    return {"result": session.precomputed().get(name) if get_text_name(params) == session.precomputed_text else None}


def layers(session: Session, params: Params) -> Answer:
    """Return the layer weights of tasks: the bundled measurements, and those of tasks given by the user."""
    return {"shipped": measurements.load_task_mixes(), "given": session.extras.mixes()}


ENDPOINTS: dict[str, Callable[[Session, Params], Answer]] = {
    "about": about,
    "page": page,
    "expected": expected,
    "values": values,
    "units": units,
    "some": some_units,
    "strip": strip,
    "overview": overview,
    "cell": cell,
    "gradient": gradient,
    "truth": features.truth,
    "features": features.list_features,
    "ready": precomputed,
    "start": lambda session, params: {"cards": make_cards()},
    "mixes": lambda session, params: {"tasks": session.extras.mixes()},
    "step": equations.step,
    "next": write.next_symbol,
    "beam": write.beam_tree,
    "ngrams": write.ngram_samples,
    "conditions": measurements.conditions,
    "layers": layers,
}
"""Endpoints by name."""
