"""Words tagged with WordNet senses: SemCor, the evaluation sets of the unified framework, WordNet's index of senses.

    index = SenseIndex.read("wordnet-3.0.index.sense")
    for sentence in read_semcor("semcor3.jsonl"): ...
    for sentence in read_framework("senseval2.data.xml", "senseval2.gold.key.txt"): ...

A sense is named by its key, lemma%type:…. Type 1 is a noun, 2 a verb, 3 an adjective, 4 an adverb, and 5 again an
adjective (a "satellite"), so a lemma's adjectives have keys of two types. SemCor writes into some keys where an
adjective may stand, "single(a)"; WordNet's index does not, so this is taken out. Both files join the words of a phrase,
SemCor with "_", the framework with spaces. Here a phrase is several words of its sentence, with one tag.

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
from relmo.errors import CorpusError, shown
from relmo.text.corpus import read_lines
from relmo.text.readers.lines import DIGITS

POS = ("NOUN", "VERB", "ADJ", "ADV")
_POS_OF_TYPE = {"1:": "NOUN", "2:": "VERB", "3:": "ADJ", "4:": "ADV", "5:": "ADJ"}
_PLACE = re.compile(r"\((?:a|p|ip)\)")  # attributive, predicative, immediately after its noun
LARGEST_XML = 64 << 20  # bytes; the whole framework takes less than 2 MB a set


class Lemma(NamedTuple):
    """A dictionary form with its part of speech, one of `POS`: what has senses."""

    form: str
    pos: str


class SenseTag(NamedTuple):
    """A word or phrase of a sentence, from word `start` up to `end`, and the keys of its senses: several where the
    annotators allowed several. `name` is its name in an evaluation set, "" elsewhere."""

    start: int
    end: int
    lemma: Lemma
    senses: tuple[str, ...]
    name: str = ""


class SenseSentence(NamedTuple):
    """The words of a sentence, and those with senses."""

    words: list[str]
    tagged: list[SenseTag]


@dataclass
class SenseIndex:
    """WordNet's senses: of each lemma its keys, the most frequent first."""

    senses: dict[Lemma, list[str]]

    def __post_init__(self) -> None:
        self.rank = {key: rank for keys in self.senses.values() for rank, key in enumerate(keys)}
        """The place of each key among its lemma's keys, from 0."""

    @classmethod
    def read(cls, path: str | Path) -> "SenseIndex":
        """From WordNet's index.sense: key, offset, number of the sense, count, a line a sense."""
        numbered: dict[Lemma, list[tuple[int, str]]] = {}
        for number, line in enumerate(read_lines(path), start=1):
            key, *fields = line.text.split(" ")
            if len(fields) != 3 or not fields[1].isdecimal() or len(fields[1]) >= DIGITS:
                raise CorpusError(
                    f"{path}:{number}: expected 'key offset number count' as in WordNet's index.sense, "
                    f"found {line.text[:60]!r}"
                )
            numbered.setdefault(_lemma_of(key, f"{path}:{number}"), []).append((int(fields[1]), key))
        if not numbered:
            raise CorpusError(f"{path}: has no senses; it should be WordNet's index.sense")
        return cls({lemma: [key for _, key in sorted(senses)] for lemma, senses in numbered.items()})

    def first(self, lemma: Lemma) -> str | None:
        """The key of a lemma's first sense; None where WordNet does not have the lemma."""
        keys = self.senses.get(lemma)
        return keys[0] if keys else None

    def __contains__(self, key: str) -> bool:
        return key in self.rank


def _lemma_of(key: str, place: str) -> Lemma:
    """The lemma that a sense's key names; `place` is for the error."""
    form, _, rest = key.rpartition("%")
    pos = _POS_OF_TYPE.get(rest[:2])
    if not form or pos is None:
        raise CorpusError(f"{place}: {key[:60]!r} is not a sense key; one looks like bank%1:14:00::")
    return Lemma(form, pos)


def read_semcor(path: str | Path) -> Iterator[SenseSentence]:
    """SemCor with a JSON object a line: the tokens of a sentence and the list of each one's sense keys."""
    for number, line in enumerate(read_lines(path), start=1):
        place = f"{path}:{number}"
        tokens, keys = _semcor_line(line.text, place)
        words: list[str] = []
        tagged: list[SenseTag] = []
        for token, senses in zip(tokens, keys, strict=True):
            start = len(words)
            words += split_phrase(token, "_")
            if senses:
                plain = tuple(_PLACE.sub("", key) for key in senses)
                tagged.append(SenseTag(start, len(words), _lemma_of(plain[0], place), plain))
        yield SenseSentence(words, tagged)


def _semcor_line(text: str, place: str) -> tuple[list[str], list[list[str]]]:
    """Tokens and their keys, of the same number and of the right types."""
    try:
        line: Any = parse_json(text)
    except ValueError as error:
        raise CorpusError(f"{place}: is not a JSON object on a line of its own ({error})") from error
    tokens: Any
    keys: Any
    tokens, keys = (line.get(name) if isinstance(line, dict) else None for name in ("tokens", "sense_keys"))
    right = (
        isinstance(tokens, list)
        and isinstance(keys, list)
        and len(tokens) == len(keys)
        and all(isinstance(token, str) and token for token in tokens)
        and all(isinstance(each, list) and all(isinstance(key, str) for key in each) for each in keys)
    )
    if not right:
        raise CorpusError(f'{place}: expected "tokens": [word, …] and "sense_keys": [[key, …], …] of the same length')
    return tokens, keys


def read_framework(data: str | Path, gold: str | Path) -> list[SenseSentence]:
    """A set of the unified evaluation framework: sentences in XML, with the right keys of each instance in a text."""
    keys = _gold_keys(gold)
    sentences = []
    for element in _xml(data).iter("sentence"):
        words: list[str] = []
        tagged: list[SenseTag] = []
        for token in element:
            start = len(words)
            words += split_phrase(token.text or "", " ")
            if token.tag == "instance":
                name, lemma = token.get("id", ""), Lemma(token.get("lemma", ""), token.get("pos", ""))
                if name not in keys:
                    raise CorpusError(f"{gold}: has no line for {shown(name)} of {data}; the two files belong together")
                if lemma.pos not in POS or start == len(words):
                    raise CorpusError(f"{data}: {name} has no text, or pos {lemma.pos!r}, not {', '.join(POS)}")
                tagged.append(SenseTag(start, len(words), lemma, keys[name], name))
        sentences.append(SenseSentence(words, tagged))
    found, asked = sum(len(sentence.tagged) for sentence in sentences), len(keys)
    if found != asked:
        raise CorpusError(f"{data}: has {found} instances where {gold} has {asked}; the two files belong together")
    return sentences


def _gold_keys(path: str | Path) -> dict[str, tuple[str, ...]]:
    keys: dict[str, tuple[str, ...]] = {}
    for number, line in enumerate(read_lines(path), start=1):
        name, *senses = line.text.split() or [""]
        if not senses or name in keys:
            raise CorpusError(
                f"{path}:{number}: expected the name of a new instance and its sense keys, found {shown(line.text)}"
            )
        keys[name] = tuple(senses)
    return keys


def _xml(path: str | Path) -> ElementTree.Element:
    """The root of an XML file. Entities, with which a short file can grow without end, are refused."""
    try:
        text = read_bytes(path, LARGEST_XML)
    except ValueError as error:
        raise CorpusError(f"{path}: cannot be read ({error}); give a set of the framework") from error
    if b"<!DOCTYPE" in text or b"<!ENTITY" in text:
        raise CorpusError(f"{path}: declares a document type, which the framework's files do not; remove it")
    try:
        return ElementTree.fromstring(text)
    except ElementTree.ParseError as error:
        raise CorpusError(f"{path}: is not XML ({error})") from error


def split_phrase(token: str, joint: str) -> list[str]:
    """The words of a phrase; a token that is nothing but joints is a word."""
    return [word for word in token.split(joint) if word.strip()] or [token] * bool(token.strip())
