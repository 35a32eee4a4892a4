"""The results of further tasks, beside the six of `relmo reproduce elmo-table`: tables and figures.

python recipes/task_results.py run DATA OUT [NAME…] [--jobs N] [--elmo large=FOLDER]    those not finished yet
python recipes/task_results.py table OUT                                                Markdown
python recipes/task_results.py figures OUT DOCS                                         mixes, also as task_mixes.json
                                                                                        for the explorer; efficiency

DATA/tasks has the folders of tasks (cola, stsb, pos_ud, …); a NAME may be a beginning, such as snli-. Every training is
the command a user would type, and one that was killed goes on (`reproduce/trainings.py`). OUT may be the folder of the
elmo-table: what both need is trained once. Tables and figures need nothing but the records OUT/NAME.json.
"""

import argparse
import json
import random
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from relmo.analysis.core.show import Table
from relmo.reproduce.elmo_table.bilms import describe_bilms
from relmo.reproduce.elmo_table.pictures import draw_mixes
from relmo.reproduce.elmo_table.plan import PLAIN, TablePlan, own_variant
from relmo.reproduce.elmo_table.rows import ROWS
from relmo.reproduce.elmo_table.tables import PLACES, markdown, mean_mix, seed_scores
from relmo.reproduce.trainings import TrainingRun, Whereabouts, find_results, run_trainings

MIXES = "recipes/task_results.py figures: means over the seeds; characters, layer 1, layer 2"


class Experiment(NamedTuple):
    """`relmo train KIND ARGUMENTS --seed N --out OUT/NAME-seed-N` for each of some seeds. {data} is DATA, {own} what
    `write_data` writes, {out} OUT, {small} and {large} the two biLMs."""

    name: str
    kind: str
    arguments: str
    seeds: int = 1

    def trainings(self) -> list[TrainingRun]:
        """One for each seed."""
        seeds = range(1, 1 + self.seeds)
        return [TrainingRun(f"{self.name}-seed-{k}", f"{self.kind} {self.arguments} --seed {k}") for k in seeds]


class Compared(NamedTuple):
    """A task that is learned plain and with ELMo: what it is called, its files and settings, those of ELMo alone, where
    ELMo is, and how many seeds."""

    title: str
    kind: str
    arguments: str
    elmo: str = ""
    at: str = "input"
    seeds: int = 5


T = "{data}/tasks"
ENCODER = f"{T}/snli/snli_train_subset.tsv --valid {T}/snli/snli_1.0_dev.tsv --preset encoder"
SST5 = f"{T}/sst5/train.txt --valid {T}/sst5/dev.txt"
COLA = f"{T}/cola/in_domain_train.tsv --valid {T}/cola/in_domain_dev.tsv --preset cola"
STSB = f"{T}/stsb/sts-train.csv --valid {T}/stsb/sts-dev.csv --preset stsb"
POS = f"--valid {T}/pos_ud/en_ewt/en_ewt-ud-dev.conllu --preset pos"
UNER = f"--valid {{data}}/{ROWS['ner'].valid} {ROWS['ner'].settings}"
WNUT = f"{T}/ner_wnut17/wnut17train.conll --valid {T}/ner_wnut17/emerging.dev.conll --preset ner"
IMDB = "{own}/imdb-train.tsv --valid {own}/imdb-dev.tsv --batch 64 --tokens-per-batch 32768 --epochs 4"
WHOLE = {"pos": "tasks/pos_ud/en_ewt/en_ewt-ud-train.conllu", "uner": ROWS["ner"].train}

TASKS = {
    "sst5-bcn": Compared(
        "SST-5, BCN", "classifier", f"{SST5} --preset bcn --hidden 300", "--elmo-dropout 0.3", "both", seeds=1
    ),
    "snli-lstm": Compared(
        "SNLI, LSTM", "pairs", f"{ENCODER} --directions 1 --pool final", "--elmo-dropout 0.1", seeds=3
    ),
    "snli-bilstm": Compared("SNLI, biLSTM, maximum", "pairs", ENCODER, "--elmo-dropout 0.1", seeds=3),
    "cola": Compared("CoLA", "classifier", COLA),
    "stsb": Compared("STS-B", "pairs", STSB, "--elmo-dropout 0.1"),
    "pos": Compared("POS, EWT", "tagger", f"{{data}}/{WHOLE['pos']} {POS}"),
    "wnut": Compared("NER, WNUT-17", "tagger", WNUT),
}
INPUTS = {"plain": "", "small": "--elmo {small}", "large": "--elmo {large}"}
SHARED = {"pos": ("POS, EWT", POS), "uner": ("NER, UNER EWT", UNER)}
SHARES = {  # of the training sentences, with batches and epochs that leave room to learn from few
    0.001: "--batch 4 --epochs 100 --validate-every 20 --patience 20",
    0.01: "--batch 8 --epochs 60 --validate-every 48 --patience 20",
    0.1: "--epochs 30",
}
LM = (
    "{own}/imdb.txt --unit word --lowercase --text-per line --vocabulary-size 20000 --embedding 256 --hidden 512 "
    "--dropout 0.3 --epochs 8 --batch 64 --unroll 64"
)
STARTS = {
    "random": "--directions 1 --hidden 512 --word-dim 256 --char-dim 0",
    "init": "--init {out}/reviews-lm-seed-1",
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
            yield Experiment(f"{name}-{inputs}", task.kind, f"{task.arguments} {more}".strip(), task.seeds)
    for name, (_, rest) in SHARED.items():
        for share, few in SHARES.items():
            for inputs in ("plain", "small"):
                arguments = f"{{own}}/{share_file(name, share)} {rest} {few} {INPUTS[inputs]}".strip()
                yield Experiment(f"{name}-{share:g}-{inputs}", "tagger", arguments, 5)
    for name, (_, task_arguments) in STARTED.items():
        for start, more in STARTS.items():
            arguments = f"{task_arguments} --pool final --dropout 0.3 {more}"
            yield Experiment(f"{name}-{start}", "classifier", arguments, 1 if name == "imdb" else 3)


def trainings(name: str) -> list[TrainingRun]:
    """Those of an experiment, by its name; uner-plain and uner-small are the elmo-table's."""
    if name in ("uner-plain", "uner-small"):
        plan, row = TablePlan(bilms=["small"]), ROWS["ner"]
        variant = PLAIN if name == "uner-plain" else own_variant(row, "small")
        return [plan.training("ner", variant, seed) for seed in plan.seeds_of("ner")]
    return next(experiment for experiment in experiments() if experiment.name == name).trainings()


def share_file(name: str, share: float) -> str:
    """The file with a share of a task's training sentences."""
    return f"{name}-{share:g}{Path(WHOLE[name]).suffix}"


def write_data(data: Path, folder: Path) -> None:
    """What no publisher offers as a file: shares of training data, the first of one shuffle; IMDB without markup, every
    tenth review held out, and the text of the others for a language model. Files that are there stay."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, train in WHOLE.items():
        sentences = (data / train).read_text(encoding="utf-8").strip().split("\n\n")
        random.Random(1).shuffle(sentences)
        for share in SHARES:
            few = sentences[: round(share * len(sentences))]
            write(folder / share_file(name, share), "".join(f"{sentence}\n\n" for sentence in few))
    table = (data / "tasks/imdb/train.tsv").read_text(encoding="utf-8").replace("<br />", " ")
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


def run(data: Path, out: Path, names: Sequence[str], *, jobs: int, elmo: dict[str, str]) -> int:
    """Runs the experiments whose names begin so, all where none is given. -> how many trainings failed"""
    write_data(data, out / "own")
    about = describe_bilms({"small": "small"} | elmo)
    places = {name: Whereabouts(source, about[name]) for name, source in ({"small": "small"} | elmo).items()}
    places |= {"data": Whereabouts(str(data)), "own": Whereabouts(str(out / "own")), "out": Whereabouts(str(out))}
    every = [*(e.name for e in experiments()), "uner-plain", "uner-small"]
    wanted = [training for name in every if not names or name.startswith(tuple(names)) for training in trainings(name)]
    if "large" not in elmo:
        say("those with the large biLM need --elmo large=FOLDER")
        wanted = [training for training in wanted if "{large}" not in training.text]
    first = [training for training in wanted if training.text.startswith("lm ")]  # which others start from
    rest = [training for training in wanted if training not in first]
    return sum(len(run_trainings(some, places, out, jobs=jobs, say=say).failed) for some in (first, rest))


def say(line: str) -> None:
    """At once."""
    print(line, flush=True)


def results(out: Path, name: str) -> list[dict[str, Any]]:
    """The results of an experiment, of those seeds that are finished."""
    found = (find_results(training, out, {}) for training in trainings(name))
    return [each for each in found if each is not None]


def with_share(out: Path, name: str, share: float, inputs: str) -> list[dict[str, Any]]:
    """The results with a share of the training data."""
    return results(out, f"{name}-{inputs}" if share == 1 else f"{name}-{share:g}-{inputs}")


def tables(out: Path) -> list[Table]:
    """What is finished."""
    rows = [(task.title, [results(out, f"{name}-{i}") for i in INPUTS]) for name, task in TASKS.items()]
    shares = [
        (f"{title}, {100 * share:g}%", [with_share(out, name, share, i) for i in ("plain", "small")])
        for name, (title, _) in SHARED.items()
        for share in [*SHARES, 1]
    ]
    starts = [(title, [results(out, f"{name}-{start}") for start in STARTS]) for name, (title, _) in STARTED.items()]
    made = [
        table("Further tasks, plain and with ELMo", list(INPUTS), rows),
        table("Shares of the training sentences", ["plain", "small"], shares),
        table("From a random start, and from a language model", ["random", "language model"], starts),
    ]
    return [each for each in made if each.rows]


Row = tuple[str, list[list[dict[str, Any]]]]


def table(title: str, columns: list[str], rows: list[Row]) -> Table:
    """A table of those rows that have results; of STS-B both correlations."""
    lines = []
    for name, found in rows:
        one = next((each[0] for each in found if each), None)
        if one is not None:
            for metric in ("pearson", "spearman") if one["metric"] == "pearson" else (one["metric"],):
                sizes = f"{one['train_examples']:,}", f"{one['valid']}, {one['valid_examples']:,}"
                lines.append([name, *sizes, METRICS[metric], *(score(each, metric) for each in found)])
    return Table(["task", "examples", "scored on", "score", *columns], lines, title)


def score(found: list[dict[str, Any]], metric: str) -> str:
    """A figure of the validation examples, in percent."""
    scores = seed_scores([each[f"valid_{metric}"] for each in found])
    return "" if scores is None else str(scores)


def draw_task_mixes(out: Path, target: Path) -> None:
    """How much of each layer a task reads at the input and at the output, as in figure 2 of Peters et al. 2018."""
    mixes = {
        f"{task.title} ({inputs})": [mean_mix(results(out, f"{name}-{inputs}"), place) for place in PLACES]
        for name, task in TASKS.items()
        for inputs in ("small", "large")
    }
    draw_mixes(mixes, target)


def write_task_mixes(out: Path, target: Path) -> None:
    """The same figures for the explorer, with two decimals."""
    rows: list[dict[str, Any]] = []
    for name, task in TASKS.items():
        for inputs in ("small", "large"):
            found = {place: mean_mix(results(out, f"{name}-{inputs}"), place) for place in PLACES}
            mixes = [
                {"name": place, "shares": [round(share, 2) for share in mix.weights]}
                for place, mix in found.items()
                if mix is not None
            ]
            rows += [{"task": task.title, "bilm": inputs, "mixes": mixes}] if mixes else []
    target.write_text(json.dumps({"source": MIXES, "tasks": rows}) + "\n", encoding="utf-8")


def draw_efficiency(out: Path, target: Path) -> None:
    """Scores by the share of the training data, plain and with ELMo, with deviations."""
    figure = Figure(figsize=(9, 3.6), layout="constrained")
    FigureCanvasAgg(figure)
    for panel, (name, (title, _)) in zip(figure.subplots(1, 2), SHARED.items(), strict=True):
        for inputs in ("plain", "small"):
            points = [(100 * share, with_share(out, name, share, inputs)) for share in [*SHARES, 1]]
            found = [(x, each[0]["metric"], each) for x, each in points if each]
            scores = [seed_scores([one[f"valid_{metric}"] for one in each]) for _, metric, each in found]
            drawn = [(x, each) for (x, *_), each in zip(found, scores, strict=True) if each is not None]
            if len(drawn) > 1:
                label = "plain" if inputs == "plain" else f"ELMo ({inputs})"
                means, bars = [each.mean for _, each in drawn], [each.deviation for _, each in drawn]
                panel.errorbar([x for x, _ in drawn], means, bars, marker="o", capsize=3, label=label)
                panel.set_ylabel(f"{METRICS[found[0][1]]}, percent")
                panel.legend()
        panel.set(xscale="log", xlabel="percent of the training sentences", title=title)
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
    running.add_argument("--jobs", type=int, default=1)
    running.add_argument("--elmo", action="append", default=[], metavar="small=FOLDER|large=FOLDER")
    verbs.add_parser("table", help="print tables").add_argument("out", type=Path)
    drawing = verbs.add_parser("figures", help="draw figures")
    drawing.add_argument("out", type=Path)
    drawing.add_argument("docs", type=Path)
    given = parser.parse_args()
    if given.verb == "run":
        elmo = dict(each.split("=", 1) for each in given.elmo)
        return min(1, run(given.data, given.out, given.names, jobs=given.jobs, elmo=elmo))
    if given.verb == "table":
        print(markdown(tables(given.out)))
    else:
        draw_task_mixes(given.out, given.docs / "task-mixes.png")
        draw_efficiency(given.out, given.docs / "task-shares.png")
        write_task_mixes(given.out, given.docs / "task_mixes.json")
    return 0


if __name__ == "__main__":
    sys.exit(main())
