"""`relmo make NAME` and `relmo train KIND`"""

import inspect
import os
import sys
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import App, ArgumentCollection, Parameter
from cyclopts.config import Dict

from relmo.cli.options import Overwrite, Quiet
from relmo.cli.terminal import print_json, print_message, print_scores, print_table
from relmo.config import build
from relmo.disk.outputs import atomic, refuse_existing
from relmo.errors import SettingError, StorageError
from relmo.runs.progress import TrainingReporter, is_leader
from relmo.runs.settings import flags_of, settings_layers
from relmo.settings.fields import FrozenSettings, PathName, setting_fields
from relmo.settings.kinds import settings_class, training_function
from relmo.text.makers import MakerOptions, make_pairs

PAIR_FILES = {"train": "train.tsv", "held_out": "held-out.tsv", "longer": "longer.tsv"}
HELP_GROUPS = {"text": "Text", "input": "Input", "model": "Model", "train": "Training", "search": "Search"}


def make(
    name: Literal["arithmetic", "copy", "reverse", "dates"],
    *,
    out: Path,
    options: Annotated[MakerOptions, Parameter(name="*", group="Pairs")] = MakerOptions(),
    overwrite: Overwrite = False,
    json: bool = False,
    quiet: bool = False,
) -> None:
    """Generate pairs of texts for `relmo train seq2seq`: sums, copies, reversals, dates.

    For example:

        relmo make arithmetic --size 4 --operators +- --out sums
        relmo make reverse --size 10 --out reversals
        relmo train seq2seq sums/train.tsv --valid sums/held-out.tsv --preset addition --out models/sums

    It writes tables with two columns, source and target: train.tsv; held-out.tsv, other pairs of the same lengths; and
    longer.tsv, pairs that are longer than those of train.tsv (for dates, days before 1900).

    Args:
        name: arithmetic, copy, reverse or dates.
        out: The output folder.
        json: Print one JSON object: the files and their numbers of pairs.
        quiet: Print nothing.
    """
    for file in PAIR_FILES.values():
        refuse_existing(out / file, overwrite=overwrite)
    tables = make_pairs(name, options)._asdict()
    out.mkdir(parents=True, exist_ok=True)
    for table, pairs in tables.items():
        with atomic(out / PAIR_FILES[table]) as temporary:
            rows = (f"{source}\t{target}\n" for source, target in [("source", "target"), *pairs])
            temporary.write_text("".join(rows), encoding="utf-8")
    counts = {str(out / PAIR_FILES[table]): len(pairs) for table, pairs in tables.items()}
    if json:
        print_json({"files": counts})
    elif not quiet:
        for path, count in counts.items():
            print(f"{path}: {count:,} pairs")


class RunOptions(FrozenSettings):
    """Output folder, source of the settings, and messages of a run."""

    out: Path
    """The output folder."""
    resume: bool = False
    """Continue the run in --out from its last checkpoint. No other arguments are needed."""
    overwrite: Annotated[bool, Parameter(negative="")] = False
    """Replace a model or run in --out."""
    dry_run: bool = False
    """Print the plan (size of the training set, steps, parameters, memory, time) and stop."""
    preset: str | None = None
    """Name of bundled settings to start from."""
    config: Path | None = None
    """TOML file with settings; overrides the preset."""
    set: tuple[str, ...] = ()
    """A setting as section.key=value; overrides the config file; repeatable. The flags below override all of these."""
    json: bool = False
    """Print the results as one JSON object."""
    quiet: Quiet = False


def settings_from_files(app: App, commands: tuple[str, ...], arguments: ArgumentCollection) -> None:
    """Set flags that were not given from the run of --resume, --preset, --config and --set, in this order."""
    kind = commands[-1]
    tokens = {a.name: [token.value for token in a.tokens] for a in arguments if a.tokens}
    out, preset, config = (tokens.get(flag, [None])[0] for flag in ("--out", "--preset", "--config"))
    if out == "":
        raise SettingError("--out is empty; name a folder, for example --out models/mine.")
    resumed = Path(out) if out is not None and "--resume" in tokens else None
    files: dict[str, Any] = {"preset": preset, "config": None if config is None else Path(config)}
    layers = settings_layers(kind, resumed=resumed, overrides=tokens.get("--set", []), **files)
    if not layers:
        return
    settings: Any = build(settings_class(kind), *layers)
    keys = {key for layer in layers for section in layer.values() for key in section}
    flag_values = {}
    for name, flag in flags_of(kind).items():
        value = getattr(getattr(settings, flag.section), name)
        if name in keys and (value is not None or flag.default is not None):
            flag_values[name.replace("_", "-")] = "none" if value is None else value
    Dict(flag_values, source="settings", use_commands_as_keys=False)(app, commands, arguments)


def train_command(kind: str) -> Callable[..., None]:
    """Return the function of `relmo train KIND`. Its parameters are the sections of the settings of the kind, every
    field of which is a flag; its help is the docstring of the settings."""

    def command(*files: str, options: RunOptions, **sections: Any) -> None:
        run(kind, list(files), settings_class(kind)(**sections), options)

    settings = settings_class(kind)
    run_flags = Annotated[RunOptions, Parameter(name="*", group="Run")]
    parameters = [
        inspect.Parameter("files", inspect.Parameter.VAR_POSITIONAL, annotation=PathName),
        inspect.Parameter("options", inspect.Parameter.KEYWORD_ONLY, annotation=run_flags),
    ]
    for section in fields(settings):
        # cyclopts reads the annotations of the class: cells that are registered now become choices
        section_class: Any = section.type
        section_class.__annotations__ |= {name: field.hint for name, field in setting_fields(section_class).items()}
        flags = Annotated[section.type, Parameter(name="*", group=HELP_GROUPS[section.name])]  # type: ignore[name-defined]
        parameter = inspect.Parameter(section.name, inspect.Parameter.KEYWORD_ONLY, annotation=flags)
        parameters.append(parameter.replace(default=getattr(settings(), section.name)))
    command.__name__ = kind
    command.__doc__ = f"{inspect.getdoc(settings)}\n\nArgs:\n    files: {settings.files}\n"
    command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return command


def run(kind: str, files: list[str], settings: Any, options: RunOptions) -> None:
    """Train a model of this kind, show the progress and print the results."""
    from relmo.runs.folder import CHECKPOINT, RUN, read_run
    from relmo.runs.run import TrainingInterrupted
    from relmo.store.folder import CONFIG

    if options.resume and not files:
        files = read_run(options.out)["files"]
    if not files:
        raise SettingError(f"No training files; relmo train {kind} --help shows an example.")
    reporter = TrainingReporter(quiet=options.quiet or not is_leader())
    program = "relmo"
    if "RANK" in os.environ and os.environ.get("WORLD_SIZE", "1") != "1":
        program = f"torchrun --nproc-per-node {os.environ.get('LOCAL_WORLD_SIZE')} -m relmo"
    advice = f"continue with: {program} train {kind} --out {options.out} --resume"
    if options.resume and not (options.out / RUN).exists() and not (options.out / CONFIG).exists():
        reporter.on_message(f"{options.out} has no run to resume; starting a new one")
    mode = {name: getattr(options, name) for name in ("resume", "overwrite", "dry_run")}
    is_restart = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) > 0
    if is_restart and (options.out / RUN).exists():  # torchrun repeats the arguments
        mode |= {"resume": True, "overwrite": False}
    try:
        results = training_function(kind)(files, settings, options.out, reporter=reporter, **mode)
    except TrainingInterrupted:
        reporter.close()
        print_message(f"stopped; {advice}")
        sys.exit(130)
    except StorageError as error:
        raise StorageError(f"{error}; {advice}" if (options.out / CHECKPOINT).exists() else str(error)) from error
    finally:
        reporter.close()
    if options.dry_run or not is_leader():
        return
    if options.json:
        print_json(results | {"out": str(options.out)})
    elif not options.quiet:
        from relmo.disk.files import read_json
        from relmo.runs.train_task import REPORT

        numbers = {k: v for k, v in results.items() if isinstance(v, int | float)}
        rows = [[k, f"{v:,.4f}" if isinstance(v, float) else f"{v:,}"] for k, v in numbers.items()]
        print_table(["result", "value"], rows)
        if (options.out / REPORT).exists():  # scores of a task's model
            print_scores(read_json(options.out / REPORT, "evaluate the model instead"))
            print()
        print(f"saved to {options.out}")
