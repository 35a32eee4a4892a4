"""`relmo train KIND`: settings from presets, files and flags; then the plain function that trains."""

import inspect
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any

from cyclopts import App, ArgumentCollection, Parameter
from cyclopts.config import Dict

from relmo.cli.terminal import (
    print_json,
    print_label_table,
    print_length_table,
    print_table,
    say,
)
from relmo.config import build
from relmo.errors import SettingError, StorageError
from relmo.runs.progress import TrainingReporter, speaks
from relmo.runs.settings import flags_of, settings_layers
from relmo.settings.arguments import PathName
from relmo.settings.kinds import settings_class, training_function


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """Where the model goes and how the run behaves."""

    out: Path
    """The folder to write the model to."""
    resume: bool = False
    """Go on with the run in --out from its last checkpoint. No other arguments are needed."""
    overwrite: Annotated[bool, Parameter(negative="")] = False
    """Begin anew if --out holds a model or a run already, and replace it."""
    dry_run: bool = False
    """Print the plan (the size of the training part, steps, parameters, memory, time) and stop."""
    preset: str | None = None
    """Begin from settings that ship with relmo, by their name."""
    config: Path | None = None
    """Settings from a TOML file. They go over the preset's."""
    set: tuple[str, ...] = ()
    """One setting as section.key=value, which goes over the file's; may be given several times. The flags below go over
    all of these."""
    json: bool = False
    """Print the results as one JSON object."""
    quiet: bool = False
    """Print no progress."""


def settings_from_files(app: App, commands: tuple[str, ...], arguments: ArgumentCollection) -> None:
    """Gives the flags that were not typed the values of --resume's run, --preset, --config and --set, each over the one
    before."""
    kind = commands[-1]
    given = {a.name: [token.value for token in a.tokens] for a in arguments if a.tokens}
    out, preset, config = (given.get(flag, [None])[0] for flag in ("--out", "--preset", "--config"))
    if out == "":
        raise SettingError("--out is empty; name a folder, for example --out models/mine")
    layers = settings_layers(
        kind,
        resumed=Path(out) if out is not None and "--resume" in given else None,
        preset=preset,
        config=None if config is None else Path(config),
        overrides=given.get("--set", []),
    )
    if not layers:
        return
    settings: Any = build(settings_class(kind), *layers)
    named = {key for layer in layers for values in layer.values() for key in values}
    values = {}
    for name, flag in flags_of(kind).items():
        value = getattr(getattr(settings, flag.section), name)
        if name in named and (value is not None or flag.default is not None):
            values[name.replace("_", "-")] = "none" if value is None else value
    Dict(values, source="settings", use_commands_as_keys=False)(app, commands, arguments)


# sections, as the help names them
GROUPS = {"text": "Text", "input": "Input", "model": "Model", "train": "Training", "search": "Search"}


def train_command(kind: str) -> Callable[..., None]:
    """The function behind `relmo train KIND`. Its parameters are the sections of the kind's settings, each field of
    which is a flag; its help is the docstring of the settings."""

    def command(*files: str, options: RunOptions, **sections: Any) -> None:
        run(kind, list(files), settings_class(kind)(**sections), options)

    settings = settings_class(kind)
    annotations: dict[str, Any] = {
        "files": PathName,
        "options": Annotated[RunOptions, Parameter(name="*", group="Run")],
    }
    parameters = [
        inspect.Parameter("files", inspect.Parameter.VAR_POSITIONAL, annotation=PathName),
        inspect.Parameter("options", inspect.Parameter.KEYWORD_ONLY, annotation=annotations["options"]),
    ]
    for section in fields(settings):
        flags = Annotated[section.type, Parameter(name="*", group=GROUPS[section.name])]  # type: ignore[name-defined]
        annotations[section.name] = flags
        default = getattr(settings(), section.name)
        parameters.append(
            inspect.Parameter(section.name, inspect.Parameter.KEYWORD_ONLY, annotation=flags, default=default)
        )
    command.__name__ = kind
    command.__doc__ = f"{inspect.getdoc(settings)}\n\nParameters\n----------\nfiles\n    {settings.files}\n"
    command.__annotations__ = annotations
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return command


def _program() -> str:
    """How this program was started, up to its verb."""
    several = "RANK" in os.environ and os.environ.get("WORLD_SIZE", "1") != "1"
    return f"torchrun --nproc-per-node {os.environ.get('LOCAL_WORLD_SIZE')} -m relmo" if several else "relmo"


def run(kind: str, files: list[str], settings: Any, options: RunOptions) -> None:
    """Runs a kind's training function, shows its progress and prints its results."""
    from relmo.runs.folder import CHECKPOINT, RUN, read_run
    from relmo.runs.run import Stopped
    from relmo.store.folder import CONFIG
    from relmo.training.parallel import restarted

    if options.resume and not files:
        files = read_run(options.out)["files"]
    if not files:
        raise SettingError(f"no corpus: give the files to train on; relmo train {kind} --help shows an example")
    reporter = TrainingReporter(quiet=options.quiet or not speaks())
    go_on = f"go on with: {_program()} train {kind} --out {options.out} --resume"
    if options.resume and not (options.out / RUN).exists() and not (options.out / CONFIG).exists():
        reporter.said(f"there is no run in {options.out} to go on with; a new one begins")
    how = {name: getattr(options, name) for name in ("resume", "overwrite", "dry_run")}
    if restarted() and (options.out / RUN).exists():  # torchrun gives the same arguments as at the first start
        how |= {"resume": True, "overwrite": False}
    try:
        results = training_function(kind)(files, settings, options.out, reporter=reporter, **how)
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
        _print_labels(options.out)
        print(f"saved to {options.out}")


def _print_labels(out: Path) -> None:
    """Of a task's model, how well it does with each label."""
    from relmo.disk.digests import read_json
    from relmo.runs.train_task import REPORT
    from relmo.tasks.scores import LabelScore

    if (out / REPORT).exists():
        report = read_json(out / REPORT, "evaluate the model instead")
        print_label_table([LabelScore(**label) for label in report["labels"]])
        print_length_table(report)
        print()
