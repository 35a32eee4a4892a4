"""Companion models and files given on the command line: models, a training text, minimal pairs, measurements.

A page refers to them by name, never by path.
"""

import re
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from relmo.disk.files import parse_json, read_text_file
from relmo.errors import CorpusError, ModelError, SettingError
from relmo.explorer.packs import Pack, find_packs
from relmo.loading import load
from relmo.models.bilm import BiLM
from relmo.models.lm import LanguageModel
from relmo.settings.kinds import TASKS
from relmo.store.folder import CONFIG, read_config
from relmo.store.references import find_bundled
from relmo.tasks.task import Task

FIGURES = {"pos": "all words", "wsd": "both sets"}  # measurements by layer, and the column shown for each
MAX_FIGURE = 1e9


@dataclass
class Extras:
    """Companions of a model. They are checked at once and loaded on request.

    models         folders of language models by name, in order, such as the checkpoints of a run
    tasks          folders of trained tasks by name, whose layer weights are shown
    train          text the model was trained on
    packs          minimal pairs by name
    figures        measurements by layer
    tokenizer      how the models split raw text into words; by default as each was trained
    layer_mixes    layer weights of loaded tasks by name
    """

    models: dict[str, Path] = field(default_factory=dict)
    tasks: dict[str, Path] = field(default_factory=dict)
    train: Path | None = None
    packs: dict[str, Pack] = field(default_factory=dict)
    figures: list[dict[str, Any]] = field(default_factory=list)
    device: str = "cpu"
    tokenizer: Literal["words", "whitespace"] | None = None
    layer_mixes: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    loaded: dict[str, Any] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)

    @classmethod
    def from_paths(
        cls,
        sources: Sequence[str] = (),
        *,
        train: Path | None = None,
        data: Path | None = None,
        figures: Path | None = None,
        device: str = "cpu",
    ) -> "Extras":
        """Check models or folders of models, a text, a folder of minimal pairs, and a file of measurements."""
        if train is not None and not train.is_file():
            raise CorpusError(f"{train}: no such file; --train takes the text the model was trained on.")
        extras = cls(train=train, device=device)
        folders = [folder for source in sources for folder in find_models(source)]
        base_names = [folder.name for folder in folders]
        for folder in folders:
            name = folder.name if base_names.count(folder.name) == 1 else str(folder)
            kind = read_config(folder).get("kind")
            if kind in ("lm", "bilm"):
                extras.models[name] = folder
            elif kind in TASKS:
                extras.tasks[name] = folder
            else:
                raise ModelError(f"{folder} is of kind {kind}; --beside takes language models and trained tasks.")
        extras.packs = {} if data is None else find_packs(data)
        extras.figures = [] if figures is None else read_figures(figures)
        return extras

    def about(self, kind: str) -> dict[str, Any]:
        """Describe the companions to the page of a model of this kind; companion models are of the same kind."""
        return {
            "beside": [name for name, folder in self.models.items() if read_config(folder).get("kind") == kind],
            "train": self.train.name if self.train else "",
            "packs": [{"name": name, "title": pack.title} for name, pack in self.packs.items()],
            "figures": self.figures if kind == "bilm" else [],
            "mixes": bool(self.tasks or self.layer_mixes) and kind == "bilm",
        }

    def model(self, name: str) -> LanguageModel | BiLM:
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
                    task = load(str(folder), kinds=TASKS, device="cpu")
                    self.layer_mixes[name] = get_layer_mixes(task)  # type: ignore[arg-type]
            return [{"task": name, "mixes": mixes} for name, mixes in self.layer_mixes.items()]


def get_layer_mixes(task: Task[Any, Any]) -> list[dict[str, Any]]:
    """Return the layer weights and gamma of each of a task's scalar mixes; empty without ELMo."""
    mixes = task.network.inputs.mix_weights()
    return [{"name": name, "shares": mix["weights"], "gamma": mix["gamma"]} for name, mix in mixes.items()]


def find_models(source: str) -> list[Path]:
    """Return the folder of a model, or the model folders inside a folder, epoch-9 before epoch-10."""
    folder = find_bundled(source) or Path(source)
    if (folder / CONFIG).is_file() or not folder.is_dir():
        return [folder]  # reading it raises the error
    folders = [path for path in folder.iterdir() if (path / CONFIG).is_file()]
    if not folders:
        raise ModelError(f"{folder} is not a model folder and contains none.")
    return sorted(folders, key=lambda path: [(len(part), part) for part in re.findall(r"\d+|\D+", path.name)])


def read_figures(path: Path) -> list[dict[str, Any]]:
    """Read measurements by layer, printed by `relmo analyse meaning --measure` or `python -m experiments` as JSON."""
    problem = f"{path}: no measurements by layer; create them: relmo analyse meaning --measure pos --json > {path.name}"
    try:
        content = parse_json(read_text_file(path))
    except ValueError as error:
        raise SettingError(f"{path}: {error}; --figures takes a file that relmo printed with --json.") from None
    if not isinstance(content, dict):
        raise SettingError(problem)
    tables = content.get("reproductions")
    tables = tables if isinstance(tables, list) else [content.get(name) for name in FIGURES]
    figures = [figure for table in tables if (figure := _parse_table(table)) is not None]
    if not figures:
        raise SettingError(problem)
    return figures


def _parse_table(table: Any) -> dict[str, Any] | None:
    if not isinstance(table, dict) or not isinstance(table.get("rows"), list) or table.get("name") not in [*FIGURES]:
        return None
    column, rows = FIGURES[table["name"]], []
    for row in table["rows"]:
        if isinstance(row, dict) and isinstance(row.get("name"), str) and isinstance(row.get("ours"), dict):
            figure = row["ours"].get(column)
            if isinstance(figure, int | float) and not isinstance(figure, bool) and abs(figure) < MAX_FIGURE:
                rows.append({"name": row["name"][:80], "value": float(figure)})
    return {"name": table["name"], "title": str(table.get("title"))[:200], "column": column, "rows": rows}
