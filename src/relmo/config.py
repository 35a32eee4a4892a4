"""Settings from TOML and JSON, and to TOML, in which a section of settings is a table. Values come in layers (preset,
file, `--set`), later ones over earlier ones. An unknown key is an error that names the nearest key."""

import ast
import dataclasses
import difflib
import inspect
import json
import sys
import textwrap
from collections.abc import Iterable, Mapping
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any, TypeVar

from relmo.disk.files import MAX_TOML_BYTES, NO_DOWNLOAD, find_url, parse_toml, read_text_file
from relmo.errors import SettingError, quote
from relmo.settings.fields import convert_setting, nearest, setting_fields

S = TypeVar("S")


def build(cls: type[S], *layers: Mapping[str, Any], source: str = "settings") -> S:
    """Build a settings object from nested dictionaries, later layers over earlier ones; other settings keep their
    defaults."""
    merged: dict[str, dict[str, Any]] = {}
    for layer in layers:
        check_keys(cls, layer, source)
        for name, values in layer.items():
            merged.setdefault(name, {}).update(values)
    sections: dict[str, Any] = {}
    for field in dataclasses.fields(cls):  # type: ignore[arg-type]
        if (values := merged.get(field.name)) is not None:
            section: Any = field.type
            declared = setting_fields(section)
            sections[field.name] = section(
                **{
                    key: convert_setting(value, declared[key].hint, f"{field.name}.{key}")
                    for key, value in values.items()
                }
            )
    return cls(**sections)


def check_keys(cls: type, values: Mapping[str, Any], source: str) -> None:
    """Raise `SettingError` for an unknown section or key, with the nearest one."""
    if not isinstance(values, Mapping):
        raise SettingError(f"{source}: settings are tables of keys and values, not {quote(values)}")
    sections: dict[str, Any] = {section.name: section.type for section in dataclasses.fields(cls)}
    names = {f"{name}.{field.name}" for name, section in sections.items() for field in dataclasses.fields(section)}
    for section, keys in values.items():
        if section in sections and not isinstance(keys, Mapping):
            raise SettingError(f"{source}: {section} is a section; write [{section}] and its settings below that line")
        if section not in sections:
            candidates = sections if isinstance(keys, Mapping) else [*sections, *names]
            raise SettingError(_describe_unknown(source, section, candidates))
        for key in keys:
            if f"{section}.{key}" not in names:
                raise SettingError(_describe_unknown(source, f"{section}.{key}", names))


def _describe_unknown(source: str, key: str, names: Iterable[str]) -> str:
    key = key[:100]
    keys = {name: name.rsplit(".", 1)[-1] for name in names}
    near = [name for name in keys if "." in name and keys[name] == key.rsplit(".", 1)[-1]]
    near = near or difflib.get_close_matches(key, keys, n=1, cutoff=0.6)
    if not near:
        near_keys = difflib.get_close_matches(key.rsplit(".", 1)[-1], keys.values(), n=1)
        near = [name for name in keys if keys[name] in near_keys]
    what = "setting" if any("." in name for name in keys) else "section"
    if near:
        return f"{source}: unknown {what} '{key}'; did you mean '{near[0]}'?"
    siblings = [keys[name] for name in sorted(keys) if name.startswith(key.split(".")[0] + ".")]
    listing = siblings or sorted({name.split(".")[0] for name in keys})
    return f"{source}: unknown {what} '{key}'; known {what}s: {', '.join(listing)}"


def read_toml(path: Path) -> dict[str, Any]:
    """Read the tables of a TOML settings file."""
    try:
        return parse_toml(read_text_file(path, MAX_TOML_BYTES))
    except ValueError as error:
        if url := find_url(path):
            raise SettingError(f"{url}: {NO_DOWNLOAD}") from None
        advice = "settings are TOML: a line [train], below it lr = 0.001"
        raise SettingError(f"{path}: cannot read settings: {error}; {advice}") from error


def read_preset(name: str, prefix: str) -> dict[str, Any]:
    """Read the tables of a bundled preset, `presets/PREFIX-NAME.toml`."""
    folder = resources.files("relmo") / "presets"
    if not isinstance(name, str):
        raise SettingError(f"a preset is given by its name, not {quote(name)}")
    files = sorted(path.name.removesuffix(".toml") for path in folder.iterdir() if path.name.endswith(".toml"))
    names = [file.removeprefix(f"{prefix}-") for file in files if file.startswith(f"{prefix}-")]
    if name not in names:
        listing = f"there are {', '.join(names)}" if names else f"{prefix} has no presets"
        kinds = [file.removesuffix(f"-{name}") for file in files if file.endswith(f"-{name}") and name]
        if near := nearest(name, names):
            listing += f"; did you mean {near}?"
        elif kinds:
            listing += f"; {name} is a preset of {' and '.join(kinds)}"
        raise SettingError(f"unknown preset {quote(name)}; {listing}")
    return parse_toml((folder / f"{prefix}-{name}.toml").read_text(encoding="utf-8"))


def parse_override(text: str) -> dict[str, Any]:
    """Parse `train.lr=0.1` to {"train": {"lr": 0.1}}; the value is TOML, or else a plain string."""
    key, equals, value = text.partition("=")
    section, dot, name = key.strip().partition(".")
    if not (equals and dot):
        raise SettingError(f"--set takes section.key=value, for example train.lr=0.001, not {quote(text)}")
    try:
        parsed = parse_toml(f"value = {value}")["value"]
    except ValueError:
        parsed = value
    return {section: {name: parsed}}


def to_toml(settings: Any) -> str:
    """Write settings as TOML, with the documentation of each field as a comment; None, which TOML does not have, is a
    comment too."""
    lines: list[str] = []
    for section in dataclasses.fields(settings):
        values = getattr(settings, section.name)
        documentation = field_docs(type(values))
        lines.append(f"[{section.name}]")
        for field in dataclasses.fields(values):
            lines += [f"# {line}" for line in textwrap.wrap(documentation.get(field.name, ""), 110)]
            value = getattr(values, field.name)
            if value is None:
                lines.append(f"# {field.name} =")
            elif isinstance(value, float):
                lines.append(f"{field.name} = {value!r}")
            else:  # TOML writes all other values as JSON does, but for one control character
                text = json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
                lines.append(f"{field.name} = {text}")
        lines.append("")
    return "\n".join(lines)


def field_docs(cls: type) -> dict[str, str]:
    """Return the docstrings below the fields of a dataclass and its bases, read from their source."""
    docs: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        if dataclasses.is_dataclass(base):
            docs |= _module_docs(base.__module__)[base.__name__]
    return docs


@cache
def _module_docs(module: str) -> dict[str, dict[str, str]]:
    """Return the docstrings below the fields of each class of a module."""
    docs: dict[str, dict[str, str]] = {}
    for definition in ast.parse(inspect.getsource(sys.modules[module])).body:
        if isinstance(definition, ast.ClassDef):
            fields = docs[definition.name] = {}
            for field, after in zip(definition.body, definition.body[1:], strict=False):
                if isinstance(field, ast.AnnAssign) and isinstance(after, ast.Expr):
                    fields[ast.unparse(field.target)] = " ".join(str(getattr(after.value, "value", "")).split())
    return docs
