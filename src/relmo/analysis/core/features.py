"""Features of a text as tracks. A track has a number for each symbol: how things stand after the symbol was read.

    document = read(model, text)                  the text, and the symbols that the model reads of it
    tracks(document, ["quotes", "depth"])         {"quotes": (T,) of 0 and 1, "depth": (T,)}
    pattern_track(document, r"\\bthe\\b"), column_tracks(document, "upos=NOUN"), mark_tracks(document, marks)

Most features are defined on characters. A word has the value at its last character, so every feature can be asked of
models of words too. A track whose only values are 0 and 1 is a yes-or-no feature; any other is a number.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from relmo.analysis.core.code_features import Language, code_alone, depth, if_statements, strings_and_comments
from relmo.errors import CorpusError, SettingError
from relmo.models.bilm import BiLM
from relmo.models.lm import LanguageModel
from relmo.text import trees
from relmo.text.conllu import COLUMNS, ConlluWord
from relmo.text.tokenize import Token, split_whitespace, tokenize

LEAST_SHARE = 0.01  # of words that a value of a column must have to be a feature when the column is named alone
TOKENS: dict[str, Callable[[str], list[Token]]] = {"words": tokenize, "whitespace": split_whitespace}
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
"""Quotation marks that open, with those that close them."""
MARKS = "|".join(
    ["``", "''", *sorted({*PAIRS, *(mark for closing in PAIRS.values() for mark in closing)} - {"``", "''"})]
)
CLITIC = re.compile(r"(?:s|re|ve|ll|d|m|t|em|n|tis|twas)\b", re.IGNORECASE)
LINE_END, BLANK_LINE = re.compile(r"\n"), re.compile(r"\n[ \t]*\n")


@dataclass(frozen=True)
class Document:
    """A text and the symbols that a model reads of it.

    spans       where each symbol stands in the text: its first character, and the one after its last; (T, 2)
    starts      where texts, or sentences, begin among the symbols
    words       of a CoNLL-U file: the columns of every word, and where words stand in the text; (W, 2)
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
        """The symbols of each text by itself."""
        return [self.symbols[a:b] for a, b in pairwise([*self.starts.tolist(), len(self)])]

    @property
    def ends(self) -> re.Pattern[str]:
        """What ends whatever is open: the line where each is a sentence, else a blank line."""
        return LINE_END if len(self.starts) > 1 or self.words is not None else BLANK_LINE

    def at_symbols(self, track: np.ndarray) -> np.ndarray:
        """A track of characters as one of symbols, (T,); a track of symbols as it is."""
        track = np.asarray(track, dtype=np.float32)
        if len(track) == len(self.text):
            return track[self.spans[:, 1] - 1]
        if len(track) == len(self):
            return track
        raise SettingError(
            f"a feature has {len(track)} values, where the text has {len(self.text)} characters and {len(self)} symbols"
        )

    def head(self, symbols: int) -> "Document":
        """Its first symbols."""
        if symbols >= len(self):
            return self
        return Document(
            self.text[: self.spans[symbols - 1, 1]],
            self.symbols[:symbols],
            self.spans[:symbols],
            self.starts[self.starts < symbols],
            self.words,
            self.word_spans,
            self.language,
        )


class Mark(NamedTuple):
    """A stretch of the text that someone marked: its first character, the one after its last, and what it is."""

    start: int
    end: int
    name: str = "marked"


def read(
    model: LanguageModel | BiLM,
    text: str | Sequence[Sequence[ConlluWord]],
    *,
    language: Language | None = None,
) -> Document:
    """A text, or the sentences of a CoNLL-U file, as a model reads it. For a bidirectional model each line is a
    sentence."""
    words, spans = None, np.zeros((0, 2), dtype=np.int64)
    if not isinstance(text, str):
        words = [list(sentence) for sentence in text]
        text, spans = _spaced([[word.form for word in sentence] for sentence in words])
    if not text.strip():
        raise CorpusError("the text is empty; give one with symbols in it")
    settings = model.settings.text
    folded = text.lower() if settings.lowercase else text
    text = text if len(folded) == len(text) else folded  # a few letters have more than one in lower case
    by_sentence = isinstance(model, BiLM)
    if not by_sentence and settings.unit == "char":  # type: ignore[union-attr]
        places = np.arange(len(text))
        return Document(
            text, list(folded), np.stack([places, places + 1], axis=1), np.array([0]), words, spans, language
        )
    split = split_whitespace if words is not None else TOKENS[settings.tokenizer]
    symbols, found, starts, begin = [], [], [], 0
    for line in folded.split("\n"):
        if begin and not by_sentence:
            symbols.append("\n")
            found.append((begin - 1, begin))
        tokens = split(line)
        if by_sentence and tokens:
            starts.append(len(symbols))
        symbols += [token.text for token in tokens]
        found += [(begin + token.start, begin + token.end) for token in tokens]
        begin += len(line) + 1
    return Document(text, symbols, np.array(found), np.array(starts or [0]), words, spans, language)


def document_of(symbols: Sequence[str], starts: Sequence[int] = (0,), *, language: Language | None = None) -> Document:
    """A document of your own symbols. Single characters follow each other; other symbols are words, with spaces between
    them and a line for each text that begins at `starts`."""
    bounds = [*starts, len(symbols)]
    texts = [list(symbols[a:b]) for a, b in pairwise(bounds)]
    if all(len(symbol) == 1 for symbol in symbols):
        places = np.arange(len(symbols))
        spans = np.stack([places, places + 1], axis=1)
        return Document("".join(symbols), list(symbols), spans, np.array(starts), language=language)
    text, spans = _spaced(texts)
    return Document(text, list(symbols), spans, np.array(starts), language=language)


def _spaced(sentences: Iterable[Sequence[str]]) -> tuple[str, np.ndarray]:
    """The sentences as lines of words with spaces between, and where each word stands; (W, 2)."""
    lines, spans, place = [], [], 0
    for words in sentences:
        for word in words:
            spans.append((place, place + len(word)))
            place += len(word) + 1
        lines.append(" ".join(words) + "\n")
    return "".join(lines), np.array(spans, dtype=np.int64).reshape(-1, 2)


def tracks(document: Document, names: Iterable[str]) -> dict[str, np.ndarray]:
    """The features of these names, (T,) each; FEATURES says what there is."""
    found = {}
    for name in names:
        key = name.replace("-", "_")
        if key not in FEATURES:
            raise SettingError(f"there is no feature {name!r}; there are {', '.join(FEATURES)}")
        found[key] = document.at_symbols(FEATURES[key](document))
    return found


def function_track(document: Document, function: Callable[[str], Sequence[float] | np.ndarray]) -> np.ndarray:
    """What your own function makes of the text: a number for each character, or for each symbol; (T,)."""
    return document.at_symbols(np.asarray(function(document.text), dtype=np.float32))


def pattern_track(document: Document, pattern: str) -> np.ndarray:
    """1 inside what a regular expression matches, or inside its groups where it has any; (T,)."""
    try:
        expression = re.compile(pattern, re.MULTILINE)
    except re.error as error:
        raise SettingError(f"the regular expression {pattern!r} is wrong: {error}") from None
    track = np.zeros(len(document.text), dtype=np.float32)
    for match in expression.finditer(document.text):
        for group in range(1, expression.groups + 1) if expression.groups else [0]:
            begin, end = match.span(group)
            track[max(begin, 0) : max(end, 0)] = 1
    return document.at_symbols(track)


def mark_tracks(document: Document, marks: Iterable[Mark]) -> dict[str, np.ndarray]:
    """1 inside the stretches that are marked, a track for each name; (T,) each."""
    found: dict[str, np.ndarray] = {}
    for start, end, name in marks:
        if not 0 <= start < end:
            raise SettingError(f"a mark goes from {start} to {end}; it begins at 0 or later and ends after that")
        found.setdefault(name, np.zeros(len(document.text), dtype=np.float32))[start:end] = 1
    return {name: document.at_symbols(track) for name, track in found.items()}


def column_tracks(document: Document, asked: str) -> dict[str, np.ndarray]:
    """Columns of CoNLL-U. "upos=NOUN" or "feats.Number=Plur" is 1 at the words that have the value. A column alone,
    such as "upos", gives a track for each value that at least a hundredth of the words have. (T,) each"""
    name, equals, value = asked.partition("=")
    name = ".".join([name.partition(".")[0].lower(), *name.split(".")[1:]])
    if name.partition(".")[0] not in COLUMNS:
        raise SettingError(
            f"CoNLL-U has no column {name!r}; it has {', '.join(COLUMNS)}; say for example upos=NOUN, feats.Number=Plur"
        )
    values = [word.value(name) for sentence in annotated(document) for word in sentence]
    if equals:
        return {asked: _word_track(document, [found == value for found in values])}
    counts = {each: values.count(each) for each in dict.fromkeys(values)}
    frequent = [each for each, count in counts.items() if count >= LEAST_SHARE * len(values) and each not in ("", "_")]
    return {f"{name}={each}": _word_track(document, [found == each for found in values]) for each in sorted(frequent)}


def annotated(document: Document) -> list[list[ConlluWord]]:
    """The words with their columns; an error where the document does not come from a CoNLL-U file."""
    if document.words is None:
        raise SettingError("columns and trees are read from CoNLL-U: give a .conllu file")
    return document.words


def _word_track(document: Document, values: Sequence[float]) -> np.ndarray:
    """A value of each word as a track, on all its characters, 0 between words; (T,)."""
    track = np.zeros(len(document.text), dtype=np.float32)
    for (begin, end), value in zip(document.word_spans.tolist(), values, strict=True):
        track[begin:end] = value
    return document.at_symbols(track)


def column(document: Document) -> np.ndarray:
    """Characters since the beginning of the line."""
    places = np.arange(len(document.text))
    return places - _last_line_end(document.text)


def _last_line_end(text: str) -> np.ndarray:
    """The place of the last line end that was read, -1 before the first; (characters,)."""
    ends = np.array(list(text)) == "\n"
    return np.maximum.accumulate(np.where(ends, np.arange(len(text)), -1))


def to_line_end(document: Document) -> np.ndarray:
    """Characters that are still to come in the line, its end included."""
    text = document.text
    ends = np.append(np.flatnonzero(np.array(list(text)) == "\n"), len(text))
    places = np.arange(len(text))
    return ends[np.searchsorted(ends, places, side="right").clip(max=len(ends) - 1)] - places


def indentation(document: Document) -> np.ndarray:
    """Blanks at the beginning of the line, as far as they have been read."""
    track = np.zeros(len(document.text), dtype=np.float32)
    for line in re.finditer(r"^([ \t]*)[^\n]*", document.text, flags=re.MULTILINE):
        blanks = len(line.group(1))
        track[line.start() : line.start() + blanks] = np.arange(1, blanks + 1)
        track[line.start() + blanks : line.end()] = blanks
    return track


def _bracket_depth(document: Document) -> np.ndarray:
    """Open brackets ( [ {, in code not those in strings and comments; in prose a blank line, or the end of a line that
    is a sentence, closes all."""
    return _open_brackets(document, "([{", ")]}")


def _open_brackets(document: Document, opening: str, closing: str) -> np.ndarray:
    """How many of these brackets are open after each character."""
    others = {*"([{)]}"} - {*opening, *closing}
    table = str.maketrans(dict.fromkeys(others, " "))
    if document.language is not None:
        return depth(code_alone(document.text, document.language).translate(table))
    text = document.text.translate(table)
    bounds = [0, *(match.start() for match in document.ends.finditer(text)), len(text)]
    return np.concatenate([depth(text[a:b]) for a, b in pairwise(bounds)])


def inside(opening: str, closing: str) -> Callable[[Document], np.ndarray]:
    """A feature: inside brackets of one kind."""

    def feature(document: Document) -> np.ndarray:
        return _open_brackets(document, opening, closing) > 0

    feature.__doc__ = f"Inside {opening} {closing}."
    return feature


def quotes(document: Document) -> np.ndarray:
    """Inside quotation marks, straight or curly, of any nesting; an apostrophe is none. A blank line, or the end of a
    line that is a sentence, ends all."""
    text, ends = document.text, document.ends
    track = np.zeros(len(text), dtype=np.float32)
    expected: list[tuple[str, ...]] = []  # what would close each mark that is open
    last = 0
    for match in re.finditer(rf"{MARKS}|{ends.pattern}", text):
        place, mark = match.start(), match.group()
        track[last:place] = bool(expected)
        last = place
        if mark[0] == "\n":
            expected.clear()
        elif not _is_apostrophe(text, match):
            closes = [i for i, marks in enumerate(expected) if mark in marks]
            if closes:
                del expected[closes[-1] :]
            elif mark == "''":
                del expected[max(0, len(expected) - 2) :]
            elif mark in PAIRS and not (mark == "'" and text[max(place - 1, 0) : place].isalnum()):  # dogs' tails
                expected.append(PAIRS[mark])
    track[last:] = bool(expected)
    return track


def _is_apostrophe(text: str, mark: re.Match[str]) -> bool:
    """Whether ' or ’ stands in a word, or begins or ends one that is shortened: it's, do n't, 'em."""
    before, after = text[max(mark.start() - 1, 0) : mark.start()], text[mark.end() : mark.end() + 1]
    if mark.group() not in ("'", "’"):
        return False
    return (before.isalnum() and after.isalnum()) or (after.isalnum() and CLITIC.match(text, mark.end()) is not None)


def _in_code(name: str, what: str) -> Callable[[Document], np.ndarray]:
    """A feature that only source code has."""

    def feature(document: Document) -> np.ndarray:
        if document.language is None:
            raise SettingError(f"{name} is a feature of source code: say the language, python or c")
        if name in ("if", "if_body"):
            return if_statements(document.text, document.language)[name]
        found = strings_and_comments(document.text, document.language)
        return found["string"] + found["comment"] if name == "prose" else found[name]

    feature.__doc__ = what
    return feature


def matches(pattern: str, what: str) -> Callable[[Document], np.ndarray]:
    """A feature: inside what an expression matches."""
    expression = re.compile(pattern, re.IGNORECASE)

    def feature(document: Document) -> np.ndarray:
        track = np.zeros(len(document.text), dtype=np.float32)
        for match in expression.finditer(document.text):
            track[match.start() : match.end()] = 1
        return track

    feature.__doc__ = what
    return feature


def word_position(document: Document) -> np.ndarray:
    """Letters of the word that have been read; 0 between words."""
    track = np.zeros(len(document.text), dtype=np.float32)
    for match in re.finditer(r"\w+", document.text):
        track[match.start() : match.end()] = np.arange(1, match.end() - match.start() + 1)
    return track


def sentence_position(document: Document) -> np.ndarray:
    """Words of the sentence that have been read, in a document of sentences and in running text."""
    ends = document.ends.pattern
    if document.ends is BLANK_LINE:
        ends += r"|[.!?…]+[\"'”’)\]]*(?=\s)"
    track = np.zeros(len(document.text), dtype=np.float32)
    count, last = 0, 0
    for match in re.finditer(rf"(?P<word>\w+(?:['’-]\w+)*)|{ends}", document.text):
        track[last : match.start()] = count
        last = match.start()
        count = count + 1 if match.lastgroup else 0
    track[last:] = count
    return track


def _cased(test: Callable[[str], bool], what: str) -> Callable[[Document], np.ndarray]:
    """A feature: inside a word of a certain case."""

    def feature(document: Document) -> np.ndarray:
        track = np.zeros(len(document.text), dtype=np.float32)
        for match in re.finditer(r"[^\W\d_]+", document.text):
            track[match.start() : match.end()] = test(match.group())
        return track

    feature.__doc__ = what
    return feature


def surplus(document: Document) -> np.ndarray:
    """How many more a's than b's have been read, in a text of nothing but a's, b's and line ends."""
    if not {*document.text} <= {"a", "b", "\n"}:
        return np.zeros(len(document.text), dtype=np.float32)
    letters = np.array(list(document.text))
    return np.cumsum((letters == "a").astype(np.float32) - (letters == "b"))


def tree_depth(document: Document) -> np.ndarray:
    """Words between a word and the root of its sentence, in the tree of a CoNLL-U file."""
    return _word_track(document, [value for words in annotated(document) for value in trees.dependency_depths(words)])


def open_dependencies(document: Document) -> np.ndarray:
    """Words that have been read whose head, or a dependent, is still to come, in the tree of a CoNLL-U file."""
    return _word_track(document, [value for words in annotated(document) for value in trees.open_dependencies(words)])


def head_distance(document: Document) -> np.ndarray:
    """Words from a word to its head, negative where the head comes before; 0 at the root."""
    pairs = [pair for words in annotated(document) for pair in enumerate(words)]
    return _word_track(document, [word.head - 1 - place if word.head else 0 for place, word in pairs])


FEATURES: Mapping[str, Callable[[Document], np.ndarray]] = {
    "quotes": quotes,
    "depth": _bracket_depth,
    "parentheses": inside("(", ")"),
    "square": inside("[", "]"),
    "curly": inside("{", "}"),
    "column": column,
    "to_line_end": to_line_end,
    "indentation": indentation,
    "string": _in_code("string", "Inside a string of source code."),
    "comment": _in_code("comment", "Inside a comment of source code."),
    "prose": _in_code("prose", "Inside a string or a comment of source code."),
    "if": _in_code("if", "Inside the condition of an if statement."),
    "if_body": _in_code("if_body", "Inside the body of an if statement."),
    "word_position": word_position,
    "sentence_position": sentence_position,
    "capitalised": _cased(lambda word: word[0].isupper(), "Inside a word that begins with a capital."),
    "capitals": _cased(lambda word: len(word) > 1 and word.isupper(), "Inside a word that is all capitals."),
    "number": matches(r"\b\d(?:[\d.,_]*\d)?", "Inside a number."),
    "url": matches(r"(?:https?://|www\.)[^\s<>\"]*[^\s<>\".,;:!?)\]']", "Inside a web address."),
    "tag": matches(r"</?[a-z][^<>\n]*>", "Inside a tag of HTML or XML."),
    "vowel": matches(r"[aeiouyáéíóúàèìòùâêîôûäëïöüæœåø]", "At a vowel."),
    "surplus": surplus,
    "tree_depth": tree_depth,
    "open_dependencies": open_dependencies,
    "head_distance": head_distance,
}
"""Every feature that has a name; its docstring says what it is."""
