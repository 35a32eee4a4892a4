"""Suggestions for mistyped commands: one line with the command, the mistake, and what to type.

cyclopts finds the mistake; the messages are ours, so that flags and settings in files are described alike.
"""

from collections.abc import Sequence
from typing import Literal, get_args, get_origin

from cyclopts import App, CoercionError, CycloptsError, MissingArgumentError, UnknownCommandError, UnknownOptionError

from relmo.errors import SettingError, quote
from relmo.runs.settings import check_kind, flags_of
from relmo.settings.fields import TYPE_NAMES, nearest
from relmo.settings.kinds import KINDS

MOVED = {"bench": "python -m benchmarks", "reproduce": "python -m experiments"}


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
        return _explain_value(error) or str(error)
    return str(error)


def _explain_command(command: str, words: Sequence[str], app: App | None) -> str:
    """Explain a word in place of a command or a kind of model."""
    word = words[0]
    if command == "relmo" and word in MOVED:
        return f"{word} is no longer a command; in a clone of the repository, run: {MOVED[word]}"
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
    """Explain an unknown flag or a superfluous argument."""
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


def _explain_value(error: CoercionError) -> str | None:
    """Explain a value of the wrong type; None if the message of cyclopts is good enough."""
    assert error.token is not None
    name = error.token.keyword or (error.argument.name if error.argument is not None else None)
    if name is None:
        return None
    if get_origin(error.target_type) is Literal:
        choices = [str(choice) for choice in get_args(error.target_type)]
        match = nearest(error.token.value, choices)
        hint = f"; did you mean {match}?" if match else ""
        return f"{name} must be one of {', '.join(choices)}, not {quote(error.token.value)}{hint}"
    if error.target_type in TYPE_NAMES:
        return f"{name} must be {TYPE_NAMES[error.target_type]}, not {quote(error.token.value)}"
    return None
