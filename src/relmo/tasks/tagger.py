"""Taggers as a user has them: a tag for each word of a sentence; parts of speech, names, or any other column.

tagger = relmo.load("models/pos")
tagger.predict(["The bank lends money."])[0].tags            # ['DET', 'NOUN', 'VERB', 'NOUN', 'PUNCT']
tagger.evaluate("dev.conllu").score
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from relmo.errors import CorpusError
from relmo.networks.inputs import TaskNetwork, WordInputs
from relmo.networks.tagger import Emissions, TaggerNetwork
from relmo.settings.arguments import check_sentences
from relmo.settings.tagger import TaggerSettings, TaggerTextSettings
from relmo.tasks.features import Words
from relmo.tasks.scores import TaskReport, class_report, span_report
from relmo.tasks.task import Task, Tokenized, count_labels
from relmo.text.readers.tagged import TaggedWords, read_tagged
from relmo.text.tags import Span, bio, bioul, is_span_tag, legal_transitions, spans
from relmo.text.vocabulary import Vocabulary


@dataclass(frozen=True)
class TaggedText:
    """The words of a sentence, a tag for each, and the spans that tags such as B-PER mark."""

    words: list[str]
    tags: list[str]
    spans: list[Span]

    def as_text(self) -> str:
        """A word and its tag a line, with a tab between them."""
        return "".join(f"{word}\t{tag}\n" for word, tag in zip(self.words, self.tags, strict=True))


class Tagger(Task[TaggedWords, TaggedText]):
    """A network that tags words, with its vocabulary, tags and settings; spans are always given as BIO."""

    kind = "tagger"
    predicts = "words"
    settings: TaggerSettings

    def predict(self, sentences: Iterable[str | Words]) -> list[TaggedText]:
        """The words of sentences with their tags: strings, split as `tokens` splits them, or lists of words."""
        return list(self.answer(map(self.ask, check_sentences(sentences, "predict"))))

    @property
    def finds_spans(self) -> bool:
        """Whether tags are those of spans."""
        return self.settings.text.task == "ner"

    @classmethod
    def read(cls, path: str | Path, text: TaggerTextSettings, *, training: bool = False) -> list[TaggedWords]:
        """The sentences of a file; tags of spans as BIO."""
        examples = list(read_tagged(path, layout=text.format, column=text.column, errors=text.errors))
        if text.task != "ner":
            return examples
        for number, example in enumerate(examples, start=1):
            for word, tag in zip(example.words, example.tags, strict=True):
                if not is_span_tag(tag):
                    raise CorpusError(
                        f"{path}: sentence {number}, '{word}': '{tag}' is no tag of a span such as B-PER, I-PER or O; "
                        "give the column with --column, or take --task pos"
                    )
        return [TaggedWords(words, bio(tags)) for words, tags in examples]

    @staticmethod
    def texts(example: TaggedWords) -> Sequence[Words]:
        return (example.words,)

    @staticmethod
    def classes(example: TaggedWords) -> Collection[str]:
        return example.tags

    @classmethod
    def make_vocabularies(cls, settings: TaggerSettings, examples: Sequence[TaggedWords]) -> dict[str, Vocabulary]:
        """The tags as the network learns them."""
        return {"labels": count_labels(_learned(example.tags, settings) for example in examples)}

    def make_network(self, inputs: WordInputs) -> TaskNetwork:
        """Recurrent layers and a softmax or a CRF; of spans, only tags that may follow each other do."""
        model = self.settings.model
        crf = model.decoder == "crf"
        legal = torch.from_numpy(legal_transitions(self.labels.symbols)) if crf and self.finds_spans else None
        body = TaggerNetwork(
            input_size=inputs.size,
            tags=len(self.labels),
            hidden=model.hidden,
            cell=model.cell,
            layers=model.layers,
            again_size=inputs.again_size,
            dropout=model.dropout,
            crf=crf,
            legal=legal,
        )
        return TaskNetwork(inputs, body)

    def target(self, example: TaggedWords) -> np.ndarray:
        return self.labels.ids(_learned(example.tags, self.settings))

    def decode(self, output: Emissions, examples: Sequence[TaggedWords]) -> list[TaggedText]:
        symbols = self.labels.symbols
        tags = [[symbols[i] for i in row] for row in self.network.body.decode(output)]  # type: ignore[operator]
        found = [bio(each) for each in tags] if self.finds_spans else tags
        return [
            TaggedText(list(example.words), each, spans(each) if self.finds_spans else [])
            for example, each in zip(examples, found, strict=True)
        ]

    def score(self, examples: Sequence[TaggedWords], predictions: Sequence[TaggedText]) -> TaskReport:
        """Accuracy of tags, or F1 of spans."""
        gold, found = ([each.tags for each in side] for side in (examples, predictions))
        if self.finds_spans:
            return span_report(gold, found)
        return class_report(*([tag for tags in side for tag in tags] for side in (gold, found)))

    def ask(self, given: str | Words, *, tokenized: bool = False) -> TaggedWords:
        return TaggedWords(self.split(given, tokenized=tokenized), [])

    def as_record(self, example: TaggedWords, prediction: TaggedText) -> dict[str, Any]:
        """The text, its tokens with offsets and tags, and spans where there are such."""
        words = Tokenized.of(example.words)
        tagged = zip(words.tokens, prediction.tags, strict=True)
        record: dict[str, Any] = {
            "text": words.text,
            "tokens": [token._asdict() | {"tag": tag} for token, tag in tagged],
        }
        if self.finds_spans:
            record["spans"] = [
                words.stretch(start, end)._asdict() | {"label": label} for start, end, label in prediction.spans
            ]
        return record


def _learned(tags: list[str], settings: TaggerSettings) -> list[str]:
    """Tags as the network learns them."""
    return bioul(tags) if settings.text.task == "ner" and settings.model.encoding == "bioul" else tags
