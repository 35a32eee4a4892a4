"""The results of sequence to sequence: translation, sums, copies and reversals, with attention and without.

python recipes/seq2seq_results.py run DATA OUT [NAME…] [--jobs N] [--minutes M]    those not finished yet
python recipes/seq2seq_results.py table OUT                                        Markdown: scores, and by length
python recipes/seq2seq_results.py pack OUT FOLDER                                  the two models that ship, in int8

DATA/tasks has multi30k and tatoeba; a NAME may be a beginning, such as reverse-. Every training is the command a user
would type, and one that was killed goes on (`reproduce/trainings.py`).
"""

import argparse
import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from relmo.analysis.core.show import Table
from relmo.reproduce.elmo_table.tables import markdown
from relmo.reproduce.trainings import TrainingRun, Whereabouts, find_results, run_trainings
from relmo.text.readers.parallel import read_parallel

M30K = "{data}/tasks/multi30k"
FIXED = "--attention none --context every"


class Pairs(NamedTuple):
    """What is learned: its title, files and settings, the networks that are compared (a name and their settings), and
    whether `relmo make` writes longer sources too."""

    title: str
    text: str
    networks: dict[str, str]
    longer: bool = False


class Length(NamedTuple):
    """Of sources: whether they are longer than those learned from, and the least and the most units."""

    longer: bool
    least: int
    most: int | None


def made(name: str) -> str:
    """The files that `relmo make` has written, and the preset for them."""
    preset = "addition" if name in ("addition", "sums") else "strings"
    return f"{{own}}/{name}/train.tsv --valid {{own}}/{name}/held-out.tsv --preset {preset}"


BOTH = {"attention": "", "one-vector": FIXED}
PAIRS = {
    "multi30k": Pairs(
        "Multi30k, English to German",
        f"{M30K}/train.en,{M30K}/train.de --valid {M30K}/val.en,{M30K}/val.de --preset multi30k",
        {
            "attention": "",
            "general": "--attention general",
            "input-feeding": "--input-feeding --dropout 0.3 --epochs 14",
            "one-vector": f"{FIXED} --dropout 0.3",
        },
    ),
    "tatoeba": Pairs(
        "Tatoeba, English to French",
        "{own}/tatoeba/train.tsv --valid {own}/tatoeba/held-out.jsonl --preset tatoeba",
        {"attention": "", "one-vector": f"{FIXED} --no-input-feeding"},
    ),
    "addition": Pairs("Sums of up to 4 digits", made("addition"), BOTH, longer=True),
    "sums": Pairs(
        "The same, three times as many pairs", made("sums"), {"attention": "--hidden 64 --epochs 12"}, longer=True
    ),
    "copy": Pairs("Copies of up to 10 letters", made("copy"), BOTH, longer=True),
    "reverse": Pairs("Reversals of up to 10 letters", made("reverse"), BOTH, longer=True),
}
MADE = {
    "addition": "arithmetic --size 4",
    "sums": "arithmetic --size 4 --count 150000",
    "copy": "copy --size 10",
    "reverse": "reverse --size 10",
}
HELD_OUT = "2000"  # of Tatoeba's sources
SHIPPED = {"english-french": "tatoeba-attention", "addition": "sums-attention"}
OPENED = {  # what the explorer offers first: held-out sources from short to long, some of which come out wrong
    "english-french": (
        "Tom has a blue car.",
        "I don't have a pencil.",
        "Green doesn't go with red.",
        "He danced all night long.",
        "The concert has already started.",
        "I don't talk to him anymore.",
        "I usually don't wear a tie.",
        "Tom almost never eats fruit.",
        "Yesterday, he told me the truth.",
        "I have three times as many books as Tom does.",
        "Tom wasn't stupid enough to tell Mary what he really thought.",
        "She was asked to convince him to get his son or someone else to paint the house.",
    ),
    "addition": ("3 + 5 = ?", "128 + 65 = ?", "88 + 276 = ?", "1219 + 7 = ?", "604 + 4146 = ?", "8248 + 2104 = ?"),
}
CARDS = {
    "english-french": "English to French, learned from the sentence pairs of Tatoeba (CC BY 2.0 FR, tatoeba.org)",
    "addition": "Sums of numbers of up to four digits, as text, learned from 150,000 that `relmo make` wrote",
}


def trainings() -> dict[str, TrainingRun]:
    """All of them, by name."""
    every = [
        TrainingRun(f"{name}-{network}", f"seq2seq {pairs.text} {settings}".strip())
        for name, pairs in PAIRS.items()
        for network, settings in pairs.networks.items()
    ]
    return {training.name: training for training in every}


def write_data(data: Path, own: Path) -> None:
    """Tatoeba in two parts, and the tables of `relmo make`. Folders that are there stay."""
    for name, what in MADE.items():
        if not (own / name).exists():
            relmo("make", *what.split(), "--out", str(own / name), "--quiet")
    if not (own / "tatoeba").exists():
        split = [str(Path(__file__).with_name("split_pairs.py")), str(data / "tasks/tatoeba/fra.txt")]
        subprocess.run([sys.executable, *split, "--held-out", HELD_OUT, "--out", str(own / "tatoeba")], check=True)


def relmo(*arguments: str) -> str:
    """What a command prints."""
    done = subprocess.run([sys.executable, "-m", "relmo", *arguments], check=True, stdout=subprocess.PIPE, text=True)
    return done.stdout


def run(data: Path, out: Path, names: Sequence[str], *, jobs: int, minutes: float | None) -> int:
    """Trains those whose names begin so, all where none is given; then scores sources that are longer than any learned
    from. -> how many trainings failed"""
    write_data(data, out / "own")
    places = {"data": Whereabouts(str(data)), "own": Whereabouts(str(out / "own"))}
    wanted = [each for name, each in trainings().items() if not names or name.startswith(tuple(names))]
    seconds = None if minutes is None else 60 * minutes
    done = run_trainings(wanted, places, out, jobs=jobs, seconds=seconds, say=say)
    for name in done.results:
        own = name.split("-")[0]
        scores = out / name / "longer.json"
        if PAIRS[own].longer and (out / name).exists() and not scores.exists():
            scores.write_text(relmo("evaluate", str(out / name), str(out / "own" / own / "longer.tsv"), "--json"))
    return len(done.failed)


def say(line: str) -> None:
    """At once."""
    print(line, flush=True)


def tables(out: Path) -> list[Table]:
    """What is finished."""
    found = {name: find_results(training, out, {}) for name, training in trainings().items()}
    columns = ["what", "network", "parameters", "epochs", "seconds", "BLEU", "chrF", "exact"]
    rows = [
        [pairs.title, network, *figures(results)]
        for name, pairs in PAIRS.items()
        for network in pairs.networks
        if (results := found[f"{name}-{network}"]) is not None
    ]
    lengths = [by_length(out, name, pairs) for name, pairs in PAIRS.items()]
    return [Table(columns, rows, "Sequence to sequence"), *(table for table in lengths if table.rows)]


def figures(results: dict[str, Any]) -> list[str]:
    """Of the held-out pairs, in percent."""
    scores = [f"{100 * results[f'valid_{name}']:.1f}" for name in ("bleu", "chrf", "exact")]
    return [f"{results['parameters']:,}", f"{results['epochs']:g}", f"{results['seconds']:.0f}", *scores]


def by_length(out: Path, name: str, pairs: Pairs) -> Table:
    """The score that matters by the source's length in units, a column for each network: held-out pairs, then sources
    that are longer than any learned from. Of those that `relmo make` writes, how much is right before the first mistake
    stands behind it."""
    texts: dict[Length, int] = {}
    columns: dict[str, dict[Length, str]] = {}
    for network in pairs.networks:
        column = columns[network] = {}
        for length, row in found_lengths(out / f"{name}-{network}"):
            texts[length] = row["texts"]
            right = f"; {100 * row['prefix']:.1f}" if pairs.longer else ""
            column[length] = f"{100 * row['score']:.1f}{right}"
    columns = {network: column for network, column in columns.items() if column}
    lines = [
        [shown(length), f"{texts[length]:,}", *(column.get(length, "") for column in columns.values())]
        for length in sorted(texts)
    ]
    title = f"{pairs.title}: by the source's length" + (" (exact; right before the first mistake)" * pairs.longer)
    return Table(["source units", "texts", *columns], lines, title)


def found_lengths(folder: Path) -> Iterator[tuple[Length, dict[str, Any]]]:
    """The rows of a model's reports by length."""
    for longer, path in enumerate([folder / "report.json", folder / "longer.json"]):
        report = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {"by_length": []}
        for part in report.get("files", [report]):
            for row in part["by_length"]:
                yield Length(bool(longer), row["least"], row["most"]), row


def shown(length: Length) -> str:
    """A range of lengths."""
    units = f"{length.least} and more" if length.most is None else f"{length.least} to {length.most}"
    return f"{units}, longer than learned" if length.longer else units


def pack(out: Path, folder: Path) -> None:
    """The two models that ship, a quarter of their size, with their cards."""
    for name, training in SHIPPED.items():
        facts = (out / training / "README.md").read_text(encoding="utf-8").split("\n", 2)[2]
        card = out / f"{name}.md"
        card.write_text(f"# {name}\n\n{CARDS[name]}, by recipes/seq2seq_results.py.\n\n{facts}", encoding="utf-8")
        relmo("convert", str(out / training), str(folder / name), "--precision", "int8", "--card", str(card))
        write_examples(out / "own", name, folder / name / "examples.tsv")


def write_examples(own: Path, name: str, path: Path) -> None:
    """The pairs that the explorer opens a model with."""
    held_out = own / ("tatoeba/held-out.jsonl" if name == "english-french" else "sums/held-out.tsv")
    known = {pair.source: pair.targets[0] for pair in read_parallel(str(held_out))}
    rows = [f"{source}\t{known[source]}\n" for source in OPENED[name]]
    path.write_text("source\ttarget\n" + "".join(rows), encoding="utf-8")


def main() -> int:
    """Reads the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(dest="verb", required=True)
    running = verbs.add_parser("run", help="run what is not finished")
    running.add_argument("data", type=Path)
    running.add_argument("out", type=Path)
    running.add_argument("names", nargs="*")
    running.add_argument("--jobs", type=int, default=1)
    running.add_argument("--minutes", type=float)
    verbs.add_parser("table", help="print tables").add_argument("out", type=Path)
    packing = verbs.add_parser("pack", help="write the models that ship")
    packing.add_argument("out", type=Path)
    packing.add_argument("folder", type=Path)
    given = parser.parse_args()
    if given.verb == "run":
        return min(1, run(given.data, given.out, given.names, jobs=given.jobs, minutes=given.minutes))
    if given.verb == "table":
        print(markdown(tables(given.out)))
    else:
        pack(given.out, given.folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
