"""The command line: `relmo VERB …`. One thin function per verb, imported when it is used; a plain function does the
work.

What a user did wrong comes out as one line on standard error and exit status 2, never as a traceback.
"""

import os
import sys
from collections.abc import Sequence

from cyclopts import App, CycloptsError

import relmo
from relmo.cli.analyse import analyse
from relmo.cli.bench import bench
from relmo.cli.convert import convert
from relmo.cli.embed import embed
from relmo.cli.evaluate import evaluate
from relmo.cli.explore import explore
from relmo.cli.generate import generate
from relmo.cli.info import info
from relmo.cli.predict import predict
from relmo.cli.reproduce import reproduce
from relmo.cli.train import bilm, classifier, lm, pairs, say, settings_from_files, skipgram, tagger
from relmo.errors import RelmoError
from relmo.text.corpus import STDIN

app = App(
    name="relmo",
    version=relmo.__version__,
    help="Recurrent language models and the contextual word embeddings inside them.",
    help_format="markdown",
    help_epilogue="Each verb has its own help, with an example: `relmo train lm --help`.",
)
train = App(name="train", help="Train a model.", config=settings_from_files)
train.command(lm)
train.command(bilm)
train.command(skipgram)
train.command(classifier)
train.command(pairs)
train.command(tagger)
app.command(train)
app.command(embed)
app.command(evaluate)
app.command(predict)
app.command(generate)
app.command(explore)
app.command(info)
app.command(convert)
app.command(analyse)
app.command(reproduce)
app.command(bench)


def main(arguments: Sequence[str] | None = None) -> None:
    """The entry point of the `relmo` command; exits with 0, 2 (a mistake in what was asked) or 130 (Ctrl-C)."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    if given[:1] != ["generate"]:  # for verbs that read files; cyclopts takes a lone - for an option
        given = [STDIN if argument == "-" else argument for argument in given]
    os.environ.setdefault(
        "OMP_WAIT_POLICY", "PASSIVE"
    )  # threads that spin while they wait halve a shared machine's speed
    try:
        app(given, exit_on_error=False, print_error=False)
    except (RelmoError, CycloptsError) as error:
        sys.exit(fail(error))
    except KeyboardInterrupt:
        say("stopped")
        sys.exit(130)
    except BrokenPipeError:
        sys.stderr.close()
        sys.exit(0)


def fail(error: Exception) -> int:
    """Prints the error as one line. -> the exit status."""
    say(f"error: {' '.join(str(error).split())}")
    return 2
