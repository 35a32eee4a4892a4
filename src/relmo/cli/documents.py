"""`relmo predict` of models that read whole documents: coloured clusters on a terminal, a page, columns, JSON lines."""

import sys
from collections.abc import Iterator
from colorsys import hls_to_rgb
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple

from rich.style import Style
from rich.text import Text

from relmo.cli.terminal import json_line, make_console, say
from relmo.disk.outputs import atomic, refuse_existing

if TYPE_CHECKING:
    from relmo.tasks.coref import Coreference
    from relmo.tasks.coref_text import ResolvedText
    from relmo.text.corpus import Errors
    from relmo.text.readers.coref import CorefDocument


class Shown(NamedTuple):
    """How answers are shown: as JSON lines, as text or columns, in a page; `quiet` does not say where the page is."""

    json: bool
    format: Literal["text", "conll"]
    html: Path | None
    overwrite: bool
    quiet: bool


def predict_documents(
    model: "Coreference", file: str | None, shown: Shown, *, tokenized: bool, errors: "Errors"
) -> None:
    """Prints the clusters of the documents of a file; those of a page are written when all are known."""
    from relmo.tasks.coref_text import conll, page

    if shown.html is not None:
        refuse_existing(shown.html, overwrite=shown.overwrite)
    asked = list(_documents(model, file, tokenized=tokenized, errors=errors))
    found = []
    for document, resolved in zip(asked, model.answer(asked), strict=True):
        if shown.json:
            print(json_line(model.as_record(document, resolved)), flush=True)
        elif shown.format == "conll":
            print(conll(document, resolved.places), end="", flush=True)
        elif shown.html is None:
            _print(resolved)
        found.append(resolved)
    if shown.html is not None:
        with atomic(shown.html) as temporary:
            temporary.write_text(page(found), encoding="utf-8", errors="backslashreplace")
        if not shown.quiet:
            say(f"the page is in {shown.html}")


def _documents(
    model: "Coreference", file: str | None, *, tokenized: bool, errors: "Errors"
) -> Iterator["CorefDocument"]:
    """The documents of a file: CoNLL-2012 or JSON lines, as its name says; CoNLL-U's sentences as one; or one text."""
    from relmo.text.corpus import STDIN, is_conllu, read_conllu, read_text
    from relmo.text.readers.coref import is_conll, read_documents
    from relmo.text.readers.tables import is_jsonl

    path = STDIN if file is None else file
    if is_conll(path) or is_jsonl(path):
        yield from map(model.ask, read_documents(path, errors=errors, columns=True))
    elif is_conllu(path):
        yield model.ask(list(read_conllu(path, errors=errors)))
    else:
        document = model.ask(read_text(path, errors=errors), tokenized=tokenized)
        yield document if file is None else document._replace(name=Path(file).name)


def _print(resolved: "ResolvedText") -> None:
    """A document: coloured on a terminal, in brackets alone where there is none."""
    console = make_console(stderr=False)
    if not console.is_terminal:
        sys.stdout.write(resolved.as_text() + "\n")
        sys.stdout.flush()
        return
    shown, open_mentions, few = Text(), [Style()], console.color_system in (None, "standard", "windows")
    for piece in resolved.pieces():
        if piece.kind == "text":
            shown.append(_printable(piece.text), open_mentions[-1])
        elif piece.kind == "begin":
            open_mentions.append(_style(piece.cluster, few=few))
            shown.append("[", open_mentions[-1])
        else:
            shown.append(f"]{piece.cluster}", open_mentions.pop())
    console.print(shown, soft_wrap=True)
    for number, line in enumerate(resolved.summary(), start=1):
        console.print(Text(_printable(line), _style(number, few=few)), soft_wrap=True)


def _style(cluster: int, *, few: bool) -> Style:
    """Black on a cluster's colour; a terminal of few colours has six that are bright."""
    from relmo.tasks.coref_text import hue

    if few:
        return Style(color="#000000", bgcolor=f"color({9 + cluster % 6})")
    red, green, blue = (round(255 * part) for part in hls_to_rgb(hue(cluster) / 360, 0.75, 0.75))
    return Style(color="#000000", bgcolor=f"#{red:02x}{green:02x}{blue:02x}")


def _printable(text: str) -> str:
    """Text without what would do something to a terminal."""
    return "".join(c if c.isprintable() or c in "\n\t" else "\ufffd" for c in text)
