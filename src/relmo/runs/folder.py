"""The folder of a run while it goes on: made, found again, or made in place of another.

    run/run.json       what was asked for, so that --resume needs nothing but the folder
    run/encoded.json   the corpus in it (`encoded.py`)
    run/checkpoint.…   how far it is (`run.py`)

One process at a time works in a folder. What it replaces (--overwrite) is kept aside until the new run has come to
something, and is put back where it has not.
"""

import dataclasses
import json
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from relmo.disk.digests import read_sealed, sealed
from relmo.disk.outputs import locked, remove, storage_errors, sweep, temporary_path
from relmo.errors import ModelError, RelmoError, SettingError, StorageError
from relmo.store.folder import CONFIG, OURS, write_json
from relmo.training.parallel import Team, join

SCRATCH, RUN, ENCODED = "run", "run/run.json", "run/encoded.json"
CHECKPOINT = "run/checkpoint.safetensors"
AGAIN = "restore it from a copy, or start again in another folder"


@contextmanager
def run_folder(
    out: Path, kind: str, files: Sequence[str], settings: Any, *, resume: bool, keep: bool, overwrite: bool = False
) -> Iterator[Team]:
    """The folder of a run: made, with a note of what was asked for; or found again, where the note must say the same.
    Without `keep` (a dry run) nothing new stays of it, nor after a mistake that showed before the first checkpoint.
    -> the processes that share the run"""
    note: dict[str, Any] = {"kind": kind, "files": list(files), "settings": dataclasses.asdict(settings)}
    with join() as team, ExitStack() as stack:
        if team.size > 1:
            note["processes"] = team.size
        note = sealed(note)
        with team.together():
            if team.leads:
                stack.enter_context(_own_folder(out, note, resume=resume, keep=keep, overwrite=overwrite))
        yield team


@contextmanager
def _own_folder(out: Path, note: dict[str, Any], *, resume: bool, keep: bool, overwrite: bool) -> Iterator[None]:
    """`run_folder` for the process that writes it; no other process writes there meanwhile."""
    existed = out.exists()
    if existed and not out.is_dir():
        raise SettingError(f"--out {out}: is a file; give a folder")
    with storage_errors(out):
        out.mkdir(parents=True, exist_ok=True)
    with locked(out):
        sweep(out)
        try:
            _check_free(out, note, resume=resume, keep=keep, overwrite=overwrite)
            with _set_aside(out, keep=keep, overwrite=overwrite), storage_errors(out):
                (out / SCRATCH).mkdir(exist_ok=True)
                write_json(out / RUN, note)
                yield
        finally:
            if not existed and not (out / RUN).exists() and not (out / CONFIG).exists():
                remove(out)


def _processes(count: int) -> str:
    return "1 process" if count == 1 else f"{count} processes"


@contextmanager
def _set_aside(out: Path, *, keep: bool, overwrite: bool) -> Iterator[None]:
    """Takes away what a new run of the folder replaces. After a dry run, and after a mistake that showed before the
    first checkpoint, the new run goes, and what was there is back."""
    begun = not overwrite and (out / RUN).exists()
    aside = temporary_path(out / "before")
    replaced = [path for path in out.iterdir() if OURS.fullmatch(path.name)] if overwrite and keep else []
    for path in replaced:
        aside.mkdir(exist_ok=True)
        path.rename(aside / path.name)
    others = {path.name for path in out.iterdir()}
    try:
        yield
    except RelmoError as error:
        keep = keep and ((out / CHECKPOINT).exists() or isinstance(error, StorageError))
        raise
    finally:
        if not (keep or begun):
            for path in [path for path in out.iterdir() if path.name not in others]:
                remove(path)
            for path in replaced:
                (aside / path.name).rename(path)
        remove(aside)


def _check_free(out: Path, note: dict[str, Any], *, resume: bool, keep: bool, overwrite: bool) -> None:
    """An error where the folder holds a model, or a run that is not this one's, and neither is to be replaced."""
    if resume and overwrite:
        raise SettingError("--resume goes on with a run, --overwrite begins it anew; give one of them")
    if resume and (out / RUN).exists():
        _check_resumed(out, note)
        return
    if (out / RUN).exists() and not (overwrite and keep):
        ways = "add --resume to go on with it, or --overwrite to begin anew" if keep else "choose another folder"
        raise SettingError(f"--out {out}: holds a run already; {ways}")
    if (out / CONFIG).exists() and not overwrite:
        if resume:
            read_run(out)  # which says that there is nothing to go on with
        raise SettingError(f"--out {out}: holds a finished model; add --overwrite to replace it, or choose another")


def _check_resumed(out: Path, note: dict[str, Any]) -> None:
    """An error where the run in the folder was asked for with other words."""
    before = read_run(out)
    wanted, here = before.get("processes", 1), note.get("processes", 1)
    if here != wanted:
        with_it = f"with torchrun --nproc-per-node {wanted}" if wanted > 1 else "without torchrun"
        raise SettingError(
            f"--resume: the run in {out} has {_processes(wanted)}, and this is {_processes(here)}; go on {with_it}"
        )
    said = json.loads(json.dumps({key: note[key] for key in ("kind", "files", "settings")}))
    if any(before.get(key) != value for key, value in said.items()):  # as numbers: 5 epochs are 5.0
        raise SettingError(f"--resume: {out} was begun with other files or settings; leave them out to go on with it")


def remove_scratch(out: Path) -> None:
    """Removes what only the run needed; first renamed, so that a kill in between leaves no half of a run."""
    remove((out / SCRATCH).rename(temporary_path(out / SCRATCH)))


def read_run(out: Path) -> dict[str, Any]:
    """What the run in this folder was asked for: its kind, files and settings."""
    if (out / RUN).exists():
        note = read_sealed(out / RUN, AGAIN)
        files, sections = note.get("files"), note.get("settings")
        if not isinstance(files, list) or not all(isinstance(file, str) for file in files):
            raise ModelError(f"{out / RUN}: has no list of files; {AGAIN}")
        if not isinstance(sections, dict) or not all(isinstance(values, dict) for values in sections.values()):
            raise ModelError(f"{out / RUN}: has no settings; {AGAIN}")
        return note
    if (out / CONFIG).exists():
        sweep(out)
        raise SettingError(f"--resume: the run in {out} is finished; there is nothing to go on with")
    raise SettingError(f"--resume: there is no run in {out}; start it without --resume")
