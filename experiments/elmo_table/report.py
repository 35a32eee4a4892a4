"""The whole command as a function: train what is missing, then write tables and figures.

OUT/elmo-table.md     the tables as Markdown
OUT/elmo-….png        figures, if matplotlib is installed
OUT/ROW-….json        record of each training (`experiments/trainings.py`), beside its model and log
OUT/data/             the slices of `--reduced`
"""

import shlex
from collections.abc import Callable, Mapping
from pathlib import Path

from experiments.elmo_table.figures import draw_figures
from experiments.elmo_table.plan import TablePlan
from experiments.elmo_table.rows import ROWS
from experiments.elmo_table.slices import write_slices
from experiments.elmo_table.tables import ElmoTables, to_markdown
from experiments.tables import require_data
from experiments.trainings import Location, Outcome, run_trainings
from relmo.disk.outputs import atomic
from relmo.errors import SettingError, WrongKindError
from relmo.settings.kinds import KINDS
from relmo.store.folder import read_config
from relmo.store.original import locate
from relmo.store.references import find_installed

MARKDOWN, SLICES = "elmo-table.md", "data"


def training_commands(
    plan: TablePlan, sources: Mapping[str, str], data: Path, out: Path, device: str = "auto"
) -> list[str]:
    """Return every training of a plan as a shell command."""
    locations = {"data": _data_location(plan, data, out)} | {name: Location(s) for name, s in sources.items()}
    return [shlex.join(["relmo", *training.command(locations, out, device)]) for training in plan.trainings()]


def make_tables(
    plan: TablePlan,
    sources: Mapping[str, str],
    data: Path,
    out: Path,
    *,
    jobs: int = 1,
    device: str = "auto",
    seconds: float | None = None,
    on_message: Callable[[str], None] = lambda _: None,
) -> tuple[ElmoTables, Outcome]:
    """Run the trainings of a plan, with biLMs by name and source, and write its tables."""
    descriptions = describe_bilms(sources)
    if jobs:
        for row in plan.rows:
            for file in (ROWS[row].train, ROWS[row].valid):
                require_data(data, file, ROWS[row].title)
        if plan.reduced:
            write_slices(data, plan.rows, out / SLICES)
    locations = {"data": _data_location(plan, data, out)}
    locations |= {name: Location(source, descriptions[name]) for name, source in sources.items()}
    outcome = run_trainings(
        plan.trainings(), locations, out, jobs=jobs, device=device, seconds=seconds, on_message=on_message
    )
    tables = ElmoTables(plan, outcome.results, descriptions)
    if outcome.results:
        try:
            figures = draw_figures(tables, out)
        except SettingError as error:  # matplotlib is not installed
            on_message(f"no figures ({error})")
            figures = []
        with atomic(out / MARKDOWN) as temporary:
            temporary.write_text(to_markdown(tables.tables(), figures), encoding="utf-8")
        on_message(f"written to {out}: {', '.join([MARKDOWN, *figures])}")
    return tables, outcome


def _data_location(plan: TablePlan, data: Path, out: Path) -> Location:
    return Location(str(out / SLICES if plan.reduced else data))


def describe_bilms(sources: Mapping[str, str]) -> dict[str, str]:
    """Return size, training data and perplexity of each biLM by its name; raise for a model of another kind."""
    return {name: _describe(source) for name, source in sources.items()}


def _describe(source: str) -> str:
    path = find_installed(source) or Path(source)
    if locate(path) is not None:
        return "original ELMo files"
    config = read_config(path)
    if config["kind"] != "bilm":
        kind = f"{KINDS[config['kind']].called} ({config['kind']})" if config["kind"] in KINDS else config["kind"]
        raise WrongKindError(f"--model {source}: is {kind}; expected a bidirectional model (bilm)")
    results = config.get("results")
    formats = {
        "parameters": "{:,.0f} parameters with its output layer",
        "train_tokens": "{:,.0f} tokens of text",
        "valid_perplexity": "perplexity {:.1f}",
    }
    facts = {key: results.get(key) for key in formats} if isinstance(results, dict) else {}
    texts = [formats[key].format(fact) for key, fact in facts.items() if isinstance(fact, int | float)]
    return ", ".join(texts) or "nothing is known of its training"
