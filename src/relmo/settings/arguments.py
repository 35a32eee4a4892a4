"""What a caller gives, checked before it is used: a mistake is one line that says what was expected and what came."""

from collections.abc import Callable, Iterable, Iterator
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

from relmo.errors import SettingError, shown

LARGEST_SEED = 1 << 62
MOST_THREADS = 4096

Progress = Callable[[float], object]
"""What a caller gives to long work: a function that is told the share that is done."""


if TYPE_CHECKING:
    PathName = str
else:
    PathName = str | Path
"""A string that is the path of a file, or may be one. Shells complete it as such, since Path is among its types."""


def check_text(text: Any, what: str = "a text") -> str:
    """A text, which is a string."""
    if not isinstance(text, str):
        raise SettingError(f"{what} is a string, not {typed(text)}")
    return text


def check_sentences(sentences: Any, method: str, what: str = "sentence") -> Iterator[Any]:
    """Sentences as they are given to a method, each a string or a list of words. What is no list of sentences is an
    error at once, what is no sentence when its turn comes."""
    if isinstance(sentences, str):
        raise SettingError(f"{method} takes several {what}s: put a single one into a list, {method}([{what}])")
    if not isinstance(sentences, Iterable):
        raise SettingError(f"{method} takes a list of {what}s, not {typed(sentences)}")
    return (check_sentence(sentence, f"{what} {number}") for number, sentence in zip(count(1), sentences, strict=False))


def check_sentence(sentence: Any, what: str) -> Any:
    """A sentence: a string, or words in their order."""
    if not isinstance(sentence, str):
        check_words(sentence, f"{what} is {typed(sentence)}; it can be a string or a list of words")
    return sentence


def check_words(words: Any, wrong: str) -> None:
    """A list of words, or what comes close to one; all of them are strings."""
    listed = hasattr(words, "__len__") and isinstance(words, Iterable)
    if not listed or isinstance(words, str | bytes | dict | set | frozenset):
        raise SettingError(wrong)
    for word in words:
        if not isinstance(word, str):
            raise SettingError(f"a token is {typed(word)}; tokens are strings")


def check_whole(name: str, value: Any, *, least: int = 1, most: int | None = None) -> None:
    """A whole number within its bounds."""
    bounds = f"{least} or more" if most is None else f"from {least} to {most}"
    whole = hasattr(value, "__index__") and not isinstance(value, bool)
    if not whole or value < least or (most is not None and value > most):
        raise SettingError(f"{name} must be {bounds}, not {typed(value)}")


def check_seed(seed: Any) -> None:
    """A seed that all generators of random numbers take."""
    check_whole("seed", seed, least=0, most=LARGEST_SEED)


def typed(value: Any) -> str:
    """A value as a message shows it, with its type where that does not go without saying."""
    plain = value is None or isinstance(value, int | float)
    return shown(value) if plain else f"{shown(value)} ({type(value).__name__})"
