"""Words with a tag each, and spans as tags: BIO or IOB2 (B-X begins a span of type X, I-X continues it, O is outside),
IOB1 (B-X only directly after a span of its type; Ramshaw & Marcus 1995), BIOUL or BIOES (also L-X or E-X for the last
word of a span, U-X or S-X for a span of one word; Ratinov & Roth 2009)."""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np

from relmo.errors import CorpusError, quote
from relmo.text import corpus
from relmo.text.corpus import CONLLU, MAX_DIGITS, Errors, numbered_lines, require_examples, require_text
from relmo.text.readers.tables import get_value, is_csv, is_jsonl, is_word_list, json_rows
from relmo.text.treebank import PlacedText, SurfaceForm, place_words

OUTSIDE = "O"
MIN_SPAN_TAGS = 0.9  # share of tags; a file of spans with a few broken tags is still a file of spans
BEGINS, ENDS = "BUS", "LEUS"  # prefixes that always begin or end a span
WORDS, TAGS = ("words", "tokens"), ("tags", "ner_tags", "labels")
UNTAGGED, UNTAGGED_COLUMNS = "_", ("upos", "xpos", "deprel")  # in other columns _ is a value: in feats, no features
DOCUMENT = "-DOCSTART-"
RANGE = re.compile(rf"(\d{{1,{MAX_DIGITS}}})-(\d{{1,{MAX_DIGITS}}})")
COMMENT = re.compile(r"#\s*\S+(\s\w+)?\s=\s")  # as in Universal Dependencies

TaggedFormat = Literal["auto", "conllu", "columns", "jsonl"]


class Span(NamedTuple):
    """Words from `start` up to, but not including, `end`, and their type."""

    start: int
    end: int
    label: str


class TaggedWords(NamedTuple):
    """Words with a tag each, empty if the file leaves it unspecified; `raw` is the text with the offsets of the words,
    if the file has it."""

    words: list[str]
    tags: list[str]
    raw: PlacedText = PlacedText()


def is_span_tag(tag: str) -> bool:
    """Return whether a tag is one of BIO, IOB1, BIOUL or BIOES."""
    prefix, _, label = tag.partition("-")
    return tag == OUTSIDE or (len(prefix) == 1 and prefix in "BIULES" and bool(label))


def are_span_tags(tags: Iterable[str]) -> bool:
    """Return whether the tags of a text mark spans: nearly all are those of an encoding, and not all of them O."""
    counts = Counter(tags)
    num_span_tags = sum(count for tag, count in counts.items() if is_span_tag(tag))
    has_span = any(tag != OUTSIDE and is_span_tag(tag) for tag in counts)
    return has_span and num_span_tags >= MIN_SPAN_TAGS * counts.total()


def spans(tags: Sequence[str]) -> list[Span]:
    """Return the spans of tags in any of the encodings; invalid sequences are read as conlleval does."""
    span_list = []
    start, previous = 0, OUTSIDE
    for i, tag in enumerate([*tags, OUTSIDE]):
        if not _continues_span(previous, tag):
            if previous != OUTSIDE:
                span_list.append(Span(start, i, previous.partition("-")[2]))
            start = i
        previous = tag
    return span_list


def _continues_span(previous: str, tag: str) -> bool:
    (previous_prefix, _, previous_label), (prefix, _, label) = previous.partition("-"), tag.partition("-")
    is_inside = OUTSIDE not in (previous, tag) and label == previous_label
    return is_inside and prefix not in BEGINS and previous_prefix not in ENDS


def bio(tags: Sequence[str]) -> list[str]:
    """Convert tags in any of the encodings to BIO."""
    bio_tags = [OUTSIDE] * len(tags)
    for start, end, label in spans(tags):
        bio_tags[start:end] = [f"B-{label}"] + [f"I-{label}"] * (end - start - 1)
    return bio_tags


def bioul(tags: Sequence[str]) -> list[str]:
    """Convert tags in any of the encodings to BIOUL."""
    bioul_tags = [OUTSIDE] * len(tags)
    for start, end, label in spans(tags):
        inner = [f"I-{label}"] * (end - start - 2)
        bioul_tags[start:end] = [f"U-{label}"] if end - start == 1 else [f"B-{label}", *inner, f"L-{label}"]
    return bioul_tags


def legal_transitions(tags: Sequence[str]) -> np.ndarray:
    """Return legal transitions in BIO or BIOUL, bool (K + 2, K + 2), from row (K: start) to column (K + 1: end)."""
    prefixes = [tag.partition("-")[0] for tag in tags]
    is_bioul = any(prefix in "LU" for prefix in prefixes)
    count = len(tags)
    legal = np.zeros((count + 2, count + 2), dtype=bool)
    ends = [tag == OUTSIDE or not is_bioul or prefix in "LU" for tag, prefix in zip(tags, prefixes, strict=True)]
    starts = [prefix in "OBU" for prefix in prefixes]
    for i, previous in enumerate(tags):
        for j, tag in enumerate(tags):
            continues = prefixes[j] in "IL" and _continues_span(previous, tag)
            legal[i, j] = continues or (ends[i] and starts[j])
    legal[count, :count], legal[:count, count + 1] = starts, ends
    return legal


@require_examples("sentence")
def read_tagged(
    path: str | Path, *, layout: TaggedFormat = "auto", column: str | None = None, errors: Errors = "strict"
) -> Iterator[TaggedWords]:
    """Yield sentences of words with their tags, which are in a `column` with a name, such as upos (default of CoNLL-U)
    or a key of JSON, or a number from 1: by default the last one, or the third if the first one counts the words."""
    if is_csv(path):
        raise CorpusError(f"{path}: is a table; a tagger needs CoNLL-U, lines of a word and its tag, or JSON lines")
    if layout == "auto":
        layout = "conllu" if corpus.is_conllu(path) else "jsonl" if is_jsonl(path) else "columns"
    if layout == "conllu":
        yield from _read_conllu(path, column, errors)
    elif layout == "columns":
        yield from _read_columns(path, column, errors)
    else:
        for row in json_rows(path, errors):
            words, tags = get_value(row, WORDS), get_value(row, TAGS if column is None else (column,))
            if not (is_word_list(words) and is_word_list(tags) and len(words) == len(tags)):
                raise CorpusError(f"{row.place}: expected as many tags as words, both lists of strings")
            if words:
                yield TaggedWords(words, tags)


def _read_conllu(path: str | Path, column: str | None, errors: Errors) -> Iterator[TaggedWords]:
    """Yield the sentences of CoNLL-U, without empty nodes (5.1). Ranges (3-4) give the surface forms."""
    name = (column or "upos").lower()
    if name.isdecimal() and len(name) <= MAX_DIGITS and 1 <= int(name) <= len(CONLLU):
        name = CONLLU[int(name) - 1]
    if name not in CONLLU:
        raise CorpusError(f"{path}: CoNLL-U has no column {quote(column)}; it has {', '.join(CONLLU)} (or 1 to 10)")
    tag_column = CONLLU.index(name)
    for rows, text in corpus.conllu_rows(path, errors, separator=DOCUMENT):
        words: list[str] = []
        tags: list[str] = []
        forms: list[SurfaceForm] = []
        num_remaining = 0  # words of the current range
        for fields, place in rows:
            number, form, spaced = fields[0], fields[1], "SpaceAfter=No" not in fields[-1].split("|")
            if number.isdecimal():
                words.append(require_text(form, "word", place))
                tag = require_text(fields[tag_column], "tag", place, f"write {UNTAGGED} if it is not specified").strip()
                tags.append("" if tag == UNTAGGED and name in UNTAGGED_COLUMNS else tag)
                if num_remaining:
                    forms[-1].words.append(form)
                    num_remaining -= 1
                else:
                    forms.append(SurfaceForm(form, [form], spaced))
            elif (match := RANGE.fullmatch(number)) and int(match[2]) >= int(match[1]):
                forms.append(SurfaceForm(form, [], spaced))
                num_remaining = int(match[2]) - int(match[1]) + 1
        if words:
            yield TaggedWords(words, tags, place_words(forms, text))


def _read_columns(path: str | Path, column: str | None, errors: Errors) -> Iterator[TaggedWords]:
    # The line of the first word determines the layout; lines with # before it wait until then. They are comments if the
    # first column counts the words, if they have no tab in a file of tabs, or if they look like comments of CoNLL-U.
    separator: str | None = None
    num_columns, tag_column, has_numbers = 0, 0, False
    pending: list[tuple[str, str, bool]] = []
    words: list[str] = []
    tags: list[str] = []
    for text, place in numbered_lines(path, errors):
        is_boundary = not text.strip() or text.split()[0] == DOCUMENT
        pending.append((text, place, is_boundary))
        if not num_columns:
            if is_boundary or (text.startswith("#") and ("\t" not in text or COMMENT.match(text))):
                continue
            separator = "\t" if "\t" in text else None
            fields = text.split(separator)
            num_columns, has_numbers = len(fields), len(fields) > 2 and fields[0] == "1"
            if num_columns < 2:
                raise CorpusError(
                    f"{place}: expected a word and its tag, separated by a tab or a space; found '{text[:60]}'"
                )
            tag_column = 2 if has_numbers else num_columns - 1
            if column is not None:
                if not column.isdecimal() or len(column) > MAX_DIGITS or not 1 <= int(column) <= num_columns:
                    advice = f"give a number from 1 to {num_columns}"
                    raise CorpusError(f"{place}: there is no column {quote(column)}; {advice}")
                tag_column = int(column) - 1
        for line, line_place, ends_sentence in pending:
            word = DOCUMENT
            if not ends_sentence:
                has_no_tab = separator is not None and separator not in line
                if line.startswith("#") and (has_numbers or has_no_tab or COMMENT.match(line)):
                    continue
                fields = line.split(separator)
                if len(fields) != num_columns:
                    count = "1 column" if len(fields) == 1 else f"{len(fields)} columns"
                    advice = "a line is a word and its tag, and an empty line ends a sentence"
                    raise CorpusError(f"{line_place}: has {count}, the lines before have {num_columns}; {advice}")
                word = require_text(fields[int(has_numbers)], "word", line_place)
                tag = require_text(fields[tag_column], "tag", line_place).strip()
            if word != DOCUMENT:
                words.append(word)
                tags.append(tag)
            elif words:
                yield TaggedWords(words, tags)
                words, tags = [], []
        pending.clear()
    if words:
        yield TaggedWords(words, tags)
