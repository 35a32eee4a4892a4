"""Settings of `relmo train tagger`: sequence labelling."""

from dataclasses import dataclass, field
from typing import ClassVar, Literal

from relmo.errors import SettingError
from relmo.settings.fields import Rate, refuse
from relmo.settings.task import EncoderSettings, TaskSettings, TaskTextSettings


@dataclass(frozen=True, kw_only=True)
class TaggerTextSettings(TaskTextSettings):
    """Tags and files."""

    task: Literal["auto", "pos", "ner", "column"] = "auto"
    """pos: a tag per word (CoNLL-U: the universal one), scored by accuracy. ner: spans, in BIO or a variant of it,
    scored by F1. column: the tags of `column`, scored by accuracy. auto: ner if the training tags mark spans (B-PER,
    I-PER, O), otherwise pos."""
    format: Literal["auto", "conllu", "columns", "jsonl"] = "auto"
    """File format: CoNLL-U (.conllu), JSON lines (.jsonl), or columns. auto looks at the name."""


@dataclass(frozen=True, kw_only=True)
class TaggerModelSettings(EncoderSettings):
    """Network of a tagger: bidirectional recurrent layers and a decoder."""

    dropout: Rate = 0.5
    """Dropout between layers and on the output of the last one, with one mask for all words of a sentence."""
    decoder: Literal["softmax", "crf"] = "softmax"
    """Choice of tags: each by itself, or those of a sentence jointly by a conditional random field."""
    encoding: Literal["bioul", "bio"] = "bioul"
    """Spans only: encoding of the tags that the network learns. Predictions are always written as BIO."""


@dataclass(frozen=True, kw_only=True)
class TaggerSettings(TaskSettings):
    """Train a tagger: parts of speech, names, or any column of tags; with or without ELMo.

    For example:

        relmo train tagger train.conllu --valid dev.conllu --preset pos --elmo small --out models/pos

        relmo train tagger train.iob2 --valid dev.iob2 --preset ner --elmo small --seeds 5 --out models/ner

        echo "Anna lives in Berlin." | relmo predict models/ner
    """

    files: ClassVar[str] = (
        "Sentences to train on: CoNLL-U, columns (CoNLL, IOB2), or JSON lines; plain, .gz, .xz, .zst."
    )

    text: TaggerTextSettings = field(default_factory=TaggerTextSettings)
    model: TaggerModelSettings = field(default_factory=TaggerModelSettings)

    def check(self) -> None:
        super().check()
        if self.text.task == "column" and self.text.column is None:
            raise SettingError("task column needs a column: its name, such as --column xpos, or its number")
        if self.text.task in ("pos", "column"):
            refuse(self.model, ["encoding"], f"with task {self.text.task}")
