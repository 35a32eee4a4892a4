"""Coreference as a user has it: which mentions in a document are of one thing.

coref = relmo.load("models/coref")
found = coref.predict(["Anna saw Bob. She waved to him."])[0]
[[mention.text for mention in cluster] for cluster in found.clusters]      # [['Anna', 'She'], ['Bob', 'him']]
coref.evaluate("dev.conll").values["average_f1"]

A mention that is in no cluster with another is not put out, as in the published network, unless the model was trained
with `output_singletons`. Documents are predicted whole, however long; those to learn from are cut into pieces.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from relmo.errors import CorpusError, SettingError
from relmo.networks.coref import CorefBatch, CorefNetwork, DocumentBatch, DocumentNetwork, SpanLinks
from relmo.networks.inputs import WordInputs
from relmo.settings.arguments import check_sentence
from relmo.settings.coref import CorefModelSettings, CorefSettings, CorefTextSettings
from relmo.tasks.coref_scores import coref_report
from relmo.tasks.coref_text import Mention, ResolvedText
from relmo.tasks.features import EncodedSentences, Say, Words, WordVocabulary
from relmo.tasks.scores import TaskReport
from relmo.tasks.task import Task, Tokenized
from relmo.text.corpus import STDIN, Errors, is_conllu, read_conllu, read_text
from relmo.text.readers.coref import CorefDocument, Place, is_conll, read_documents
from relmo.text.readers.tables import is_jsonl
from relmo.text.sentence_ends import split_tokens
from relmo.text.vocabulary import Vocabulary

GENRES = "genres-vocabulary"
LinkedPlace = tuple[int, int, float | None]  # a mention's words, and the probability of its antecedent
FEWEST = 24  # spans that are kept of any document that has so many: a short one may be half mentions


@dataclass
class EncodedDocuments:
    """Documents as numbers.

    first       (D + 1,): the number of each document's first sentence
    speakers    of each document's words;  genres  (D,)
    clusters    in training, each document's
    """

    model: CorefModelSettings
    sentences: EncodedSentences
    first: np.ndarray
    speakers: list[np.ndarray]
    genres: np.ndarray
    clusters: list[list[list[Place]]] | None

    @property
    def lengths(self) -> np.ndarray:
        """Words of each document."""
        return np.array([len(speakers) for speakers in self.speakers])

    @property
    def predictions(self) -> int:
        """An antecedent for each span that is kept."""
        return sum(self._spans(i)[1] for i in range(len(self.speakers)))

    def batch(self, which: np.ndarray) -> CorefBatch:
        """The documents of these numbers."""
        numbers = [np.arange(self.first[i], self.first[i + 1]) for i in which.tolist()]
        words = self.sentences.batch(np.concatenate(numbers))
        steps = max(int(words.lengths.max()), 1)
        rows = np.cumsum([0, *map(len, numbers)])
        documents = [self._document(i, row * steps, steps) for i, row in zip(which.tolist(), rows, strict=False)]
        if self.clusters is None:
            return CorefBatch(words, documents)
        targets = [torch.from_numpy(self._target(i)) for i in which.tolist()]
        return CorefBatch(words, documents, targets, sum(document.keep for document in documents))

    def _document(self, i: int, begin: int, steps: int) -> DocumentBatch:
        """Document i, whose sentences stand from `begin` on, `steps` places each."""
        lengths = self._sentence_lengths(i)
        number = np.repeat(np.arange(len(lengths)), lengths)  # each word's sentence
        inside = np.arange(len(number)) - np.repeat(np.cumsum(lengths) - lengths, lengths)  # and its place in it
        spans, keep = self._spans(i)
        return DocumentBatch(
            places=torch.from_numpy(begin + number * steps + inside),
            left=torch.from_numpy(lengths[number] - inside),
            speakers=torch.from_numpy(self.speakers[i]),
            genre=torch.tensor(int(self.genres[i])),
            spans=spans,
            keep=keep,
        )

    def _sentence_lengths(self, i: int) -> np.ndarray:
        return self.sentences.lengths[self.first[i] : self.first[i + 1]]

    def _spans(self, i: int) -> tuple[int, int]:
        """How many spans a document has, and how many are kept."""
        lengths, widths = self._sentence_lengths(i), np.arange(self.model.max_width)
        spans = int((lengths[:, None] - widths).clip(min=0).sum())
        return spans, min(spans, max(FEWEST, int(self.model.spans_per_word * lengths.sum())))

    def _target(self, i: int) -> np.ndarray:
        """The number of each span's cluster, (T, L), from 1 on."""
        assert self.clusters is not None
        target = np.zeros((len(self.speakers[i]), self.model.max_width), dtype=np.int64)
        for number, cluster in enumerate(self.clusters[i], start=1):
            for start, end in cluster:
                if end - start <= self.model.max_width:
                    target[start, end - start - 1] = number
        return target


class Coreference(Task[CorefDocument, ResolvedText]):
    """A network that finds mentions and their antecedents, with its vocabularies and settings."""

    kind = "coref"
    input_type = list[list[str]]
    settings: CorefSettings

    @property
    def counted(self) -> str:
        """An antecedent for each span that is kept."""
        return "spans"

    @classmethod
    def read(cls, path: str | Path, text: CorefTextSettings, *, training: bool = False) -> list[CorefDocument]:
        """The documents of a file, with or without mentions that are alone."""
        found = list(read_documents(path, errors=text.errors))
        if text.singletons == "keep":
            return found
        return [each._replace(clusters=[mentions for mentions in each.clusters if len(mentions) > 1]) for each in found]

    @staticmethod
    def texts(example: CorefDocument) -> Sequence[Words]:
        """Its sentences."""
        return example.sentences

    @classmethod
    def vocabulary_types(cls, settings: CorefSettings) -> dict[str, type[Vocabulary]]:
        """Genres."""
        return {GENRES: WordVocabulary}

    @classmethod
    def make_vocabularies(cls, settings: CorefSettings, examples: Sequence[CorefDocument]) -> dict[str, Vocabulary]:
        """The genres that documents' names tell; there must also be something to learn."""
        if not any(len(mentions) > 1 for document in examples for mentions in document.clusters):
            raise CorpusError("no cluster of the training documents has two mentions; there is nothing to learn")
        genres = Counter(document.genre for document in examples if document.genre)
        return {GENRES: WordVocabulary.from_counts(list(genres), np.array(list(genres.values())))}

    def make_network(self, inputs: WordInputs) -> DocumentNetwork:
        """The network of Lee et al. 2017."""
        model = self.settings.model
        body = CorefNetwork(
            input_size=inputs.size,
            again_size=inputs.again_size,
            hidden=model.hidden,
            cell=model.cell,
            layers=model.layers,
            max_width=model.max_width,
            antecedents=model.antecedents,
            mlp=model.mlp,
            feature_dim=model.feature_dim,
            genres=len(self.vocabularies[GENRES]),
            lexical_dropout=model.lexical_dropout,
            dropout=model.dropout,
            mention_weight=model.mention_weight,
        )
        return DocumentNetwork(inputs, body)

    def encode(
        self, examples: Sequence[CorefDocument], *, answers: bool = False, say: Say = lambda _: None
    ) -> EncodedDocuments:
        """Documents as numbers; those to learn from in pieces."""
        if answers:
            most = self.settings.train.max_sentences
            examples = [piece for document in examples for piece in cut(document, most)]
        return EncodedDocuments(
            model=self.settings.model,
            sentences=self.features.encode([words for document in examples for words in document.sentences], say),
            first=np.cumsum([0, *(len(document.sentences) for document in examples)]),
            speakers=[_numbered(document) for document in examples],
            genres=self.vocabularies[GENRES].ids(document.genre for document in examples),
            clusters=[document.clusters for document in examples] if answers else None,
        )

    def decode(self, output: Sequence[SpanLinks], examples: Sequence[CorefDocument]) -> list[ResolvedText]:
        """Clusters of spans and the antecedents that they have."""
        return [_resolve(example, self._clusters(links)) for example, links in zip(examples, output, strict=True)]

    def _clusters(self, links: SpanLinks) -> list[list[LinkedPlace]]:
        """Each span with its best antecedent, where one is better than none."""
        if not len(links.kept):
            return []
        best = links.scores.max(dim=1)
        total = torch.logsumexp(torch.nn.functional.pad(links.scores, (1, 0)), dim=1)  # that of none, 0, among them
        shares = (best.values - total).exp().tolist()
        nearest = torch.where(best.values > 0, best.indices + 1, 0).tolist()  # how many spans before it; 0 is none
        clusters: list[list[int]] = []
        cluster_of: dict[int, list[int]] = {}
        for i, back in enumerate(nearest):
            if back:
                cluster_of[i] = cluster_of.get(i - back) or [i - back]
                if i - back not in cluster_of:
                    cluster_of[i - back] = cluster_of[i]
                    clusters.append(cluster_of[i])
                cluster_of[i].append(i)
        if self.settings.model.output_singletons:
            alone = (links.all_mentions.flatten()[links.kept] > 0).tolist()
            clusters += [[i] for i, mention in enumerate(alone) if mention and i not in cluster_of]
        width, kept = self.settings.model.max_width, links.kept.tolist()
        places = [(number // width, number // width + number % width + 1) for number in kept]
        linked = [(*place, share if back else None) for place, share, back in zip(places, shares, nearest, strict=True)]
        return sorted(([linked[i] for i in each] for each in clusters), key=lambda each: [p[:2] for p in each])

    def score(self, examples: Sequence[CorefDocument], predictions: Sequence[ResolvedText]) -> TaskReport:
        """MUC, B³ and CEAF-φ4; against all clusters that the documents have."""
        return coref_report([each.clusters for each in examples], [each.places for each in predictions])

    def predict(self, documents: Iterable[str | Sequence[Words] | CorefDocument]) -> list[ResolvedText]:
        """The clusters of documents: raw texts, lists of sentences of words, or documents as files have them."""
        if isinstance(documents, str | CorefDocument) or not isinstance(documents, Iterable):
            raise SettingError("predict takes a list of documents: put a single one into a list, predict([text])")
        return super().predict(documents)

    def ask(self, given: str | Sequence[Words] | CorefDocument, *, tokenized: bool = False) -> CorefDocument:
        """A document without its clusters. Raw text is split into words and sentences."""
        if isinstance(given, CorefDocument):
            return given._replace(clusters=[], sentences=given.sentences or [[]])
        if not isinstance(given, str):
            if not isinstance(given, Sequence) or any(isinstance(words, str) for words in given):
                raise SettingError("a document is a string, or a list of sentences, which are lists of words")
            sentences = [list(check_sentence(words, "a sentence")) for words in given]
            return CorefDocument("", "0", sentences or [[]], [])
        tokens = self.tokens(given, tokenized=tokenized)
        split = split_tokens(given, tokens)
        return CorefDocument("", "0", [[t.text for t in each] for each in split] or [[]], [], text=given, tokens=tokens)

    def read_whole(self, path: str, *, errors: Errors) -> list[CorefDocument]:
        """The documents of a file: CoNLL-2012 or JSON lines, as its name says; CoNLL-U's sentences as one; or one
        text."""
        if is_conll(path) or is_jsonl(path):
            return [self.ask(document) for document in read_documents(path, errors=errors, columns=True)]
        if is_conllu(path):
            document = self.ask(list(read_conllu(path, errors=errors)))
        else:
            document = self.ask(read_text(path, errors=errors))
        return [document._replace(name="" if path == STDIN else Path(path).name)]


def cut(document: CorefDocument, most: int) -> Iterator[CorefDocument]:
    """The document in pieces of at most so many sentences, those without words left out. A mention belongs to the piece
    that all of it is in."""
    begin = 0
    for i in range(0, len(document.sentences), most):
        sentences = document.sentences[i : i + most]
        end = begin + sum(map(len, sentences))
        inside = [[(s - begin, e - begin) for s, e in each if begin <= s and e <= end] for each in document.clusters]
        if end > begin:
            speakers = document.speakers[begin:end]
            yield CorefDocument(document.name, document.part, sentences, list(filter(None, inside)), speakers)
        begin = end


def _numbered(document: CorefDocument) -> np.ndarray:
    """The number of each word's speaker, from 1 on; 0 where nobody knows."""
    numbers: dict[str, int] = {"": 0}
    if document.speakers:
        return np.array([numbers.setdefault(name, len(numbers)) for name in document.speakers], dtype=np.int64)
    return np.zeros(sum(map(len, document.sentences)), dtype=np.int64)


def _resolve(document: CorefDocument, clusters: Sequence[Sequence[LinkedPlace]]) -> ResolvedText:
    """A document with these clusters. Where it has no text, one is made, with a sentence a line."""
    if document.tokens:
        words = Tokenized(document.text, document.tokens)
    else:
        lines = "\n".join(map(" ".join, filter(None, document.sentences)))
        words = Tokenized(lines or document.text, Tokenized.of(document.words).tokens)
    found = [
        [Mention(*words.stretch(start, end), start, end, share) for start, end, share in cluster]
        for cluster in clusters
    ]
    return ResolvedText(document.name, words.text, list(words.tokens), list(map(len, document.sentences)), found)
