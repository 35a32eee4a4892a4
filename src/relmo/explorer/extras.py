"""What the explorer is given beside a model: other models, the model's training text, published pairs, figures measured
before. A page asks for them by name, never by path."""

import re
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from relmo.disk.files import parse_json, read_small
from relmo.errors import CorpusError, ModelError, SettingError
from relmo.explorer.packs import Pack, find_packs
from relmo.loading import load
from relmo.models.bilm import BiLM
from relmo.models.lm import LanguageModel
from relmo.settings.kinds import TASKS
from relmo.store.folder import CONFIG, read_config
from relmo.store.references import bundled
from relmo.tasks.task import Task

FIGURES = {"pos": "all words", "wsd": "both sets"}  # measurements by layer, and the column that is shown of each
MOST = 1e9  # that a figure is


@dataclass
class Extras:
    """What the user named. It is checked at once, and opened when a page asks for it.

    models     language models by name, in their order, such as checkpoints of a run
    tasks      trained tasks by name, whose mixes of layers are shown
    train      the text the model was trained on
    packs      minimal pairs by name
    figures    what was measured by layer
    tokenizer  how the models split raw text into words; as each was trained where it is None
    """

    models: dict[str, Path] = field(default_factory=dict)
    tasks: dict[str, Path] = field(default_factory=dict)
    train: Path | None = None
    packs: dict[str, Pack] = field(default_factory=dict)
    figures: list[dict[str, Any]] = field(default_factory=list)
    device: str = "cpu"
    tokenizer: Literal["words", "whitespace"] | None = None
    learnt: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    opened: dict[str, Any] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)

    @classmethod
    def of(
        cls,
        beside: Sequence[str] = (),
        *,
        train: Path | None = None,
        data: Path | None = None,
        figures: Path | None = None,
        device: str = "cpu",
    ) -> "Extras":
        """What a user names: models, or folders of models; a text; a folder of minimal pairs; a file of figures."""
        found = cls(train=train, device=device)
        if train is not None and not train.is_file():
            raise CorpusError(f"{train}: there is no such file; --train takes the text the model was trained on")
        folders = [folder for source in beside for folder in models_in(source)]
        short = [folder.name for folder in folders]
        for folder in folders:
            name = folder.name if short.count(folder.name) == 1 else str(folder)
            kind = read_config(folder).get("kind")
            if kind in ("lm", "bilm"):
                found.models[name] = folder
            elif kind in TASKS:
                found.tasks[name] = folder
            else:
                raise ModelError(f"{folder}: is of kind {kind}; --beside takes language models and trained tasks")
        if data is not None:
            found.packs = find_packs(data)
        if figures is not None:
            found.figures = read_figures(figures)
        return found

    def about(self, kind: str) -> dict[str, Any]:
        """What there is for a page with a model of this kind; of the other models, those of the same kind."""
        same = [name for name, folder in self.models.items() if read_config(folder).get("kind") == kind]
        return {
            "beside": same,
            "train": self.train.name if self.train else "",
            "packs": [{"name": name, "title": pack.title} for name, pack in self.packs.items()],
            "figures": self.figures if kind == "bilm" else [],
            "mixes": bool(self.tasks or self.learnt) and kind == "bilm",
        }

    def model(self, name: str) -> LanguageModel | BiLM:
        """One of the models; opened once."""
        with self.lock:
            if name not in self.opened:
                model = load(str(self.models[name]), device=self.device)
                self.opened[name] = model.splitting(self.tokenizer)
            return self.opened[name]

    def mixes(self) -> list[dict[str, Any]]:
        """How much trained tasks take of each layer; an empty list for a task without ELMo."""
        with self.lock:
            for name, folder in self.tasks.items():
                if name not in self.learnt:
                    self.learnt[name] = learnt_mixes(load(str(folder), kinds=TASKS, device="cpu"))  # type: ignore[arg-type]
            return [{"task": name, "mixes": mixes} for name, mixes in self.learnt.items()]


def learnt_mixes(task: Task[Any, Any]) -> list[dict[str, Any]]:
    """The layers' shares and gamma of each of a task's mixes; none where it reads no ELMo."""
    found = task.network.inputs.mix_weights()
    return [{"name": place, "shares": mix["weights"], "gamma": mix["gamma"]} for place, mix in found.items()]


def models_in(source: str) -> list[Path]:
    """The folder of a model, perhaps of one that ships; or the models that a folder holds, epoch-9 before epoch-10."""
    folder = bundled(source) or Path(source)
    if (folder / CONFIG).is_file() or not folder.is_dir():
        return [folder]  # says what is wrong when it is read
    inside = [each for each in folder.iterdir() if (each / CONFIG).is_file()]
    if not inside:
        raise ModelError(f"{folder}: is not a model, and has no folders that are models")
    return sorted(inside, key=lambda each: [(len(n), n) for n in re.findall(r"\d+|\D+", each.name)])


def read_figures(path: Path) -> list[dict[str, Any]]:
    """Reads what `relmo analyse meaning --measure` or `relmo reproduce` printed with --json: the rows of each
    measurement by layer."""
    wrong = f"{path}: has no figures by layer; write some: relmo analyse meaning --measure pos --json > {path.name}"
    try:
        given = parse_json(read_small(path))
    except ValueError as error:
        raise SettingError(f"{path}: {error}; --figures takes a file that relmo printed with --json") from None
    if not isinstance(given, dict):
        raise SettingError(wrong)
    listed = given.get("reproductions")
    tables = listed if isinstance(listed, list) else [given.get(name) for name in FIGURES]
    found = [shown for table in tables if (shown := _figure_rows(table)) is not None]
    if not found:
        raise SettingError(wrong)
    return found


def _figure_rows(table: Any) -> dict[str, Any] | None:
    """The rows of a measurement by layer, one figure each; None where the table is no such measurement."""
    if not isinstance(table, dict) or not isinstance(table.get("rows"), list) or table.get("name") not in [*FIGURES]:
        return None
    column, rows = FIGURES[table["name"]], []
    for row in table["rows"]:
        if isinstance(row, dict) and isinstance(row.get("name"), str) and isinstance(row.get("ours"), dict):
            value = row["ours"].get(column)
            if isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < MOST:
                rows.append({"name": row["name"][:80], "value": float(value)})
    return {"name": table["name"], "title": str(table.get("title"))[:200], "column": column, "rows": rows}
