"""The consoles of the command line, rich's, all made here.

Texts, names and labels are the user's: nothing in them is markup, an emoji, or a number to be coloured.
"""

from rich.console import Console
from rich.progress import TextColumn


class PlainConsole(Console):
    """A console that says when nobody reads on; what is to be done then is `relmo.cli.main`'s to say."""

    def on_broken_pipe(self) -> None:
        """Called where the error is handled: it goes on."""
        raise


def make_console(*, stderr: bool = True, quiet: bool = False) -> Console:
    """A console on standard error, for progress and words, or on standard output, for results."""
    return PlainConsole(stderr=stderr, quiet=quiet, markup=False, highlight=False, emoji=False)


def text_column(form: str) -> TextColumn:
    """A column of a progress bar: {task.description} and the like, filled in and shown as they are."""
    return TextColumn(form, markup=False)
