"""Words of a treebank and of raw text: where they differ, and how tokens are split as in the treebank. A surface form
may be several words of a treebank: the French `du` is `de le`, `cannot` is `can not`."""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate, groupby, pairwise
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
    """Locate the words of a sentence in its text, or in the text of its forms if any is not one word and a space."""
    texts = [] if text is None else [text]
    if not all(form.spaced and len(form.words) == 1 for form in forms):
        texts.append("".join(form.form + " " * form.spaced for form in forms).rstrip())
    for candidate in texts:
        tokens: list[Token] = []
        end = 0
        for form, words, _ in forms:
            start = candidate.find(form, end)
            if start < 0 or candidate[end:start].strip():
                break
            end = start + len(form)
            tokens += split_token(Token(form, start, end), words)
        else:
            if not candidate[end:].strip():
                return PlacedText(candidate, tokens)
    return PlacedText()


def split_token(token: Token, words: Sequence[str]) -> list[Token]:
    """Split a token into these words, with offsets of their own if together they are the token."""
    if "".join(words) != token.text:
        return [Token(word, token.start, token.end) for word in words]
    ends = accumulate(map(len, words), initial=token.start)
    return [Token(word, *offsets) for word, offsets in zip(words, pairwise(ends), strict=True)]


class WordSplits(Vocabulary):
    """Tokens that the treebank mostly has as several words, with these words on a line, `du de le`; and tokens that are
    one word but several in lower case, `Des Des`."""

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
        """Split the tokens of a text into words: those of the token, or those of its lower case with its capitals."""
        split_tokens: list[Token] = []
        for token in tokens:
            straight = token.text.translate(STRAIGHT)
            form = straight if straight in self.words else straight.lower()
            words = self.words.get(form)
            if words is None:
                words = [token.text]
            elif "".join(words) == form:
                words = [token.text[start:end] for start, end in pairwise(accumulate(map(len, words), initial=0))]
            elif form != straight and token.text.isupper() and len(token.text) > 1:
                words = [word.upper() for word in words]
            elif form != straight and token.text[0].isupper():
                words = [words[0].capitalize(), *words[1:]]
            split_tokens += split_token(token, words)
        return split_tokens


def learn_splits(sentences: Iterable[PlacedText], tokenize: Callable[[str], list[Token]]) -> WordSplits | None:
    """Learn the tokens that sentences mostly have as several words; return None if there are none."""
    counts: dict[str, Counter[tuple[str, ...]]] = defaultdict(Counter)
    for text, words in sentences:
        starts: dict[int, int] = {}
        for number, word in enumerate(words):
            starts.setdefault(word.start, number)
        for token in tokenize(text):  # only those that begin and end at word boundaries
            if (start := starts.get(token.start)) is None:
                continue
            end = start
            while end < len(words) and words[end].end <= token.end:
                end += 1
            if end > start and words[end - 1].end == token.end:
                reading = tuple(word.text.translate(STRAIGHT) for word in words[start:end])
                counts[token.text.translate(STRAIGHT)][reading] += 1
    best = {form: readings.most_common(1)[0][0] for form, readings in counts.items()}
    split_forms = {form for form, words in best.items() if len(words) > 1 and not any(" " in word for word in words)}
    forms = [form for form in best if form in split_forms or (form != form.lower() and form.lower() in split_forms)]
    forms.sort(key=lambda form: (-counts[form].total(), form))
    return WordSplits(" ".join((form, *best[form])) for form in forms) if split_forms else None


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
    """Compare words with those of their raw text; those that share offsets match as many words that do."""
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
