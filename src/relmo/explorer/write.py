"""Generation step by step: the next symbol's distribution, the tree of a beam search, and samples of n-gram models.

A text is a prompt and the ids of the symbols taken after it, so an answer depends on nothing else.
"""

import math
import re
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import torch

from relmo.analysis.units.compare import ngram_like
from relmo.errors import SettingError
from relmo.explorer.params import Answer, Query
from relmo.models.evaluate import full_precision
from relmo.models.generate import BeamStep, Sampling, choose_symbols, mask_symbols, sampling_probs
from relmo.models.lm import LanguageModel
from relmo.networks.ngram import NGramLM
from relmo.settings.fields import check_seed

if TYPE_CHECKING:
    from relmo.explorer.session import Session

MAX_LENGTH = 2000  # characters of a prompt, and symbols after it
NUM_BARS = 24  # symbols whose probabilities are sent
MAX_BEAMS, MAX_DEPTH = 8, 40
NGRAM_ORDERS = (1, 2, 3, 5)
SAMPLE_SYMBOLS = 160
NGRAM_SYMBOLS = 200_000  # that n-grams are counted on
SEED_STRIDE = 1 << 20  # between the seeds of two texts
IDS = re.compile(r"(\d{1,7}(,\d{1,7})*)?")
PROMPTS = {"story": "“I ", "code": "static int ", "counting": "aaaaa", "thousand": "aaaaa", "hello": "h"}
FEATURE_CUES = {
    "quotes": ('“"', "“What is it?” "),
    "string": ('"', 'printf("'),
    "comment": ("*#", "/* "),
    "prose": ("*#", "/* "),
    "surplus": ("b", "aaaaa"),
    **dict.fromkeys(("depth", "parentheses", "if", "if_body"), ("(", "  if( ")),
}
"""Symbols at which a cell for a feature is shown, and a prompt for it."""


def check_generates(model: Any, name: str) -> LanguageModel:
    """Return the model; raise if it cannot generate text."""
    if not model.can_generate:
        raise SettingError(f"{name} cannot generate text (bidirectional models cannot); open a language model (lm).")
    return model


def get_initial_prompt(session: "Session", feature: str | None = None) -> str:
    """Return a prompt for the initial text or for a feature; empty if the model cannot write all of its symbols."""
    text, model = session.texts.initial, session.model
    if feature is None:
        prompt = PROMPTS.get(text) or " ".join(session.texts.get_passage(text).text[:40].split()[:4])
    else:
        _, prompt = FEATURE_CUES.get(feature, ("", ""))
    is_writable = model.can_generate and model.get_output_vocabulary().unknown not in model.encode(prompt)
    return prompt if is_writable else ""


def _read_text(session: "Session", query: Query) -> tuple[LanguageModel, list[int], list[int]]:
    """Return the model, the ids of the prompt, and those of the symbols taken after it."""
    prompt, taken, model = query.get("prompt", ""), query.get("taken", ""), check_generates(session.model, session.name)
    if len(prompt) > MAX_LENGTH:
        raise SettingError(f"The prompt has {len(prompt):,} characters; at most {MAX_LENGTH:,} are supported.")
    if not IDS.fullmatch(taken):
        raise SettingError("taken must be a list of symbol ids, separated by commas.")
    ids = [int(digits) for digits in taken.split(",") if digits]
    if len(ids) > MAX_LENGTH or any(i >= len(model.vocabulary) for i in ids):
        raise SettingError(f"taken must have at most {MAX_LENGTH:,} ids of the model's vocabulary.")
    return model, model.encode(prompt).tolist(), ids


def _get_sampling(query: Query) -> Sampling:
    """Return the sampling settings; a top_k or top_p of 0 excludes nothing."""
    top_k, top_p = query.number("top_k", 0, 0, 1e6), query.number("top_p", 0, 0, 1)
    return Sampling(query.number("temperature", 1.0, 0, 10), int(top_k) or None, top_p or None)


def next_symbol(session: "Session", query: Query) -> Answer:
    """Return the distribution of the next symbol in the model and as sampled, the drawn symbol, and the text so far."""
    model, prompt, taken = _read_text(session, query)
    vocabulary, sampling, seed = model.vocabulary, _get_sampling(query), query.index("seed")
    check_seed(seed)
    ids = [i for i in taken if i != vocabulary.end]
    if model.settings.text.unit == "char":
        pieces = [vocabulary.symbols[i] for i in ids]
    else:  # what each symbol adds to the text
        texts = [model.decode([*prompt, *ids[:n]]) for n in range(len(ids) + 1)]
        pieces = [after[len(before) :] for before, after in pairwise(texts)]
    answer: Answer = {"prompt": model.decode(prompt), "pieces": pieces}
    if vocabulary.end in taken:
        return answer | {"ended": True, "bars": [], "drawn": None, "bits": 0.0, "rest": 0.0}
    with torch.no_grad(), full_precision():
        text = torch.tensor([[vocabulary.end, *prompt, *taken]], device=model.device)
        features, _ = model.network.features(text, model.network.initial_state(1))
        log_probs = model.network.log_probs(features[:, -1])  # (1, V)
    masked = mask_symbols(log_probs, [vocabulary.unknown])
    q = sampling_probs(masked, sampling)[0]
    p = log_probs[0].exp()
    generator = torch.Generator(log_probs.device).manual_seed(seed * SEED_STRIDE + len(taken))
    drawn = int(choose_symbols(masked, sampling, generator)[0])
    ids = p.topk(min(NUM_BARS, len(p))).indices.tolist()
    ids = ids if drawn in ids else [*ids[:-1], drawn]
    return answer | {
        "ended": False,
        "bars": [[i, vocabulary.symbols[i], round(float(p[i]), 5), round(float(q[i]), 5)] for i in ids],
        "rest": round(max(0.0, 1.0 - float(p[ids].sum())), 5),
        "possible": int((q > 0).sum()),
        "of": len(p),
        "bits": round(float(-(p * log_probs[0].clamp(min=-1e9)).sum() / math.log(2)), 3),
        "drawn": drawn,
    }


def beam_tree(session: "Session", query: Query) -> Answer:
    """Return the tree of a beam search from the current text, and its hypotheses."""
    model, prompt, taken = _read_text(session, query)
    beams, depth = int(query.number("beams", 3, 1, MAX_BEAMS)), int(query.number("deep", 12, 1, MAX_DEPTH))
    nodes: list[dict[str, Any]] = []  # parent, symbol (None is the end), log-probability of the text up to the node
    leaves: list[int] = [-1]  # nodes of the open hypotheses

    def add_nodes(step: BeamStep) -> None:
        parents = leaves.copy()
        leaves.clear()
        names: list[str | None] = [model.vocabulary.symbols[i] for i in step.symbols[0].tolist()]
        rows = [*zip(names, step.parents[0].tolist(), step.log_probs[0].tolist(), strict=True)]
        rows += [(None, *row) for row in zip(step.ending[0].tolist(), step.ended[0].tolist(), strict=True)]
        for symbol, parent, log_prob in rows:
            if symbol is not None:
                leaves.append(-1 if log_prob == -math.inf else len(nodes))
            if log_prob != -math.inf:
                node = parents[parent] if parent < len(parents) else -1
                nodes.append({"parent": node, "symbol": symbol, "log_prob": round(log_prob, 4)})

    text = model.decode([*prompt, *(i for i in taken if i != model.vocabulary.end)])
    prefix_length = len(model.encode(text))
    texts = []
    for result in model.search(text, beams=beams, limit=depth, watch=add_nodes):
        ids = model.encode(result.text)[prefix_length:].tolist()
        symbols: list[str | None] = [model.vocabulary.symbols[i] for i in ids]
        path, parent = [], -1
        for symbol in [*symbols, None] if result.ended else symbols:
            children = [n for n, node in enumerate(nodes) if (node["parent"], node["symbol"]) == (parent, symbol)]
            if not children:
                break
            path.append(parent := children[0])
        texts.append({"text": result.text, "log_prob": round(result.log_prob, 4), "ended": result.ended, "path": path})
    return {"prompt": text, "nodes": nodes, "texts": texts, "beams": beams, "deep": depth}


def ngram_samples(session: "Session", query: Query) -> Answer:
    """Return samples with one prompt and seed: this model, n-gram companions, and n-grams counted on the open text."""
    model, text = check_generates(session.model, session.name), query.text
    prompt, seed = query.get("prompt", "")[:MAX_LENGTH], query.index("seed")
    options: dict[str, Any] = {**vars(_get_sampling(query)), "seed": seed, "limit": SAMPLE_SYMBOLS}
    samples: list[Answer] = [{"name": session.name, "text": model.generate(prompt, **options)}]
    for name in session.extras.models:
        other: Any = session.extras.model(name)
        if isinstance(other.network, NGramLM):
            samples.append({"name": name, "text": other.generate(prompt, **options)})
    symbols = session.document(text).symbols[:NGRAM_SYMBOLS]
    ids = model.vocabulary.ids(symbols)
    for order in NGRAM_ORDERS:
        if (text, order) not in session.ngrams:
            session.ngrams[text, order] = ngram_like(model, ids, order=order)
        sample = session.ngrams[text, order].generate(prompt, **options)
        samples.append({"name": f"{order}-gram", "order": order, "text": sample})
    while len(session.ngrams) > 2 * len(NGRAM_ORDERS):
        session.ngrams.popitem(last=False)
    title = session.texts.get_passage(text).title
    return {"samples": samples, "title": title, "symbols": len(symbols), "prompt": prompt}
