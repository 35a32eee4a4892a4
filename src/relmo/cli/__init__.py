"""Command line `relmo COMMAND …`: one thin function per command, whose imports are lazy.

A user error is one line on standard error and exit status 2, never a traceback.
"""

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from cyclopts import App, CycloptsError
from cyclopts.completion.detect import ShellDetectionError, detect_shell

import relmo
from relmo.cli.analyse.meaning import meaning
from relmo.cli.analyse.memory import connectivity, counting, gradients, source_gradients, truncation
from relmo.cli.analyse.syntax import agreement, number_units, suite
from relmo.cli.analyse.units import cells, compare, trace
from relmo.cli.describe_cells import list_cells
from relmo.cli.language import embed, generate, surprisal
from relmo.cli.mistakes import check_numbers, explain_mistake
from relmo.cli.models import convert, info
from relmo.cli.packages import list_models, package
from relmo.cli.predict import evaluate, predict
from relmo.cli.serve import explore, serve
from relmo.cli.terminal import find_broken_stream, make_console, prepare_streams, print_message, silence
from relmo.cli.train import make, settings_from_files, train_command
from relmo.errors import NO_MEMORY, RelmoError, SettingError, describe_os_error, one_line
from relmo.registry import load_plugins
from relmo.settings.kinds import KINDS
from relmo.text.corpus import STDIN

OUT_OF_MEMORY = (  # messages of torch
    "OutOfMemoryError",
    "CUDA error: out of memory",
    "STATUS_ALLOC_FAILED",  # cuBLAS and cuDNN
    "DefaultCPUAllocator: can't allocate memory",
)
ENABLE_ZSH_COMPLETION = "autoload -Uz compinit && compinit"

try:
    load_plugins()
except ImportError as error:  # here, since the choices of options include the cells of plugins
    print_message(f"error: {one_line(str(error))}")
    sys.exit(2)

app = App(
    name="relmo",
    version=relmo.__version__,
    help="Recurrent language models and the contextual word embeddings inside them.",
    help_format="markdown",
    help_epilogue="Every command has its own help, with an example: `relmo train lm --help`.",
    suppress_keyboard_interrupt=False,  # `main` reports it
    config=check_numbers,
)
train = App(name="train", help="Train a model.", config=(settings_from_files, check_numbers))
for kind in KINDS:
    train.command(train_command(kind), name=kind)
app.command(train)
commands: list[Any] = [make, embed, evaluate, predict, generate, surprisal, serve, explore, info, convert, package]
for command in commands:
    app.command(command)
app.command(list_models, name="models")
app.command(list_cells, name="cells")
analyse = App(name="analyse", help="Analyse a model: its states, gates and units.")
analyses: list[Any] = [trace, cells, gradients, connectivity, source_gradients, truncation, counting]
for command in [*analyses, agreement, suite, number_units, compare, meaning]:
    analyse.command(command)
app.command(analyse)


@app.command(name="--install-completion")
def install_completion(*, shell: Literal["bash", "zsh", "fish"] | None = None) -> None:
    """Install Tab completion of commands, flags, choices and files for bash, zsh and fish.

    This writes a completion script, and a line in the startup file of the shell that loads it.

        relmo --install-completion

    Args:
        shell: The shell; by default the one that runs relmo.
    """
    if shell is None:
        try:
            detected = detect_shell()
        except ShellDetectionError:
            detected = None
        if detected not in ("bash", "zsh", "fish"):
            raise SettingError("Unknown shell; add --shell bash, zsh or fish.")
        shell = detected
    print(f"wrote {app.install_completion(shell=shell)}")
    if shell == "zsh":
        startup_file = Path.home() / ".zshrc"
        text = startup_file.read_text(encoding="utf-8", errors="replace") if startup_file.exists() else ""
        if "compinit" not in text and "ZSH" not in os.environ:  # oh-my-zsh sets ZSH and enables completion
            with startup_file.open("a", encoding="utf-8") as file:
                file.write(f"{ENABLE_ZSH_COMPLETION}\n")
            print(f"added to {startup_file}: {ENABLE_ZSH_COMPLETION}")
    print(f"To use it, open a new terminal, or type: exec {shell}")


def main(arguments: Sequence[str] | None = None, application: App = app) -> None:
    """Run the `relmo` command; exit with 0, 2 (user error) or 130 (Ctrl-C)."""
    argv = list(sys.argv[1:] if arguments is None else arguments)
    if argv[:1] != ["generate"]:  # for commands that read files; cyclopts takes a lone - for an option
        argv = [STDIN if argument == "-" else argument for argument in argv]
    # threads that spin while they wait halve the speed of a shared machine
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    prepare_streams()
    try:
        run(argv, application)
    except KeyboardInterrupt:
        print_message("stopped")
        status = 130
    except BrokenPipeError:  # the reader has closed the pipe, as `head` does
        silence(sys.stdout)
        status = 0
    except Exception as error:
        message = _explain(error, application.name[0])
        if message is None:
            raise
        print_message(f"error: {one_line(message)}")
        status = 2
    find_broken_stream()  # silences it, as Python would complain at its end
    sys.exit(status)


def run(argv: Sequence[str], application: App = app) -> None:
    """Run a command and flush its results."""
    try:
        application(argv, console=make_console(stderr=False), exit_on_error=False, print_error=False)
    except SystemExit:  # raised by every command that succeeds
        sys.stdout.flush()
        raise


def _explain(error: Exception, program: str) -> str | None:
    """Return the message for a user error; None for a bug, which is worth a traceback."""
    if isinstance(error, CycloptsError):
        return explain_mistake(error, program)
    if isinstance(error, RelmoError):
        return str(error)
    if isinstance(error, OSError) and error.errno is not None:
        place = find_broken_stream()
        if place is None and isinstance(error.filename, str | bytes):
            place = os.fsdecode(error.filename)
        return f"{place or 'standard output or another file cannot be written or read'}: {describe_os_error(error)}"
    if isinstance(error, UnicodeEncodeError):
        characters = error.object[error.start : error.end]
        return f"A name or text contains {characters!r}, which the encoding {error.encoding} lacks."
    if isinstance(error, MemoryError) or any(sign in f"{type(error).__name__}: {error}" for sign in OUT_OF_MEMORY):
        return f"{NO_MEMORY} ({error or 'no details'}); reduce the sizes, such as the batch size"
    return f"Cannot open a file: {describe_os_error(error)}" if "embedded null" in str(error) else None
