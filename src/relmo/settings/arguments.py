"""Checks of function arguments: an invalid one is an error of one line that says what was expected and what came."""

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from relmo.errors import SettingError, quote

MAX_SEED = 1 << 62
MAX_THREADS = 4096

Progress = Callable[[float], object]
"""Progress callback of long computations, called with the fraction that is done."""


if TYPE_CHECKING:
    PathName = str
else:
    PathName = str | Path
"""String that is, or may be, the path of a file. As Path is one of its types, shells complete it."""


def check_text(text: Any, what: str = "a text") -> str:
    """Return the text, or raise `SettingError` if it is not a string."""
    if not isinstance(text, str):
        raise SettingError(f"{what} is a string, not {describe_value(text)}")
    return text


def check_sentences(sentences: Any, method: str, what: str = "sentence") -> Iterator[Any]:
    """Check sentences that were passed to a method; each is a string or a list of words.

    The container is checked at once, each sentence when it is reached.
    """
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
