"""Coreference resolution: which mentions in a document refer to the same entity.

coref = relmo.load("models/coref")
document = coref.predict(["Anna saw Bob. She waved to him."])[0]
[[mention.text for mention in cluster] for cluster in document.clusters]   # [['Anna', 'She'], ['Bob', 'him']]
coref.evaluate("dev.conll").values["average_f1"]

A mention without an antecedent is not returned, as in the published network, unless the model was trained with
`output_singletons`. Documents of any length are predicted as a whole; training documents are cut into pieces.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
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
from relmo.tasks.features import EncodedSentences, MessageCallback, Words, WordVocabulary
from relmo.tasks.scores import TaskReport
from relmo.tasks.task import Task, Tokenized
from relmo.text.corpus import STDIN, Errors, is_conllu, read_conllu, read_text
from relmo.text.readers.coref import CorefDocument, is_conll, read_documents
from relmo.text.readers.tables import is_jsonl
from relmo.text.tokenize import split_tokens
from relmo.text.vocabulary import Vocabulary

GENRES = "genres-vocabulary"
MIN_SPANS = 24  # spans that are kept of any document that has as many: half of a short one may be mentions
LinkedSpan = tuple[int, int, float | None]  # first word, end, probability of the antecedent


class EncodedDocuments:
    """Documents as arrays.

    starts      (D + 1,): index of each document's first sentence
    speakers    speaker of each word, of each document;  genres  (D,)
    documents   the documents themselves
    """

    def __init__(
        self,
        model: CorefModelSettings,
        sentences: EncodedSentences,
        documents: Sequence[CorefDocument],
        genres: np.ndarray,
        *,
        answers: bool,
    ):
        self.model, self.sentences, self.documents = model, sentences, documents
        self.genres, self.answers = genres, answers
        self.starts = np.cumsum([0, *(len(document.sentences) for document in documents)])
        self.speakers = [_number_speakers(document) for document in documents]
        self.lengths = np.array([len(speakers) for speakers in self.speakers])
        self.predictions = sum(self._count_spans(i)[1] for i in range(len(documents))) if answers else 0

    def batch(self, indices: np.ndarray) -> CorefBatch:
        """Return the batch of the documents with these indices."""
        numbers = [np.arange(self.starts[i], self.starts[i + 1]) for i in indices.tolist()]
        words = self.sentences.batch(np.concatenate(numbers))
        steps = max(int(words.lengths.max()), 1)
        rows = np.cumsum([0, *map(len, numbers)])
        documents = []
        for i, row in zip(indices.tolist(), rows, strict=False):
            lengths = self._sentence_lengths(i)
            sentence = np.repeat(np.arange(len(lengths)), lengths)  # of each word
            position = np.arange(len(sentence)) - np.repeat(np.cumsum(lengths) - lengths, lengths)  # in the sentence
            num_spans, num_kept = self._count_spans(i)
            document = DocumentBatch(
                positions=torch.from_numpy(row * steps + sentence * steps + position),
                num_left=torch.from_numpy(lengths[sentence] - position),
                speakers=torch.from_numpy(self.speakers[i]),
                genre=torch.tensor(int(self.genres[i])),
                num_spans=num_spans,
                num_kept=num_kept,
            )
            documents.append(document)
        if not self.answers:
            return CorefBatch(words, documents)
        targets = [torch.from_numpy(self._target(i)) for i in indices.tolist()]
        return CorefBatch(words, documents, targets, sum(document.num_kept for document in documents))

    def _sentence_lengths(self, i: int) -> np.ndarray:
        return self.sentences.lengths[self.starts[i] : self.starts[i + 1]]

    def _count_spans(self, i: int) -> tuple[int, int]:
        """Return the number of spans of a document, and of those to keep."""
        lengths, widths = self._sentence_lengths(i), np.arange(self.model.max_width)
        num_spans = int((lengths[:, None] - widths).clip(min=0).sum())
        return num_spans, min(num_spans, max(MIN_SPANS, int(self.model.spans_per_word * lengths.sum())))

    def _target(self, i: int) -> np.ndarray:
        """Return the number of each span's cluster, (T, L), from 1."""
        target = np.zeros((len(self.speakers[i]), self.model.max_width), dtype=np.int64)
        for number, cluster in enumerate(self.documents[i].clusters, start=1):
            for start, end in cluster:
                if end - start <= self.model.max_width:
                    target[start, end - start - 1] = number
        return target


class Coreference(Task[CorefDocument, ResolvedText]):
    """Network that finds mentions and their antecedents, with its vocabularies and settings."""

    kind = "coref"
    input_type = list[list[str]]
    prediction_unit = "spans"
    settings: CorefSettings

    @classmethod
    def read(cls, path: str | Path, text: CorefTextSettings, *, training: bool = False) -> list[CorefDocument]:
        """Read the documents of a file; the settings say whether singletons are kept."""
        documents = list(read_documents(path, errors=text.errors))
        if text.singletons == "keep":
            return documents
        return [d._replace(clusters=[cluster for cluster in d.clusters if len(cluster) > 1]) for d in documents]

    @staticmethod
    def texts(example: CorefDocument) -> Sequence[Words]:
        return example.sentences

    @classmethod
    def vocabulary_types(cls, settings: CorefSettings) -> dict[str, type[Vocabulary]]:
        return {GENRES: WordVocabulary}

    @classmethod
    def make_vocabularies(cls, settings: CorefSettings, examples: Sequence[CorefDocument]) -> dict[str, Vocabulary]:
        """Return the genres in the names of documents. Documents without any coreference are an error."""
        if not any(len(mentions) > 1 for document in examples for mentions in document.clusters):
            raise CorpusError("no cluster of the training documents has two mentions")
        genres = Counter(document.genre for document in examples if document.genre)
        return {GENRES: WordVocabulary.from_counts(list(genres), np.array(list(genres.values())))}

    def make_network(self, inputs: WordInputs) -> DocumentNetwork:
        """Create the network of Lee et al. 2017."""
        body = CorefNetwork(
            self.settings.model,
            input_size=inputs.size,
            num_genres=len(self.vocabularies[GENRES]),
            elmo_size=inputs.elmo_size,
        )
        return DocumentNetwork(inputs, body)

    def encode(
        self, examples: Sequence[CorefDocument], *, answers: bool = False, on_message: MessageCallback = lambda _: None
    ) -> EncodedDocuments:
        """Encode documents as arrays; with `answers`, in pieces of at most `max_sentences`."""
        if answers:
            max_sentences = self.settings.train.max_sentences
            examples = [piece for document in examples for piece in cut_document(document, max_sentences)]
        sentences = [words for document in examples for words in document.sentences]
        return EncodedDocuments(
            self.settings.model,
            self.features.encode(sentences, on_message),
            examples,
            self.vocabularies[GENRES].ids(document.genre for document in examples),
            answers=answers,
        )

    def decode(self, output: Sequence[SpanLinks], examples: Sequence[CorefDocument]) -> list[ResolvedText]:
        """Convert the scores of antecedents to clusters. A document without a text gets one, with a line per
        sentence."""
        predictions = []
        for document, links in zip(examples, output, strict=True):
            if document.tokens:
                words = Tokenized(document.text, document.tokens)
            else:
                lines = "\n".join(map(" ".join, filter(None, document.sentences)))
                words = Tokenized(lines or document.text, Tokenized.from_words(document.words).tokens)
            clusters = [
                [Mention(*words.span(start, end), start, end, probability) for start, end, probability in cluster]
                for cluster in self._link_spans(links)
            ]
            lengths = list(map(len, document.sentences))
            predictions.append(ResolvedText(document.name, words.text, list(words.tokens), lengths, clusters))
        return predictions

    def _link_spans(self, links: SpanLinks) -> list[list[LinkedSpan]]:
        """Link each span to its best antecedent with a positive score, and return the clusters."""
        if not len(links.kept):
            return []
        best = links.scores.max(dim=1)
        # the score of having no antecedent is 0
        total = torch.logsumexp(torch.nn.functional.pad(links.scores, (1, 0)), dim=1)
        probabilities = (best.values - total).exp().tolist()
        distances = torch.where(best.values > 0, best.indices + 1, 0).tolist()  # in kept spans; 0 for no antecedent
        clusters: list[list[int]] = []
        cluster_of: dict[int, list[int]] = {}
        for i, distance in enumerate(distances):
            if distance:
                cluster_of[i] = cluster_of.get(i - distance) or [i - distance]
                if i - distance not in cluster_of:
                    cluster_of[i - distance] = cluster_of[i]
                    clusters.append(cluster_of[i])
                cluster_of[i].append(i)
        if self.settings.model.output_singletons:
            is_mention = (links.all_mentions.flatten()[links.kept] > 0).tolist()
            clusters += [[i] for i, mention in enumerate(is_mention) if mention and i not in cluster_of]
        width, spans = self.settings.model.max_width, []
        for number, probability, distance in zip(links.kept.tolist(), probabilities, distances, strict=True):
            start = number // width
            spans.append((start, start + number % width + 1, probability if distance else None))
        linked = [[spans[i] for i in cluster] for cluster in clusters]
        return sorted(linked, key=lambda cluster: [span[:2] for span in cluster])

    def score(self, examples: Sequence[CorefDocument], predictions: Sequence[ResolvedText]) -> TaskReport:
        """Compute MUC, B³ and CEAF-φ4 against all clusters of the documents."""
        return coref_report([document.clusters for document in examples], [text.places for text in predictions])

    def predict(self, documents: Iterable[str | Sequence[Words] | CorefDocument]) -> list[ResolvedText]:
        """Find the clusters of documents: raw texts, lists of sentences of words, or documents read from files."""
        if isinstance(documents, str | CorefDocument) or not isinstance(documents, Iterable):
            raise SettingError("predict takes a list of documents: put a single one into a list, predict([text])")
        return super().predict(documents)

    def make_example(self, inputs: str | Sequence[Words] | CorefDocument, *, tokenized: bool = False) -> CorefDocument:
        """Return a document without its clusters. Raw text is split into words and sentences."""
        if isinstance(inputs, CorefDocument):
            return inputs._replace(clusters=[], sentences=inputs.sentences or [[]])
        if isinstance(inputs, str):
            tokens = self.tokens(inputs, tokenized=tokenized)
            sentences = [[token.text for token in sentence] for sentence in split_tokens(inputs, tokens)]
            return CorefDocument("", "0", sentences or [[]], [], text=inputs, tokens=tokens)
        if not isinstance(inputs, Sequence) or any(isinstance(words, str) for words in inputs):
            raise SettingError("a document must be a string or a list of sentences, each a list of words")
        sentences = [list(check_sentence(words, "a sentence")) for words in inputs]
        return CorefDocument("", "0", sentences or [[]], [])

    def read_file(self, path: str, *, errors: Errors) -> list[CorefDocument]:
        """Read the documents of CoNLL-2012 or JSON lines by the name of the file, or a file as one document."""
        if is_conll(path) or is_jsonl(path):
            return [self.make_example(document) for document in read_documents(path, errors=errors, columns=True)]
        if is_conllu(path):
            document = self.make_example(list(read_conllu(path, errors=errors)))
        else:
            document = self.make_example(read_text(path, errors=errors))
        return [document._replace(name="" if path == STDIN else Path(path).name)]


def cut_document(document: CorefDocument, max_sentences: int) -> Iterator[CorefDocument]:
    """Cut a document into pieces of at most `max_sentences` sentences; pieces without words are left out.

    A mention is kept if all of it is in one piece.
    """
    start = 0
    for i in range(0, len(document.sentences), max_sentences):
        sentences = document.sentences[i : i + max_sentences]
        end = start + sum(map(len, sentences))
        if end > start:
            clusters = [
                [(s - start, e - start) for s, e in cluster if start <= s and e <= end] for cluster in document.clusters
            ]
            speakers = document.speakers[start:end]
            yield CorefDocument(document.name, document.part, sentences, list(filter(None, clusters)), speakers)
        start = end


def _number_speakers(document: CorefDocument) -> np.ndarray:
    """Return the number of each word's speaker, from 1; 0 for unknown."""
    numbers: dict[str, int] = {"": 0}
    if document.speakers:
        return np.array([numbers.setdefault(name, len(numbers)) for name in document.speakers], dtype=np.int64)
    return np.zeros(sum(map(len, document.sentences)), dtype=np.int64)
