"""CoNLL-U with all columns of each word; `text.corpus` reads words alone, `readers.tagged` words and one column."""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from relmo.errors import CorpusError, quote
from relmo.text.corpus import MAX_DIGITS, Errors, conllu_rows


class ConlluWord(NamedTuple):
    """Word of a sentence. `head` is the number of its head from 1, 0 for the root, None for `_`."""

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
        """Return the value of a column or of a part of one (upos, feats.Number, misc.SpaceAfter); "" if it has none."""
        name, _, key = column.partition(".")
        field = getattr(self, name)
        if not key:
            return "" if field is None else str(field)
        pairs = (part.partition("=") for part in str(field).split("|"))
        return next((value for part_key, _, value in pairs if part_key == key), "")


COLUMNS = ConlluWord._fields


def read_conllu_sentences(path: str | Path, *, errors: Errors = "strict") -> Iterator[list[ConlluWord]]:
    """Yield sentences with all columns of their words, without ranges (3-4) and empty nodes (5.1)."""
    for rows, _ in conllu_rows(path, errors):
        if sentence := [_parse_word(fields, place) for fields, place in rows if fields[0].isdecimal()]:
            yield sentence


def _parse_word(fields: list[str], place: str) -> ConlluWord:
    _, form, lemma, upos, xpos, feats, head, *columns = fields
    if not form:
        raise CorpusError(f"{place}: the FORM, the second column, is empty; write _ if there is no word")
    if not (head == "_" or (head.isdecimal() and len(head) <= MAX_DIGITS)):
        raise CorpusError(f"{place}: the HEAD, the seventh column, is {quote(head)}; it must be a number or _")
    return ConlluWord(form, lemma, upos, xpos, feats, None if head == "_" else int(head), *columns)
