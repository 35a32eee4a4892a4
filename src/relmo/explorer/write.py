"""Generation step by step: the next symbol's distribution, the tree of a beam search, and samples of n-gram models.

A text is a prompt and the ids of the symbols taken after it, so an answer depends on nothing else.
"""

import math
import re
from collections import OrderedDict
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from relmo.errors import SettingError
from relmo.explorer.params import Answer, Params, get_index, get_number, get_text_name
from relmo.models.beam_search import BeamStep
from relmo.models.evaluate import full_precision
from relmo.models.generate import Sampling, choose_symbols, mask_symbols, sampling_probs
from relmo.models.lm import LanguageModel
from relmo.networks.ngram import NGramLM
from relmo.nn.cells import State
from relmo.settings.arguments import check_seed
from relmo.settings.lm import LanguageModelSettings, LMSettings

if TYPE_CHECKING:
    from relmo.explorer.session import Session

MAX_LENGTH = 2000  # characters of a prompt, and symbols after it
NUM_BARS = 24  # symbols whose probabilities are sent
MAX_STATES = 64  # cached states
MAX_BEAMS, MAX_DEPTH = 8, 40
NGRAM_ORDERS = (1, 2, 3, 5)
SAMPLE_SYMBOLS = 160
NGRAM_SYMBOLS = 200_000  # that n-grams are counted on
SEED_STRIDE = 1 << 20  # between the seeds of two texts
PROMPTS = {"story": "“I ", "code": "static int ", "counting": "aaaaa", "thousand": "aaaaa", "hello": "h"}
IDS = re.compile(r"(\d{1,7}(,\d{1,7})*)?")


class Writer:
    """A language model with the cached states of recent texts."""

    def __init__(self, model: LanguageModel):
        self.model = model
        self.states: OrderedDict[tuple[int, ...], tuple[Tensor, State]] = OrderedDict()
        self.ngrams: OrderedDict[tuple[str, int], LanguageModel] = OrderedDict()

    @torch.no_grad()
    def read(self, ids: tuple[int, ...]) -> Tensor:
        """Return log-probabilities (1, V) of the symbol after these."""
        if ids not in self.states:
            network, device = self.model.network, self.model.device
            with full_precision():
                if ids[:-1] in self.states:
                    _, state = self.states[ids[:-1]]
                    self.states[ids] = network.step(torch.tensor(ids[-1:], device=device), state)
                else:
                    features, state = network.features(torch.tensor([ids], device=device), network.initial_state(1))
                    self.states[ids] = network.log_probs(features[:, -1]), state
        self.states.move_to_end(ids)
        while len(self.states) > MAX_STATES:
            self.states.popitem(last=False)
        return self.states[ids][0]

    def get_ngram_model(self, session: "Session", text: str, order: int) -> tuple[LanguageModel, int]:
        """Return an n-gram model of a text, counted once, and the number of symbols it was counted on."""
        symbols = session.document(text).symbols[:NGRAM_SYMBOLS]
        if (text, order) not in self.ngrams:
            self.ngrams[text, order] = count_ngrams(self.model, symbols, order)
        while len(self.ngrams) > 2 * len(NGRAM_ORDERS):
            self.ngrams.popitem(last=False)
        return self.ngrams[text, order], len(symbols)


def get_writer(session: "Session") -> Writer:
    """Return the writer of a session, whose model must be unidirectional."""
    if not isinstance(session.model, LanguageModel):
        raise SettingError("A bidirectional model cannot generate text; open a language model (lm).")
    if session.writer is None:
        session.writer = Writer(session.model)
    return session.writer


def count_ngrams(model: LanguageModel, symbols: list[str], order: int) -> LanguageModel:
    """Return an n-gram model with the vocabulary of another model, counted on symbols."""
    network = NGramLM.fit(model.vocabulary.ids(symbols), vocab_size=len(model.vocabulary), order=order)
    settings = LMSettings(text=model.settings.text, model=LanguageModelSettings(cell="ngram", order=order))
    return LanguageModel(network, model.vocabulary, settings)


def next_symbol(session: "Session", params: Params) -> Answer:
    """Return the distribution of the next symbol in the model and as sampled, the drawn symbol, and the text so far."""
    writer, (prompt, taken), sampling = get_writer(session), _get_ids(session, params), _get_sampling(params)
    model, vocabulary = writer.model, writer.model.vocabulary
    seed = get_index(params, "seed")
    check_seed(seed)
    answer: Answer = {"prompt": model.decode(prompt), "pieces": _split_pieces(model, prompt, taken)}
    if vocabulary.end in taken:
        return answer | {"ended": True, "bars": [], "drawn": None, "bits": 0.0, "rest": 0.0}
    log_probs = writer.read((vocabulary.end, *prompt, *taken))
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


def _get_ids(session: "Session", params: Params) -> tuple[list[int], list[int]]:
    """Return the ids of the prompt, and of the symbols taken after it."""
    prompt, taken, model = params.get("prompt", ""), params.get("taken", ""), get_writer(session).model
    if len(prompt) > MAX_LENGTH:
        raise SettingError(f"The prompt has {len(prompt):,} characters; at most {MAX_LENGTH:,} are supported.")
    if not IDS.fullmatch(taken):
        raise SettingError("taken must be a list of symbol ids, separated by commas.")
    ids = [int(digits) for digits in taken.split(",") if digits]
    if len(ids) > MAX_LENGTH or any(i >= len(model.vocabulary) for i in ids):
        raise SettingError(f"taken must have at most {MAX_LENGTH:,} ids of the model's vocabulary.")
    return model.encode(prompt).tolist(), ids


def _get_sampling(params: Params) -> Sampling:
    """Return the sampling settings; a top_k or top_p of 0 excludes nothing."""
    top_k, top_p = get_number(params, "top_k", 0, 0, 1e6), get_number(params, "top_p", 0, 0, 1)
    return Sampling(get_number(params, "temperature", 1.0, 0, 10), int(top_k) or None, top_p or None)


def _split_pieces(model: LanguageModel, prompt: list[int], taken: list[int]) -> list[str]:
    """Return what each symbol adds to the text."""
    ids = [i for i in taken if i != model.vocabulary.end]
    if model.settings.text.unit == "char":
        return [model.vocabulary.symbols[i] for i in ids]
    texts = [model.decode([*prompt, *ids[:n]]) for n in range(len(ids) + 1)]
    return [after[len(before) :] for before, after in pairwise(texts)]


class Tree:
    """Nodes of a beam search: parent, symbol (None is the end) and log-probability of the text up to the node."""

    def __init__(self, symbols: list[str]):
        self.symbols = symbols
        self.nodes: list[dict[str, Any]] = []
        self.leaves: list[int] = [-1]  # nodes of the open hypotheses

    def on_step(self, step: BeamStep) -> None:
        """Add the nodes of a step."""
        parents, self.leaves = self.leaves, []
        rows = zip(step.symbols[0].tolist(), step.parents[0].tolist(), step.log_probs[0].tolist(), strict=True)
        for symbol, parent, log_prob in rows:
            self.leaves.append(self._add(parents, parent, self.symbols[symbol], log_prob))
        for parent, log_prob in zip(step.ending[0].tolist(), step.ended[0].tolist(), strict=True):
            self._add(parents, parent, None, log_prob)

    def _add(self, parents: list[int], parent: int, symbol: str | None, log_prob: float) -> int:
        if log_prob == -math.inf:
            return -1
        node = parents[parent] if parent < len(parents) else -1
        self.nodes.append({"parent": node, "symbol": symbol, "log_prob": round(log_prob, 4)})
        return len(self.nodes) - 1

    def path(self, symbols: list[str | None]) -> list[int]:
        """Return the nodes of a text."""
        path, parent = [], -1
        for symbol in symbols:
            children = [n for n, node in enumerate(self.nodes) if (node["parent"], node["symbol"]) == (parent, symbol)]
            if not children:
                break
            path.append(parent := children[0])
        return path


def beam_tree(session: "Session", params: Params) -> Answer:
    """Return the tree of a beam search from the current text, and its hypotheses."""
    prompt, taken = _get_ids(session, params)
    model = get_writer(session).model
    beams, depth = int(get_number(params, "beams", 3, 1, MAX_BEAMS)), int(get_number(params, "deep", 12, 1, MAX_DEPTH))
    tree = Tree(model.vocabulary.symbols)
    text = model.decode([*prompt, *(i for i in taken if i != model.vocabulary.end)])
    prefix_length = len(model.encode(text))
    texts = []
    for result in model.search(text, beams=beams, limit=depth, watch=tree.on_step):
        ids = model.encode(result.text)[prefix_length:].tolist()
        symbols: list[str | None] = [model.vocabulary.symbols[i] for i in ids]
        path = tree.path([*symbols, None] if result.ended else symbols)
        texts.append({"text": result.text, "log_prob": round(result.log_prob, 4), "ended": result.ended, "path": path})
    return {"prompt": text, "nodes": tree.nodes, "texts": texts, "beams": beams, "deep": depth}


def ngram_samples(session: "Session", params: Params) -> Answer:
    """Return samples with one prompt and seed: this model, n-gram companions, and n-grams counted on the open text."""
    writer, text = get_writer(session), get_text_name(params)
    prompt, seed = params.get("prompt", "")[:MAX_LENGTH], get_index(params, "seed")
    options: dict[str, Any] = {**vars(_get_sampling(params)), "seed": seed, "limit": SAMPLE_SYMBOLS}
    samples: list[Answer] = [{"name": session.name, "text": writer.model.generate(prompt, **options)}]
    for name in session.extras.models:
        model = session.extras.model(name)
        if isinstance(model, LanguageModel) and isinstance(model.network, NGramLM):
            samples.append({"name": name, "text": model.generate(prompt, **options)})
    num_symbols = 0
    for order in NGRAM_ORDERS:
        model, num_symbols = writer.get_ngram_model(session, text, order)
        samples.append({"name": f"{order}-gram", "order": order, "text": model.generate(prompt, **options)})
    title = session.texts.get_passage(text).title
    return {"samples": samples, "title": title, "symbols": num_symbols, "prompt": prompt}


def get_initial_prompt(session: "Session") -> str:
    """Return a prompt for the initial text, by default its beginning; empty if the model lacks one of its symbols."""
    text, model = session.texts.initial, get_writer(session).model
    beginning = " ".join(session.texts.get_passage(text).text[:40].split()[:4])
    prompt = PROMPTS.get(text, beginning)
    return "" if model.vocabulary.unknown in model.encode(prompt) else prompt
