"""Published minimal pairs in a folder of the user. Nothing is downloaded."""

import json
from dataclasses import dataclass
from pathlib import Path

from relmo.errors import CorpusError
from relmo.text.minimal_pairs import BLIMP, READERS, MinimalPair, read_pairs

SUBFOLDERS = ("tasks/agreement", "agreement", "")  # of the data folder; the first that exists is searched
MAX_FILES = 2000  # per folder
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
        """Read all pairs."""
        return [pair for file in self.files for pair in read_pairs(file)]


def find_packs(data: Path) -> dict[str, Pack]:
    """Return the packs of a folder by name: one per file with pairs, and one for several files of a kind together."""
    if data.is_file():
        return {data.name: Pack(_make_title(data), (data,))} if _has_pairs(data) else {}
    if not data.is_dir():
        raise CorpusError(f"{data}: no such folder; --data takes a folder with minimal pairs.")
    root = next(data / subfolder for subfolder in SUBFOLDERS if (data / subfolder).is_dir())
    packs: dict[str, Pack] = {}
    for folder in [root, *sorted(path for path in root.iterdir() if path.is_dir())]:
        paths = sorted(folder.iterdir())[:MAX_FILES]
        files = [path for path in paths if path.suffix.lower() in READERS and path.is_file() and _has_pairs(path)]
        for suffix in dict.fromkeys(file.suffix.lower() for file in files):
            group = [file for file in files if file.suffix.lower() == suffix]
            if len(group) > 1:
                title = f"{KINDS.get(suffix, folder.name)}: all {len(group)} files"
                packs[f"{folder.relative_to(root)}/*{suffix}"] = Pack(title, tuple(group))
            packs |= {str(file.relative_to(root)): Pack(_make_title(file), (file,)) for file in group}
    return packs


def _make_title(file: Path) -> str:
    kind, name = KINDS.get(file.suffix.lower()), file.stem.replace("_", " ")
    return name if kind is None else f"{kind}: {name}"


def _has_pairs(file: Path) -> bool:
    """Return whether a file begins like one with minimal pairs; .txt and .csv have many other uses."""
    try:
        with file.open(encoding="utf-8") as stream:
            line = stream.readline(1 << 16).rstrip("\n")
    except (OSError, UnicodeDecodeError):
        return False
    suffix = file.suffix.lower()
    if suffix == ".jsonl":
        try:
            record = json.loads(line)
        except (ValueError, RecursionError):
            return False
        return isinstance(record, dict) and all(name in record for name in BLIMP)
    if suffix == ".txt":
        return len(fields := line.split("\t")) >= 4 and fields[-2] == "correct"
    if suffix == ".gold":
        return file.with_suffix(".text").is_file()
    columns = {name.strip() for name in line.split("," if suffix == ".csv" else "\t")}
    required = [{"prefix", "form", "class"}] if suffix == ".tab" else [{"good", "bad"}, {"context", "right", "wrong"}]
    return any(names <= columns for names in required)
