"""Finds published sets of minimal pairs in a folder of the user, and names each. Nothing is fetched."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from relmo.errors import CorpusError
from relmo.text.minimal_pairs import BLIMP, READERS, MinimalPair, read_pairs

PLACES = ("tasks/agreement", "agreement", "")  # inside the folder that is named; the first that is there
MOST = 2000  # files looked at
KINDS = {
    ".jsonl": "BLiMP",
    ".txt": "Lakretz et al. 2019",
    ".gold": "Linzen et al. 2016",
    ".tab": "Gulordava et al. 2018",
}


@dataclass(frozen=True)
class Pack:
    """Minimal pairs of one file, or of all files of a kind in a folder."""

    title: str
    files: tuple[Path, ...]

    def pairs(self) -> list[MinimalPair]:
        """All of them."""
        return [pair for file in self.files for pair in read_pairs(file)]


def find_packs(data: Path) -> dict[str, Pack]:
    """The packs of a folder by name. Each file with pairs is a pack, and several files of a kind in one folder make one
    more pack."""
    if data.is_file():
        return {data.name: Pack(_title_of(data), (data,))} if _is_pairs(data) else {}
    if not data.is_dir():
        raise CorpusError(f"{data}: there is no such folder; --data takes one with minimal pairs in it")
    root = next(data / place for place in PLACES if (data / place).is_dir())
    found: dict[str, Pack] = {}
    for folder in [root, *sorted(each for each in root.iterdir() if each.is_dir())]:
        files = [file for file in _candidates(folder) if _is_pairs(file)]
        for kind in dict.fromkeys(file.suffix.lower() for file in files):
            same = [file for file in files if file.suffix.lower() == kind]
            if len(same) > 1:
                name = f"{folder.relative_to(root)}/*{kind}"
                found[name] = Pack(f"{KINDS.get(kind, folder.name)}: all {len(same)} files", tuple(same))
            found |= {str(file.relative_to(root)): Pack(_title_of(file), (file,)) for file in same}
    return found


def _title_of(file: Path) -> str:
    kind = KINDS.get(file.suffix.lower())
    return file.stem.replace("_", " ") if kind is None else f"{kind}: {file.stem.replace('_', ' ')}"


def _candidates(folder: Path) -> Iterator[Path]:
    """Files of a folder that are named as minimal pairs are."""
    for number, file in enumerate(sorted(folder.iterdir())):
        if number >= MOST:
            return
        if file.suffix.lower() in READERS and file.is_file():
            yield file


def _is_pairs(file: Path) -> bool:
    """Whether a file begins as one with minimal pairs does: many others are named .txt and .csv."""
    try:
        with file.open(encoding="utf-8") as opened:
            line = opened.readline(1 << 16).rstrip("\n")
    except (OSError, UnicodeDecodeError):
        return False
    kind = file.suffix.lower()
    if kind == ".jsonl":
        try:
            first = json.loads(line)
        except (ValueError, RecursionError):
            return False
        return isinstance(first, dict) and all(name in first for name in BLIMP)
    if kind == ".txt":
        return len(fields := line.split("\t")) >= 4 and fields[-2] == "correct"
    if kind == ".gold":
        return file.with_suffix(".text").is_file()
    columns = {name.strip() for name in line.split("," if kind == ".csv" else "\t")}
    needed = [{"prefix", "form", "class"}] if kind == ".tab" else [{"good", "bad"}, {"context", "right", "wrong"}]
    return any(names <= columns for names in needed)
