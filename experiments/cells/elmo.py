"""ELMo with other cells: the first part of the recipe of `small`, at equal tokens and about equal numbers of weights.

    python -m experiments.cells.elmo run DATA OUT TEXT… [--size cpu] [--cells lstm,slstm] [--epochs 2] [--lr RATE]
        [--jobs 3]
    python -m experiments.cells.elmo speed DATA OUT [--size cpu]    words embedded per second by untrained models
    python -m experiments.cells.elmo table OUT [--size cpu]

DATA has the evaluation data; the biLMs are trained on TEXT. Each is scored by its perplexity, by linear probes for
parts of speech, on word senses, and as the ELMo of taggers of names (UNER EWT, three seeds). OUT has the models and
their records; the same command resumes. The layers have as many recurrent weights as those of the LSTM of this size,
projections included. Without --lr each cell has the learning rate, of three, with the lowest perplexity of the
validation text after TUNED_EPOCHS. The size `cpu` takes minutes per cell on one core; its taggers have a tenth of the
sentences.
"""

import argparse
import copy
import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from statistics import median
from typing import Any

import torch

import relmo
from experiments import reproduce
from experiments.elmo_table.rows import ROWS
from experiments.elmo_table.tables import average_scores, to_markdown
from experiments.pos import ALL, read_tagged
from experiments.tables import Controls
from experiments.task_results import SHARES, share_file, write_data
from experiments.trainings import Location, TrainingRun, get_score, run_trainings
from experiments.wsd import BOTH
from relmo.analysis.core.show import Table
from relmo.disk.files import read_sealed, seal
from relmo.models.bilm import BiLM
from relmo.models.sequence_model import untrained
from relmo.networks.bilm import BiLMNetwork, make_stacks
from relmo.settings.bilm import BiLMModelSettings, BiLMSettings
from relmo.store.folder import write_json

NAMES_SHARE = 0.1  # of the training sentences, for small models


@dataclass(frozen=True)
class Size:
    """Sizes of the biLMs, and the data and settings of the taggers."""

    hidden: int  # of the LSTM with whose number of weights the others agree
    projection: int
    filters: tuple[str, ...]
    recipe: str
    names: str
    names_settings: str = ""


CELLS = ("lstm", "gru", "slstm", "mlstm", "mingru", "rglru")
SIZES = {
    "small": Size(
        1152,
        256,
        ("1x32", "2x32", "3x64", "4x128", "5x256", "6x512"),
        "--softmax-dim 128 --vocabulary-size 50000 --batch 512 --final-lr 0.4 --precision bfloat16",
        f"{{data}}/{ROWS['ner'].train}",
    ),
    "cpu": Size(
        512,
        128,
        ("1x32", "2x32", "3x64", "4x128"),
        "--vocabulary-size 20000 --batch 64 --final-lr 0.1",
        f"{{own}}/{share_file('uner', NAMES_SHARE)}",
        SHARES[NAMES_SHARE],
    ),
}
SIZE_STEP = 16  # hidden sizes are multiples
RECIPE = (
    "--preset small --optimizer muon --warmup 100 --dropout 0.02 "
    "--valid {data}/lm/pretrain-valid.txt --validate-every 5000 --seed 1"
)
OPTIONS = {"mlstm": ("heads=16",)}  # smaller matrices, which take less memory
LEARNING_RATES, TUNED_EPOCHS = (0.0025, 0.005, 0.01), 0.2
SEEDS = (1, 2, 3)
NUM_SPEED_SENTENCES, ROUNDS = 200, 5
WARM_UP = [["warming", "up"]]

say = partial(print, flush=True)


def model_settings(size: Size, cell: str, hidden: int) -> BiLMModelSettings:
    """Return the settings of the layers."""
    options = OPTIONS.get(cell, ())
    return BiLMModelSettings(
        cell=cell, cell_options=options, hidden=hidden, projection=size.projection, filters=size.filters
    )


def count_weights(size: Size, cell: str, hidden: int) -> int:
    """Return the number of weights of the recurrent layers, with their projections."""
    with torch.device("meta"):
        stacks = make_stacks(model_settings(size, cell, hidden), fast=True)
    return sum(parameter.numel() for parameter in stacks.parameters())


@cache
def match_hidden(size: Size, cell: str) -> int:
    """Return the hidden size with which the layers have about as many weights as those of the LSTM."""
    if cell == "lstm":
        return size.hidden
    target = count_weights(size, "lstm", size.hidden)
    candidates = range(2 * SIZE_STEP, 8 * size.hidden, SIZE_STEP)  # an mLSTM has as many heads, of at least two units
    return min(candidates, key=lambda hidden: abs(count_weights(size, cell, hidden) - target))


def bilm_run(size: Size, cell: str, texts: Sequence[str], lr: float, epochs: float, name: str) -> TrainingRun:
    """Return the training of a biLM."""
    options = "".join(f" --cell-options {option}" for option in OPTIONS.get(cell, ()))
    layers = f"--projection {size.projection} --filters {','.join(size.filters)}"
    settings = f"--cell {cell}{options} --hidden {match_hidden(size, cell)} --lr {lr:g} --epochs {epochs:g}"
    return TrainingRun(name, f"bilm {' '.join(texts)} {RECIPE} {layers} {size.recipe} {settings}")


def names_run(size: Size, cell: str, seed: int) -> TrainingRun:
    """Return the training of a tagger of names with a biLM."""
    row = ROWS["ner"]
    settings = f"--valid {{data}}/{row.valid} {row.settings} {size.names_settings} --elmo {{bilm}} {row.elmo}"
    return TrainingRun(f"names-{cell}-{seed}", f"tagger {size.names} {settings} --seed {seed}")


def score_bilm(model: BiLM, data: Path) -> dict[str, Any]:
    """Return the accuracy of the probes, and of the word senses of both sets, by layer."""
    controls = Controls(untrained(model), None)
    scores = {}
    for name in ("pos", "wsd"):
        rows = reproduce(name, model, data=data, controls=controls).rows
        scores[name] = {row.name: row.ours for row in rows if row.ours}
    return scores


def tune(job: "Job", cell: str) -> float | None:
    """Return the learning rate with the lowest perplexity after short trainings, or None if all failed."""
    rates = {f"tune-{cell}-{lr:g}": lr for lr in LEARNING_RATES}
    runs = [bilm_run(job.size, cell, job.texts, lr, TUNED_EPOCHS, name) for name, lr in rates.items()]
    tuned = run_trainings(runs, {"data": Location(str(job.data))}, job.out, jobs=job.processes, on_message=say).results
    return rates[min(tuned, key=lambda name: tuned[name]["valid_perplexity"])] if tuned else None


@dataclass(frozen=True, kw_only=True)
class Job:
    """Arguments of the trainings."""

    data: Path
    out: Path
    texts: Sequence[str]
    size: Size
    epochs: float
    lr: float | None
    processes: int

    def run(self, cell: str) -> int:
        """Train and score what is not finished; return the number of failed trainings."""
        locations = {"data": Location(str(self.data)), "own": Location(str(self.out / "data"))}
        lr = self.lr or tune(self, cell)
        if lr is None:
            return len(LEARNING_RATES)
        name = f"bilm-{cell}"
        training = bilm_run(self.size, cell, self.texts, lr, self.epochs, name)
        if run_trainings([training], locations, self.out, on_message=say).failed:
            return 1
        path = self.out / f"scores-{cell}.json"
        if not path.exists():
            write_json(path, seal(score_bilm(relmo.load(self.out / name, kinds="bilm"), self.data)))
            say(f"scored {cell}")
        locations["bilm"] = Location(str(self.out / name))
        runs = [names_run(self.size, cell, seed) for seed in SEEDS]
        return len(run_trainings(runs, locations, self.out, jobs=self.processes, on_message=say).failed)


def measure_speed(data: Path, out: Path, size: Size, cells: Sequence[str]) -> None:
    """Embed sentences with untrained models of all cells in interleaved rounds, with a cold word cache."""
    sentences = read_tagged(data / "tasks/pos_ud/en_ewt/en_ewt-ud-dev.conllu").sentences[:NUM_SPEED_SENTENCES]
    num_words, device = sum(map(len, sentences)), torch.device("cpu")
    models = {}
    for cell in cells:
        settings = BiLMSettings(model=model_settings(size, cell, match_hidden(size, cell)))
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


def make_table(out: Path, size: Size) -> Table:
    """Return the table of the finished cells."""
    speeds = _read(out / "speed.json").get("words_per_second", {})
    lines = [_row(out, size, cell, speeds) for cell in CELLS if (out / f"scores-{cell}.json").exists()]
    columns = ["cell", "units (weights)", "perplexity", "parts of speech, layers 0, 1, 2", "senses, layers 0, 1, 2"]
    return Table(
        [*columns, "names, F1", "embedding, words/s (ratio)"],
        lines,
        "ELMo with other cells",
        ["perplexity: forward and backward, of the validation text; names: UNER EWT, mean of the seeds"],
    )


def _row(out: Path, size: Size, cell: str, speeds: dict[str, float]) -> list[str]:
    scores, hidden = _read(out / f"scores-{cell}.json"), match_hidden(size, cell)
    results = json.loads((out / f"bilm-{cell}.json").read_text())["results"]
    names = [json.loads(path.read_text())["results"] for path in sorted(out.glob(f"names-{cell}-?.json"))]
    f1 = average_scores([get_score(results) for results in names if results])
    speed = f"{speeds[cell]:,.0f} ({speeds[cell] / speeds['lstm']:.2f})" if cell in speeds else ""
    layers = [", ".join(f"{value:.1f}" for value in _by_layer(scores[name], name)) for name in ("pos", "wsd")]
    units = f"{hidden} ({count_weights(size, cell, hidden) / 1e6:.2f}M)"
    return [
        cell,
        units,
        f"{results['valid_perplexity']:.1f}",
        *layers,
        "" if f1 is None else str(f1),
        speed,
    ]


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
    for verb in ("run", "speed", "table"):
        command = verbs.add_parser(verb)
        if verb != "table":
            command.add_argument("data", type=Path)
        command.add_argument("out", type=Path)
        command.add_argument("--size", choices=SIZES, default="small")
        if verb != "table":
            command.add_argument("--cells", default=",".join(CELLS))
    running = verbs.choices["run"]
    running.add_argument("texts", nargs="+")
    running.add_argument("--epochs", type=float, default=2.0)
    running.add_argument("--lr", type=float)
    running.add_argument("--jobs", type=int, default=1)
    arguments = parser.parse_args()
    size = SIZES[arguments.size]
    if arguments.verb == "table":
        print(to_markdown([make_table(arguments.out, size)]))
        return 0
    cells = arguments.cells.split(",")
    if arguments.verb == "speed":
        measure_speed(arguments.data, arguments.out, size, cells)
        return 0
    if "{own}" in size.names:
        write_data(arguments.data, arguments.out / "data")
    job = Job(
        data=arguments.data,
        out=arguments.out,
        texts=arguments.texts,
        size=size,
        epochs=arguments.epochs,
        lr=arguments.lr,
        processes=arguments.jobs,
    )
    return min(1, sum(map(job.run, cells)))


if __name__ == "__main__":
    raise SystemExit(main())
