"""Minimal pairs, an acceptable text and an unacceptable one: BLiMP (.jsonl), Lakretz et al. 2019 (.txt), Linzen et al.
2016 as prepared by Gulordava et al. 2018 (.gold, with the sentences in .text), Gulordava et al. 2018 (.tab), and tables
(.csv, .tsv) with the columns good and bad, or context, right and wrong; optionally condition."""

from collections.abc import Callable, Container, Iterator, Sequence
from itertools import product, zip_longest
from pathlib import Path
from typing import NamedTuple

import numpy as np

from relmo.errors import CorpusError, SettingError, quote
from relmo.text.corpus import MAX_DIGITS, read_lines
from relmo.text.readers.tables import csv_fields, json_rows

MARKS = {"correct": True, "wrong": False}
BLIMP = ("sentence_good", "sentence_bad", "linguistics_term")
BLIMP_MERGED = {"s-selection": "argument_structure"}  # phenomena that the paper's tables count as another one
PAIR_SETS = {
    ".jsonl": "BLiMP",
    ".txt": "Lakretz et al. 2019",
    ".gold": "Linzen et al. 2016",
    ".tab": "Gulordava et al. 2018",
}


class MinimalPair(NamedTuple):
    """Acceptable and unacceptable text, as words or as raw text. The ends of `whole` sentences are predicted too; other
    texts end with the words that are compared. Conditions may belong to a `phenomenon`, as in BLiMP."""

    condition: str
    good: str | Sequence[str]
    bad: str | Sequence[str]
    whole: bool = False
    phenomenon: str = ""


def read_pairs(path: str | Path) -> list[MinimalPair]:
    """Read the pairs of a file, by its suffix, or of all such files in a folder."""
    path = Path(path)
    if path.is_dir():
        return [pair for file in list_pair_files(path) for pair in read_pairs(file)]
    reader = READERS.get(path.suffix.lower())
    if reader is None:
        raise CorpusError(f"{path}: unknown suffix; minimal pairs are read from {', '.join(READERS)} files")
    pairs = list(reader(path))
    if not pairs:
        raise CorpusError(f"{path}: has no pairs")
    return pairs


def list_pair_files(path: Path) -> list[Path]:
    """Return the files of minimal pairs in a folder; any other path stands for itself."""
    if not path.is_dir():
        return [path]
    files = [file for file in sorted(path.iterdir()) if file.suffix.lower() in READERS and file.is_file()]
    if not files:
        raise CorpusError(f"{path}: contains no file of minimal pairs ({', '.join(READERS)})")
    return files


def _read_blimp(path: Path) -> Iterator[MinimalPair]:
    """Yield a paradigm of BLiMP; the condition is its UID, or the name of the file."""
    for values, place, *_ in json_rows(path):
        if not all(isinstance(values.get(name), str) for name in BLIMP):
            raise CorpusError(f"{place}: expected the texts {', '.join(BLIMP)}, as in BLiMP")
        good, bad, term = (values[name] for name in BLIMP)
        term = BLIMP_MERGED.get(term, term)
        yield MinimalPair(str(values.get("UID") or path.stem), good, bad, whole=True, phenomenon=term)


def read_lakretz(path: Path) -> Iterator[MinimalPair]:
    """Yield a task of Lakretz et al.; the condition is the file name and the numbers of subject and attractor."""
    lines = (line.text.split("\t") for line in read_lines(path))
    for number, (good, bad) in enumerate(zip_longest(lines, lines, fillvalue=[""])):
        right, wrong = good[0].split(), bad[0].split()
        ordered = len(good) == len(bad) >= 4 and good[1:-2] == bad[1:-2] and (good[-2], bad[-2]) == ("correct", "wrong")
        if not ordered or not right or right[:-1] != wrong[:-1] or right == wrong:
            expected = "'sentence number correct id' and 'sentence number wrong id', separated by tabs"
            raise CorpusError(f"{path}:{2 * number + 1}: expected lines that differ in their last word, {expected}")
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
            expected = f"the verb's place in line {number} of {text.name}, the verb, its other form and a count"
            raise CorpusError(f"{path}:{number}: expected {expected}, separated by tabs; found {quote(item)}")
        context = ['"' if word in ("``", "''") else word for word in words[: int(item[0])]]
        attractors = "1 attractor" if item[3] == "1" else f"{item[3]} attractors"
        yield MinimalPair(attractors, [*context, item[1]], [*context, item[2]])


def _read_tab(path: Path) -> Iterator[MinimalPair]:
    """Yield the sentences of Gulordava et al. up to the verb, by type, the subject's number, and attractors."""
    rows = list(read_rows(path, "\t", ("prefix", "form", "class")))
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
    for place, row in read_rows(path, delimiter, ()):
        condition = row.get("condition") or path.stem
        if "good" in row and "bad" in row:
            pair = MinimalPair(condition, row["good"], row["bad"], whole=True)
        elif {"context", "right", "wrong"} <= row.keys():
            good, bad = (f"{row['context']} {row[name]}".strip() for name in ("right", "wrong"))
            pair = MinimalPair(condition, good, bad)
        else:
            expected = "expected good and bad, or context, right and wrong"
            raise CorpusError(f"{path}:1: the columns are {', '.join(row)[:200]}; {expected}")
        if not pair.good or not pair.bad or pair.good == pair.bad:
            texts = f"{quote(pair.good)} and {quote(pair.bad)}"
            raise CorpusError(f"{place}: expected two texts that differ, found {texts}")
        yield pair


def read_rows(path: Path, delimiter: str, names: Sequence[str]) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield the rows of a table by the names in its first line, each with its place."""
    rows = csv_fields(path, delimiters=delimiter)
    header = [name.strip() for name in next(rows, ([], ""))[0]]
    if missing := [name for name in names if name not in header]:
        raise CorpusError(f"{path}:1: has no column {missing[0]}; the first line names the columns")
    for fields, place in rows:
        if len(fields) != len(header):
            raise CorpusError(f"{place}: has {len(fields)} columns where the first line names {len(header)}")
        yield place, dict(zip(header, fields, strict=True))


READERS: dict[str, Callable[[Path], Iterator[MinimalPair]]] = {
    ".jsonl": _read_blimp,
    ".txt": read_lakretz,
    ".gold": read_linzen,
    ".tab": _read_tab,
    ".csv": _read_table,
    ".tsv": _read_table,
}


def _parse_forms(words: str) -> dict[str, str]:
    """Parse boy/boys girl/girls to {"boy": "boys", "girl": "girls"}."""
    return dict(word.split("/") for word in words.split())


SUBJECTS = _parse_forms(
    "boy/boys girl/girls man/men woman/women doctor/doctors lawyer/lawyers teacher/teachers farmer/farmers "
    "singer/singers writer/writers friend/friends mother/mothers father/fathers brother/brothers student/students "
    "player/players soldier/soldiers king/kings child/children judge/judges"
)
ATTRACTORS = _parse_forms(
    "car/cars house/houses table/tables tree/trees door/doors bridge/bridges river/rivers wall/walls chair/chairs "
    "window/windows"
)
PREPOSITIONS = ("near", "behind", "beside", "above", "under")
VERBS = _parse_forms(
    "knows/know sees/see meets/meet understands/understand remembers/remember avoids/avoid admires/admire "
    "encourages/encourage inspires/inspire observes/observe believes/believe accepts/accept allows/allow "
    "protects/protect recognizes/recognize"
)
NUMBERS = ("singular", "plural")
MIN_WORDS = 4  # of each class that a model must know


def noun_pp(*, per_condition: int = 100, known: Container[str] | None = None, seed: int = 0) -> list[MinimalPair]:
    """Sample pairs for each of the four conditions, such as "nounpp singular plural", the subject's number first, with
    the same nouns, prepositions and verbs item by item; `known` restricts the words. The task is NounPP of Lakretz et
    al. 2019, The emergence of number and syntax units in LSTM language models."""
    if per_condition < 1:
        raise SettingError(f"per_condition must be at least 1, not {per_condition}")
    subjects, attractors, verbs = (
        [pair for pair in table.items() if known is None or all(word in known for word in pair)]
        for table in (SUBJECTS, ATTRACTORS, VERBS)
    )
    prepositions = [word for word in PREPOSITIONS if known is None or word in known]
    items = list(product(subjects, prepositions, attractors, verbs))
    if min(len(subjects), len(attractors), len(verbs)) < MIN_WORDS or not prepositions:
        raise CorpusError("the model knows too few of the common nouns and verbs; give minimal pairs in its language")
    sample = np.random.default_rng(seed).choice(len(items), min(per_condition, len(items)), replace=False)
    pairs = []
    for number, attractor_number in product((0, 1), (0, 1)):
        for index in np.sort(sample):
            subject, preposition, attractor, verb = items[index]
            context = ["The", subject[number], preposition, "the", attractor[attractor_number]]
            condition = f"nounpp {NUMBERS[number]} {NUMBERS[attractor_number]}"
            pairs.append(MinimalPair(condition, [*context, verb[number]], [*context, verb[1 - number]]))
    return pairs
