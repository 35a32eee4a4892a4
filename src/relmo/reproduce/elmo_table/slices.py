"""Tiny files in the layouts of the six tasks: the beginning of each file, for a table that is trained in minutes on a
CPU. It shows that everything runs, and nothing else."""

import json
import re
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import islice
from pathlib import Path

from relmo.disk.outputs import atomic
from relmo.errors import CorpusError
from relmo.reproduce.elmo_table.rows import ROWS
from relmo.text.corpus import read_lines

EXAMPLES = {"train": 40, "valid": 20}
DOCUMENTS = {"train": 3, "valid": 1}  # of coreference


def write_slices(data: Path, rows: Sequence[str], target: Path) -> None:
    """The beginning of each file of these rows, under the same path inside another folder."""
    for row in rows:
        beginning = BEGINNINGS[ROWS[row].kind]
        for part, file in (("train", ROWS[row].train), ("valid", ROWS[row].valid)):
            count = (DOCUMENTS if row == "coref" else EXAMPLES)[part]
            with atomic(target / file) as temporary:
                temporary.write_text(beginning(data / file, count), encoding="utf-8")


def _lines(path: Path) -> Iterator[str]:
    return (line.text for line in read_lines(path))


def first_lines(path: Path, count: int) -> str:
    """A line an example, and names of columns, where there are such, in the first."""
    return "".join(f"{line}\n" for line in islice(_lines(path), count + 1))


def first_stretches(path: Path, count: int, end: str) -> str:
    """Several lines an example, the last of which matches."""
    found, examples = [], 0
    for line in _lines(path):
        found.append(line)
        examples += re.match(end, line) is not None
        if examples == count:
            break
    return "".join(f"{line}\n" for line in found)


def first_questions(path: Path, count: int) -> str:
    """SQuAD's JSON with the first passages, until they have so many questions."""
    try:
        articles = json.loads(path.read_text(encoding="utf-8"))["data"]
        paragraphs = [paragraph for article in articles for paragraph in article["paragraphs"]]
        kept, questions = [], 0
        for paragraph in paragraphs:
            if questions >= count:
                break
            kept.append(paragraph)
            questions += len(paragraph["qas"])
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise CorpusError(f"{path}: is not laid out as SQuAD's files are ({error!r})") from error
    return json.dumps({"version": "1.1", "data": [{"title": "", "paragraphs": kept}]})


BEGINNINGS: dict[str, Callable[[Path, int], str]] = {
    "reader": first_questions,
    "pairs": first_lines,
    "srl": first_lines,
    "coref": partial(first_stretches, end=r"#\s*end document"),
    "tagger": partial(first_stretches, end=r"\s*$"),
    "classifier": first_lines,
}
