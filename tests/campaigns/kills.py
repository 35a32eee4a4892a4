"""Runs that are killed with SIGKILL at random moments, resumed, and compared with one that was never killed.

    python tests/campaigns/kills.py [--kills 50] [--seed 1] [lm bilm tagger embed]

Every kill is a run of its own in a fresh folder: begun, killed at a moment drawn from its whole length, and resumed to
its end. Then every file must hold the same bytes as that of the run that was never killed, but for what is a time
(seconds, symbols a second, and the mean of the loss since the start of the process); and there must be no other file,
in the model's folder, in the cache of vectors, or beside them. Exits with 1 where a run differs.
"""

import argparse
import json
import multiprocessing
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import relmo
from relmo.cli import main

DATA = Path(relmo.__file__).parent / "data"
TRAIN = "--threads 1 --log-every 3 --validate-every 9 --checkpoint-every 0.03 --out model --quiet --device cpu"
COMMANDS = {
    "lm": f"train lm text.txt --hidden 24 --dropout 0.2 --batch 8 --unroll 16 --epochs 1.5 {TRAIN}",
    "bilm": f"train bilm text.txt --preset tiny --min-count 2 --batch 8 --epochs 4 {TRAIN}",
    "tagger": f"train tagger names.iob2 --preset ner --elmo small --cache cache --epochs 2 {TRAIN}",
    "embed": "embed long.txt --model small --out vectors.h5 --quiet --device cpu",
}
TIMES = ("seconds", "symbols_per_second", "loss")


def run_in(folder: Path, arguments: list[str]) -> None:
    """The command, in a folder and without a word."""
    os.chdir(folder)
    with open(os.devnull, "w") as nowhere:  # noqa: PTH123
        os.dup2(nowhere.fileno(), 1)
        os.dup2(nowhere.fileno(), 2)
    main(arguments)


def prepare(folder: Path) -> Path:
    """A fresh folder with the inputs."""
    folder.mkdir(parents=True)
    alice = (DATA / "alice.txt").read_text(encoding="utf-8")
    (folder / "text.txt").write_text(alice[:30_000], encoding="utf-8")
    (folder / "long.txt").write_text(alice, encoding="utf-8")
    shutil.copyfile(DATA / "names.iob2", folder / "names.iob2")
    return folder


def resumed(folder: Path, command: list[str]) -> list[str] | None:
    """Return the command that continues the run; None if its output exists."""
    if command[0] == "embed":
        if not (folder / "vectors.h5.partial" / "note.json").exists():
            return None if (folder / "vectors.h5").exists() else command
        return [*command, "--resume"]
    if (folder / "model" / "run" / "run.json").exists():
        return [*command[:2], "--out", "model", "--resume", "--quiet"]
    return None if (folder / "model" / "config.json").exists() else command


def contents(folder: Path) -> dict[str, Any]:
    """Every file by its place; what is JSON without its times."""
    found: dict[str, Any] = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if path.is_dir():
            found[name] = "a folder"
        elif path.suffix in (".json", ".jsonl") and "partial" not in name:
            found[name] = [timeless(json.loads(line)) for line in records(path)]
        elif path.name == "README.md":
            found[name] = [line for line in path.read_text().splitlines() if "seconds" not in line]
        else:
            found[name] = path.read_bytes()
    return found


def records(path: Path) -> list[str]:
    """The JSON values of a file."""
    text = path.read_text(encoding="utf-8")
    return text.splitlines() if path.suffix == ".jsonl" else [text]


def timeless(value: Any) -> Any:
    """A JSON value without what is a time, however deep."""
    if isinstance(value, dict):
        return {key: timeless(part) for key, part in value.items() if key not in TIMES}
    return [timeless(part) for part in value] if isinstance(value, list) else value


class Campaign:
    """The kills of one command, counted."""

    def __init__(self, name: str, root: Path, seed: int):
        self.name, self.command, self.root = name, COMMANDS[name].split(), root / name
        self.chance = random.Random(f"{name} {seed}")
        self.context = multiprocessing.get_context("forkserver")
        preload = [
            "relmo.runs.train_lm",
            "relmo.runs.train_bilm",
            "relmo.runs.train_task",
            "relmo.embedding.files",
            "relmo.cli.terminal",
        ]
        self.context.set_forkserver_preload([*preload, "torch._dynamo"])
        began = time.monotonic()
        whole = prepare(self.root / "whole")
        assert self.finish(whole, self.command), f"{name}: the run that nobody kills fails"
        self.length, self.expected = time.monotonic() - began, contents(whole)

    def start(self, folder: Path, arguments: list[str]) -> BaseProcess:
        process = self.context.Process(target=run_in, args=(folder, arguments))
        process.start()
        return process

    def finish(self, folder: Path, arguments: list[str]) -> bool:
        process = self.start(folder, arguments)
        process.join()
        return process.exitcode == 0

    def killed_once(self, number: int) -> str | None:
        """One run, killed and resumed: what is wrong with it, "" where nothing is, None where it ended too early."""
        folder = prepare(self.root / str(number))
        process = self.start(folder, self.command)
        process.join(self.chance.uniform(0, self.length))
        process.kill()
        process.join()
        if process.exitcode != -signal.SIGKILL:
            return None
        follows = resumed(folder, self.command)
        if follows is not None and not self.finish(folder, follows):
            return "does not resume"
        if follows is None and self.command[0] == "train":
            self.finish(folder, [*self.command[:2], "--out", "model", "--resume", "--quiet"])  # which tidies up
        found = contents(folder)
        shutil.rmtree(folder)
        wrong = [name for name in self.expected.keys() | found.keys() if self.expected.get(name) != found.get(name)]
        return ", ".join(f"{name} differs" for name in sorted(wrong))

    def run(self, kills: int) -> bool:
        """Kill the run this many times; return whether every continuation succeeded."""
        done, wrong, number = 0, 0, 0
        while done < kills:
            number += 1
            found = self.killed_once(number)
            done += found is not None
            if found:
                wrong += 1
                print(f"{self.name}: run {number}: {found}", flush=True)
        print(f"{self.name}: {done - wrong} of {done} killed runs end in the same bytes", flush=True)
        return not wrong


if __name__ == "__main__":
    os.environ |= {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"}
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="|".join(COMMANDS))
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        good = [Campaign(name, Path(temporary), asked.seed).run(asked.kills) for name in asked.names or COMMANDS]
    sys.exit(not all(good))
