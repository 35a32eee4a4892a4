"""Sequence-to-sequence models, and what can be asked of them: a text, what becomes of it, and what the decoder looks at
and expects at every step. Beside it, the same from another model.

    session = AlignSession.open("models/translate", beside=["models/fixed"])
    session.answer("align", {"source": "the cat is black"})

As in `session`, an answer is plain data that depends on nothing but the models and what was asked.
"""

import difflib
import threading
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, Literal

import numpy as np

from relmo.errors import ModelError, RelmoError, SettingError
from relmo.explorer.examples import EXAMPLES, example
from relmo.explorer.extras import models_in
from relmo.explorer.ready import READY, read_ready
from relmo.explorer.session import key
from relmo.explorer.start import cards
from relmo.loading import load
from relmo.store.folder import read_config
from relmo.tasks.decoder_steps import DecoderSteps, decoder_steps
from relmo.tasks.seq2seq import MORE, TIMES, Candidate, Rewritten, Seq2Seq
from relmo.text.readers.parallel import TextToText, read_parallel

KIND = "seq2seq"
PAIRS = "examples.tsv"  # in a model's folder: pairs to open it with
READ, OFFERED, TRIED = 2000, 12, 60  # pairs that are read, that a page offers, and that two models are compared on
LONGEST, MOST_UNITS, MOST_STEPS = 2000, 160, 200  # characters and units of a source; units of a text that is written
LIKELY = 10  # units of a distribution that are shown
MOST_BEAMS, BEAMS = 20, 5

Answer = dict[str, Any]
Asked = Mapping[str, str]


def is_seq2seq(source: str) -> bool:
    """Whether this is the folder of a sequence-to-sequence model, or an example that is one."""
    known = example(source)
    folder = known.folder if known else Path(source)
    return (folder / "config.json").is_file() and read_config(folder).get("kind") == KIND


class AlignSession:
    """What the explorer holds of such models.

    name       of the model that was opened, by which the page asks
    models     the first is shown with its steps, one of the others beside it; the first is one with attention if any is
    pairs      examples: sources, and what they should become
    """

    def __init__(self, name: str, models: dict[str, Seq2Seq], pairs: Sequence[TextToText] = ()):
        attentive = sorted(models.items(), key=lambda item: not item[1].has_attention)
        self.name, self.models = name, dict(attentive)
        self.shown, self.model = attentive[0]
        self.lock = threading.RLock()  # a network is run by one thread at a time
        self.pairs = spread(self.model, pairs, OFFERED) or [_made_up(self.model)]
        self.first = self._opening(spread(self.model, pairs, TRIED) or self.pairs)
        self.ahead: Answer = {}  # answers that were made ahead

    @classmethod
    def open(
        cls,
        source: str,
        text: str | None = None,
        *,
        beside: Sequence[str] = (),
        device: str = "auto",
        tokenizer: Literal["words", "whitespace"] | None = None,
    ) -> "AlignSession":
        """The model of a folder or of an example, others beside it, and a file of pairs to take examples from. Where no
        file is given, examples.tsv in the model's folder is one, or the model's validation file where it is found."""
        known = example(source)
        folders = {source: known.folder if known else Path(source)}
        for folder in (each for given in beside for each in models_in(given)):
            folders[folder.name if folder.name not in folders else str(folder)] = folder
        models = {name: _loaded(folder, device).splitting(tokenizer) for name, folder in folders.items()}
        session = cls(source, models, _pairs_of(models[source], folders[source], text))
        if known and not beside and text is None:
            session.ahead = read_ready(known.folder / READY)
        return session

    def answer(self, what: str, asked: Asked) -> Answer:
        """What is asked for by name, with its parameters as text."""
        if what not in ALIGN_ANSWERS:
            raise SettingError(f"there is nothing called {what[:40]!r} to ask a model that translates")
        with self.lock:
            return ALIGN_ANSWERS[what](self, asked)

    def add(self, text: str, language: str | None = None) -> Answer:
        """Texts of users are sources, which are asked about as they are."""
        raise SettingError("a model that translates takes a text as its source; ask for align")

    def about(self, asked: Asked) -> Answer:
        """The models and the examples; and where `opening` is asked for the answer that is shown first."""
        first = {"source": self.first}
        text, model = self.model.settings.text, self.model.settings.model
        return {
            "name": self.name,
            "kind": KIND,
            "cell": model.cell,
            "layers": model.layers,
            "hidden": model.hidden,
            "parameters": self.model.parameter_count(),
            "units": [text.source_unit, text.target_unit],
            "shown": self.shown,
            "beside": [name for name in self.models if name != self.shown],
            "pairs": [
                {"source": pair.source, "target": pair.targets[0] if pair.targets else ""} for pair in self.pairs
            ],
            "first": first["source"],
            "beams": _usual_beams(self.model),
            "examples": [{"name": e.name, "about": e.about} for e in EXAMPLES if example(e.name) is not None],
            "answers": {key(self.name, "align", first): self.align(first)} if "opening" in asked else {},
        }

    def _opening(self, pairs: list[TextToText]) -> str:
        """The source to open with: one that two models do not write alike, the one shown being right where there is
        such a source; else the one in the middle. It is among the examples."""
        if len(self.models) < 2:
            return self.pairs[len(self.pairs) // 2].source
        texts = [self._greedy(model, [pair.source for pair in pairs]) for model in list(self.models.values())[:2]]
        differ = [i for i in range(len(pairs)) if texts[0][i] != texts[1][i]]
        right = [i for i in differ if texts[0][i] in pairs[i].targets]
        chosen = right or differ or range(len(pairs))
        first = pairs[chosen[len(chosen) // 2]]
        self.pairs += [] if first in self.pairs else [first]
        return first.source

    def _greedy(self, model: Seq2Seq, sources: list[str]) -> list[str]:
        found = model.predict(sources, beams=1, limit=MOST_STEPS, attention=False, coverage=0.0)
        return [each.text for each in found]

    def align(self, asked: Asked) -> Answer:
        """What becomes of a source: taken greedily, and the best texts of a beam search, each with its steps; the same
        from another model; and where it is known, what it should become."""
        source, beams = asked.get("source", "").strip(), _beams(asked, self.model)
        if not source:
            raise SettingError("the text is empty; write something to be read")
        if (made := self.ahead.get("align")) and made["source"] == source and beams == _usual_beams(self.model):
            return made
        if len(source) > LONGEST:
            raise SettingError(f"the text has {len(source):,} characters; at most {LONGEST:,} can be looked at")
        names = [name for name in self.models if name != self.shown]
        other = asked.get("other") or (names[0] if names else "")
        if other and other not in names:
            raise SettingError(f"{other[:80]!r} is not beside this model")
        found = [written(name, self.models[name], source, beams) for name in [self.shown, *([other] if other else [])]]
        targets = next((pair.targets for pair in self.pairs if pair.source == source), [])
        against, letters = (targets or [found[0]["written"][0]["text"]])[0], self._letters
        for each in found:
            for text in each["written"]:
                text["parts"] = differences(text["text"], against, letters=letters)
                text["right"] = text["text"] in targets
        return {"source": source, "reference": targets[0] if targets else None, "models": found}

    @property
    def _letters(self) -> bool:
        """Whether texts are compared letter by letter."""
        return self.model.settings.text.target_unit == "char"


ALIGN_ANSWERS: dict[str, Callable[[AlignSession, Asked], Answer]] = {
    "about": AlignSession.about,
    "align": AlignSession.align,
    "start": lambda session, asked: {"cards": cards()},
}
"""What can be asked for, by name."""


def written(name: str, model: Seq2Seq, source: str, beams: int) -> Answer:
    """What a model writes, the greedy text first, then those of the beam search, best first."""
    units = model.source_units.split(source)
    if not units:
        raise SettingError(f"{name} finds nothing that it can read in this text")
    if len(units) > MOST_UNITS:
        raise SettingError(f"{name} reads this as {len(units)} units; at most {MOST_UNITS} can be drawn")
    limit = min(model.search.limit or TIMES * len(units) + MORE, MOST_STEPS)
    greedy = model.predict([source], beams=1, limit=limit, attention=False, coverage=0.0)[0]
    searched = model.predict([source], beams=beams, best=beams, limit=limit, attention=False)[0]
    candidates = [greedy.candidates[0], *searched.candidates]
    steps = decoder_steps(model, model.ask(source), [each.ids for each in candidates])
    body, settings = model.network.body, model.settings
    texts = [_text(model, each, step) for each, step in zip(candidates, steps, strict=True)]
    if model.search.coverage:
        texts[0]["score"] = None  # its score has no coverage, and is compared with none
    return {
        "name": name,
        "attention": settings.model.attention if model.has_attention else "",
        "vector": sum(part.shape[1] for part in body.decoder.initial_state(1)),  # type: ignore[operator, union-attr]
        "source": greedy.source,
        "unknown": _unknown(model, greedy),
        "beams": beams,
        "penalty": model.search.length_penalty,
        "written": texts,
    }


def _text(model: Seq2Seq, text: Candidate, steps: DecoderSteps) -> Answer:
    """A text and its steps; of one that was cut off the end is no step."""
    chosen = [*text.ids, *([model.targets.end] if text.ended else [])]
    weights = None if steps.attention is None else np.round(steps.attention[: len(chosen)].astype(float), 3).tolist()
    return {
        "text": text.text,
        "units": [*text.units, *([None] if text.ended else [])],
        "ended": text.ended,
        "log_prob": round(text.log_prob, 4),
        "score": round(text.score, 4),
        "attention": weights,
        "steps": [_step(model, row, taken) for row, taken in zip(steps.log_probs, chosen, strict=False)],
    }


def _step(model: Seq2Seq, log_probs: np.ndarray, chosen: int) -> list[list[Any]]:
    """The likeliest units of a step: name (None is the end), probability, whether it was taken."""
    best = np.argsort(-log_probs, kind="stable")[:LIKELY].tolist()
    best += [] if chosen in best else [chosen]
    return [[_unit(model, i), round(float(np.exp(log_probs[i])), 4), i == chosen] for i in best]


def _unit(model: Seq2Seq, number: int) -> str | None:
    return None if number == model.targets.end else model.targets.symbols[number]


def _unknown(model: Seq2Seq, found: Rewritten) -> list[int]:
    """The places of source units that the model knows nothing of."""
    words = model.features
    if words.bilm is not None or words.vectors is not None or words.settings.char_dim:
        return []
    folded = [unit.lower() for unit in found.source] if words.settings.lowercase else found.source
    return np.flatnonzero(words.vocabulary.ids(folded) == words.vocabulary.unknown).tolist()


def differences(text: str, against: str, *, letters: bool) -> list[list[str]]:
    """A text in stretches that are the same as another's, other, or missing, by words or by letters."""
    mine, its = (list(each) if letters else each.split() for each in (text, against))
    parts: list[list[str]] = []
    space = "" if letters else " "
    for kind, a, b, c, d in difflib.SequenceMatcher(None, mine, its, autojunk=False).get_opcodes():
        if kind == "equal":
            parts.append(["same", space.join(mine[a:b])])
            continue
        if b > a:
            parts.append(["other", space.join(mine[a:b])])
        if d > c:
            parts.append(["missing", space.join(its[c:d])])
    return parts


def spread(model: Seq2Seq, pairs: Sequence[TextToText], count: int) -> list[TextToText]:
    """Some of the pairs that can be drawn, from the shortest to the longest source."""
    alone = {pair.source: pair for pair in pairs if len(pair.source) <= LONGEST and not pair.tokenized}
    sized = [(len(model.source_units.split(source)), pair) for source, pair in alone.items()]
    fitting = sorted((each for each in sized if each[0] <= MOST_UNITS), key=lambda each: each[0])
    places = np.linspace(0, len(fitting) - 1, min(count, len(fitting))).round().astype(int)
    return [fitting[i][1] for i in places.tolist()]


def _made_up(model: Seq2Seq) -> TextToText:
    """A source of units that the model knows, where no example is found."""
    symbols = model.features.vocabulary.symbols
    units = [unit for unit in symbols if unit not in model.features.vocabulary.specials][:6]
    return TextToText(model.source_units.join(units) or "a", [])


def _loaded(folder: Path, device: str) -> Seq2Seq:
    if (kind := read_config(folder).get("kind")) != KIND:
        raise ModelError(f"{folder}: is of kind {kind}; beside a model that translates stand others that do")
    return load(str(folder), kinds=KIND, device=device)  # type: ignore[return-value]


def _pairs_of(model: Seq2Seq, folder: Path, text: str | None) -> list[TextToText]:
    """Pairs of the file that is given; else of one that is in the folder; else of the validation file, which is read
    only where it lies below the current folder, since the name is the model's word."""
    settings = model.settings.text

    def some(path: str | Path, columns: str | None = settings.column) -> list[TextToText]:
        return list(islice(read_parallel(path, columns=columns, errors=settings.errors), READ))

    if text is not None:
        return some(text)
    if (folder / PAIRS).is_file():
        return some(folder / PAIRS, columns=None)
    named = settings.valid
    if named is None or not all(Path(part).resolve().is_relative_to(Path.cwd()) for part in named.split(",")):
        return []
    try:
        return some(named)
    except RelmoError:
        return []  # it was moved, or is something else by now


def _usual_beams(model: Seq2Seq) -> int:
    return min(max(model.search.beams, BEAMS), MOST_BEAMS)


def _beams(asked: Asked, model: Seq2Seq) -> int:
    given = asked.get("beams") or str(_usual_beams(model))
    if not given.isascii() or not given.isdigit() or not 1 <= int(given[:9]) <= MOST_BEAMS:
        raise SettingError(f"beams is {given[:40]!r}; it is a number from 1 to {MOST_BEAMS}")
    return int(given)
