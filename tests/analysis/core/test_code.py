"""Source code, scanned: against Python's own tokenizer and parser on its own library."""

import ast
import io
import sysconfig
import tokenize
from pathlib import Path

import numpy as np
import pytest

from relmo.analysis.core.features import (
    Language,
    blank_strings_and_comments,
    count_open_brackets,
    detect_language,
    document_of,
    tracks,
)

LIBRARY = Path(sysconfig.get_path("stdlib"))
FILES = ["argparse.py", "textwrap.py", "json/decoder.py", "csv.py", "shlex.py", "tokenize.py", "heapq.py", "pprint.py"]


def mark(text: str, language: Language, *names: str) -> dict[str, np.ndarray]:
    return tracks(document_of(list(text), language=language), names)


def offsets(text: str) -> np.ndarray:
    return np.cumsum([0] + [len(line) + 1 for line in text.split("\n")])


@pytest.mark.parametrize("name", FILES)
def test_strings_comments_and_depth_are_those_of_pythons_tokenizer(name: str) -> None:
    text = (LIBRARY / name).read_text(encoding="utf-8")
    starts = offsets(text)
    string, comment, change = (np.zeros(len(text)) for _ in range(3))
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        begin, end = (starts[row - 1] + column for row, column in (token.start, token.end))
        if token.type == tokenize.STRING:
            quote = begin + next(i for i, c in enumerate(token.string) if c in "'\"")
            string[quote : end - 1] = 1
        elif token.type == tokenize.COMMENT:
            comment[begin:end] = 1
        elif token.type == tokenize.OP and token.string in "()[]{}":
            change[begin] = 1 if token.string in "([{" else -1
    found = mark(text, "python", "string", "comment")
    np.testing.assert_array_equal(found["string"], string)
    np.testing.assert_array_equal(found["comment"], comment)
    np.testing.assert_array_equal(count_open_brackets(blank_strings_and_comments(text, "python")), np.cumsum(change))


@pytest.mark.parametrize("name", FILES)
def test_bodies_of_ifs_are_those_of_pythons_parser(name: str) -> None:
    text = (LIBRARY / name).read_text(encoding="utf-8")
    starts, lines = offsets(text), text.split("\n")
    inside, conditions = np.zeros(len(text) + 1), np.zeros(len(text) + 1)
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.If):
            for statement in node.body:
                assert statement.end_lineno is not None
                inside[starts[statement.lineno - 1] + statement.col_offset : starts[statement.end_lineno]] = 1
            assert node.test.end_lineno is not None
            assert node.test.end_col_offset is not None
            begin, end = (
                starts[row - 1] + len(lines[row - 1].encode()[:column].decode())
                for row, column in (
                    (node.test.lineno, node.test.col_offset),
                    (node.test.end_lineno, node.test.end_col_offset),
                )
            )
            conditions[begin:end] = 1
    found = mark(text, "python", "if", "if_body")
    assert inside.any()
    statement = np.array([not c.isspace() for c in text])
    code = np.array(list(blank_strings_and_comments(text, "python"))) != " "
    wrong = (found["if_body"] != inside[:-1]) & statement & code
    assert not wrong.any()
    assert (found["if"][conditions[:-1] == 1] == 1).all()


def spans(text: str, track: np.ndarray) -> list[str]:
    edges = np.flatnonzero(np.diff(track, prepend=0, append=0))
    return [text[a:b] for a, b in edges.reshape(-1, 2)]


def test_conditions_and_bodies_of_python() -> None:
    text = "if a and (b or\n    c):\n    x = 1\n\n    y\nelif d: e = 'if z:'\nelse:\n    f\n"
    text += "# if no:\nif g:\n    if h:\n        i\nj\n"
    found = mark(text, "python", "if", "if_body")
    assert spans(text, found["if"]) == ["f a and (b or\n    c)", "f d", "f g", "f h"]
    assert spans(text, found["if_body"]) == ["    x = 1\n\n    y\n", ": e = 'if z:'\n", "    if h:\n        i\n"]


def test_comments_strings_and_ifs_of_c() -> None:
    text = "int f() { /* if (no) */ if (a(b) > '(') { g(\"}//\"); } // end\n if (c) d = 1; else e(); }\n"
    found = mark(text, "c", "string", "comment")
    assert spans(text, found["comment"]) == ["/* if (no) *", "// end"]
    assert spans(text, found["string"]) == ["'(", '"}//']
    branches = mark(text, "c", "if", "if_body")
    assert spans(text, branches["if"]) == ["(a(b) > '('", "(c"]
    assert spans(text, branches["if_body"]) == ['{ g("}//"); ', "d = 1"]


def test_a_piece_cut_out_of_a_file_is_read_too() -> None:
    text = "in a string''' and (out\n'unfinished\nx = '''to the end"
    found = mark(text, "python", "string")["string"]
    assert spans(text, found) == ["''' and (out\n'unfinished\nx = ''"]
    assert count_open_brackets("))(a").tolist() == [0, 0, 1, 1]
    assert spans("if (a", mark("if (a", "c", "if")["if"]) == ["(a"]


def test_the_language_is_told_by_the_name() -> None:
    assert [detect_language(name) for name in ("a.py", "b/c.H", "x.js", "a.txt", "py")] == [
        "python",
        "c",
        "c",
        None,
        None,
    ]
