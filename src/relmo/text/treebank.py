"""Words of a treebank and of raw text: where they differ, and how tokens are split as in the treebank.

A surface form of the text may be several words of a treebank (CoNLL-U's ranges): the French `du` is `de le`, the
English `cannot` is `can not`. `WordSplits` is learned from the training sentences. It has the tokens of relmo's
tokenizer that the treebank has as several words, and splits them the same way in raw text. A token that is split only
sometimes, such as `des`, is read in the more frequent way.

Words that make up their form, such as can and not, have offsets of their own; others have those of the form.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby, pairwise
from typing import NamedTuple

from relmo.errors import VocabularyError, quote
from relmo.text.tokenize import Token
from relmo.text.vocabulary import Vocabulary

STRAIGHT = str.maketrans("’", "'")


class SurfaceForm(NamedTuple):
    """Form in the text, its words, and whether a space follows."""

    form: str
    words: list[str]
    spaced: bool = True


class PlacedText(NamedTuple):
    """Text and its words with their offsets; no words if the text is unknown."""

    text: str = ""
    tokens: Sequence[Token] = ()


def place_words(forms: Sequence[SurfaceForm], text: str | None) -> PlacedText:
    """Locate the words of a sentence in its text. If the text is missing or does not consist of the forms, it is joined
    from the forms; empty if these carry no information: each form is one word followed by a space."""
    if text is None or (tokens := _locate(forms, text)) is None:
        if all(form.spaced and len(form.words) == 1 for form in forms):
            return PlacedText()
        text = "".join(form.form + " " * form.spaced for form in forms).rstrip()
        tokens = _locate(forms, text)
    return PlacedText() if tokens is None else PlacedText(text, tokens)


def _locate(forms: Sequence[SurfaceForm], text: str) -> list[Token] | None:
    """Return the words with their offsets; None if there is anything but whitespace between the forms."""
    tokens: list[Token] = []
    end = 0
    for form, words, _ in forms:
        start = text.find(form, end)
        if start < 0 or text[end:start].strip():
            return None
        end = start + len(form)
        tokens += split_token(Token(form, start, end), words)
    return None if text[end:].strip() else tokens


def split_token(token: Token, words: Sequence[str]) -> list[Token]:
    """Split a token into these words, with offsets of their own if together they are the token."""
    if "".join(words) != token.text:
        return [Token(word, token.start, token.end) for word in words]
    ends = [token.start + sum(map(len, words[:i])) for i in range(len(words) + 1)]
    return [Token(word, *offsets) for word, offsets in zip(words, pairwise(ends), strict=True)]


class WordSplits(Vocabulary):
    """Tokens that are several words, with these words on a line, `du de le`; and tokens that are one word but several
    in lower case, `Des Des`."""

    specials = ()

    def __init__(self, symbols: Iterable[str]):
        super().__init__(symbols)
        self.words: dict[str, list[str]] = {}
        for symbol in self.symbols:
            token, *words = symbol.split(" ")
            if not words or not all((token, *words)) or token in self.words:
                raise VocabularyError(f"{quote(symbol)} is not a token and its words, separated by spaces")
            self.words[token] = words

    def split(self, tokens: Iterable[Token]) -> list[Token]:
        """Split the tokens of a text into words."""
        return [word for token in tokens for word in split_token(token, self._find_words(token.text))]

    def _find_words(self, token: str) -> list[str]:
        """Return the words of a token, or those of its lower case with the capitals of the token."""
        straight = token.translate(STRAIGHT)
        if words := self.words.get(straight):
            return words if straight == token or "".join(words) != straight else _cut_like(token, words)
        lower_words = self.words.get(straight.lower())
        if lower_words is None:
            return [token]
        if "".join(lower_words) == straight.lower():
            return _cut_like(token, lower_words)
        if token.isupper() and len(token) > 1:
            return [word.upper() for word in lower_words]
        return [lower_words[0].capitalize(), *lower_words[1:]] if token[0].isupper() else lower_words


def _cut_like(token: str, words: Sequence[str]) -> list[str]:
    """Cut a token into pieces of the lengths of the words."""
    pieces = split_token(Token("".join(words), 0, len(token)), words)
    return [token[piece.start : piece.end] for piece in pieces]


def learn_splits(sentences: Iterable[PlacedText], tokenize: Callable[[str], list[Token]]) -> WordSplits | None:
    """Learn the tokens that sentences mostly have as several words; return None if there are none."""
    counts: dict[str, Counter[tuple[str, ...]]] = defaultdict(Counter)
    for text, tokens in sentences:
        for token, words in _align(tokenize(text), tokens):
            counts[token.text.translate(STRAIGHT)][tuple(word.translate(STRAIGHT) for word in words)] += 1
    best = {form: readings.most_common(1)[0][0] for form, readings in counts.items()}
    split_forms = {form for form, words in best.items() if len(words) > 1 and not any(" " in word for word in words)}
    forms = [form for form in best if form in split_forms or (form != form.lower() and form.lower() in split_forms)]
    forms.sort(key=lambda form: (-counts[form].total(), form))
    return WordSplits(" ".join((form, *best[form])) for form in forms) if split_forms else None


def _align(tokens: Sequence[Token], words: Sequence[Token]) -> Iterator[tuple[Token, list[str]]]:
    """Yield each token that begins and ends at word boundaries, and its words."""
    starts: dict[int, int] = {}
    for number, word in enumerate(words):
        starts.setdefault(word.start, number)
    for token in tokens:
        start = starts.get(token.start)
        if start is None:
            continue
        end = start
        while end < len(words) and words[end].end <= token.end:
            end += 1
        if end > start and words[end - 1].end == token.end:
            yield token, [word.text for word in words[start:end]]


class SplitDifferences(NamedTuple):
    """Number of words, and counts of those that raw text is not split into, with the words in their place."""

    words: int
    differing: Counter[tuple[str, str]]

    @property
    def share(self) -> float:
        """Fraction of the words that differ."""
        return self.differing.total() / max(self.words, 1)

    def message(self) -> str:
        """Return a message about how raw text is split, with advice."""
        if not self.differing:
            return f"raw text: all {self.words:,} words of the validation sentences are split as in the file"
        examples = ", ".join(f"{word} ({raw_words})" for (word, raw_words), _ in self.differing.most_common(4))
        return (
            f"raw text: {self.share:.2%} of the {self.words:,} words of the validation sentences are split differently "
            f"from the file, such as {examples}; to avoid this, give tokenized text with --tokenizer whitespace"
        )


def compare_words(sentences: Iterable[PlacedText], split: Callable[[str], Sequence[Token]]) -> SplitDifferences:
    """Compare the words of sentences with those of their raw text. A word matches one with the same offsets; words that
    share offsets match as many words that do."""
    count, differing = 0, Counter[tuple[str, str]]()
    for text, tokens in sentences:
        raw_tokens = split(text)
        raw_keys = set(_number_tokens(raw_tokens))
        for word, key in zip(tokens, _number_tokens(tokens), strict=True):
            count += 1
            if key not in raw_keys:
                overlapping = [token.text for token in raw_tokens if token.start < word.end and word.start < token.end]
                differing[word.text, " | ".join(overlapping)] += 1
    return SplitDifferences(count, differing)


def _number_tokens(tokens: Sequence[Token]) -> list[tuple[int, int, int, int]]:
    """Return the offsets of each word, its number among the words with these offsets, and their count."""
    keys = []
    for offsets, group in groupby(tokens, key=lambda token: (token.start, token.end)):
        size = len(list(group))
        keys += [(*offsets, number, size) for number in range(size)]
    return keys
