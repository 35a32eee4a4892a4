"""Help pages, completion and what a mistyped command is told: what somebody meets who has just installed relmo."""

import inspect
import os
import re
import shlex
import shutil
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
        ("trian", "relmo: there is no command 'trian'; did you mean train?"),
        ("train tager text.txt", "there is no kind 'tager'; did you mean 'tagger'?"),
        (
            "embed text.txt --out vectors.h5 --laeyrs top",
            "there is no option --laeyrs; did you mean --layers?",
        ),
        ("embed text.txt", "relmo embed: --out is missing; relmo embed --help shows an example"),
        ("generate", "relmo generate: MODEL is missing; relmo generate --help shows an example"),
    ],
)
def test_a_mistyped_command_is_told_what_to_type(given: str, told: str) -> None:
    done = subprocess.run([sys.executable, "-m", "relmo", *given.split()], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert told in done.stderr


def test_bash_completes_verbs_flags_and_choices(tmp_path: Path) -> None:
    bash = shutil.which("bash")
    if bash is None:
        pytest.skip("there is no bash")
    home = os.environ | {"HOME": str(tmp_path), "SHELL": bash}
    command = [sys.executable, "-m", "relmo", "--install-completion", "--shell", "bash"]
    subprocess.run(command, env=home, check=True, capture_output=True)
    asked = """
    . "$HOME/.bashrc"
    function=$(complete -p relmo | sed -E 's/.*-F ([^ ]+).*/\\1/')
    ask() { COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); COMPREPLY=(); $function; echo "${COMPREPLY[@]}"; }
    ask relmo tr
    ask relmo train tag
    ask relmo train tagger --elmo-a
    ask relmo embed --pooling ""
    """
    done = subprocess.run([bash, "-c", asked], env=home, check=True, capture_output=True, text=True)
    assert done.stdout.splitlines() == ["train", "tagger", "--elmo-at", "mean max"]


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_completion_can_be_written_for_other_shells(shell: str) -> None:
    script = app.generate_completion(shell=shell)  # type: ignore[arg-type]
    assert "tagger" in script
    assert "elmo-at" in script
