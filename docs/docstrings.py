"""Docstrings as the source has them, written anew as reStructuredText.

name   what it is      lines like these are a list of definitions
- a point              stays a point
what is set in         stays as it is, a column under a column
"""

import re
from itertools import groupby
from typing import Any

DEFINITION = re.compile(r"(\S+(?: \S+)*?) {2,}(\S.*)")
CODE = re.compile(r"(`[^`]+`)")


def prose(line: str) -> str:
    """A line with its code marked twice, as reStructuredText wants it, and no other mark-up."""
    parts = CODE.split(line)
    for i, part in enumerate(parts):
        if i % 2:
            parts[i] = rf"`{part}`\ "
        else:
            parts[i] = re.sub(r"([*|_\\`])", r"\\\1", part)
    return "".join(parts)


def definitions(block: list[str]) -> list[str]:
    """Names, and what each of them is."""
    lines: list[str] = []
    for line in block:
        found = DEFINITION.fullmatch(line)
        lines += ["", prose(found[1]), f"    {prose(found[2])}"] if found else [f"    {prose(line.strip())}"]
    return lines


def paragraph(block: list[str]) -> list[str]:
    """Sentences and points; what is set in below them is shown as it is."""
    lines, inside = [""], ""
    for line in block:
        if line.startswith("- "):
            lines, inside = [*lines, "", f"- {prose(line[2:])}"], "point"
        elif not line.startswith(" "):
            lines, inside = [*lines, *([""] if inside else []), prose(line)], ""
        elif inside == "point":
            lines.append(f"  {prose(line.strip())}")
        else:
            lines, inside = [*lines, *([] if inside else ["", "::", ""]), f"  {line}"], "as it is"
    return lines


def restructured(docstring: list[str]) -> list[str]:
    """The lines of a docstring, a block at a time."""
    lines: list[str] = []
    for empty, group in groupby(docstring, key=lambda line: not line.strip()):
        block = list(group)
        if not empty and DEFINITION.fullmatch(block[0]) and all(DEFINITION.fullmatch(x) or x[0] == " " for x in block):
            lines += [*definitions(block), ""]
        elif not empty:
            lines += [*paragraph(block), ""]
    return lines


def setup(app: Any) -> dict[str, bool]:
    """Sphinx calls this."""
    app.connect("autodoc-process-docstring", lambda *event: event[-1].__setitem__(slice(None), restructured(event[-1])))
    return {"parallel_read_safe": True}
