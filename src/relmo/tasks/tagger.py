"""Taggers as a user has them: a tag for each word of a sentence; parts of speech, names, or any other column.

tagger = relmo.load("models/pos")
tagger.predict(["The bank lends money."])[0].tags            # ['DET', 'NOUN', 'VERB', 'NOUN', 'PUNCT']
tagger.evaluate("dev.conllu").score
"""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from relmo.errors import CorpusError
from relmo.networks.tagger import IGNORED, TaggerNetwork
from relmo.settings.arguments import check_sentences
from relmo.settings.tagger import TaggerSettings, TaggerTextSettings, check_tagger
from relmo.tasks.features import Words
from relmo.tasks.scores import Report, class_report, span_report
from relmo.tasks.task import Labels, Task
from relmo.text.readers.tagged import Tagged, read_tagged
from relmo.text.tags import bio, bioul, is_span_tag, legal_transitions, spans
from relmo.text.tokenize import Token


class Tagger(Task[Tagged, list[str]]):
    """A network that tags words, with its vocabulary, tags and settings; spans are always given as BIO."""

    kind = "tagger"
    settings_type = TaggerSettings

    def predict(self, sentences: Iterable[str | Words]) -> list[Tagged]:
        """The words of sentences with their tags: strings, split as `tokens` splits them, or lists of words."""
        words = [list(self.words(sentence)) for sentence in check_sentences(sentences, "predict")]
        return [Tagged(*pair) for pair in zip(words, self.predict_words([each] for each in words), strict=True)]

    @property
    def finds_spans(self) -> bool:
        """Whether tags are those of spans."""
        return self.settings.text.task == "ner"

    @staticmethod
    def check(settings: TaggerSettings) -> None:
        """As every kind's."""
        check_tagger(settings)

    @classmethod
    def read(cls, path: str | Path, text: TaggerTextSettings, *, training: bool = False) -> list[Tagged]:
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
        return [Tagged(words, bio(tags)) for words, tags in examples]

    @classmethod
    def answers(cls, example: Tagged, settings: TaggerSettings) -> list[str]:
        """The tags as the network learns them."""
        coded = settings.text.task == "ner" and settings.model.encoding == "bioul"
        return bioul(example.tags) if coded else example.tags

    @classmethod
    def make_body(cls, settings: TaggerSettings, labels: Labels, *, input_size: int, again_size: int) -> nn.Module:
        """Recurrent layers and a softmax or a CRF; of spans, only tags that may follow each other do."""
        model = settings.model
        crf = model.decoder == "crf"
        constrained = crf and settings.text.task == "ner"
        return TaggerNetwork(
            input_size=input_size,
            tags=len(labels),
            hidden=model.hidden,
            cell=model.cell,
            layers=model.layers,
            again_size=again_size,
            dropout=model.dropout,
            crf=crf,
            legal=torch.from_numpy(legal_transitions(labels.symbols)) if constrained else None,
        )

    @staticmethod
    def sides(example: Tagged) -> Sequence[Words]:
        """The sentence."""
        return (example.words,)

    def target(self, example: Tagged) -> np.ndarray:
        """The numbers of the tags."""
        return self.labels.ids(self.answers(example, self.settings))

    def stack(self, targets: Sequence[np.ndarray]) -> Tensor:
        """Tags side by side (B, T), IGNORED past a sentence's end."""
        tags = np.full((len(targets), max(map(len, targets))), IGNORED, dtype=np.int64)
        for row, target in zip(tags, targets, strict=True):
            row[: len(target)] = target
        return torch.from_numpy(tags)

    def decode(self, output: Any) -> list[list[str]]:
        """The tags of each sentence."""
        symbols = self.labels.symbols
        tags = [[symbols[i] for i in row] for row in self.network.body.decode(output)]  # type: ignore[operator]
        return [bio(each) for each in tags] if self.finds_spans else tags

    def score(self, examples: Sequence[Tagged], predictions: Sequence[list[str]]) -> Report:
        """Accuracy of tags, or F1 of spans."""
        gold = [example.tags for example in examples]
        if self.finds_spans:
            return span_report(gold, predictions)
        flat = [[tag for tags in each for tag in tags] for each in (gold, predictions)]
        return class_report(*flat)

    def as_text(self, sides: Sequence[Sequence[Token]], prediction: list[str]) -> str:
        """A word and its tag a line, with a tab between them."""
        return "".join(f"{token.text}\t{tag}\n" for token, tag in zip(sides[0], prediction, strict=True))

    def as_record(self, line: str, sides: Sequence[Sequence[Token]], prediction: list[str]) -> dict[str, Any]:
        """The text, its tokens with offsets and tags, and spans where there are such."""
        (tokens,) = sides
        record: dict[str, Any] = {
            "text": line,
            "tokens": [token._asdict() | {"tag": tag} for token, tag in zip(tokens, prediction, strict=True)],
        }
        if self.finds_spans:
            record["spans"] = [
                {"text": line[start:end], "start": start, "end": end, "label": label}
                for start, end, label in (
                    (tokens[span.start].start, tokens[span.end - 1].end, span.label) for span in spans(prediction)
                )
            ]
        return record
