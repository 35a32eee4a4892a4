"""Coreference resolution: which mentions in a document refer to the same entity.

A mention without an antecedent is not returned, as in the published network, unless the model was trained with
`output_singletons`. Documents of any length are predicted as a whole; training documents are cut into pieces.
"""

import html
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from colorsys import hls_to_rgb
from dataclasses import asdict, dataclass
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from relmo.errors import CorpusError, SettingError
from relmo.networks.coref import CorefNetwork, DocumentBatch, SpanLinks
from relmo.networks.inputs import TaskBatch
from relmo.settings.fields import check_sentence
from relmo.settings.tasks import CorefSettings, CorefTextSettings
from relmo.tasks import results
from relmo.tasks.features import MessageCallback, Words, WordVocabulary
from relmo.tasks.results import BEGIN, MarkedSpan, TextSpan, TokenizedText, render_html, shorten, split_at_marks
from relmo.tasks.scores import TaskReport, coref_report
from relmo.tasks.task import EncodedExamples, Task, Tokenized
from relmo.text.corpus import STDIN, Errors, is_conllu, read_conllu, read_text
from relmo.text.readers.coref import CorefDocument, Place, is_conll, read_documents
from relmo.text.readers.tables import is_jsonl
from relmo.text.tokenize import split_tokens
from relmo.text.vocabulary import Vocabulary

GENRES = "genres-vocabulary"
PAGE_TEMPLATE = Path(__file__).with_name("coref.html")
MIN_SPANS = 24  # spans that are kept of any document that has as many: half of a short one may be mentions
LinkedSpan = tuple[int, int, float | None]  # first word, end, probability of the antecedent


@dataclass(frozen=True)
class Mention(TextSpan):
    """Mention of an entity, and the probability of its antecedent; None if it has none."""

    probability: float | None = None


@dataclass(frozen=True, repr=False)
class ResolvedText(TokenizedText):
    """Document with the mentions of each entity. Lists of words are a text with a line per sentence."""

    name: str
    sentences: list[int]  # number of words of each sentence
    clusters: list[list[Mention]]

    @property
    def places(self) -> list[list[Place]]:
        """Clusters as (first word, end) of each mention."""
        return [[(mention.start_word, mention.end_word) for mention in cluster] for cluster in self.clusters]

    def marks(self) -> list[MarkedSpan]:
        """Return the mentions as marks, labelled with the number of their cluster from 1."""
        return [
            MarkedSpan(mention.start, mention.end, str(number), _hue(number))
            for number, cluster in enumerate(self.clusters, start=1)
            for mention in cluster
        ]

    def to_dict(self) -> dict[str, Any]:
        """Return the document in the format of e2e-coref, and the offsets of each mention."""
        words = iter(self.words)
        return {
            "doc_key": self.name,
            "text": self.text,
            "sentences": [list(islice(words, length)) for length in self.sentences],
            "clusters": [[[start, end - 1] for start, end in cluster] for cluster in self.places],
            "mentions": [[asdict(mention) for mention in cluster] for cluster in self.clusters],
        }

    def __repr__(self) -> str:
        clusters = "; ".join(" = ".join(shorten(mention.text, 30) for mention in c) for c in self.clusters)
        return f"ResolvedText({shorten(clusters or self.text, 160)})"

    def _repr_html_(self) -> str:
        return render_html(self.text, self.marks())

    def pieces(self) -> Iterator[tuple[str, str]]:
        """Yield the pieces of `as_text`, each with the name of its colour or an empty string."""
        cluster_colours: dict[str, str] = {}  # by label
        for number in range(1, len(self.clusters) + 1):
            # black on a background that is light enough to read on, and saturated enough for terminals with few colours
            red, green, blue = (round(255 * part) for part in hls_to_rgb(_hue(number) / 360, 0.65, 0.75))
            cluster_colours[str(number)] = f"#000000 on #{red:02x}{green:02x}{blue:02x}"
        colours = [""]
        for part, mark in split_at_marks(self.text, self.marks()):
            if mark is None:
                yield part, colours[-1]
            elif part == BEGIN:
                colours.append(cluster_colours[mark.label])
                yield "[", colours[-1]
            else:
                yield f"]{mark.label}", colours.pop()
        yield "\n\n" if self.clusters else "\n", ""
        for number, cluster in enumerate(self.clusters, start=1):
            mentions = " | ".join(" ".join(mention.text.split()) for mention in cluster)
            yield f"{number}: {mentions}", cluster_colours[str(number)]
            yield "\n", ""


def _hue(cluster: int) -> int:
    return round(cluster * 137.508) % 360  # the golden angle: hues of neighbours are far apart


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

    def texts(self, example: CorefDocument) -> Sequence[Words]:
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

    def make_body(self, **sizes: int) -> nn.Module:
        """Create the network of Lee et al. 2017."""
        return CorefNetwork(self.settings.model, num_genres=len(self.vocabularies[GENRES]), **sizes)

    def encode(
        self, examples: Sequence[CorefDocument], *, answers: bool = False, on_message: MessageCallback = lambda _: None
    ) -> EncodedExamples:
        """Encode documents as arrays; with `answers`, in pieces of at most `max_sentences`."""
        if answers:
            max_sentences = self.settings.train.max_sentences
            examples = [piece for document in examples for piece in cut_document(document, max_sentences)]
        model = self.settings.model
        sentences = self.features.encode([words for document in examples for words in document.sentences], on_message)
        starts = np.cumsum([0, *(len(document.sentences) for document in examples)])  # first sentence of each document
        genres = self.vocabularies[GENRES].ids(document.genre for document in examples)
        sentence_lengths = [sentences.lengths[start:end] for start, end in pairwise(starts)]  # of each document
        all_speakers, counts = [], []
        for document, lengths in zip(examples, sentence_lengths, strict=True):
            numbers: dict[str, int] = {"": 0}  # unknown
            names = document.speakers or [""] * int(lengths.sum())
            all_speakers.append(np.array([numbers.setdefault(name, len(numbers)) for name in names], dtype=np.int64))
            num_spans = int((lengths[:, None] - np.arange(model.max_width)).clip(min=0).sum())
            counts.append((num_spans, min(num_spans, max(MIN_SPANS, int(model.spans_per_word * lengths.sum())))))

        def make_batch(indices: np.ndarray) -> TaskBatch:
            words = sentences.batch(np.concatenate([np.arange(starts[i], starts[i + 1]) for i in indices]))
            steps = max(int(words.lengths.max()), 1)
            documents, targets, row = [], [], 0
            for i in indices.tolist():
                lengths = sentence_lengths[i]
                sentence = np.repeat(np.arange(len(lengths)), lengths)  # of each word
                starts_of_sentences = np.cumsum(lengths) - lengths
                position = np.arange(len(sentence)) - np.repeat(starts_of_sentences, lengths)  # in its sentence
                documents.append(
                    DocumentBatch(
                        positions=torch.from_numpy(row * steps + sentence * steps + position),
                        num_left=torch.from_numpy(lengths[sentence] - position),
                        speakers=torch.from_numpy(all_speakers[i]),
                        genre=torch.tensor(int(genres[i])),
                        num_spans=counts[i][0],
                        num_kept=counts[i][1],
                    )
                )
                row += len(lengths)
                if answers:
                    target = np.zeros((len(sentence), model.max_width), dtype=np.int64)  # cluster of each span
                    for number, cluster in enumerate(examples[i].clusters, start=1):
                        for start, end in cluster:
                            if end - start <= model.max_width:
                                target[start, end - start - 1] = number
                    targets.append(torch.from_numpy(target))
            if not answers:
                return TaskBatch([words], extra=(documents,))
            return TaskBatch([words], targets, sum(document.num_kept for document in documents), (documents,))

        num_predictions = sum(num_kept for _, num_kept in counts) if answers else 0
        return EncodedExamples(np.array(list(map(len, all_speakers))), num_predictions, make_batch)

    def decode(self, output: Sequence[SpanLinks], examples: Sequence[CorefDocument]) -> list[ResolvedText]:
        predictions = []
        for document, links in zip(examples, output, strict=True):
            if document.tokens:
                words = Tokenized(document.text, document.tokens)
            else:
                lines = "\n".join(map(" ".join, filter(None, document.sentences)))
                words = Tokenized(lines or document.text, Tokenized.from_words(document.words).tokens)
            clusters = [
                [Mention(*words.span(start, end), probability) for start, end, probability in cluster]
                for cluster in self._link_spans(links)
            ]
            lengths = list(map(len, document.sentences))
            predictions.append(ResolvedText(words.text, list(words.tokens), document.name, lengths, clusters))
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
    """Cut a document into pieces of at most `max_sentences` sentences with words, with the mentions within each."""
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


def conll(document: CorefDocument, clusters: Sequence[Sequence[Place]]) -> str:
    """Return a document in the format of CoNLL-2012 with these clusters; other columns are as read, or -."""
    marks: dict[int, list[str]] = defaultdict(list)
    spans = [(start, end - 1, number) for number, cluster in enumerate(clusters) for start, end in cluster]
    for start, last, number in sorted(spans, key=lambda span: (span[0], -span[1])):
        marks[start].append(f"({number})" if start == last else f"({number}")
    for start, last, number in sorted(spans, reverse=True):
        if start != last:
            marks[last].append(f"{number})")
    part = document.part.zfill(3)
    name = "".join(document.name.split()) or "-"
    lines, place = [f"#begin document ({name}); part {part}"], 0
    for words in document.sentences:
        for number, word in enumerate(words):
            speaker = "".join(document.speakers[place].split()) if document.speakers else ""
            number_text = str(int(part)) if part.isdecimal() else part
            defaults = [name, number_text, str(number), "_".join(word.split()), *"-----", speaker or "-", "*"]
            columns = document.columns[place] if document.columns else defaults
            lines.append("\t".join([*columns, "|".join(marks[place]) or "-"]))
            place += 1
        lines.append("")
    return "\n".join([*lines, "#end document"])


def page(documents: Sequence[ResolvedText]) -> str:
    """Return all documents as one self-contained page; hovering over a mention highlights its cluster."""
    sections = []
    for document in documents:
        begin = '<span data-cluster="{label}" style="--hue: {hue}">'
        marked = results.mark_html(document.text, document.marks(), begin, "<sub>{label}</sub></span>")
        rows = []
        for number, cluster in enumerate(document.clusters, start=1):
            mentions = html.escape(" | ".join(mention.text for mention in cluster))
            rows.append(f'<li><span data-cluster="{number}" style="--hue: {_hue(number)}">{mentions}</span></li>')
        title = f"<h2>{html.escape(document.name)}</h2>" if document.name else ""
        sections.append(f"<section>{title}<p>{marked}</p><ol>{''.join(rows)}</ol></section>")
    return PAGE_TEMPLATE.read_text(encoding="utf-8").replace("{documents}", "\n".join(sections))
