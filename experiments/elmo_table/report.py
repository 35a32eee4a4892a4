"""The whole command as a function: train what is missing, then write tables and figures.

OUT/elmo-table.md     the tables as Markdown
OUT/elmo-….png        figures, if matplotlib is installed
OUT/ROW-….json        record of each training (`experiments/trainings.py`), beside its model and log
OUT/data/             the slices of `--reduced`
OUT/texts/            the texts of `--fine-tune` (`experiments/elmo_table/fine_tuning.py`)
"""

import shlex
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from experiments.elmo_table.figures import draw_figures
from experiments.elmo_table.fine_tuning import fine_tune
from experiments.elmo_table.plan import TablePlan
from experiments.elmo_table.rows import ROWS
from experiments.elmo_table.slices import write_slices
from experiments.elmo_table.tables import ElmoTables, to_markdown
from experiments.tables import require_data
from experiments.trainings import Location, Locations, Outcome, run_trainings
from relmo.disk.outputs import atomic
from relmo.errors import SettingError, WrongKindError
from relmo.settings.kinds import KINDS
from relmo.store.folder import read_config
from relmo.store.original import locate
from relmo.store.references import find_installed

MARKDOWN, SLICES, TEXTS = "elmo-table.md", "data", "texts"


def training_commands(
    plan: TablePlan, sources: Mapping[str, str], data: Path, out: Path, device: str = "auto"
) -> list[str]:
    """Return every training of a plan as a shell command."""
    locations = _locate(plan, sources, dict.fromkeys(sources, ""), data, out)
    trainings = [*plan.tunings().values(), *plan.trainings()]
    return [shlex.join(["relmo", *training.command(locations, out, device)]) for training in trainings]


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
    locations = _locate(plan, sources, descriptions, data, out)
    outcome = _run(plan, locations, out, jobs=jobs, device=device, seconds=seconds, on_message=on_message)
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


def _locate(
    plan: TablePlan, sources: Mapping[str, str], descriptions: Mapping[str, str], data: Path, out: Path
) -> dict[str, Location]:
    """Return the locations of the data, the texts and all biLMs. The description of a fine-tuned biLM has its settings,
    so that networks with another fine-tuning are not reused."""
    locations = {"data": Location(str(out / SLICES if plan.reduced else data)), "texts": Location(str(out / TEXTS))}
    for name, source in sources.items():
        locations[name] = Location(source, descriptions[name])
    for (_, bilm), run in plan.tunings().items():
        locations[run.name] = Location(str(out / run.name), f"{descriptions[bilm]}; fine-tuned: {run.text}")
    return locations


def _run(
    plan: TablePlan,
    locations: Locations,
    out: Path,
    *,
    jobs: int,
    device: str,
    seconds: float | None,
    on_message: Callable[[str], None],
) -> Outcome:
    """Fine-tune the biLMs, then train the networks; those whose biLM is not finished wait for the next call."""
    start = time.monotonic()
    outcome = fine_tune(plan, locations, out, jobs=jobs, device=device, seconds=seconds, on_message=on_message)
    missing = [run.name for run in plan.tunings().values() if run.name not in outcome.results]
    networks = plan.trainings()
    waiting = [network for network in networks if any(map(network.reads, missing))]
    ready = [network for network in networks if network not in waiting]
    if seconds is not None:
        seconds = max(0.0, seconds - (time.monotonic() - start))
    outcome.add(run_trainings(ready, locations, out, jobs=jobs, device=device, seconds=seconds, on_message=on_message))
    outcome.add(run_trainings(waiting, locations, out, jobs=0))
    return outcome


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
