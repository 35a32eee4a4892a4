"""Minimal pairs, an acceptable text and an unacceptable one, from published files and from tables.

    .jsonl          BLiMP: sentence_good and sentence_bad, by UID
    .txt            Lakretz et al. 2019: two lines that differ in their last word, 'sentence number correct id' and
                    'sentence number wrong id'; a second number if there is an attractor
    .gold           Linzen et al. 2016 as prepared by Gulordava et al. 2018: place, verb, other form, attractors; the
                    sentences are in the .text file of the same name
    .tab            Gulordava et al. 2018: columns prefix, form, class (correct, wrong), type, n_attr, correct_number
    .csv, .tsv      columns good and bad, or context, right and wrong; optionally condition

Some files compare two words inside a sentence. Their texts end with these words and are not `whole`.
"""

import csv
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from relmo.disk.files import parse_json
from relmo.errors import CorpusError, quote
from relmo.text.corpus import MAX_DIGITS, nonblank_lines, read_lines

MARKS = {"correct": True, "wrong": False}
BLIMP = ("sentence_good", "sentence_bad", "linguistics_term")


class MinimalPair(NamedTuple):
    """Acceptable text and unacceptable text, as words or as raw text that the model splits.

    whole    whether the texts are complete sentences, so that their ends are predicted too
    """

    condition: str
    good: str | Sequence[str]
    bad: str | Sequence[str]
    whole: bool = False


def read_pairs(path: str | Path) -> list[MinimalPair]:
    """Read the pairs of a file, by its suffix, or of all such files in a folder."""
    path = Path(path)
    if path.is_dir():
        files = [file for file in sorted(path.iterdir()) if file.suffix.lower() in READERS and file.is_file()]
        if not files:
            raise CorpusError(f"{path}: contains no file of minimal pairs ({', '.join(READERS)})")
        return [pair for file in files for pair in read_pairs(file)]
    reader = READERS.get(path.suffix.lower())
    if reader is None:
        raise CorpusError(f"{path}: unknown suffix; minimal pairs are read from {', '.join(READERS)} files")
    pairs = list(reader(path))
    if not pairs:
        raise CorpusError(f"{path}: has no pairs")
    return pairs


def _read_blimp(path: Path) -> Iterator[MinimalPair]:
    """Yield a paradigm of BLiMP; the condition is its UID, or the name of the file."""
    for text, place in nonblank_lines(path, "strict"):
        fields = blimp_fields(text, place)
        yield MinimalPair(str(fields.get("UID") or path.stem), fields[BLIMP[0]], fields[BLIMP[1]], whole=True)


def blimp_fields(text: str, place: str) -> dict[str, Any]:
    """Parse a line of BLiMP, with two sentences and the phenomenon."""
    try:
        line = parse_json(text)
    except ValueError as error:
        raise CorpusError(f"{place}: is not a JSON object on a single line ({error})") from error
    if not isinstance(line, dict) or not all(isinstance(line.get(name), str) for name in BLIMP):
        raise CorpusError(f"{place}: expected the texts {', '.join(BLIMP)}, as in BLiMP")
    return line


def read_lakretz(path: Path) -> Iterator[MinimalPair]:
    """Yield a task of Lakretz et al.; the condition is the name of the file and the grammatical numbers of the subject
    and, if there is one, of the attractor."""
    lines = [line.text.split("\t") for line in read_lines(path)]
    if len(lines) % 2:
        raise CorpusError(f"{path}: has {len(lines)} lines; expected pairs of lines")
    for number, (good, bad) in enumerate(zip(lines[::2], lines[1::2], strict=True)):
        right, wrong = good[0].split(), bad[0].split()
        ordered = len(good) == len(bad) >= 4 and good[1:-2] == bad[1:-2] and (good[-2], bad[-2]) == ("correct", "wrong")
        if not ordered or not right or right[:-1] != wrong[:-1] or right == wrong:
            raise CorpusError(
                f"{path}:{2 * number + 1}: expected two lines that differ in their last word, 'sentence number correct "
                "id' and 'sentence number wrong id', separated by tabs"
            )
        yield MinimalPair(" ".join([path.stem, *good[1:-2]]), right, wrong)


def read_linzen(path: Path) -> Iterator[MinimalPair]:
    """Yield the sentences up to the verb, with plain quotes; the condition is the number of attractors."""
    text = path.with_suffix(".text")
    sentences = [line.text.split() for line in read_lines(text)]
    items = [line.text.lower().split("\t") for line in read_lines(path)]  # four verbs are capitalized
    if len(sentences) != len(items):
        raise CorpusError(f"{path}: has {len(items)} lines but {text} has {len(sentences)}")
    for number, (words, item) in enumerate(zip(sentences, items, strict=True), start=1):
        is_valid = len(item) == 4 and item[0].isdecimal() and item[3].isdecimal() and len(item[0]) <= MAX_DIGITS
        is_valid = is_valid and int(item[0]) < len(words)
        if not is_valid or words[int(item[0])].lower() != item[1]:
            raise CorpusError(
                f"{path}:{number}: expected the verb's place in line {number} of {text.name}, the verb, its other form "
                f"and a count, separated by tabs; found {quote(item)}"
            )
        context = ['"' if word in ("``", "''") else word for word in words[: int(item[0])]]
        attractors = "1 attractor" if item[3] == "1" else f"{item[3]} attractors"
        yield MinimalPair(attractors, [*context, item[1]], [*context, item[2]])


def _read_tab(path: Path) -> Iterator[MinimalPair]:
    """Yield the sentences of Gulordava et al. up to the verb; the condition is original or generated, the subject's
    number, and the number of attractors."""
    rows = list(_read_rows(path, "\t", ("prefix", "form", "class")))
    if len(rows) % 2:
        raise CorpusError(f"{path}: has {len(rows)} rows; expected pairs of the correct and the wrong form")
    for (place, row_a), (_, row_b) in zip(rows[::2], rows[1::2], strict=True):
        marks = [MARKS.get(row["class"]) for row in (row_a, row_b)]
        if row_a["prefix"] != row_b["prefix"] or sorted(marks, key=str) != [False, True]:
            raise CorpusError(f"{place}: expected two rows of the same prefix, one correct and one wrong")
        good, bad = (row_a, row_b) if marks[0] else (row_b, row_a)
        parts = [good.get("type"), good.get("correct_number")]
        parts += [f"{good['n_attr']} attractors"] if good.get("n_attr") else []
        words = good["prefix"].split()
        condition = " ".join(part for part in parts if part) or path.stem
        yield MinimalPair(condition, [*words, good["form"]], [*words, bad["form"]])


def _read_table(path: Path) -> Iterator[MinimalPair]:
    """Yield the pairs of a table; without a column `condition`, the condition is the name of the file."""
    delimiter = "\t" if path.suffix.lower() == ".tsv" else ","
    for place, row in _read_rows(path, delimiter, ()):
        condition = row.get("condition") or path.stem
        if "good" in row and "bad" in row:
            pair = MinimalPair(condition, row["good"], row["bad"], whole=True)
        elif {"context", "right", "wrong"} <= row.keys():
            good, bad = (f"{row['context']} {row[name]}".strip() for name in ("right", "wrong"))
            pair = MinimalPair(condition, good, bad)
        else:
            raise CorpusError(
                f"{path}:1: the columns are {', '.join(row)[:200]}; expected good and bad, or context, right and wrong"
            )
        if not pair.good or not pair.bad or pair.good == pair.bad:
            raise CorpusError(
                f"{place}: expected two texts that differ, found {quote(pair.good)} and {quote(pair.bad)}"
            )
        yield pair


def _read_rows(path: Path, delimiter: str, names: Sequence[str]) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield the rows of a table by the names in its first line, each with its place."""
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
        raise CorpusError(f"{path}:{reader.line_num}: this row cannot be parsed ({error})") from None


READERS: dict[str, Callable[[Path], Iterator[MinimalPair]]] = {
    ".jsonl": _read_blimp,
    ".txt": read_lakretz,
    ".gold": read_linzen,
    ".tab": _read_tab,
    ".csv": _read_table,
    ".tsv": _read_table,
}
