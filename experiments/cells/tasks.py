"""Formal tasks that tell cells apart: state tracking, counting, stacks, copying and recall.

A network reads symbols and predicts a class wherever a target is; it trains on short sequences and is tested on longer
ones. In tasks whose target is a function of the prefix, the accuracy at position t is the accuracy of sequences of
length t.

    Delétang et al. 2023, Neural networks and the Chomsky hierarchy (parity, modular arithmetic)
    Merrill et al. 2024, The illusion of state in state-space models (words of S5)
    Suzgun et al. 2019, LSTM networks can perform dynamic counting; Weiss et al. 2018 (counting, brackets)
    Arora et al. 2024, Zoology: Measuring and improving recall in efficient language models (MQAR)
"""

from collections.abc import Callable
from itertools import permutations
from typing import NamedTuple

import numpy as np
from numpy.random import Generator

IGNORED = -1
"""Target where nothing is predicted."""
MODULUS = 5
PLUS, MINUS, TIMES, OPEN, CLOSE = range(MODULUS, MODULUS + 5)  # symbols of expressions, after the digits
FEWER, EQUAL, MORE = range(3)  # classes of counting tasks
SWAPS = 4
NUM_COPIED, NUM_KEYS, NUM_VALUES = 8, 16, 16


class Batch(NamedTuple):
    """Sequences (N, T) with a target per position, and the positions that count in tests."""

    inputs: np.ndarray
    targets: np.ndarray
    scored: np.ndarray


class Task(NamedTuple):
    """Task.

    draw          function of a generator, a number of sequences and the smallest and largest size
    short, long   sizes in training and validation, and in the test: lengths, or numbers of letters or of pairs
    layers        number of recurrent layers that the task needs at least: in recall, the first layer joins a value with
                  the key before it
    """

    title: str
    size: str
    symbols: int
    classes: int
    short: tuple[int, int]
    long: tuple[int, int]
    draw: Callable[[Generator, int, int, int], Batch]
    layers: int = 1


def score_prefixes(inputs: np.ndarray, targets: np.ndarray, low: int) -> Batch:
    """Return a batch whose targets count from the prefix of `low` symbols on."""
    scored = np.zeros(inputs.shape, bool)
    scored[:, low - 1 :] = targets[:, low - 1 :] != IGNORED
    return Batch(inputs, targets, scored)


def draw_parity(generator: Generator, count: int, low: int, high: int) -> Batch:
    """Draw bits; the target is whether the number of ones is odd."""
    bits = generator.integers(2, size=(count, high))
    return score_prefixes(bits, bits.cumsum(axis=1) % 2, low)


def draw_addition(generator: Generator, count: int, low: int, high: int) -> Batch:
    """Draw digits; the target is their sum modulo 5."""
    digits = generator.integers(MODULUS, size=(count, high))
    return score_prefixes(digits, digits.cumsum(axis=1) % MODULUS, low)


def draw_arithmetic(generator: Generator, count: int, low: int, high: int) -> Batch:
    """Draw expressions such as 2+3*4-1; the target at each digit is the value modulo 5, with the usual precedence."""
    inputs = generator.integers(MODULUS, size=(count, high))
    inputs[:, 1::2] = generator.integers(PLUS, TIMES + 1, size=inputs[:, 1::2].shape)
    targets = np.full(inputs.shape, IGNORED)
    total, term = np.zeros(count, int), inputs[:, 0]
    targets[:, 0] = term
    for t in range(2, high, 2):
        digit, operator = inputs[:, t], inputs[:, t - 1]
        is_product = operator == TIMES
        total = np.where(is_product, total, total + term)
        term = np.where(is_product, term * digit, np.where(operator == PLUS, digit, -digit)) % MODULUS
        targets[:, t] = (total + term) % MODULUS
    return score_prefixes(inputs, targets, low)


def draw_brackets(generator: Generator, count: int, low: int, high: int) -> Batch:
    """Draw fully bracketed expressions such as ((2+3)*4); the target at each closing bracket is the value of its
    expression modulo 5, and the value of the longest counts."""
    expressions = []
    for size in generator.integers(low, high + 1, size=count).tolist():
        randoms = iter(generator.integers(1 << 30, size=4 * size).tolist())
        symbols: list[int] = []
        targets: list[int] = []
        _extend_expression(size, randoms.__next__, symbols, targets)
        expressions.append((symbols, targets))
    inputs = np.zeros((count, 4 * high - 3), int)
    values, scored = np.full(inputs.shape, IGNORED), np.zeros(inputs.shape, bool)
    for row, (symbols, targets) in enumerate(expressions):
        inputs[row, : len(symbols)], values[row, : len(symbols)] = symbols, targets
        scored[row, len(symbols) - 1] = True
    return Batch(inputs, values, scored)


def _extend_expression(size: int, draw: Callable[[], int], symbols: list[int], targets: list[int]) -> int:
    """Append an expression of this many digits, and its targets; return its value."""
    if size == 1:
        symbols.append(draw() % MODULUS)
        targets.append(IGNORED)
        return symbols[-1]
    left_size, operator = 1 + draw() % (size - 1), PLUS + draw() % 3
    symbols.append(OPEN)
    targets.append(IGNORED)
    left = _extend_expression(left_size, draw, symbols, targets)
    symbols.append(operator)
    targets.append(IGNORED)
    right = _extend_expression(size - left_size, draw, symbols, targets)
    value = (left * right if operator == TIMES else left + right if operator == PLUS else left - right) % MODULUS
    symbols.append(CLOSE)
    targets.append(value)
    return value


PERMUTATIONS = np.array(list(permutations(range(5))))  # (120, 5)
_INDEX = {tuple(permutation): i for i, permutation in enumerate(PERMUTATIONS.tolist())}


def _generators() -> np.ndarray:
    """Return what the symbols of S5 do: the identity, the swaps of neighbours, and the cycle of all five."""
    rows = [list(range(5)) for _ in range(1 + SWAPS)]
    for i in range(SWAPS):
        rows[1 + i][i : i + 2] = i + 1, i
    return np.array([*rows, [1, 2, 3, 4, 0]])


GENERATORS = _generators()
_PRODUCTS = np.array([[_INDEX[tuple(p[list(g)].tolist())] for g in GENERATORS] for p in PERMUTATIONS])  # (120, 6)


def draw_s5(generator: Generator, count: int, low: int, high: int) -> Batch:
    """Draw generators of the symmetric group S5; the target is their product, one of 120 permutations."""
    inputs = generator.integers(len(GENERATORS), size=(count, high))
    targets, product = np.empty_like(inputs), np.zeros(count, int)
    for t in range(high):
        product = targets[:, t] = _PRODUCTS[product, inputs[:, t]]
    return score_prefixes(inputs, targets, low)


def draw_dyck(generator: Generator, count: int, low: int, high: int) -> Batch:
    """Draw prefixes of balanced brackets of two kinds; the target is the kind of the innermost open bracket, or 2 if
    none is open. Only positions after a closing bracket count: before, it is the bracket just read."""
    inputs, targets = np.zeros((count, high), int), np.zeros((count, high), int)
    is_opening = generator.random((count, high)) < 0.5
    kinds = generator.integers(2, size=(count, high))
    stack, depth, rows = np.full((count, high + 1), 2), np.zeros(count, int), np.arange(count)
    for t in range(high):
        opens = is_opening[:, t] | (depth == 0)
        top = stack[rows, depth]
        depth = np.where(opens, depth + 1, depth - 1)
        stack[rows[opens], depth[opens]] = kinds[opens, t]
        inputs[:, t] = np.where(opens, kinds[:, t], 2 + top)
        targets[:, t] = stack[rows, depth]
    batch = score_prefixes(inputs, targets, low)
    return batch._replace(scored=batch.scored & (inputs >= 2))


def draw_counting(generator: Generator, count: int, low: int, high: int, *, letters: int) -> Batch:
    """Draw a^n b^n …, with one letter too many at the end; from the first b on, the target is whether there are fewer,
    as many or more of the letter than of the one before it.

    The last letter counts at its numbers n - 1, n and n + 1, one for each class.
    """
    sizes = generator.integers(low, high + 1, size=count)[:, None]
    positions = np.arange(letters * high + 1)
    inputs = np.minimum(positions // sizes, letters - 1)
    number = positions - inputs * sizes + 1  # of this letter
    targets = np.where(number < sizes, FEWER, np.where(number == sizes, EQUAL, MORE))
    targets[(inputs == 0) | (number > sizes + 1)] = IGNORED
    scored = (targets != IGNORED) & (inputs == letters - 1) & (number >= sizes - 1)
    return Batch(inputs, targets, scored)


def draw_copy(generator: Generator, count: int, low: int, high: int) -> Batch:
    """Draw words; after a separator, the targets are the symbols of the word."""
    sizes = generator.integers(low, high + 1, size=count)[:, None]
    word, positions = generator.integers(NUM_COPIED, size=(count, high)), np.arange(2 * high)
    separator, blank = NUM_COPIED, NUM_COPIED + 1
    inputs = np.where(positions < sizes, np.pad(word, ((0, 0), (0, high))), blank)
    inputs[positions == sizes] = separator
    is_answer = (positions >= sizes) & (positions < 2 * sizes)
    answers = np.take_along_axis(word, np.clip(positions - sizes, 0, high - 1), axis=1)
    return Batch(inputs, np.where(is_answer, answers, IGNORED), is_answer)


def draw_recall(generator: Generator, count: int, low: int, high: int) -> Batch:
    """Draw pairs of a key and a value, then all keys in another order; the target at each is its value."""
    sizes = generator.integers(low, high + 1, size=count).tolist()
    inputs, targets = np.zeros((count, 3 * high), int), np.full((count, 3 * high), IGNORED)
    values = generator.integers(NUM_VALUES, size=(count, NUM_KEYS))  # by key
    keys = generator.permuted(np.tile(np.arange(NUM_KEYS), (count, 1)), axis=1)
    for row, size in enumerate(sizes):
        pairs = keys[row, :size]
        queries = generator.permutation(pairs)
        inputs[row, : 2 * size : 2], inputs[row, 1 : 2 * size : 2] = pairs, NUM_KEYS + values[row, pairs]
        inputs[row, 2 * size : 3 * size], targets[row, 2 * size : 3 * size] = queries, values[row, queries]
    return Batch(inputs, targets, targets != IGNORED)


def draw_anbn(generator: Generator, count: int, low: int, high: int) -> Batch:
    """Draw words of a^n b^n."""
    return draw_counting(generator, count, low, high, letters=2)


def draw_anbncn(generator: Generator, count: int, low: int, high: int) -> Batch:
    """Draw words of a^n b^n c^n."""
    return draw_counting(generator, count, low, high, letters=3)


SHORT, LONG = (1, 40), (41, 256)
TASKS: dict[str, Task] = {
    "parity": Task("parity", "length", 2, 2, SHORT, LONG, draw_parity),
    "addition": Task("addition mod 5", "length", MODULUS, MODULUS, SHORT, LONG, draw_addition),
    "arithmetic": Task("arithmetic mod 5", "length", TIMES + 1, MODULUS, SHORT, LONG, draw_arithmetic),
    "brackets": Task("… with brackets", "digits", CLOSE + 1, MODULUS, (2, 10), (11, 64), draw_brackets),
    "s5": Task("words of S5", "length", len(GENERATORS), len(PERMUTATIONS), SHORT, LONG, draw_s5),
    "dyck": Task("Dyck-2", "length", 4, 3, SHORT, LONG, draw_dyck),
    "anbn": Task("aⁿbⁿ", "n", 2, 3, (2, 19), (20, 127), draw_anbn),
    "anbncn": Task("aⁿbⁿcⁿ", "n", 3, 3, (2, 13), (14, 85), draw_anbncn),
    "copy": Task("copy", "symbols", NUM_COPIED + 2, NUM_COPIED, (1, 10), (11, 30), draw_copy),
    "recall": Task("recall (MQAR)", "pairs", NUM_KEYS + NUM_VALUES, NUM_VALUES, (1, 8), (9, 16), draw_recall, layers=2),
}
"""Tasks by name, in the order of tables."""


def measure_chance(batch: Batch) -> float:
    """Return the accuracy of the most frequent class."""
    counts = np.bincount(batch.targets[batch.scored])
    return float(counts.max() / counts.sum())
