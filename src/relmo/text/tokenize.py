"""Tokenization with character offsets, joining of words to text, sentence splitting. English is split as in the Penn
Treebank (do n't, John 's, U.S., 1,000.50), but text is never rewritten, and "cannot", hyphens and dates are not
split. Elisions are split (l' homme). Scripts without spaces give a token per character with its marks."""

import re
import unicodedata
from collections.abc import Iterator, Sequence
from functools import cache
from itertools import pairwise
from typing import NamedTuple


class Token(NamedTuple):
    """Word and its offsets: `text == source[start:end]`."""

    text: str
    start: int
    end: int


def tokenize(text: str) -> list[Token]:
    """Split text into tokens; together they cover every character that is not whitespace, once and in order."""
    tokens = []
    for match in _pieces().finditer(text):
        start = match.start()
        for word in _split_apostrophes(match.group()):
            tokens.append(Token(word, start, start + len(word)))
            start += len(word)
    return tokens


def words(text: str) -> list[str]:
    """Return the texts of the tokens of `tokenize`; faster, as there are no offsets."""
    pieces: list[str] = _pieces().findall(text)
    if "'" not in text and "’" not in text:
        return pieces
    return [word for piece in pieces for word in _split_apostrophes(piece)]


def split_whitespace(text: str) -> list[Token]:
    """Split a tokenized text at whitespace."""
    return [Token(match.group(), match.start(), match.end()) for match in re.finditer(r"\S+", text)]


SPLITTERS = {"words": tokenize, "whitespace": split_whitespace}
"""Functions by the setting `tokenizer`."""


def place_tokens(words: Sequence[str]) -> list[Token]:
    """Return words with their offsets in a text in which they are joined by single spaces."""
    tokens, start = [], 0
    for word in words:
        tokens.append(Token(word, start, start + len(word)))
        start += len(word) + 1
    return tokens


def join(tokens: Sequence[str]) -> str:
    """Join words to a readable text: punctuation, clitics, brackets and quotes are attached to their neighbours."""
    text: list[str] = []
    previous, attached = "", True
    open_quotes: set[str] = set()
    for index, token in enumerate(tokens):
        following = tokens[index + 1] if index + 1 < len(tokens) else ""
        if token in ("'", '"'):
            # a quote opens if an odd number of them follow, or (for ") if the preceding token does not end a speech
            may_open = token == '"' and index + 1 < len(tokens) and previous not in (".", "!", "?")
            hugs_right = token not in open_quotes and (tokens[index + 1 :].count(token) % 2 == 1 or may_open)
            hugs_left = not hugs_right
            (open_quotes.add if hugs_right else open_quotes.discard)(token)
        elif token == "–":  # 1990–95, but: a dash – such as this
            hugs_left = hugs_right = previous[-1:].isdigit() and following[:1].isdigit()
        elif token in ("—", "--"):  # attached to both, except a dash that opens a line of dialogue
            hugs_left, hugs_right = True, index > 0
        else:
            hugs_left, hugs_right = bool(_HUGS_LEFT.fullmatch(token)), bool(_HUGS_RIGHT.fullmatch(token))
        if not (attached or hugs_left or _NO_SPACE.match(previous[-1:] + token[:1])):
            text.append(" ")
        text.append(token)
        previous, attached = token, hugs_right
    return "".join(text)


# Han, Hiragana, Thai, Lao, Myanmar, Khmer: written without spaces. Katakana and Hangul are not in this list.
_UNSPACED = (
    "\u2e80-\u2fdf\u3005-\u3007\u3021-\u3029\u3041-\u309f\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
    "\u0e01-\u0e4e\u0e80-\u0ecf\u0edc-\u0eff\u1000-\u103f\u104c-\u109f\ua9e0-\ua9ff\uaa60-\uaa7f\u1780-\u17df"
)
_EMOJI = "\u2190-\u21ff\u2300-\u23ff\u25a0-\u27bf\u2b00-\u2bff\U0001f000-\U0001faff"
_INITIALS = "A-HJ-ZÀ-ÖØ-ÞΑ-ΩА-Я"  # not I: it is a pronoun more often than an initial
_ABBREVIATIONS = (
    "Mr Mrs Ms Mx Dr Drs Prof St Ste Sr Jr Gen Col Maj Capt Cmdr Lt Sgt Cpl Sen Rep Reps Gov Pres Rev Hon Messrs Supt "
    "Jan Feb Mar Apr Jun Jul Aug Sep Sept Oct Nov Dec Mon Tue Tues Wed Thu Thur Thurs Fri Inc Ltd Corp Co Bros Dept "
    "Univ Assn Ave Blvd Rd Hwy Ft Mt Fig Figs Eq Vol Vols Nr Attn Ph.D Etc mr mrs ms dr prof jr sr st inc ltd corp "
    "dept vs etc cf viz approx al pp eds ca bzw usw"
)
_DOMAINS = "com|org|net|edu|gov|mil|info|biz|io|ai|uk|de|fr|eu|ca|au|ch|nl|ru|jp|cn|br"
_FILES = "doc|docx|xls|xlsx|ppt|pptx|pdf|txt|csv|json|xml|html?|php|py|js|zip|gz|jpe?g|png|gif|mp[34]|exe|url"


@cache
def _pieces() -> re.Pattern[str]:
    """Compile the expression for one piece, at the first call: listing Unicode's marks takes a moment."""
    marks = "".join(c for c in map(chr, range(0x300, 0x1F000)) if unicodedata.category(c)[0] == "M")
    marks += "\u00ad\u200c\u200d\u2060\U000e0100-\U000e01ef"  # invisible joiners inside words, variation selectors
    word = rf"[^\W_{_UNSPACED}]"
    run = rf"(?:{word}++[{marks}]*+)++"  # letters and digits with their marks
    letter, end = rf"[^\W\d_{_UNSPACED}]", rf"(?!{word})"
    emoji = rf"[{_EMOJI}](?:[{marks.replace(chr(0x200D), '')}]|[\U0001f3fb-\U0001f3ff\U000e0020-\U000e007f])*+"
    abbreviation = "|".join(sorted(map(re.escape, _ABBREVIATIONS.split()), key=len, reverse=True))
    url = r"[^\s<>\"“”«»\u3000-\u303f\uff01-\uff20]*[^\s<>\"“”«»\u3000-\u303f\uff01-\uff20'’.,;:!?)\]}]"
    name = r"[A-Za-z0-9_-]{1,64}+"  # bounded, as is an address: a page of a+a+a+a must not take quadratic time
    branches = [
        r"[A-Za-z]++(?=[ ,;)!?\n])",  # most of English; first for speed
        rf"(?:(?:https?|ftp)://|www\.|mailto:){url}",
        rf"[A-Za-z0-9._%+-]{{1,64}}+@{name}(?:\.{name})*+",
        rf"@(?!\d)_?{run}(?:_{run})*+|#(?![\d_])(?:\w++[{marks}]*+)++",
        rf"(?:{name}\.){{1,8}}(?:{_DOMAINS}|{_FILES}|{_FILES.upper()}){end}(?:/{url})?",
        r"[0-9#*]\ufe0f?\u20e3",  # keycaps
        rf"(?:{letter}\.){{2,}}+(?:{letter}{end})?|{letter}\.{letter}{end}",  # U.S., e.g., a.m, U.S.A
        rf"[A-Z]{{1,3}}+(?:&[A-Z]{{1,3}}+)++{end}|C(?:\+\+|#){end}",  # AT&T, R&D, C++
        r"[A-Za-z]{1,5}+\.(?=,)",  # lb., Que.,: a comma does not follow a sentence
        rf"(?=[\w.]{{1,7}}\.)(?:{abbreviation})\.",
        rf"(?:[Nn]o(?=\.\s?\d)|[{_INITIALS}](?=\.\s+[{_INITIALS}I]))\.",
        rf"(?<![\w.])\.\d++|\d++(?:[.,:/٫٬]\d++)*+(?:-?{run})*+",
        rf"{run}(?:(?:[-‐‑'’·׳״]|_++){run})*+",
        rf"['’](?:(?i:s|re|ve|ll|d|m)|em|n|tis|twas|\d\ds?){end}",
        r"\.{2,}+|[!?]{2,}+|-{2,}+|={2,}+|\*{2,}+|_{2,}+|~{2,}+|\+{2,}+|#{2,}+|<<|>>|''|’’|``",
        rf"(?:[:;=]-?[)(]|:-?[DP]|<3){end}",
        rf"[\U0001f1e6-\U0001f1ff]{{2}}|{emoji}(?:\u200d{emoji})*+",
        rf"[{_UNSPACED}][{marks}]*+(?:(?<=[\u1039\u17d2])[{_UNSPACED}][{marks}]*+)*+",  # with subscript consonants
        rf"\S[{marks}]*+",
    ]
    return re.compile("|".join(branches))


_MAX_SPLIT_LENGTH = 64  # bounds the recursion on noise such as 'd'd'd'd
_CLITIC = re.compile(r"([^/@]*[^/@'’])(n['’]t|['’](?:s|re|ve|ll|d|m))", re.IGNORECASE)
_ELISION = re.compile(
    r"((?:(?:[djlmnst]|qu|jusqu|lorsqu|puisqu|quoiqu|un|(?:a|co|da|de|ne|su|que)ll|quest)['’](?=h?[aeiouyœæà-åè-ïò-öù-ý])"
    r"|c['’](?=[aeçà-åè-ë])))(.+)",
    re.IGNORECASE,
)


def _split_apostrophes(piece: str) -> tuple[str, ...]:
    """Split clitics off the end (I 'd 've) and elisions off the front (l' homme); other pieces are returned as is."""
    if ("'" not in piece and "’" not in piece) or len(piece) > _MAX_SPLIT_LENGTH:
        return (piece,)
    if match := _CLITIC.fullmatch(piece):
        return (*_split_apostrophes(match[1]), match[2])
    if match := _ELISION.fullmatch(piece):
        return (match[1], *_split_apostrophes(match[2]))
    return (piece,)


# Tokens that attach to their neighbours, and characters without a space between them.
_HUGS_LEFT = re.compile(r"[,;:%)\]}”’›°/،؛؟।]|[.!?…]+|''|’’|n['’]t|['’](?:s|re|ve|ll|d|m)", re.IGNORECASE)
_HUGS_RIGHT = re.compile(r"[(\[{“‘‹¿¡$£€/]|``|(?:[cdjlmnst]|\w*qu|un|\w*ll|quest)['’]", re.IGNORECASE)
_CJK = rf"[{_UNSPACED}\u3000-\u30ff\uff00-\uffef]"
_NO_SPACE = re.compile(rf"{_CJK}|.{_CJK}|#\d", re.DOTALL)


# Sentences end after . ! ? … and closing quotes or brackets, before a word that can begin a sentence. The full stop of
# an abbreviation is part of its token.
_BEGINNING, _TERMINAL = re.compile(r"[^\W_a-zß-öø-ÿ]|[\"'“‘(\[«—–-]"), re.compile(r"[.!?…]+")
_CLOSERS = (*"\"'”’)]»", "''")
MAX_SENTENCE_WORDS = 200  # a longer sentence has lost its full stops, and is cut


def sentence_ends(tokens: Sequence[Token]) -> Iterator[int]:
    """Yield the indices of tokens after which a sentence ends, except the last token."""
    for i, (token, following) in enumerate(pairwise(tokens)):
        if following.start == token.end or not _BEGINNING.match(following.text):
            continue
        last = i
        while last and tokens[last].text in _CLOSERS and tokens[last].start == tokens[last - 1].end:
            last -= 1
        if _TERMINAL.fullmatch(tokens[last].text):
            yield i


def split_tokens(text: str, tokens: Sequence[Token]) -> list[list[Token]]:
    """Split a text into sentences, also at empty lines."""
    ends = set(sentence_ends(tokens))
    for i, (token, following) in enumerate(pairwise(tokens)):
        if text.count("\n", token.end, following.start) > 1:
            ends.add(i)
    return [list(tokens[start:end]) for start, end in _sentence_bounds(sorted(ends), len(tokens))]


def split_words(words: Sequence[str]) -> list[list[str]]:
    """Split tokens without whitespace information into sentences: a quotation mark closes if one is open."""
    ends, open_quote, ended = [], False, False
    for i, (word, following) in enumerate(pairwise(words)):
        opens = word == '"' and not open_quote
        open_quote ^= word == '"'
        ended = _TERMINAL.fullmatch(word) is not None or (ended and word in _CLOSERS and not opens)
        closes = following in _CLOSERS and (following != '"' or open_quote)
        if ended and not closes and _BEGINNING.match(following):
            ends.append(i)
    return [list(words[start:end]) for start, end in _sentence_bounds(ends, len(words))]


def _sentence_bounds(ends: Sequence[int], count: int) -> Iterator[tuple[int, int]]:
    """Yield start and end of each sentence, given the last words; none is longer than MAX_SENTENCE_WORDS."""
    bounds = [0, *(end + 1 for end in ends), count]
    for sentence_start, sentence_end in pairwise(bounds):
        for start in range(sentence_start, sentence_end, MAX_SENTENCE_WORDS):
            yield start, min(start + MAX_SENTENCE_WORDS, sentence_end)
