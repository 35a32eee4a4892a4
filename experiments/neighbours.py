"""Nearest neighbours of "play": by word, and by context.

    Peters et al. 2018, Deep contextualized word representations, section 5.3 and Table 4

The neighbours of a static vector mix the senses of the word. A biLM gives each occurrence its own vector: the paper
shows two occurrences of "play", one in sports and one on Broadway, each with a neighbour of the same sense. All four
sentences are in SemCor, which is searched here: every word of every other sentence.

- The paper shows one neighbour for each occurrence, without the number of candidates. Here "rank" is the rank of that
  neighbour among all words of SemCor, and "rank in play" its rank among all other occurrences of "play". Equally near
  words (all of them, without context) share the mean of their ranks.
- Two examples prove little. SemCor tags most forms of "play" with their senses, so a score over all of them is added:
  how often the nearest form in another sentence has the same sense, and the same part of speech. Sentences of one
  document share its topic, which helps. A part of SemCor tags verbs only; the Broadway example is in that part.
- This SemCor has no punctuation; every sentence gets a full stop.
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from experiments.senses import SenseSentence, SenseTag, read_semcor
from experiments.tables import ComparedRow, Controls, PublishedTable, require_data
from experiments.wsd import static_embedder
from relmo.analysis.meaning.occurrences import format_context, normalize
from relmo.errors import CorpusError
from relmo.models.bilm import BiLM
from relmo.models.vectors import WordVectors

PAPER = "Peters et al. 2018, Deep contextualized word representations, Table 4"
WORD = "play"
RANK, RANK_IN_WORD, COSINE, SENSE, POS = "rank", "rank in play", "cosine", "same sense %", "same part of speech %"
COLUMNS = (RANK, RANK_IN_WORD, COSINE, SENSE, POS)
NUM_NEIGHBOURS = 5  # shown for each source
BLOCK_SENTENCES = 512  # embedded at a time
COSINE_TOLERANCE = 1e-5  # smaller differences count as ties
CONTEXT_WORDS = 9  # shown on each side of a neighbour
GLOVE = "playing, game, games, played, players, plays, player, Play, football, multiplayer"


class Source(NamedTuple):
    """Occurrence of the word in the paper and its published neighbour; `text` and `neighbour` are parts of
    sentences."""

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
    """Sentence index and position of a token of the corpus."""

    sentence: int
    position: int


class SemCor(NamedTuple):
    """Tokenised sentences; the places of each source and its neighbour; all occurrences of the word, tagged or not."""

    sentences: list[SenseSentence]
    sources: list[Place]
    neighbours: list[Place]
    occurrences: dict[Place, SenseTag | None]

    def format_context(self, place: Place) -> str:
        """Return the word in brackets with some words on each side."""
        return format_context(self.sentences[place.sentence].words, place.position, CONTEXT_WORDS)


class SourceNeighbours(NamedTuple):
    """Neighbours of a source in one layer: scores by column, and the nearest tokens with their cosines."""

    scores: dict[str, float]
    nearest: list[tuple[Place, float]]


class NetworkNeighbours(NamedTuple):
    """Neighbours by layer and source, and the vectors of each occurrence of the word (layers, dim)."""

    layers: list[list[SourceNeighbours]]
    vectors: dict[Place, np.ndarray]


def make_table(model: BiLM, *, data: Path, controls: Controls, on_message: Callable[[str], None]) -> PublishedTable:
    """Return one row per source and layer, of the model and of the untrained network, and the static vectors' words."""
    on_message("neighbours: reading SemCor")
    corpus = read_corpus(require_data(data, "tasks/wsd/semcor3.jsonl", "SemCor 3.0"))
    words = sum(len(sentence.words) for sentence in corpus.sentences)
    tagged = sum(tag is not None for tag in corpus.occurrences.values())
    extra: dict[str, Any] = {"words": words, "occurrences": len(corpus.occurrences), "tagged": tagged, "nearest": {}}
    rows: list[ComparedRow] = []
    for prefix, network in (("", model), ("untrained, ", controls.untrained)):
        on_message(f"neighbours: embedding {words:,} words with the {'untrained network' if prefix else 'model'}")
        rows += _network_rows(corpus, search(network, corpus, on_message), prefix, extra)
    notes = [
        f"{words:,} words of SemCor. rank: of the paper's neighbour among all words, and among the occurrences of "
        f"{WORD}; without context these are equally near and share the mean of their ranks",
        f"same sense, same part of speech: share of the {tagged:,} tagged forms of {WORD} whose nearest form in "
        f"another sentence has the same; 95% intervals are at most ±{98 / max(tagged, 1) ** 0.5:.0f} points",
        *(f"{source.name} in the paper: {source.text} … -> … {source.neighbour} …" for source in SOURCES),
        f"static vectors in the paper (GloVe): {GLOVE}",
    ]
    if controls.vectors is not None:
        rows.append(_static_row(corpus, controls.vectors))
        extra["static"] = controls.vectors.most_similar(WORD, topn=10) if WORD in controls.vectors else []
        notes.append(f"skip-gram vectors here: {', '.join(word for word, _ in extra['static'])}")
    return PublishedTable("neighbours", f"nearest neighbours of '{WORD}'", PAPER, COLUMNS, rows, notes, extra)


def _network_rows(
    corpus: SemCor, neighbours: NetworkNeighbours, prefix: str, extra: dict[str, Any]
) -> list[ComparedRow]:
    """Return the rows of one network; add the nearest words of each source and layer to `extra`."""
    rows = []
    layers = [f"layer {k}{'' if k else ' (no context)'}" for k in range(len(neighbours.layers))]
    for i, source in enumerate(SOURCES):
        for layer, by_source in zip(layers, neighbours.layers, strict=True):
            name = f"{prefix}{source.name}, {layer}"
            nearest = [(corpus.format_context(place), cosine) for place, cosine in by_source[i].nearest]
            extra["nearest"][name] = [{"text": text, "cosine": cosine} for text, cosine in nearest]
            note = "".join(f"\n{cosine:.2f}  {text}" for text, cosine in nearest)
            rows.append(ComparedRow(name, by_source[i].scores, note=note if not prefix and layer != layers[0] else ""))
    for k, layer in enumerate(layers):
        vectors = {place: vector[k] for place, vector in neighbours.vectors.items()}
        rows.append(ComparedRow(f"{prefix}all tagged, {layer}", score_nearest(corpus, vectors)))
    return rows


def _static_row(corpus: SemCor, vectors: WordVectors) -> ComparedRow:
    places = list(corpus.occurrences)
    forms = [[corpus.sentences[place.sentence].words[place.position]] for place in places]
    embedded = {place: vector[0, 0] for place, vector in zip(places, static_embedder(vectors)(forms), strict=True)}
    return ComparedRow("all tagged, skip-gram vectors", score_nearest(corpus, embedded))


def read_corpus(path: Path) -> SemCor:
    """Read SemCor, add a full stop to each sentence, and find the paper's sentences and all occurrences of the word."""
    sentences = [SenseSentence([*words, "."], tagged) for words, tagged in read_semcor(path)]
    occurrences: dict[Place, SenseTag | None] = {}
    for number, (words, tagged) in enumerate(sentences):
        occurrences |= {Place(number, i): None for i, word in enumerate(words) if word == WORD}
        single = (tag for tag in tagged if tag.lemma.form == WORD and tag.end == tag.start + 1)
        occurrences |= {Place(number, tag.start): tag for tag in single}
    texts = [f" {' '.join(sentence.words)} " for sentence in sentences]

    def find(part: str) -> Place:
        for number, text in enumerate(texts):
            if (begin := text.find(f" {part} ")) >= 0:
                return Place(number, text[:begin].count(" ") + part.split(" ").index(WORD))
        raise CorpusError(f"{path}: no sentence contains “{part}”, which the table needs; use the whole of SemCor 3.0")

    return SemCor(sentences, [find(s.text) for s in SOURCES], [find(s.neighbour) for s in SOURCES], occurrences)


class Search:
    """Running top-k search for queries (Q, D) over rows that are added in batches; missing entries have index -1 and
    cosine -inf."""

    def __init__(self, queries: np.ndarray, k: int):
        self.queries = normalize(queries)
        self.k = k
        self.num_rows = 0
        self.places = np.full((len(queries), k), -1, dtype=np.int64)
        self.cosines = np.full((len(queries), k), -np.inf, dtype=np.float32)

    def add(self, rows: np.ndarray, banned: np.ndarray | None = None) -> np.ndarray:
        """Add rows (n, D), of which those `banned` (Q, n) are no neighbours, and return all cosines (Q, n)."""
        k, n = self.k, len(rows)
        all_cosines = self.queries @ normalize(rows).T
        allowed = all_cosines if banned is None else np.where(banned, -np.inf, all_cosines)
        for query, cosines in enumerate(allowed):
            least = np.partition(cosines, n - k)[n - k] if n > k else -np.inf
            new = np.flatnonzero((cosines >= least) & (cosines > self.cosines[query, -1]))
            merged = np.concatenate([self.cosines[query], cosines[new]])
            best = np.argsort(-merged, kind="stable")[:k]  # stable: earlier rows win ties
            self.places[query] = np.concatenate([self.places[query], self.num_rows + new])[best]
            self.cosines[query] = merged[best]
        self.num_rows += n
        return all_cosines


def search(model: BiLM, corpus: SemCor, on_message: Callable[[str], None]) -> NetworkNeighbours:
    """Search all other sentences for the nearest tokens of each source; collect the vectors of the word's
    occurrences."""
    places = [*corpus.sources, *corpus.neighbours]
    embedded = model.embed(_lines(model, [corpus.sentences[place.sentence] for place in places]))
    ends = np.stack([layers[:, place.position] for layers, place in zip(embedded, places, strict=True)], axis=1)
    queries, targets = np.split(ends, 2, axis=1)  # (L, Q, D) each
    cosines = np.stack(
        [(normalize(q) * normalize(t)).sum(axis=1) for q, t in zip(queries, targets, strict=True)]
    )  # (L, Q)
    searches = [Search(query, NUM_NEIGHBOURS) for query in queries]
    ranks = np.full(cosines.shape, 0.5)  # (L, Q): 1 for each nearer token, 0.5 for each equally near (the target too)
    vectors: dict[Place, np.ndarray] = {}
    for begin, block in _blocks(model, corpus):
        flat = np.concatenate(block, axis=1)  # (L, n, D)
        numbers = np.repeat(np.arange(begin, begin + len(block)), [layers.shape[1] for layers in block])
        banned = np.stack([numbers == place.sentence for place in corpus.sources])  # (Q, n)
        for layer, layer_search in enumerate(searches):
            gaps = np.where(banned, -np.inf, layer_search.add(flat[layer], banned)) - cosines[layer][:, None]
            ranks[layer] += (gaps > COSINE_TOLERANCE).sum(axis=1) + 0.5 * (np.abs(gaps) <= COSINE_TOLERANCE).sum(axis=1)
        for place in (place for place in corpus.occurrences if begin <= place.sentence < begin + len(block)):
            vectors[place] = block[place.sentence - begin][:, place.position]
        if begin // BLOCK_SENTENCES % 20 == 19:
            on_message(f"neighbours: {begin / len(corpus.sentences):.0%}")
    all_places = [Place(n, i) for n, sentence in enumerate(corpus.sentences) for i in range(len(sentence.words))]
    layers: list[list[SourceNeighbours]] = []
    for layer, layer_search in enumerate(searches):
        layers.append([])
        for i in range(len(SOURCES)):
            rank_in_word = _rank_in_word(corpus, vectors, i, layer)
            scores = {RANK: float(ranks[layer, i]), RANK_IN_WORD: rank_in_word, COSINE: float(cosines[layer, i])}
            pairs = zip(layer_search.places[i], layer_search.cosines[i], strict=True)
            nearest = [(all_places[token], float(cosine)) for token, cosine in pairs if token >= 0]
            layers[-1].append(SourceNeighbours(scores, nearest))
    return NetworkNeighbours(layers, vectors)


def _lines(model: BiLM, sentences: Sequence[SenseSentence]) -> Iterator[list[str]]:
    lowercase = model.settings.text.lowercase
    return ([word.lower() for word in s.words] if lowercase else s.words for s in sentences)


def _blocks(model: BiLM, corpus: SemCor) -> Iterator[tuple[int, list[np.ndarray]]]:
    """Yield the index of the first sentence of a block and the vectors (layers, tokens, dim) of its sentences."""
    stream = model.embed_stream(_lines(model, corpus.sentences))
    begin = 0
    while block := list(islice(stream, BLOCK_SENTENCES)):
        yield begin, block
        begin += len(block)


def _rank_in_word(corpus: SemCor, vectors: dict[Place, np.ndarray], i: int, layer: int) -> float:
    """Return the rank of the published neighbour among the other occurrences of the word, for source `i`."""
    source, neighbour = corpus.sources[i], corpus.neighbours[i]
    candidates = [
        place
        for place in vectors
        if place.sentence != source.sentence and corpus.sentences[place.sentence].words[place.position] == WORD
    ]
    cosines = (
        normalize(np.stack([vectors[place][layer] for place in candidates])) @ normalize(vectors[source][[layer]])[0]
    )
    gaps = cosines - cosines[candidates.index(neighbour)]
    return float(0.5 + (gaps > COSINE_TOLERANCE).sum() + 0.5 * (np.abs(gaps) <= COSINE_TOLERANCE).sum())


def score_nearest(corpus: SemCor, vectors: dict[Place, np.ndarray]) -> dict[str, float]:
    """Return the percentage of tagged occurrences, with vectors (D,), whose nearest occurrence in another sentence has
    the same sense, and the same part of speech. Of several equally near ones the mean counts."""
    tagged = {place: tag for place in vectors if (tag := corpus.occurrences[place]) is not None}
    rows = normalize(np.stack([vectors[place] for place in tagged]))
    cosines = rows @ rows.T  # (n, n)
    sentence = np.array([place.sentence for place in tagged])
    cosines[sentence[:, None] == sentence] = -np.inf
    nearest = cosines >= cosines.max(axis=1, keepdims=True) - COSINE_TOLERANCE
    tags = list(tagged.values())
    sense = np.array([[bool({*a.senses} & {*b.senses}) for b in tags] for a in tags])
    pos = np.array([[a.lemma.pos == b.lemma.pos for b in tags] for a in tags])
    return {
        name: 100 * float(((nearest & same).sum(1) / nearest.sum(1)).mean())
        for name, same in ((SENSE, sense), (POS, pos))
    }
