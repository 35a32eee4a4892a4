"""Documents with mentions and which of them are of one thing: CoNLL-2012, its short form in OntoGUM, JSON lines.

    #begin document (bc/cctv/00/cctv_0000); part 000
    bc/cctv/00/cctv_0000  0  0  Anna  NNP  …  speaker  *  (7)      document, part, number, word, …, speaker, …, clusters
    bc/cctv/00/cctv_0000  0  1  saw   VBD  …  speaker  *  -
                                                                   an empty line after each sentence
    #end document

- Columns have tabs or else white space between them; the last one says which mentions begin and end: `(7`, `7)`, `(7)`,
  one behind the other with or without | between.
- OntoGUM has number, word and clusters alone, and no empty lines: such a document is split into sentences by rules.
- JSON lines are those of e2e-coref: `doc_key`, `sentences`, `clusters` of [first word, last word], `speakers`.
- A stretch of words that stands in two clusters is a mention of the one that ends first, as the field's scorer has it.

    Pradhan et al. 2012, CoNLL-2012 shared task;  Zhu et al. 2021, OntoGUM
"""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from relmo.errors import CorpusError
from relmo.text.corpus import Errors
from relmo.text.readers.lines import some, whole_lines
from relmo.text.readers.tables import TableRow, is_jsonl, is_words, json_rows, value_of
from relmo.text.sentence_ends import split_words
from relmo.text.tokenize import Token

BEGIN = re.compile(r"#\s*begin document\s*\(?(.*?)\)?(?:;\s*part\s*(\S+))?\s*$")
END = re.compile(r"#\s*end document")
NONE = ("", "-", "_", "*")
MARKS = re.compile(r"(?:\(\d{1,9}+\)?+|\d{1,9}+\)|\|)*+")
MARK = re.compile(r"(\(?)(\d{1,9})(\)?)")
WORD, SPEAKER, SHORT = 3, 9, 3  # columns of CoNLL-2012, from 0, and how many the short form has

Place = tuple[int, int]
"""A mention: its first word and the word behind its last, counted through the document."""


class CorefDocument(NamedTuple):
    """A document, or a part of one.

    clusters    the mentions of each thing, in their order
    speakers    of each word; "" where nobody knows; none at all where the file has none
    text, tokens    the raw text and where in it its words stand, where there is one
    columns     all columns of each word but the last, where they were asked for and there are as many as in CoNLL-2012
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
        """All words, sentence after sentence."""
        return [word for words in self.sentences for word in words]

    @property
    def genre(self) -> str:
        """What the name says: bc of bc/cctv/00/cctv_0000, court of GUM_court_loan; "" where it says nothing."""
        if found := re.match(r"([a-z]{2})/|GUM_([a-z]+)_", self.name):
            return found[1] or found[2]
        return ""


def is_conll(path: str | Path) -> bool:
    """Whether the name says CoNLL-2012: .conll or .…_conll, compressed or not."""
    return re.search(r"[._]conll(\.gz|\.xz|\.zst)?$", str(path), re.IGNORECASE) is not None


def read_documents(path: str | Path, *, errors: Errors = "strict", columns: bool = False) -> Iterator[CorefDocument]:
    """The documents of a file: of JSON lines where its name says so, otherwise of CoNLL-2012. With `columns` all of
    these are kept, so that they can be written again."""
    found = _json_documents(path, errors) if is_jsonl(path) else _conll_documents(path, errors, columns)
    yield from some(found, path, "document")


def _conll_documents(path: str | Path, errors: Errors, columns: bool) -> Iterator[CorefDocument]:
    made: _DocumentLines | None = None
    for text, place in whole_lines(path, errors):
        if begun := BEGIN.match(text):
            if made is not None:
                yield made.finish(place)
            made = _DocumentLines(begun[1], begun[2] or "0", columns=columns)
        elif made is None:
            if text.strip() and not END.match(text):
                raise CorpusError(f"{place}: expected a line such as '#begin document (name); part 000'")
        elif END.match(text):
            yield made.finish(place)
            made = None
        elif not text.strip():
            made.end_sentence()
        elif not text.startswith("#"):
            made.add(text, place)
    if made is not None:
        yield made.finish(str(path))


class _DocumentLines:
    """A document that is being read, line by line."""

    def __init__(self, name: str, part: str, *, columns: bool):
        self.name, self.part = name, part
        self.columns: list[list[str]] | None = [] if columns else None
        self.sentences: list[list[str]] = [[]]
        self.speakers: list[str] = []
        self.open: dict[str, list[int]] = {}
        self.cluster_of: dict[Place, str] = {}
        self.count = 0
        self.short = False

    def add(self, text: str, place: str) -> None:
        """A word's line."""
        fields = text.split("\t") if "\t" in text else text.split()
        self.short = len(fields) == SHORT
        if not self.short and len(fields) <= WORD + 1:
            raise CorpusError(
                f"{place}: expected the columns of CoNLL-2012 (document, part, number, word, …, clusters), or number, "
                f"word and clusters; found {len(fields)} columns"
            )
        self.sentences[-1].append((fields[1 if self.short else WORD]).strip() or "_")
        speaker = fields[SPEAKER].strip() if len(fields) > SPEAKER + 1 else ""
        self.speakers.append("" if speaker in NONE else speaker)
        self._mark(fields[-1].strip(), place)
        self.count += 1
        if self.columns is not None and not self.short:
            self.columns.append(fields[:-1])

    def _mark(self, marks: str, place: str) -> None:
        """The mentions that begin and end at this word."""
        if marks in NONE:
            return
        if not MARKS.fullmatch(marks):
            raise CorpusError(
                f"{place}: the last column has clusters such as (7, 7) or (7)|(2, or -; not '{marks[:40]}'"
            )
        for begins, cluster, ends in MARK.findall(marks):
            if begins:
                self.open.setdefault(cluster, []).append(self.count)
            if ends:
                if not self.open.get(cluster):
                    raise CorpusError(f"{place}: a mention of cluster {cluster} ends that has not begun")
                self.cluster_of.setdefault((self.open[cluster].pop(), self.count + 1), cluster)

    def end_sentence(self) -> None:
        """An empty line."""
        if self.sentences[-1]:
            self.sentences.append([])

    def finish(self, place: str) -> CorefDocument:
        """The document."""
        if unended := [cluster for cluster, starts in self.open.items() if starts]:
            raise CorpusError(f"{place}: a mention of cluster {unended[0]} has no end in document {self.name[:60]}")
        sentences = [words for words in self.sentences if words]
        if self.short and len(sentences) == 1:
            sentences = split_words(sentences[0])
        clusters: dict[str, list[Place]] = {}
        for mention in sorted(self.cluster_of):
            clusters.setdefault(self.cluster_of[mention], []).append(mention)
        speakers = self.speakers if any(self.speakers) else ()
        columns = self.columns if self.columns and len(self.columns) == self.count else ()
        made = CorefDocument(self.name, self.part, sentences or [[]], list(clusters.values()), speakers)
        return made._replace(columns=columns)


def _json_documents(path: str | Path, errors: Errors) -> Iterator[CorefDocument]:
    for number, row in enumerate(json_rows(path, errors)):
        sentences = value_of(row, ("sentences",))
        if not (isinstance(sentences, list) and all(map(is_words, sentences))):
            raise CorpusError(f"{row.place}: sentences is a list of lists of words")
        count = sum(map(len, sentences))
        name = row.values.get("doc_key", str(number))
        if not isinstance(name, str):
            raise CorpusError(f"{row.place}: doc_key is a string")
        clusters = _json_clusters(row, count)
        sentences = [words for words in sentences if words] or [[]]
        yield CorefDocument(name, "0", sentences, clusters, _json_speakers(row, count))


def _json_clusters(row: TableRow, count: int) -> list[list[Place]]:
    """Clusters as lists of [first word, last word]; each mention once."""
    clusters = row.values.get("clusters", [])
    if not (isinstance(clusters, list) and all(isinstance(mentions, list) for mentions in clusters)):
        raise CorpusError(f"{row.place}: clusters is a list of lists of [first word, last word]")
    seen: set[Place] = set()
    found = []
    for mentions in clusters:
        for mention in mentions:
            whole = isinstance(mention, list) and len(mention) == 2 and all(type(end) is int for end in mention)
            if not whole or not 0 <= mention[0] <= mention[1] < count:
                raise CorpusError(
                    f"{row.place}: a mention is [first word, last word], of {count} words; not {str(mention)[:40]}"
                )
        own = {(first, last + 1) for first, last in mentions} - seen
        seen |= own
        found.append(sorted(own))
    return sorted(filter(None, found))


def _json_speakers(row: TableRow, count: int) -> list[str]:
    """Those of all words."""
    given: Any = row.values.get("speakers") or []
    if not (isinstance(given, list) and all(isinstance(names, list) for names in given)):
        raise CorpusError(f"{row.place}: speakers is a list of lists of names")
    speakers = [name for names in given for name in names]
    if speakers and not (len(speakers) == count and all(isinstance(name, str) for name in speakers)):
        raise CorpusError(f"{row.place}: speakers has a name for each word of each sentence")
    known = ["" if name in NONE else name for name in speakers]
    return known if any(known) else []
