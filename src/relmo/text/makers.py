"""Synthetic pairs of texts with known rules: sums (Zaremba & Sutskever 2014, Learning to execute), copies, reversals,
dates; longer ones test generalization (Lake & Baroni 2018, Generalization without systematicity)."""

import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import date, timedelta
from functools import partial
from operator import add, mul, sub
from typing import NamedTuple

from relmo.errors import SettingError, quote
from relmo.settings.fields import check_integer, check_seed

MAKERS = ("arithmetic", "copy", "reverse", "dates")
OPERATORS: dict[str, Callable[[int, int], int]] = {"+": add, "-": sub, "*": mul}
ALPHABET = "abcdefghijklmnopqrstuvwxyz"
LENGTH_FACTORS = (2, 3, 5, 10)  # of longer strings
MAX_TRIES = 50  # draws per pair until a shortage of different pairs is reported
MONTHS = (
    "January", "February", "March", "April", "May", "June", "July", "August", "September", "October", "November",
    "December",
)  # fmt: skip

Pair = tuple[str, str]


@dataclass(frozen=True, kw_only=True)
class MakerOptions:
    """Kind and number of pairs."""

    size: int = 4
    """Maximum number of digits or letters in training pairs."""
    operators: str = "+"
    """Operators of arithmetic: one or more of + - *."""
    letters: int = 10
    """Number of different letters of copy and reverse, at most 26."""
    count: int = 50_000
    """Number of training pairs."""
    held_out: int = 1000
    """Number of held-out pairs of the same lengths."""
    longer: int = 100
    """Number of pairs of each greater length."""
    seed: int = 0
    """Random seed."""


class MadePairs(NamedTuple):
    """Training pairs; held-out pairs of the same lengths; longer pairs, up to ten times the length (numbers up to twice
    the digits), or for dates, days of other centuries."""

    train: list[Pair]
    held_out: list[Pair]
    longer: list[Pair]


def make_pairs(name: str, options: MakerOptions = MakerOptions()) -> MadePairs:
    """Make pairs of one of MAKERS."""
    if name not in MAKERS:
        raise SettingError(f"unknown maker {quote(name)}; choose from {', '.join(MAKERS)}")
    check_integer("size", options.size, most=1000)
    check_integer("letters", options.letters, most=len(ALPHABET))
    check_integer("count", options.count, most=100_000_000)
    check_integer("held_out", options.held_out, most=options.count)
    check_integer("longer", options.longer, most=1_000_000)
    check_seed(options.seed)
    if not options.operators or set(options.operators) - set(OPERATORS):
        raise SettingError(f"operators must be one or more of {' '.join(OPERATORS)}, not {quote(options.operators)}")
    generator, count = random.Random(options.seed), options.count + options.held_out
    if name == "dates":
        pairs = _draw_distinct(partial(_make_date, generator, 1900, 2030), count)
        longer = _draw_distinct(partial(_make_date, generator, 1600, 1900), options.longer)
    else:
        if name == "arithmetic":
            make = partial(_make_sum, generator, options.operators)
            sizes: Iterable[int] = range(options.size + 1, 2 * options.size + 1)
        else:
            make = partial(_make_string, generator, ALPHABET[: options.letters], name == "reverse")
            sizes = [times * options.size for times in LENGTH_FACTORS]
        pairs = _draw_distinct(partial(make, options.size, True), count)
        longer = [pair for size in sizes for pair in _draw_distinct(partial(make, size, False), options.longer)]
    generator.shuffle(pairs)  # short ones are drawn early, as there are few of them
    return MadePairs(pairs[options.held_out :], pairs[: options.held_out], longer)


def _draw_distinct(make: Callable[[], Pair], count: int) -> list[Pair]:
    pairs: dict[str, str] = {}
    for _ in range(MAX_TRIES * count):
        source, target = make()
        pairs[source] = target
        if len(pairs) == count:
            return list(pairs.items())
    raise SettingError(f"fewer than {count:,} different pairs of this size exist; lower count or raise size")


def _make_sum(generator: random.Random, operators: str, digits: int, shorter: bool) -> Pair:
    """Make a sum in which at least one number has the given digits; with `shorter`, both have at most as many."""
    sizes = [generator.randint(1, digits) for _ in range(2)]
    if not shorter:
        sizes[generator.randrange(2)] = digits
    a, b = (generator.randrange(10 ** (size - 1) if size > 1 else 0, 10**size) for size in sizes)
    operator = generator.choice(operators)
    return f"{a} {operator} {b} = ?", str(OPERATORS[operator](a, b))


def _make_string(generator: random.Random, letters: str, reverse: bool, length: int, shorter: bool) -> Pair:
    """Make a string of the given length; with `shorter`, of at most this length."""
    text = "".join(generator.choices(letters, k=generator.randint(1, length) if shorter else length))
    return text, text[::-1] if reverse else text


def _make_date(generator: random.Random, start: int, end: int) -> Pair:
    """Make a day from one year up to another."""
    first_day = date(start, 1, 1)
    day = first_day + timedelta(days=generator.randrange((date(end, 1, 1) - first_day).days))
    d, y, month = day.day, day.year, MONTHS[day.month - 1]
    ordinal = f"{d}{'th' if 10 < d < 14 else {1: 'st', 2: 'nd', 3: 'rd'}.get(d % 10, 'th')}"
    formats = (
        f"{d} {month} {y}",
        f"{month} {d}, {y}",
        f"{d} {month[:3]} {y}",
        f"{ordinal} of {month}, {y}",
        f"{day:%d/%m}/{y}",
        f"{d}.{day.month}.{y}",
    )
    return generator.choice(formats), f"{y:04}-{day:%m-%d}"
