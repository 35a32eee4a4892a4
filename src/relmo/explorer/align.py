"""Sequence-to-sequence models in the explorer: their output, and attention and predictions at every decoder step.

    session = AlignSession.open("models/translate", companions=["models/fixed"])
    session.answer("align", {"source": "the cat is black"})

As in `session`, answers are plain data that depend only on the models and the parameters.
"""

import difflib
import threading
from collections.abc import Callable, Sequence
from itertools import islice
from pathlib import Path
from typing import Literal

import numpy as np

from relmo.errors import ModelError, RelmoError, SettingError
from relmo.explorer.examples import ANSWERS_FILE, find_example, list_models, load_cards, read_answers
from relmo.explorer.extras import find_models
from relmo.explorer.params import Answer, Params
from relmo.explorer.session import answer_key
from relmo.loading import load
from relmo.store.folder import read_config
from relmo.store.references import find_installed
from relmo.tasks.seq2seq import LENGTH_FACTOR, LENGTH_MARGIN, Seq2Seq, decoder_steps
from relmo.text.readers.parallel import TextToText, read_parallel

KIND = "seq2seq"
PAIRS_FILE = "examples.tsv"  # in a model folder
MAX_PAIRS, NUM_EXAMPLES, NUM_COMPARED = 2000, 12, 60  # pairs that are read, offered, and compared between two models
MAX_CHARACTERS, MAX_UNITS, MAX_STEPS = 2000, 160, 200  # of a source; decoder steps
NUM_PREDICTIONS = 10  # units of a distribution that are sent
MAX_BEAMS, DEFAULT_BEAMS = 20, 5


def is_seq2seq(source: str) -> bool:
    """Return whether this is the folder or the name of a sequence-to-sequence model."""
    folder = find_installed(source) or Path(source)
    return (folder / "config.json").is_file() and read_config(folder).get("kind") == KIND


class AlignSession:
    """State of the explorer for sequence-to-sequence models.

    name       name of the opened model, which requests refer to
    models     models by name; the first is shown with its steps, and is one with attention if there is any
    pairs      example sources with their references
    """

    def __init__(self, name: str, models: dict[str, Seq2Seq], pairs: Sequence[TextToText] = ()):
        self.name = name
        self.models = dict(sorted(models.items(), key=lambda item: not item[1].has_attention))
        self.main_name, self.model = next(iter(self.models.items()))
        self.default_beams = min(max(self.model.search.beams, DEFAULT_BEAMS), MAX_BEAMS)
        self.lock = threading.RLock()  # one thread at a time runs the networks
        self.pairs = select_pairs(self.model, pairs, NUM_EXAMPLES)
        if not self.pairs:  # a source made of the first units of the vocabulary
            vocabulary = self.model.features.vocabulary
            units = [unit for unit in vocabulary.symbols if unit not in vocabulary.specials][:6]
            self.pairs = [TextToText(self.model.source_units.join(units) or "a", [])]
        pair = self.pairs[len(self.pairs) // 2]
        if len(self.models) > 1:  # a source that two models write differently, the main one correctly if possible
            compared, texts = select_pairs(self.model, pairs, NUM_COMPARED) or self.pairs, []
            for model in list(self.models.values())[:2]:
                sources = [pair.source for pair in compared]
                results = model.predict(sources, beams=1, limit=MAX_STEPS, attention=False, coverage=0.0)
                texts.append([result.text for result in results])
            different = [i for i in range(len(compared)) if texts[0][i] != texts[1][i]]
            correct = [i for i in different if texts[0][i] in compared[i].targets]
            candidates = correct or different or range(len(compared))
            pair = compared[candidates[len(candidates) // 2]]
            self.pairs += [] if pair in self.pairs else [pair]
        self.initial_source = pair.source
        self.precomputed: Answer = {}

    @classmethod
    def open(
        cls,
        source: str,
        text: str | None = None,
        *,
        companions: Sequence[str] = (),
        device: str = "auto",
        tokenizer: Literal["words", "whitespace"] | None = None,
    ) -> "AlignSession":
        """Open a model folder or an installed model, companion models, and a file of pairs to take examples from.
        The default file is examples.tsv in the model folder, or the model's validation file if it exists."""
        bundled = find_example(source)
        folders = {source: find_installed(source) or Path(source)}
        for folder in [folder for companion in companions for folder in find_models(companion)]:
            folders[folder.name if folder.name not in folders else str(folder)] = folder
        models = {}
        for name, folder in folders.items():
            if (kind := read_config(folder).get("kind")) != KIND:
                raise ModelError(
                    f"{folder} is of kind {kind}; only sequence-to-sequence models can be compared with this model."
                )
            models[name] = load(str(folder), kinds=KIND, device=device).with_tokenizer(tokenizer)
        session = cls(source, models, _load_pairs(models[source], folders[source], text))  # type: ignore[arg-type]
        if bundled and not companions and text is None:
            session.precomputed = read_answers(bundled.folder / ANSWERS_FILE)
        return session

    def answer(self, endpoint: str, params: Params) -> Answer:
        """Answer a request; parameters are strings, as in a query."""
        if endpoint not in ALIGN_ENDPOINTS:
            raise SettingError(f"Unknown endpoint {endpoint[:40]!r} for a sequence-to-sequence model.")
        with self.lock:
            return ALIGN_ENDPOINTS[endpoint](self, params)

    def add(self, text: str, language: str | None = None) -> Answer:
        """Refuse to add a text: sources are sent with each request."""
        raise SettingError("A sequence-to-sequence model takes texts as sources; use the endpoint align.")

    def about(self, params: Params) -> Answer:
        """Describe the models and the examples; with `opening`, include the answer of the initial view."""
        query = {"source": self.initial_source}
        text, model = self.model.settings.text, self.model.settings.model
        return {
            "name": self.name,
            "kind": KIND,
            "cell": model.cell,
            "layers": model.layers,
            "hidden": model.hidden,
            "parameters": self.model.parameter_count(),
            "units": [text.source_unit, text.target_unit],
            "shown": self.main_name,
            "beside": [name for name in self.models if name != self.main_name],
            "pairs": [{"source": pair.source, "target": next(iter(pair.targets), "")} for pair in self.pairs],
            "first": self.initial_source,
            "beams": self.default_beams,
            "examples": [{"name": model.name, "about": model.about} for model in list_models()],
            "answers": {answer_key(self.name, "align", query): self.align(query)} if "opening" in params else {},
        }

    def align(self, params: Params) -> Answer:
        """Return the greedy and the beam-search outputs for a source, with their steps, of one or two models."""
        source, digits = params.get("source", "").strip(), params.get("beams") or str(self.default_beams)
        if not digits.isascii() or not digits.isdigit() or not 1 <= int(digits[:9]) <= MAX_BEAMS:
            raise SettingError(f"beams is {digits[:40]!r}; expected a number from 1 to {MAX_BEAMS}.")
        if not source:
            raise SettingError("The source is empty.")
        precomputed, beams = self.precomputed.get("align"), int(digits)
        if precomputed and precomputed["source"] == source and beams == self.default_beams:
            return precomputed
        if len(source) > MAX_CHARACTERS:
            raise SettingError(f"The source has {len(source):,} characters; at most {MAX_CHARACTERS:,} are supported.")
        companions = [name for name in self.models if name != self.main_name]
        companion = params.get("other") or next(iter(companions), "")
        if companion and companion not in companions:
            raise SettingError(f"Unknown companion model {companion[:80]!r}.")
        names = [self.main_name, companion] if companion else [self.main_name]
        models = [describe_output(name, self.models[name], source, beams) for name in names]
        targets = next((pair.targets for pair in self.pairs if pair.source == source), [])
        reference = targets[0] if targets else models[0]["written"][0]["text"]
        by_character = self.model.settings.text.target_unit == "char"
        for output in [output for model in models for output in model["written"]]:
            output["parts"] = find_differences(output["text"], reference, by_character=by_character)
            output["right"] = output["text"] in targets
        return {"source": source, "reference": targets[0] if targets else None, "models": models}


ALIGN_ENDPOINTS: dict[str, Callable[[AlignSession, Params], Answer]] = {
    "about": AlignSession.about,
    "align": AlignSession.align,
    "start": lambda session, params: {"cards": load_cards()},
}
"""Endpoints by name."""


def describe_output(name: str, model: Seq2Seq, source: str, beams: int) -> Answer:
    """Return the outputs of a model with their decoder steps: greedy, then the hypotheses of the beam search."""
    units = model.source_units.split(source)
    if not units:
        raise SettingError(f"{name} finds no units in this source.")
    if len(units) > MAX_UNITS:
        raise SettingError(f"{name} splits this source into {len(units)} units; at most {MAX_UNITS} are supported.")
    limit = min(model.search.limit or LENGTH_FACTOR * len(units) + LENGTH_MARGIN, MAX_STEPS)
    greedy = model.predict([source], beams=1, limit=limit, attention=False, coverage=0.0)[0]
    searched = model.predict([source], beams=beams, best=beams, limit=limit, attention=False)[0]
    candidates = [greedy.candidates[0], *searched.candidates]
    steps = decoder_steps(model, model.make_example(source), [candidate.ids for candidate in candidates])
    end, symbols, outputs = model.targets.end, model.targets.symbols, []
    for candidate, candidate_steps in zip(candidates, steps, strict=True):
        ids = [*candidate.ids, *([end] if candidate.ended else [])]  # the end is a step only if it was reached
        distributions = []
        for log_probs, chosen in zip(candidate_steps.log_probs, ids, strict=False):
            best = np.argsort(-log_probs, kind="stable")[:NUM_PREDICTIONS].tolist()
            best += [] if chosen in best else [chosen]
            names = [None if i == end else symbols[i] for i in best]
            p = [round(float(np.exp(log_probs[i])), 4) for i in best]
            distributions.append([[*row] for row in zip(names, p, [i == chosen for i in best], strict=True)])
        attention = candidate_steps.attention
        output: Answer = {
            "text": candidate.text,
            "units": [*candidate.units, *([None] if candidate.ended else [])],
            "ended": candidate.ended,
            "log_prob": round(candidate.log_prob, 4),
            "score": round(candidate.score, 4),
            "attention": None if attention is None else np.round(attention[: len(ids)].astype(float), 3).tolist(),
            "steps": distributions,
        }
        outputs.append(output)
    if model.search.coverage:
        outputs[0]["score"] = None  # the greedy score has no coverage term, so it cannot be compared
    initial_state = model.network.body.decoder.initial_state(1)
    words, unknown = model.features, []  # positions of source units without any features
    if words.bilm is None and words.vectors is None and not words.settings.char_dim:
        source_units = [unit.lower() for unit in greedy.source] if words.settings.lowercase else greedy.source
        unknown = np.flatnonzero(words.vocabulary.ids(source_units) == words.vocabulary.unknown).tolist()
    return {
        "name": name,
        "attention": model.settings.model.attention if model.has_attention else "",
        "vector": sum(part.shape[1] for part in initial_state),
        "source": greedy.source,
        "unknown": unknown,
        "beams": beams,
        "penalty": model.search.length_penalty,
        "written": outputs,
    }


def find_differences(text: str, reference: str, *, by_character: bool) -> list[list[str]]:
    """Split a text into parts that are the same as in the reference, other, or missing, by words or characters."""
    units, expected = (list(t) if by_character else t.split() for t in (text, reference))
    parts: list[list[str]] = []
    space = "" if by_character else " "
    for kind, a, b, c, d in difflib.SequenceMatcher(None, units, expected, autojunk=False).get_opcodes():
        if b > a:
            parts.append(["same" if kind == "equal" else "other", space.join(units[a:b])])
        if d > c and kind != "equal":
            parts.append(["missing", space.join(expected[c:d])])
    return parts


def select_pairs(model: Seq2Seq, pairs: Sequence[TextToText], count: int) -> list[TextToText]:
    """Select pairs that can be drawn, from the shortest to the longest source."""
    by_source = {pair.source: pair for pair in pairs if len(pair.source) <= MAX_CHARACTERS and not pair.tokenized}
    sizes = [(len(model.source_units.split(source)), pair) for source, pair in by_source.items()]
    short = sorted((row for row in sizes if row[0] <= MAX_UNITS), key=lambda row: row[0])
    indices = np.linspace(0, len(short) - 1, min(count, len(short))).round().astype(int)
    return [short[i][1] for i in indices.tolist()]


def _load_pairs(model: Seq2Seq, folder: Path, text: str | None) -> list[TextToText]:
    """Load pairs from the given file, from the model folder, or from the validation file."""
    settings = model.settings.text
    if text is None and (folder / PAIRS_FILE).is_file():
        return list(islice(read_parallel(folder / PAIRS_FILE, errors=settings.errors), MAX_PAIRS))
    path = settings.valid if text is None else text
    # The model names its validation file, which is only read below the current folder.
    is_below = path is not None and all(Path(part).resolve().is_relative_to(Path.cwd()) for part in path.split(","))
    if path is None or (text is None and not is_below):
        return []
    try:
        return list(islice(read_parallel(path, columns=settings.column, errors=settings.errors), MAX_PAIRS))
    except RelmoError:
        if text is not None:
            raise
        return []  # it was moved or changed since the training
