"""Mistyped commands: checks of numeric flags, and one line with the command, the mistake, and what to type.

cyclopts finds other mistakes; the messages are ours, so that flags and settings in files are described alike.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Annotated, Any, Literal, get_args, get_origin

from cyclopts import App, CoercionError, CycloptsError, MissingArgumentError, UnknownCommandError, UnknownOptionError
from msgspec import Meta

from relmo.errors import SettingError, quote
from relmo.runs.settings import check_kind, flags_of
from relmo.settings.fields import TYPE_NAMES, nearest
from relmo.settings.kinds import KINDS

MAX_INTEGER = (1 << 63) - 1  # of arrays


def check_numbers(app: App, commands: tuple[str, ...], arguments: Iterable[Any]) -> None:
    """Raise `SettingError` if a numeric flag is not finite, not whole, or out of the bounds of its annotation.

    `relmo train` checks the bounds itself, together with those of its files; cyclopts reports what is not a number."""
    for argument in arguments:
        hints = get_args(argument.hint) or (argument.hint,)
        types = [hint.__origin__ if get_origin(hint) is Annotated else hint for hint in hints]
        if int not in types and float not in types:
            continue
        if get_origin(argument.hint) is tuple:  # numbers may be separated by commas
            argument.tokens[:] = [x.evolve(value=part) for x in argument.tokens for part in x.value.split(",")]
        choices = [choice for kind in types for choice in get_args(kind)]
        has_bounds = commands[:1] != ("train",) or argument.name == "--seed"
        bounds = list(_find_bounds(argument.field_info.annotation)) if has_bounds else []
        for text in [token.value for token in argument.tokens if token.source == "cli"]:
            problem = None
            try:
                number = float(text)
            except ValueError:
                problem = f"{', '.join(choices)} or a number" if choices and text not in choices else None
            else:
                if not math.isfinite(number):
                    problem = "a finite number"
                elif float not in types and number != int(number):
                    problem = "a whole number"
                elif float not in types and abs(number) > MAX_INTEGER:
                    problem = f"at most {MAX_INTEGER}"
                for bound in [] if problem else bounds:
                    if bound.ge is not None and number < bound.ge:
                        problem = f"{bound.ge} or more"
                    elif bound.le is not None and number > bound.le:
                        problem = f"at most {bound.le}"
            if problem is not None:
                raise SettingError(f"{argument.name} must be {problem}, not {text[:60]}")


def _find_bounds(hint: Any) -> Iterator[Meta]:
    yield from (bound for bound in getattr(hint, "__metadata__", ()) if isinstance(bound, Meta))
    for part in get_args(hint):
        yield from _find_bounds(part)


def explain_mistake(error: CycloptsError, program: str) -> str:
    """Return a one-line message for an error of cyclopts."""
    command = " ".join([program, *(error.command_chain or ())])
    if isinstance(error, UnknownCommandError) and error.unused_tokens:
        return f"{command}: {_explain_command(command, error.unused_tokens, error.app)}"
    if isinstance(error, UnknownOptionError):
        return f"{command}: {_explain_option(command, error)}"
    if isinstance(error, MissingArgumentError) and error.argument is not None and error.command_chain:
        argument = error.argument
        name = argument.name.removeprefix("--").upper() if argument.index is not None else argument.name
        problem = "needs a value" if error.keyword is not None or argument.tokens else "is missing"
        return f"{command}: {name} {problem}; {command} --help shows an example"
    if isinstance(error, CoercionError) and error.token is not None and error.msg is None:
        flag = error.token.keyword or (error.argument.name if error.argument is not None else None)
        text, kind = error.token.value, error.target_type
        if flag is not None and get_origin(kind) is Literal:
            choices = [str(choice) for choice in get_args(kind)]
            match = nearest(text, choices)
            hint = f"; did you mean {match}?" if match else ""
            return f"{flag} must be one of {', '.join(choices)}, not {quote(text)}{hint}"
        if flag is not None and kind in TYPE_NAMES:
            return f"{flag} must be {TYPE_NAMES[kind]}, not {quote(text)}"
    return str(error)


def _explain_command(command: str, words: Sequence[str], app: App | None) -> str:
    word = words[0]
    if command == "relmo train":
        if word.startswith("-") or "." in word or "/" in word:
            example = next((word for word in words if not word.startswith("-") and "." in word), "FILE")
            return f"the kind of model comes first: relmo train lm {example} --out DIR; kinds: {', '.join(KINDS)}"
        try:
            check_kind(word)
        except SettingError as error:
            return str(error)
    names = [name for name in (app or ()) if not name.startswith("-")]
    match = nearest(word, names)
    hint = f"did you mean {match}?" if match else f"commands: {', '.join(names)}"
    return f"unknown command {quote(word)}; {hint}"


def _explain_option(command: str, error: UnknownOptionError) -> str:
    word = (error.token.keyword or error.token.value).partition("=")[0]
    if not word.startswith("-"):
        return f"unexpected argument {quote(word)}; {command} --help shows an example"
    name = word.lstrip("-").replace("-", "_")
    kinds = [kind for kind in KINDS if command.startswith("relmo train ") and name in flags_of(kind)]
    if kinds:
        return f"unknown option {word}; it belongs to relmo train {', '.join(kinds)}"
    flags = [flag for argument in error.argument_collection if argument.parse for flag in argument.names]
    match = nearest(name, [flag[2:].replace("-", "_") for flag in flags if flag.startswith("--")])
    hint = f"did you mean --{match.replace('_', '-')}?" if match else f"{command} --help lists all options"
    return f"unknown option {word}; {hint}"
