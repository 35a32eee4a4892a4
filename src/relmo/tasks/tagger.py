"""Taggers as a user has them: a tag for each word of a sentence; parts of speech, names, or any other column.

tagger = relmo.load("models/pos")
found = tagger.predict(["The bank lends money."])[0]
found.tags, found.probabilities                              # ['DET', 'NOUN', 'VERB', 'NOUN', 'PUNCT'], [0.99, …]
found.words, found.offsets                                   # ['The', 'bank', …], [(0, 3), (4, 8), …]
names.predict(["Anna saw Oslo."])[0].entities                # the spans that tags such as B-PER mark
tagger.evaluate("dev.conllu").score
"""

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch

from relmo.errors import CorpusError
from relmo.models.saved import SavedFolder
from relmo.networks.inputs import IGNORED, TaskNetwork, WordInputs
from relmo.networks.tagger import DecodedTags, Emissions, TaggerNetwork
from relmo.settings.arguments import check_sentences
from relmo.settings.tagger import TaggerSettings, TaggerTextSettings
from relmo.tasks.features import Say, Words
from relmo.tasks.results import LabelledSpan, label_marks, marked_html, shortened
from relmo.tasks.scores import TaskReport, class_report, span_report
from relmo.tasks.task import Task, Tokenized, count_labels
from relmo.text.readers.tagged import UNTAGGED, TaggedWords, read_tagged
from relmo.text.tags import OUTSIDE, are_span_tags, bio, bioul, is_span_tag, legal_transitions, spans
from relmo.text.tokenize import Token, tokenize
from relmo.text.treebank import PlacedText, WordSplits, compare_words, learn_splits
from relmo.text.vocabulary import Vocabulary

SPLITS = "splits-vocabulary"
MAX_SENTENCES_TO_INFER = 10_000


@dataclass(frozen=True, repr=False)
class TaggedText:
    """A sentence, its words, and a tag for each.

    text            what was given; where that was a list of words, these with a space between them
    tokens          the words, and where each stands in the text
    probabilities   of each word's tag; a CRF's are its marginals: the share of all sequences in which the word has it
    entities        the spans that tags such as B-PER mark; none where a tagger was trained for other tags
    """

    text: str
    tokens: list[Token]
    tags: list[str]
    probabilities: list[float]
    entities: list[LabelledSpan]

    @property
    def words(self) -> list[str]:
        """The words alone."""
        return [token.text for token in self.tokens]

    @property
    def offsets(self) -> list[tuple[int, int]]:
        """Where each word begins and ends in the text, in characters."""
        return [(token.start, token.end) for token in self.tokens]

    def as_text(self) -> str:
        """A word and its tag a line, with a tab between them."""
        return "".join(f"{word}\t{tag}\n" for word, tag in zip(self.words, self.tags, strict=True))

    def to_dict(self) -> dict[str, Any]:
        """The text, its tokens with their offsets, tags and probabilities, and the entities."""
        tagged = zip(self.tokens, self.tags, self.probabilities, strict=True)
        return {
            "text": self.text,
            "tokens": [token._asdict() | {"tag": tag, "probability": share} for token, tag, share in tagged],
            "entities": [asdict(entity) for entity in self.entities],
        }

    def __repr__(self) -> str:
        """The words with their tags; of a tagger of spans, those alone."""
        if self.entities:
            return f"TaggedText({', '.join(f'{shortened(e.text)!r} {e.label}' for e in self.entities)})"
        tagged = " ".join(f"{word}/{tag}" for word, tag in zip(self.words, self.tags, strict=True))
        return f"TaggedText({shortened(tagged)})"

    def _repr_html_(self) -> str:
        """For a notebook: the text with its entities in colours, or else its words with their tags."""
        if self.entities:
            return marked_html(self.text, label_marks(self.entities))
        tags: dict[tuple[int, int], list[str]] = {}  # words that share a place have one mark
        for place, tag in zip(self.offsets, self.tags, strict=True):
            tags.setdefault(place, []).append(tag)
        shown = (LabelledSpan("", *place, 0, 0, " ".join(own), 1.0) for place, own in tags.items())
        marks = label_marks(each for each in shown if each.label != OUTSIDE)
        return marked_html(self.text, marks)


class Tagger(Task[TaggedWords, TaggedText]):
    """A network that tags words, with its vocabulary, tags and settings; spans are always given as BIO."""

    kind = "tagger"
    settings: TaggerSettings

    def predict(self, sentences: Iterable[str | Words]) -> list[TaggedText]:
        """The words of sentences with their tags: strings, split as `tokens` splits them, or lists of words."""
        return list(self.answer(map(self.ask, check_sentences(sentences, "predict"))))

    @property
    def finds_spans(self) -> bool:
        """Whether tags are those of spans."""
        return self.settings.text.task == "ner"

    @classmethod
    def infer_settings(cls, settings: TaggerSettings, files: Sequence[str], say: Say) -> TaggerSettings:
        """Choose task ner for tags that mark spans, otherwise pos, if the task is auto."""
        text = settings.text
        if text.task != "auto":
            return settings
        reading = partial(read_tagged, layout=text.format, column=text.column, errors=text.errors)
        sentences = islice(chain.from_iterable(map(reading, files)), MAX_SENTENCES_TO_INFER)
        marks_spans = are_span_tags(tag for sentence in sentences for tag in sentence.tags if tag != UNTAGGED)
        if marks_spans:
            say("The tags mark spans: using task ner, scored by span F1. Set task pos to score each tag by itself.")
        return replace(settings, text=replace(text, task="ner" if marks_spans else "pos"))

    @classmethod
    def read(cls, path: str | Path, text: TaggerTextSettings, *, training: bool = False) -> list[TaggedWords]:
        """Read the sentences of a file that have tags; tags of spans as BIO."""
        sentences = read_tagged(path, layout=text.format, column=text.column, errors=text.errors)
        examples = [example for example in sentences if any(example.tags)]
        if not examples:
            raise CorpusError(f"{path}: no word has a tag; say which column has the tags with --column")
        if text.task != "ner":
            return examples
        for number, example in enumerate(examples, start=1):
            for word, tag in zip(example.words, example.tags, strict=True):
                if not is_span_tag(tag):
                    raise CorpusError(
                        f"{path}: sentence {number}, '{word}': '{tag or UNTAGGED}' is not a tag of a span such as "
                        "B-PER, I-PER or O; give the column with --column, or take --task pos"
                    )
        return [example._replace(tags=bio(example.tags)) for example in examples]

    @staticmethod
    def texts(example: TaggedWords) -> Sequence[Words]:
        return (example.words,)

    @staticmethod
    def classes(example: TaggedWords) -> Collection[str]:
        return [tag for tag in example.tags if tag]

    @classmethod
    def make_vocabularies(cls, settings: TaggerSettings, examples: Sequence[TaggedWords]) -> dict[str, Vocabulary]:
        """The tags as the network learns them, and the tokens that the sentences have as several words."""
        found: dict[str, Vocabulary] = {
            "labels": count_labels([tag for tag in _learned(each.tags, settings) if tag] for each in examples)
        }
        if settings.text.tokenizer == "words" and (splits := learn_splits(_raw(examples), tokenize)):
            found[SPLITS] = splits
        return found

    @classmethod
    def restore(cls, saved: SavedFolder, device: str) -> Self:
        model = super().restore(saved, device)
        if SPLITS in saved.config:
            model.vocabularies[SPLITS] = saved.vocabulary(WordSplits, f"{SPLITS}.txt", key=SPLITS, what="tokens")
        return model

    def tokens(self, text: str, *, tokenized: bool = False) -> list[Token]:
        """How raw text is split into words, as the training sentences have them: of tokens that these had as several
        words, these words."""
        found, splits = super().tokens(text, tokenized=tokenized), self.vocabularies.get(SPLITS)
        at_spaces = tokenized or self.settings.text.tokenizer == "whitespace"
        return splits.split(found) if isinstance(splits, WordSplits) and not at_spaces else found

    def check_raw_text(self, examples: Sequence[TaggedWords], say: Say) -> dict[str, float]:
        """The share of words that raw text is split into otherwise, where the file tells the text."""
        if not (known := list(_raw(examples))):
            return {}
        found = compare_words(known, self.tokens)
        say(found.message())
        return {"words_split_otherwise": found.share}

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
        tags = _learned(example.tags, self.settings)
        return np.array([self.labels.index[tag] if tag else IGNORED for tag in tags], dtype=np.int64)

    def decode(self, output: Emissions, examples: Sequence[TaggedWords]) -> list[TaggedText]:
        rows: list[DecodedTags] = self.network.body.decode(output)  # type: ignore[operator]
        return [self._tagged(_placed(example), row) for example, row in zip(examples, rows, strict=True)]

    def _tagged(self, words: Tokenized, row: DecodedTags) -> TaggedText:
        """A sentence with the tags that the network gives it; of spans as BIO."""
        tags, entities = [self.labels.symbols[i] for i in row.tags], []
        if self.finds_spans:
            tags = bio(tags)
            for start, end, label in spans(tags):
                place = words.stretch(start, end)
                entities.append(LabelledSpan(*place, start, end, label, row.together(start, end)))
        return TaggedText(words.text, list(words.tokens), tags, row.each, entities)

    def score(self, examples: Sequence[TaggedWords], predictions: Sequence[TaggedText]) -> TaskReport:
        """Compute the accuracy of tags, over the words that have one in the file, or the F1 of spans."""
        gold, found = ([each.tags for each in side] for side in (examples, predictions))
        if self.finds_spans:
            return span_report(gold, found)
        pairs = [pair for sides in zip(gold, found, strict=True) for pair in zip(*sides, strict=True) if pair[0]]
        return class_report([tag for tag, _ in pairs], [tag for _, tag in pairs])

    def ask(self, given: str | Words, *, tokenized: bool = False) -> TaggedWords:
        return TaggedWords(self.split(given, tokenized=tokenized), [])


def _raw(examples: Sequence[TaggedWords]) -> Iterator[PlacedText]:
    """The texts that are known, with the places of their words."""
    return (example.raw for example in examples if example.raw.tokens)


def _placed(example: TaggedWords) -> Tokenized:
    """The words of a sentence in its text."""
    return Tokenized(*example.raw) if example.raw.tokens else Tokenized.of(example.words)


def _learned(tags: list[str], settings: TaggerSettings) -> list[str]:
    """Tags as the network learns them."""
    return bioul(tags) if settings.text.task == "ner" and settings.model.encoding == "bioul" else tags
