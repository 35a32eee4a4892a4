"""What somebody is told who mistyped a command: one line with the command, what is wrong with it, and what to type.

cyclopts finds the mistake; the words are ours, so that a flag is spoken of as a setting in a file is.
"""

from collections.abc import Iterable, Sequence
from typing import Literal, get_args, get_origin

from cyclopts import (
    App,
    CoercionError,
    CycloptsError,
    MissingArgumentError,
    UnknownCommandError,
    UnknownOptionError,
)

from relmo.config import TYPES, nearest
from relmo.errors import SettingError, shown
from relmo.runs.settings import check_kind, flags_of
from relmo.settings.kinds import KINDS


def explained(error: CycloptsError) -> str:
    """The line for a mistake that cyclopts found."""
    verb = " ".join(["relmo", *(error.command_chain or ())])
    if isinstance(error, UnknownCommandError) and error.unused_tokens:
        return _unknown_command(verb, error.unused_tokens, error.app)
    if isinstance(error, UnknownOptionError):
        return _unknown_option(verb, error)
    if isinstance(error, MissingArgumentError) and error.argument is not None and error.command_chain:
        argument = error.argument
        name = argument.name.removeprefix("--").upper() if argument.index is not None else argument.name
        given = error.keyword is not None or argument.tokens
        return f"{verb}: {name} {'needs a value' if given else 'is missing'}; {verb} --help shows an example"
    if isinstance(error, CoercionError) and error.token is not None and error.msg is None:
        return _wrong_value(error) or str(error)
    return str(error)


def _unknown_command(verb: str, rest: Sequence[str], app: App | None) -> str:
    """A word where a verb, or a kind of model, is expected."""
    word = rest[0]
    if verb == "relmo train":
        if word.startswith("-") or "." in word or "/" in word:
            example = next((word for word in rest if not word.startswith("-") and "." in word), "FILE")
            return f"{verb}: the kind of model comes first: relmo train lm {example} --out DIR; kinds: {_list(KINDS)}"
        try:
            check_kind(word)
        except SettingError as error:
            return f"{verb}: {error}"
    known = [name for name in (app or ()) if not name.startswith("-")]
    near = nearest(word, known)
    hint = f"did you mean {near}?" if near else f"there are {_list(known)}"
    return f"{verb}: there is no command {shown(word)}; {hint}"


def _unknown_option(verb: str, error: UnknownOptionError) -> str:
    """A flag that there is not, or a word too many."""
    word = (error.token.keyword or error.token.value).partition("=")[0]
    if not word.startswith("-"):
        return f"{verb}: {shown(word)} is one argument too many; {verb} --help shows an example"
    name = word.lstrip("-").replace("-", "_")
    others = [kind for kind in KINDS if verb.startswith("relmo train ") and name in flags_of(kind)]
    if others:
        return f"{verb}: there is no option {word}; it is one of relmo train {_list(others)}"
    flags = [flag for argument in error.argument_collection if argument.parse for flag in argument.names]
    near = nearest(name, [flag[2:].replace("-", "_") for flag in flags if flag.startswith("--")])
    hint = f"did you mean --{near.replace('_', '-')}?" if near else f"{verb} --help lists all"
    return f"{verb}: there is no option {word}; {hint}"


def _wrong_value(error: CoercionError) -> str | None:
    """A value of the wrong type; None where there is nothing better to say than what cyclopts says."""
    assert error.token is not None
    name = error.token.keyword or (error.argument.name if error.argument is not None else None)
    if name is None:
        return None
    if get_origin(error.target_type) is Literal:
        choices = [str(choice) for choice in get_args(error.target_type)]
        near = nearest(error.token.value, choices)
        hint = f"; did you mean {near}?" if near else ""
        return f"{name} must be one of {_list(choices)}, not {shown(error.token.value)}{hint}"
    if error.target_type in TYPES:
        return f"{name} must be {TYPES[error.target_type]}, not {shown(error.token.value)}"
    return None


def _list(names: Iterable[str]) -> str:
    return ", ".join(names)
