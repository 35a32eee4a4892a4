"""Taggers: a tag for each word of a sentence, such as parts of speech or named entities."""

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from torch import nn

from relmo.errors import CorpusError
from relmo.models.saved import SavedFolder
from relmo.networks.inputs import IGNORED
from relmo.networks.tagger import DecodedTags, Emissions, TaggerNetwork
from relmo.settings.fields import check_sentences
from relmo.settings.tasks import TaggerSettings, TaggerTextSettings
from relmo.tasks.features import MessageCallback, Words
from relmo.tasks.results import LabelledSpan, TokenizedText, mark_labels, render_html, shorten
from relmo.tasks.scores import TaskReport, class_report, span_report
from relmo.tasks.task import Task, Tokenized, count_labels
from relmo.text.readers.tagged import (
    OUTSIDE,
    UNTAGGED,
    TaggedWords,
    are_span_tags,
    bio,
    bioul,
    is_span_tag,
    legal_transitions,
    read_tagged,
    spans,
)
from relmo.text.tokenize import Token, tokenize
from relmo.text.treebank import WordSplits, compare_words, learn_splits
from relmo.text.vocabulary import Vocabulary

SPLITS = "splits-vocabulary"
MAX_SENTENCES_TO_INFER = 10_000


@dataclass(frozen=True, repr=False)
class TaggedText(TokenizedText):
    """Sentence with a tag for each word."""

    tags: list[str]
    probabilities: list[float]  # of each word's tag; with a CRF its marginal over all sequences of tags
    entities: list[LabelledSpan]  # spans that tags such as B-PER mark, if the tagger was trained on such tags

    def as_text(self) -> str:
        """Return a line for each word: the word, a tab and its tag."""
        return "".join(f"{word}\t{tag}\n" for word, tag in zip(self.words, self.tags, strict=True))

    def to_dict(self) -> dict[str, Any]:
        """Return the text, its tokens with offsets, tags and probabilities, and the entities."""
        rows = zip(self.tokens, self.tags, self.probabilities, strict=True)
        return {
            "text": self.text,
            "tokens": [token._asdict() | {"tag": tag, "probability": p} for token, tag, p in rows],
            "entities": [asdict(entity) for entity in self.entities],
        }

    def __repr__(self) -> str:
        if self.entities:
            return f"TaggedText({', '.join(f'{shorten(e.text)!r} {e.label}' for e in self.entities)})"
        words = " ".join(f"{word}/{tag}" for word, tag in zip(self.words, self.tags, strict=True))
        return f"TaggedText({shorten(words)})"

    def _repr_html_(self) -> str:
        if self.entities:
            return render_html(self.text, mark_labels(self.entities))
        tags: dict[tuple[int, int], list[str]] = {}  # words with the same offsets have one mark
        for offsets, tag in zip(self.offsets, self.tags, strict=True):
            tags.setdefault(offsets, []).append(tag)
        tag_spans = (LabelledSpan("", *offsets, 0, 0, " ".join(labels), 1.0) for offsets, labels in tags.items())
        return render_html(self.text, mark_labels(span for span in tag_spans if span.label != OUTSIDE))


class Tagger(Task[TaggedWords, TaggedText]):
    """Network that tags words, with its vocabulary, tags and settings. Tags of spans are predicted as BIO."""

    kind = "tagger"
    example_type, no_answer = TaggedWords, ([],)
    label_field = "tags"
    settings: TaggerSettings

    def predict(self, sentences: Iterable[str | Words]) -> list[TaggedText]:
        """Tag the words of sentences: strings, split as by `tokens`, or lists of words."""
        return super().predict(check_sentences(sentences, "predict"))

    @classmethod
    def infer_settings(
        cls, settings: TaggerSettings, files: Sequence[str], on_message: MessageCallback
    ) -> TaggerSettings:
        """Choose task ner for tags that mark spans, otherwise pos, if the task is auto."""
        text = settings.text
        if text.task != "auto":
            return settings
        read_file = partial(read_tagged, layout=text.format, column=text.column, errors=text.errors)
        sentences = islice(chain.from_iterable(map(read_file, files)), MAX_SENTENCES_TO_INFER)
        marks_spans = are_span_tags(tag for sentence in sentences for tag in sentence.tags if tag != UNTAGGED)
        if marks_spans:
            on_message("The tags mark spans: using task ner, scored by span F1. Set task pos to score single tags.")
        return replace(settings, text=replace(text, task="ner" if marks_spans else "pos"))

    @classmethod
    def read(cls, path: str | Path, text: TaggerTextSettings, *, training: bool = False) -> list[TaggedWords]:
        """Read the sentences of a file that have tags; tags of spans are converted to BIO."""
        sentences = read_tagged(path, layout=text.format, column=text.column, errors=text.errors)
        examples = [example for example in sentences if any(example.tags)]
        if not examples:
            raise CorpusError(f"{path}: no word has a tag; name the column with the tags with --column")
        if text.task != "ner":
            return examples
        for number, example in enumerate(examples, start=1):
            for word, tag in zip(example.words, example.tags, strict=True):
                if not is_span_tag(tag):
                    raise CorpusError(
                        f"{path}: sentence {number}, '{word}': '{tag or UNTAGGED}' is not a tag of a span such as "
                        "B-PER, I-PER or O; choose another column with --column, or use --task pos"
                    )
        return [example._replace(tags=bio(example.tags)) for example in examples]

    @classmethod
    def make_vocabularies(cls, settings: TaggerSettings, examples: Sequence[TaggedWords]) -> dict[str, Vocabulary]:
        """Return the tags in the encoding of the network, and the tokens that the sentences have as several words."""
        tags = ([tag for tag in _encode_tags(example.tags, settings) if tag] for example in examples)
        vocabularies: dict[str, Vocabulary] = {"labels": count_labels(tags)}
        if settings.text.tokenizer == "words":
            texts = (example.raw for example in examples if example.raw.tokens)
            if splits := learn_splits(texts, tokenize):
                vocabularies[SPLITS] = splits
        return vocabularies

    @classmethod
    def restore(cls, saved: SavedFolder, device: str) -> Self:
        model = super().restore(saved, device)
        if SPLITS in saved.config:
            model.vocabularies[SPLITS] = saved.vocabulary(WordSplits, f"{SPLITS}.txt", key=SPLITS, what="tokens")
        return model

    def tokens(self, text: str, *, tokenized: bool = False) -> list[Token]:
        """Split raw text into words as in the training sentences, or tokenized text at whitespace."""
        tokens, splits = super().tokens(text, tokenized=tokenized), self.vocabularies.get(SPLITS)
        at_spaces = tokenized or self.settings.text.tokenizer == "whitespace"
        return splits.split(tokens) if isinstance(splits, WordSplits) and not at_spaces else tokens

    def check_raw_text(self, examples: Sequence[TaggedWords], on_message: MessageCallback) -> dict[str, float]:
        texts = [example.raw for example in examples if example.raw.tokens]
        if not texts:
            return {}
        differences = compare_words(texts, self.tokens)
        on_message(differences.message())
        return {"words_split_otherwise": differences.share}

    def make_body(self, **sizes: int) -> nn.Module:
        """Create recurrent layers with a softmax or a CRF; a CRF of spans has legal transitions only."""
        model, legal = self.settings.model, None
        if model.decoder == "crf" and self.settings.text.task == "ner":
            legal = torch.from_numpy(legal_transitions(self.labels.symbols))
        return TaggerNetwork(model, num_tags=len(self.labels), legal=legal, **sizes)

    def target(self, example: TaggedWords) -> np.ndarray:
        tags = _encode_tags(example.tags, self.settings)
        return np.array([self.labels.index[tag] if tag else IGNORED for tag in tags], dtype=np.int64)

    def decode(self, output: Emissions, examples: Sequence[TaggedWords]) -> list[TaggedText]:
        rows: list[DecodedTags] = self.network.body.decode(output)
        predictions = []
        for example, row in zip(examples, rows, strict=True):
            words = Tokenized(*example.raw) if example.raw.tokens else Tokenized.from_words(example.words)
            tags, entities = [self.labels.symbols[i] for i in row.tags], []
            if self.settings.text.task == "ner":
                tags = bio(tags)
                entities = [LabelledSpan(*words.span(a, b), label, row.joint(a, b)) for a, b, label in spans(tags)]
            predictions.append(TaggedText(words.text, list(words.tokens), tags, row.unary, entities))
        return predictions

    def score(self, examples: Sequence[TaggedWords], predictions: Sequence[TaggedText]) -> TaskReport:
        """Compute the F1 of spans, or the accuracy of tags over the words that have one in the file."""
        gold, predicted = [example.tags for example in examples], [prediction.tags for prediction in predictions]
        if self.settings.text.task == "ner":
            return span_report(gold, predicted)
        pairs = zip(chain.from_iterable(gold), chain.from_iterable(predicted), strict=True)
        tagged = [pair for pair in pairs if pair[0]]
        return class_report([tag for tag, _ in tagged], [tag for _, tag in tagged])


def _encode_tags(tags: list[str], settings: TaggerSettings) -> list[str]:
    return bioul(tags) if settings.text.task == "ner" and settings.model.encoding == "bioul" else tags
