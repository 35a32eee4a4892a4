"""Table of the kinds of model. A new kind is a line here and a file `settings/KIND.py` with its settings.

`relmo train`, `relmo.load`, the public names and the presets are built from it. The code of a kind is imported when it
is used, so that no help page needs torch.
"""

from collections.abc import Callable
from functools import partial
from importlib import import_module
from typing import Any, NamedTuple


class Kind(NamedTuple):
    """Kind of model.

    settings   name of the settings class, in `settings/KIND.py`; its docstring is the help of `relmo train KIND`
    model      class of the models, as "module:name"; those of tasks are in `relmo.tasks`
    called     noun phrase for messages
    """

    settings: str
    model: str
    called: str


KINDS: dict[str, Kind] = {
    "lm": Kind("LMSettings", "relmo.models.lm:LanguageModel", "a language model"),
    "bilm": Kind("BiLMSettings", "relmo.models.bilm:BiLM", "a bidirectional language model"),
    "skipgram": Kind("SkipgramSettings", "relmo.models.vectors:WordVectors", "word vectors"),
    "classifier": Kind("ClassifierSettings", "relmo.tasks.classifier:Classifier", "a classifier"),
    "pairs": Kind("PairsSettings", "relmo.tasks.pairs:SentencePairs", "a sentence pair model"),
    "tagger": Kind("TaggerSettings", "relmo.tasks.tagger:Tagger", "a tagger"),
    "reader": Kind("ReaderSettings", "relmo.tasks.reader:PassageReader", "a reader"),
    "srl": Kind("SRLSettings", "relmo.tasks.srl:RoleLabeller", "a semantic role labeller"),
    "coref": Kind("CorefSettings", "relmo.tasks.coref:Coreference", "a coreference model"),
    "seq2seq": Kind("Seq2SeqSettings", "relmo.tasks.seq2seq:Seq2Seq", "a sequence-to-sequence model"),
}
KIND_ALIASES = {
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
"""Other names of kinds, for suggestions."""
TASKS = tuple(name for name, kind in KINDS.items() if kind.model.startswith("relmo.tasks."))


def settings_class(kind: str) -> Any:
    """Return the settings class of a kind."""
    return getattr(import_module(f"relmo.settings.{kind}"), KINDS[kind].settings)


def model_class(kind: str) -> Any:
    """Return the model class of a kind; this imports torch."""
    module, name = KINDS[kind].model.split(":")
    return getattr(import_module(module), name)


def training_function(kind: str) -> Callable[..., dict[str, Any]]:
    """Return the function that trains a kind: (files, settings, out, *, resume, overwrite, dry_run, reporter)."""
    if kind in TASKS:
        return partial(import_module("relmo.runs.train_task").train_task, model_class(kind))
    return getattr(import_module(f"relmo.runs.train_{kind}"), f"train_{kind}")
