"""`relmo reproduce elmo-table`"""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from relmo.cli.terminal import print_json, print_tables, sayer
from relmo.errors import RelmoError

if TYPE_CHECKING:
    from relmo.reproduce.elmo_table.tables import ElmoTables
    from relmo.reproduce.trainings import Trained

OUT = Path("out/elmo-table")


def elmo_table(
    *,
    data: Path | None = None,
    out: Path = OUT,
    model: tuple[str, ...] = ("small",),
    rows: str | None = None,
    tables: str | None = None,
    seeds: int | None = None,
    jobs: int = 1,
    minutes: float | None = None,
    reduced: Annotated[bool, Parameter(negative="")] = False,
    dry_run: Annotated[bool, Parameter(negative="")] = False,
    device: Literal["auto", "cpu", "cuda"] = "auto",
    json: bool = False,
    quiet: bool = False,
) -> None:
    """Trains six tasks plain and with ELMo and sets them beside the tables of Peters et al. 2018: what ELMo adds, which
    layers, where, and the layers' weights. What is finished is kept: the same command goes on where it was stopped.

    For example:

        relmo reproduce elmo-table --data data --model small --model large=models/original --jobs 4

        relmo reproduce elmo-table --rows ner,sst5 --tables 1 --seeds 3 --minutes 8

        relmo reproduce elmo-table --dry-run

    Parameters
    ----------
    data
        The folder that holds the data; by default the one that RELMO_DATA names, else data/ here.
    out
        The folder for models, results, tables and pictures.
    model
        A biLM, or NAME=FOLDER to name its column; may be given several times.
    rows
        Which of squad, snli, srl, coref, ner, sst5, with commas between them; by default all.
    tables
        Which of 1, 2, placement, weights, with commas between them; by default all.
    seeds
        How often each network is trained. By default cheap networks are trained more often.
    jobs
        How many networks are trained at a time; 0 trains nothing and shows what is finished.
    minutes
        Stop after this time. The same command goes on with what is not finished.
    reduced
        Train tiny networks on the beginning of each file, to see that everything runs; minutes on a CPU.
    dry_run
        Print the commands that train, one a line, and stop.
    device
        Where to compute; auto takes a GPU if there is one.
    json
        Print one JSON object with all figures.
    quiet
        Show no progress.
    """
    from relmo.reproduce.data import data_folder
    from relmo.reproduce.elmo_table.make import commands, make_tables
    from relmo.reproduce.elmo_table.plan import TABLES, TablePlan, chosen_names, name_bilms
    from relmo.reproduce.elmo_table.rows import ROWS

    sources = name_bilms(model)
    plan = TablePlan(
        chosen_names("--tables", tables, TABLES), chosen_names("--rows", rows, ROWS), list(sources), seeds, reduced
    )
    folder = data_folder(data)
    if dry_run:
        print(*commands(plan, sources, folder, out, device), sep="\n")
        return
    say = sayer(quiet=quiet)
    seconds = None if minutes is None else 60 * minutes
    try:
        made, trained = make_tables(plan, sources, folder, out, jobs=jobs, device=device, seconds=seconds, say=say)
    except KeyboardInterrupt:
        say("the same command goes on with what is not finished")
        raise
    _show(made, trained, json=json)
    _tell_missing(trained, say)


def _show(made: "ElmoTables", trained: "Trained", *, json: bool) -> None:
    from relmo.reproduce.elmo_table.tables import OF_WORDS

    if json:
        print_json(made.summary() | {"failed": trained.failed, "unfinished": trained.unfinished})
    else:
        print_tables(*made.tables(), words=OF_WORDS)


def _tell_missing(trained: "Trained", say: Callable[[str], None]) -> None:
    """Says which trainings are not there; those that failed are an error."""
    if trained.unfinished:
        say(f"{len(trained.unfinished)} trainings are not finished; the same command goes on with them")
    if trained.failed:
        name, why = next(iter(trained.failed.items()))
        raise RelmoError(f"{len(trained.failed)} trainings failed, such as {name}: {why}")
