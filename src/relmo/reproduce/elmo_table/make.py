"""The whole command as a plain function: what is missing is trained, then tables and pictures are written.

OUT/elmo-table.md     the tables as Markdown
OUT/elmo-….png        each of them drawn, where matplotlib is installed
OUT/ROW-….json        a record of each training (`reproduce/trainings.py`), with its model and its log beside
OUT/data/             the slices of `--reduced`
"""

import shlex
from collections.abc import Callable, Mapping
from pathlib import Path

from relmo.disk.outputs import atomic
from relmo.errors import SettingError
from relmo.reproduce.data import required
from relmo.reproduce.elmo_table.bilms import describe_bilms
from relmo.reproduce.elmo_table.pictures import draw
from relmo.reproduce.elmo_table.plan import TablePlan
from relmo.reproduce.elmo_table.rows import ROWS
from relmo.reproduce.elmo_table.slices import write_slices
from relmo.reproduce.elmo_table.tables import ElmoTables, markdown
from relmo.reproduce.trainings import Trained, Whereabouts, run_trainings

MARKDOWN, SLICES = "elmo-table.md", "data"


def _places(plan: TablePlan, data: Path, out: Path, bilms: Mapping[str, Whereabouts]) -> dict[str, Whereabouts]:
    """What the names in braces stand for in the commands of a plan."""
    return {"data": Whereabouts(str(out / SLICES if plan.reduced else data)), **bilms}


def commands(plan: TablePlan, sources: Mapping[str, str], data: Path, out: Path, device: str = "auto") -> list[str]:
    """Every training of a plan as a user would type it."""
    places = _places(plan, data, out, {name: Whereabouts(source) for name, source in sources.items()})
    return [shlex.join(["relmo", *each.command(places, out, device)]) for each in plan.trainings()]


def make_tables(
    plan: TablePlan,
    sources: Mapping[str, str],
    data: Path,
    out: Path,
    *,
    jobs: int = 1,
    device: str = "auto",
    seconds: float | None = None,
    say: Callable[[str], None] = lambda _: None,
) -> tuple[ElmoTables, Trained]:
    """The tables of a plan, with the biLMs of these names and sources; and what became of the trainings."""
    about = describe_bilms(sources)
    if jobs:
        for row in plan.rows:
            for file in (ROWS[row].train, ROWS[row].valid):
                required(data, file, ROWS[row].title)
        if plan.reduced:
            write_slices(data, plan.rows, out / SLICES)
    places = _places(plan, data, out, {name: Whereabouts(source, about[name]) for name, source in sources.items()})
    trained = run_trainings(plan.trainings(), places, out, jobs=jobs, device=device, seconds=seconds, say=say)
    tables = ElmoTables(plan, trained.results, about)
    if trained.results:
        write_tables(tables, out, say)
    return tables, trained


def write_tables(tables: ElmoTables, out: Path, say: Callable[[str], None]) -> None:
    """Markdown and pictures."""
    try:
        pictures = draw(tables, out)
    except SettingError as error:  # no matplotlib
        say(f"no pictures ({error})")
        pictures = []
    with atomic(out / MARKDOWN) as temporary:
        temporary.write_text(markdown(tables.tables(), pictures), encoding="utf-8")
    say(f"written to {out}: {', '.join([MARKDOWN, *pictures])}")
