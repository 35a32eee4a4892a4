"""ELMo with other cells: the first part of the recipe of `small`, at equal tokens and about equal numbers of weights.

    python -m experiments.cells.elmo run DATA OUT TEXT… [--cells lstm,slstm] [--epochs 2] [--lr RATE] [--jobs 3]
    python -m experiments.cells.elmo speed DATA OUT     words embedded per second by untrained models, on this machine
    python -m experiments.cells.elmo table OUT

DATA has the evaluation data; the biLMs are trained on TEXT. Each is scored by its perplexity, by linear probes for
parts of speech, on word senses, and as the ELMo of taggers of names (UNER EWT, three seeds). OUT has the models and
their records; the same command resumes. The layers have as many recurrent weights as those of `small`, projections
included. Without --lr each cell has the learning rate, of three, with the lowest perplexity of the validation text
after TUNED_EPOCHS.
"""

import argparse
import copy
import json
import time
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch

import relmo
from experiments import reproduce
from experiments.elmo_table.rows import ROWS
from experiments.elmo_table.tables import average_scores, to_markdown
from experiments.trainings import Location, TrainingRun, find_results, get_score, run_trainings
from relmo.analysis.core.published import Controls, untrained
from relmo.analysis.core.show import Table
from relmo.analysis.meaning.probe import ALL, read_tagged
from relmo.analysis.meaning.senses import BOTH
from relmo.disk.files import read_sealed, seal
from relmo.models.bilm import BiLM
from relmo.networks.bilm import BiLMNetwork, make_stacks
from relmo.settings.bilm import BiLMModelSettings, BiLMSettings
from relmo.store.folder import write_json

CELLS = ("lstm", "gru", "slstm", "mlstm", "mingru", "rglru")
FILTERS = ("1x32", "2x32", "3x64", "4x128", "5x256", "6x512")
HIDDEN, PROJECTION, SIZE_STEP = 1152, 256, 16  # of `small`
RECIPE = (
    f"--preset small --projection {PROJECTION} --softmax-dim 128 --filters {','.join(FILTERS)} "
    "--vocabulary-size 50000 --optimizer muon --final-lr 0.4 --warmup 100 --batch 512 --dropout 0.02 "
    "--precision bfloat16 --valid {data}/lm/pretrain-valid.txt --validate-every 5000 --seed 1"
)
OPTIONS = {"mlstm": ("heads=16",)}  # smaller matrices, which take less memory
LEARNING_RATES, TUNED_EPOCHS = (0.0025, 0.005, 0.01), 0.2
SEEDS = (1, 2, 3)
NUM_SPEED_SENTENCES, ROUNDS = 1000, 5
WARM_UP = [["warming", "up"]]

say = partial(print, flush=True)


def model_settings(cell: str, hidden: int) -> BiLMModelSettings:
    """Return the settings of the layers."""
    options = OPTIONS.get(cell, ())
    return BiLMModelSettings(cell=cell, cell_options=options, hidden=hidden, projection=PROJECTION, filters=FILTERS)


def count_weights(cell: str, hidden: int) -> int:
    """Return the number of weights of the recurrent layers, with their projections."""
    with torch.device("meta"):
        stacks = make_stacks(model_settings(cell, hidden), fast=True)
    return sum(parameter.numel() for parameter in stacks.parameters())


def match_hidden(cell: str) -> int:
    """Return the hidden size with which the layers have about as many weights as those of `small`."""
    target = count_weights("lstm", HIDDEN)
    sizes = range(2 * SIZE_STEP, 8 * HIDDEN, SIZE_STEP)  # an mLSTM has as many heads, of at least two units
    return HIDDEN if cell == "lstm" else min(sizes, key=lambda hidden: abs(count_weights(cell, hidden) - target))


def bilm_run(cell: str, texts: Sequence[str], lr: float, epochs: float, name: str) -> TrainingRun:
    """Return the training of a biLM."""
    hidden = match_hidden(cell)
    options = "".join(f" --cell-options {option}" for option in OPTIONS.get(cell, ()))
    settings = f"--cell {cell}{options} --hidden {hidden} --lr {lr:g} --epochs {epochs:g}"
    return TrainingRun(name, f"bilm {' '.join(texts)} {RECIPE} {settings}")


def names_run(cell: str, seed: int) -> TrainingRun:
    """Return the training of a tagger of names with a biLM."""
    row = ROWS["ner"]
    text = f"tagger {{data}}/{row.train} --valid {{data}}/{row.valid} {row.settings} --elmo {{bilm}} {row.elmo}"
    return TrainingRun(f"names-{cell}-{seed}", f"{text} --seed {seed}")


def score_bilm(model: BiLM, data: Path) -> dict[str, Any]:
    """Return the accuracy of the probes, and of the word senses of both sets, by layer."""
    controls = Controls(untrained(model), None)
    scores = {}
    for name in ("pos", "wsd"):
        rows = reproduce(name, model, data=data, controls=controls).rows
        scores[name] = {row.name: row.ours for row in rows if row.ours}
    return scores


def tune(data: Path, out: Path, texts: Sequence[str], cell: str, jobs: int) -> float | None:
    """Return the learning rate with the lowest perplexity after short trainings, or None if all failed."""
    rates = {f"tune-{cell}-{lr:g}": lr for lr in LEARNING_RATES}
    short_runs = [bilm_run(cell, texts, lr, TUNED_EPOCHS, name) for name, lr in rates.items()]
    tuned = run_trainings(short_runs, {"data": Location(str(data))}, out, jobs=jobs, on_message=say).results
    return rates[min(tuned, key=lambda name: tuned[name]["valid_perplexity"])] if tuned else None


def run(data: Path, out: Path, texts: Sequence[str], cell: str, *, epochs: float, lr: float | None, jobs: int) -> int:
    """Train and score what is not finished; return the number of failed trainings."""
    locations = {"data": Location(str(data))}
    lr = lr or tune(data, out, texts, cell, jobs)
    if lr is None:
        return len(LEARNING_RATES)
    name = f"bilm-{cell}"
    training = bilm_run(cell, texts, lr, epochs, name)
    trained = run_trainings([training], locations, out, jobs=jobs, on_message=say)
    if trained.failed:
        return 1
    path = out / f"scores-{cell}.json"
    if not path.exists():
        write_json(path, seal(score_bilm(relmo.load(out / name, kinds="bilm"), data)))
        say(f"scored {cell}")
    locations["bilm"] = Location(str(out / name))
    tagged = run_trainings([names_run(cell, seed) for seed in SEEDS], locations, out, jobs=jobs, on_message=say)
    return len(tagged.failed)


def measure_speed(data: Path, out: Path, cells: Sequence[str]) -> None:
    """Embed sentences with untrained models of all cells in interleaved rounds, with a cold word cache."""
    sentences = read_tagged(data / "tasks/pos_ud/en_ewt/en_ewt-ud-dev.conllu").sentences[:NUM_SPEED_SENTENCES]
    num_words, device = sum(map(len, sentences)), torch.device("cpu")
    models = {}
    for cell in cells:
        settings = BiLMSettings(model=model_settings(cell, match_hidden(cell)))
        models[cell] = BiLM(BiLMNetwork(settings.model, vocab_size=None).eval(), settings, None, device)
    seconds: dict[str, list[float]] = {cell: [] for cell in cells}
    for _ in range(ROUNDS):
        for cell, model in models.items():
            reader = copy.copy(model)  # with an empty cache
            reader.embed(WARM_UP)
            start = time.perf_counter()
            reader.embed(sentences, layers="top")
            seconds[cell].append(time.perf_counter() - start)
    rates = {cell: num_words / median(times) for cell, times in seconds.items()}
    write_json(out / "speed.json", seal({"threads": torch.get_num_threads(), "words_per_second": rates}))


def make_table(out: Path) -> Table:
    """Return the table of the finished cells."""
    speeds = _read(out / "speed.json").get("words_per_second", {})
    lines = [_row(out, cell, speeds) for cell in CELLS if (out / f"scores-{cell}.json").exists()]
    columns = ["cell", "units (weights)", "perplexity", "parts of speech, layers 0, 1, 2", "senses, layers 0, 1, 2"]
    return Table(
        [*columns, "names, F1", "words/s on a CPU (ratio)"],
        lines,
        "ELMo with other cells",
        ["perplexity: forward and backward, of the validation text; names: UNER EWT, mean of the seeds"],
    )


def _row(out: Path, cell: str, speeds: dict[str, float]) -> list[str]:
    scores, hidden = _read(out / f"scores-{cell}.json"), match_hidden(cell)
    perplexity = json.loads((out / f"bilm-{cell}.json").read_text())["results"]["valid_perplexity"]
    names = [find_results(names_run(cell, seed), out, {}) for seed in SEEDS]
    f1 = average_scores([get_score(results) for results in names if results])
    speed = f"{speeds[cell]:,.0f} ({speeds[cell] / speeds['lstm']:.2f})" if cell in speeds else ""
    layers = [", ".join(f"{value:.1f}" for value in _by_layer(scores[name], name)) for name in ("pos", "wsd")]
    size = f"{hidden} ({count_weights(cell, hidden) / 1e6:.1f}M)"
    return [cell, size, f"{perplexity:.1f}", *layers, "" if f1 is None else str(f1), speed]


def _by_layer(scores: dict[str, dict[str, float]], name: str) -> Iterator[float]:
    column = ALL if name == "pos" else BOTH
    for row, values in scores.items():
        if row.startswith("layer "):
            yield values[column]


def _read(path: Path) -> dict[str, Any]:
    return read_sealed(path, "measure again") if path.exists() else {}


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(dest="verb", required=True)
    for verb in ("run", "speed"):
        command = verbs.add_parser(verb)
        command.add_argument("data", type=Path)
        command.add_argument("out", type=Path)
        command.add_argument("--cells", default=",".join(CELLS))
    running = verbs.choices["run"]
    running.add_argument("texts", nargs="+")
    running.add_argument("--epochs", type=float, default=2.0)
    running.add_argument("--lr", type=float)
    running.add_argument("--jobs", type=int, default=1)
    verbs.add_parser("table").add_argument("out", type=Path)
    arguments = parser.parse_args()
    if arguments.verb == "table":
        print(to_markdown([make_table(arguments.out)]))
        return 0
    cells = arguments.cells.split(",")
    if arguments.verb == "speed":
        measure_speed(arguments.data, arguments.out, cells)
        return 0
    options = {"epochs": arguments.epochs, "lr": arguments.lr, "jobs": arguments.jobs}
    return min(1, sum(run(arguments.data, arguments.out, arguments.texts, cell, **options) for cell in cells))


if __name__ == "__main__":
    raise SystemExit(main())
