"""Words as a treebank has them, and as raw text gives them: where the two differ, and how the one becomes the other.

A treebank knows the text that its words are from. A form of that text may be several words (CoNLL-U's ranges): the
French `du` is `de le`, the English `cannot` is `can not`. `WordSplits` is learned from the training sentences. It holds
the tokens of relmo's tokenizer that the treebank has as several words, and splits them the same way in raw text. A
token that is sometimes split and sometimes not, as `des`, is read in the way that is more frequent.

Where a word stands: words that make up their form, as can and not, have a place each. Others share that of the form.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby, pairwise
from typing import NamedTuple

from relmo.errors import VocabularyError, shown
from relmo.text.tokenize import Token
from relmo.text.vocabulary import Vocabulary

STRAIGHT = str.maketrans("’", "'")


class SurfaceForm(NamedTuple):
    """A form as it stands in the text, its words, and whether a space follows."""

    form: str
    words: list[str]
    spaced: bool = True


class PlacedText(NamedTuple):
    """A text and its words with their places; no words where nobody knows the text."""

    text: str = ""
    tokens: Sequence[Token] = ()


def place_words(forms: Sequence[SurfaceForm], text: str | None) -> PlacedText:
    """The words of a sentence in its text. Where that is not given, or is not made of the forms, it is put together
    from the forms; nothing where these do not tell either: no form is several words, and a space follows each."""
    if text is None or (tokens := _found(forms, text)) is None:
        if all(form.spaced and len(form.words) == 1 for form in forms):
            return PlacedText()
        text = "".join(form.form + " " * form.spaced for form in forms).rstrip()
        tokens = _found(forms, text)
    return PlacedText() if tokens is None else PlacedText(text, tokens)


def _found(forms: Sequence[SurfaceForm], text: str) -> list[Token] | None:
    """Words with their places in the text; None where something else than white space stands between the forms."""
    tokens: list[Token] = []
    place = 0
    for form, words, _ in forms:
        start = text.find(form, place)
        if start < 0 or text[place:start].strip():
            return None
        place = start + len(form)
        tokens += split_at(Token(form, start, place), words)
    return None if text[place:].strip() else tokens


def split_at(token: Token, words: Sequence[str]) -> list[Token]:
    """A token as these words, each in its own place where together they are the token."""
    if "".join(words) != token.text:
        return [Token(word, token.start, token.end) for word in words]
    ends = [token.start + sum(map(len, words[:i])) for i in range(len(words) + 1)]
    return [Token(word, *place) for word, place in zip(words, pairwise(ends), strict=True)]


class WordSplits(Vocabulary):
    """The tokens that are several words, each with those on a line, `du de le`; and those that are one word where they
    would be several in lower case, `Des Des`."""

    specials = ()

    def __init__(self, symbols: Iterable[str]):
        super().__init__(symbols)
        self.words: dict[str, list[str]] = {}
        for symbol in self.symbols:
            token, *words = symbol.split(" ")
            if not words or not all((token, *words)) or token in self.words:
                raise VocabularyError(f"{shown(symbol)} is not a token and its words, with a space between them")
            self.words[token] = words

    def split(self, tokens: Iterable[Token]) -> list[Token]:
        """The words of a text by its tokens."""
        return [word for token in tokens for word in split_at(token, self._words(token.text))]

    def _words(self, token: str) -> list[str]:
        """A token's words: its own, or those of the token in lower case, written as it is."""
        straight = token.translate(STRAIGHT)
        if found := self.words.get(straight):
            return found if straight == token or "".join(found) != straight else _cut_like(token, found)
        found = self.words.get(straight.lower())
        if found is None:
            return [token]
        if "".join(found) == straight.lower():
            return _cut_like(token, found)
        if token.isupper() and len(token) > 1:
            return [word.upper() for word in found]
        return [found[0].capitalize(), *found[1:]] if token[0].isupper() else found


def _cut_like(token: str, words: Sequence[str]) -> list[str]:
    """A token in pieces as long as the words are."""
    pieces = split_at(Token("".join(words), 0, len(token)), words)
    return [token[piece.start : piece.end] for piece in pieces]


def learn_splits(sentences: Iterable[PlacedText], tokenize: Callable[[str], list[Token]]) -> WordSplits | None:
    """The tokens that sentences have as several words more often than otherwise; None where there are none."""
    counts: dict[str, Counter[tuple[str, ...]]] = defaultdict(Counter)
    for text, tokens in sentences:
        for token, words in _covered(tokenize(text), tokens):
            counts[token.text.translate(STRAIGHT)][tuple(word.translate(STRAIGHT) for word in words)] += 1
    best = {form: readings.most_common(1)[0][0] for form, readings in counts.items()}
    several = {form for form, reading in best.items() if len(reading) > 1 and not any(" " in word for word in reading)}
    kept = [form for form in best if form in several or (form != form.lower() and form.lower() in several)]
    kept.sort(key=lambda form: (-counts[form].total(), form))
    return WordSplits(" ".join((form, *best[form])) for form in kept) if several else None


def _covered(tokens: Sequence[Token], words: Sequence[Token]) -> Iterator[tuple[Token, list[str]]]:
    """Each token that begins and ends with words, and these words."""
    starts: dict[int, int] = {}
    for number, word in enumerate(words):
        starts.setdefault(word.start, number)
    for token in tokens:
        first = starts.get(token.start)
        if first is None:
            continue
        last = first
        while last < len(words) and words[last].end <= token.end:
            last += 1
        if last > first and words[last - 1].end == token.end:
            yield token, [word.text for word in words[first:last]]


class SplitDifferences(NamedTuple):
    """How many words there are, and those that are not found in raw text, each with what is found in its place."""

    words: int
    differing: Counter[tuple[str, str]]

    @property
    def share(self) -> float:
        """Of the words, those that are not found."""
        return self.differing.total() / max(self.words, 1)

    def message(self) -> str:
        """What to know before raw text is given to the model, and what to do about it."""
        if not self.differing:
            return f"raw text: all {self.words:,} words of the validation sentences are found as the file has them"
        shown_ones = ", ".join(f"{word} ({found})" for (word, found), _ in self.differing.most_common(4))
        return (
            f"raw text: {self.share:.2%} of the {self.words:,} words of the validation sentences are split otherwise "
            f"than in the file, such as {shown_ones}; where that matters, give text that is split already, with "
            "--tokenizer whitespace"
        )


def compare_words(sentences: Iterable[PlacedText], split: Callable[[str], Sequence[Token]]) -> SplitDifferences:
    """The words of sentences against those that their raw text is split into. A word is found where one of the same
    characters is; of words that share a place, where as many words do."""
    count, differing = 0, Counter[tuple[str, str]]()
    for text, tokens in sentences:
        found = split(text)
        known = set(_numbered(found))
        for word, key in zip(tokens, _numbered(tokens), strict=True):
            count += 1
            if key not in known:
                there = " | ".join(each.text for each in found if each.start < word.end and word.start < each.end)
                differing[word.text, there] += 1
    return SplitDifferences(count, differing)


def _numbered(tokens: Sequence[Token]) -> list[tuple[int, int, int, int]]:
    """Where each word stands, its number among those that stand there, and how many these are."""
    found = []
    for place, group in groupby(tokens, key=lambda token: (token.start, token.end)):
        size = len(list(group))
        found += [(*place, number, size) for number in range(size)]
    return found
