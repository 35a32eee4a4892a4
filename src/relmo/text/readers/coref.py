"""Documents with coreference clusters: CoNLL-2012 (Pradhan et al. 2012), its short form in OntoGUM (Zhu et al. 2021;
number, word, clusters; no empty lines: sentences are split by rules), JSON lines of e2e-coref. A span in two clusters
is a mention of the one that ends first, as in the CoNLL scorer."""

import re
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from relmo.errors import CorpusError
from relmo.text.corpus import Errors, has_suffix, numbered_lines, require, require_examples
from relmo.text.readers.tables import get_value, is_jsonl, is_word_list, json_rows
from relmo.text.tokenize import Token, split_words

BEGIN = re.compile(r"#\s*begin document\s*\(?(.*?)\)?(?:;\s*part\s*(\S+))?\s*$")
END = re.compile(r"#\s*end document")
EMPTY = ("", "-", "_", "*")
MARKS = re.compile(r"(?:\(\d{1,9}+\)?+|\d{1,9}+\)|\|)*+")
MARK = re.compile(r"(\(?)(\d{1,9})(\)?)")
WORD, SPEAKER, NUM_SHORT_COLUMNS = 3, 9, 3  # columns of CoNLL-2012, from 0, and the number of columns of the short form

Place = tuple[int, int]
"""Mention: the index of its first word in the document, and that after its last word."""

is_conll = partial(has_suffix, pattern=r"[._]conll")


class CorefDocument(NamedTuple):
    """Document, or a part of one.

    clusters        mentions of each entity, in order
    speakers        speaker of each word, "" for unknown; empty if the file has none
    text, tokens    raw text and its words with offsets, if available
    columns         all columns of each word but the last, if requested and the file has those of CoNLL-2012
    """

    name: str
    part: str
    sentences: list[list[str]]
    clusters: list[list[Place]]
    speakers: Sequence[str] = ()
    text: str = ""
    tokens: Sequence[Token] = ()
    columns: Sequence[Sequence[str]] = ()

    @property
    def words(self) -> list[str]:
        """Words of all sentences."""
        return [word for words in self.sentences for word in words]

    @property
    def genre(self) -> str:
        """Genre in the name: bc of bc/cctv/00/cctv_0000, court of GUM_court_loan; "" if there is none."""
        match = re.match(r"([a-z]{2})/|GUM_([a-z]+)_", self.name)
        return (match[1] or match[2]) if match else ""


@require_examples("document")
def read_documents(path: str | Path, *, errors: Errors = "strict", columns: bool = False) -> Iterator[CorefDocument]:
    """Yield the documents of JSON lines or CoNLL-2012, by the file name; with `columns`, to be written again."""
    if is_jsonl(path):
        yield from _read_json(path, errors)
        return
    document: _DocumentBuilder | None = None
    for text, place in numbered_lines(path, errors):
        if match := BEGIN.match(text):
            if document is not None:
                yield document.build(place)
            document = _DocumentBuilder(match[1], match[2] or "0", columns=columns)
        elif document is None:
            if text.strip() and not END.match(text):
                raise CorpusError(f"{place}: expected a line such as '#begin document (name); part 000'")
        elif END.match(text):
            yield document.build(place)
            document = None
        elif not text.strip():
            if document.sentences[-1]:
                document.sentences.append([])
        elif not text.startswith("#"):
            document.add_word(text, place)
    if document is not None:
        yield document.build(str(path))


class _DocumentBuilder:
    """Document that is read line by line."""

    def __init__(self, name: str, part: str, *, columns: bool):
        self.name, self.part = name, part
        self.columns: list[list[str]] | None = [] if columns else None
        self.sentences: list[list[str]] = [[]]
        self.speakers: list[str] = []
        self.open_mentions: dict[str, list[int]] = {}
        self.cluster_of: dict[Place, str] = {}
        self.is_short = False

    def add_word(self, text: str, place: str) -> None:
        fields = text.split("\t") if "\t" in text else text.split()
        self.is_short = len(fields) == NUM_SHORT_COLUMNS
        if not self.is_short and len(fields) <= WORD + 1:
            expected = "(document, part, number, word, …, clusters), or number, word and clusters"
            raise CorpusError(f"{place}: expected the columns of CoNLL-2012 {expected}; found {len(fields)} columns")
        marks, index = fields[-1].strip(), len(self.speakers)
        if marks not in EMPTY and not MARKS.fullmatch(marks):
            raise CorpusError(
                f"{place}: the last column must have clusters, (7, 7) or (7)|(2, or -; not '{marks[:40]}'"
            )
        for begin, cluster, end in MARK.findall(marks):
            if begin:
                self.open_mentions.setdefault(cluster, []).append(index)
            if end:
                if not self.open_mentions.get(cluster):
                    raise CorpusError(f"{place}: a mention of cluster {cluster} ends without a begin")
                self.cluster_of.setdefault((self.open_mentions[cluster].pop(), index + 1), cluster)
        self.sentences[-1].append((fields[1 if self.is_short else WORD]).strip() or "_")
        speaker = fields[SPEAKER].strip() if len(fields) > SPEAKER + 1 else ""
        self.speakers.append("" if speaker in EMPTY else speaker)
        if self.columns is not None and not self.is_short:
            self.columns.append(fields[:-1])

    def build(self, place: str) -> CorefDocument:
        for cluster, starts in self.open_mentions.items():
            if starts:
                raise CorpusError(f"{place}: a mention of cluster {cluster} has no end in document {self.name[:60]}")
        sentences = [words for words in self.sentences if words]
        if self.is_short and len(sentences) == 1:
            sentences = split_words(sentences[0])
        clusters: dict[str, list[Place]] = {}
        for mention in sorted(self.cluster_of):
            clusters.setdefault(self.cluster_of[mention], []).append(mention)
        return CorefDocument(
            self.name,
            self.part,
            sentences or [[]],
            list(clusters.values()),
            self.speakers if any(self.speakers) else (),
            columns=self.columns if self.columns and len(self.columns) == len(self.speakers) else (),
        )


def _is_nested(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(inner, list) for inner in value)


def _read_json(path: str | Path, errors: Errors) -> Iterator[CorefDocument]:
    for number, row in enumerate(json_rows(path, errors)):
        sentences = get_value(row, ("sentences",))
        name, clusters = row.values.get("doc_key", str(number)), row.values.get("clusters", [])
        by_sentence: Any = row.values.get("speakers") or []
        are_words = isinstance(sentences, list) and all(map(is_word_list, sentences))
        require(are_words, row.place, "sentences must be a list of lists of words")
        require(isinstance(name, str), row.place, "doc_key must be a string")
        require(_is_nested(clusters), row.place, "clusters must be a list of lists of [first word, last word]")
        require(_is_nested(by_sentence), row.place, "speakers must be a list of lists of names")
        num_words = sum(map(len, sentences))
        known_mentions: set[Place] = set()
        places = []  # of the mentions of each cluster; each mention is kept once
        for mentions in clusters:
            for mention in mentions:
                is_pair = isinstance(mention, list) and len(mention) == 2 and all(type(end) is int for end in mention)
                if not is_pair or not 0 <= mention[0] <= mention[1] < num_words:
                    problem = f"a mention must be [first word, last word] of {num_words} words, not {str(mention)[:40]}"
                    raise CorpusError(f"{row.place}: {problem}")
            new_mentions = {(start, last + 1) for start, last in mentions} - known_mentions
            known_mentions |= new_mentions
            places.append(sorted(new_mentions))
        speakers = [name for names in by_sentence for name in names]
        are_names = not speakers or (len(speakers) == num_words and all(isinstance(name, str) for name in speakers))
        require(are_names, row.place, "speakers must have a name for each word of each sentence")
        speakers = ["" if name in EMPTY else name for name in speakers]
        sentences = [words for words in sentences if words] or [[]]
        yield CorefDocument(name, "0", sentences, sorted(filter(None, places)), speakers if any(speakers) else [])
