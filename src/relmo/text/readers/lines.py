"""The lines of a file with their places, as every reader of examples takes them."""

from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any

from relmo.errors import CorpusError
from relmo.text.corpus import Errors, Line, read_blocks

DIGITS = 16  # that no number of a column, a word or a line has; Python refuses to read thousands of them


def some(examples: Iterator[Any], path: str | Path, what: str) -> Iterator[Any]:
    """The examples; none at all is an error."""
    empty = True
    for example in examples:
        empty = False
        yield example
    if empty:
        raise CorpusError(f"{path}: there is no {what} in it; give a file with examples")


def whole_lines(path: str | Path, errors: Errors) -> Iterator[tuple[str, str]]:
    """Each line with its place, pieces of a very long one put together."""
    return chain.from_iterable(blocks_of_lines(path, errors))


def blocks_of_lines(path: str | Path, errors: Errors) -> Iterator[Iterator[tuple[str, str]]]:
    """The same, those together that were read at once, as `read_blocks` gives them."""
    parts: list[str] = []
    number = 1

    def whole(lines: Iterable[Line]) -> Iterator[tuple[str, str]]:
        nonlocal number
        for line in lines:
            parts.append(line.text)
            if line.ended:
                yield "".join(parts), f"{path}:{number}"
                parts.clear()
                number += 1

    yield from map(whole, read_blocks(path, errors=errors))
    if parts:
        yield iter([("".join(parts), f"{path}:{number}")])


def filled_lines(path: str | Path, errors: Errors) -> Iterator[tuple[str, str]]:
    """The lines that are not blank, with their places."""
    return ((text, place) for text, place in whole_lines(path, errors) if text.strip())


def first_line(path: str | Path, errors: Errors) -> str:
    """The first line of a file that is not blank; nothing where there is none."""
    return next(filled_lines(path, errors), ("", ""))[0]


def filled(text: str, what: str, place: str, advice: str = "fill it in, or remove the example") -> str:
    """Return a field with something in it, or raise an error with its place."""
    if not text.strip():
        raise CorpusError(f"{place}: the {what} is missing; {advice}")
    return text
