"""Tables of published figures beside those of a model: where their data is found, their controls, and their rows."""

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import torch

from relmo.errors import CorpusError, ModelError
from relmo.models.bilm import BiLM
from relmo.models.sequence_model import SequenceModel
from relmo.models.vectors import WordVectors

M = TypeVar("M", bound=SequenceModel)
DATA_VARIABLE = "RELMO_DATA"


def data_folder(folder: Path | None = None) -> Path:
    """Return the data folder: `folder` if there is one, else $RELMO_DATA, else `data/` in the working directory."""
    return Path(os.environ.get(DATA_VARIABLE) or "data") if folder is None else folder


def require_data(data: Path, relative: str, description: str) -> Path:
    """Return the path of a file or folder inside the data folder; raise a `CorpusError` if it does not exist."""
    path = data / relative
    if not path.exists():
        raise CorpusError(
            f"{description}: {path} does not exist (looked for {relative} in {data.absolute()}); "
            f"set the data folder with --data DIR or {DATA_VARIABLE}=DIR"
        )
    return path


def untrained(model: M, seed: int = 0) -> M:
    """Return the same model with initial weights; torch's random state is restored."""
    if not model.is_recurrent:
        raise ModelError("Only recurrent language models can be reinitialised.")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return model.with_initial_weights()


@dataclass(frozen=True)
class Controls:
    """Control models of a table."""

    untrained: BiLM  # the same network shows what training adds
    vectors: WordVectors | None = None  # one per word type, which show what context adds; their rows are optional


@dataclass(frozen=True)
class ComparedRow:
    """Row of a table: our scores by column, the published ones, or both."""

    name: str
    ours: dict[str, float] = field(default_factory=dict)  # empty for a published system that is not run here
    published: dict[str, float] | None = None
    note: str = ""


@dataclass
class PublishedTable:
    """Published table or figure beside ours. `notes` explain the scores; `extra` has further detail for --json."""

    name: str
    title: str
    paper: str
    columns: tuple[str, ...]
    rows: list[ComparedRow]
    notes: list[str] = field(default_factory=list)
    extra: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for row in self.rows:
            if unknown := {*row.ours, *(row.published or {})} - {*self.columns}:
                raise ValueError(f"{self.name}: the row {row.name!r} has no column named {', '.join(sorted(unknown))}")

    def summary(self) -> dict[str, Any]:
        """Return the table as plain values, as --json prints it."""
        rows = [{"name": row.name, "ours": row.ours, "published": row.published, "note": row.note} for row in self.rows]
        about = {"name": self.name, "title": self.title, "paper": self.paper, "columns": list(self.columns)}
        return about | {"rows": rows, "notes": self.notes, "extra": self.extra}
