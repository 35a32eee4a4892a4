"""What the commands of `relmo analyse` are given and give: models, texts, progress, tables."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from relmo.disk.outputs import refuse_existing
from relmo.errors import SettingError

if TYPE_CHECKING:
    from relmo.analysis.core.code_features import Language
    from relmo.analysis.core.features import Document
    from relmo.analysis.core.show import Table
    from relmo.models.bilm import BiLM
    from relmo.models.lm import LanguageModel


def load_language_model(source: str, device: str) -> "LanguageModel | BiLM":
    """The model, which must be a language model, bidirectional or not."""
    from relmo.loading import FORWARDS, load

    return load(source, kinds=FORWARDS, device=device)


def read_text(file: str, *, errors: str = "strict") -> str:
    """The text of a file, or of standard input."""
    from relmo.text.corpus import read_lines

    lines = read_lines("-" if file == "<stdin>" else file, errors=errors)  # type: ignore[arg-type]
    return "".join(line.text + ("\n" if line.ended else "") for line in lines)


def read_document(
    model: "LanguageModel | BiLM", file: str, *, language: "Language | None" = None, symbols: int | None = None
) -> "Document":
    """A file as a model reads it: plain text, source code (told by its name), or CoNLL-U; its first `symbols`."""
    from itertools import islice

    from relmo.analysis.core.code_features import language_of
    from relmo.analysis.core.features import read
    from relmo.text.conllu import read_conllu_sentences
    from relmo.text.corpus import is_conllu

    if is_conllu(file):
        sentences = read_conllu_sentences(file)
        document = read(model, list(sentences if symbols is None else islice(sentences, symbols)))
    else:
        document = read(model, read_text(file), language=language or language_of(file))
    return document if symbols is None else document.head(symbols)


@contextmanager
def share_bar(name: str, *, quiet: bool = False) -> Iterator[Callable[[float], object]]:
    """A bar on a terminal; the function it gives is told of the share that is done."""
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TimeRemainingColumn

    from relmo.cli.console import make_console, text_column

    console = make_console(quiet=quiet)
    columns = (text_column("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=quiet or not console.is_terminal) as progress:
        task = progress.add_task(name, total=1.0)
        yield lambda share: progress.update(task, completed=share)


def print_tables(*tables: "Table") -> None:
    """Tables on standard output, each with its title and notes."""
    from relmo.cli.report import print_table

    for number, table in enumerate(tables):
        print(
            *([""] if number else []),
            *([table.title] if table.title else []),
            sep="\n",
            end="\n" if table.title else "",
        )
        print_table(table.columns, table.rows)
        print(*(f"- {note}" for note in table.notes), sep="\n", end="\n" if table.notes else "")


def check_out(path: Path, kinds: tuple[str, ...], *, overwrite: bool) -> None:
    """Raises at once where the name of an output file says no kind that can be written, or the file exists."""
    if path.suffix.lower() not in kinds:
        raise SettingError(f"{path}: can be written as {' or '.join(kinds)}; name the file so")
    refuse_existing(path, overwrite=overwrite)
