"""Nearest neighbours of "play": by word, and by context.

    Peters et al. 2018, Deep contextualized word representations, section 5.3 and Table 4

The neighbours of the word's static vector mix its senses. A biLM gives each occurrence its own vector: the paper shows
two occurrences of "play", one in sports and one on Broadway, each with a neighbour of the same sense. All four
sentences are in SemCor, and SemCor is searched here: every word of every other sentence.

What the figures depend on:
- The paper shows one neighbour for each occurrence and does not say among how many it was found. Here "rank" is the
  place of that neighbour among all words of SemCor, and "rank in play" its place among all other occurrences of "play".
  Where several are equally near, as they all are without context, each has the mean of the ranks they share.
- Two examples prove little. SemCor tags most forms of "play" with their senses, so there is a figure over all of them:
  how often the nearest form in another sentence has the same sense, and the same part of speech. Sentences of one
  document share its topic, which helps. A part of SemCor tags verbs only; the Broadway example is in that part.
- This SemCor has no punctuation; every sentence gets a full stop.
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from relmo.analysis.meaning.lookup import in_context
from relmo.analysis.meaning.neighbours import Search, unit
from relmo.analysis.meaning.senses import static_layer
from relmo.errors import CorpusError
from relmo.models.bilm import BiLM
from relmo.models.vectors import WordVectors
from relmo.reproduce.controls import Controls
from relmo.reproduce.data import required
from relmo.reproduce.table import ComparedRow, Reproduction
from relmo.text.senses import SenseSentence, SenseTag, read_semcor

PAPER = "Peters et al. 2018, Deep contextualized word representations, Table 4"
WORD = "play"
RANK, RANK_IN_WORD, COSINE, SENSE, POS = "rank", "rank in play", "cosine", "same sense %", "same part of speech %"
COLUMNS = (RANK, RANK_IN_WORD, COSINE, SENSE, POS)
SHOWN = 5  # neighbours of each source
AT_ONCE = 512  # sentences
EQUAL = 1e-5  # cosines this near are the same
AROUND = 9  # words shown on each side of a neighbour
GLOVE = "playing, game, games, played, players, plays, player, Play, football, multiplayer"


class Source(NamedTuple):
    """An occurrence of the word in the paper, and the neighbour it has there; a part of each sentence that has it."""

    name: str
    text: str
    neighbour: str


SOURCES = (
    Source(
        "sports",
        "Chico Ruiz made a spectacular play on Alusik 's grounder",
        "was commended for his ability to hit in the clutch as well as his all-round excellent play",
    ),
    Source(
        "Broadway",
        "Olivia De Havilland signed to do a Broadway play for Garson",
        "they were actors who had been handed fat roles in a successful play and had talent enough",
    ),
)


class Place(NamedTuple):
    """A word of a sentence of the corpus."""

    sentence: int
    position: int


class SemCor(NamedTuple):
    """Sentences of words; where each source and its neighbour stand; the occurrences of the word, tagged or not."""

    sentences: list[SenseSentence]
    sources: list[Place]
    neighbours: list[Place]
    occurrences: dict[Place, SenseTag | None]

    def in_context(self, place: Place) -> str:
        """A word in brackets, and some words on each side."""
        return in_context(self.sentences[place.sentence].words, place.position, AROUND)


class SourceNeighbours(NamedTuple):
    """What a layer finds for a source: figures by column, and the nearest words of the corpus with their cosines."""

    figures: dict[str, float]
    nearest: list[tuple[Place, float]]


class NetworkNeighbours(NamedTuple):
    """What a network finds for each layer and source, and the vectors of each occurrence (L, D)."""

    found: list[list[SourceNeighbours]]
    forms: dict[Place, np.ndarray]


def reproduce(model: BiLM, *, data: Path, controls: Controls, say: Callable[[str], None]) -> Reproduction:
    """The table: a row a source and layer, of the model and of the untrained network; the static vectors' words."""
    say("neighbours: reading SemCor")
    corpus = read_corpus(required(data, "tasks/wsd/semcor3.jsonl", "SemCor 3.0"))
    words = sum(len(sentence.words) for sentence in corpus.sentences)
    tagged = sum(tag is not None for tag in corpus.occurrences.values())
    extra: dict[str, Any] = {"words": words, "occurrences": len(corpus.occurrences), "tagged": tagged, "nearest": {}}
    rows: list[ComparedRow] = []
    for prefix, network in (("", model), ("untrained, ", controls.untrained)):
        say(f"neighbours: {words:,} words of SemCor through the {'untrained network' if prefix else 'model'}")
        rows += _network_rows(corpus, search(network, corpus, say), prefix, extra)
    notes = [
        f"{words:,} words of SemCor. rank: of the neighbour that the paper shows, among all of them, and among the "
        f"occurrences of {WORD}; without context these are equally near, and share the mean of their ranks",
        f"same sense, same part of speech: how many of the {tagged:,} tagged forms of {WORD} have those of the nearest "
        f"in another sentence; 95% intervals are at most {98 / max(tagged, 1) ** 0.5:.0f} points wide on each side",
        *(f"{source.name} in the paper: {source.text} … -> … {source.neighbour} …" for source in SOURCES),
        f"static vectors in the paper (GloVe): {GLOVE}",
    ]
    if controls.vectors is not None:
        rows.append(_static_row(corpus, controls.vectors))
        extra["static"] = controls.vectors.most_similar(WORD, topn=10) if WORD in controls.vectors else []
        notes.append(f"skip-gram vectors here: {', '.join(word for word, _ in extra['static'])}")
    return Reproduction("neighbours", f"nearest neighbours of '{WORD}'", PAPER, COLUMNS, rows, notes, extra)


def _network_rows(corpus: SemCor, result: NetworkNeighbours, prefix: str, extra: dict[str, Any]) -> list[ComparedRow]:
    """The rows of one network; the nearest words of each source and layer also go into `extra`."""
    rows = []
    layers = [f"layer {k}{'' if k else ' (no context)'}" for k in range(len(result.found))]
    for i, source in enumerate(SOURCES):
        for layer, each in zip(layers, result.found, strict=True):
            name = f"{prefix}{source.name}, {layer}"
            shown = [(corpus.in_context(place), cosine) for place, cosine in each[i].nearest]
            extra["nearest"][name] = [{"text": text, "cosine": cosine} for text, cosine in shown]
            note = "".join(f"\n{cosine:.2f}  {text}" for text, cosine in shown)
            rows.append(ComparedRow(name, each[i].figures, note=note if not prefix and layer != layers[0] else ""))
    for k, layer in enumerate(layers):
        vectors = {place: vector[k] for place, vector in result.forms.items()}
        rows.append(ComparedRow(f"{prefix}all tagged, {layer}", same_as_nearest(corpus, vectors)))
    return rows


def _static_row(corpus: SemCor, vectors: WordVectors) -> ComparedRow:
    """The tagged occurrences by the static vectors of their forms."""
    places = list(corpus.occurrences)
    forms = [[corpus.sentences[place.sentence].words[place.position]] for place in places]
    found = {place: vector[0, 0] for place, vector in zip(places, static_layer(vectors)(forms), strict=True)}
    return ComparedRow("all tagged, skip-gram vectors", same_as_nearest(corpus, found))


def read_corpus(path: Path) -> SemCor:
    """SemCor with a full stop after each sentence, and the places that the table is about."""
    sentences = [SenseSentence([*words, "."], tagged) for words, tagged in read_semcor(path)]
    occurrences: dict[Place, SenseTag | None] = {}
    for number, (words, tagged) in enumerate(sentences):
        occurrences |= {Place(number, i): None for i, word in enumerate(words) if word == WORD}
        own = (each for each in tagged if each.lemma.form == WORD and each.end == each.start + 1)
        occurrences |= {Place(number, each.start): each for each in own}
    texts = [f" {' '.join(sentence.words)} " for sentence in sentences]

    def find(part: str) -> Place:
        """Where the word stands in the sentence that has this part."""
        for number, text in enumerate(texts):
            if (begin := text.find(f" {part} ")) >= 0:
                return Place(number, text[:begin].count(" ") + part.split(" ").index(WORD))
        raise CorpusError(f"{path}: no sentence has “{part}”, which the table is about; give the whole of SemCor 3.0")

    return SemCor(sentences, [find(s.text) for s in SOURCES], [find(s.neighbour) for s in SOURCES], occurrences)


def search(model: BiLM, corpus: SemCor, say: Callable[[str], None]) -> NetworkNeighbours:
    """What is near to each source in all other sentences, and the vectors of the word's occurrences."""
    places = [*corpus.sources, *corpus.neighbours]
    known = model.embed(_texts(model, [corpus.sentences[place.sentence] for place in places]))
    ends = np.stack([layers[:, place.position] for layers, place in zip(known, places, strict=True)], axis=1)
    queries, targets = np.split(ends, 2, axis=1)  # (L, Q, D) each
    limits = np.stack([(unit(q) * unit(t)).sum(axis=1) for q, t in zip(queries, targets, strict=True)])  # (L, Q)
    searches = [Search(query, SHOWN) for query in queries]
    ranks = np.full(limits.shape, 0.5)  # (L, Q): one more for each that is nearer, a half for each as near (itself)
    forms: dict[Place, np.ndarray] = {}
    for begin, block in _blocks(model, corpus):
        flat = np.concatenate(block, axis=1)  # (L, n, D)
        numbers = np.repeat(np.arange(begin, begin + len(block)), [layers.shape[1] for layers in block])
        banned = np.stack([numbers == place.sentence for place in corpus.sources])  # (Q, n)
        for layer, each in enumerate(searches):
            gaps = np.where(banned, -np.inf, each.add(flat[layer], banned)) - limits[layer][:, None]
            ranks[layer] += (gaps > EQUAL).sum(axis=1) + 0.5 * (np.abs(gaps) <= EQUAL).sum(axis=1)
        for place in (place for place in corpus.occurrences if begin <= place.sentence < begin + len(block)):
            forms[place] = block[place.sentence - begin][:, place.position]
        if begin // AT_ONCE % 20 == 19:
            say(f"neighbours: {begin / len(corpus.sentences):.0%}")
    every = [Place(n, i) for n, sentence in enumerate(corpus.sentences) for i in range(len(sentence.words))]

    def found(layer: int, i: int) -> SourceNeighbours:
        figures = {
            RANK: ranks[layer, i],
            RANK_IN_WORD: _rank_in_word(corpus, forms, i, layer),
            COSINE: limits[layer, i],
        }
        pairs = zip(searches[layer].places[i], searches[layer].cosines[i], strict=True)
        nearest = [(every[at], float(cosine)) for at, cosine in pairs if at >= 0]
        return SourceNeighbours({name: float(value) for name, value in figures.items()}, nearest)

    return NetworkNeighbours([[found(layer, i) for i in range(len(SOURCES))] for layer in range(len(searches))], forms)


def _texts(model: BiLM, sentences: Sequence[SenseSentence]) -> Iterator[list[str]]:
    lower = model.settings.text.lowercase
    return ([word.lower() for word in each.words] if lower else each.words for each in sentences)


def _blocks(model: BiLM, corpus: SemCor) -> Iterator[tuple[int, list[np.ndarray]]]:
    """Vectors (L, words, D) of some sentences at a time, and the number of the first."""
    stream = model.embed_stream(_texts(model, corpus.sentences))
    begin = 0
    while block := list(islice(stream, AT_ONCE)):
        yield begin, block
        begin += len(block)


def _rank_in_word(corpus: SemCor, forms: dict[Place, np.ndarray], i: int, layer: int) -> float:
    """The published neighbour's rank among the other occurrences of the word, as source `i` sees them."""
    source, neighbour = corpus.sources[i], corpus.neighbours[i]
    others = [
        place
        for place in forms
        if place.sentence != source.sentence and corpus.sentences[place.sentence].words[place.position] == WORD
    ]
    cosines = unit(np.stack([forms[place][layer] for place in others])) @ unit(forms[source][[layer]])[0]
    gaps = cosines - cosines[others.index(neighbour)]
    return float(0.5 + (gaps > EQUAL).sum() + 0.5 * (np.abs(gaps) <= EQUAL).sum())


def same_as_nearest(corpus: SemCor, vectors: dict[Place, np.ndarray]) -> dict[str, float]:
    """How many of the tagged occurrences, with their vectors (D,), have the sense, and how many the part of speech, of
    the nearest occurrence in another sentence. Where several are equally near, their mean counts. In percent."""
    tagged = {place: tag for place in vectors if (tag := corpus.occurrences[place]) is not None}
    rows = unit(np.stack([vectors[place] for place in tagged]))
    cosines = rows @ rows.T  # (n, n)
    sentence = np.array([place.sentence for place in tagged])
    cosines[sentence[:, None] == sentence] = -np.inf
    nearest = cosines >= cosines.max(axis=1, keepdims=True) - EQUAL
    tags = list(tagged.values())
    sense = np.array([[bool({*a.senses} & {*b.senses}) for b in tags] for a in tags])
    pos = np.array([[a.lemma.pos == b.lemma.pos for b in tags] for a in tags])
    shares = {SENSE: sense, POS: pos}
    return {name: 100 * float(((nearest & same).sum(1) / nearest.sum(1)).mean()) for name, same in shares.items()}
