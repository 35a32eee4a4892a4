"""Help pages, completion and suggestions for mistyped commands."""

import inspect
import os
import pty
import re
import select
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from cyclopts import App

from relmo.cli import app
from relmo.text.corpus import STDIN


def verbs(within: App, before: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], str]]:
    """Each command and its help, but for those that are flags."""
    for name in [name for name in within if not name.startswith("-")]:
        command = within[name]
        if command.default_command is not None:
            yield (*before, name), inspect.getdoc(command.default_command) or ""
        yield from verbs(command, (*before, name))


VERBS = dict(verbs(app))
EXAMPLE = re.compile(r"^ +(?:(?:echo|printf) .+ \| )?relmo (.+)$", re.MULTILINE)


@pytest.mark.parametrize("verb", VERBS, ids=" ".join)
def test_the_help_of_a_verb_has_examples_that_are_understood(verb: tuple[str, ...]) -> None:
    examples = EXAMPLE.findall(VERBS[verb])
    assert any(tuple(example.split()[: len(verb)]) == verb for example in examples)
    for example in examples:
        given = [STDIN if word == "-" else word for word in shlex.split(re.split("  #| > ", example)[0])]
        app.parse_args(given, exit_on_error=False, print_error=False)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ("trian", "did you mean train?"),
        ("train tager text.txt", "did you mean 'tagger'?"),
        ("embed text.txt --out vectors.h5 --laeyrs top", "did you mean --layers?"),
        ("embed text.txt", "--out is missing"),
        ("generate", "MODEL is missing"),
    ],
)
def test_a_mistyped_command_is_told_what_to_type(given: str, told: str) -> None:
    done = subprocess.run([sys.executable, "-m", "relmo", *given.split()], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert told in done.stderr


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home for a shell, and in it a text."""
    for name in ("ZDOTDIR", "ZSH", "XDG_CONFIG_HOME", "XDG_DATA_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("PATH", os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]))
    (tmp_path / "alice.txt").write_text("Alice")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def installed(shell: str) -> str:
    """The shell, told how to complete; the test is skipped where there is none."""
    path = shutil.which(shell)
    if path is None:
        pytest.skip(f"there is no {shell}")
    command = [sys.executable, "-m", "relmo", "--install-completion", "--shell", shell]
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    assert output.endswith(f"exec {shell}\n")
    return path


@pytest.mark.slow
def test_bash_completes_verbs_flags_choices_and_files(home: Path) -> None:
    asked = """
    . "$HOME/.bashrc"
    function=$(complete -p relmo | sed -E 's/.*-F ([^ ]+).*/\\1/')
    ask() { COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); COMPREPLY=(); $function; echo "${COMPREPLY[@]}"; }
    ask relmo tr
    ask relmo train tag
    ask relmo train tagger --elmo-a
    ask relmo embed --pooling ""
    ask relmo train lm al
    ask relmo train lm --valid al
    """
    done = subprocess.run([installed("bash"), "-c", asked], check=True, capture_output=True, text=True)
    assert done.stdout.splitlines() == ["train", "tagger", "--elmo-at", "mean max", "alice.txt", "alice.txt"]


def test_fish_completes_verbs_flags_choices_and_files(home: Path) -> None:
    typed = ["relmo tr", "relmo train tag", "relmo train tagger --elmo-a", "relmo embed --pooling ", "relmo embed al"]
    asked = "; ".join(f"complete -C '{line}'" for line in typed)
    done = subprocess.run([installed("fish"), "-c", asked], check=True, capture_output=True, text=True)
    found = [line.split("\t")[0] for line in done.stdout.splitlines()]
    assert found == ["train", "tagger", "--elmo-at", "max", "mean", "alice.txt"]


def test_zsh_completes_verbs_flags_and_files_when_tab_is_pressed(home: Path) -> None:
    (home / ".zshrc").write_text("PROMPT='ready> '\n")
    zsh = installed("zsh")
    child, terminal = pty.fork()
    if child == 0:
        os.environ["TERM"] = "dumb"
        os.execv(zsh, ["zsh", "-i"])
    try:
        until(terminal, "ready> ")
        for typed, completed in (
            ("relmo trai", "relmo train "),
            ("relmo train tagg", "relmo train tagger "),
            ("relmo train tagger --elmo-a", "relmo train tagger --elmo-at "),
            ("relmo train lm ali", "relmo train lm alice.txt "),
        ):
            os.write(terminal, f"{typed}\t".encode())
            until(terminal, completed)
            os.write(terminal, b"\x15")  # which empties the line
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.close(terminal)


def until(terminal: int, expected: str) -> None:
    """Reads what a terminal shows until it is what is expected; fails where nothing more comes."""
    shown = ""
    while expected not in shown:
        ready, _, _ = select.select([terminal], [], [], 60)
        assert ready, f"{expected!r} did not come, but {shown!r}"
        shown += os.read(terminal, 1 << 16).decode(errors="replace")
