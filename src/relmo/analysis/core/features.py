"""Features of a text as tracks: one number per symbol, the state after the symbol was read.

Most features are defined on characters. A word has the value at its last character, so every feature works for models
of words too. A track whose only values are 0 and 1 is a binary feature; any other is numeric.

Source code is scanned, not parsed, so that fragments of files work too. Two families of languages are supported:
"python", and "c" for C and similar languages (C++, Java, JavaScript, Go, Rust, C#).
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice, pairwise
from typing import Any, Literal, NamedTuple

import numpy as np

from relmo.errors import CorpusError, SettingError
from relmo.models.sequence_model import SequenceModel
from relmo.text import trees
from relmo.text.corpus import is_conllu, read_text
from relmo.text.tokenize import SPLITTERS, split_whitespace
from relmo.text.trees import ConlluWord, read_conllu_sentences

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
ALL_BRACKETS, OPENING = "([{)]}", "([{"
BRACKET = re.compile(r"[()\[\]{}]")
MIN_SHARE = 0.01  # of the words with a value, for a track of its own when a column is named without a value
PAIRS: dict[str, tuple[str, ...]] = {
    "“": ("”",),
    "„": ("“", "”"),
    "«": ("»",),
    "»": ("«",),
    "‘": ("’",),
    "「": ("」",),
    "『": ("』",),
    '"': ('"',),
    "'": ("'",),
    "`": ("'", "`"),
    "``": ("''", '"'),
}
"""Closing quotation marks by opening mark."""
MARKS = "|".join(
    ["``", "''", *sorted({*PAIRS, *(mark for closing in PAIRS.values() for mark in closing)} - {"``", "''"})]
)
CLITIC = re.compile(r"(?:s|re|ve|ll|d|m|t|em|n|tis|twas)\b", re.IGNORECASE)
WORD, LINE = r"[^\W\d_]+", r"[^\n]+"
LINE_END, BLANK_LINE = re.compile(r"\n"), re.compile(r"\n[ \t]*\n")


@dataclass(frozen=True)
class Document:
    """Text and the symbols that a model reads.

    spans       character offsets of each symbol, start and end; (T, 2)
    starts      index of the first symbol of each text or sentence
    words       columns of every word of a CoNLL-U file, and `word_spans`, their character offsets (W, 2)
    language    of source code
    """

    text: str
    symbols: list[str]
    spans: np.ndarray
    starts: np.ndarray
    words: list[list[ConlluWord]] | None = None
    word_spans: np.ndarray = field(default_factory=lambda: np.zeros((0, 2), dtype=np.int64))
    language: Language | None = None

    def __len__(self) -> int:
        return len(self.symbols)

    @property
    def texts(self) -> list[list[str]]:
        """Symbols of each text."""
        return [self.symbols[a:b] for a, b in pairwise([*self.starts.tolist(), len(self)])]

    @property
    def ends(self) -> re.Pattern[str]:
        """Pattern that closes everything open: the line end if lines are sentences, else a blank line."""
        return LINE_END if len(self.starts) > 1 or self.words is not None else BLANK_LINE

    def at_symbols(self, track: np.ndarray) -> np.ndarray:
        """Convert a track of characters to one of symbols (T,); a track of symbols is returned as it is."""
        track = np.asarray(track, dtype=np.float32)
        if len(track) == len(self.text):
            return track[self.spans[:, 1] - 1]
        if len(track) == len(self):
            return track
        raise SettingError(
            f"The feature has {len(track)} values; the text has {len(self.text)} characters and {len(self)} symbols."
        )

    def head(self, symbols: int) -> "Document":
        """Return the beginning of the document with this many symbols."""
        if symbols >= len(self):
            return self
        return replace(
            self,
            text=self.text[: self.spans[symbols - 1, 1]],
            symbols=self.symbols[:symbols],
            spans=self.spans[:symbols],
            starts=self.starts[self.starts < symbols],
        )


class Mark(NamedTuple):
    """Marked span of the text: start and end offsets of its characters, and its name."""

    start: int
    end: int
    name: str = "marked"


def read(
    model: SequenceModel, text: str | Sequence[Sequence[ConlluWord]], *, language: Language | None = None
) -> Document:
    """Split a text, or the sentences of a CoNLL-U file, into a model's symbols; a biLM reads lines as sentences."""
    words, word_spans = None, np.zeros((0, 2), dtype=np.int64)
    if not isinstance(text, str):
        words = [list(sentence) for sentence in text]
        text, word_spans = _join_words([[word.form for word in sentence] for sentence in words])
    if not text.strip():
        raise CorpusError("The text is empty.")
    settings = model.settings.text
    folded = text.lower() if settings.lowercase else text
    text = text if len(folded) == len(text) else folded  # a few letters become several in lower case
    by_sentence = model.reads_sentences
    if model.unit == "char":
        spans = np.arange(len(text))[:, None] + [0, 1]
        return Document(text, list(folded), spans, np.array([0]), words, word_spans, language)
    split = split_whitespace if words is not None else SPLITTERS[settings.tokenizer]
    symbols, token_spans, starts, begin = [], [], [], 0
    for line in folded.split("\n"):
        if begin and not by_sentence:
            symbols.append("\n")
            token_spans.append((begin - 1, begin))
        tokens = split(line)
        if by_sentence and tokens:
            starts.append(len(symbols))
        symbols += [token.text for token in tokens]
        token_spans += [(begin + token.start, begin + token.end) for token in tokens]
        begin += len(line) + 1
    return Document(text, symbols, np.array(token_spans), np.array(starts or [0]), words, word_spans, language)


def read_source(file: str, sentences: int | None = None) -> str | list[list[ConlluWord]]:
    """Read a text file, or the (first) sentences of a CoNLL-U file."""
    return list(islice(read_conllu_sentences(file), sentences)) if is_conllu(file) else read_text(file)


def detect_language(path: str) -> Language | None:
    """Return the language of a source file by its suffix; None for other files."""
    name = path.lower()
    if name.endswith((".py", ".pyi")):
        return "python"
    return "c" if name.endswith(C_SUFFIXES) else None


def read_document(
    model: SequenceModel, file: str, *, language: Language | None = None, symbols: int | None = None
) -> Document:
    """Read a file of plain text, source code (recognised by its suffix) or CoNLL-U; at most the first `symbols`."""
    source = read_source(file, symbols)
    document = read(model, source, language=(language or detect_language(file)) if isinstance(source, str) else None)
    return document if symbols is None else document.head(symbols)


def document_of(symbols: Sequence[str], starts: Sequence[int] = (0,), *, language: Language | None = None) -> Document:
    """Make a document from symbols: characters, or words, joined by spaces; one line per text, from `starts`."""
    if all(len(symbol) == 1 for symbol in symbols):
        text, spans = "".join(symbols), np.arange(len(symbols))[:, None] + [0, 1]
    else:
        text, spans = _join_words([symbols[a:b] for a, b in pairwise([*starts, len(symbols)])])
    return Document(text, list(symbols), spans, np.array(starts), language=language)


def _join_words(sentences: Iterable[Sequence[str]]) -> tuple[str, np.ndarray]:
    """Join sentences to lines of words separated by spaces; return the text and the spans of the words (W, 2)."""
    lines, spans, offset = [], [], 0
    for words in sentences:
        for word in words:
            spans.append((offset, offset + len(word)))
            offset += len(word) + 1
        lines.append(" ".join(words) + "\n")
    return "".join(lines), np.array(spans, dtype=np.int64).reshape(-1, 2)


def tracks(document: Document, names: Iterable[str]) -> dict[str, np.ndarray]:
    """Return the built-in features (see `FEATURES`) with these names, (T,) each."""
    tracks = {}
    for name in names:
        key = name.replace("-", "_")
        if key not in FEATURES:
            raise SettingError(f"Unknown feature {name!r}; available: {', '.join(FEATURES)}.")
        tracks[key] = document.at_symbols(FEATURES[key](document))
    return tracks


def function_track(document: Document, function: Callable[[str], Sequence[float] | np.ndarray]) -> np.ndarray:
    """Return the track (T,) of a function from the text to one number per character or symbol."""
    return document.at_symbols(np.asarray(function(document.text), dtype=np.float32))


def pattern_track(document: Document, pattern: str) -> np.ndarray:
    """Return a track (T,) that is 1 inside the matches of a regular expression, or inside its groups if it has any."""
    try:
        expression = re.compile(pattern, re.MULTILINE)
    except re.error as error:
        raise SettingError(f"Invalid regular expression {pattern!r}: {error}.") from None
    groups = range(1, expression.groups + 1) if expression.groups else [0]
    spans = [match.span(group) for match in expression.finditer(document.text) for group in groups]
    return document.at_symbols(_mark_spans(document, ((max(begin, 0), max(end, 0), 1) for begin, end in spans)))


def _mark_spans(document: Document, spans: Iterable[tuple[int, int, Any]]) -> np.ndarray:
    """Return a track of characters from spans, each a start, an end and a value (or values)."""
    track = np.zeros(len(document.text), dtype=np.float32)
    for begin, end, value in spans:
        track[begin:end] = value
    return track


def mark_tracks(document: Document, marks: Iterable[Mark]) -> dict[str, np.ndarray]:
    """Return a track (T,) for each name that is 1 inside the spans marked with it."""
    tracks: dict[str, np.ndarray] = {}
    for start, end, name in marks:
        if not 0 <= start < end:
            raise SettingError(f"Invalid mark from {start} to {end}; expected 0 <= start < end.")
        tracks.setdefault(name, np.zeros(len(document.text), dtype=np.float32))[start:end] = 1
    return {name: document.at_symbols(track) for name, track in tracks.items()}


def column_tracks(document: Document, column: str) -> dict[str, np.ndarray]:
    """Return tracks (T,) for a column of CoNLL-U: "upos=NOUN" or "feats.Number=Plur" is 1 at the words with this value;
    a column alone, such as "upos", gives a track for each value of at least a hundredth of the words."""
    name, equals, value = column.partition("=")
    name = ".".join([name.partition(".")[0].lower(), *name.split(".")[1:]])
    if name.partition(".")[0] not in ConlluWord._fields:
        raise SettingError(
            f"Unknown CoNLL-U column {name!r}; expected one of {', '.join(ConlluWord._fields)}, such as upos=NOUN or "
            "feats.Number=Plur."
        )
    word_values = [word.value(name) for sentence in _get_words(document) for word in sentence]
    labels = {column: value} if equals else {f"{name}={value}": value for value in sorted({*word_values} - {"", "_"})}
    return {
        label: _mark_words(document, [value == expected for value in word_values])
        for label, expected in labels.items()
        if equals or word_values.count(expected) >= MIN_SHARE * len(word_values)
    }


def _get_words(document: Document) -> list[list[ConlluWord]]:
    if document.words is None:
        raise SettingError("Columns and trees require a CoNLL-U file (.conllu).")
    return document.words


def _word_feature(compute: Callable[[list[ConlluWord]], Sequence[float]], document: Document) -> np.ndarray:
    return _mark_words(document, [value for words in _get_words(document) for value in compute(words)])


def _mark_words(document: Document, values: Sequence[float]) -> np.ndarray:
    """Spread one value per word over the word's characters, 0 between words; (T,)."""
    return document.at_symbols(_mark_spans(document, zip(*document.word_spans.T.tolist(), values, strict=True)))


def _bracket_feature(brackets: str, document: Document) -> np.ndarray:
    """Return the number of open brackets, or whether one of a single kind is open."""
    table = str.maketrans(dict.fromkeys({*ALL_BRACKETS} - {*brackets}, " "))
    if document.language is not None:
        code = blank_strings_and_comments(document.text, document.language)
        counts = count_open_brackets(code.translate(table))
    else:
        text = document.text.translate(table)
        bounds = [0, *(match.start() for match in document.ends.finditer(text)), len(text)]
        counts = np.concatenate([count_open_brackets(text[a:b]) for a, b in pairwise(bounds)])
    return counts if brackets == ALL_BRACKETS else counts > 0


def quotes(document: Document) -> np.ndarray:
    """Inside quotation marks, straight or curly, of any nesting; an apostrophe is none. A blank line, or the end of a
    line that is a sentence, ends all."""
    text, ends = document.text, document.ends
    expected: list[tuple[str, ...]] = []  # closing marks of each open mark
    changes = [(0, 0)]
    for match in re.finditer(rf"{MARKS}|{ends.pattern}", text):
        offset, end, mark = match.start(), match.end(), match.group()
        before, after = text[max(offset - 1, 0) : offset].isalnum(), text[end : end + 1].isalnum()
        # ' or ’ inside a word, or at the edge of a shortened one: it's, do n't, 'em
        is_apostrophe = mark in ("'", "’") and after and (before or CLITIC.match(text, end) is not None)
        if mark[0] == "\n":
            expected.clear()
        elif not is_apostrophe:
            matching = [i for i, marks in enumerate(expected) if mark in marks]
            if matching:
                del expected[matching[-1] :]
            elif mark == "''":
                del expected[max(0, len(expected) - 2) :]
            elif mark in PAIRS and not (mark == "'" and before):  # dogs' tails
                expected.append(PAIRS[mark])
        changes.append((offset, bool(expected)))
    return _hold_values(changes, len(text))


def blank_strings_and_comments(text: str, language: Language) -> str:
    """Replace every character of strings and comments by a space, line ends too."""
    return STRINGS_AND_COMMENTS[language].sub(lambda match: " " * len(match.group()), text)


def count_open_brackets(text: str) -> np.ndarray:
    """Return the number of open brackets after each character (characters,); unmatched closing ones are ignored."""
    level, changes = 0, [(0, 0)]
    for match in BRACKET.finditer(text):
        level = level + 1 if match.group() in OPENING else max(level - 1, 0)
        changes.append((match.start(), level))
    return _hold_values(changes, len(text))


def _hold_values(changes: Sequence[tuple[int, int]], length: int) -> np.ndarray:
    """Return a track of characters from positions, the first of which is 0, and the values from there on."""
    positions, values = zip(*changes, strict=True)
    return np.repeat(np.array(values, dtype=np.float32), np.diff(positions, append=length))


def _code_feature(name: str, document: Document) -> np.ndarray:
    text, language = document.text, document.language
    if language is None:
        raise SettingError(f"{name} is a feature of source code; set the language to python or c.")
    if name in ("if", "if_body"):
        code = blank_strings_and_comments(text, language)
        ifs = _find_python_ifs(code) if language == "python" else _find_c_ifs(code)
        return _mark_spans(document, ((begin, end, 1) for kind, begin, end in ifs if kind == name))
    spans = []
    for match in STRINGS_AND_COMMENTS[language].finditer(text):
        if name in (match.lastgroup, "prose"):
            has_closing_mark = match.lastgroup == "string" or text.startswith("/*", match.start())
            spans.append((match.start(), match.end() - has_closing_mark, 1))
    return _mark_spans(document, spans)


def _find_python_ifs(code: str) -> Iterator[tuple[str, int, int]]:
    """Yield conditions from `if` or `elif` to the colon, and bodies by their indentation."""
    brackets = count_open_brackets(code)
    indents: list[int] = []  # of the `if` statements whose bodies may include the current line
    # A logical line ends where no bracket is open and no backslash continues it.
    ends = [match.end() for match in re.finditer("\n", code)]
    ends = [end for end in ends if brackets[end - 1] == 0 and code[end - 2 : end - 1] != "\\"]
    for begin, end in pairwise(dict.fromkeys([0, *ends, len(code)])):
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


def _count_characters(text: str) -> np.ndarray:
    return np.arange(1, len(text) + 1)


def _count_indentation(line: str) -> np.ndarray:
    return _count_characters(line).clip(max=len(line) - len(line.lstrip(" \t")))


def sentence_position(document: Document) -> np.ndarray:
    """Words of the sentence that have been read, in a document of sentences and in running text."""
    ends = document.ends.pattern
    if document.ends is BLANK_LINE:
        ends += r"|[.!?…]+[\"'”’)\]]*(?=\s)"
    count, changes = 0, [(0, 0)]
    for match in re.finditer(rf"(?P<word>\w+(?:['’-]\w+)*)|{ends}", document.text):
        count = count + 1 if match.lastgroup else 0
        changes.append((match.start(), count))
    return _hold_values(changes, len(document.text))


def surplus(document: Document) -> np.ndarray:
    """How many more a's than b's have been read, in a text of nothing but a's, b's and line ends."""
    if not {*document.text} <= {"a", "b", "\n"}:
        return np.zeros(len(document.text), dtype=np.float32)
    letters = np.array(list(document.text))
    return np.cumsum((letters == "a").astype(np.float32) - (letters == "b"))


def _feature(description: str, function: Callable[..., np.ndarray], *args: Any) -> Callable[[Document], np.ndarray]:
    feature = partial(function, *args)
    feature.__doc__ = description
    return feature


def _pattern_feature(
    description: str, pattern: str, value: Callable[[str], Any] = bool
) -> Callable[[Document], np.ndarray]:
    """Make a feature of the matches of a regular expression; their value is a number or one per character."""

    def mark_matches(document: Document) -> np.ndarray:
        matches = re.finditer(pattern, document.text, re.IGNORECASE)
        return _mark_spans(document, ((*match.span(), value(match.group())) for match in matches))

    return _feature(description, mark_matches)


FEATURES: Mapping[str, Callable[[Document], np.ndarray]] = {
    "quotes": quotes,
    "depth": _feature(
        "Open brackets ( [ {, in code not those in strings and comments; in prose a blank line, or the end of a line "
        "that is a sentence, closes all.",
        _bracket_feature,
        ALL_BRACKETS,
    ),
    "parentheses": _feature("Inside ( ).", _bracket_feature, "()"),
    "square": _feature("Inside [ ].", _bracket_feature, "[]"),
    "curly": _feature("Inside { }.", _bracket_feature, "{}"),
    "column": _pattern_feature("Characters since the beginning of the line.", LINE, _count_characters),
    "to_line_end": _pattern_feature(
        "Characters that are still to come in the line, its end included.",
        rf"\n[^\n]*|{LINE}",
        lambda text: _count_characters(text)[::-1],
    ),
    "indentation": _pattern_feature(
        "Blanks at the beginning of the line, as far as they have been read.", LINE, _count_indentation
    ),
    "string": _feature("Inside a string of source code.", _code_feature, "string"),
    "comment": _feature("Inside a comment of source code.", _code_feature, "comment"),
    "prose": _feature("Inside a string or a comment of source code.", _code_feature, "prose"),
    "if": _feature("Inside the condition of an if statement.", _code_feature, "if"),
    "if_body": _feature("Inside the body of an if statement.", _code_feature, "if_body"),
    "word_position": _pattern_feature(
        "Letters of the word that have been read; 0 between words.", r"\w+", _count_characters
    ),
    "sentence_position": sentence_position,
    "capitalised": _pattern_feature("Inside a word that begins with a capital.", WORD, lambda word: word[0].isupper()),
    "capitals": _pattern_feature(
        "Inside a word that is all capitals.", WORD, lambda word: len(word) > 1 and word.isupper()
    ),
    "number": _pattern_feature("Inside a number.", r"\b\d(?:[\d.,_]*\d)?"),
    "url": _pattern_feature("Inside a web address.", r"(?:https?://|www\.)[^\s<>\"]*[^\s<>\".,;:!?)\]']"),
    "tag": _pattern_feature("Inside a tag of HTML or XML.", r"</?[a-z][^<>\n]*>"),
    "vowel": _pattern_feature("At a vowel.", r"[aeiouyáéíóúàèìòùâêîôûäëïöüæœåø]"),
    "surplus": surplus,
    "tree_depth": _feature(
        "Words between a word and the root of its sentence, in the tree of a CoNLL-U file.",
        _word_feature,
        trees.dependency_depths,
    ),
    "open_dependencies": _feature(
        "Words that have been read whose head, or a dependent, is still to come, in the tree of a CoNLL-U file.",
        _word_feature,
        trees.open_dependencies,
    ),
    "head_distance": _feature(
        "Words from a word to its head, negative where the head comes before; 0 at the root.",
        _word_feature,
        lambda words: [word.head - 1 - i if word.head else 0 for i, word in enumerate(words)],
    ),
}
"""Built-in features by name; their docstrings describe them."""
