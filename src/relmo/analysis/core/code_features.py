"""Features of source code: strings, comments and `if` statements as tracks of 0 and 1, one number per character.

Code is scanned, not parsed, so that fragments of files work too. Two families of languages are supported: "python",
and "c" for C and similar languages (C++, Java, JavaScript, Go, Rust, C#). The value at a character is the state after
it was read: a string begins with its opening quote and has ended with its closing one.
"""

import re
from collections.abc import Iterator
from typing import Literal

import numpy as np

Language = Literal["python", "c"]
C_SUFFIXES = (".c", ".h", ".cc", ".cpp", ".hpp", ".cxx", ".java", ".js", ".ts", ".go", ".rs", ".cs")

STRINGS_AND_COMMENTS: dict[Language, re.Pattern[str]] = {
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
BRACKET, OPENING = re.compile(r"[()\[\]{}]"), "([{"


def detect_language(path: str) -> Language | None:
    """Return the language of a source file by its suffix; None for other files."""
    name = path.lower()
    if name.endswith((".py", ".pyi")):
        return "python"
    return "c" if name.endswith(C_SUFFIXES) else None


def mark_strings_and_comments(text: str, language: Language) -> dict[str, np.ndarray]:
    """Return tracks of strings and of comments; (characters,) each."""
    tracks = {name: np.zeros(len(text), dtype=np.float32) for name in ("string", "comment")}
    for match in STRINGS_AND_COMMENTS[language].finditer(text):
        kind, begin, end = str(match.lastgroup), match.start(), match.end()
        has_closing_mark = kind == "string" or text.startswith("/*", begin)
        tracks[kind][begin : end - 1 if has_closing_mark else end] = 1
    return tracks


def blank_strings_and_comments(text: str, language: Language) -> str:
    """Replace every character of strings and comments by a space, line ends too."""
    return STRINGS_AND_COMMENTS[language].sub(lambda match: " " * len(match.group()), text)


def count_open_brackets(text: str) -> np.ndarray:
    """Return the number of open brackets after each character (characters,); unmatched closing ones are ignored."""
    counts = np.zeros(len(text), dtype=np.float32)
    level, previous = 0, 0
    for match in BRACKET.finditer(text):
        counts[previous : match.start()] = level
        level = level + 1 if match.group() in OPENING else max(level - 1, 0)
        previous = match.start()
    counts[previous:] = level
    return counts


def mark_if_statements(text: str, language: Language) -> dict[str, np.ndarray]:
    """Return tracks of the conditions ("if") and of the bodies ("if_body") of `if` statements; (characters,) each."""
    code = blank_strings_and_comments(text, language)
    tracks = {name: np.zeros(len(text), dtype=np.float32) for name in ("if", "if_body")}
    for name, begin, end in _find_python_ifs(code) if language == "python" else _find_c_ifs(code):
        tracks[name][begin:end] = 1
    return tracks


def _find_python_ifs(code: str) -> Iterator[tuple[str, int, int]]:
    """Yield conditions from `if` or `elif` to the colon, and bodies by their indentation."""
    brackets = count_open_brackets(code)
    indents: list[int] = []  # of the `if` statements whose bodies may include the current line
    for begin, end in _split_logical_lines(code, brackets):
        line = code[begin:end]
        statement = line.lstrip(" \t\n\\")
        indent = len(line) - len(line.lstrip(" \t"))
        if statement.strip():
            while indents and indent <= indents[-1]:
                indents.pop()
        if indents:
            yield "if_body", begin, end
        if match := re.match(r"(?:if|elif)\b", statement):
            start = end - len(statement)
            colons = (m.start() for m in re.finditer(":", statement) if brackets[start + m.start()] == brackets[start])
            colon = next(colons, len(statement))
            yield "if", start + match.end() - 1, start + colon
            if statement[colon + 1 :].strip():
                yield "if_body", start + colon, end
            else:
                indents.append(indent)


def _split_logical_lines(code: str, brackets: np.ndarray) -> Iterator[tuple[int, int]]:
    """Yield lines with their ends; lines that continue inside brackets or after a backslash are joined."""
    begin = 0
    for match in re.finditer("\n", code):
        end = match.end()
        if brackets[match.start()] == 0 and code[end - 2 : end - 1] != "\\":
            yield begin, end
            begin = end
    if begin < len(code):
        yield begin, len(code)


def _find_c_ifs(code: str) -> Iterator[tuple[str, int, int]]:
    """Yield conditions between the brackets after `if`, and bodies in braces or up to a semicolon."""
    open_brackets: list[int] = []
    closing: dict[int, int] = {}  # position of the closing bracket of each opening one
    for bracket in BRACKET.finditer(code):
        if bracket.group() in OPENING:
            open_brackets.append(bracket.start())
        elif open_brackets:
            closing[open_brackets.pop()] = bracket.start()
    for match in re.finditer(r"\bif\s*(?:constexpr\s*)?\(", code):
        begin = match.end() - 1
        if begin not in closing:
            yield "if", begin, len(code)
            continue
        yield "if", begin, closing[begin]
        body = re.compile(r"\s*").match(code, closing[begin] + 1).end()  # type: ignore[union-attr]
        if code[body : body + 1] == "{":
            yield "if_body", body, closing.get(body, len(code))
        else:
            semicolon = code.find(";", body)
            yield "if_body", body, len(code) if semicolon < 0 else semicolon
