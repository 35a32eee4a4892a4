"""Statistics of one unit: its values, its course around an event, and its strongest weights."""

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

CHARACTERS_BEFORE, CHARACTERS_AFTER = 60, 30  # of a context
MIN_DISTANCE = 20  # symbols between two contexts
LAGS = (-20, 40)  # around an event
MAX_EVENTS = 5000  # in an average
NUM_WEIGHTS = 10
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


def compute_histogram(values: np.ndarray, bins: int = 40) -> dict[str, Any]:
    """Return the counts of a histogram and its range."""
    counts, edges = np.histogram(values, bins=bins)
    return {"counts": counts.tolist(), "low": round(float(edges[0]), 4), "high": round(float(edges[-1]), 4)}


def find_contexts(document: Document, values: np.ndarray, count: int) -> list[dict[str, Any]]:
    """Return the positions with the largest values, at some distance from each other, with their context."""
    contexts: list[dict[str, Any]] = []
    covered = np.zeros(len(values), dtype=bool)
    for position in np.argsort(-values, kind="stable").tolist():
        if covered[position]:
            continue
        covered[max(0, position - MIN_DISTANCE) : position + MIN_DISTANCE] = True
        begin, end = document.spans[position].tolist()
        contexts.append(
            {
                "at": position,
                "value": round(float(values[position]), 3),
                "before": document.text[max(0, begin - CHARACTERS_BEFORE) : begin],
                "symbol": document.text[begin:end],
                "after": document.text[end : end + CHARACTERS_AFTER],
            }
        )
        if len(contexts) == count:
            break
    return contexts


def compute_event_average(document: Document, values: np.ndarray, event: str) -> dict[str, Any]:
    """Return mean and quartiles of a unit at each lag around the occurrences of a symbol."""
    positions = np.flatnonzero(np.array(document.symbols) == event)
    inside = positions[(positions + LAGS[0] >= 0) & (positions + LAGS[1] < len(values))][:MAX_EVENTS]
    if not len(inside):
        return {"count": 0}
    rows = values[inside[:, None] + np.arange(LAGS[0], LAGS[1] + 1)]  # (N, lags)
    lower, median, upper = np.quantile(rows, (0.25, 0.5, 0.75), axis=0)
    series = {"mean": rows.mean(axis=0), "lower": lower, "median": median, "upper": upper}
    rounded = {name: np.round(row.astype(float), 4).tolist() for name, row in series.items()}
    return {"count": len(inside), "first": LAGS[0], **rounded}


@torch.no_grad()
def find_weights(model: LanguageModel | BiLM, stack: Stack, unit: Unit) -> dict[str, Any]:
    """Return the strongest weights of a unit.

    from          recurrent weights into the unit, by gate
    symbols       in layer 0, input weights of the symbols, by gate
    more, less    in the top layer, the symbols whose scores the unit raises or lowers most
    """
    layer = stack.layers[unit.layer]
    weights = layer.weights[1 if unit.direction == "backward" else 0]
    has_gates = unit.number < layer.cell.hidden_size  # a projected h has units of its own
    answer: dict[str, Any] = {"from": {}, "symbols": {}}
    if has_gates:
        for gate, matrix in layer.cell.recurrent_matrices(weights).items():
            answer["from"][gate] = _strongest(matrix[unit.number].cpu().numpy())
    network = model.network
    if not isinstance(network, RecurrentLM) or not isinstance(model, LanguageModel):
        return answer
    names = model.vocabulary.symbols
    if unit.layer == 0 and has_gates:
        for gate, matrix in layer.cell.input_matrices(weights).items():
            inputs = (network.encoder.embedding.weight @ matrix[unit.number]).cpu().numpy()
            answer["symbols"][gate] = [[names[int(i)], weight] for i, weight in _strongest(inputs)]
    is_output = unit.layer == len(stack.layers) - 1 and layer.projection is None
    if is_output and isinstance(network.softmax, FullSoftmax):
        matrix = network.softmax.weight  # (V, H), or (V, E) after a bottleneck
        if network.bottleneck is None:
            scores = matrix[:, unit.number].cpu().numpy()
        else:
            scores = (matrix @ network.bottleneck.weight[:, unit.number]).cpu().numpy()
        order = np.argsort(scores)
        count = min(NUM_WEIGHTS, len(order) // 2)  # in a small vocabulary, no symbol is in both lists
        for side, indices in (("more", order[::-1][:count]), ("less", order[:count])):
            answer[side] = [[names[int(i)], round(float(scores[i]), 3)] for i in indices]
    return answer


def _strongest(row: np.ndarray) -> list[list[Any]]:
    return [[int(i), round(float(row[i]), 3)] for i in np.argsort(-np.abs(row), kind="stable")[:NUM_WEIGHTS]]


def get_initial_event(feature: str, document: Document) -> str:
    """Return the symbol around which a cell for this feature is shown at first; the line end by default."""
    return next((symbol for symbol in FEATURE_SYMBOLS.get(feature, "") if symbol in document.symbols), "\n")


def get_initial_prompt(feature: str, model: LanguageModel | BiLM) -> str:
    """Return a prompt that contains the feature; empty if the model lacks one of its symbols."""
    prompt = FEATURE_PROMPTS.get(feature, "")
    if isinstance(model, BiLM) or model.vocabulary.unknown in model.encode(prompt):
        return ""
    return prompt
