"""Published tables and figures beside ours: one module a table, imported when it is asked for.

Each module has `reproduce(model, *, data, controls, say) -> Reproduction`. Its docstring names the paper, the method
and what the figures depend on. `say` is told, in a line, what is being done. Tables for which networks are trained have
a command of their own; `elmo_table` has a room.
"""

from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from relmo.errors import SettingError

if TYPE_CHECKING:
    from relmo.models.bilm import BiLM
    from relmo.reproduce.controls import Controls
    from relmo.reproduce.table import Reproduction

REPRODUCTIONS: dict[str, str] = {
    "perplexity": "how well held-out text is predicted, forwards and backwards",
    "pos": "parts of speech read off each layer by a linear classifier",
    "neighbours": "nearest neighbours of 'play', by word and by context",
    "wsd": "word senses by the nearest neighbour in each layer",
    "agreement": "number agreement between subject and verb, and other minimal pairs",
}
"""The name of each, which is also its module's, and what it shows."""
TRAINED: dict[str, str] = {
    "elmo-table": "six tasks with and without ELMo, which are trained for it",
    "reading-times": "how much of the time that people read a word its surprisal explains",
}
"""Those that are commands of their own."""


def reproduce(
    name: str, model: "BiLM", *, data: Path, controls: "Controls", say: Callable[[str], None] = lambda _: None
) -> "Reproduction":
    """The table of this name for a model."""
    check_name(name)
    return import_module(f"relmo.reproduce.{name}").reproduce(model, data=data, controls=controls, say=say)


def check_name(name: str) -> None:
    """Raises an error that lists the names, where this is none of them."""
    if name in TRAINED:
        raise SettingError(f"{name} is made by a command of its own: relmo reproduce {name} --help")
    if name not in REPRODUCTIONS:
        raise SettingError(f"there is nothing named '{name}' to reproduce; there is {', '.join(REPRODUCTIONS)}")
