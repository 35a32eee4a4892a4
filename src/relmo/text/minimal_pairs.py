"""Minimal pairs from the files of the field and from the user's own tables: an acceptable text and one that is not.

    .jsonl          BLiMP: sentence_good and sentence_bad, by UID
    .txt            Lakretz et al. 2019: two lines that differ in their last word, 'sentence number correct id' and
                    'sentence number wrong id'; a second number where there is an attractor
    .gold           Linzen et al. 2016 as Gulordava et al. 2018 prepared it: place, verb, other form, attractors; with
                    the sentences in the .text file beside it
    .tab            Gulordava et al. 2018: columns prefix, form, class (correct, wrong), type, n_attr, correct_number
    .csv, .tsv      your own, with a line of names first: good and bad, or context, right and wrong; and condition

Some files compare two words inside a sentence. Their texts end with these words and are not `whole`.
"""

import csv
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from relmo.disk.files import parse_json
from relmo.errors import CorpusError, shown
from relmo.text.corpus import read_lines
from relmo.text.readers.lines import DIGITS, filled_lines

MARKS = {"correct": True, "wrong": False}
BLIMP = ("sentence_good", "sentence_bad", "linguistics_term")


class MinimalPair(NamedTuple):
    """An acceptable text and one that is not, each as words, or as raw text for the model to split.

    whole    whether the sentences end here, so that their ends are predicted too
    """

    condition: str
    good: str | Sequence[str]
    bad: str | Sequence[str]
    whole: bool = False


def read_pairs(path: str | Path) -> list[MinimalPair]:
    """The pairs of a file, whose kind the end of its name says; or of all such files in a folder."""
    path = Path(path)
    if path.is_dir():
        files = [file for file in sorted(path.iterdir()) if file.suffix.lower() in READERS and file.is_file()]
        if not files:
            raise CorpusError(f"{path}: has no file of minimal pairs ({', '.join(READERS)})")
        return [pair for file in files for pair in read_pairs(file)]
    reader = READERS.get(path.suffix.lower())
    if reader is None:
        raise CorpusError(f"{path}: minimal pairs are read from {', '.join(READERS)} files; rename it to one of these")
    pairs = list(reader(path))
    if not pairs:
        raise CorpusError(f"{path}: has no pairs")
    return pairs


def _read_blimp(path: Path) -> Iterator[MinimalPair]:
    """A paradigm of BLiMP; the condition is its UID, or the name of the file."""
    for text, place in filled_lines(path, "strict"):
        fields = blimp_fields(text, place)
        yield MinimalPair(str(fields.get("UID") or path.stem), fields[BLIMP[0]], fields[BLIMP[1]], whole=True)


def blimp_fields(text: str, place: str) -> dict[str, Any]:
    """A line of BLiMP, which has the two sentences and the phenomenon."""
    try:
        line = parse_json(text)
    except ValueError as error:
        raise CorpusError(f"{place}: is not a JSON object on a line of its own ({error})") from error
    if not isinstance(line, dict) or not all(isinstance(line.get(name), str) for name in BLIMP):
        raise CorpusError(f"{place}: expected the texts {', '.join(BLIMP)}, as BLiMP's files have them")
    return line


def read_lakretz(path: Path) -> Iterator[MinimalPair]:
    """A task of Lakretz et al.; the condition is the name of the file and the numbers of the subject and, where there
    is one, of the attractor."""
    lines = [line.text.split("\t") for line in read_lines(path)]
    if len(lines) % 2:
        raise CorpusError(f"{path}: has {len(lines)} lines; they should come in pairs")
    for number, (good, bad) in enumerate(zip(lines[::2], lines[1::2], strict=True)):
        right, wrong = good[0].split(), bad[0].split()
        ordered = len(good) == len(bad) >= 4 and good[1:-2] == bad[1:-2] and (good[-2], bad[-2]) == ("correct", "wrong")
        if not ordered or not right or right[:-1] != wrong[:-1] or right == wrong:
            raise CorpusError(
                f"{path}:{2 * number + 1}: expected two lines that differ in their last word, 'sentence number correct "
                "id' and 'sentence number wrong id', with tabs between"
            )
        yield MinimalPair(" ".join([path.stem, *good[1:-2]]), right, wrong)


def read_linzen(path: Path) -> Iterator[MinimalPair]:
    """The sentences up to the verb; the condition is the number of attractors. Quotes become plain ones."""
    text = path.with_suffix(".text")
    sentences = [line.text.split() for line in read_lines(text)]
    items = [line.text.lower().split("\t") for line in read_lines(path)]  # four verbs alone have a capital
    if len(sentences) != len(items):
        raise CorpusError(f"{path}: has {len(items)} lines where {text} has {len(sentences)}; they belong together")
    for number, (words, item) in enumerate(zip(sentences, items, strict=True), start=1):
        right = len(item) == 4 and item[0].isdecimal() and item[3].isdecimal() and len(item[0]) < DIGITS
        right = right and int(item[0]) < len(words)
        if not right or words[int(item[0])].lower() != item[1]:
            raise CorpusError(
                f"{path}:{number}: expected the verb's place in line {number} of {text.name}, the verb, its other form "
                f"and a count, with tabs between; found {shown(item)}"
            )
        context = ['"' if word in ("``", "''") else word for word in words[: int(item[0])]]
        attractors = "1 attractor" if item[3] == "1" else f"{item[3]} attractors"
        yield MinimalPair(attractors, [*context, item[1]], [*context, item[2]])


def _read_tab(path: Path) -> Iterator[MinimalPair]:
    """The sentences of Gulordava et al. up to the verb; the condition is original or generated, the subject's number,
    and the number of attractors."""
    rows = list(_table(path, "\t", ("prefix", "form", "class")))
    if len(rows) % 2:
        raise CorpusError(f"{path}: has {len(rows)} rows; the right form and the wrong one should come in pairs")
    for (place, one), (_, other) in zip(rows[::2], rows[1::2], strict=True):
        marks = [MARKS.get(row["class"]) for row in (one, other)]
        if one["prefix"] != other["prefix"] or sorted(marks, key=str) != [False, True]:
            raise CorpusError(f"{place}: expected two rows of the same prefix, one correct and one wrong")
        good, bad = (one, other) if marks[0] else (other, one)
        parts = [good.get("type"), good.get("correct_number")]
        parts += [f"{good['n_attr']} attractors"] if good.get("n_attr") else []
        words = good["prefix"].split()
        condition = " ".join(part for part in parts if part) or path.stem
        yield MinimalPair(condition, [*words, good["form"]], [*words, bad["form"]])


def _read_table(path: Path) -> Iterator[MinimalPair]:
    """The user's own table: good and bad, or context, right and wrong. Without a column `condition` that is the name
    of the file."""
    tabs = "\t" if path.suffix.lower() == ".tsv" else ","
    for place, row in _table(path, tabs, ()):
        condition = row.get("condition") or path.stem
        if "good" in row and "bad" in row:
            pair = MinimalPair(condition, row["good"], row["bad"], whole=True)
        elif {"context", "right", "wrong"} <= row.keys():
            good, bad = (f"{row['context']} {row[name]}".strip() for name in ("right", "wrong"))
            pair = MinimalPair(condition, good, bad)
        else:
            raise CorpusError(
                f"{path}:1: the columns are {', '.join(row)[:200]}; needed are good and bad, or context, right and "
                "wrong"
            )
        if not pair.good or not pair.bad or pair.good == pair.bad:
            raise CorpusError(
                f"{place}: expected two texts that differ, found {shown(pair.good)} and {shown(pair.bad)}"
            )
        yield pair


def _table(path: Path, delimiter: str, names: Sequence[str]) -> Iterator[tuple[str, dict[str, str]]]:
    """The rows of a table by the names in its first line, each with its place; quotes as spreadsheets write them."""
    lines = [line.text for line in read_lines(path)]
    reader = csv.reader(lines, delimiter=delimiter, strict=True)
    try:
        header = [name.strip() for name in next(reader, [])]
        if missing := [name for name in names if name not in header]:
            raise CorpusError(f"{path}:1: has no column {missing[0]}; the first line names the columns")
        for row in reader:
            place = f"{path}:{reader.line_num}"
            if not any(field.strip() for field in row):
                continue
            if len(row) != len(header):
                raise CorpusError(f"{place}: has {len(row)} columns where the first line names {len(header)}")
            yield place, dict(zip(header, row, strict=True))
    except csv.Error as error:
        raise CorpusError(f"{path}:{reader.line_num}: is not a row of a table ({error})") from None


READERS: dict[str, Callable[[Path], Iterator[MinimalPair]]] = {
    ".jsonl": _read_blimp,
    ".txt": read_lakretz,
    ".gold": read_linzen,
    ".tab": _read_tab,
    ".csv": _read_table,
    ".tsv": _read_table,
}
