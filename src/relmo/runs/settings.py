"""The settings of a run from all that says something of them: the run that goes on, a preset, a file, single settings.
Each goes over the one before; the command line's flags, or Python's keywords, go over all of them.

It needs no torch, since `relmo train KIND --help` must not wait for it.
"""

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from relmo.config import build, check_keys, nearest, parse_override, read_preset, read_toml
from relmo.errors import SettingError, shown
from relmo.settings.cells import CELLS
from relmo.settings.kinds import ALSO_CALLED, KINDS, settings_class

Layer = Mapping[str, Mapping[str, Any]]
"""Settings as section -> key -> value."""
IN_PYTHON = {
    "quiet": "progress=False is silent",
    "json": "the results are in the model's `results`",
    "set": "give the settings themselves as keywords",
    "dry_run": "`relmo train KIND FILES --dry-run --out DIR` prints the plan",
}
"""What stands for a flag of the command line that is no keyword."""


def settings_layers(
    kind: str,
    *,
    resumed: Path | None = None,
    preset: str | None = None,
    config: Path | None = None,
    overrides: Iterable[str] = (),
) -> list[Layer]:
    """What is said of a run's settings, each over the one before; `resumed` is the folder of the run that goes on, and
    overrides are section.key=value."""
    layers: list[Layer] = [] if resumed is None else [_saved_settings(resumed, kind)]
    if preset is not None:
        layers.append(read_preset(preset, kind))
    if config is not None:
        layers.append(read_toml(config))
        check_keys(settings_class(kind), layers[-1], str(config))
    return layers + [parse_override(text) for text in overrides]


def _saved_settings(out: Path, kind: str) -> Layer:
    """The settings of the run in a folder; none where there is no run, which is an error later."""
    from relmo.runs.folder import RUN, read_run

    if not (out / RUN).exists():
        return {}
    note = read_run(out)
    if note.get("kind") != kind:
        raise SettingError(f"--resume: the run in {out} is of kind {shown(note.get('kind'))}, not {kind}")
    return note["settings"]


class Flag(NamedTuple):
    """A setting as a flag of the command line, or a keyword of Python: its section and its default."""

    section: str
    default: Any


def flags_of(kind: str) -> dict[str, Flag]:
    """All settings of a kind by name."""
    sections = vars(settings_class(kind)())
    return {name: Flag(section, value) for section in sections for name, value in vars(sections[section]).items()}


def keyword_settings(kind: str, layers: Iterable[Layer], keywords: Mapping[str, Any], others: Iterable[str]) -> Any:
    """The settings of a kind from layers and, over them, keywords: the names of its flags, with underscores. `others`
    are keywords that the caller has taken for himself, to be named where one was mistyped."""
    flags = flags_of(kind)
    given: dict[str, dict[str, Any]] = {}
    for name, value in keywords.items():
        if name not in flags:
            near = IN_PYTHON.get(name) or _meant(name, [*flags, *others])
            raise SettingError(
                f"{shown(name)} is not a setting of kind {kind}; {near or f'`relmo train {kind} --help` lists all'}"
            )
        given.setdefault(flags[name].section, {})[name] = _plain(value)
    return build(settings_class(kind), *layers, given)


def check_kind(kind: Any) -> None:
    """An error where there is no such kind of model."""
    if not isinstance(kind, str) or kind not in KINDS:
        named = ALSO_CALLED.get(kind.lower()) if isinstance(kind, str) else None
        cell = f", with the cell {kind!r}" if isinstance(kind, str) and kind in CELLS else ""
        near = f"did you mean {named!r}{cell}?" if named else _meant(kind, KINDS) if isinstance(kind, str) else ""
        raise SettingError(f"there is no kind {shown(kind)}; {near or 'take one of these:'} ({', '.join(KINDS)})")


def _meant(name: str, known: Iterable[str]) -> str:
    near = nearest(name, known)
    return f"did you mean {near!r}?" if near else ""


def _plain(value: Any) -> Any:
    """A caller's value as settings hold it: paths as strings, numpy's numbers as Python's."""
    if isinstance(value, list | tuple):
        return tuple(map(_plain, value))
    if isinstance(value, np.generic):
        return value.item()
    return os.fspath(value) if isinstance(value, os.PathLike) else value
