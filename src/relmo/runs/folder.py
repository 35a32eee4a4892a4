"""A run and its folder, which is created, resumed, or created in place of another.

run/run.json       kind, files and settings, so that --resume needs only the folder
run/encoded.json   facts on the encoded corpus and the digests of its files; it is complete once this exists
run/checkpoint.…   the state of the trainer (`run.py`)
"""

import dataclasses
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, TypeAlias, TypedDict

import numpy as np
import torch

from relmo.disk.files import check_file, fingerprint, read_sealed, seal
from relmo.disk.outputs import atomic, folder_lock, remove, storage_errors, sweep, temporary_path
from relmo.errors import ModelError, RelmoError, SettingError, StorageError, quote
from relmo.runs.progress import Reporter
from relmo.settings.fields import describe_value
from relmo.settings.kinds import settings_class
from relmo.store.folder import CONFIG, MODEL_FILES, pick_device, write_json
from relmo.text.encode import BOUNDARY, Corpus, Stream, V, check_numbers, id_type, map_numbers
from relmo.text.vocabulary import SentenceVocabulary
from relmo.training.parallel import Team, get_local_device, join

SCRATCH, RUN, ENCODED = "run", "run/run.json", "run/encoded.json"
CHECKPOINT, LEXICON = "run/checkpoint.safetensors", "lexicon.txt"
RESTORE_RUN = "restore it from a copy, or start again in another folder"
MIN_WORDS_OF_TEXT = 5  # a string with fewer words is taken for a path
SUFFIX = re.compile(r"\.\w{1,8}$")
Files: TypeAlias = str | Path | Iterable[str | Path]


class RunArguments(TypedDict, total=False):
    """Keyword arguments of every training function.

    resume, overwrite   continue the run in the folder; replace what the folder holds
    dry_run             report the plan without training
    reporter            receives the events of the run
    """

    resume: bool
    overwrite: bool
    dry_run: bool
    reporter: Reporter | None


@dataclasses.dataclass(frozen=True)
class TrainingRun:
    """Training of a model of this kind in the folder `out`, by the processes of the team."""

    kind: str
    files: list[str]
    settings: Any
    out: Path
    device: torch.device
    reporter: Reporter
    team: Team
    dry_run: bool


def list_paths(files: Files | None) -> list[str]:
    """Return the paths in order; raise `SettingError` if one of them is a text."""
    if files is None:
        return []
    if isinstance(files, bytes) or not isinstance(files, str | os.PathLike | Iterable):
        raise SettingError(f"files must be a path or a list of paths, not {describe_value(files)}")
    return [check_path(file) for file in ([files] if isinstance(files, str | os.PathLike) else files)]


def check_path(file: Any) -> str:
    """Return a path as a string; raise `SettingError` for a text: line ends, or words without a suffix or file."""
    if not isinstance(file, str | os.PathLike) or not isinstance(path := os.fspath(file), str):
        raise SettingError(f"a file is given by its path, a str or a Path, not {describe_value(file)}")
    if not path.strip():
        raise SettingError("the path of a file is empty")
    is_long = len(path.split()) >= MIN_WORDS_OF_TEXT and not SUFFIX.search(path) and not os.path.lexists(path)
    if "\n" in path or "\r" in path or is_long:
        raise SettingError(
            f"{quote(path)} is a text, not the path of a file; write it to a file, one sentence or paragraph per "
            "line, and give the path of that file"
        )
    return path


@contextmanager
def open_run(
    kind: str,
    files: Files,
    settings: Any,
    out: str | Path,
    *,
    resume: bool = False,
    overwrite: bool = False,
    dry_run: bool = False,
    reporter: Reporter | None = None,
) -> Iterator[TrainingRun]:
    """Create or resume the folder of a run and join the processes that share it.

    A resumed run must have the same kind, files and settings. After a dry run nothing new remains, nor after an error
    before the first checkpoint."""
    files, out = list_paths(files), Path(out)
    if settings.train.threads:
        torch.set_num_threads(settings.train.threads)
    device = get_local_device(pick_device(settings.train.device))
    note: dict[str, Any] = {"kind": kind, "files": files, "settings": dataclasses.asdict(settings)}
    with join() as team, ExitStack() as stack:
        if team.world_size > 1:
            note["processes"] = team.world_size
        with team.barrier():
            if team.is_leader:
                folder = _leader_folder(out, seal(note), resume=resume, keep=not dry_run, overwrite=overwrite)
                stack.enter_context(folder)
        yield TrainingRun(kind, files, settings, out, device, reporter or Reporter(), team, dry_run)


@contextmanager
def _leader_folder(out: Path, note: dict[str, Any], *, resume: bool, keep: bool, overwrite: bool) -> Iterator[None]:
    """Move away what a new run replaces; restore it after a dry run or an error before the first checkpoint."""
    existed = out.exists()
    if existed and not out.is_dir():
        raise SettingError(f"--out {out}: is a file; give a folder")
    with storage_errors(out):
        out.mkdir(parents=True, exist_ok=True)
    with folder_lock(out):
        sweep(out)
        try:
            _check_free(out, note, resume=resume, keep=keep, overwrite=overwrite)
            is_resumed = not overwrite and (out / RUN).exists()
            backup = temporary_path(out / "before")
            replaced = [path for path in out.iterdir() if MODEL_FILES.fullmatch(path.name) and overwrite and keep]
            for path in replaced:
                backup.mkdir(exist_ok=True)
                path.rename(backup / path.name)
            existing = {path.name for path in out.iterdir()}
            try:
                with storage_errors(out):
                    (out / SCRATCH).mkdir(exist_ok=True)
                    write_json(out / RUN, note)
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
        finally:
            if not existed and not (out / RUN).exists() and not (out / CONFIG).exists():
                remove(out)


def _check_free(out: Path, note: dict[str, Any], *, resume: bool, keep: bool, overwrite: bool) -> None:
    """Raise `SettingError` if the folder holds a model or another run that must not be replaced."""
    if resume and overwrite:
        raise SettingError("--resume and --overwrite cannot be used together")
    if resume and (out / RUN).exists():
        original = read_run(out)
        expected, actual = original.get("processes", 1), note.get("processes", 1)
        if actual != expected:
            advice = f"with torchrun --nproc-per-node {expected}" if expected > 1 else "without torchrun"
            raise SettingError(f"--resume: the run in {out} has {expected} processes, not {actual}; resume it {advice}")
        if not _is_same_run(original, note):
            raise SettingError(f"--resume: {out} was started with other files or settings; omit them to resume it")
        return
    if (out / RUN).exists() and not (overwrite and keep):
        advice = "add --resume to continue it, or --overwrite to start again" if keep else "choose another folder"
        raise SettingError(f"--out {out}: already holds a run; {advice}")
    if (out / CONFIG).exists() and not overwrite:
        if resume:
            read_run(out)  # raises, since the run is finished
        raise SettingError(f"--out {out}: holds a finished model; add --overwrite to replace it, or choose another")


def _is_same_run(original: dict[str, Any], note: dict[str, Any]) -> bool:
    """Whether kind, files and settings agree; a setting that the original run did not know has its default."""
    if any(original.get(key) != note[key] for key in ("kind", "files")):
        return False
    defaults = dataclasses.asdict(settings_class(note["kind"])())
    settings = {name: defaults.get(name, {}) | values for name, values in original["settings"].items()}
    # numbers compare by value (5 epochs are 5.0), tuples as lists
    return _to_json(defaults | settings) == _to_json(note["settings"])


def _to_json(value: Any) -> Any:
    return json.loads(json.dumps(value))


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


def remove_scratch(out: Path) -> None:
    """Remove the files of the run; renamed first, so that a kill leaves no incomplete run."""
    remove((out / SCRATCH).rename(temporary_path(out / SCRATCH)))


def encode_once(
    run: TrainingRun, vocabulary_type: type[V], encode: Callable[[Path], tuple[Corpus[V], dict[str, Any]]]
) -> tuple[Corpus[V], dict[str, Any]]:
    """Let the leader `encode` the corpus in a folder, unless a killed run has done so, and all read it; return it with
    the further facts that `encode` returned."""
    path, folder, team = run.out / ENCODED, run.out / SCRATCH, run.team
    is_stream = not issubclass(vocabulary_type, SentenceVocabulary)
    with team.barrier():
        if team.is_leader and not path.exists():
            corpus, values = encode(folder)
            with atomic(folder / LEXICON) as temporary:
                vocabulary_type(corpus.lexicon).save(temporary)
            streams = {name: part for name, part in vars(corpus).items() if isinstance(part, Stream)}
            parts = {name: (part.characters, part.unknown) for name, part in streams.items()}
            digests = {name: fingerprint(folder / name) for name in (LEXICON, *(f"{name}.ids" for name in parts))}
            values |= {"vocab_size": len(corpus.vocabulary), "parts": parts, "files": digests}
            write_json(path, seal(values))
        elif team.is_leader:
            with check_note(path):
                for name, expected in read_sealed(path, RESTORE_RUN)["files"].items():
                    check_file(folder / name, expected, RESTORE_RUN)
    with team.barrier():
        if not path.exists():
            raise StorageError(
                f"--out {run.out}: process {team.rank} does not see the files of process 0; give a folder that all "
                "machines of the run share"
            )
        note = read_sealed(path, RESTORE_RUN)
        with check_note(path):
            lexicon = vocabulary_type.load(folder / LEXICON).symbols
            vocabulary = vocabulary_type(lexicon[: note["vocab_size"]])
            if not vocabulary.index.keys() >= {*vocabulary.specials}:
                raise ValueError("its vocab_size excludes the special symbols")
            streams = {}
            for name, (characters, unknown) in note["parts"].items():
                ids = map_numbers(folder / f"{name}.ids", id_type(len(vocabulary)) if is_stream else np.int32)
                check_numbers(folder / f"{name}.ids", ids, 0 if is_stream else BOUNDARY, len(lexicon) - 1)
                streams[name] = Stream(ids, int(characters), int(unknown))
            return Corpus(vocabulary, lexicon, **streams), note


@contextmanager
def check_note(path: Path) -> Iterator[None]:
    """Report missing or invalid entries of a note; its checksum is correct, so it was forged."""
    try:
        yield
    except (AttributeError, KeyError, OSError, OverflowError, TypeError, ValueError) as error:
        raise ModelError(f"{path}: is not the note of a run, although its checksum matches; {RESTORE_RUN}") from error
