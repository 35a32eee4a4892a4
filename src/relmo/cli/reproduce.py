"""`relmo reproduce NAME…`"""

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from relmo.errors import ModelError

if TYPE_CHECKING:
    from relmo.models.vectors import WordVectors
    from relmo.reproduce.table import Reproduction


def reproduce(
    *names: str,
    model: str | None = None,
    vectors: str | None = None,
    data: Path | None = None,
    seed: int = 0,
    device: Literal["auto", "cpu", "cuda"] = "auto",
    json: bool = False,
    quiet: bool = False,
) -> None:
    """Published tables and figures, beside those of a model and of controls: its layer without context, static
    vectors, and the same network untrained. Without a name, lists what there is.

        relmo reproduce pos neighbours

        relmo reproduce perplexity --model models/mine --data /data/relmo --json

    Parameters
    ----------
    names
        What to reproduce, one after the other.
    model
        A bidirectional model's folder, or original ELMo files; the bundled model where it is not given.
    vectors
        Static word vectors to compare with: a folder of kind skipgram; the bundled ones where it is not given.
    data
        The folder that holds the data; else that of RELMO_DATA, else data/ here.
    seed
        Of the untrained network's weights.
    device
        Where to compute; auto takes a GPU where there is one.
    json
        Print one JSON object with all figures.
    quiet
        Show no progress.
    """
    from relmo.reproduce import REPRODUCTIONS, check_name

    if not names:
        _list_names(REPRODUCTIONS, json=json)
        return
    for name in names:
        check_name(name)

    from relmo import reproduce as library
    from relmo.analysis.core.untrained import untrained
    from relmo.cli.report import print_json
    from relmo.loading import load
    from relmo.reproduce.controls import Controls
    from relmo.reproduce.data import data_folder

    say = sayer(quiet=quiet)
    loaded = load(model, kinds="bilm", device=device)
    controls = Controls(untrained(loaded, seed), load_vectors(vectors, say))
    done = []
    for name in names:
        with warnings_said(say):
            done.append(library.reproduce(name, loaded, data=data_folder(data), controls=controls, say=say))
        if not json:
            show(done[-1])
    if json:
        print_json({"model": model or "bundled", "reproductions": [each.summary() for each in done]})


def _list_names(names: dict[str, str], *, json: bool) -> None:
    """What there is to reproduce."""
    from relmo.cli.report import print_json

    if json:
        print_json(names)
        return
    width = 2 + max(map(len, names))
    print(*(f"{name:<{width}}{text}" for name, text in names.items()), sep="\n")


def load_vectors(source: str | None, say: Callable[[str], None]) -> "WordVectors | None":
    """The static vectors: those of the package where none are named, and without them their rows are left out."""
    from relmo.loading import load

    try:
        return load("words" if source is None else source, kinds="skipgram")
    except ModelError as error:
        if source is not None:
            raise
        say(f"no static vectors to compare with ({error})")
        return None


def sayer(*, quiet: bool) -> Callable[[str], None]:
    """A function that prints a line on standard error, or nothing."""
    from relmo.cli.console import make_console

    console = make_console(quiet=quiet)
    return lambda message: console.print(message, soft_wrap=True)


@contextmanager
def warnings_said(say: Callable[[str], None]) -> Iterator[None]:
    """What is warned of comes as plain lines, each once."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield
    for message in dict.fromkeys(str(warning.message) for warning in caught):
        say(f"note: {message}")


def show(table: "Reproduction") -> None:
    """The table on standard output: our figures, the published ones in columns of their own, and the notes below."""
    from relmo.cli.report import print_table

    published = [column for column in table.columns if any(column in (row.published or {}) for row in table.rows)]
    ours = [column for column in table.columns if any(column in row.ours for row in table.rows)]
    rows = [
        [
            row.name,
            *(figure(row.ours.get(column)) for column in ours),
            *(figure((row.published or {}).get(column)) for column in published),
        ]
        for row in table.rows
    ]
    print(f"{table.name}: {table.title}\n{table.paper}\n")
    print_table(["", *ours, *(f"published {column}" for column in published)], rows)
    notes = [*(f"{row.name}: {row.note}" for row in table.rows if row.note), *table.notes]
    print("", *(f"- {note}".replace(": \n", ":\n").replace("\n", "\n    ") for note in notes), "", sep="\n")


def figure(value: float | None) -> str:
    """A number as a table shows it."""
    if value is None:
        return ""
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:,.2f}" if abs(value) < 1000 else f"{value:,.0f}"
