"""Settings as frozen dataclasses, to and from TOML and JSON.

A kind's settings are a dataclass of sections, each a flat dataclass; in TOML a section is a table. Values arrive in
layers (preset, file, `--set`), each over the one before. An unknown key is an error that names the nearest one. The
docstring under a field is its documentation everywhere: in `--help`, and as the comment in the TOML that `to_toml`
writes.
"""

import ast
import dataclasses
import difflib
import inspect
import json
import textwrap
import types
import typing
from collections.abc import Iterable, Mapping
from importlib import resources
from pathlib import Path
from typing import Any, Literal, TypeVar

from relmo.disk.files import LARGEST_TOML, NO_DOWNLOAD, find_url, parse_toml, read_small
from relmo.errors import SettingError, shown

S = TypeVar("S")

MOST_ITEMS = 1000  # of a list
TYPES: dict[Any, str] = {float: "a number", int: "a whole number", str: "a text", bool: "true or false"}
"""The types of settings, in words."""


OTHER_NAMES = {
    "learning_rate": "lr",
    "output_dir": "out",
    "dev": "valid",
    "validation": "valid",
    "gpu": "cuda",
    "label": "column",
    "labels": "column",
    "label_column": "column",
}
"""Settings and values as other tools call them, and as they are called here."""


def nearest(name: str, known: Iterable[str]) -> str:
    """The name that was probably meant; nothing where none is near."""
    known = list(known)
    if (other := OTHER_NAMES.get(name.lower())) in known:
        return str(other)
    return next(iter(difflib.get_close_matches(name.lower(), known, n=1, cutoff=0.65)), "")


def build(cls: type[S], *layers: Mapping[str, Any], source: str = "settings") -> S:
    """A settings object from nested dictionaries, later layers over earlier ones; what none of them names keeps its
    default."""
    merged: dict[str, dict[str, Any]] = {}
    for layer in layers:
        check_keys(cls, layer, source)
        for section, values in layer.items():
            merged.setdefault(section, {}).update(values)
    sections = {
        field.name: field.type(  # type: ignore[operator]
            **{key: _convert(field.type, key, value, f"{field.name}.{key}") for key, value in values.items()}
        )
        for field in dataclasses.fields(cls)  # type: ignore[arg-type]
        if (values := merged.get(field.name)) is not None
    }
    return cls(**sections)


def check_keys(cls: type, values: Mapping[str, Any], source: str) -> None:
    """Every section and key must exist; the error names the nearest that does."""
    if not isinstance(values, Mapping):
        raise SettingError(f"{source}: settings are tables of keys and values, not {shown(values)}")
    sections: dict[str, Any] = {section.name: section.type for section in dataclasses.fields(cls)}
    known = {f"{name}.{field.name}" for name, section in sections.items() for field in dataclasses.fields(section)}
    for section, keys in values.items():
        if section in sections and not isinstance(keys, Mapping):
            raise SettingError(f"{source}: {section} is a section; write [{section}] and its settings below that line")
        if section not in sections:
            candidates = sections if isinstance(keys, Mapping) else [*sections, *known]
            raise SettingError(_unknown(source, section, candidates))
        for key in keys:
            if f"{section}.{key}" not in known:
                raise SettingError(_unknown(source, f"{section}.{key}", known))


def _unknown(source: str, key: str, known: Iterable[str]) -> str:
    """The message for a key that does not exist, with the nearest one that does."""
    key = key[:100]
    last = {name: name.rsplit(".", 1)[-1] for name in known}
    near = [name for name in last if "." in name and last[name] == key.rsplit(".", 1)[-1]]
    near = near or difflib.get_close_matches(key, last, n=1, cutoff=0.6)
    near = near or [n for n in last if last[n] in difflib.get_close_matches(key.rsplit(".", 1)[-1], last.values(), n=1)]
    inside = [last[name] for name in sorted(last) if name.startswith(key.split(".")[0] + ".")]
    listed = inside or sorted({name.split(".")[0] for name in last})
    what = "setting" if any("." in name for name in last) else "section"
    hint = f"did you mean '{near[0]}'?" if near else f"known {what}s: {', '.join(listed)}"
    return f"{source}: unknown {what} '{key}'; {hint}"


def _convert(section: Any, key: str, value: Any, name: str) -> Any:
    """The value in the type its field declares, or an error that says what was expected and what was found."""
    hint = typing.get_type_hints(section)[key]
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is Literal:
        if any(type(value) is type(known) and value == known for known in arguments):
            return value
        near = nearest(value, map(str, arguments)) if isinstance(value, str) else ""
        hint = f"; did you mean {near}?" if near else ""
        raise SettingError(f"{name} must be one of {', '.join(map(str, arguments))}, not {shown(value)}{hint}")
    if origin in (typing.Union, types.UnionType):
        hint = next(option for option in arguments if option is not type(None))
        return None if value is None else _scalar(hint, value, name)
    if origin is tuple:
        items = value if isinstance(value, list | tuple) else [value]
        if len(items) > MOST_ITEMS:
            raise SettingError(f"{name} must have at most {MOST_ITEMS} items, not {len(items):,}")
        return tuple(_scalar(arguments[0], item, name) for item in items)
    return _scalar(hint, value, name)


def _scalar(kind: type, value: Any, name: str) -> Any:
    """A number, a truth value or a string; an integer may stand for a float, nothing else is bent into shape."""
    if kind is float and type(value) is int:
        try:
            return float(value)
        except OverflowError:
            raise SettingError(f"{name} is too large: {shown(value)}") from None
    if type(value) is not kind:
        raise SettingError(f"{name} must be {TYPES[kind]}, not {shown(value)}")
    return value


def read_toml(path: Path) -> dict[str, Any]:
    """The tables of a TOML settings file."""
    try:
        return parse_toml(read_small(path, LARGEST_TOML))
    except ValueError as error:
        if url := find_url(path):
            raise SettingError(f"{url}: {NO_DOWNLOAD}") from None
        raise SettingError(
            f"{path}: cannot read settings: {error}; settings are TOML: a line [train], below it lr = 0.001"
        ) from error


def read_preset(name: str, prefix: str) -> dict[str, Any]:
    """The tables of a preset that ships with relmo: `presets/PREFIX-NAME.toml`."""
    folder = resources.files("relmo") / "presets"
    if not isinstance(name, str):
        raise SettingError(f"a preset is given by its name, not {shown(name)}")
    files = sorted(path.name.removesuffix(".toml") for path in folder.iterdir() if path.name.endswith(".toml"))
    names = [file.removeprefix(f"{prefix}-") for file in files if file.startswith(f"{prefix}-")]
    if name not in names:
        there = f"there are {', '.join(names)}" if names else f"{prefix} has no presets"
        owners = [file.removesuffix(f"-{name}") for file in files if file.endswith(f"-{name}") and name]
        near = nearest(name, names)
        hint = f"; {name} is a preset of {' and '.join(owners)}" if owners else ""
        hint = f"; did you mean {near}?" if near else hint
        raise SettingError(f"unknown preset {shown(name)}; {there}{hint}")
    return parse_toml((folder / f"{prefix}-{name}.toml").read_text(encoding="utf-8"))


def parse_override(text: str) -> dict[str, Any]:
    """`train.lr=0.1` -> {"train": {"lr": 0.1}}; the value is read as TOML, or is a plain string where it is not."""
    key, equals, value = text.partition("=")
    section, dot, name = key.strip().partition(".")
    if not (equals and dot):
        raise SettingError(f"--set takes section.key=value, for example train.lr=0.001, not {shown(text)}")
    try:
        parsed = parse_toml(f"value = {value}")["value"]
    except ValueError:
        parsed = value
    return {section: {name: parsed}}


def to_toml(settings: Any) -> str:
    """Settings as TOML with each field's documentation as a comment above it; None is left out, as TOML has no such
    value."""
    lines: list[str] = []
    for section in dataclasses.fields(settings):
        values = getattr(settings, section.name)
        documentation = field_docs(type(values))
        lines.append(f"[{section.name}]")
        for field in dataclasses.fields(values):
            lines += [f"# {line}" for line in textwrap.wrap(documentation.get(field.name, ""), 110)]
            value = getattr(values, field.name)
            lines.append(f"# {field.name} =" if value is None else f"{field.name} = {_toml_value(value)}")
        lines.append("")
    return "\n".join(lines)


def _toml_value(value: Any) -> str:
    """A value as TOML writes it: almost as JSON does."""
    if isinstance(value, float):
        return repr(value)
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def field_docs(cls: type) -> dict[str, str]:
    """The docstring under each field of a dataclass and of those it extends, read from their source."""
    docs = field_docs(cls.__base__) if dataclasses.is_dataclass(cls.__base__) else {}
    (definition,) = ast.parse(textwrap.dedent(inspect.getsource(cls))).body
    assert isinstance(definition, ast.ClassDef)
    for field, after in zip(definition.body, definition.body[1:], strict=False):
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and isinstance(after, ast.Expr):
            docs[field.target.id] = " ".join(str(getattr(after.value, "value", "")).split())
    return docs
