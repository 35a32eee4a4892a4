"""What was found about a network that may count: plain numbers, a table, a picture."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from relmo.analysis.core.show import Table, figure, picture, plain
from relmo.analysis.core.trace import trace
from relmo.analysis.memory.counting_training import Tried
from relmo.analysis.memory.languages import language_of
from relmo.models.lm import LanguageModel


@dataclass(frozen=True)
class CountingUnit:
    """A unit beside a count: their correlation, and by how much the unit changes when the count rises by one."""

    count: str
    state: str
    unit: int
    r: float
    slope: float


@dataclass(frozen=True)
class Counting:
    """What a network does with a language.

    accepted            stretches of n for which all right words are accepted
    first_failure       the smallest n with a right word that is rejected; None where there is none up to `tested`
    wrongly             stretches of n for which a wrong word is accepted, by what is wrong with the word
    first_wrong         the smallest such n
    right, rejected     of random words, the share of the right ones accepted and of the wrong ones rejected
    balanced            the mean of the two
    accuracy, always_no the plain accuracy, and that of rejecting everything
    counters            for each count and state the unit that follows the count best, best first
    counting_units      how many units have |r| > 0.99 with some count
    tried               the networks of which this is the best
    """

    language: str
    cell: str
    hidden: int
    limit: int
    tested: int
    threshold: float
    accepted: list[tuple[int, int]]
    first_failure: int | None
    wrongly: dict[str, list[tuple[int, int]]]
    first_wrong: int | None
    right: float
    rejected: float
    balanced: float
    accuracy: float
    always_no: float
    counters: list[CountingUnit]
    counting_units: int
    tried: list[Tried]
    model: LanguageModel = dataclasses.field(compare=False, repr=False)

    def as_dict(self) -> dict[str, Any]:
        """Plain numbers by name, without the network."""
        fields = [field.name for field in dataclasses.fields(self) if field.name != "model"]
        return {name: plain(getattr(self, name)) for name in fields}

    def _repr_html_(self) -> str:
        return counting_table([self]).html()


def stretches(found: Sequence[tuple[int, int]], most: int = 4) -> str:
    """Stretches as a reader writes them: 1-49, 52. Where there are many, the first ones and the last."""
    shown = [str(a) if a == b else f"{a}-{b}" for a, b in found]
    if len(shown) > most:
        shown = [*shown[: most - 1], f"… ({len(shown) - most} more)", shown[-1]]
    return ", ".join(shown) or "none"


def counting_table(results: Sequence[Counting]) -> Table:
    """Networks side by side."""
    rows = []
    several = len({each.cell for each in results}) < len(results)
    names = [f"{each.cell} {each.hidden}" + (f", seed {each.tried[0].seed}" if several else "") for each in results]
    for name, each in zip(names, results, strict=True):
        counter = each.counters[0]
        rows.append(
            [
                name,
                stretches(each.accepted),
                str(each.first_failure or ""),
                str(each.first_wrong or ""),
                figure(100 * each.balanced, 1),
                f"{100 * each.accuracy:.1f} ({100 * each.always_no:.1f})",
                f"{counter.state}{counter.unit}",
                figure(counter.r, 4, signed=True),
                figure(counter.slope, 4, signed=True),
                str(each.counting_units),
            ]
        )
    first = results[0]
    notes = [
        f"learnt from n = 1 to {first.limit}, asked to {first.tested}; a word is accepted if each symbol of it and its "
        f"end has p > {first.threshold:g}",
        ("" if several else "each is the best of its seeds by words just above the limit; ")
        + "accuracy: in brackets that of rejecting all",
    ]
    notes += [
        f"{name} wrongly accepts {kind}: n = {stretches(found)}"
        for name, each in zip(names, results, strict=True)
        for kind, found in each.wrongly.items()
        if found
    ]
    columns = ["network", "accepts n =", "first failure", "first wrong", "balanced", "accuracy"]
    columns += ["counter", "r", "slope", "units with |r| > .99"]
    return Table(columns, rows, first.language, notes)


def draw_counting(results: Sequence[Counting], path: str | Path) -> None:
    """For each network the sizes whose right and wrong words are accepted; and its counter over the longest word that
    was learned from and over one twice as long."""
    with picture(path, 11, 1.2 + 2.4 * len(results)) as drawn:
        for (left, right), each in zip(drawn.subplots(len(results), 2, squeeze=False), results, strict=True):
            bars = {"right words": each.accepted, **each.wrongly}
            for height, (kind, found) in enumerate(reversed(bars.items())):
                good = kind == "right words"
                left.broken_barh(
                    [(a - 0.5, b - a + 1) for a, b in found],
                    (height - 0.4, 0.8),
                    color="#56a0e6" if good else "#e67e22",
                )
            left.set_yticks(range(len(bars)), list(reversed(bars)))
            left.axvline(each.limit, color="black", linestyle=":")
            left.set_xlim(0, each.tested + 1)
            left.set_ylim(-0.6, len(bars) - 0.4)
            left.set_title(f"{each.language}, {each.cell}: n accepted (dotted: learned to here)", fontsize=10)
            language, counter = language_of(each.language), each.counters[0]
            for n, style in ((each.limit, "-"), (2 * each.limit, "--")):
                traced = trace(each.model, [language.right(n)[0]], keep=[counter.state])
                right.plot(traced.unit(counter.state, 0, counter.unit), style, label=f"n = {n}")
            right.set_title(f"{counter.state}{counter.unit}: r = {counter.r:.4f} with {counter.count}", fontsize=10)
            right.legend(fontsize=8)
        drawn.axes[-1].set_xlabel("symbol")
