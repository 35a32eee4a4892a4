"""One unit: where it is on, what it does around an event, what it is wired to."""

from typing import Any

import numpy as np
import torch

from relmo.analysis.core.causal import Unit
from relmo.analysis.core.features import Document
from relmo.analysis.core.stack import Stack
from relmo.models.bilm import BiLM
from relmo.models.lm import LanguageModel
from relmo.networks.language_model import RecurrentLM
from relmo.nn.softmax import FullSoftmax

BEFORE, AFTER = 60, 30  # characters of a context
APART = 20  # symbols between two places that are shown
BRACKETS = ("depth", "parentheses", "if", "if_body")
FEATURE_SYMBOLS = {"quotes": '“"', "string": '"', "comment": "*#", "prose": "*#", "surplus": "b"}
FEATURE_SYMBOLS |= dict.fromkeys(BRACKETS, "(")
FEATURE_PROMPTS = {
    "quotes": "“What is it?” ",
    "string": 'printf("',
    "comment": "/* ",
    "prose": "/* ",
    "surplus": "aaaaa",
}
FEATURE_PROMPTS |= dict.fromkeys(BRACKETS, "  if( ")
LAGS = (-20, 40)  # around an event
EVENTS = 5000  # that an average is taken over
SHOWN = 10  # weights


def histogram(values: np.ndarray, bins: int = 40) -> dict[str, Any]:
    """How often each value comes."""
    counts, edges = np.histogram(values, bins=bins)
    return {"counts": counts.tolist(), "low": round(float(edges[0]), 4), "high": round(float(edges[-1]), 4)}


def contexts(document: Document, values: np.ndarray, count: int) -> list[dict[str, Any]]:
    """The places with the largest values, not too near to each other, with the text around them."""
    found: list[dict[str, Any]] = []
    taken = np.zeros(len(values), dtype=bool)
    for place in np.argsort(-values, kind="stable").tolist():
        if taken[place]:
            continue
        taken[max(0, place - APART) : place + APART] = True
        begin, end = document.spans[place].tolist()
        found.append(
            {
                "at": place,
                "value": round(float(values[place]), 3),
                "before": document.text[max(0, begin - BEFORE) : begin],
                "symbol": document.text[begin:end],
                "after": document.text[end : end + AFTER],
            }
        )
        if len(found) == count:
            break
    return found


def around(document: Document, values: np.ndarray, event: str) -> dict[str, Any]:
    """What the unit does around an event, a certain symbol: mean and quartiles at each step before and after."""
    places = np.flatnonzero(np.array(document.symbols) == event)
    inside = places[(places + LAGS[0] >= 0) & (places + LAGS[1] < len(values))][:EVENTS]
    if not len(inside):
        return {"count": 0}
    rows = values[inside[:, None] + np.arange(LAGS[0], LAGS[1] + 1)]  # (N, lags)
    lower, median, upper = np.quantile(rows, (0.25, 0.5, 0.75), axis=0)
    series = {"mean": rows.mean(axis=0), "lower": lower, "median": median, "upper": upper}
    return {
        "count": len(inside),
        "first": LAGS[0],
        **{name: np.round(row.astype(float), 4).tolist() for name, row in series.items()},
    }


@torch.no_grad()
def weights(model: LanguageModel | BiLM, stack: Stack, unit: Unit) -> dict[str, Any]:
    """The strongest weights: from h of its own layer into the unit, by gate; from symbols of the vocabulary into a unit
    of the first layer; and from a unit of the top layer to the symbols it makes more and less likely."""
    layer = stack.layers[unit.layer]
    d = 1 if unit.direction == "backward" else 0
    cell, given, inside = layer.cell, layer.weights[d], unit.number < layer.cell.hidden_size
    found: dict[str, Any] = {"from": {}, "symbols": {}}
    if inside:
        for gate, matrix in cell.recurrent_matrices(given).items():
            found["from"][gate] = _strongest(matrix[unit.number].cpu().numpy())
    network = model.network
    if not isinstance(network, RecurrentLM) or not isinstance(model, LanguageModel):
        return found
    names = model.vocabulary.symbols
    if unit.layer == 0 and inside:
        for gate, matrix in cell.input_matrices(given).items():
            reach = (network.encoder.embedding.weight @ matrix[unit.number]).cpu().numpy()
            found["symbols"][gate] = [[names[int(i)], w] for i, w in _strongest(reach)]
    top = unit.layer == len(stack.layers) - 1 and layer.projection is None
    if top and isinstance(network.softmax, FullSoftmax):
        matrix = network.softmax.weight  # (V, H), or (V, E) after a bottleneck
        own = (
            matrix[:, unit.number] if network.bottleneck is None else matrix @ network.bottleneck.weight[:, unit.number]
        )
        numbers = own.cpu().numpy()
        order = np.argsort(numbers)
        count = min(SHOWN, len(order) // 2)  # of a few symbols none is both
        pick = {"more": order[::-1][:count], "less": order[:count]}
        found |= {way: [[names[int(i)], round(float(numbers[i]), 3)] for i in some] for way, some in pick.items()}
    return found


def _strongest(row: np.ndarray) -> list[list[Any]]:
    """The weights of a row that are largest by size, each with its place."""
    return [[int(i), round(float(row[i]), 3)] for i in np.argsort(-np.abs(row), kind="stable")[:SHOWN]]


def opening_event(feature: str, document: Document) -> str:
    """Return the symbol around which a cell for this feature is shown first; the line end where the text has none."""
    return next((symbol for symbol in FEATURE_SYMBOLS.get(feature, "") if symbol in document.symbols), "\n")


def opening_prompt(feature: str, model: LanguageModel | BiLM) -> str:
    """Return a prompt that contains what the feature is about; empty where the model lacks one of its symbols."""
    prompt = FEATURE_PROMPTS.get(feature, "")
    if isinstance(model, BiLM) or model.vocabulary.unknown in model.encode(prompt):
        return ""
    return prompt
