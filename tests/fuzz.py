"""Damages files of every kind that relmo reads, and looks at what relmo says of them.

    python tests/fuzz.py --count 10000        mutations 0 to 9,999
    python tests/fuzz.py --only 4711          one of them, with a traceback
    python tests/fuzz.py --kind tagger        of one kind of files (a part of its name) alone

A mutation is known by its number: the number alone says which files are damaged, and how. relmo may read what is left,
or refuse it with an error of its own, in one line. Anything else is a failure: another exception; more than 10 seconds
or a gigabyte; a process that dies; and, where a file carries a checksum, other numbers than those of the sound files.

Mutations are tried one after another in a process of their own, with a limit on its memory; when it hangs or dies, the
next one goes on with the next number. A table by kind of file ends it; the exit status is 1 where anything failed.
"""

import argparse
import json
import multiprocessing
import os
import random
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import torch

from relmo.errors import MAX_MESSAGE_LENGTH, RelmoError
from support.fuzz_files import FILES
from support.fuzz_models import MODELS, Subject
from support.fuzz_mutations import SIGNED, mutate

SUBJECTS = [*MODELS, *FILES]
SECONDS, BYTES = 10.0, 1 << 30
GRACE = 20.0  # seconds more, after which a process that hears no alarm is killed
PORTION = 400  # mutations that one process tries
OUTCOMES = ("refused", "same", "other", "failed")


@dataclass(frozen=True)
class Result:
    """What came of a mutation: refused, read as the same numbers, read as others, or failed, and why."""

    number: int
    subject: str
    files: tuple[str, ...]
    done: str
    outcome: str
    said: str = ""
    seconds: float = 0.0

    def __str__(self) -> str:
        return f"{self.number:>6}  {self.subject}: {', '.join(self.files)}: {self.done}: {self.outcome}: {self.said}"


class TooSlow(BaseException):
    """Raised by the alarm; no `except Exception` stops it."""


class Sound:
    """The files in order, made once of each kind, and what is read from them."""

    def __init__(self, root: Path):
        self.root = root
        self.results: dict[str, str] = {}

    def folder(self, subject: Subject) -> Path:
        """Where the sound files are."""
        folder = self.root / "sound" / subject.name
        if subject.name not in self.results:
            subject.make(folder)
            for path in folder.rglob("*.safetensors"):
                settle(path)
            self.results[subject.name] = use(subject, self.copy(subject, folder))
        return folder

    def copy(self, subject: Subject, folder: Path) -> Path:
        """A copy to be damaged, always in the same place."""
        place = self.root / "damaged" / subject.name
        shutil.rmtree(place, ignore_errors=True)
        shutil.copytree(folder, place)
        return place


def settle(path: Path) -> None:
    """Puts what a header says in a fixed order, where safetensors has none: a number means the same bytes always."""
    data = path.read_bytes()
    size = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + size])
    said = dict(sorted(header.pop("__metadata__", {}).items()))
    text = json.dumps({"__metadata__": said} | header, separators=(",", ":")).encode()
    path.write_bytes(data[:8] + text.ljust(size) + data[8 + size :])


def use(subject: Subject, folder: Path) -> str:
    """What is read from the files, with their folder as the working folder."""
    os.chdir(folder)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return subject.use(folder)


def attempt(sound: Sound, subjects: Sequence[Subject], number: int, *, limit: float, show: bool = False) -> Result:
    """One mutation."""
    subject = subjects[number % len(subjects)]
    original = sound.folder(subject)
    folder = sound.copy(subject, original)
    names = sorted(str(path.relative_to(original)) for path in original.rglob("*") if path.is_file())
    targets = [name for name in names if not any(fnmatch(name, each) for each in subject.whole)]
    done, touched = mutate(random.Random(number), folder, targets, special=subject.special)
    begun = time.monotonic()
    signal.setitimer(signal.ITIMER_REAL, limit)
    try:
        found = use(subject, folder)
    except RelmoError as error:
        outcome, said = refusal(error)
    except TooSlow:
        outcome, said = "failed", f"took more than {limit:g} seconds: {place()}"
    except BaseException as error:
        outcome, said = "failed", f"{type(error).__name__}: {str(error)[:200]} {place()}"
        if show:
            traceback.print_exc()
    else:
        known = not done.startswith(SIGNED) and all(any(fnmatch(t, each) for each in subject.covered) for t in touched)
        same = found == sound.results[subject.name]
        outcome, said = "same" if same else "other", ""
        if known and not same:
            outcome, said = "failed", "was read as other numbers, and nothing was said"
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
    return Result(number, subject.name, tuple(sorted(touched)), done, outcome, said, time.monotonic() - begun)


def refusal(error: RelmoError) -> tuple[str, str]:
    """An error of relmo's own: it is one line, and no lack of memory stands behind it."""
    said, behind = str(error), error.__cause__ or error.__context__
    if len(said) > MAX_MESSAGE_LENGTH + 10 or not said.isprintable():
        return "failed", f"the message has {len(said)} characters, or is not printable: {said[:200]!r}"
    if isinstance(behind, MemoryError) or "allocate memory" in str(behind):
        return "failed", f"memory ran out: {said[:200]}"
    return "refused", said


def place() -> str:
    """Where an exception was raised."""
    frames = traceback.extract_tb(sys.exc_info()[2])
    own = [frame for frame in frames if "/relmo/" in frame.filename] or list(frames)
    return f"({Path(own[-1].filename).name}:{own[-1].lineno})" if own else ""


def attempts(
    sound: Sound, subjects: Sequence[Subject], numbers: Sequence[int], *, limit: float = SECONDS
) -> Iterator[Result]:
    """All of these mutations, in processes that may hang or die."""
    left = list(numbers)
    for number in left[: len(subjects)]:
        sound.folder(subjects[number % len(subjects)])  # before processes are forked
    while left:
        receiver, sender = multiprocessing.Pipe(duplex=False)
        process = multiprocessing.get_context("fork").Process(
            target=work, args=(sound, subjects, left[:PORTION], limit, sender)
        )
        process.start()
        sender.close()
        try:
            for _ in left[:PORTION]:
                if not receiver.poll(limit + GRACE):
                    raise EOFError
                yield receiver.recv()
                del left[0]
        except EOFError:
            process.kill()
            process.join()
            subject = subjects[left[0] % len(subjects)]
            yield Result(left[0], subject.name, (), "?", "failed", f"the process died or hung ({process.exitcode})")
            del left[0]
        process.join()


def work(sound: Sound, subjects: Sequence[Subject], numbers: Sequence[int], limit: float, sender: Any) -> None:
    """What a process does: it tells of each mutation as it goes."""
    prepare()
    for number in numbers:
        sender.send(attempt(sound, subjects, number, limit=limit))


def prepare() -> None:
    """An alarm, a limit on memory, and nothing written through to the disk."""
    signal.signal(signal.SIGALRM, alarm)
    size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (size + BYTES, size + BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.fsync = lambda _: None  # type: ignore[assignment]


def alarm(number: int, frame: Any) -> None:
    raise TooSlow


def table(results: Sequence[Result]) -> Iterator[str]:
    """How many of each kind of file ended how."""
    counts: dict[tuple[str, str], Counter[str]] = {}
    for result in results:
        for file in [Path(name).name for name in result.files] or ["?"]:
            counts.setdefault((result.subject, file), Counter())[result.outcome] += 1
    yield f"{'files of':<20}{'file':<28}" + "".join(f"{name:>9}" for name in OUTCOMES)
    for (subject, file), found in sorted(counts.items()):
        yield f"{subject:<20}{file:<28}" + "".join(f"{found[name] or '':>9}" for name in OUTCOMES)
    total = Counter(result.outcome for result in results)
    yield f"{len(results):<48,}" + "".join(f"{total[name]:>9,}" for name in OUTCOMES)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=10_000, help="how many mutations")
    parser.add_argument("--first", type=int, default=0, help="the number to begin with")
    parser.add_argument("--only", type=int, help="one mutation, here, with a traceback")
    parser.add_argument(
        "--kind", default="", help="only kinds of files with this in their name; numbers mean others then"
    )
    given = parser.parse_args()
    torch.set_num_threads(1)
    subjects = [subject for subject in SUBJECTS if given.kind in subject.name]
    with tempfile.TemporaryDirectory() as root:
        try:
            sound = Sound(Path(root).resolve())
            if given.only is not None:
                signal.signal(signal.SIGALRM, alarm)
                print(attempt(sound, subjects, given.only, limit=SECONDS, show=True))
                return 0
            results: list[Result] = []
            for result in attempts(sound, subjects, range(given.first, given.first + given.count)):
                results.append(result)
                if result.outcome == "failed":
                    print(result, flush=True)
        finally:
            os.chdir("/")
    print(*table(results), sep="\n")
    slowest = max(results, key=lambda result: result.seconds)
    print(f"the slowest took {slowest.seconds:.1f} s: {slowest}")
    return int(any(result.outcome == "failed" for result in results))


if __name__ == "__main__":
    sys.exit(main())
