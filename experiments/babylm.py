"""Parts of babylm.sh: a text of at most so many words, the epochs of its checkpoints, and the table of its scores.

    python -m experiments.babylm text DATA OUT WORDS     OUT/text.txt and OUT/text.json, from DATA/lm/pretrain-[0-7].txt
    python -m experiments.babylm epochs WORDS EPOCHS     the epochs at which the challenge asks for a checkpoint
    python -m experiments.babylm table OUT NAME          the scores in OUT/NAME/scores, beside published ones

- Words are counted as BabyLM counts them, between white space, in the text as it is written (`wc -w OUT/text.txt`).
  10M is 10,000,000.
- Paragraphs are taken from all parts, in proportion to their words and at even distances. Those that share an 8-gram
  with an evaluation text are left out, and so are repetitions (recipes/pretraining_text.py).
- A paragraph is split at a random half of its sentence ends, since the pairs of BLiMP are single sentences.
"""

import hashlib
import json
import random
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from experiments.agreement import BLIMP
from experiments.recipes.pretraining_text import grams, has_common, held_out_grams, split_paragraph, words
from experiments.tables import require_data
from relmo.analysis.core.show import Table
from relmo.cli.terminal import print_message, print_tables
from relmo.disk.outputs import atomic
from relmo.errors import CorpusError, RelmoError, SettingError
from relmo.runs.run import SNAPSHOTS, read_metrics
from relmo.store.folder import write_json

MAX_EPOCHS = 10  # that BabyLM allows, since 2025
MILLION = 1_000_000
BEST = "best"
# Name, words, BLiMP, and the name in SyntaxGym's published.tsv.
PUBLISHED = [
    ("LSTM, BabyLM", "", "63.8", ""),
    ("GPT-2, BabyLM", "10M", "64 to 73", ""),
    ("GPT-2, BabyLM", "100M", "67 to 75", ""),
    ("LSTM, BLLIP", "14M", "", "vanilla_bllip-md"),
    ("LSTM, BLLIP", "42M", "", "vanilla_bllip-lg"),
    ("GPT-2, BLLIP", "42M", "", "gpt-2_bllip-lg-gptbpe"),
    ("LSTM, Wikipedia", "83M", f"{BLIMP['LSTM']}", "grnn"),
]
NOTES = [
    "words seen: words read in training, with repetitions; for published models, the size of the corpus",
    "perplexity: of lm/pretrain-valid.txt, forward, in the model's vocabulary",
    "BLiMP: percent of pairs whose acceptable sentence is more probable, mean of the paradigms, all pairs",
    "known words: BLiMP, pairs whose differing words are all in the vocabulary",
    "SyntaxGym: percent of items for which all predictions hold, mean of the suites",
    "published: models of the BabyLM challenge, on BLiMP filtered to the words of its corpus, which is another text; "
    "LSTM and GPT-2 on BLLIP (Hu et al. 2020); LSTM of Gulordava et al. 2018, on all pairs (Warstadt et al. 2020)",
]


def parse_words(text: str) -> int:
    """Return a number of words such as 10M or 123456."""
    digits, factor = (text[:-1], MILLION) if text.endswith("M") else (text, 1)
    if not digits.isdecimal() or int(digits) == 0:
        raise SettingError(f"WORDS must be a number of words, such as 10M or 500000, not {text!r}")
    return int(digits) * factor


def format_words(count: float) -> str:
    """Return a number of words in millions, to three digits."""
    return f"{float(f'{count / MILLION:.3g}'):,g}M"


def count_words(text: str) -> int:
    """Return the number of words between white space, as `wc -w` counts them; for it, a word joiner is white space."""
    return len(text.replace("\u2060", " ").split())


def read_lines(parts: list[Path]) -> Iterator[tuple[Path, str]]:
    """Yield the lines of all parts."""
    for part in parts:
        with part.open(encoding="utf-8") as file:
            for line in file:
                yield part, line


def sample_paragraphs(parts: list[Path], num_words: int, held_out: np.ndarray) -> Iterator[tuple[Path, list[str]]]:
    """Yield paragraphs, as lines, of at most `num_words` words together."""
    total = sum(count_words(line) for _, line in read_lines(parts))
    num_read = num_taken = 0
    digests: set[bytes] = set()
    rng = random.Random(1)
    for part, line in read_lines(parts):
        # Whether a paragraph is due follows from the text before it, so that its length has no influence.
        is_due = num_taken * total <= num_words * num_read
        num_read += count_words(line)
        if not is_due or not line.strip():
            continue
        tokens = words(line)
        digest = hashlib.blake2b(" ".join(tokens).encode(), digest_size=8).digest()
        if digest in digests or has_common(grams(tokens), held_out):
            continue
        lines = [sentence.strip() for sentence in split_paragraph(line.strip(), rng)]
        size = sum(count_words(sentence) for sentence in lines)
        if num_taken + size <= num_words:
            digests.add(digest)
            num_taken += size
            yield part, lines


def write_text(data: Path, out: Path, num_words: int) -> None:
    """Write the text and the number of its words, unless they exist."""
    note = out / "text.json"
    if not note.exists():
        parts = sorted(require_data(data, "lm", "the training text").glob("pretrain-[0-7].txt"))
        counts = dict.fromkeys((part.name for part in parts), 0)
        with atomic(out / "text.txt") as temporary, temporary.open("w", encoding="utf-8") as file:
            for part, lines in sample_paragraphs(parts, num_words, held_out_grams(data, ())[0]):
                counts[part.name] += sum(count_words(line) for line in lines)
                file.write("\n".join(lines) + "\n")
            count = sum(counts.values())
            if count < 0.99 * num_words - 1000:  # a paragraph that does not fit is left out
                raise CorpusError(f"{data / 'lm'}: has {count:,} words that may be used, not {num_words:,}")
        write_json(note, {"limit": num_words, "words": count, "parts": counts})
    sizes = json.loads(note.read_text(encoding="utf-8"))
    if sizes["limit"] != num_words:
        raise SettingError(f"{note}: is of a text of {sizes['limit']:,} words, not {num_words:,}; use another folder")
    print_message(f"{out / 'text.txt'}: {sizes['words']:,} words, of {num_words:,} allowed")


def checkpoint_epochs(num_words: int, epochs: float) -> list[float]:
    """Return the epochs at which 1M, 2M … 10M, 20M … 100M, 200M … words have been seen. With fewer than 10M words, the
    first is a tenth of them."""
    if not 0 < epochs <= MAX_EPOCHS:
        raise SettingError(f"EPOCHS must be above 0 and at most {MAX_EPOCHS}, the limit of BabyLM, not {epochs:g}")
    unit = min(MILLION, num_words / 10)
    marks = [i * unit * 10**power / num_words for power in range(6) for i in range(1, 10)]
    return [mark for mark in marks if mark <= epochs]


def make_table(out: Path, name: str) -> Table:
    """Return the scores of a model's checkpoints, and of its best weights, above published scores."""
    num_words = json.loads((out / "text.json").read_text(encoding="utf-8"))["words"]
    model, scores = out / name / "model", out / name / "scores"
    records = list(read_metrics(model / "metrics.jsonl"))
    best = min((record for record in records if "valid" in record), key=lambda record: record["valid"])["epoch"]
    epochs = {path.name: float(path.name) for path in model.glob(f"{SNAPSHOTS}/*")}
    rows, means = [], {}
    for stage, epoch in [*sorted(epochs.items(), key=lambda item: item[1]), (BEST, best)]:
        texts, suites = (json.loads((scores / f"{stage}-{part}.json").read_bytes()) for part in ("text", "suites"))
        means = {row["source"]: row for row in suites["suite"]["rows"] if not row["group"]}
        perplexity = texts["total"].get("forward_perplexity", texts["total"]["perplexity"])
        blimp, gym = means["BLiMP"], means["SyntaxGym"]
        figures = [perplexity, blimp["accuracy"], blimp["known_accuracy"], gym["accuracy"]]
        label = "best on held-out text" if stage == BEST else f"epoch {epoch:g}"
        cells = ["" if figure is None else f"{figure:.1f}" for figure in figures]
        rows.append([label, format_words(epoch * num_words), *cells])
    for label, count, accuracy, peer in PUBLISHED:
        share = means["SyntaxGym"]["published"].get(peer)
        rows.append([f"published: {label}", count, "", accuracy, "", "" if share is None else f"{share:.1f}"])
    notes = list(NOTES)
    if records[-1]["epoch"] > MAX_EPOCHS:
        notes.append(f"trained for {records[-1]['epoch']:.1f} epochs; the challenge allows {MAX_EPOCHS}")
    columns = ["model", "words seen", "perplexity", "BLiMP", "known words", "SyntaxGym"]
    return Table(columns, rows, f"{name}, trained on {num_words:,} words", notes)


def main(arguments: list[str]) -> None:
    """Run a command of the module's docstring."""
    commands: dict[str, Any] = {
        "text": lambda data, out, count: write_text(Path(data), Path(out), parse_words(count)),
        "epochs": lambda count, epochs: print(
            *(f"{epoch:.6g}" for epoch in checkpoint_epochs(parse_words(count), float(epochs))), sep=","
        ),
        "table": lambda out, name: print_tables(make_table(Path(out), name)),
    }
    try:
        commands[arguments[0]](*arguments[1:])
    except RelmoError as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main(sys.argv[1:])
