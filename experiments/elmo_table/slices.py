"""Tiny files in the formats of the six tasks, for `--reduced`: they test that everything runs, nothing else."""

import json
import re
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import islice
from pathlib import Path

from experiments.elmo_table.rows import ROWS
from relmo.disk.outputs import atomic
from relmo.errors import CorpusError
from relmo.text.corpus import read_lines

EXAMPLES = {"train": 40, "valid": 20}
DOCUMENTS = {"train": 3, "valid": 1}  # for coreference


def write_slices(data: Path, rows: Sequence[str], target: Path) -> None:
    """Write the beginning of each file of these rows to the same path inside another folder."""
    for row in rows:
        take_slice = SLICERS[ROWS[row].kind]
        for part, file in (("train", ROWS[row].train), ("valid", ROWS[row].valid)):
            count = (DOCUMENTS if row == "coref" else EXAMPLES)[part]
            with atomic(target / file) as temporary:
                temporary.write_text(take_slice(data / file, count), encoding="utf-8")


def _lines(path: Path) -> Iterator[str]:
    return (line.text for line in read_lines(path))


def take_lines(path: Path, count: int) -> str:
    """Return the first `count` lines and one more, which may be a header: one example per line."""
    return "".join(f"{line}\n" for line in islice(_lines(path), count + 1))


def take_blocks(path: Path, count: int, end: str) -> str:
    """Return the first `count` examples of several lines, the last of which matches `end`."""
    lines, num_examples = [], 0
    for line in _lines(path):
        lines.append(line)
        num_examples += re.match(end, line) is not None
        if num_examples == count:
            break
    return "".join(f"{line}\n" for line in lines)


def take_questions(path: Path, count: int) -> str:
    """Return the first passages of a SQuAD file with at least `count` questions together."""
    try:
        articles = json.loads(path.read_text(encoding="utf-8"))["data"]
        passages, num_questions = [], 0
        for passage in (passage for article in articles for passage in article["paragraphs"]):
            if num_questions >= count:
                break
            passages.append(passage)
            num_questions += len(passage["qas"])
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise CorpusError(f"{path}: not in the format of SQuAD ({error!r})") from error
    return json.dumps({"version": "1.1", "data": [{"title": "", "paragraphs": passages}]})


SLICERS: dict[str, Callable[[Path, int], str]] = {
    "reader": take_questions,
    "pairs": take_lines,
    "srl": take_lines,
    "coref": partial(take_blocks, end=r"#\s*end document"),
    "tagger": partial(take_blocks, end=r"\s*$"),
    "classifier": take_lines,
}
