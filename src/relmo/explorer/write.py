"""A model that writes, a symbol at a time: what it expects next, what is drawn, the tree of a beam search, and samples
of n-gram models beside its own. Of any language model, recurrent or not.

What was written is a prompt and the ids of the symbols that were taken after it, so an answer depends on nothing else.
"""

import math
import re
from collections import OrderedDict
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from relmo.errors import SettingError
from relmo.explorer.asked import Answer, Asked, number_within, text_of, whole_number
from relmo.models.beam_search import BeamStep
from relmo.models.evaluate import full_precision
from relmo.models.generate import Sampling, choose, drawn_from, without
from relmo.models.lm import LanguageModel
from relmo.networks.ngram import NGramLM
from relmo.nn.cells import State
from relmo.settings.arguments import check_seed

if TYPE_CHECKING:
    from relmo.explorer.session import Session

LONGEST = 2000  # characters of a prompt, and symbols that are taken after it
FIRST = 40  # characters of a text that its first words are taken from
BARS = 24  # symbols whose probabilities are sent
KEPT = 64  # texts whose states are kept
BEAMS, DEEP = 8, 40  # of a tree
ORDERS = (1, 2, 3, 5)
SAMPLE = 160  # symbols of a sample
COUNTED = 200_000  # symbols that n-grams are counted on
COMES_AFTER = 1 << 20  # seeds of one text's draws
PROMPTS = {"story": "“I ", "code": "static int ", "counting": "aaaaa", "thousand": "aaaaa", "hello": "h"}
IDS = re.compile(r"(\d{1,7}(,\d{1,7})*)?")


class Pen:
    """A language model with the states of what it has written last."""

    def __init__(self, model: LanguageModel):
        self.model = model
        self.states: OrderedDict[tuple[int, ...], tuple[Tensor, State]] = OrderedDict()
        self.ngrams: OrderedDict[tuple[str, int], LanguageModel] = OrderedDict()

    @torch.no_grad()
    def after(self, ids: tuple[int, ...]) -> tuple[Tensor, State]:
        """Log-probabilities (1, V) of the symbol after these, read from the beginning, and the state."""
        if ids not in self.states:
            network, device = self.model.network, self.model.device
            with full_precision():
                if ids[:-1] in self.states:
                    _, state = self.states[ids[:-1]]
                    found = network.step(torch.tensor(ids[-1:], device=device), state)
                else:
                    features, state = network.features(torch.tensor([ids], device=device), network.initial_state(1))
                    found = network.log_probs(features[:, -1]), state
            self.states[ids] = found
        self.states.move_to_end(ids)
        while len(self.states) > KEPT:
            self.states.popitem(last=False)
        return self.states[ids]


def pen_of(session: "Session") -> Pen:
    """The pen of a session's model, which must be a language model that reads one way."""
    if not isinstance(session.model, LanguageModel):
        raise SettingError("a model that reads both ways cannot write; open a language model (lm)")
    if session.pen is None:
        session.pen = Pen(session.model)
    return session.pen


def next_symbol(session: "Session", asked: Asked) -> Answer:
    """What comes next after a prompt and the symbols taken: the likeliest with their probabilities, in the model and as
    they are drawn; which one is drawn by a seed; what was written so far."""
    pen, (prompt, taken) = pen_of(session), _written(session, asked)
    vocabulary, sampling = pen.model.vocabulary, _sampling(asked)
    seed = whole_number(asked, "seed")
    check_seed(seed)
    answer: Answer = {"prompt": pen.model.decode(prompt), "pieces": pieces(pen.model, prompt, taken)}
    if vocabulary.end in taken:
        return answer | {"ended": True, "bars": [], "drawn": None, "bits": 0.0, "rest": 0.0}
    log_probs, _ = pen.after((vocabulary.end, *prompt, *taken))
    possible = without(log_probs, [vocabulary.unknown])
    q = drawn_from(possible, sampling)[0]
    p = log_probs[0].exp()
    best = p.topk(min(BARS, len(p))).indices.tolist()
    generator = torch.Generator(log_probs.device).manual_seed(seed * COMES_AFTER + len(taken))
    drawn = int(choose(possible, sampling, generator)[0])
    shown = best if drawn in best else [*best[:-1], drawn]
    bars = [[i, vocabulary.symbols[i], round(float(p[i]), 5), round(float(q[i]), 5)] for i in shown]
    return answer | {
        "ended": False,
        "bars": bars,
        "rest": round(max(0.0, 1.0 - float(p[shown].sum())), 5),
        "possible": int((q > 0).sum()),
        "of": len(p),
        "bits": round(float(-(p * log_probs[0].clamp(min=-1e9)).sum() / math.log(2)), 3),
        "drawn": drawn,
    }


def _written(session: "Session", asked: Asked) -> tuple[list[int], list[int]]:
    """The ids of the prompt, and of what was taken after it."""
    prompt, taken = asked.get("prompt", ""), asked.get("taken", "")
    if len(prompt) > LONGEST:
        raise SettingError(f"the prompt has {len(prompt):,} characters; at most {LONGEST:,} are read")
    if not IDS.fullmatch(taken):
        raise SettingError("what was taken is a list of the symbols' numbers with commas between")
    ids = [int(each) for each in taken.split(",") if each]
    pen = pen_of(session)
    if len(ids) > LONGEST or any(each >= len(pen.model.vocabulary) for each in ids):
        raise SettingError(f"at most {LONGEST:,} symbols of the model's vocabulary can be taken")
    return pen.model.encode(prompt).tolist(), ids


def _sampling(asked: Asked) -> Sampling:
    """How the next symbol is drawn. A top_k or top_p of 0 leaves nothing out."""
    top_k, top_p = number_within(asked, "top_k", 0, 0, 1e6), number_within(asked, "top_p", 0, 0, 1)
    temperature = number_within(asked, "temperature", 1.0, 0, 10)
    return Sampling(temperature, int(top_k) or None, top_p or None)


def pieces(model: LanguageModel, prompt: list[int], taken: list[int]) -> list[str]:
    """What each symbol taken adds to the text, as it is written."""
    shown = [each for each in taken if each != model.vocabulary.end]
    if model.settings.text.unit == "char":
        return [model.vocabulary.symbols[each] for each in shown]
    texts = [model.decode([*prompt, *shown[:n]]) for n in range(len(shown) + 1)]
    return [after[len(before) :] for before, after in pairwise(texts)]


class Tree:
    """The nodes of a beam search: of each its parent, its symbol (None is the end), the log-probability of the text up
    to it, and the step at which it was made."""

    def __init__(self, symbols: list[str]):
        self.symbols = symbols
        self.nodes: list[dict[str, Any]] = []
        self.open: list[int] = [-1]  # nodes of the open texts, by their numbers

    def watch(self, step: BeamStep) -> None:
        """Adds what a step has done."""
        before, self.open = self.open, []
        rows = zip(step.symbols[0].tolist(), step.parents[0].tolist(), step.log_probs[0].tolist(), strict=True)
        for symbol, parent, log_prob in rows:
            self.open.append(self._add(before, parent, self.symbols[symbol], log_prob))
        for parent, log_prob in zip(step.ending[0].tolist(), step.ended[0].tolist(), strict=True):
            self._add(before, parent, None, log_prob)

    def _add(self, before: list[int], parent: int, symbol: str | None, log_prob: float) -> int:
        if log_prob == -math.inf:
            return -1
        above = before[parent] if parent < len(before) else -1
        self.nodes.append({"parent": above, "symbol": symbol, "log_prob": round(log_prob, 4)})
        return len(self.nodes) - 1

    def path(self, symbols: list[str | None]) -> list[int]:
        """The nodes of a text."""
        found, at = [], -1
        for symbol in symbols:
            here = [n for n, node in enumerate(self.nodes) if node["parent"] == at and node["symbol"] == symbol]
            if not here:
                break
            found.append(at := here[0])
        return found


def beam_tree(session: "Session", asked: Asked) -> Answer:
    """The tree of a beam search after a prompt and what was taken, and the texts that it has found."""
    pen, (prompt, taken) = pen_of(session), _written(session, asked)
    model, vocabulary = pen.model, pen.model.vocabulary
    beams, deep = (int(number_within(asked, *each)) for each in (("beams", 3, 1, BEAMS), ("deep", 12, 1, DEEP)))
    tree = Tree(vocabulary.symbols)
    text = model.decode([*prompt, *(each for each in taken if each != vocabulary.end)])
    known = len(model.encode(text))
    texts = []
    for found in model.search(text, beams=beams, limit=deep, watch=tree.watch):
        symbols: list[str | None] = [vocabulary.symbols[i] for i in model.encode(found.text)[known:].tolist()]
        path = tree.path([*symbols, None] if found.ended else symbols)
        texts.append({"text": found.text, "log_prob": round(found.log_prob, 4), "ended": found.ended, "path": path})
    return {"prompt": text, "nodes": tree.nodes, "texts": texts, "beams": beams, "deep": deep}


def ngram_samples(session: "Session", asked: Asked) -> Answer:
    """Samples from one prompt and seed: of this model, of n-gram models that were given beside it, and of some that are
    counted on the text that is open."""
    pen, name = pen_of(session), text_of(asked)
    prompt, sampling = asked.get("prompt", "")[:LONGEST], _sampling(asked)
    options: dict[str, Any] = {**vars(sampling), "seed": whole_number(asked, "seed"), "limit": SAMPLE}
    made: list[Answer] = [{"name": session.name, "text": pen.model.generate(prompt, **options)}]
    for beside in session.extras.models:
        other = session.extras.model(beside)
        if isinstance(other, LanguageModel) and isinstance(other.network, NGramLM):
            made.append({"name": beside, "text": other.generate(prompt, **options)})
    symbols = 0
    for order in ORDERS:
        model, symbols = _counted(session, pen, name, order)
        made.append({"name": f"{order}-gram", "order": order, "text": model.generate(prompt, **options)})
    return {"samples": made, "title": session.passage(name).title, "symbols": symbols, "prompt": prompt}


def _counted(session: "Session", pen: Pen, name: str, order: int) -> tuple[LanguageModel, int]:
    """An n-gram model of a text, counted once, and how many symbols it has seen."""
    from relmo.explorer.beside import counted  # a page is shown sooner

    symbols = session.document(name).symbols[:COUNTED]
    if (name, order) not in pen.ngrams:
        pen.ngrams[name, order] = counted(pen.model, symbols, order)
    while len(pen.ngrams) > 2 * len(ORDERS):
        pen.ngrams.popitem(last=False)
    return pen.ngrams[name, order], len(symbols)


def first_prompt(session: "Session") -> str:
    """A prompt that suits the text a session opens with: the text's first words where none is known, and nothing where
    the model does not know its symbols."""
    first_words = " ".join(session.passage(session.first).text[:FIRST].split()[:4])
    prompt, model = PROMPTS.get(session.first, first_words), pen_of(session).model
    return "" if model.vocabulary.unknown in model.encode(prompt) else prompt
