"""The results of tasks: runs every experiment as the command a user would type; prints tables, draws figures.

python recipes/task_results.py run DATA OUT [NAME…] [--parallel N] [--elmo large=FOLDER]    those not finished yet
python recipes/task_results.py table OUT                                                    Markdown
python recipes/task_results.py figures OUT DOCS                                             mixes, sample efficiency

DATA/tasks has the folders of tasks (snli, sst5, pos_ud, …); a NAME may be a beginning, such as snli-. A run that was
killed goes on. Tables and figures need nothing but the config.json of each OUT/NAME.
"""

import argparse
import json
import math
import random
import shlex
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from string import Template
from typing import Any, NamedTuple

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure


class Experiment(NamedTuple):
    """`relmo train KIND ARGUMENTS --seeds N --out OUT/NAME`. $T is the folder of tasks, $D what `write_data` writes, $O
    OUT, $small and $large the two biLMs."""

    name: str
    kind: str
    arguments: str
    seeds: int = 1


class Compared(NamedTuple):
    """A task that is learned plain and with ELMo: what it is called, its files and settings, those of ELMo alone, where
    ELMo is, and how many seeds."""

    title: str
    kind: str
    arguments: str
    elmo: str = ""
    at: str = "input"
    seeds: int = 5


SNLI = "$T/snli/snli_train_subset.tsv --valid $T/snli/snli_1.0_dev.tsv"
ESIM = f"{SNLI} --preset snli --hidden 300 --batch 128 --lr 0.0015 --epochs 6"
ENCODER = f"{SNLI} --preset encoder"
SST5 = "$T/sst5/train.txt --valid $T/sst5/dev.txt"
BCN = "--preset bcn --hidden 300"
COLA = "$T/cola/in_domain_train.tsv --valid $T/cola/in_domain_dev.tsv --preset cola"
STSB = "$T/stsb/sts-train.csv --valid $T/stsb/sts-dev.csv --preset stsb"
POS = "--valid $T/pos_ud/en_ewt/en_ewt-ud-dev.conllu --preset pos"
UNER = "--valid $T/ner_uner_en/en_ewt-ud-dev.iob2 --preset ner"
WNUT = "$T/ner_wnut17/wnut17train.conll --valid $T/ner_wnut17/emerging.dev.conll --preset ner"
IMDB = "$D/imdb-train.tsv --valid $D/imdb-dev.tsv --batch 64 --tokens-per-batch 32768 --epochs 4"
WHOLE = {"pos": "$T/pos_ud/en_ewt/en_ewt-ud-train.conllu", "uner": "$T/ner_uner_en/en_ewt-ud-train.iob2"}

TASKS = {
    "sst5": Compared("SST-5, biLSTM with attention", "classifier", f"{SST5} --preset sst5", "--elmo-dropout 0.3"),
    "sst5-bcn": Compared("SST-5, BCN", "classifier", f"{SST5} {BCN}", "--elmo-dropout 0.3", "both", seeds=1),
    "snli-lstm": Compared(
        "SNLI, LSTM", "pairs", f"{ENCODER} --directions 1 --pool final", "--elmo-dropout 0.1", seeds=3
    ),
    "snli-bilstm": Compared("SNLI, biLSTM, maximum", "pairs", ENCODER, "--elmo-dropout 0.1", seeds=3),
    "snli-esim": Compared("SNLI, ESIM", "pairs", ESIM, "--elmo-dropout 0.3", "both", seeds=3),
    "cola": Compared("CoLA", "classifier", COLA),
    "stsb": Compared("STS-B", "pairs", STSB, "--elmo-dropout 0.1"),
    "pos": Compared("POS, EWT", "tagger", f"{WHOLE['pos']} {POS}"),
    "uner": Compared("NER, UNER EWT", "tagger", f"{WHOLE['uner']} {UNER}"),
    "wnut": Compared("NER, WNUT-17", "tagger", WNUT),
}
INPUTS = {"plain": "", "small": "--elmo $small", "large": "--elmo $large"}
ABLATED = ("snli-esim", "uner")
ABLATIONS = {
    "top": "--elmo-at input --elmo-layers top",
    "even": "--elmo-at input --elmo-l2 1",
    "input": "--elmo-at input",
    "output": "--elmo-at output",
    "both": "--elmo-at both",
}
SAME = {"snli-esim-both": "snli-esim-small", "uner-input": "uner-small"}  # one run under two names
LAYERS = {
    "plain": "no ELMo",
    "top": "top layer alone",
    "even": "all layers, lambda 1",
    "input": "all layers, lambda 0.001",
}
PLACES = ("input", "output", "both")
SHARES = {  # of the training sentences, with batches and epochs that leave room to learn from few
    0.001: "--batch 4 --epochs 100 --validate-every 20 --patience 20",
    0.01: "--batch 8 --epochs 60 --validate-every 48 --patience 20",
    0.1: "--epochs 30",
}
LM = (
    "$D/imdb.txt --unit word --lowercase --text-per line --vocabulary-size 20000 --embedding 256 --hidden 512 "
    "--dropout 0.3 --epochs 8 --batch 64 --unroll 64"
)
STARTS = {
    "random": "--directions 1 --hidden 512 --word-dim 256 --char-dim 0",
    "init": "--init $O/reviews-lm",
}
STARTED = {
    "imdb": ("IMDB, LSTM", IMDB),
    "sst5-lstm": ("SST-5, LSTM, sentences alone", f"{SST5} --no-subtrees --epochs 8"),
}
METRICS = {
    "accuracy": "accuracy",
    "matthews": "Matthews correlation",
    "pearson": "Pearson",
    "spearman": "Spearman",
    "f1": "F1",
}


def experiments() -> Iterator[Experiment]:
    """All of them, the language model that others start from first."""
    yield Experiment("reviews-lm", "lm", LM)
    for name, task in TASKS.items():
        for inputs, elmo in INPUTS.items():
            more = f"{elmo} --elmo-at {task.at} {task.elmo}" if elmo else ""
            yield Experiment(f"{name}-{inputs}", task.kind, f"{task.arguments} {more}", task.seeds)
    for name in ABLATED:
        task = TASKS[name]
        for what, more in ABLATIONS.items():
            if f"{name}-{what}" not in SAME:
                arguments = f"{task.arguments} --elmo $small {task.elmo} {more}"
                yield Experiment(f"{name}-{what}", task.kind, arguments, min(3, task.seeds))
    for name, rest in {"pos": POS, "uner": UNER}.items():
        for share, few in SHARES.items():
            for inputs in ("plain", "small"):
                more = f"{INPUTS[inputs]} {TASKS[name].elmo}" if inputs != "plain" else ""
                arguments = f"$D/{share_file(name, share)} {rest} {few} {more}"
                yield Experiment(f"{name}-{share:g}-{inputs}", "tagger", arguments, 5)
    for name, (_, task_arguments) in STARTED.items():
        for start, more in STARTS.items():
            arguments = f"{task_arguments} --pool final --dropout 0.3 {more}"
            yield Experiment(f"{name}-{start}", "classifier", arguments, 1 if name == "imdb" else 3)


def share_file(name: str, share: float) -> str:
    """The file with a share of a task's training sentences."""
    return f"{name}-{share:g}{Path(WHOLE[name]).suffix}"


def write_data(tasks: Path, folder: Path) -> None:
    """What no publisher offers as a file: shares of training data, the first of one shuffle; IMDB without markup, every
    tenth review held out, and the text of the others for a language model. Files that are there stay."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, train in WHOLE.items():
        source = Path(Template(train).substitute(T=tasks))
        sentences = source.read_text(encoding="utf-8").strip().split("\n\n")
        random.Random(1).shuffle(sentences)
        for share in SHARES:
            few = sentences[: round(share * len(sentences))]
            write(folder / share_file(name, share), "".join(f"{sentence}\n\n" for sentence in few))
    table = (tasks / "imdb/train.tsv").read_text(encoding="utf-8").replace("<br />", " ")
    header, *reviews = table.strip("\n").split("\n")  # splitlines would cut at other characters too
    held, kept = reviews[9::10], [review for i, review in enumerate(reviews) if i % 10 != 9]
    write(folder / "imdb-dev.tsv", "\n".join([header, *held]) + "\n")
    write(folder / "imdb-train.tsv", "\n".join([header, *kept]) + "\n")
    random.Random(1).shuffle(kept)  # the language model validates on the end of its text
    write(folder / "imdb.txt", "".join(review.split("\t")[-1].strip() + "\n" for review in kept))


def write(path: Path, text: str) -> None:
    """A new file, whole or not at all."""
    if not path.exists():
        unfinished = path.with_name(f"{path.name}.new")
        unfinished.write_text(text, encoding="utf-8")
        unfinished.rename(path)


def run(tasks: Path, out: Path, names: list[str], *, parallel: int, elmo: dict[str, str]) -> int:
    """Runs the experiments whose names begin so, all where none is given. -> how many failed"""
    write_data(tasks, out / "data")
    places = {"T": str(tasks), "D": str(out / "data"), "O": str(out), "small": "small"} | elmo
    wanted = [e for e in experiments() if not names or e.name.startswith(tuple(names))]
    if "large" not in elmo:
        print("those with the large biLM need --elmo large=FOLDER", flush=True)
        wanted = [e for e in wanted if "$large" not in e.arguments]
    models = [e for e in wanted if e.kind == "lm"]  # which others start from
    failed = sum(run_one(e, out, places) for e in models)
    with ThreadPoolExecutor(parallel) as pool:
        return failed + sum(pool.map(partial(run_one, out=out, places=places), [e for e in wanted if e not in models]))


def run_one(experiment: Experiment, out: Path, places: dict[str, str]) -> bool:
    """Runs an experiment that is not finished, or goes on with it; what it says goes to OUT/NAME.log. -> it failed"""
    folder = out / experiment.name
    if (folder / "config.json").exists() and not (folder / "run").exists():
        return False
    command = ["train", experiment.kind]
    if (folder / "run").exists():
        command.append("--resume")
    else:
        command += shlex.split(Template(experiment.arguments).substitute(places))
        command += ["--seeds", str(experiment.seeds)] if experiment.seeds > 1 else []
    command += ["--out", str(folder)]
    print(shlex.join(["relmo", *command]), flush=True)
    with (out / f"{experiment.name}.log").open("a", encoding="utf-8") as log:
        done = subprocess.run([sys.executable, "-m", "relmo", *command], stdout=log, stderr=log, check=False)
    if done.returncode:
        print(f"{experiment.name}: failed, see {log.name}", flush=True)
    return done.returncode != 0


def results(out: Path, name: str) -> dict[str, Any] | None:
    """The results of a finished experiment."""
    path = out / SAME.get(name, name) / "config.json"
    return json.loads(path.read_text(encoding="utf-8")).get("results") if path.exists() else None


def with_share(out: Path, name: str, share: float, inputs: str) -> dict[str, Any] | None:
    """The results with a share of the training data."""
    return results(out, f"{name}-{inputs}" if share == 1 else f"{name}-{share:g}-{inputs}")


def tables(out: Path) -> Iterator[str]:
    """Markdown, a line at a time: what is finished."""
    yield "Percent: the mean of several seeds ± their standard deviation (how many), or the figure of one.\n"
    rows = [(task.title, [results(out, f"{name}-{i}") for i in INPUTS]) for name, task in TASKS.items()]
    yield from table("task", list(INPUTS), rows)
    for title, columns in {"layers, ELMo at the input": LAYERS, "where ELMo is": {p: p for p in PLACES}}.items():
        rows = [(TASKS[name].title, [results(out, f"{name}-{key}") for key in columns]) for name in ABLATED]
        yield from table(title, list(columns.values()), rows)
    rows = [
        (f"{TASKS[name].title}, {100 * share:g}%", [with_share(out, name, share, i) for i in INPUTS])
        for name in WHOLE
        for share in [*SHARES, 1]
    ]
    yield from table("share of the training sentences", list(INPUTS), rows)
    rows = [(title, [results(out, f"{name}-{start}") for start in STARTS]) for name, (title, _) in STARTED.items()]
    yield from table("start", ["random", "language model"], rows)


Row = tuple[str, list[dict[str, Any] | None]]


def table(title: str, columns: list[str], rows: list[Row]) -> Iterator[str]:
    """A table of those rows that have results; of STS-B both correlations."""
    lines = []
    for name, found in rows:
        one = next((each for each in found if each), None)
        if one is not None:
            for metric in ("pearson", "spearman") if one["metric"] == "pearson" else (one["metric"],):
                sizes = f"{one['train_examples']:,}", f"{one['valid']}, {one['valid_examples']:,}"
                lines.append([name, *sizes, METRICS[metric], *(score(each, metric) for each in found)])
    if lines:
        head = [title, "examples", "scored on", "score", *columns]
        yield from (f"| {' | '.join(line)} |" for line in (head, ["---"] * len(head), *lines))
        yield ""


def score(found: dict[str, Any] | None, metric: str) -> str:
    """A figure of the validation examples."""
    if not found:
        return ""
    key = f"valid_{metric}"
    if "seeds" not in found:
        return f"{100 * found[key]:.2f}"
    return f"{100 * found[f'{key}_mean']:.2f} ± {100 * found[f'{key}_deviation']:.2f} ({len(found['seeds'])})"


def draw_mixes(out: Path, target: Path) -> None:
    """How much of each layer a task reads at the input and at the output, as in figure 2 of Peters et al. 2018."""
    found = {
        f"{task.title} ({inputs})": mixes
        for name, task in TASKS.items()
        for inputs in ("small", "large")
        if (mixes := (results(out, f"{name}-{inputs}") or {}).get("elmo_mix"))
    }
    if not found:
        return
    figure = Figure(figsize=(8, 1.2 + 0.34 * len(found)), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(1, 2, sharey=True)
    greatest = max(max(mix["weights"]) for mixes in found.values() for mix in mixes.values())
    for panel, place in zip(panels, ("input", "output"), strict=True):
        none = [math.nan] * 3
        shares = [mixes[place]["weights"] if place in mixes else none for mixes in found.values()]
        image = panel.imshow(shares, cmap="viridis", vmin=0, vmax=greatest, aspect="auto")
        for (y, x), share in np.ndenumerate(shares):
            if not math.isnan(share):
                color = "w" if share < 0.7 * greatest else "k"
                panel.text(x, y, f"{share:.2f}", ha="center", va="center", color=color, size=8)
        panel.set(title=f"ELMo at the {place}", xticks=range(3), xticklabels=["characters", "layer 1", "layer 2"])
    panels[0].set(yticks=range(len(found)), yticklabels=list(found))
    figure.colorbar(image, ax=panels, label="share of the mix")
    figure.savefig(target, dpi=120)


def draw_efficiency(out: Path, target: Path) -> None:
    """Scores by the share of the training data, plain and with ELMo, with deviations."""
    figure = Figure(figsize=(9, 3.6), layout="constrained")
    FigureCanvasAgg(figure)
    for panel, name in zip(figure.subplots(1, 2), WHOLE, strict=True):
        for inputs in INPUTS:
            points = [(100 * share, with_share(out, name, share, inputs)) for share in [*SHARES, 1]]
            found = [(x, each, f"valid_{each['metric']}") for x, each in points if each]
            if len(found) > 1:
                means = [100 * each.get(f"{key}_mean", each[key]) for _, each, key in found]
                bars = [100 * each.get(f"{key}_deviation", 0) for _, each, key in found]
                label = "plain" if inputs == "plain" else f"ELMo ({inputs})"
                panel.errorbar([x for x, *_ in found], means, bars, marker="o", capsize=3, label=label)
                panel.set_ylabel(f"{METRICS[found[0][1]['metric']]}, percent")
                panel.legend()
        panel.set(xscale="log", xlabel="percent of the training sentences", title=TASKS[name].title)
        panel.xaxis.set_major_formatter("{x:g}")
        panel.grid(visible=True, alpha=0.3)
    figure.savefig(target, dpi=120)


def main() -> int:
    """Reads the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(dest="verb", required=True)
    running = verbs.add_parser("run", help="run what is not finished")
    running.add_argument("data", type=Path)
    running.add_argument("out", type=Path)
    running.add_argument("names", nargs="*")
    running.add_argument("--parallel", type=int, default=1)
    running.add_argument("--elmo", action="append", default=[], metavar="small=FOLDER|large=FOLDER")
    verbs.add_parser("table", help="print tables").add_argument("out", type=Path)
    drawing = verbs.add_parser("figures", help="draw figures")
    drawing.add_argument("out", type=Path)
    drawing.add_argument("docs", type=Path)
    given = parser.parse_args()
    if given.verb == "run":
        elmo = dict(each.split("=", 1) for each in given.elmo)
        return min(1, run(given.data / "tasks", given.out, given.names, parallel=given.parallel, elmo=elmo))
    if given.verb == "table":
        print("\n".join(tables(given.out)))
    else:
        draw_mixes(given.out, given.docs / "task-mixes.png")
        draw_efficiency(given.out, given.docs / "task-shares.png")
    return 0


if __name__ == "__main__":
    sys.exit(main())
