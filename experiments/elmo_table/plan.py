"""Trainings of each table. A network that several tables show is trained once."""

import re
import shlex
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import NamedTuple

from experiments.elmo_table.rows import FINE_TUNING, REDUCED, REDUCED_TUNING, ROWS, TaskRow
from experiments.trainings import TrainingRun
from relmo.errors import SettingError

TABLES = ("1", "2", "placement", "weights")
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")
RESERVED_NAMES = ("data", "plain", "texts")
TUNED = "-tuned"  # ends the name of a fine-tuned biLM


class Variant(NamedTuple):
    """Use of ELMo in a network: name of the biLM (empty for none), place, layers, and lambda."""

    bilm: str = ""
    at: str = ""
    layers: str = "all"
    l2: str = ""

    @property
    def name(self) -> str:
        """Part of the name of a training."""
        if not self.bilm:
            return "plain"
        return f"{self.bilm}-{self.at}-{'top' if self.layers == 'top' else f'lambda-{self.l2}'}"


PLAIN = Variant()


def default_variant(row: TaskRow, bilm: str) -> Variant:
    """Return the variant of the row in Table 1."""
    elmo = parse_flags(row.elmo)
    return Variant(bilm, elmo["--elmo-at"], l2=elmo["--elmo-l2"])


def layer_variants(row: TaskRow, bilm: str) -> dict[str, Variant]:
    """Return the columns of Table 2."""
    default = default_variant(row, bilm)
    return {
        "no ELMo": PLAIN,
        "last layer": default._replace(layers="top", l2=""),
        "all layers, lambda 1": default._replace(l2="1"),
        "all layers, lambda 0.001": default._replace(l2="0.001"),
    }


def place_variants(row: TaskRow, bilm: str) -> dict[str, Variant]:
    """Return the columns of Table 3."""
    default = default_variant(row, bilm)
    places = {"input": "input", "input and output": "both", "output": "output"}
    return {title: default._replace(at=at) for title, at in places.items()}


def weights_variant(row: TaskRow, bilm: str) -> Variant:
    """Return the variant of figure 2: ELMo at both places, so that each has layer weights."""
    return default_variant(row, bilm)._replace(at="both")


VARIANT_TABLES = {"2": layer_variants, "placement": place_variants}
"""Tables whose columns are variants of one network."""


def published_scores(table: str, row: TaskRow) -> tuple[float, ...]:
    """Return the paper's scores in the columns of a table of variants; empty if the paper does not have the row."""
    return row.table2 if table == "2" else row.table3


def has_row(table: str, row: TaskRow) -> bool:
    """Return whether a table has this row: Table 2 and Table 3 have three of them."""
    return table not in VARIANT_TABLES or bool(published_scores(table, row))


def table_variants(table: str, row: TaskRow, bilms: Sequence[str]) -> Iterator[Variant]:
    """Yield the networks that a row of a table shows."""
    if not has_row(table, row):
        return
    if table == "1":
        yield PLAIN
    for bilm in bilms:
        if table == "1":
            yield default_variant(row, bilm)
        elif table in VARIANT_TABLES:
            yield from VARIANT_TABLES[table](row, bilm).values()
        else:
            yield weights_variant(row, bilm)


class TablePlan(NamedTuple):
    """Tables and rows to make, names of biLMs, number of seeds (by default that of each row), whether all networks are
    tiny, and whether each biLM is also fine-tuned on the text of each row."""

    tables: Sequence[str] = TABLES
    rows: Sequence[str] = tuple(ROWS)
    bilms: Sequence[str] = ("small",)
    seeds: int | None = None
    reduced: bool = False
    fine_tune: bool = False

    @property
    def columns(self) -> list[str]:
        """Names of the biLMs, each followed by that of its fine-tuned version if there is one."""
        suffixes = ("", TUNED) if self.fine_tune else ("",)
        return [f"{bilm}{suffix}" for bilm in self.bilms for suffix in suffixes]

    def row_seeds(self, row: str) -> range:
        """Return the seeds of a row's networks."""
        return range(1, 1 + (self.seeds or (1 if self.reduced else ROWS[row].seeds)))

    def trainings(self) -> list[TrainingRun]:
        """Return all trainings, each once: the first seed of everything first, and of that Table 1."""
        cells = (
            (seed, row, variant)
            for seed in range(1, 1 + max(self.row_seeds(row)[-1] for row in self.rows))
            for table in self.tables
            for row in self.rows
            if seed in self.row_seeds(row)
            for variant in table_variants(table, ROWS[row], self.columns)
        )
        return [self.training(row, variant, seed) for seed, row, variant in dict.fromkeys(cells)]

    def training(self, row: str, variant: Variant, seed: int) -> TrainingRun:
        """Return the training of one network with one seed."""
        task = ROWS[row]
        flags = parse_flags(task.settings)
        if variant.bilm:
            bilm = variant.bilm if variant.bilm in self.bilms else tuning_name(row, variant.bilm)
            flags |= {"--elmo": f"{{{bilm}}}"} | parse_flags(task.elmo) | {"--elmo-at": variant.at}
            if variant.layers == "top":
                del flags["--elmo-l2"]  # a single layer has no mix
                flags["--elmo-layers"] = "top"
            else:
                flags["--elmo-l2"] = variant.l2
        if self.reduced:
            flags |= parse_flags(task.reduced) | parse_flags(REDUCED)
        files = f"{{data}}/{task.train} --valid {{data}}/{task.valid}"
        return TrainingRun(training_name(row, variant, seed), f"{task.kind} {files} {join_flags(flags)} --seed {seed}")

    def tunings(self) -> dict[tuple[str, str], TrainingRun]:
        """Return the fine-tuning of each biLM by row and name of the biLM: it is trained on the text of the row."""
        rows = [row for row in self.rows if any(has_row(table, ROWS[row]) for table in self.tables)]
        return {(row, bilm): self.tuning(row, bilm) for row in rows for bilm in self.bilms} if self.fine_tune else {}

    def tuning(self, row: str, bilm: str) -> TrainingRun:
        """Return the fine-tuning of a biLM on the text of a row."""
        flags = parse_flags(f"{FINE_TUNING} {ROWS[row].tuning} {REDUCED_TUNING if self.reduced else ''}")
        files = f"{{texts}}/{row}-train.txt --valid {{texts}}/{row}-valid.txt"
        return TrainingRun(tuning_name(row, f"{bilm}{TUNED}"), f"bilm {files} --init {{{bilm}}} {join_flags(flags)}")


def training_name(row: str, variant: Variant, seed: int) -> str:
    """Return the name of a training and of its folder."""
    return f"{row}-{variant.name}-seed-{seed}"


def tuning_name(row: str, column: str) -> str:
    """Return the name of a fine-tuned biLM and of its folder."""
    return f"{row}-{column}"


def join_flags(flags: Mapping[str, str]) -> str:
    """Return flags and arguments as they are typed."""
    return " ".join(word for flag, argument in flags.items() for word in (flag, argument) if word)


def parse_flags(text: str) -> dict[str, str]:
    """Return flags and their arguments (empty for a switch); of a repeated flag the last one counts."""
    flags: dict[str, str] = {}
    flag = ""
    for word in shlex.split(text):
        if word.startswith("--"):
            flag, word = word, ""
        flags[flag] = word
    return flags


def name_bilms(models: Sequence[str], *, fine_tune: bool = False) -> dict[str, str]:
    """Return biLM sources by column name, from NAME=SOURCE or from a source whose last part is the name; with
    `fine_tune`, the names of the fine-tuned versions are not available."""
    sources: dict[str, str] = {}
    for model in models:
        name, equals, source = model.partition("=")
        if not equals or not NAME.fullmatch(name):
            name, source = model.rstrip("/").rsplit("/", 1)[-1], model
        if not source or not NAME.fullmatch(name) or name in RESERVED_NAMES or name in sources:
            raise SettingError(f"--model {model}: needs a unique name in the table; give NAME=FOLDER")
        sources[name] = source
    if fine_tune and (taken := [name for name in sources if f"{name}{TUNED}" in sources]):
        raise SettingError(f"--model {taken[0]}{TUNED}: is the name of {taken[0]} after --fine-tune; give another")
    return sources


def select_names(flag: str, text: str | None, choices: Collection[str]) -> list[str]:
    """Return comma-separated names in the order of `choices`; all of them if `text` is None."""
    if text is None:
        return list(choices)
    names = [name.strip() for name in text.split(",") if name.strip()]
    unknown = [name for name in names if name not in choices]
    if unknown or not names:
        raise SettingError(f"{flag} {unknown[0] if unknown else text}: choose from {', '.join(choices)}")
    return [name for name in choices if name in names]
