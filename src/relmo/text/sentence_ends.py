"""Where sentences end in a text that has been split into words.

A sentence ends after . ! ? … and what closes behind it, before a word that a sentence may begin with. The tokenizer
knows abbreviations: their full stop is part of the word.
"""

import re
from collections.abc import Iterator, Sequence
from itertools import pairwise

from relmo.text.tokenize import Token

BEGINNING, TERMINAL = re.compile(r"[^\W_a-zß-öø-ÿ]|[\"'“‘(\[«—–-]"), re.compile(r"[.!?…]+")
CLOSERS = (*"\"'”’)]»", "''")
LONGEST = 200  # words of a sentence: what goes on longer has lost its full stops, and is cut


def sentence_ends(tokens: Sequence[Token]) -> Iterator[int]:
    """The numbers of the tokens after which a sentence ends, the last token's aside. White space tells what closes from
    what opens."""
    for i, (here, following) in enumerate(pairwise(tokens)):
        if following.start == here.end or not BEGINNING.match(following.text):
            continue
        last = i
        while last and tokens[last].text in CLOSERS and tokens[last].start == tokens[last - 1].end:
            last -= 1
        if TERMINAL.fullmatch(tokens[last].text):
            yield i


def split_tokens(text: str, tokens: Sequence[Token]) -> list[list[Token]]:
    """The sentences of a text: they end as above, and at empty lines."""
    ends = set(sentence_ends(tokens))
    for i, (here, following) in enumerate(pairwise(tokens)):
        if text.count("\n", here.end, following.start) > 1:
            ends.add(i)
    return [list(tokens[start:end]) for start, end in _pieces(sorted(ends), len(tokens))]


def split_words(words: Sequence[str]) -> list[list[str]]:
    """The sentences of words that nobody knows the white space of: a quotation mark closes if one is open."""
    ends, open_quote, ended = [], False, False
    for i, (here, following) in enumerate(pairwise(words)):
        opens = here == '"' and not open_quote
        open_quote ^= here == '"'
        ended = TERMINAL.fullmatch(here) is not None or (ended and here in CLOSERS and not opens)
        closes = following in CLOSERS and (following != '"' or open_quote)
        if ended and not closes and BEGINNING.match(following):
            ends.append(i)
    return [list(words[start:end]) for start, end in _pieces(ends, len(words))]


def _pieces(ends: Sequence[int], count: int) -> Iterator[tuple[int, int]]:
    """From the last words of sentences, where each begins and ends; none is longer than LONGEST."""
    bounds = [0, *(end + 1 for end in ends), count]
    for first, behind in pairwise(bounds):
        for start in range(first, behind, LONGEST):
            yield start, min(start + LONGEST, behind)
