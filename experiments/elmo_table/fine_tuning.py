"""Fine-tuning of the biLMs on the text of each task, without its labels, before its networks are trained (the domain
transfer of Peters et al. 2018): the sentences, and the perplexity of those of the validation file before.

    OUT/texts/ROW-train.txt, ROW-valid.txt    the distinct texts that the networks of a row read, one per line
    OUT/ROW-NAME-tuned/                       a fine-tuned biLM, with its record and log (`experiments/trainings.py`)
    OUT/ROW-NAME-untuned.json                 perplexity of ROW-valid.txt before
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from experiments.elmo_table.plan import TablePlan
from experiments.elmo_table.rows import ROWS, TaskRow
from experiments.trainings import Locations, Outcome, find_results, run_trainings
from relmo.disk.files import read_sealed, seal
from relmo.disk.outputs import atomic
from relmo.loading import load
from relmo.settings.kinds import model_class, settings_class
from relmo.store.folder import write_json

BEFORE = "initial_valid_perplexity"  # in the results of a fine-tuning, beside valid_perplexity
LANES = 64  # of the measurement; they affect its speed only


def read_sentences(row: TaskRow, path: Path) -> list[str]:
    """Return the distinct texts of a task's file as its network reads them: words, joined by spaces."""
    task = model_class(row.kind)
    examples = task.read(str(path), settings_class(row.kind)().text)
    return list(dict.fromkeys(" ".join(words) for example in examples for words in task.texts(task, example)))


def write_texts(row: str, data: Path, texts: Path) -> None:
    """Write the sentences of the training file and those of the validation file of a row."""
    for part, file in (("train", ROWS[row].train), ("valid", ROWS[row].valid)):
        sentences = read_sentences(ROWS[row], data / file)
        with atomic(texts / f"{row}-{part}.txt") as temporary:
            temporary.write_text("".join(f"{sentence}\n" for sentence in sentences), encoding="utf-8")


def fine_tune(
    plan: TablePlan,
    locations: Locations,
    out: Path,
    *,
    jobs: int,
    device: str,
    seconds: float | None,
    on_message: Callable[[str], None],
) -> Outcome:
    """Fine-tune what is missing; the results also have the perplexity before, if the biLM has an output layer."""
    tunings = plan.tunings()
    data, texts = (Path(locations[name].path) for name in ("data", "texts"))
    if jobs:
        unfinished = {row for (row, _), run in tunings.items() if find_results(run, out, locations) is None}
        for row in plan.rows:
            if row in unfinished:
                write_texts(row, data, texts)
    outcome = run_trainings(
        tunings.values(), locations, out, jobs=jobs, device=device, seconds=seconds, on_message=on_message
    )
    for (row, bilm), run in tunings.items():
        if run.name in outcome.results:
            record = out / f"{row}-{bilm}-untuned.json"
            if jobs and not record.exists():
                if not (texts / f"{row}-valid.txt").exists():
                    write_texts(row, data, texts)
                perplexity = measure_perplexity(locations[bilm].path, texts / f"{row}-valid.txt", device)
                write_json(record, seal({"perplexity": perplexity}))
                torch.cuda.empty_cache()  # for the networks, which are trained in other processes
            if record.exists():
                before = read_sealed(record, "remove it to measure again").get("perplexity")
                outcome.results[run.name] = outcome.results[run.name] | {BEFORE: before}
    return outcome


def measure_perplexity(source: str, text: Path, device: str) -> float | None:
    """Return the perplexity of a tokenized text; None if the biLM has no output layer."""
    model: Any = load(source, kinds="bilm", device=device)
    if not model.has_output_layer:
        return None
    return float(model.with_tokenizer("whitespace").evaluate(text, lanes=LANES).perplexity)
