"""Settings of a run, from the resumed run, a preset, a file and single settings, each over the one before; flags or
keywords override them all. No torch, so that `relmo train KIND --help` is fast."""

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from relmo.config import build, check_keys, nearest, parse_override, read_preset, read_toml
from relmo.errors import SettingError, quote
from relmo.registry import cell_names
from relmo.settings.kinds import KIND_ALIASES, KINDS, settings_class

Layer = Mapping[str, Mapping[str, Any]]
"""Settings as section -> key -> value."""
FLAG_SUBSTITUTES = {
    "quiet": "use progress=False",
    "json": "the results are in the model's `results`",
    "set": "give the settings as keywords",
    "dry_run": "`relmo train KIND FILES --dry-run --out DIR` prints the plan",
}
"""Flags of the command line that are not keywords of `relmo.train`, with their substitutes."""


def settings_layers(
    kind: str,
    *,
    resumed: Path | None = None,
    preset: str | None = None,
    config: Path | None = None,
    overrides: Iterable[str] = (),
) -> list[Layer]:
    """Return the layers of a run's settings; `resumed` is the run folder, overrides are section.key=value."""
    layers: list[Layer] = []
    if resumed is not None:
        from relmo.runs.folder import RUN, read_run

        if (resumed / RUN).exists():  # without a run, an error follows later
            note = read_run(resumed)
            if note.get("kind") != kind:
                raise SettingError(f"--resume: the run in {resumed} is of kind {quote(note.get('kind'))}, not {kind}")
            layers.append(note["settings"])
    if preset is not None:
        layers.append(read_preset(preset, kind))
    if config is not None:
        layers.append(read_toml(config))
        check_keys(settings_class(kind), layers[-1], str(config))
    return layers + [parse_override(text) for text in overrides]


class Flag(NamedTuple):
    """Setting as a flag or keyword: its section and default."""

    section: str
    default: Any


def flags_of(kind: str) -> dict[str, Flag]:
    """Return all settings of a kind by name."""
    sections = vars(settings_class(kind)())
    return {name: Flag(section, value) for section in sections for name, value in vars(sections[section]).items()}


def keyword_settings(kind: str, layers: Iterable[Layer], keywords: Mapping[str, Any], others: Iterable[str]) -> Any:
    """Build settings from layers and, over them, keywords, named like flags; `others` are suggested for typos too."""
    flags = flags_of(kind)
    sections: dict[str, dict[str, Any]] = {}
    for name, value in keywords.items():
        if name not in flags:
            hint = FLAG_SUBSTITUTES.get(name) or _suggest(name, [*flags, *others])
            raise SettingError(
                f"{quote(name)} is not a setting of kind {kind}; {hint or f'`relmo train {kind} --help` lists all'}"
            )
        sections.setdefault(flags[name].section, {})[name] = _to_plain(value)
    return build(settings_class(kind), *layers, sections)


def check_kind(kind: Any) -> None:
    """Raise `SettingError` if there is no such kind of model."""
    if isinstance(kind, str) and kind in KINDS:
        return
    hint = ""
    if isinstance(kind, str):
        hint = _suggest(kind, KINDS)
        if alias := KIND_ALIASES.get(kind.lower()):
            cell = f", with the cell {kind!r}" if kind in cell_names() else ""
            hint = f"did you mean {alias!r}{cell}?"
    raise SettingError(f"there is no kind {quote(kind)}; {hint or 'take one of these:'} ({', '.join(KINDS)})")


def _suggest(name: str, candidates: Iterable[str]) -> str:
    near = nearest(name, candidates)
    return f"did you mean {near!r}?" if near else ""


def _to_plain(value: Any) -> Any:
    """Convert paths to strings and numpy numbers to Python's."""
    if isinstance(value, list | tuple):
        return tuple(map(_to_plain, value))
    # numpy is not imported, since `--help` would wait for it
    if type(value).__module__ == "numpy" and getattr(value, "shape", None) == ():
        return value.item()
    return os.fspath(value) if isinstance(value, os.PathLike) else value
