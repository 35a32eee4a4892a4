"""Words tagged with WordNet senses: SemCor, the sets of the unified evaluation framework, WordNet's sense index.

    index = SenseIndex.read("wordnet-3.0.index.sense")
    for sentence in read_semcor("semcor3.jsonl"): ...
    for sentence in read_framework("senseval2.data.xml", "senseval2.gold.key.txt"): ...

A sense is named by its key, lemma%type:…. Type 1 is a noun, 2 a verb, 3 an adjective, 4 an adverb, and 5 a "satellite"
adjective. Some keys of SemCor contain the syntactic position of an adjective, "single(a)"; it is removed, as WordNet's
index does not have it. Words of a phrase are joined with "_" in SemCor and with spaces in the framework; here a phrase
is several words of its sentence, with one tag.

    Miller et al. 1993, A semantic concordance;  Raganato et al. 2017, Word sense disambiguation: a unified evaluation
    framework and empirical comparison
"""

import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from relmo.disk.files import parse_json, read_bytes
from relmo.errors import CorpusError, quote
from relmo.text.corpus import MAX_DIGITS, read_lines

POS = ("NOUN", "VERB", "ADJ", "ADV")
_POS_OF_TYPE = {"1:": "NOUN", "2:": "VERB", "3:": "ADJ", "4:": "ADV", "5:": "ADJ"}
_POSITION = re.compile(r"\((?:a|p|ip)\)")  # attributive, predicative, immediately after its noun
MAX_XML_BYTES = 64 << 20  # a set of the framework has less than 2 MB


class Lemma(NamedTuple):
    """Dictionary form with its part of speech, one of `POS`."""

    form: str
    pos: str


class SenseTag(NamedTuple):
    """Word or phrase of a sentence, from word `start` up to `end`, and the keys of its acceptable senses. `name` is its
    id in an evaluation set, otherwise ""."""

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
        for number, line in enumerate(read_lines(path), start=1):
            key, *fields = line.text.split(" ")
            if len(fields) != 3 or not fields[1].isdecimal() or len(fields[1]) > MAX_DIGITS:
                raise CorpusError(
                    f"{path}:{number}: expected 'key offset number count' as in WordNet's index.sense, "
                    f"found {line.text[:60]!r}"
                )
            numbered.setdefault(_parse_key(key, f"{path}:{number}"), []).append((int(fields[1]), key))
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


def read_semcor(path: str | Path) -> Iterator[SenseSentence]:
    """Yield the sentences of SemCor with a JSON object per line: tokens, and the list of sense keys of each."""
    for number, line in enumerate(read_lines(path), start=1):
        place = f"{path}:{number}"
        tokens, keys = _parse_semcor(line.text, place)
        words: list[str] = []
        tagged: list[SenseTag] = []
        for token, senses in zip(tokens, keys, strict=True):
            start = len(words)
            words += split_phrase(token, "_")
            if senses:
                sense_keys = tuple(_POSITION.sub("", key) for key in senses)
                tagged.append(SenseTag(start, len(words), _parse_key(sense_keys[0], place), sense_keys))
        yield SenseSentence(words, tagged)


def _parse_semcor(text: str, place: str) -> tuple[list[str], list[list[str]]]:
    try:
        line: Any = parse_json(text)
    except ValueError as error:
        raise CorpusError(f"{place}: is not a JSON object on a single line ({error})") from error
    tokens: Any
    keys: Any
    tokens, keys = (line.get(name) if isinstance(line, dict) else None for name in ("tokens", "sense_keys"))
    is_valid = (
        isinstance(tokens, list)
        and isinstance(keys, list)
        and len(tokens) == len(keys)
        and all(isinstance(token, str) and token for token in tokens)
        and all(isinstance(senses, list) and all(isinstance(key, str) for key in senses) for senses in keys)
    )
    if not is_valid:
        raise CorpusError(f'{place}: expected "tokens": [word, …] and "sense_keys": [[key, …], …] of the same length')
    return tokens, keys


def read_framework(data: str | Path, gold: str | Path) -> list[SenseSentence]:
    """Read a set of the unified evaluation framework: sentences in XML, and gold keys of each instance in a text."""
    keys = _read_gold_keys(gold)
    sentences = []
    for element in _read_xml(data).iter("sentence"):
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


def _read_gold_keys(path: str | Path) -> dict[str, tuple[str, ...]]:
    keys: dict[str, tuple[str, ...]] = {}
    for number, line in enumerate(read_lines(path), start=1):
        name, *senses = line.text.split() or [""]
        if not senses or name in keys:
            raise CorpusError(
                f"{path}:{number}: expected a new instance id and its sense keys, found {quote(line.text)}"
            )
        keys[name] = tuple(senses)
    return keys


def _read_xml(path: str | Path) -> ElementTree.Element:
    """Parse an XML file. Entities, which can expand without bound, are refused."""
    try:
        text = read_bytes(path, MAX_XML_BYTES)
    except ValueError as error:
        raise CorpusError(f"{path}: cannot be read ({error}); expected a set of the framework") from error
    if b"<!DOCTYPE" in text or b"<!ENTITY" in text:
        raise CorpusError(f"{path}: declares a document type, which is refused; remove it")
    try:
        return ElementTree.fromstring(text)
    except ElementTree.ParseError as error:
        raise CorpusError(f"{path}: is not XML ({error})") from error


def split_phrase(token: str, separator: str) -> list[str]:
    """Split a phrase into words; a token of separators alone is a word."""
    return [word for word in token.split(separator) if word.strip()] or [token] * bool(token.strip())
