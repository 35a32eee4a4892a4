"""Which trainings each table is made of. A network that several tables show is trained once."""

import re
import shlex
from collections.abc import Collection, Iterator, Sequence
from typing import NamedTuple

from relmo.errors import SettingError
from relmo.reproduce.elmo_table.rows import REDUCED, ROWS, TaskRow
from relmo.reproduce.trainings import TrainingRun

TABLES = ("1", "2", "placement", "weights")
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")
RESERVED = ("data", "plain")


class Variant(NamedTuple):
    """What a network reads beside its other vectors: a biLM by its name, or none; where; which layers; lambda."""

    bilm: str = ""
    at: str = ""
    layers: str = "all"
    l2: str = ""

    @property
    def name(self) -> str:
        """As the names of trainings have it."""
        if not self.bilm:
            return "plain"
        return f"{self.bilm}-{self.at}-{'top' if self.layers == 'top' else f'lambda-{self.l2}'}"


PLAIN = Variant()


def own_variant(row: TaskRow, bilm: str) -> Variant:
    """ELMo as the row has it in Table 1."""
    elmo = flags(row.elmo)
    return Variant(bilm, elmo["--elmo-at"], l2=elmo["--elmo-l2"])


def layer_variants(row: TaskRow, bilm: str) -> dict[str, Variant]:
    """The columns of Table 2."""
    own = own_variant(row, bilm)
    return {
        "no ELMo": PLAIN,
        "last layer": own._replace(layers="top", l2=""),
        "all layers, lambda 1": own._replace(l2="1"),
        "all layers, lambda 0.001": own._replace(l2="0.001"),
    }


def place_variants(row: TaskRow, bilm: str) -> dict[str, Variant]:
    """The columns of Table 3."""
    own = own_variant(row, bilm)
    places = {"input": "input", "input and output": "both", "output": "output"}
    return {title: own._replace(at=at) for title, at in places.items()}


def weights_variant(row: TaskRow, bilm: str) -> Variant:
    """What figure 2 is drawn from: ELMo at both places, so that each has its weights."""
    return own_variant(row, bilm)._replace(at="both")


COMPARED = {"2": layer_variants, "placement": place_variants}
"""The tables whose columns are variants of one network."""


def published(table: str, row: TaskRow) -> tuple[float, ...]:
    """The paper's figures in the columns of such a table."""
    return row.table2 if table == "2" else row.table3


def has_row(table: str, row: TaskRow) -> bool:
    """Whether a table has this row: Table 2 and Table 3 have three of them."""
    return table not in COMPARED or bool(published(table, row))


def variants(table: str, row: TaskRow, bilms: Sequence[str]) -> Iterator[Variant]:
    """The networks that a row of a table shows."""
    if not has_row(table, row):
        return
    if table == "1":
        yield PLAIN
    for bilm in bilms:
        if table == "1":
            yield own_variant(row, bilm)
        elif table in COMPARED:
            yield from COMPARED[table](row, bilm).values()
        else:
            yield weights_variant(row, bilm)


class TablePlan(NamedTuple):
    """What was asked for: tables and rows by their names, the names of biLMs, how many seeds (as the rows have it where
    there is none), and whether everything is tiny."""

    tables: Sequence[str] = TABLES
    rows: Sequence[str] = tuple(ROWS)
    bilms: Sequence[str] = ("small",)
    seeds: int | None = None
    reduced: bool = False

    def seeds_of(self, row: str) -> range:
        """The seeds that a row's networks are trained with."""
        return range(1, 1 + (self.seeds or (1 if self.reduced else ROWS[row].seeds)))

    def trainings(self) -> list[TrainingRun]:
        """All of them, each once: the first seed of everything first, and of that Table 1."""
        cells = (
            (seed, row, variant)
            for seed in range(1, 1 + max(self.seeds_of(row)[-1] for row in self.rows))
            for table in self.tables
            for row in self.rows
            if seed in self.seeds_of(row)
            for variant in variants(table, ROWS[row], self.bilms)
        )
        return [self.training(row, variant, seed) for seed, row, variant in dict.fromkeys(cells)]

    def training(self, row: str, variant: Variant, seed: int) -> TrainingRun:
        """The training of one network with one seed."""
        task = ROWS[row]
        chosen = flags(task.settings)
        if variant.bilm:
            chosen |= {"--elmo": f"{{{variant.bilm}}}"} | flags(task.elmo) | {"--elmo-at": variant.at}
            if variant.layers == "top":
                del chosen["--elmo-l2"]  # there is no mix
                chosen["--elmo-layers"] = "top"
            else:
                chosen["--elmo-l2"] = variant.l2
        if self.reduced:
            chosen |= flags(task.reduced) | flags(REDUCED)
        files = f"{{data}}/{task.train} --valid {{data}}/{task.valid}"
        words = [word for flag, value in chosen.items() for word in (flag, value) if word]
        return TrainingRun(training_name(row, variant, seed), f"{task.kind} {files} {' '.join(words)} --seed {seed}")


def training_name(row: str, variant: Variant, seed: int) -> str:
    """The name of a training, and of its folder."""
    return f"{row}-{variant.name}-seed-{seed}"


def flags(text: str) -> dict[str, str]:
    """Flags and their values; a flag that takes none has an empty one, and of two of one name the last counts."""
    found: dict[str, str] = {}
    flag = ""
    for word in shlex.split(text):
        if word.startswith("--"):
            flag, word = word, ""
        found[flag] = word
    return found


def name_bilms(given: Sequence[str]) -> dict[str, str]:
    """biLMs by the names of their columns: NAME=SOURCE, or a source whose last part is its name."""
    named: dict[str, str] = {}
    for each in given:
        name, equals, source = each.partition("=")
        if not equals or not NAME.fullmatch(name):
            name, source = each.rstrip("/").rsplit("/", 1)[-1], each
        if not source or not NAME.fullmatch(name) or name in RESERVED or name in named:
            raise SettingError(f"--model {each}: needs a name of its own in the table; give NAME=FOLDER")
        named[name] = source
    return named


def chosen_names(flag: str, text: str | None, all_names: Collection[str]) -> list[str]:
    """Names with commas between them, each once, in the order that tables have; all where nothing is said."""
    if text is None:
        return list(all_names)
    given = [name.strip() for name in text.split(",") if name.strip()]
    if unknown := [name for name in given if name not in all_names]:
        raise SettingError(f"{flag} {unknown[0]}: there is no such one; there are {', '.join(all_names)}")
    if not given:
        raise SettingError(f"{flag}: nothing is named; there are {', '.join(all_names)}")
    return [name for name in all_names if name in given]
