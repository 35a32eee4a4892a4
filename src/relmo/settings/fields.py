"""Types, bounds and conditions of settings, and checks. A field's annotation says all that its value must satisfy:
the type, the bounds (`msgspec.Meta`), and the settings without which it has no effect (`Only`). The docstring below is
its documentation. TOML, JSON, keywords and flags all end in `convert_setting`, so that the rules are written once."""

import dataclasses
import difflib
import os
import re
import types
import typing
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, NamedTuple, dataclass_transform

import msgspec
from msgspec import Meta

from relmo.errors import SettingError, quote

MAX_SEED = 1 << 62
MAX_THREADS = 4096
MAX_FILTERS = 1000

Size = Annotated[int, Meta(ge=1, le=1 << 24)]
Dimension = Annotated[int, Meta(ge=1, le=1 << 16)]
OptionalDimension = Annotated[int, Meta(ge=0, le=1 << 16)]  # 0 turns a part of a network off
NumLayers = Annotated[int, Meta(ge=1, le=1000)]
OptionalLayers = Annotated[int, Meta(ge=0, le=1000)]
Count = Annotated[int, Meta(ge=1, le=1 << 40)]
Rate = Annotated[float, Meta(ge=0, lt=1)]  # of dropout, of decay
HeldOut = Annotated[float, Meta(ge=0, le=0.5)]
Weight = Annotated[float, Meta(ge=0, le=1e9)]  # of a term of the loss; a threshold, where 0 turns it off
Sizes = Annotated[tuple[Size, ...], Meta(max_length=1000)]
Names = Annotated[tuple[str, ...], Meta(max_length=1000)]
LearningRate = Annotated[float, Meta(ge=1e-12, le=1e6)]
Epochs = Annotated[float, Meta(ge=1e-9, le=1e9)]
Steps = Annotated[int, Meta(ge=0, le=1 << 40)]

Progress = Callable[[float], object]
"""Progress callback of long computations, called with the fraction that is done."""

if TYPE_CHECKING:
    PathName = str
else:
    PathName = str | Path
"""String that is, or may be, the path of a file. As Path is one of its types, shells complete it."""

TYPE_NAMES: dict[Any, str] = {float: "a number", int: "a whole number", str: "a string", bool: "true or false"}
SYNONYMS = {  # names of settings and values in other tools, with the name used here
    "learning_rate": "lr",
    "output_dir": "out",
    "gpu": "cuda",
    **dict.fromkeys(("dev", "validation"), "valid"),
    **dict.fromkeys(("label", "labels", "label_column"), "column"),
}

ENABLED, DISABLED = "enabled", "disabled"


class OneOf:
    """Choices of a string setting that may grow while the program runs, such as the registered cells; `advice` ends the
    message on an unknown one."""

    def __init__(self, names: Callable[[], tuple[str, ...]], advice: str = ""):
        self.names, self.advice = names, advice


class Only:
    """Condition without which a setting has no effect: `Only(optimizer="sgd")`. A tuple lists values of the other
    setting, and so does a function that returns one; ENABLED is all values but None, False and 0, DISABLED these.
    Several conditions must all hold."""

    def __init__(self, **conditions: Any):
        self.conditions = conditions

    def check(self, name: str, section: Any) -> None:
        """Raise `SettingError` if a condition does not hold in a section; `name` is the setting it belongs to."""
        for dependency, allowed in self.conditions.items():
            value = getattr(section, dependency)
            allowed = allowed() if callable(allowed) else allowed
            if allowed in (ENABLED, DISABLED):
                if bool(value) != (allowed == ENABLED):
                    condition = f"{'with' if value else 'without'} {dependency}"
                    raise SettingError(f"{name} has no effect {condition}; leave it out")
            elif value not in (allowed := allowed if isinstance(allowed, tuple) else (allowed,)):
                choices = typing.get_args(_unwrap(setting_fields(type(section))[dependency].hint)[0])
                listing = ", ".join(str(choice) for choice in choices if choice in allowed)
                condition = f"with {dependency} {value} (only with {dependency} {listing})"
                raise SettingError(f"{name} has no effect {condition}; leave it out")


class SettingField(NamedTuple):
    """Declaration of a setting: the type with its bounds, the default, and the conditions."""

    hint: Any
    default: Any
    conditions: tuple[Only, ...]


@dataclass_transform(kw_only_default=True, frozen_default=True, field_specifiers=(dataclasses.field,))
class FrozenSettings:
    """Base class of settings; makes its subclasses frozen dataclasses."""

    def __init_subclass__(cls) -> None:
        dataclasses.dataclass(frozen=True, kw_only=True)(cls)


class SettingsSection(FrozenSettings):
    """Base class of a group of settings: a TOML table, a group of flags."""

    def check(self) -> None:
        """Raise `SettingError` if a value has the wrong type, is out of bounds, or has no effect."""
        declared = setting_fields(type(self))
        for name, setting in declared.items():
            convert_setting(getattr(self, name), setting.hint, name)
        for name, setting in declared.items():
            if setting.conditions and getattr(self, name) != setting.default:
                for condition in setting.conditions:
                    condition.check(name, self)


class KindSettings(FrozenSettings):
    """Base class of all settings of a kind of model; its fields are sections."""

    files: ClassVar[str]
    """Help on the files that the kind is trained on."""

    def check(self) -> None:
        """Raise `SettingError` if the settings make no sense, alone or together."""
        for section in vars(self).values():
            section.check()


def setting_fields(section: type) -> dict[str, SettingField]:
    """Return the declarations of a section's settings by name."""
    hints = {name: resolve_choices(hint) for name, hint in typing.get_type_hints(section, include_extras=True).items()}
    return {
        field.name: SettingField(
            hints[field.name],
            field.default,
            tuple(extra for extra in getattr(hints[field.name], "__metadata__", ()) if isinstance(extra, Only)),
        )
        for field in dataclasses.fields(section)
    }


def resolve_choices(hint: Any) -> Any:
    """Replace a string with `OneOf` by a `Literal` of its present choices, with the same annotations."""
    extras = getattr(hint, "__metadata__", ())
    names = next((extra.names() for extra in extras if isinstance(extra, OneOf)), None)
    return hint if names is None else Annotated[(Literal[names], *extras)]


def convert_setting(value: Any, hint: Any, name: str) -> Any:
    """Return a value as its setting declares it, or raise `SettingError`. An integer may stand for a float, a path for
    its string, and a single value for a tuple; nothing else is converted."""
    declared, bounds, optional = _unwrap(hint)
    if value is None and optional:
        return None
    if Path in typing.get_args(declared):  # PathName; msgspec knows no unions with paths
        declared = hint = str
        value = os.fspath(value) if isinstance(value, os.PathLike) else value
    is_tuple = typing.get_origin(declared) is tuple
    if is_tuple and not isinstance(value, list | tuple):
        value = [value]
    try:
        return msgspec.convert(value, hint)
    except msgspec.ValidationError:
        if is_tuple:
            for entry in value[: bounds.max_length]:
                convert_setting(entry, typing.get_args(declared)[0], name)
            raise SettingError(f"{name} must have at most {bounds.max_length} values, not {len(value):,}") from None
        advice = "".join(extra.advice for extra in getattr(hint, "__metadata__", ()) if isinstance(extra, OneOf))
        raise SettingError(f"{name} must be {_describe(declared, bounds, value)}{advice}") from None


def _unwrap(hint: Any) -> tuple[Any, Any, bool]:
    """Return the type inside `Annotated` and `| None`, its bounds, and whether None is allowed."""
    bounds, optional = None, False
    while True:
        if typing.get_origin(hint) is Annotated:
            bounds = next((extra for extra in hint.__metadata__ if isinstance(extra, Meta)), bounds)
            hint = hint.__origin__
        elif typing.get_origin(hint) in (typing.Union, types.UnionType) and type(None) in typing.get_args(hint):
            inner = [option for option in typing.get_args(hint) if option is not type(None)]
            hint, optional = typing.Union[tuple(inner)], True  # noqa: UP007
        else:
            return hint, bounds, optional


def _describe(declared: Any, bounds: Any, value: Any) -> str:
    if typing.get_origin(declared) is Literal:
        choices = [str(choice) for choice in typing.get_args(declared)]
        near = nearest(value, choices) if isinstance(value, str) else ""
        return f"one of {', '.join(choices)}, not {quote(value)}" + (f"; did you mean {near}?" if near else "")
    is_number = type(value) is int or (type(value) is float and declared is float)
    if bounds is None or not is_number:
        return f"{TYPE_NAMES.get(declared, declared)}, not {quote(value)}"
    low, high = bounds.ge, "below 1" if bounds.lt is not None else f"{bounds.le or 0:,.10g}"
    if bounds.le is None and bounds.lt is None:
        allowed = f"{low} or more"
    elif 0 < low < 1e-5:  # such a bound only excludes 0
        allowed = f"above 0 and at most {high}"
    else:
        allowed = f"from {low:,.10g} to {high}"
    return f"{allowed}, not {quote(value)}"


def nearest(name: str, candidates: Iterable[str]) -> str:
    """Return the candidate that was probably meant, or an empty string."""
    candidates = list(candidates)
    if (synonym := SYNONYMS.get(name.lower())) in candidates:
        return str(synonym)
    return next(iter(difflib.get_close_matches(name.lower(), candidates, n=1, cutoff=0.65)), "")


def refuse(section: Any, names: Iterable[str], reason: str) -> None:
    """Raise `SettingError` if one of these settings differs from its default, as it would have no effect."""
    declared = setting_fields(type(section))
    for name in names:
        if getattr(section, name) != declared[name].default:
            raise SettingError(f"{name} has no effect {reason}; leave it out")


def inherit(section: Any, values: dict[str, Any], source: str) -> Any:
    """Return a section with the values of the model that it is initialised from; raise `SettingError` if a setting is
    neither its default nor the same."""
    default = type(section)()
    for name, required in values.items():
        value, expected, unset = (
            " ".join(map(str, setting)).replace(",", " ") if isinstance(setting, tuple) else setting
            for setting in (getattr(section, name), required, getattr(default, name))
        )
        if value not in (expected, unset):
            problem = f"{name} is {value}, but {expected} in --init {source}"
            raise SettingError(f"{problem}, whose geometry is kept; omit {name}")
    return dataclasses.replace(section, **values)


def parse_filters(filters: Iterable[str], max_characters: int | None = None) -> list[tuple[int, int]]:
    """Parse ["1x32", "2x64"], or ["1x32,2x64"], to [(1, 32), (2, 64)]: pairs of width and number of filters. Raise
    `SettingError` if one is malformed or wider than `max_characters`."""
    parts = [part for text in filters for part in text.replace(",", " ").split()]
    if len(parts) > MAX_FILTERS:
        raise SettingError(f"filters must have at most {MAX_FILTERS} widths, not {len(parts):,}")
    matches = [re.fullmatch(r"([1-9][0-9]{0,3})x([1-9][0-9]{0,6})", part) for part in parts]
    if not matches or None in matches:
        text = quote(" ".join(parts)) if parts else "none"
        raise SettingError(f"filters must be WIDTHxCOUNT, for example 1x32,2x32,3x64, not {text}")
    pairs = [(int(match[1]), int(match[2])) for match in matches if match]
    widest = max(width for width, _ in pairs)
    if max_characters is not None and widest > max_characters:
        raise SettingError(f"filters of width {widest} do not fit into max_characters {max_characters}")
    return pairs


def check_text(text: Any, what: str = "a text") -> str:
    """Return the text, or raise `SettingError` if it is not a string."""
    if not isinstance(text, str):
        raise SettingError(f"{what} is a string, not {describe_value(text)}")
    return text


def check_sentences(sentences: Any, method: str, what: str = "sentence") -> Iterator[Any]:
    """Check sentences, strings or lists of words, that were passed to a method: each when it is reached."""
    if isinstance(sentences, str):
        raise SettingError(f"{method} takes several {what}s: put a single one into a list, {method}([{what}])")
    if not isinstance(sentences, Iterable):
        raise SettingError(f"{method} takes a list of {what}s, not {describe_value(sentences)}")
    return (check_sentence(sentence, f"{what} {number}") for number, sentence in enumerate(sentences, start=1))


def check_sentence(sentence: Any, what: str) -> Any:
    """Return the sentence, or raise `SettingError` if it is neither a string nor a list of words."""
    if not isinstance(sentence, str):
        check_words(sentence, f"{what} is {describe_value(sentence)}; it can be a string or a list of words")
    return sentence


def check_words(words: Any, message: str) -> None:
    """Raise `SettingError` with this message if `words` is not a sequence, or with another if one is not a string."""
    is_sequence = hasattr(words, "__len__") and isinstance(words, Iterable)
    if not is_sequence or isinstance(words, str | bytes | dict | set | frozenset):
        raise SettingError(message)
    for word in words:
        if not isinstance(word, str):
            raise SettingError(f"a token is {describe_value(word)}; tokens are strings")


def check_integer(name: str, value: Any, *, least: int = 1, most: int | None = None) -> None:
    """Raise `SettingError` if a value is not an integer within its bounds."""
    bounds = f"{least} or more" if most is None else f"from {least} to {most}"
    is_integer = hasattr(value, "__index__") and not isinstance(value, bool)
    if not is_integer or value < least or (most is not None and value > most):
        raise SettingError(f"{name} must be {bounds}, not {describe_value(value)}")


def check_seed(seed: Any) -> None:
    """Raise `SettingError` if a seed does not suit all random number generators."""
    check_integer("seed", seed, least=0, most=MAX_SEED)


def describe_value(value: Any) -> str:
    """Return a value as messages show it, with its type unless that is obvious."""
    is_plain = value is None or isinstance(value, int | float)
    return quote(value) if is_plain else f"{quote(value)} ({type(value).__name__})"
