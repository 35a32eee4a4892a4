"""Companion models and files given on the command line: models, a training text, minimal pairs, measurements.

A page refers to them by name, never by path. Nothing is downloaded.
"""

import os
import re
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

from relmo.analysis.meaning.occurrences import Mix, mix_weights
from relmo.disk.files import parse_json, read_text_file
from relmo.errors import CorpusError, ModelError, SettingError
from relmo.loading import load
from relmo.models.sequence_model import SequenceModel
from relmo.settings.kinds import TASKS
from relmo.store.folder import CONFIG, read_config
from relmo.store.references import find_installed
from relmo.text.minimal_pairs import PAIR_SETS, READERS, MinimalPair, read_pairs

DATA_VARIABLE = "RELMO_DATA"
FIGURES = {"pos": "all words", "wsd": "both sets"}  # measurements by layer, and the column shown for each
MAX_FIGURE = 1e9
PAIR_FOLDERS = ("tasks/agreement", "agreement", "")  # of the data folder; the first that exists is searched
MAX_FILES = 2000  # per folder


def data_folder(folder: Path | None = None) -> Path:
    """Return the data folder: `folder` if there is one, else $RELMO_DATA, else `data/` in the working directory."""
    return Path(os.environ.get(DATA_VARIABLE) or "data") if folder is None else folder


class Pack(NamedTuple):
    """Published minimal pairs of one file, or of all files of a kind in a folder."""

    title: str
    files: tuple[Path, ...]

    def pairs(self) -> list[MinimalPair]:
        """Read all pairs."""
        return [pair for file in self.files for pair in read_pairs(file)]


class Extras:
    """Companions of a model. They are checked at once and loaded on request.

    sources        models or folders of models, such as the checkpoints of a run; language models are compared, and the
                   layer weights of trained tasks are shown
    train          text the model was trained on
    data           folder of minimal pairs
    figures        file of measurements by layer
    """

    def __init__(
        self,
        sources: Sequence[str] = (),
        *,
        train: Path | None = None,
        data: Path | None = None,
        figures: Path | None = None,
        device: str = "cpu",
    ):
        if train is not None and not train.is_file():
            raise CorpusError(f"{train}: no such file; --train takes the text the model was trained on.")
        self.train, self.device = train, device
        self.tokenizer: Literal["words", "whitespace"] | None = None  # by default as each model was trained
        self.models: dict[str, Path] = {}  # folders by name, in order
        self.tasks: dict[str, Path] = {}
        folders = [folder for source in sources for folder in find_models(source)]
        base_names = [folder.name for folder in folders]
        for folder in folders:
            name = folder.name if base_names.count(folder.name) == 1 else str(folder)
            kind = read_config(folder).get("kind")
            if kind in ("lm", "bilm"):
                self.models[name] = folder
            elif kind in TASKS:
                self.tasks[name] = folder
            else:
                raise ModelError(f"{folder} is of kind {kind}; --beside takes language models and trained tasks.")
        self.packs = {} if data is None else find_packs(data)
        self.figures = [] if figures is None else read_figures(figures)
        self.layer_mixes: dict[str, list[Mix]] = {}  # of loaded tasks by name
        self.loaded: dict[str, Any] = {}
        self.lock = threading.Lock()

    def about(self, kind: str) -> dict[str, Any]:
        """Describe the companions to the page of a model of this kind; companion models are of the same kind."""
        return {
            "beside": [name for name, folder in self.models.items() if read_config(folder).get("kind") == kind],
            "train": self.train.name if self.train else "",
            "packs": [{"name": name, "title": pack.title} for name, pack in self.packs.items()],
            "figures": self.figures if kind == "bilm" else [],
            "mixes": bool(self.tasks or self.layer_mixes) and kind == "bilm",
        }

    def model(self, name: str) -> SequenceModel:
        """Return a companion model, loaded once."""
        with self.lock:
            if name not in self.loaded:
                self.loaded[name] = load(str(self.models[name]), device=self.device).with_tokenizer(self.tokenizer)
            return self.loaded[name]

    def mixes(self) -> list[dict[str, Any]]:
        """Return the layer weights of the trained tasks; an empty list for a task without ELMo."""
        with self.lock:
            for name, folder in self.tasks.items():
                if name not in self.layer_mixes:
                    self.layer_mixes[name] = mix_weights(load(str(folder), kinds=TASKS, device="cpu"))  # type: ignore[arg-type]
            return [
                {"task": name, "mixes": [mix._asdict() for mix in mixes]} for name, mixes in self.layer_mixes.items()
            ]


def find_models(source: str) -> list[Path]:
    """Return the folder of a model, or the model folders inside a folder, epoch-9 before epoch-10."""
    folder = find_installed(source) or Path(source)
    if (folder / CONFIG).is_file() or not folder.is_dir():
        return [folder]  # reading it raises the error
    folders = [path for path in folder.iterdir() if (path / CONFIG).is_file()]
    if not folders:
        raise ModelError(f"{folder} is not a model folder and contains none.")
    return sorted(folders, key=lambda path: [(len(part), part) for part in re.findall(r"\d+|\D+", path.name)])


def find_packs(data: Path) -> dict[str, Pack]:
    """Return the packs of a folder by name: one per file with pairs, and one for several files of a kind together."""
    if not data.is_file() and not data.is_dir():
        raise CorpusError(f"{data}: no such folder; --data takes a folder with minimal pairs.")
    if data.is_file():
        root, candidates = data.parent, [[data]]
    else:
        root, candidates = next(data / name for name in PAIR_FOLDERS if (data / name).is_dir()), []
        for folder in [root, *sorted(path for path in root.iterdir() if path.is_dir())]:
            paths = sorted(folder.iterdir())[:MAX_FILES]
            candidates.append([path for path in paths if path.suffix.lower() in READERS and path.is_file()])
    packs: dict[str, Pack] = {}
    for paths in candidates:
        files = [path for path in paths if _has_pairs(path)]
        for suffix in dict.fromkeys(file.suffix.lower() for file in files):
            group, pair_set = [file for file in files if file.suffix.lower() == suffix], PAIR_SETS.get(suffix)
            if len(group) > 1:
                folder = group[0].parent
                title = f"{pair_set or folder.name}: all {len(group)} files"
                packs[f"{folder.relative_to(root)}/*{suffix}"] = Pack(title, tuple(group))
            for file in group:
                name = file.stem.replace("_", " ")
                packs[str(file.relative_to(root))] = Pack(f"{pair_set}: {name}" if pair_set else name, (file,))
    return packs


def _has_pairs(file: Path) -> bool:
    """Return whether a file begins with a minimal pair; .txt and .csv have many other uses."""
    try:
        return next(READERS[file.suffix.lower()](file), None) is not None
    except (CorpusError, KeyError, OSError):
        return False


def read_figures(path: Path) -> list[dict[str, Any]]:
    """Read measurements by layer, printed by `python -m experiments pos wsd --json`."""
    try:
        content = parse_json(read_text_file(path))
    except ValueError as error:
        raise SettingError(f"{path}: {error}; --figures takes a file that relmo printed with --json.") from None
    content = content if isinstance(content, dict) else {}
    tables: Any = content.get("reproductions")
    tables, figures = tables if isinstance(tables, list) else [content.get(name) for name in FIGURES], []
    for table in tables:
        is_table = isinstance(table, dict) and isinstance(table.get("rows"), list)
        if not is_table or table.get("name") not in [*FIGURES]:  # a name may be unhashable
            continue
        column, rows = FIGURES[table["name"]], []
        for row in table["rows"]:
            if isinstance(row, dict) and isinstance(row.get("name"), str) and isinstance(row.get("ours"), dict):
                figure = row["ours"].get(column)
                if isinstance(figure, int | float) and not isinstance(figure, bool) and abs(figure) < MAX_FIGURE:
                    rows.append({"name": row["name"][:80], "value": float(figure)})
        title = str(table.get("title"))[:200]
        figures.append({"name": table["name"], "title": title, "column": column, "rows": rows})
    if not figures:
        advice = f"create them: python -m experiments pos --json > {path.name}"
        raise SettingError(f"{path}: no measurements by layer; {advice}")
    return figures
