"""Features of a text as tracks: one number per symbol, the state after the symbol was read.

    document = read(model, text)                  # the text and its symbols
    tracks(document, ["quotes", "depth"])         # {"quotes": (T,) of 0 and 1, "depth": (T,)}
    pattern_track(document, r"\\bthe\\b"), column_tracks(document, "upos=NOUN"), mark_tracks(document, marks)

Most features are defined on characters. A word has the value at its last character, so every feature works for models
of words too. A track whose only values are 0 and 1 is a binary feature; any other is numeric.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice, pairwise
from typing import NamedTuple

import numpy as np

from relmo.analysis.core.code_features import (
    Language,
    blank_strings_and_comments,
    count_open_brackets,
    detect_language,
    mark_if_statements,
    mark_strings_and_comments,
)
from relmo.errors import CorpusError, SettingError
from relmo.models.bilm import BiLM
from relmo.models.lm import LanguageModel
from relmo.text import trees
from relmo.text.conllu import COLUMNS, ConlluWord, read_conllu_sentences
from relmo.text.corpus import is_conllu, read_text
from relmo.text.tokenize import Token, split_whitespace, tokenize

MIN_SHARE = 0.01  # of the words with a value, for a track of its own when a column is named without a value
TOKENIZERS: dict[str, Callable[[str], list[Token]]] = {"words": tokenize, "whitespace": split_whitespace}
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
WORD = r"[^\W\d_]+"
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
    model: LanguageModel | BiLM, text: str | Sequence[Sequence[ConlluWord]], *, language: Language | None = None
) -> Document:
    """Split a text, or the sentences of a CoNLL-U file, into a model's symbols.

    For a bidirectional model, each line is a sentence.
    """
    words, word_spans = None, np.zeros((0, 2), dtype=np.int64)
    if not isinstance(text, str):
        words = [list(sentence) for sentence in text]
        text, word_spans = _join_words([[word.form for word in sentence] for sentence in words])
    if not text.strip():
        raise CorpusError("The text is empty.")
    settings = model.settings.text
    folded = text.lower() if settings.lowercase else text
    text = text if len(folded) == len(text) else folded  # a few letters become several in lower case
    by_sentence = isinstance(model, BiLM)
    if not by_sentence and settings.unit == "char":  # type: ignore[union-attr]
        return Document(text, list(folded), _character_spans(len(text)), np.array([0]), words, word_spans, language)
    split = split_whitespace if words is not None else TOKENIZERS[settings.tokenizer]
    symbols, spans, starts, begin = [], [], [], 0
    for line in folded.split("\n"):
        if begin and not by_sentence:
            symbols.append("\n")
            spans.append((begin - 1, begin))
        tokens = split(line)
        if by_sentence and tokens:
            starts.append(len(symbols))
        symbols += [token.text for token in tokens]
        spans += [(begin + token.start, begin + token.end) for token in tokens]
        begin += len(line) + 1
    return Document(text, symbols, np.array(spans), np.array(starts or [0]), words, word_spans, language)


def read_source(file: str, sentences: int | None = None) -> str | list[list[ConlluWord]]:
    """Read a text file, or the (first) sentences of a CoNLL-U file."""
    return list(islice(read_conllu_sentences(file), sentences)) if is_conllu(file) else read_text(file)


def read_document(
    model: LanguageModel | BiLM, file: str, *, language: Language | None = None, symbols: int | None = None
) -> Document:
    """Read a file of plain text, source code (recognised by its suffix) or CoNLL-U; at most the first `symbols`."""
    source = read_source(file, symbols)
    document = read(model, source, language=(language or detect_language(file)) if isinstance(source, str) else None)
    return document if symbols is None else document.head(symbols)


def document_of(symbols: Sequence[str], starts: Sequence[int] = (0,), *, language: Language | None = None) -> Document:
    """Make a document from symbols.

    Single characters are joined; other symbols are words, separated by spaces, with one line per text that begins at
    `starts`.
    """
    if all(len(symbol) == 1 for symbol in symbols):
        text, spans = "".join(symbols), _character_spans(len(symbols))
    else:
        text, spans = _join_words([symbols[a:b] for a, b in pairwise([*starts, len(symbols)])])
    return Document(text, list(symbols), spans, np.array(starts), language=language)


def _character_spans(count: int) -> np.ndarray:
    return np.stack([np.arange(count), np.arange(count) + 1], axis=1)


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
    track = np.zeros(len(document.text), dtype=np.float32)
    for match in expression.finditer(document.text):
        for group in range(1, expression.groups + 1) if expression.groups else [0]:
            begin, end = match.span(group)
            track[max(begin, 0) : max(end, 0)] = 1
    return document.at_symbols(track)


def mark_tracks(document: Document, marks: Iterable[Mark]) -> dict[str, np.ndarray]:
    """Return a track (T,) for each name that is 1 inside the spans marked with it."""
    tracks: dict[str, np.ndarray] = {}
    for start, end, name in marks:
        if not 0 <= start < end:
            raise SettingError(f"Invalid mark from {start} to {end}; expected 0 <= start < end.")
        tracks.setdefault(name, np.zeros(len(document.text), dtype=np.float32))[start:end] = 1
    return {name: document.at_symbols(track) for name, track in tracks.items()}


def column_tracks(document: Document, column: str) -> dict[str, np.ndarray]:
    """Return tracks (T,) for a column of CoNLL-U.

    "upos=NOUN" or "feats.Number=Plur" is 1 at the words with this value. A column alone, such as "upos", gives a track
    for each value of at least a hundredth of the words.
    """
    name, equals, value = column.partition("=")
    name = ".".join([name.partition(".")[0].lower(), *name.split(".")[1:]])
    if name.partition(".")[0] not in COLUMNS:
        raise SettingError(
            f"Unknown CoNLL-U column {name!r}; expected one of {', '.join(COLUMNS)}, such as upos=NOUN or "
            "feats.Number=Plur."
        )
    word_values = [word.value(name) for sentence in _get_words(document) for word in sentence]
    if equals:
        return {column: _word_track(document, [word_value == value for word_value in word_values])}
    tracks = {}
    for value in sorted({*word_values} - {"", "_"}):
        matches = [word_value == value for word_value in word_values]
        if sum(matches) >= MIN_SHARE * len(word_values):
            tracks[f"{name}={value}"] = _word_track(document, matches)
    return tracks


def _get_words(document: Document) -> list[list[ConlluWord]]:
    if document.words is None:
        raise SettingError("Columns and trees require a CoNLL-U file (.conllu).")
    return document.words


def _word_track(document: Document, values: Sequence[float]) -> np.ndarray:
    """Spread one value per word over its characters, 0 between words; (T,)."""
    track = np.zeros(len(document.text), dtype=np.float32)
    for (begin, end), value in zip(document.word_spans.tolist(), values, strict=True):
        track[begin:end] = value
    return document.at_symbols(track)


def column(document: Document) -> np.ndarray:
    """Characters since the beginning of the line."""
    offsets = np.arange(len(document.text))
    is_end = np.array(list(document.text)) == "\n"
    return offsets - np.maximum.accumulate(np.where(is_end, offsets, -1))


def to_line_end(document: Document) -> np.ndarray:
    """Characters that are still to come in the line, its end included."""
    text = document.text
    ends = np.append(np.flatnonzero(np.array(list(text)) == "\n"), len(text))
    offsets = np.arange(len(text))
    return ends[np.searchsorted(ends, offsets, side="right").clip(max=len(ends) - 1)] - offsets


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
    return _count_brackets(document, "([{)]}")


def _count_brackets(document: Document, brackets: str) -> np.ndarray:
    table = str.maketrans(dict.fromkeys({*"([{)]}"} - {*brackets}, " "))
    if document.language is not None:
        return count_open_brackets(blank_strings_and_comments(document.text, document.language).translate(table))
    text = document.text.translate(table)
    bounds = [0, *(match.start() for match in document.ends.finditer(text)), len(text)]
    return np.concatenate([count_open_brackets(text[a:b]) for a, b in pairwise(bounds)])


def _inside_brackets(brackets: str) -> Callable[[Document], np.ndarray]:
    def feature(document: Document) -> np.ndarray:
        return _count_brackets(document, brackets) > 0

    feature.__doc__ = f"Inside {brackets[0]} {brackets[1]}."
    return feature


def quotes(document: Document) -> np.ndarray:
    """Inside quotation marks, straight or curly, of any nesting; an apostrophe is none. A blank line, or the end of a
    line that is a sentence, ends all."""
    text, ends = document.text, document.ends
    track = np.zeros(len(text), dtype=np.float32)
    expected: list[tuple[str, ...]] = []  # closing marks of each open mark
    previous = 0
    for match in re.finditer(rf"{MARKS}|{ends.pattern}", text):
        offset, mark = match.start(), match.group()
        track[previous:offset] = bool(expected)
        previous = offset
        if mark[0] == "\n":
            expected.clear()
        elif not _is_apostrophe(text, match):
            matching = [i for i, marks in enumerate(expected) if mark in marks]
            if matching:
                del expected[matching[-1] :]
            elif mark == "''":
                del expected[max(0, len(expected) - 2) :]
            elif mark in PAIRS and not (mark == "'" and text[max(offset - 1, 0) : offset].isalnum()):  # dogs' tails
                expected.append(PAIRS[mark])
    track[previous:] = bool(expected)
    return track


def _is_apostrophe(text: str, mark: re.Match[str]) -> bool:
    """Whether a mark is ' or ’ inside a word or at the edge of a shortened one: it's, do n't, 'em."""
    before, after = text[max(mark.start() - 1, 0) : mark.start()], text[mark.end() : mark.end() + 1]
    if mark.group() not in ("'", "’"):
        return False
    return (before.isalnum() and after.isalnum()) or (after.isalnum() and CLITIC.match(text, mark.end()) is not None)


def _code_feature(name: str, description: str) -> Callable[[Document], np.ndarray]:
    def feature(document: Document) -> np.ndarray:
        if document.language is None:
            raise SettingError(f"{name} is a feature of source code; set the language to python or c.")
        if name in ("if", "if_body"):
            return mark_if_statements(document.text, document.language)[name]
        tracks = mark_strings_and_comments(document.text, document.language)
        return tracks["string"] + tracks["comment"] if name == "prose" else tracks[name]

    feature.__doc__ = description
    return feature


def _inside_matches(
    pattern: str, description: str, test: Callable[[str], bool] = lambda match: True
) -> Callable[[Document], np.ndarray]:
    expression = re.compile(pattern, re.IGNORECASE)

    def feature(document: Document) -> np.ndarray:
        track = np.zeros(len(document.text), dtype=np.float32)
        for match in expression.finditer(document.text):
            track[match.start() : match.end()] = test(match.group())
        return track

    feature.__doc__ = description
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
    count, previous = 0, 0
    for match in re.finditer(rf"(?P<word>\w+(?:['’-]\w+)*)|{ends}", document.text):
        track[previous : match.start()] = count
        previous = match.start()
        count = count + 1 if match.lastgroup else 0
    track[previous:] = count
    return track


def surplus(document: Document) -> np.ndarray:
    """How many more a's than b's have been read, in a text of nothing but a's, b's and line ends."""
    if not {*document.text} <= {"a", "b", "\n"}:
        return np.zeros(len(document.text), dtype=np.float32)
    letters = np.array(list(document.text))
    return np.cumsum((letters == "a").astype(np.float32) - (letters == "b"))


def tree_depth(document: Document) -> np.ndarray:
    """Words between a word and the root of its sentence, in the tree of a CoNLL-U file."""
    return _word_track(document, [value for words in _get_words(document) for value in trees.dependency_depths(words)])


def open_dependencies(document: Document) -> np.ndarray:
    """Words that have been read whose head, or a dependent, is still to come, in the tree of a CoNLL-U file."""
    return _word_track(document, [value for words in _get_words(document) for value in trees.open_dependencies(words)])


def head_distance(document: Document) -> np.ndarray:
    """Words from a word to its head, negative where the head comes before; 0 at the root."""
    pairs = [pair for words in _get_words(document) for pair in enumerate(words)]
    return _word_track(document, [word.head - 1 - i if word.head else 0 for i, word in pairs])


FEATURES: Mapping[str, Callable[[Document], np.ndarray]] = {
    "quotes": quotes,
    "depth": _bracket_depth,
    "parentheses": _inside_brackets("()"),
    "square": _inside_brackets("[]"),
    "curly": _inside_brackets("{}"),
    "column": column,
    "to_line_end": to_line_end,
    "indentation": indentation,
    "string": _code_feature("string", "Inside a string of source code."),
    "comment": _code_feature("comment", "Inside a comment of source code."),
    "prose": _code_feature("prose", "Inside a string or a comment of source code."),
    "if": _code_feature("if", "Inside the condition of an if statement."),
    "if_body": _code_feature("if_body", "Inside the body of an if statement."),
    "word_position": word_position,
    "sentence_position": sentence_position,
    "capitalised": _inside_matches(WORD, "Inside a word that begins with a capital.", lambda word: word[0].isupper()),
    "capitals": _inside_matches(
        WORD, "Inside a word that is all capitals.", lambda word: len(word) > 1 and word.isupper()
    ),
    "number": _inside_matches(r"\b\d(?:[\d.,_]*\d)?", "Inside a number."),
    "url": _inside_matches(r"(?:https?://|www\.)[^\s<>\"]*[^\s<>\".,;:!?)\]']", "Inside a web address."),
    "tag": _inside_matches(r"</?[a-z][^<>\n]*>", "Inside a tag of HTML or XML."),
    "vowel": _inside_matches(r"[aeiouyáéíóúàèìòùâêîôûäëïöüæœåø]", "At a vowel."),
    "surplus": surplus,
    "tree_depth": tree_depth,
    "open_dependencies": open_dependencies,
    "head_distance": head_distance,
}
"""Built-in features by name; their docstrings describe them."""
