"""The table of all kinds of model. Adding a kind is adding its line.

`relmo train`, `relmo.load`, the public names and the presets are made from it. It says where the code of a kind is and
imports that when it is used, so that no torch is needed to print a help page. The settings of a kind are in
`settings/KIND.py`, with a function `check_KIND` that raises where they make no sense.
"""

from collections.abc import Callable
from functools import partial
from importlib import import_module
from typing import Any, NamedTuple


class Kind(NamedTuple):
    """A kind of model.

    settings   the name of the class of its settings; its docstring is the help of `relmo train KIND`
    model      the class that a user holds, as "module:name"; those of tasks are in `relmo.tasks`
    called     what a sentence calls it
    """

    settings: str
    model: str
    called: str


KINDS: dict[str, Kind] = {
    "lm": Kind("LMSettings", "relmo.models.lm:LanguageModel", "a language model"),
    "bilm": Kind("BiLMSettings", "relmo.models.bilm:BiLM", "a bidirectional language model"),
    "skipgram": Kind("SkipgramSettings", "relmo.models.vectors:WordVectors", "word vectors"),
    "classifier": Kind("ClassifierSettings", "relmo.tasks.classifier:Classifier", "a classifier"),
    "pairs": Kind("PairsSettings", "relmo.tasks.pairs:SentencePairs", "a model of sentence pairs"),
    "tagger": Kind("TaggerSettings", "relmo.tasks.tagger:Tagger", "a tagger"),
    "reader": Kind("ReaderSettings", "relmo.tasks.reader:PassageReader", "a reader"),
    "srl": Kind("SRLSettings", "relmo.tasks.srl:RoleLabeller", "a labeller of semantic roles"),
    "coref": Kind("CorefSettings", "relmo.tasks.coref:Coreference", "a model of coreference"),
    "seq2seq": Kind("Seq2SeqSettings", "relmo.tasks.seq2seq:Seq2Seq", "a sequence-to-sequence model"),
}
ALSO_CALLED = {
    **dict.fromkeys(("rnn", "lstm", "gru", "elman", "ngram", "language-model"), "lm"),
    **dict.fromkeys(("elmo", "embeddings"), "bilm"),
    **dict.fromkeys(("word2vec", "glove", "vectors", "words"), "skipgram"),
    **dict.fromkeys(("sentiment", "classification", "text"), "classifier"),
    **dict.fromkeys(("nli", "snli", "similarity", "paraphrase"), "pairs"),
    **dict.fromkeys(("ner", "pos", "tags", "tagging"), "tagger"),
    **dict.fromkeys(("qa", "squad", "questions"), "reader"),
    **dict.fromkeys(("roles", "propbank"), "srl"),
    **dict.fromkeys(("translation", "mt", "translate", "summaries"), "seq2seq"),
}
"""What people call a kind who do not know its name here."""
TASKS = tuple(name for name, kind in KINDS.items() if kind.model.startswith("relmo.tasks."))


def settings_class(kind: str) -> Any:
    """The class of a kind's settings."""
    return getattr(import_module(f"relmo.settings.{kind}"), KINDS[kind].settings)


def check_settings(kind: str, settings: Any) -> None:
    """Raises an error where the settings of a kind make no sense, alone or together."""
    getattr(import_module(f"relmo.settings.{kind}"), f"check_{kind}")(settings)


def model_class(kind: str) -> Any:
    """The class of a kind's models; this imports torch."""
    module, name = KINDS[kind].model.split(":")
    return getattr(import_module(module), name)


def training_function(kind: str) -> Callable[..., dict[str, Any]]:
    """The function that trains a kind: (files, settings, out, *, resume, overwrite, dry_run, reporter) -> results."""
    if kind in TASKS:
        return partial(import_module("relmo.runs.train_task").train_task, model_class(kind))
    return getattr(import_module(f"relmo.runs.train_{kind}"), f"train_{kind}")
