"""The command line: `relmo VERB …`. One thin function per verb, imported when it is used; a plain function does the
work.

What a user did wrong comes out as one line on standard error and exit status 2, never as a traceback.
"""

import os
import sys
from collections.abc import Sequence
from functools import partial

from cyclopts import App, CycloptsError

import relmo
from relmo.cli.analyse import analyse
from relmo.cli.bench import bench
from relmo.cli.completion import install_completion
from relmo.cli.convert import convert
from relmo.cli.embed import embed
from relmo.cli.evaluate import evaluate
from relmo.cli.explore import explore
from relmo.cli.generate import generate
from relmo.cli.info import info
from relmo.cli.make import make
from relmo.cli.mistakes import explained
from relmo.cli.numbers import check_numbers
from relmo.cli.predict import predict
from relmo.cli.reproduce import reproduce
from relmo.cli.serve import serve
from relmo.cli.streams import broken_stream, prepare_streams, silence
from relmo.cli.surprisal import surprisal
from relmo.cli.terminal import make_console, say
from relmo.cli.train import settings_from_files, train_command
from relmo.errors import NO_MEMORY, RelmoError, one_line, reason
from relmo.settings.kinds import KINDS
from relmo.text.corpus import STDIN

OUT_OF_MEMORY = (  # as torch says it
    "OutOfMemoryError",
    "CUDA error: out of memory",
    "STATUS_ALLOC_FAILED",  # of cuBLAS and cuDNN
    "DefaultCPUAllocator: can't allocate memory",
)

app = App(
    name="relmo",
    version=relmo.__version__,
    help="Recurrent language models and the contextual word embeddings inside them.",
    help_format="markdown",
    help_epilogue="Each verb has its own help, with an example: `relmo train lm --help`.",
    suppress_keyboard_interrupt=False,  # `main` says that it stopped
    config=check_numbers,
)
train = App(name="train", help="Train a model.", config=(settings_from_files, check_numbers))
for kind in KINDS:
    train.command(train_command(kind), name=kind)
app.command(train)
app.command(make)
app.command(embed)
app.command(evaluate)
app.command(predict)
app.command(generate)
app.command(surprisal)
app.command(serve)
app.command(explore)
app.command(info)
app.command(convert)
app.command(analyse)
app.command(reproduce)
app.command(bench)
app.command(partial(install_completion, app), name="--install-completion")


def main(arguments: Sequence[str] | None = None) -> None:
    """The entry point of the `relmo` command; exits with 0, 2 (a mistake in what was asked) or 130 (Ctrl-C)."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    if given[:1] != ["generate"]:  # for verbs that read files; cyclopts takes a lone - for an option
        given = [STDIN if argument == "-" else argument for argument in given]
    os.environ.setdefault(
        "OMP_WAIT_POLICY", "PASSIVE"
    )  # threads that spin while they wait halve a shared machine's speed
    prepare_streams()
    try:
        run(given)
    except KeyboardInterrupt:
        say("stopped")
        status = 130
    except BrokenPipeError:  # who reads on has seen enough, as `head` does
        silence(sys.stdout)
        status = 0
    except Exception as error:
        line = _explain(error)
        if line is None:
            raise
        status = fail(line)
    broken_stream()  # after which nothing is left that Python would complain of at its end
    sys.exit(status)


def run(given: Sequence[str]) -> None:
    """Runs a command and sees to it that its results are out."""
    try:
        app(given, console=make_console(stderr=False), exit_on_error=False, print_error=False)
    except SystemExit:  # as every command ends that went well
        sys.stdout.flush()
        raise


def _explain(error: Exception) -> str | None:
    """What a user can be told of an error; None of a mistake of ours, which a traceback is for."""
    if isinstance(error, CycloptsError):
        return explained(error)
    if isinstance(error, RelmoError):
        return str(error)
    if isinstance(error, OSError) and error.errno is not None:
        return f"{_place_of(error)}: {reason(error)}"
    if isinstance(error, UnicodeEncodeError):
        unsayable = error.object[error.start : error.end]
        return f"a name or a text has {unsayable!r} in it, which the encoding {error.encoding} does not have"
    if isinstance(error, MemoryError) or any(sign in f"{type(error).__name__}: {error}" for sign in OUT_OF_MEMORY):
        return f"{NO_MEMORY} for what was asked ({error or 'none is left'}); ask for less at once"
    return f"a file cannot be opened: {reason(error)}" if "embedded null" in str(error) else None


def _place_of(error: OSError) -> str:
    """The file or stream that an error is of."""
    broken = broken_stream()
    if broken is not None:
        return broken
    known = isinstance(error.filename, str | bytes)
    return os.fsdecode(error.filename) if known else "standard output, or another file, cannot be written or read"


def fail(line: str) -> int:
    """Prints what is wrong as one line, not too long, without characters that would do something to a terminal. -> the
    exit status"""
    say(f"error: {one_line(line)}")
    return 2
