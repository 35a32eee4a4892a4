"""Test suites of SyntaxGym: items in several conditions, sentences in numbered regions, and predictions about the
surprisal of regions (Hu et al. 2020, A systematic assessment of syntactic generalization in neural language models)."""

import operator
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import numpy as np

from relmo.disk.files import MAX_TEXT_BYTES, TOO_DEEP, read_bytes
from relmo.errors import CorpusError, quote

CIRCUITS = {  # by the beginnings of names; the paper leaves out the suites fgd-embed and nn-nv
    "Agreement": "number",
    "Licensing": "npi|reflexive",
    "Garden-Path Effects": "mvrr|nn-nv|npz",
    "Gross Syntactic State": "subordination",
    "Center Embedding": "center",
    "Long-Distance Dependencies": "cleft|fgd",
}
EVERY = "*"  # stands for all regions of a sentence
TOKENS = re.compile(r"\(\s*(\d+|\*)\s*;\s*%([^%]*)%\s*\)|(\d+\.?\d*|\.\d+)|(\S)")
ATTACHED = re.compile(r"[.,;:!?…)\]}%]|n['’]t\b|['’](?:s|re|ve|ll|d|m)\b")  # without a space before
BRACKETS = {"(": ")", "[": "]"}
MAX_BRACKETS = 100  # and signs in a formula
# Operators from the loosest to the tightest; the first two combine truth values. SyntaxGym's = has these tolerances.
OPERATORS: list[dict[str, Callable[..., Any]]] = [
    {"|": operator.or_},
    {"&": operator.and_},
    {"<": operator.lt, ">": operator.gt, "=": partial(np.isclose, rtol=1e-5, atol=1e-3)},
    {"+": operator.add, "-": operator.sub},
]
Lookup = Callable[[str, str], np.ndarray]
"""Values of a region, its number or EVERY, in a condition, for each item (N,)."""


class Region(msgspec.Struct):
    """Part of a sentence; it may be empty."""

    region_number: int
    content: str


class SuiteCondition(msgspec.Struct):
    """Sentence of an item."""

    condition_name: str
    regions: list[Region]

    def join(self, *, attach: bool) -> tuple[str, list[int]]:
        """Return the text and the offset of each region. `attach` omits the space before punctuation."""
        text, starts = "", []
        for region in self.regions:
            content = " ".join(region.content.split())
            text += " " if text and content and not (attach and ATTACHED.match(content)) else ""
            starts.append(len(text))
            text += content
        return text, starts


class Item(msgspec.Struct):
    """Sentences that differ in what a suite tests."""

    item_number: int
    conditions: list[SuiteCondition]


class SuitePrediction(msgspec.Struct):
    """Formula such as `[(6;%plaus%) + (7;%plaus%)] < (6;%implaus%)`, which should hold for every item."""

    formula: str
    type: Literal["formula"] = "formula"


class SuiteInfo(msgspec.Struct):
    """Name of a suite, and the statistic of the surprisals of a region's symbols that is its value."""

    name: str = ""
    metric: Literal["sum", "mean", "median", "range", "max", "min"] = "sum"


class Suite(msgspec.Struct):
    """Test suite; every item has the conditions and regions of the predictions."""

    meta: SuiteInfo
    predictions: Annotated[list[SuitePrediction], msgspec.Meta(min_length=1)]
    items: Annotated[list[Item], msgspec.Meta(min_length=1)]

    @property
    def circuit(self) -> str:
        """Group of suites that test related phenomena (Hu et al. 2020)."""
        return next((name for name, pattern in CIRCUITS.items() if re.match(pattern, self.meta.name)), "other")


def read_suite(path: Path) -> Suite:
    """Read a suite, a .json file, and check that its predictions can be evaluated for every item."""
    try:
        suite = msgspec.json.decode(read_bytes(path, 4 * MAX_TEXT_BYTES), type=Suite)
        suite.meta.name = suite.meta.name or path.stem
        for item in suite.items:
            _check_item(item, suite.predictions)
    except (ValueError, RecursionError) as error:
        reason = TOO_DEEP if isinstance(error, RecursionError) else error
        raise CorpusError(f"{path}: is not a SyntaxGym suite ({reason})") from None
    return suite


def _check_item(item: Item, predictions: list[SuitePrediction]) -> None:
    places = [(c.condition_name, str(region.region_number)) for c in item.conditions for region in c.regions]
    places += [(condition.condition_name, EVERY) for condition in item.conditions]
    if len(set(places)) < len(places) or not all(condition.join(attach=False)[0] for condition in item.conditions):
        raise ValueError(f"item {item.item_number}: a sentence is empty, or conditions or regions have the same name")

    def check(region: str, condition: str) -> np.ndarray:
        if (condition, region) not in places:
            raise ValueError(f"item {item.item_number}: there is no region {region} of condition {quote(condition)}")
        return np.zeros(1)

    for prediction in predictions:
        evaluate_formula(prediction.formula, check)


def evaluate_formula(formula: str, lookup: Lookup) -> np.ndarray:
    """Return whether a formula holds, for each item (N,); raise `ValueError` if it is malformed."""
    tokens = [("", "", "", "the end"), *reversed(TOKENS.findall(formula))]  # the next one is the last

    def error(expected: str) -> ValueError:
        return ValueError(f"formula {quote(formula)}: expected {expected} before {quote(''.join(tokens[-1]))}")

    def check(value: np.ndarray, is_truth: bool) -> np.ndarray:
        if (value.dtype == bool) != is_truth:
            raise error("a comparison" if is_truth else "a number, not a comparison,")
        return value

    def parse(level: int) -> np.ndarray:
        """Parse operators of one level, from left to right, whose operands are of the next level."""
        if level == len(OPERATORS):
            return parse_operand()
        value = parse(level + 1)
        while operation := OPERATORS[level].get(tokens[-1][3]):
            check(value, level < 2)
            tokens.pop()
            value = operation(value, check(parse(level + 1), level < 2))
        return value

    def parse_operand() -> np.ndarray:
        region, condition, number, sign = tokens[-1]
        if not (region or number or sign == "-" or sign in BRACKETS):
            raise error("a region or a number")
        tokens.pop()
        if sign in BRACKETS:
            value = parse(0)
            if tokens[-1][3] != BRACKETS[sign]:
                raise error(BRACKETS[sign])
            tokens.pop()
            return value
        if sign:
            return -check(parse_operand(), False)
        return lookup(region, condition) if region else np.array(float(number))

    if sum(token[3] == "-" or token[3] in BRACKETS for token in tokens) > MAX_BRACKETS:
        raise error(f"at most {MAX_BRACKETS} brackets and signs")
    value = check(parse(0), True)
    if len(tokens) > 1:
        raise error("an operator")
    return value
