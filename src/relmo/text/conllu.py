"""CoNLL-U with all its columns, a word at a time; `text.corpus` reads the words alone, `readers.tagged` one column."""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from relmo.errors import CorpusError, shown
from relmo.text.corpus import Errors
from relmo.text.readers.lines import DIGITS, whole_lines
from relmo.text.readers.tagged import CONLLU


class ConlluWord(NamedTuple):
    """A word of a sentence. `head` is the number of its head, from 1; 0 for the root; None where the file has `_`."""

    form: str
    lemma: str
    upos: str
    xpos: str
    feats: str
    head: int | None
    deprel: str
    deps: str
    misc: str

    def value(self, column: str) -> str:
        """What stands in a column or in a part of one (upos, feats.Number, misc.SpaceAfter); "" where nothing does."""
        name, _, key = column.partition(".")
        whole = getattr(self, name)
        if not key:
            return "" if whole is None else str(whole)
        pairs = (part.partition("=") for part in str(whole).split("|"))
        return next((value for found, _, value in pairs if found == key), "")


COLUMNS = ConlluWord._fields


def read_conllu_sentences(path: str | Path, *, errors: Errors = "strict") -> Iterator[list[ConlluWord]]:
    """Sentences with every column of their words, without ranges (3-4) and empty nodes (5.1)."""
    sentence: list[ConlluWord] = []
    for text, place in whole_lines(path, errors):
        if not text.strip():
            if sentence:
                yield sentence
            sentence = []
        elif not text.startswith("#"):
            fields = text.split("\t")
            if len(fields) != len(CONLLU):
                raise CorpusError(f"{place}: CoNLL-U has {len(CONLLU)} columns with tabs between, not {len(fields)}")
            if fields[0].isdecimal():
                sentence.append(_word_of(fields, place))
    if sentence:
        yield sentence


def _word_of(fields: list[str], place: str) -> ConlluWord:
    """A word by its line's fields."""
    _, form, lemma, upos, xpos, feats, head, *rest = fields
    if not form:
        raise CorpusError(f"{place}: the FORM, the second column, is empty; write _ where there is no word")
    if not (head == "_" or (head.isdecimal() and len(head) < DIGITS)):
        raise CorpusError(f"{place}: the HEAD, the seventh column, is {shown(head)}; it is a number, or _")
    return ConlluWord(form, lemma, upos, xpos, feats, None if head == "_" else int(head), *rest)
