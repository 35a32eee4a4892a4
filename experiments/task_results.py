"""Tables and figures of further tasks, beside the six of `python -m experiments elmo-table`.

    python -m experiments.task_results run DATA OUT [NAME…] [--jobs N] [--elmo large=FOLDER]    unfinished trainings
    python -m experiments.task_results table OUT                                                Markdown
    python -m experiments.task_results figures OUT DOCS     layer weights (also task_mixes.json for the explorer),
    shares

DATA/tasks has the folders of the tasks (cola, stsb, pos_ud, …); a NAME may be a prefix, such as snli-. Every training
is a `relmo train` command and resumes if it was killed (`experiments/trainings.py`). OUT may be the folder of the
elmo-table: common trainings run once. Tables and figures need only the records OUT/NAME.json.
"""

import argparse
import json
import random
import sys
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from experiments.elmo_table.figures import draw_mixes
from experiments.elmo_table.plan import PLAIN, TablePlan, default_variant
from experiments.elmo_table.report import describe_bilms
from experiments.elmo_table.rows import ROWS
from experiments.elmo_table.tables import PLACES, average_mix, average_scores, to_markdown
from experiments.trainings import Location, TrainingRun, find_results, run_trainings
from relmo.analysis.core.show import Table, save_figure

MIXES = "experiments/task_results.py figures: means over the seeds; characters, layer 1, layer 2"


class Experiment(NamedTuple):
    """`relmo train KIND ARGUMENTS --seed N --out OUT/NAME-seed-N` for several seeds. {data} is DATA, {own} the folder
    of `write_data`, {out} OUT, {small} and {large} the two biLMs."""

    name: str
    kind: str
    arguments: str
    seeds: int = 1

    def trainings(self) -> list[TrainingRun]:
        """Return one training per seed."""
        seeds = range(1, 1 + self.seeds)
        return [TrainingRun(f"{self.name}-seed-{k}", f"{self.kind} {self.arguments} --seed {k}") for k in seeds]


class TaskSpec(NamedTuple):
    """Task that is trained plain and with ELMo: title, files and settings, settings of ELMo, place of ELMo, seeds."""

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
FULL_DATA = {"pos": "tasks/pos_ud/en_ewt/en_ewt-ud-train.conllu", "uner": ROWS["ner"].train}

TASKS = {
    "sst5-bcn": TaskSpec(
        "SST-5, BCN", "classifier", f"{SST5} --preset bcn --hidden 300", "--elmo-dropout 0.3", "both", seeds=1
    ),
    "snli-lstm": TaskSpec(
        "SNLI, LSTM", "pairs", f"{ENCODER} --directions 1 --pool final", "--elmo-dropout 0.1", seeds=3
    ),
    "snli-bilstm": TaskSpec("SNLI, biLSTM, maximum", "pairs", ENCODER, "--elmo-dropout 0.1", seeds=3),
    "cola": TaskSpec("CoLA", "classifier", COLA),
    "stsb": TaskSpec("STS-B", "pairs", STSB, "--elmo-dropout 0.1"),
    "pos": TaskSpec("POS, EWT", "tagger", f"{{data}}/{FULL_DATA['pos']} {POS}"),
    "wnut": TaskSpec("NER, WNUT-17", "tagger", WNUT),
}
INPUTS = {"plain": "", "small": "--elmo {small}", "large": "--elmo {large}"}
SHARE_TASKS = {"pos": ("POS, EWT", POS), "uner": ("NER, UNER EWT", UNER)}
SHARES = {  # of the training sentences, with batch sizes and epochs for few examples
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
START_TASKS = {
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


def list_experiments() -> Iterator[Experiment]:
    """Yield all experiments, beginning with the language model that others are initialised from."""
    yield Experiment("reviews-lm", "lm", LM)
    for name, task in TASKS.items():
        for inputs, elmo in INPUTS.items():
            elmo_flags = f"{elmo} --elmo-at {task.at} {task.elmo}" if elmo else ""
            yield Experiment(f"{name}-{inputs}", task.kind, f"{task.arguments} {elmo_flags}".strip(), task.seeds)
    for name, (_, settings) in SHARE_TASKS.items():
        for share, share_settings in SHARES.items():
            for inputs in ("plain", "small"):
                arguments = f"{{own}}/{share_file(name, share)} {settings} {share_settings} {INPUTS[inputs]}".strip()
                yield Experiment(f"{name}-{share:g}-{inputs}", "tagger", arguments, 5)
    for name, (_, task_arguments) in START_TASKS.items():
        for start, start_settings in STARTS.items():
            arguments = f"{task_arguments} --pool final --dropout 0.3 {start_settings}"
            yield Experiment(f"{name}-{start}", "classifier", arguments, 1 if name == "imdb" else 3)


def list_trainings(name: str) -> list[TrainingRun]:
    """Return the trainings of an experiment; uner-plain and uner-small are those of the elmo-table."""
    if name in ("uner-plain", "uner-small"):
        plan, row = TablePlan(bilms=["small"]), ROWS["ner"]
        variant = PLAIN if name == "uner-plain" else default_variant(row, "small")
        return [plan.training("ner", variant, seed) for seed in plan.row_seeds("ner")]
    return next(experiment for experiment in list_experiments() if experiment.name == name).trainings()


def share_file(name: str, share: float) -> str:
    """Return the name of the file with a share of a task's training sentences."""
    return f"{name}-{share:g}{Path(FULL_DATA[name]).suffix}"


def write_data(data: Path, folder: Path) -> None:
    """Write shares of training data (the first sentences of one shuffle), IMDB without markup and with every tenth
    review held out, and the text of the other reviews for a language model. Existing files are kept."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, train in FULL_DATA.items():
        sentences = (data / train).read_text(encoding="utf-8").strip().split("\n\n")
        random.Random(1).shuffle(sentences)
        for share in SHARES:
            part = sentences[: round(share * len(sentences))]
            write_new(folder / share_file(name, share), "".join(f"{sentence}\n\n" for sentence in part))
    table = (data / "tasks/imdb/train.tsv").read_text(encoding="utf-8").replace("<br />", " ")
    header, *reviews = table.strip("\n").split("\n")  # splitlines would cut at other characters too
    dev_reviews, train_reviews = reviews[9::10], [review for i, review in enumerate(reviews) if i % 10 != 9]
    write_new(folder / "imdb-dev.tsv", "\n".join([header, *dev_reviews]) + "\n")
    write_new(folder / "imdb-train.tsv", "\n".join([header, *train_reviews]) + "\n")
    random.Random(1).shuffle(train_reviews)  # the language model validates on the end of its text
    write_new(folder / "imdb.txt", "".join(review.split("\t")[-1].strip() + "\n" for review in train_reviews))


def write_new(path: Path, text: str) -> None:
    """Write a file atomically unless it exists."""
    if not path.exists():
        temporary = path.with_name(f"{path.name}.new")
        temporary.write_text(text, encoding="utf-8")
        temporary.rename(path)


def run(data: Path, out: Path, names: Sequence[str], *, jobs: int, elmo: dict[str, str]) -> int:
    """Run the experiments with these name prefixes, or all; return the number of failed trainings."""
    write_data(data, out / "own")
    sources = {"small": "small"} | elmo
    descriptions = describe_bilms(sources)
    locations = {name: Location(source, descriptions[name]) for name, source in sources.items()}
    locations |= {"data": Location(str(data)), "own": Location(str(out / "own")), "out": Location(str(out))}
    all_names = [*(experiment.name for experiment in list_experiments()), "uner-plain", "uner-small"]
    selected = [name for name in all_names if not names or name.startswith(tuple(names))]
    trainings = [training for name in selected for training in list_trainings(name)]
    print_now = partial(print, flush=True)
    if "large" not in elmo:
        print_now("trainings with the large biLM need --elmo large=FOLDER")
        trainings = [training for training in trainings if "{large}" not in training.text]
    language_models = [training for training in trainings if training.text.startswith("lm ")]  # initialise others
    tasks = [training for training in trainings if training not in language_models]
    return sum(
        len(run_trainings(group, locations, out, jobs=jobs, on_message=print_now).failed)
        for group in (language_models, tasks)
    )


def collect(out: Path, name: str) -> list[dict[str, Any]]:
    """Return the results of the finished seeds of an experiment."""
    results = (find_results(training, out, {}) for training in list_trainings(name))
    return [entry for entry in results if entry is not None]


def collect_share(out: Path, name: str, share: float, inputs: str) -> list[dict[str, Any]]:
    """Return the results with a share of the training data."""
    return collect(out, f"{name}-{inputs}" if share == 1 else f"{name}-{share:g}-{inputs}")


def make_tables(out: Path) -> list[Table]:
    """Return tables of the finished experiments."""
    rows = [(task.title, [collect(out, f"{name}-{i}") for i in INPUTS]) for name, task in TASKS.items()]
    shares = [
        (f"{title}, {100 * share:g}%", [collect_share(out, name, share, i) for i in ("plain", "small")])
        for name, (title, _) in SHARE_TASKS.items()
        for share in [*SHARES, 1]
    ]
    starts = [
        (title, [collect(out, f"{name}-{start}") for start in STARTS]) for name, (title, _) in START_TASKS.items()
    ]
    tables = [
        make_table("Further tasks, plain and with ELMo", list(INPUTS), rows),
        make_table("Shares of the training sentences", ["plain", "small"], shares),
        make_table("Random initialisation, and from a language model", ["random", "language model"], starts),
    ]
    return [table for table in tables if table.rows]


Row = tuple[str, list[list[dict[str, Any]]]]


def make_table(title: str, columns: list[str], rows: list[Row]) -> Table:
    """Return a table of the rows with results; both correlations for STS-B."""
    lines = []
    for name, cells in rows:
        example = next((results[0] for results in cells if results), None)
        if example is None:
            continue
        for metric in ("pearson", "spearman") if example["metric"] == "pearson" else (example["metric"],):
            sizes = f"{example['train_examples']:,}", f"{example['valid']}, {example['valid_examples']:,}"
            scores = [average_scores([entry[f"valid_{metric}"] for entry in results]) for results in cells]
            lines.append([name, *sizes, METRICS[metric], *("" if score is None else str(score) for score in scores)])
    return Table(["task", "examples", "scored on", "score", *columns], lines, title)


def draw_task_mixes(out: Path, target: Path) -> None:
    """Draw the layer weights at the input and at the output, as in figure 2 of Peters et al. 2018."""
    mixes = {
        f"{task.title} ({inputs})": [average_mix(collect(out, f"{name}-{inputs}"), place) for place in PLACES]
        for name, task in TASKS.items()
        for inputs in ("small", "large")
    }
    draw_mixes(mixes, target)


def write_task_mixes(out: Path, target: Path) -> None:
    """Write the same weights for the explorer, with two decimals."""
    rows: list[dict[str, Any]] = []
    for name, task in TASKS.items():
        for inputs in ("small", "large"):
            by_place = {place: average_mix(collect(out, f"{name}-{inputs}"), place) for place in PLACES}
            mixes = [
                {"name": place, "shares": [round(share, 2) for share in mix.weights]}
                for place, mix in by_place.items()
                if mix is not None
            ]
            rows += [{"task": task.title, "bilm": inputs, "mixes": mixes}] if mixes else []
    target.write_text(json.dumps({"source": MIXES, "tasks": rows}) + "\n", encoding="utf-8")


class SharePanel(NamedTuple):
    """Scores by the share of the training sentences, both in percent: (share, mean, deviation) of each curve."""

    metric: str
    curves: dict[str, list[tuple[float, float, float]]]


def collect_efficiency(out: Path) -> dict[str, SharePanel]:
    """Return the panels of `draw_efficiency` from the records of the trainings."""
    panels = {}
    for name, (title, _) in SHARE_TASKS.items():
        label, curves = "", {}
        for inputs in ("plain", "small"):
            points = []
            for share in [*SHARES, 1]:
                results = collect_share(out, name, share, inputs)
                metric = results[0]["metric"] if results else ""
                scores = average_scores([entry[f"valid_{metric}"] for entry in results])
                if scores is not None:
                    points.append((100 * share, scores.mean, scores.deviation))
                    label = METRICS[metric]
            curves["no ELMo" if inputs == "plain" else f"ELMo ({inputs})"] = points
        panels[title] = SharePanel(label, curves)
    return panels


def draw_efficiency(panels: dict[str, SharePanel], target: Path) -> None:
    """Draw scores by the share of the training data, with and without ELMo, with standard deviations."""
    with save_figure(target, 7, 4.6) as figure:
        for axes, (title, panel) in zip(figure.subplots(1, len(panels)), panels.items(), strict=True):
            for label, points in panel.curves.items():
                if len(points) > 1:
                    shares, means, deviations = zip(*points, strict=True)
                    axes.errorbar(shares, means, deviations, marker="o", capsize=3, label=label)
                    axes.legend(loc="lower right")
            axes.set(xscale="log", xlabel="training sentences (%)", ylabel=f"{panel.metric} (%)", title=title)
            axes.xaxis.set_major_formatter("{x:g}")
            axes.grid(visible=True)


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(dest="verb", required=True)
    running = verbs.add_parser("run", help="run unfinished trainings")
    running.add_argument("data", type=Path)
    running.add_argument("out", type=Path)
    running.add_argument("names", nargs="*")
    running.add_argument("--jobs", type=int, default=1)
    running.add_argument("--elmo", action="append", default=[], metavar="small=FOLDER|large=FOLDER")
    verbs.add_parser("table", help="print tables").add_argument("out", type=Path)
    drawing = verbs.add_parser("figures", help="draw figures")
    drawing.add_argument("out", type=Path)
    drawing.add_argument("docs", type=Path)
    arguments = parser.parse_args()
    if arguments.verb == "run":
        elmo = dict(bilm.split("=", 1) for bilm in arguments.elmo)
        return min(1, run(arguments.data, arguments.out, arguments.names, jobs=arguments.jobs, elmo=elmo))
    if arguments.verb == "table":
        print(to_markdown(make_tables(arguments.out)))
    else:
        draw_task_mixes(arguments.out, arguments.docs / "task-mixes.png")
        draw_efficiency(collect_efficiency(arguments.out), arguments.docs / "task-shares.png")
        write_task_mixes(arguments.out, arguments.docs / "task_mixes.json")
    return 0


if __name__ == "__main__":
    sys.exit(main())
