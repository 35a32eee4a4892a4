"""Where in source code there are strings, comments, and `if` statements: tracks of 0 and 1, a number a character.

Code is scanned, not parsed, so that a piece cut out of the middle of a file is read too. Two families are known:
"python", and "c" for C and what is written like it (C++, Java, JavaScript, Go, Rust, C#).

A track says how things stand after a character was read: a string begins with its opening quote and has ended with its
closing one.
"""

import re
from collections.abc import Iterator
from typing import Literal

import numpy as np

Language = Literal["python", "c"]
LIKE_C = (".c", ".h", ".cc", ".cpp", ".hpp", ".cxx", ".java", ".js", ".ts", ".go", ".rs", ".cs")

PIECES: dict[Language, re.Pattern[str]] = {
    "python": re.compile(
        r"(?P<comment>#[^\n]*)"
        r'|(?P<string>"""(?:\\.|[^\\])*?(?:"""|\Z)'
        r"|'''(?:\\.|[^\\])*?(?:'''|\Z)"
        r'|"(?:\\.|[^"\\\n])*(?:"|$)'
        r"|'(?:\\.|[^'\\\n])*(?:'|$))",
        re.DOTALL | re.MULTILINE,
    ),
    "c": re.compile(
        r"(?P<comment>//(?:\\\n|[^\n])*|/\*.*?(?:\*/|\Z))"
        r'|(?P<string>"(?:\\.|[^"\\\n])*(?:"|$)'
        r"|'(?:\\.|[^'\\\n])*(?:'|$))",
        re.DOTALL | re.MULTILINE,
    ),
}
OPENING, CLOSING = "([{", ")]}"


def language_of(path: str) -> Language | None:
    """The language of a source file by its name; None of what is not code."""
    name = path.lower()
    if name.endswith((".py", ".pyi")):
        return "python"
    return "c" if name.endswith(LIKE_C) else None


def strings_and_comments(text: str, language: Language) -> dict[str, np.ndarray]:
    """Whether one is inside a string, and inside a comment; (characters,) each."""
    tracks = {name: np.zeros(len(text), dtype=np.float32) for name in ("string", "comment")}
    for kind, begin, end in _pieces(text, language):
        ended = kind == "string" or text.startswith("/*", begin)  # the last character is read: one is outside again
        tracks[kind][begin : end - 1 if ended else end] = 1
    return tracks


def _pieces(text: str, language: Language) -> Iterator[tuple[str, int, int]]:
    """Strings and comments, with where they begin and end."""
    for found in PIECES[language].finditer(text):
        yield str(found.lastgroup), found.start(), found.end()


def code_alone(text: str, language: Language) -> str:
    """The text with blanks in the place of strings and comments, line ends within them too."""
    parts, last = [], 0
    for _, begin, end in _pieces(text, language):
        parts += [text[last:begin], " " * (end - begin)]
        last = end
    return "".join([*parts, text[last:]])


def depth(text: str) -> np.ndarray:
    """How many brackets are open after each character; one that closes nothing counts for nothing. (characters,)"""
    found = np.zeros(len(text), dtype=np.float32)
    level, last = 0, 0
    for match in re.finditer(r"[()\[\]{}]", text):
        found[last : match.start()] = level
        level = level + 1 if match.group() in OPENING else max(level - 1, 0)
        last = match.start()
    found[last:] = level
    return found


def if_statements(text: str, language: Language) -> dict[str, np.ndarray]:
    """Whether one is in the condition of an `if`, and in the body of one; (characters,) each."""
    code = code_alone(text, language)
    tracks = {name: np.zeros(len(text), dtype=np.float32) for name in ("if", "if_body")}
    spans = _python_ifs(code) if language == "python" else _c_ifs(code)
    for name, begin, end in spans:
        tracks[name][begin:end] = 1
    return tracks


def _python_ifs(code: str) -> Iterator[tuple[str, int, int]]:
    """Conditions from `if` or `elif` to the colon, bodies by their indentation."""
    open_brackets = depth(code)
    bodies: list[int] = []  # the indentation of each `if` whose body one may be in
    for begin, end in _logical_lines(code, open_brackets):
        line = code[begin:end]
        body = line.lstrip(" \t\n\\")
        indent = len(line) - len(line.lstrip(" \t"))
        if body.strip():
            while bodies and indent <= bodies[-1]:
                bodies.pop()
        if bodies:
            yield "if_body", begin, end
        if found := re.match(r"(?:if|elif)\b", body):
            start = end - len(body)
            level = open_brackets[start]
            colons = (m.start() for m in re.finditer(":", body) if open_brackets[start + m.start()] == level)
            colon = next(colons, len(body))
            yield "if", start + found.end() - 1, start + colon
            if body[colon + 1 :].strip():
                yield "if_body", start + colon, end
            else:
                bodies.append(indent)


def _logical_lines(code: str, open_brackets: np.ndarray) -> Iterator[tuple[int, int]]:
    """Lines with their ends, those that go on within brackets or after a backslash taken together."""
    begin = 0
    for found in re.finditer("\n", code):
        end = found.end()
        if open_brackets[found.start()] == 0 and code[end - 2 : end - 1] != "\\":
            yield begin, end
            begin = end
    if begin < len(code):
        yield begin, len(code)


def _c_ifs(code: str) -> Iterator[tuple[str, int, int]]:
    """Conditions between the brackets after `if`, bodies in braces or up to a semicolon."""
    partner = _partners(code)
    for found in re.finditer(r"\bif\s*(?:constexpr\s*)?\(", code):
        opened = found.end() - 1
        closed = partner.get(opened)
        if closed is None:
            yield "if", opened, len(code)
            continue
        yield "if", opened, closed
        begin = re.compile(r"\s*").match(code, closed + 1).end()  # type: ignore[union-attr]
        if code[begin : begin + 1] == "{":
            yield "if_body", begin, partner.get(begin, len(code))
        else:
            semicolon = code.find(";", begin)
            yield "if_body", begin, len(code) if semicolon < 0 else semicolon


def _partners(code: str) -> dict[int, int]:
    """The place of the closing bracket of each opening one that has one."""
    stack: list[int] = []
    found: dict[int, int] = {}
    for match in re.finditer(r"[()\[\]{}]", code):
        if match.group() in OPENING:
            stack.append(match.start())
        elif stack:
            found[stack.pop()] = match.start()
    return found
