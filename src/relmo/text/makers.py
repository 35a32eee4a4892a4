"""Makers of pairs of texts: sums, copies, reversals, dates. What there is to learn is known, and so is what is new.

    arithmetic   "12 + 7 = ?"      -> "19"              numbers of 1 to `size` digits; +, - and *
    copy         "fbaac"           -> "fbaac"           1 to `size` letters
    reverse      "fbaac"           -> "caabf"
    dates        "4 March 1999"    -> "1999-03-04"      several ways to write a day of 1900 to 2029

`make_pairs` gives three lists: pairs to learn from; held-out ones of the same lengths, none of which is learned from;
and longer ones than are learned from, up to ten times the length (numbers up to twice the digits), or for dates, days
of other centuries.

    Zaremba & Sutskever 2014, Learning to execute;  Lake & Baroni 2018, Generalization without systematicity
"""

import random
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date, timedelta
from functools import partial
from typing import NamedTuple

from relmo.errors import SettingError, shown
from relmo.settings.arguments import check_seed, check_whole

MAKERS = ("arithmetic", "copy", "reverse", "dates")
OPERATORS: dict[str, Callable[[int, int], int]] = {
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
}
ALPHABET = "abcdefghijklmnopqrstuvwxyz"
TIMES = (2, 3, 5, 10)  # longer strings have so many times the largest length
TRIES = 50  # draws for each pair before the maker says that there are too few different ones
MONTHS = (
    "January", "February", "March", "April", "May", "June", "July", "August", "September", "October", "November",
    "December",
)  # fmt: skip

Pair = tuple[str, str]


@dataclass(frozen=True, kw_only=True)
class MakerOptions:
    """What pairs to make, and how many."""

    size: int = 4
    """The most digits of a number, or letters of a string, that are learned from."""
    operators: str = "+"
    """Of arithmetic: one or more of + - *."""
    letters: int = 10
    """Of copy and reverse: how many different letters there are, at most 26."""
    count: int = 50_000
    """How many pairs to learn from."""
    held_out: int = 1000
    """How many pairs of the same lengths to hold out."""
    longer: int = 100
    """How many pairs of each greater length."""
    seed: int = 0
    """The same seed makes the same pairs."""


class MadePairs(NamedTuple):
    """Pairs to learn from, held-out ones, longer ones."""

    train: list[Pair]
    held_out: list[Pair]
    longer: list[Pair]


def make_pairs(name: str, options: MakerOptions = MakerOptions()) -> MadePairs:
    """Pairs of one of MAKERS."""
    if name not in MAKERS:
        raise SettingError(f"there is no maker {shown(name)}; there are {', '.join(MAKERS)}")
    _check(options)
    generator, wanted = random.Random(options.seed), options.count + options.held_out
    if name == "dates":
        near, far = _days(1900, 2030), _days(1600, 1900)
        drawn = _distinct(lambda: _dated(generator, near), wanted)
        longer = _distinct(lambda: _dated(generator, far), options.longer)
    else:
        make = _sums(generator, options.operators) if name == "arithmetic" else _strings(generator, name, options)
        drawn = _distinct(partial(make, options.size, True), wanted)
        sums = range(options.size + 1, 2 * options.size + 1)
        sizes = sums if name == "arithmetic" else [times * options.size for times in TIMES]
        longer = [pair for size in sizes for pair in _distinct(partial(make, size, False), options.longer)]
    generator.shuffle(drawn)  # short ones come up early, as there are few of them
    return MadePairs(drawn[options.held_out :], drawn[: options.held_out], longer)


def _check(options: MakerOptions) -> None:
    check_whole("size", options.size, most=1000)
    check_whole("letters", options.letters, most=len(ALPHABET))
    check_whole("count", options.count, most=100_000_000)
    check_whole("held_out", options.held_out, most=options.count)
    check_whole("longer", options.longer, most=1_000_000)
    check_seed(options.seed)
    if not options.operators or set(options.operators) - set(OPERATORS):
        raise SettingError(f"operators are one or more of {' '.join(OPERATORS)}, not {shown(options.operators)}")


def _distinct(make: Callable[[], Pair], count: int) -> list[Pair]:
    """So many different pairs."""
    found: dict[str, str] = {}
    for _ in range(TRIES * count):
        if len(found) == count:
            break
        source, target = make()
        found[source] = target
    if len(found) < count:
        raise SettingError(f"there are hardly {count:,} different pairs of this size; ask for fewer, or a larger size")
    return list(found.items())


def _sums(generator: random.Random, operators: str) -> Callable[[int, bool], Pair]:
    """One or both numbers have so many digits; with `shorter`, both have at most so many."""

    def number(digits: int) -> int:
        return generator.randrange(10 ** (digits - 1) if digits > 1 else 0, 10**digits)

    def make(digits: int, shorter: bool) -> Pair:
        sizes = [generator.randint(1, digits) for _ in range(2)]
        if not shorter:
            sizes[generator.randrange(2)] = digits
        a, b = map(number, sizes)
        operator = generator.choice(operators)
        return f"{a} {operator} {b} = ?", str(OPERATORS[operator](a, b))

    return make


def _strings(generator: random.Random, name: str, options: MakerOptions) -> Callable[[int, bool], Pair]:
    """Strings of so many letters; with `shorter`, of at most so many."""
    letters = ALPHABET[: options.letters]

    def make(length: int, shorter: bool) -> Pair:
        text = "".join(generator.choices(letters, k=generator.randint(1, length) if shorter else length))
        return text, text if name == "copy" else text[::-1]

    return make


def _days(first: int, end: int) -> tuple[date, int]:
    """The first day of a year, and how many there are up to another year."""
    return date(first, 1, 1), (date(end, 1, 1) - date(first, 1, 1)).days


def _dated(generator: random.Random, days: tuple[date, int]) -> Pair:
    first, count = days
    day = first + timedelta(days=generator.randrange(count))
    d, y, month = day.day, day.year, MONTHS[day.month - 1]
    ordinal = f"{d}{'th' if 10 < d < 14 else {1: 'st', 2: 'nd', 3: 'rd'}.get(d % 10, 'th')}"
    ways = (
        f"{d} {month} {y}",
        f"{month} {d}, {y}",
        f"{d} {month[:3]} {y}",
        f"{ordinal} of {month}, {y}",
        f"{day:%d/%m}/{y}",
        f"{d}.{day.month}.{y}",
    )
    return generator.choice(ways), f"{y:04}-{day:%m-%d}"
