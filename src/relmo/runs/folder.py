"""The folder of a run: created, resumed, or created in place of another.

    run/run.json       kind, files and settings, so that --resume needs only the folder
    run/encoded.json   the corpus in it (`encoded.py`)
    run/checkpoint.…   the state of the trainer (`run.py`)

One process at a time works in a folder. What it replaces (--overwrite) is kept until the new run has written its first
checkpoint, and restored if it fails before.
"""

import dataclasses
import json
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from relmo.disk.digests import read_sealed, seal
from relmo.disk.outputs import folder_lock, remove, storage_errors, sweep, temporary_path
from relmo.errors import ModelError, RelmoError, SettingError, StorageError
from relmo.store.folder import CONFIG, MODEL_FILES, write_json
from relmo.training.parallel import Team, join

SCRATCH, RUN, ENCODED = "run", "run/run.json", "run/encoded.json"
CHECKPOINT = "run/checkpoint.safetensors"
RESTORE_RUN = "restore it from a copy, or start again in another folder"


@contextmanager
def run_folder(
    out: Path, kind: str, files: Sequence[str], settings: Any, *, resume: bool, keep: bool, overwrite: bool = False
) -> Iterator[Team]:
    """Create or resume the folder of a run; yield the processes that share it.

    A resumed run must have the same kind, files and settings. Without `keep` (a dry run) nothing new remains, nor after
    an error before the first checkpoint."""
    note: dict[str, Any] = {"kind": kind, "files": list(files), "settings": dataclasses.asdict(settings)}
    with join() as team, ExitStack() as stack:
        if team.world_size > 1:
            note["processes"] = team.world_size
        note = seal(note)
        with team.barrier():
            if team.is_leader:
                stack.enter_context(_leader_folder(out, note, resume=resume, keep=keep, overwrite=overwrite))
        yield team


@contextmanager
def _leader_folder(out: Path, note: dict[str, Any], *, resume: bool, keep: bool, overwrite: bool) -> Iterator[None]:
    existed = out.exists()
    if existed and not out.is_dir():
        raise SettingError(f"--out {out}: is a file; give a folder")
    with storage_errors(out):
        out.mkdir(parents=True, exist_ok=True)
    with folder_lock(out):
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


@contextmanager
def _set_aside(out: Path, *, keep: bool, overwrite: bool) -> Iterator[None]:
    """Move away what a new run replaces; restore it after a dry run or an error before the first checkpoint."""
    is_resumed = not overwrite and (out / RUN).exists()
    backup = temporary_path(out / "before")
    replaced = [path for path in out.iterdir() if MODEL_FILES.fullmatch(path.name)] if overwrite and keep else []
    for path in replaced:
        backup.mkdir(exist_ok=True)
        path.rename(backup / path.name)
    existing = {path.name for path in out.iterdir()}
    try:
        yield
    except RelmoError as error:
        keep = keep and ((out / CHECKPOINT).exists() or isinstance(error, StorageError))
        raise
    finally:
        if not (keep or is_resumed):
            for path in [path for path in out.iterdir() if path.name not in existing]:
                remove(path)
            for path in replaced:
                (backup / path.name).rename(path)
        remove(backup)


def _check_free(out: Path, note: dict[str, Any], *, resume: bool, keep: bool, overwrite: bool) -> None:
    """Raise `SettingError` if the folder holds a model or another run that must not be replaced."""
    if resume and overwrite:
        raise SettingError("--resume and --overwrite cannot be used together")
    if resume and (out / RUN).exists():
        _check_resumed(out, note)
        return
    if (out / RUN).exists() and not (overwrite and keep):
        advice = "add --resume to continue it, or --overwrite to start again" if keep else "choose another folder"
        raise SettingError(f"--out {out}: already holds a run; {advice}")
    if (out / CONFIG).exists() and not overwrite:
        if resume:
            read_run(out)  # raises, since the run is finished
        raise SettingError(f"--out {out}: holds a finished model; add --overwrite to replace it, or choose another")


def _check_resumed(out: Path, note: dict[str, Any]) -> None:
    original = read_run(out)
    expected, actual = original.get("processes", 1), note.get("processes", 1)
    if actual != expected:
        advice = f"with torchrun --nproc-per-node {expected}" if expected > 1 else "without torchrun"
        raise SettingError(f"--resume: the run in {out} has {expected} processes, not {actual}; resume it {advice}")
    values = json.loads(json.dumps({key: note[key] for key in ("kind", "files", "settings")}))
    if any(original.get(key) != value for key, value in values.items()):  # numbers compare by value: 5 epochs are 5.0
        raise SettingError(f"--resume: {out} was started with other files or settings; omit them to resume it")


def remove_scratch(out: Path) -> None:
    """Remove the files of the run; renamed first, so that a kill leaves no incomplete run."""
    remove((out / SCRATCH).rename(temporary_path(out / SCRATCH)))


def read_run(out: Path) -> dict[str, Any]:
    """Return the kind, files and settings of the run in a folder."""
    if (out / RUN).exists():
        note = read_sealed(out / RUN, RESTORE_RUN)
        files, sections = note.get("files"), note.get("settings")
        if not isinstance(files, list) or not all(isinstance(file, str) for file in files):
            raise ModelError(f"{out / RUN}: has no list of files; {RESTORE_RUN}")
        if not isinstance(sections, dict) or not all(isinstance(values, dict) for values in sections.values()):
            raise ModelError(f"{out / RUN}: has no settings; {RESTORE_RUN}")
        return note
    if (out / CONFIG).exists():
        sweep(out)
        raise SettingError(f"--resume: the run in {out} is finished; there is nothing to resume")
    raise SettingError(f"--resume: there is no run in {out}; start it without --resume")
