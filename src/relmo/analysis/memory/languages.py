"""Formal languages that ask for a counter, or for a stack: a^n b^n, a^n b^n c^n, and balanced brackets of k kinds.

A language gives words to learn from, up to a size n; right words and wrong ones that differ from them by little, for
every n; and what a counter would have to show at each symbol. n is the number of a's, or how deep brackets are nested.

Training words must not say where the limit is. So after n a's another a, or the first b, comes with the same
probability for all n below the limit, and what follows the a's of the longest words is not learned at all. A network
that goes on counting is never told that it is wrong.

    Chomsky & Schützenberger 1963, The algebraic theory of context-free languages (Dyck languages)
    Gers & Schmidhuber 2001, LSTM recurrent networks learn simple context-free and context-sensitive languages
    Weiss, Goldberg & Yahav 2018, On the practical computational power of finite precision RNNs
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from relmo.errors import SettingError

BRACKETS = ("()", "[]", "{}", "<>")
RUN = 1 / 3  # of the limit: the mean number of a's learned from
DYCK_WORDS = 400  # learned from
CLOSE_AT_ZERO = 0.2  # the probability with which a word of brackets ends where it could
MORE = 2  # words of brackets drawn for each depth, beside the nested one


class LearntWord(NamedTuple):
    """A word to learn from, and its weight.

    untold      the places whose prediction is not learned; place i is before symbol i
    certain     the place from which on every symbol follows from those before; long words have little weight, but
                these places weigh at least as much as in a word of mean weight
    """

    word: str
    weight: float
    untold: tuple[int, ...]
    certain: int | None = None


class Count(NamedTuple):
    """What a counter shows after each symbol of a word; places where it does not matter are not there."""

    places: np.ndarray
    values: np.ndarray


class Language:
    """What all languages have."""

    name: str
    symbols: str

    def examples(self, limit: int, seed: int) -> list[LearntWord]:
        """Words of a size up to the limit, to learn from."""
        raise NotImplementedError

    def right(self, n: int, seed: int = 0) -> list[str]:
        """Words of size n."""
        raise NotImplementedError

    def wrong(self, n: int, seed: int = 0) -> dict[str, str]:
        """Words that are nearly in the language and of size n, by what is wrong with them."""
        raise NotImplementedError

    def has(self, word: str) -> bool:
        """Whether a word is in the language; the empty one is not."""
        raise NotImplementedError

    def strings(self, largest: int, count: int, seed: int) -> list[str]:
        """Words, in the language and not, of sizes up to about the largest, drawn at random."""
        raise NotImplementedError

    def counts(self, word: str) -> dict[str, Count]:
        """Each counter by its name."""
        raise NotImplementedError


@dataclass(frozen=True)
class Blocks(Language):
    """a^n b^n with the letters ab, a^n b^n c^n with abc, and so on; n from 1."""

    symbols: str = "ab"

    @property
    def name(self) -> str:  # type: ignore[override]
        """The name as it is written: anbn."""
        return "".join(f"{letter}n" for letter in self.symbols)

    def spell(self, sizes: list[int]) -> str:
        """A word with so many of each letter."""
        return "".join(letter * max(size, 0) for letter, size in zip(self.symbols, sizes, strict=True))

    def examples(self, limit: int, seed: int) -> list[LearntWord]:
        stay = 1 - 1 / max(RUN * limit, 1.5)
        found = []
        for n in range(1, limit + 1):
            longest = n == limit  # it stands for all longer ones
            weight = stay**n / (1 - stay) if longest else stay**n
            found.append(LearntWord(self.right(n)[0], weight, (n,) if longest else (), certain=n + 1))
        return found

    def right(self, n: int, seed: int = 0) -> list[str]:
        return [self.spell([n] * len(self.symbols))]

    def wrong(self, n: int, seed: int = 0) -> dict[str, str]:
        same, last = [n] * (len(self.symbols) - 1), self.symbols[-1]
        return {f"{last}^(n{more:+d})": self.spell([*same, n + more]) for more in (-2, -1, 1, 2) if n + more >= 0}

    def has(self, word: str) -> bool:
        return bool(word) and word == self.right(word.count(self.symbols[0]))[0]

    def strings(self, largest: int, count: int, seed: int) -> list[str]:
        """a^(n+i) b^(n+j) …, n up to the largest and i, j from -2 to 2, as Weiss et al. test."""
        generator = np.random.default_rng(seed)
        found: list[str] = []
        while len(found) < count:
            n = int(generator.integers(0, largest + 1))
            word = self.spell((n + generator.integers(-2, 3, size=len(self.symbols))).tolist())
            found += [word] if word else []
        return found

    def counts(self, word: str) -> dict[str, Count]:
        found = {}
        for first, second in zip(self.symbols, self.symbols[1:], strict=False):
            steps = np.array([(symbol == first) - int(symbol == second) for symbol in word])
            places = np.array([i for i, symbol in enumerate(word) if symbol in (first, second)])
            found[f"#{first} - #{second}"] = Count(places, np.cumsum(steps)[places])
        return found


@dataclass(frozen=True)
class Dyck(Language):
    """Balanced brackets of `kinds` kinds; n is how deep they are nested."""

    kinds: int = 1

    @property
    def name(self) -> str:  # type: ignore[override]
        """dyck-1, dyck-2 …"""
        return f"dyck-{self.kinds}"

    @property
    def symbols(self) -> str:  # type: ignore[override]
        """The brackets."""
        return "".join(BRACKETS[: self.kinds])

    def examples(self, limit: int, seed: int) -> list[LearntWord]:
        generator = np.random.default_rng(seed)
        found = []
        for _ in range(DYCK_WORDS):
            word = self.draw(generator, limit, 8 * limit)
            depths = self.counts(word)["depth"].values
            found.append(LearntWord(word, 1.0, tuple((1 + np.flatnonzero(depths == limit)).tolist())))
        return found

    def draw(self, generator: np.random.Generator, deepest: int, longest: int) -> str:
        """A random word: open or close with the same probability, but neither too deep nor too long."""
        word, open_kinds = "", [int(generator.integers(self.kinds))]
        word = BRACKETS[open_kinds[0]][0]
        while open_kinds or generator.random() > CLOSE_AT_ZERO:
            room = len(open_kinds) < deepest and len(word) + len(open_kinds) < longest
            if not open_kinds and not room:
                break
            if room and (not open_kinds or generator.random() < 0.5):
                open_kinds.append(int(generator.integers(self.kinds)))
                word += BRACKETS[open_kinds[-1]][0]
            else:
                word += BRACKETS[open_kinds.pop()][1]
        return word

    def nested(self, n: int, seed: int) -> str:
        """n brackets opened, then all closed."""
        kinds = np.random.default_rng((seed, n)).integers(self.kinds, size=n).tolist()
        return "".join(BRACKETS[kind][0] for kind in kinds) + "".join(BRACKETS[kind][1] for kind in reversed(kinds))

    def right(self, n: int, seed: int = 0) -> list[str]:
        """The nested one, and some that go n deep with other words inside."""
        generator = np.random.default_rng((seed, n, 1))
        found = [self.nested(n, seed)]
        for _ in range(MORE if n > 2 else 0):
            outer, place = self.nested(n, seed), int(generator.integers(1, n))
            found.append(outer[:place] + self.draw(generator, max(1, n - place), 2 * n) + outer[place:])
        return found

    def wrong(self, n: int, seed: int = 0) -> dict[str, str]:
        word = self.nested(n, seed)
        found = {"one closed too few": word[:-1], "one closed too many": word + word[-1]}
        if self.kinds > 1:  # the bracket that is to be closed last is closed with another kind
            other = next(pair[1] for pair in BRACKETS[: self.kinds] if pair[1] != word[-1])
            found["last of another kind"] = word[:-1] + other
        return found

    def has(self, word: str) -> bool:
        waiting: list[str] = []
        closing = {pair[0]: pair[1] for pair in BRACKETS[: self.kinds]}
        for symbol in word:
            if symbol in closing:
                waiting.append(closing[symbol])
            elif not waiting or waiting.pop() != symbol:
                return False
        return bool(word) and not waiting

    def strings(self, largest: int, count: int, seed: int) -> list[str]:
        """Half of them right, to any depth; half with one bracket taken out, put in or exchanged."""
        generator = np.random.default_rng(seed)
        found: list[str] = []
        while len(found) < count:
            n = int(generator.integers(1, largest + 1))
            word = self.right(n, int(generator.integers(1 << 30)))[-1]
            found.append(self.damage(word, generator) if len(found) % 2 else word)
        return found

    def damage(self, word: str, generator: np.random.Generator) -> str:
        """A word that is not in the language and differs in one bracket."""
        while True:
            place, new = int(generator.integers(len(word))), self.symbols[int(generator.integers(2 * self.kinds))]
            start, end = word[:place], word[place + 1 :]
            other = [start + end, start + new + word[place:], start + new + end][int(generator.integers(3))]
            if other and not self.has(other):
                return other

    def counts(self, word: str) -> dict[str, Count]:
        opening = {pair[0] for pair in BRACKETS}
        depth = np.cumsum([1 if symbol in opening else -1 for symbol in word])
        return {"depth": Count(np.arange(len(word)), depth)}


def language_of(name: str) -> Language:
    """anbn, anbncn, dyck-1 to dyck-4."""
    if re.fullmatch(r"(?:[a-z]n){2,}", name) and len(set(name[::2])) == len(name) // 2:
        return Blocks(name[::2])
    if (match := re.fullmatch(r"dyck-([1-4])", name)) is not None:
        return Dyck(int(match[1]))
    raise SettingError(f"{name!r} is not a language that relmo knows: anbn, anbncn, dyck-1 to dyck-{len(BRACKETS)}")


def intervals(numbers: Iterator[int] | list[int]) -> list[tuple[int, int]]:
    """Rising numbers as stretches without a gap, each with its first and its last."""
    found: list[tuple[int, int]] = []
    for number in numbers:
        if found and found[-1][1] == number - 1:
            found[-1] = (found[-1][0], number)
        else:
            found.append((number, number))
    return found
