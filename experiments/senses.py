"""Words and phrases tagged with WordNet senses, named by their keys, lemma%type:…: SemCor (Miller et al. 1993), sets
of the unified evaluation framework (Raganato et al. 2017), WordNet's sense index."""

import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, NamedTuple

import msgspec

from relmo.disk.files import read_bytes
from relmo.errors import CorpusError, quote
from relmo.text.corpus import MAX_DIGITS, numbered_lines
from relmo.text.readers.tables import json_rows

POS = ("NOUN", "VERB", "ADJ", "ADV")
_POS_OF_TYPE = {"1:": "NOUN", "2:": "VERB", "3:": "ADJ", "4:": "ADV", "5:": "ADJ"}  # 5: satellite adjectives
_POSITION = re.compile(r"\((?:a|p|ip)\)")  # of an adjective, in SemCor's keys but not in WordNet's index
MAX_XML_BYTES = 64 << 20  # a set of the framework has less than 2 MB


class Lemma(NamedTuple):
    """Dictionary form with its part of speech, one of `POS`."""

    form: str
    pos: str


class SenseTag(NamedTuple):
    """Word or phrase of a sentence, the keys of its acceptable senses, and its id in an evaluation set, or ""."""

    start: int
    end: int
    lemma: Lemma
    senses: tuple[str, ...]
    name: str = ""


class SenseSentence(NamedTuple):
    """Words of a sentence, and those with senses."""

    words: list[str]
    tagged: list[SenseTag]


@dataclass
class SenseIndex:
    """WordNet's sense keys of each lemma, the most frequent first."""

    senses: dict[Lemma, list[str]]

    def __post_init__(self) -> None:
        self.rank = {key: rank for keys in self.senses.values() for rank, key in enumerate(keys)}
        """Rank of each key among the keys of its lemma, from 0."""

    @classmethod
    def read(cls, path: str | Path) -> "SenseIndex":
        """Read WordNet's index.sense: key, offset, sense number and count, one line per sense."""
        numbered: dict[Lemma, list[tuple[int, str]]] = {}
        for text, place in numbered_lines(path):
            key, *fields = text.split(" ")
            if len(fields) != 3 or not fields[1].isdecimal() or len(fields[1]) > MAX_DIGITS:
                raise CorpusError(f"{place}: expected 'key offset number count' as in index.sense, found {text[:60]!r}")
            numbered.setdefault(_parse_key(key, place), []).append((int(fields[1]), key))
        if not numbered:
            raise CorpusError(f"{path}: has no senses; expected WordNet's index.sense")
        return cls({lemma: [key for _, key in sorted(senses)] for lemma, senses in numbered.items()})

    def first(self, lemma: Lemma) -> str | None:
        """Return the key of a lemma's first sense; None if WordNet does not have the lemma."""
        keys = self.senses.get(lemma)
        return keys[0] if keys else None

    def __contains__(self, key: str) -> bool:
        return key in self.rank


def _parse_key(key: str, place: str) -> Lemma:
    form, _, suffix = key.rpartition("%")
    pos = _POS_OF_TYPE.get(suffix[:2])
    if not form or pos is None:
        raise CorpusError(f"{place}: {key[:60]!r} is not a sense key such as bank%1:14:00::")
    return Lemma(form, pos)


class _SemcorLine(msgspec.Struct):
    tokens: list[Annotated[str, msgspec.Meta(min_length=1)]]
    sense_keys: list[list[str]]


def read_semcor(path: str | Path) -> Iterator[SenseSentence]:
    """Yield the sentences of SemCor with a JSON object per line: tokens, and the list of sense keys of each."""
    for row in json_rows(path):
        try:
            line = msgspec.convert(row.values, _SemcorLine)
        except msgspec.ValidationError:
            line = None
        if line is None or len(line.tokens) != len(line.sense_keys):
            expected = '"tokens": [word, …] and "sense_keys": [[key, …], …] of the same length'
            raise CorpusError(f"{row.place}: expected {expected}")
        words: list[str] = []
        tagged: list[SenseTag] = []
        for token, senses in zip(line.tokens, line.sense_keys, strict=True):
            start = len(words)
            words += split_phrase(token, "_")
            if senses:
                sense_keys = tuple(_POSITION.sub("", key) for key in senses)
                tagged.append(SenseTag(start, len(words), _parse_key(sense_keys[0], row.place), sense_keys))
        yield SenseSentence(words, tagged)


def read_framework(data: str | Path, gold: str | Path) -> list[SenseSentence]:
    """Read a set of the unified evaluation framework: sentences in XML, and gold keys of each instance in a text."""
    keys: dict[str, tuple[str, ...]] = {}
    for text, place in numbered_lines(gold):
        name, *senses = text.split() or [""]
        if not senses or name in keys:
            raise CorpusError(f"{place}: expected a new instance id and its sense keys, found {quote(text)}")
        keys[name] = tuple(senses)
    try:
        xml = read_bytes(data, MAX_XML_BYTES)
    except ValueError as error:
        raise CorpusError(f"{data}: cannot be read ({error}); expected a set of the framework") from error
    if b"<!DOCTYPE" in xml or b"<!ENTITY" in xml:  # entities can expand without bound
        raise CorpusError(f"{data}: declares a document type, which is refused; remove it")
    try:
        root = ElementTree.fromstring(xml)
    except ElementTree.ParseError as error:
        raise CorpusError(f"{data}: is not XML ({error})") from error
    sentences = []
    for element in root.iter("sentence"):
        words: list[str] = []
        tagged: list[SenseTag] = []
        for token in element:
            start = len(words)
            words += split_phrase(token.text or "", " ")
            if token.tag == "instance":
                name, lemma = token.get("id", ""), Lemma(token.get("lemma", ""), token.get("pos", ""))
                if name not in keys:
                    raise CorpusError(f"{gold}: has no line for {quote(name)} of {data}")
                if lemma.pos not in POS or start == len(words):
                    raise CorpusError(f"{data}: {name} has no text, or pos {lemma.pos!r}, not {', '.join(POS)}")
                tagged.append(SenseTag(start, len(words), lemma, keys[name], name))
        sentences.append(SenseSentence(words, tagged))
    num_instances = sum(len(sentence.tagged) for sentence in sentences)
    if num_instances != len(keys):
        raise CorpusError(f"{data}: has {num_instances} instances, but {gold} has {len(keys)}")
    return sentences


def split_phrase(token: str, separator: str) -> list[str]:
    """Split a phrase into words; a token of separators alone is a word."""
    return [word for word in token.split(separator) if word.strip()] or [token] * bool(token.strip())
