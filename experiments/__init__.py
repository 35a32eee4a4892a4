"""Published tables beside ours, and the scripts behind the results in docs/; not part of the installed package.

    python -m experiments [NAME…]           tables for one model: perplexity, pos, neighbours, wsd, agreement
    python -m experiments elmo-table        six tasks with and without ELMo (`elmo_table/`)
    python -m experiments reading-times     what surprisal explains of reading times
    python -m experiments cells             what each recurrent cell can and cannot do (`cells/`)
    python -m experiments.NAME              further results: task_results, seq2seq_results, perplexity_in, …
    experiments/recipes/                                how the bundled models, their cards and the pictures are made

Each table has a module with `make_table(model, *, data, controls, on_message) -> PublishedTable`, whose docstring names
the paper, the method and what the scores depend on. `trainings.py` runs many trainings and resumes them.
"""

from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from relmo.errors import SettingError

if TYPE_CHECKING:
    from experiments.tables import Controls, PublishedTable
    from relmo.models.bilm import BiLM

TABLES: dict[str, str] = {
    "perplexity": "perplexity of held-out text, forward and backward",
    "pos": "part-of-speech accuracy of a linear classifier on each layer",
    "neighbours": "nearest neighbours of 'play', by word and by context",
    "wsd": "word sense disambiguation by the nearest neighbour in each layer",
    "agreement": "number agreement between subject and verb, and other minimal pairs",
}
"""Tables of one model: their names and what they show."""
TRAINED_TABLES: dict[str, str] = {
    "elmo-table": "six tasks with and without ELMo, trained for this table",
    "cells": "what each recurrent cell can and cannot do: formal tasks, language, gradients, speed",
    "reading-times": "how much of the reading time of a word its surprisal explains",
}
"""Tables that train models first and have a command of their own."""


def reproduce(
    name: str,
    model: "BiLM",
    *,
    data: Path,
    controls: "Controls",
    on_message: Callable[[str], None] = lambda _: None,
) -> "PublishedTable":
    """Make the table with this name for a model; `on_message` receives progress messages."""
    check_name(name)
    return import_module(f"experiments.{name}").make_table(model, data=data, controls=controls, on_message=on_message)


def check_name(name: str) -> None:
    """Raise a `SettingError` that lists the tables unless `name` is one of them."""
    if name in TRAINED_TABLES:
        raise SettingError(f"{name} has a command of its own: python -m experiments {name} --help")
    if name not in TABLES:
        raise SettingError(f"Unknown table '{name}'; choose from {', '.join(TABLES)}")
