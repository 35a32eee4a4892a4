"""Table of the kinds of model, from which settings, commands, `relmo.load`, public names and explorer are built without
importing torch, and settings of recurrent cells. A new kind is a line in KINDS and its settings class."""

import json
import shlex
from collections.abc import Callable, Iterable
from functools import partial
from importlib import import_module
from typing import Any, NamedTuple

from relmo.errors import SettingError, quote
from relmo.registry import cell_entry


class Kind(NamedTuple):
    """Kind of model.

    settings   class in `relmo.settings`, as "module:name"; its docstring is the help of `relmo train KIND`
    model      class of the models, as "module:name"; those of tasks are in `relmo.tasks`
    called     noun phrase for messages
    """

    settings: str
    model: str
    called: str


KINDS: dict[str, Kind] = {
    "lm": Kind("lm:LMSettings", "relmo.models.lm:LanguageModel", "a language model"),
    "bilm": Kind("bilm:BiLMSettings", "relmo.models.bilm:BiLM", "a bidirectional language model"),
    "skipgram": Kind("lm:SkipgramSettings", "relmo.models.vectors:WordVectors", "word vectors"),
    "classifier": Kind("tasks:ClassifierSettings", "relmo.tasks.classifier:Classifier", "a classifier"),
    "pairs": Kind("tasks:PairsSettings", "relmo.tasks.classifier:SentencePairs", "a sentence pair model"),
    "tagger": Kind("tasks:TaggerSettings", "relmo.tasks.tagger:Tagger", "a tagger"),
    "reader": Kind("tasks:ReaderSettings", "relmo.tasks.reader:PassageReader", "a reader"),
    "srl": Kind("tasks:SRLSettings", "relmo.tasks.srl:RoleLabeller", "a semantic role labeller"),
    "coref": Kind("tasks:CorefSettings", "relmo.tasks.coref:Coreference", "a coreference model"),
    "seq2seq": Kind("tasks:Seq2SeqSettings", "relmo.tasks.seq2seq:Seq2Seq", "a sequence-to-sequence model"),
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
DEFAULT_EXAMPLE = 'echo "Anna moved from Berlin to Oslo." | relmo predict {model}'
EXAMPLES = {
    "lm": "relmo generate {model} --limit 200",
    "bilm": 'echo "A bank lends money." | relmo embed --model {model} --out vectors.h5',
    "skipgram": "relmo train tagger FILE --vectors {model} --out models/tagger",
    "classifier": 'echo "The room was cold and the waiter was rude." | relmo predict {model}',
    "coref": 'echo "Anna saw Bob. She waved to him." | relmo predict {model}',
    "pairs": "printf 'A dog sleeps.\\tAn animal is asleep.\\n' | relmo predict {model}",
    "reader": "printf 'It was built in 1874.\\tWhen was it built?\\n' | relmo predict {model}",
    "seq2seq": "relmo predict {model} FILE",
}
"""A command to try for kinds that the default does not suit."""
PREDICT_OPTIONS = {
    "reader": ("passage", "best"),
    "coref": ("format", "html"),
    "seq2seq": ("best", "beams", "length_penalty", "coverage", "limit", "attention", "plot"),
}
"""Options of `relmo predict` that only some kinds have."""
TOKENIZED_KINDS = ("tagger", "srl", "coref")
"""Kinds whose files are already tokenised."""
TASKS = tuple(name for name, kind in KINDS.items() if kind.model.startswith("relmo.tasks."))


def settings_class(kind: str) -> Any:
    """Return the settings class of a kind."""
    module, name = KINDS[kind].settings.split(":")
    return getattr(import_module(f"relmo.settings.{module}"), name)


def model_class(kind: str) -> Any:
    """Return the model class of a kind; this imports torch."""
    module, name = KINDS[kind].model.split(":")
    return getattr(import_module(module), name)


def training_function(kind: str) -> Callable[..., dict[str, Any]]:
    """Return the function that trains a kind: (files, settings, out, *, resume, overwrite, dry_run, reporter)."""
    if kind in TASKS:
        return partial(import_module("relmo.runs.train_task").train_task, model_class(kind))
    return getattr(import_module(f"relmo.runs.train_{kind}"), f"train_{kind}")


def example_command(kind: str, model: str) -> str:
    """Return a command to try with a model of this name."""
    return EXAMPLES.get(kind, DEFAULT_EXAMPLE).format(model=shlex.quote(model))


def parse_cell_options(cell: str, texts: Iterable[str]) -> dict[str, Any]:
    """Return options such as "heads=4" as keywords of the class of a cell, or raise `SettingError`."""
    defaults, options = cell_entry(cell).options, {}
    for text in (part for joined in texts for part in joined.replace(",", " ").split()):
        name, _, value = text.partition("=")
        if name not in defaults:
            known = f"has {', '.join(defaults)}" if defaults else "has no options"
            raise SettingError(f"cell_options: {cell} has no option {quote(name)}; it {known}")
        try:
            option = value if isinstance(defaults[name], str) else json.loads(value)
        except ValueError:
            option = value
        if not _has_type_of(defaults[name], option):
            raise SettingError(f"cell_options: {name} must be like its default {defaults[name]!r}, not {quote(value)}")
        options[name] = option
    return options


def _has_type_of(default: Any, option: Any) -> bool:
    if isinstance(default, bool) or isinstance(option, bool):
        return isinstance(default, bool) and isinstance(option, bool)
    return isinstance(option, int | float if default is None or isinstance(default, float) else type(default))


def check_cell_options(settings: Any) -> None:
    """Raise `SettingError` if `cell_options` has an option that the cell lacks or that is a setting of its own."""
    for name in parse_cell_options(settings.cell, settings.cell_options):
        if hasattr(settings, name):
            raise SettingError(f"cell_options: {name} is a setting of its own; use {name}")


def cell_options(settings: Any) -> dict[str, Any]:
    """Return the options of the cell that a model's settings name, as keywords of its class: those with a setting of
    their own, and `cell_options`."""
    named = {name: getattr(settings, name) for name in cell_entry(settings.cell).options if hasattr(settings, name)}
    return named | parse_cell_options(settings.cell, settings.cell_options)
