"""`relmo train KIND`: settings from presets, files and flags; then the plain function that trains."""

import os
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from cyclopts import App, ArgumentCollection, Parameter
from cyclopts.config import Dict

from relmo.config import build, check_keys, parse_override, read_preset, read_toml
from relmo.errors import SettingError, StorageError
from relmo.settings import (
    BiLMModelSettings,
    BiLMSettings,
    BiLMTextSettings,
    BiLMTrainSettings,
    LanguageModelSettings,
    LMSettings,
    SkipgramModelSettings,
    SkipgramSettings,
    SkipgramTextSettings,
    SkipgramTrainSettings,
    TextSettings,
    TrainSettings,
)
from relmo.task_settings import (
    ClassifierModelSettings,
    ClassifierSettings,
    ClassifierTextSettings,
    ClassifierTrainSettings,
    InputSettings,
    PairsModelSettings,
    PairsSettings,
    PairsTextSettings,
    TaggerModelSettings,
    TaggerSettings,
    TaggerTextSettings,
    TaskTrainSettings,
)

KINDS: dict[str, type] = {
    "lm": LMSettings,
    "bilm": BiLMSettings,
    "skipgram": SkipgramSettings,
    "classifier": ClassifierSettings,
    "pairs": PairsSettings,
    "tagger": TaggerSettings,
}

GRACE = 5.0  # seconds


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """Where the model goes and how the run behaves."""

    out: Path
    """The folder to write the model to."""
    resume: bool = False
    """Go on with the run in --out from its last checkpoint; it needs no other arguments."""
    overwrite: Annotated[bool, Parameter(negative="")] = False
    """Begin anew where --out holds a model or a run already, in its place."""
    dry_run: bool = False
    """Print the plan (symbols, steps, parameters, memory, time) and stop."""
    preset: str | None = None
    """Begin from the settings of this name that ship with relmo."""
    config: Path | None = None
    """Settings from a TOML file, over the preset's."""
    set: tuple[str, ...] = ()
    """One setting as section.key=value, over the file's; may be given several times. The flags below are over all of
    these."""
    json: bool = False
    """Print the results as one JSON object."""
    quiet: bool = False
    """Print no progress."""


def settings_from_files(app: App, commands: tuple[str, ...], arguments: ArgumentCollection) -> None:
    """Gives the flags that were not typed the values of --resume's run, --preset, --config and --set, each over the one
    before."""
    kind = commands[-1]
    given = {a.name: [token.value for token in a.tokens] for a in arguments if a.tokens}
    layers = []
    if "--resume" in given and "--out" in given:
        layers.append(saved_settings(Path(given["--out"][0])))
    if "--preset" in given:
        layers.append(read_preset(given["--preset"][0], kind))
    if "--config" in given:
        layers.append(read_toml(Path(given["--config"][0])))
        check_keys(KINDS[kind], layers[-1], given["--config"][0])
    layers += [parse_override(text) for text in given.get("--set", [])]
    if not layers:
        return
    settings: Any = build(KINDS[kind], *layers)
    named = {key for layer in layers for values in layer.values() for key in values}
    sections = [getattr(settings, section.name) for section in fields(settings)]
    values = {
        key.replace("_", "-"): v for s in sections for key, v in vars(s).items() if key in named and v is not None
    }
    Dict(values, source="settings", use_commands_as_keys=False)(app, commands, arguments)


def saved_settings(out: Path) -> dict[str, Any]:
    """The settings of a run that is to go on; None, which flags cannot say, is left to the defaults."""
    from relmo.run_folder import RUN, read_run

    if not (out / RUN).exists():
        return {}
    sections = read_run(out).get("settings", {})
    return {name: {k: v for k, v in values.items() if v is not None} for name, values in sections.items()}


Options = Annotated[RunOptions, Parameter(name="*", group="Run")]


def lm(
    *corpus: str,
    options: Options,
    text: Annotated[TextSettings, Parameter(name="*", group="Text")] = TextSettings(),  # noqa: B008
    model: Annotated[LanguageModelSettings, Parameter(name="*", group="Model")] = LanguageModelSettings(),  # noqa: B008
    train: Annotated[TrainSettings, Parameter(name="*", group="Training")] = TrainSettings(),  # noqa: B008
) -> None:
    """Train a language model over characters or words.

    Any text will do: plain, .gz, .xz, .zst, .conllu, or - for standard input. The last part is held out for validation.

        relmo train lm corpus.txt --cell lstm --hidden 512 --epochs 20 --out models/mine

        relmo generate models/mine --prompt "Once upon a time"

    Parameters
    ----------
    corpus
        Files to train on, in this order.
    """
    from relmo.train_lm import train_lm

    settings = LMSettings(text=text, model=model, train=train)
    run(train_lm, list(corpus), settings, options)


def bilm(
    *corpus: str,
    options: Options,
    text: Annotated[BiLMTextSettings, Parameter(name="*", group="Text")] = BiLMTextSettings(),  # noqa: B008
    model: Annotated[BiLMModelSettings, Parameter(name="*", group="Model")] = BiLMModelSettings(),  # noqa: B008
    train: Annotated[BiLMTrainSettings, Parameter(name="*", group="Training")] = BiLMTrainSettings(),  # noqa: B008
) -> None:
    """Train a bidirectional language model (ELMo).

    Text has one sentence a line; words are counted, the vocabulary is made, and the last part is held out.

        relmo train bilm corpus.txt --preset small --min-count 3 --epochs 10 --out models/mine

        relmo train bilm domain.txt --init models/mine --epochs 1 --out models/domain

        relmo evaluate models/mine test.txt

    Parameters
    ----------
    corpus
        Files to train on, in this order: plain, .gz, .xz, .zst, .conllu, or - for standard input.
    """
    from relmo.train_bilm import train_bilm

    run(train_bilm, list(corpus), BiLMSettings(text=text, model=model, train=train), options)


def speaks() -> bool:
    """Of several processes that torchrun has started, only the first one prints."""
    return "WORLD_SIZE" not in os.environ or os.environ.get("RANK", "0") == "0"


def say(last_words: str) -> None:
    """Prints a line on standard error before the program fails. torchrun ends all processes when one does: those that
    do not print wait, so that the first one can."""
    if speaks():
        with suppress(OSError):  # a full disk must not hide how the program ended
            print(last_words, file=sys.stderr, flush=True)
    else:
        time.sleep(GRACE)


def program() -> str:
    """How this program was started, up to its verb."""
    several = "RANK" in os.environ and os.environ.get("WORLD_SIZE", "1") != "1"
    return f"torchrun --nproc-per-node {os.environ.get('LOCAL_WORLD_SIZE')} -m relmo" if several else "relmo"


def run(function: Callable[..., dict[str, Any]], files: list[str], settings: Any, options: RunOptions) -> None:
    """Runs a kind's training function, shows its progress and prints its results."""
    from relmo.cli.report import Terminal, print_json, print_table
    from relmo.run import Stopped
    from relmo.run_folder import CHECKPOINT, read_run

    if options.resume and not files:
        files = read_run(options.out)["files"]
    if not files:
        raise SettingError("no corpus: give one or more text files, or - for standard input")
    reporter = Terminal(quiet=options.quiet or not speaks())
    kind = type(settings).__name__.removesuffix("Settings").lower()
    go_on = f"go on with: {program()} train {kind} --out {options.out} --resume"
    how = {name: getattr(options, name) for name in ("resume", "overwrite", "dry_run")}
    try:
        results = function(files, settings, options.out, reporter=reporter, **how)
    except Stopped:
        reporter.close()
        say(f"stopped; {go_on}")
        sys.exit(130)
    except StorageError as error:
        raise StorageError(f"{error}; {go_on}" if (options.out / CHECKPOINT).exists() else str(error)) from error
    finally:
        reporter.close()
    if options.dry_run or not speaks():
        return
    if options.json:
        print_json(results | {"out": str(options.out)})
    elif not options.quiet:
        numbers = {k: v for k, v in results.items() if isinstance(v, int | float)}
        print_table(
            ["result", "value"], [[k, f"{v:,.4f}" if isinstance(v, float) else f"{v:,}"] for k, v in numbers.items()]
        )
        print_labels(options.out)
        print(f"saved to {options.out}")


def print_labels(out: Path) -> None:
    """Of a task's model, how well it does with each label."""
    from relmo.cli.evaluate import print_label_table
    from relmo.digests import read_json
    from relmo.scores import LabelScore
    from relmo.train_task import REPORT

    if (out / REPORT).exists():
        report = read_json(out / REPORT, "evaluate the model instead")
        print_label_table([LabelScore(**label) for label in report["labels"]])
        print()


def skipgram(
    *corpus: str,
    options: Options,
    text: Annotated[SkipgramTextSettings, Parameter(name="*", group="Text")] = SkipgramTextSettings(),  # noqa: B008
    model: Annotated[SkipgramModelSettings, Parameter(name="*", group="Model")] = SkipgramModelSettings(),  # noqa: B008
    train: Annotated[SkipgramTrainSettings, Parameter(name="*", group="Training")] = SkipgramTrainSettings(),  # noqa: B008
) -> None:
    """Train static word vectors, skip-gram with negative sampling.

    The folder also holds them as vectors.txt, in word2vec's text format.

        relmo train skipgram corpus.txt --out models/vectors

    Parameters
    ----------
    corpus
        Files to train on: plain, .gz, .xz, .zst, .conllu, or - for standard input.
    """
    from relmo.train_skipgram import train_skipgram

    run(train_skipgram, list(corpus), SkipgramSettings(text=text, model=model, train=train), options)


Inputs = Annotated[InputSettings, Parameter(name="*", group="Input")]
TaskTraining = Annotated[TaskTrainSettings, Parameter(name="*", group="Training")]
ClassifierTraining = Annotated[ClassifierTrainSettings, Parameter(name="*", group="Training")]


def classifier(
    *files: str,
    options: Options,
    text: Annotated[ClassifierTextSettings, Parameter(name="*", group="Text")] = ClassifierTextSettings(),  # noqa: B008
    input: Inputs = InputSettings(),  # noqa: A002, B008
    model: Annotated[ClassifierModelSettings, Parameter(name="*", group="Model")] = ClassifierModelSettings(),  # noqa: B008
    train: ClassifierTraining = ClassifierTrainSettings(),  # noqa: B008
) -> None:
    """Train a classifier of texts: sentiment, acceptability, topics; with or without ELMo.

        relmo train classifier train.txt --valid dev.txt --preset sst5 --elmo small --elmo-at both --out models/sst5

        relmo train classifier train.tsv --valid dev.tsv --metric f1 --pool attention --out models/mine

        relmo train classifier reviews.tsv --init models/lm --pool final --out models/reviews

        echo "A quiet, lovely film." | relmo predict models/sst5 --json

    Parameters
    ----------
    files
        Texts with labels: trees (SST), CoLA, a table with a header, JSON lines, or a folder for each label (IMDB).
    """
    from relmo.classifier import Classifier
    from relmo.train_task import train_task

    settings = ClassifierSettings(text=text, input=input, model=model, train=train)
    run(partial(train_task, Classifier), list(files), settings, options)


def pairs(
    *files: str,
    options: Options,
    text: Annotated[PairsTextSettings, Parameter(name="*", group="Text")] = PairsTextSettings(),  # noqa: B008
    input: Inputs = InputSettings(),  # noqa: A002, B008
    model: Annotated[PairsModelSettings, Parameter(name="*", group="Model")] = PairsModelSettings(),  # noqa: B008
    train: TaskTraining = TaskTrainSettings(),  # noqa: B008
) -> None:
    """Train a network that compares two sentences: inference, paraphrase, similarity; with or without ELMo.

        relmo train pairs train.tsv --valid dev.tsv --preset snli --elmo small --elmo-at both --out models/snli

        relmo train pairs sts-train.csv --valid sts-dev.csv --preset stsb --elmo small --out models/stsb

        relmo train pairs mine.jsonl --network encoder --pool max --out models/mine

        printf "A man sleeps.\\tA person is awake.\\n" | relmo predict models/snli

    Parameters
    ----------
    files
        Pairs with labels or scores: a table with a header (SNLI, SICK), STS-B, or JSON lines.
    """
    from relmo.pairs import SentencePairs
    from relmo.train_task import train_task

    settings = PairsSettings(text=text, input=input, model=model, train=train)
    run(partial(train_task, SentencePairs), list(files), settings, options)


def tagger(
    *files: str,
    options: Options,
    text: Annotated[TaggerTextSettings, Parameter(name="*", group="Text")] = TaggerTextSettings(),  # noqa: B008
    input: Inputs = InputSettings(),  # noqa: A002, B008
    model: Annotated[TaggerModelSettings, Parameter(name="*", group="Model")] = TaggerModelSettings(),  # noqa: B008
    train: TaskTraining = TaskTrainSettings(),  # noqa: B008
) -> None:
    """Train a tagger: parts of speech, names, or any column of tags; with or without ELMo.

        relmo train tagger train.conllu --valid dev.conllu --preset pos --elmo small --out models/pos

        relmo train tagger train.iob2 --valid dev.iob2 --preset ner --elmo small --seeds 5 --out models/ner

        echo "Anna lives in Berlin." | relmo predict models/ner

    Parameters
    ----------
    files
        Sentences to train on: CoNLL-U, columns (CoNLL, IOB2), or JSON lines; plain, .gz, .xz or .zst.
    """
    from relmo.tagger import Tagger
    from relmo.train_task import train_task

    settings = TaggerSettings(text=text, input=input, model=model, train=train)
    run(partial(train_task, Tagger), list(files), settings, options)
