"""Formal languages that require a counter or a stack: a^n b^n, a^n b^n c^n, and balanced brackets of k kinds.

A language provides training words up to a size n, positive and slightly wrong words for every n, and the value of a
counter at each symbol. n is the number of a's, or the nesting depth of brackets.

Training words must not reveal the limit. After n a's, another a or the first b is equally probable for all n below the
limit, and the symbol after the a's of the longest words is not learned, so a network that goes on counting is never
penalised.

    Chomsky & Schützenberger 1963, The algebraic theory of context-free languages (Dyck languages)
    Gers & Schmidhuber 2001, LSTM recurrent networks learn simple context-free and context-sensitive languages
    Weiss, Goldberg & Yahav 2018, On the practical computational power of finite precision RNNs
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from relmo.errors import SettingError

BRACKETS = ("()", "[]", "{}", "<>")
MEAN_RUN = 1 / 3  # mean number of a's in training words, as a share of the limit
NUM_DYCK_WORDS = 400  # in training
END_PROBABILITY = 0.2  # of a balanced word, wherever it could end
NUM_MIXED_WORDS = 2  # per depth, beside the purely nested one


class TrainingWord(NamedTuple):
    """Word to learn from, with its weight in the loss.

    ignored       positions whose prediction is not learned; position i is before symbol i
    certain_from  position from which every symbol is determined by the previous ones; long words have little weight,
                  but these positions weigh at least as much as in a word of mean weight
    """

    word: str
    weight: float
    ignored: tuple[int, ...]
    certain_from: int | None = None


class Count(NamedTuple):
    """Values of a counter after the symbols at some positions of a word."""

    positions: np.ndarray
    values: np.ndarray


class Language:
    """Base class of formal languages."""

    name: str
    symbols: str

    def examples(self, limit: int, seed: int) -> list[TrainingWord]:
        """Return training words of sizes up to the limit."""
        raise NotImplementedError

    def right(self, n: int, seed: int = 0) -> list[str]:
        """Return words of size n."""
        raise NotImplementedError

    def wrong(self, n: int, seed: int = 0) -> dict[str, str]:
        """Return words of size n that are nearly in the language, by their error."""
        raise NotImplementedError

    def has(self, word: str) -> bool:
        """Whether a word is in the language; the empty one is not."""
        raise NotImplementedError

    def strings(self, largest: int, count: int, seed: int) -> list[str]:
        """Draw random words, in the language and not, of sizes up to about the largest."""
        raise NotImplementedError

    def counts(self, word: str) -> dict[str, Count]:
        """Return the values of each counter by name."""
        raise NotImplementedError


@dataclass(frozen=True)
class Blocks(Language):
    """a^n b^n with the letters ab, a^n b^n c^n with abc, and so on; n from 1."""

    symbols: str = "ab"

    @property
    def name(self) -> str:  # type: ignore[override]
        """Name such as anbn."""
        return "".join(f"{letter}n" for letter in self.symbols)

    def spell(self, sizes: list[int]) -> str:
        """Return a word with these numbers of each letter."""
        return "".join(letter * max(size, 0) for letter, size in zip(self.symbols, sizes, strict=True))

    def examples(self, limit: int, seed: int) -> list[TrainingWord]:
        stay = 1 - 1 / max(MEAN_RUN * limit, 1.5)
        words = [TrainingWord(self.right(n)[0], stay**n, (), certain_from=n + 1) for n in range(1, limit)]
        # The longest word stands for all longer ones.
        weight = stay**limit / (1 - stay)
        return [*words, TrainingWord(self.right(limit)[0], weight, (limit,), certain_from=limit + 1)]

    def right(self, n: int, seed: int = 0) -> list[str]:
        return [self.spell([n] * len(self.symbols))]

    def wrong(self, n: int, seed: int = 0) -> dict[str, str]:
        sizes, last = [n] * (len(self.symbols) - 1), self.symbols[-1]
        return {
            f"{last}^(n{excess:+d})": self.spell([*sizes, n + excess]) for excess in (-2, -1, 1, 2) if n + excess >= 0
        }

    def has(self, word: str) -> bool:
        return bool(word) and word == self.right(word.count(self.symbols[0]))[0]

    def strings(self, largest: int, count: int, seed: int) -> list[str]:
        """Draw a^(n+i) b^(n+j) …, n up to the largest and i, j from -2 to 2, as Weiss et al. test."""
        generator = np.random.default_rng(seed)
        words: list[str] = []
        while len(words) < count:
            n = int(generator.integers(0, largest + 1))
            word = self.spell((n + generator.integers(-2, 3, size=len(self.symbols))).tolist())
            words += [word] if word else []
        return words

    def counts(self, word: str) -> dict[str, Count]:
        counts = {}
        for up, down in pairwise(self.symbols):
            steps = np.array([(symbol == up) - int(symbol == down) for symbol in word])
            positions = np.array([i for i, symbol in enumerate(word) if symbol in (up, down)])
            counts[f"#{up} - #{down}"] = Count(positions, np.cumsum(steps)[positions])
        return counts


@dataclass(frozen=True)
class Dyck(Language):
    """Balanced brackets of `kinds` kinds; n is the nesting depth."""

    kinds: int = 1

    @property
    def name(self) -> str:  # type: ignore[override]
        """Name such as dyck-1."""
        return f"dyck-{self.kinds}"

    @property
    def symbols(self) -> str:  # type: ignore[override]
        """Brackets of all kinds."""
        return "".join(BRACKETS[: self.kinds])

    def examples(self, limit: int, seed: int) -> list[TrainingWord]:
        generator = np.random.default_rng(seed)
        words = []
        for _ in range(NUM_DYCK_WORDS):
            word = self.draw(generator, limit, 8 * limit)
            depths = self.counts(word)["depth"].values
            words.append(TrainingWord(word, 1.0, tuple((1 + np.flatnonzero(depths == limit)).tolist())))
        return words

    def draw(self, generator: np.random.Generator, max_depth: int, max_length: int) -> str:
        """Draw a word that opens and closes with equal probability, of limited depth and length."""
        open_kinds = [int(generator.integers(self.kinds))]
        word = BRACKETS[open_kinds[0]][0]
        while open_kinds or generator.random() > END_PROBABILITY:
            can_open = len(open_kinds) < max_depth and len(word) + len(open_kinds) < max_length
            if not open_kinds and not can_open:
                break
            if can_open and (not open_kinds or generator.random() < 0.5):
                open_kinds.append(int(generator.integers(self.kinds)))
                word += BRACKETS[open_kinds[-1]][0]
            else:
                word += BRACKETS[open_kinds.pop()][1]
        return word

    def nested(self, n: int, seed: int) -> str:
        """Return a word of n opening brackets, followed by the closing ones."""
        kinds = np.random.default_rng((seed, n)).integers(self.kinds, size=n).tolist()
        return "".join(BRACKETS[kind][0] for kind in kinds) + "".join(BRACKETS[kind][1] for kind in reversed(kinds))

    def right(self, n: int, seed: int = 0) -> list[str]:
        """Return the nested word, and some of depth n with other words inside."""
        generator = np.random.default_rng((seed, n, 1))
        words = [self.nested(n, seed)]
        for _ in range(NUM_MIXED_WORDS if n > 2 else 0):
            outer, at = self.nested(n, seed), int(generator.integers(1, n))
            words.append(outer[:at] + self.draw(generator, max(1, n - at), 2 * n) + outer[at:])
        return words

    def wrong(self, n: int, seed: int = 0) -> dict[str, str]:
        word = self.nested(n, seed)
        words = {"one closed too few": word[:-1], "one closed too many": word + word[-1]}
        if self.kinds > 1:  # the outermost bracket is closed with another kind
            substitute = next(pair[1] for pair in BRACKETS[: self.kinds] if pair[1] != word[-1])
            words["last of another kind"] = word[:-1] + substitute
        return words

    def has(self, word: str) -> bool:
        expected: list[str] = []
        closing = {pair[0]: pair[1] for pair in BRACKETS[: self.kinds]}
        for symbol in word:
            if symbol in closing:
                expected.append(closing[symbol])
            elif not expected or expected.pop() != symbol:
                return False
        return bool(word) and not expected

    def strings(self, largest: int, count: int, seed: int) -> list[str]:
        """Draw words, half of them in the language and half with one bracket removed, inserted or replaced."""
        generator = np.random.default_rng(seed)
        words: list[str] = []
        while len(words) < count:
            n = int(generator.integers(1, largest + 1))
            word = self.right(n, int(generator.integers(1 << 30)))[-1]
            words.append(self.damage(word, generator) if len(words) % 2 else word)
        return words

    def damage(self, word: str, generator: np.random.Generator) -> str:
        """Return a word that is not in the language and differs in one bracket."""
        while True:
            at, bracket = int(generator.integers(len(word))), self.symbols[int(generator.integers(2 * self.kinds))]
            start, end = word[:at], word[at + 1 :]
            candidates = [start + end, start + bracket + word[at:], start + bracket + end]
            candidate = candidates[int(generator.integers(3))]
            if candidate and not self.has(candidate):
                return candidate

    def counts(self, word: str) -> dict[str, Count]:
        opening = {pair[0] for pair in BRACKETS}
        depth = np.cumsum([1 if symbol in opening else -1 for symbol in word])
        return {"depth": Count(np.arange(len(word)), depth)}


def get_language(name: str) -> Language:
    """Return the language with this name: anbn, anbncn, dyck-1 to dyck-4."""
    if re.fullmatch(r"(?:[a-z]n){2,}", name) and len(set(name[::2])) == len(name) // 2:
        return Blocks(name[::2])
    if (match := re.fullmatch(r"dyck-([1-4])", name)) is not None:
        return Dyck(int(match[1]))
    raise SettingError(f"Unknown language {name!r}; expected anbn, anbncn, or dyck-1 to dyck-{len(BRACKETS)}.")


def intervals(numbers: Iterable[int]) -> list[tuple[int, int]]:
    """Group ascending numbers into runs without gaps, as pairs of their first and last number."""
    runs: list[tuple[int, int]] = []
    for number in numbers:
        if runs and runs[-1][1] == number - 1:
            runs[-1] = (runs[-1][0], number)
        else:
            runs.append((number, number))
    return runs
