"""Recurrent cells by name: the built-in ones, those of installed packages and those that a program registers.

    @relmo.register_cell("leaky")
    class LeakyCell(Cell): ...

A package registers cells with entry points of the group `relmo.cells`. For the command line, the environment variable
RELMO_PLUGINS lists modules or files to import first. This module does not import torch.
"""

import inspect
import os
import sys
from collections.abc import Callable, Mapping
from functools import cache
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

BASIC_CELLS = ("elman", "gru", "lstm")
"""Cells of textbooks, which comparisons show by default."""
GROUP = "relmo.cells"
PLUGINS = "RELMO_PLUGINS"
UNKNOWN_CELL_ADVICE = f"; for a cell of your own, set {PLUGINS} to the file or module that registers it"
SIZES = ("self", "input_size", "hidden_size")

T = TypeVar("T", bound=type)


class CellEntry(NamedTuple):
    """Registered cell: its class, or "module:name" of it, and the defaults of its options."""

    target: str | type
    options: Mapping[str, Any]


def _built_in(target: str, **options: Any) -> CellEntry:
    return CellEntry(f"relmo.nn.recurrence.{target}", options)


CELLS: dict[str, CellEntry] = {
    "lstm": _built_in(
        "lstm:LSTMCell",
        projection=None,
        cell_clip=None,
        projection_clip=None,
        forget_bias=1.0,
        peephole=False,
        coupled=False,
        layer_norm=False,
        learned_start=False,
    ),
    "gru": _built_in("gru:GRUCell"),
    "elman": _built_in("elman:ElmanCell", nonlinearity="tanh", identity=False),
    "highway": _built_in("highway_lstm:HighwayLSTMCell"),
    "multiplicative": _built_in("multiplicative:MultiplicativeLSTMCell", variant="openai", forget_bias=1.0),
    "mogrifier": _built_in("mogrifier:MogrifierLSTMCell", rounds=5, rank=None, forget_bias=1.0),
    "rum": _built_in("rum:RUMCell", rotations=0, eta=None, forget_bias=1.0),
    "slstm": _built_in("slstm:SLSTMCell", heads=None),
    "mlstm": _built_in("mlstm:MLSTMCell", heads=None),
    "sru": _built_in("sru:SRUCell", highway_bias=0.0),
    "mingru": _built_in("mingru:MinGRUCell"),
    "minlstm": _built_in("minlstm:MinLSTMCell", forget_bias=1.0),
    "rglru": _built_in("rglru:RGLRUCell", heads=1),
}
"""Cells by name, in the order of lists. The options repeat those of the class, so that settings can be checked without
importing torch; a test compares them."""


def register_cell(name: str) -> Callable[[T], T]:
    """Return a decorator that registers a class of cells under a name, replacing one that had this name.

    The keyword-only arguments of its constructor are the options of `--cell-options`.
    """
    if not name.isidentifier():
        raise ValueError(f"{name!r} is not a valid name of a cell; use letters, digits and underscores.")

    def register(cell: T) -> T:
        base = import_module("relmo.nn.recurrence.base").Cell
        if not issubclass(cell, base):
            raise ValueError(f"{cell.__name__} cannot be registered, as it is not a subclass of relmo.Cell.")
        if missing := [method for method in ("quantities", "step") if getattr(cell, method) is getattr(base, method)]:
            raise ValueError(f"{cell.__name__} cannot be registered, as it does not define {' or '.join(missing)}.")
        parameters = inspect.signature(cell).parameters.values()
        options = {p.name: p.default for p in parameters if p.kind is p.KEYWORD_ONLY and p.name not in SIZES}
        CELLS[name] = CellEntry(cell, options)
        cell.name = name  # type: ignore[attr-defined]
        return cell

    return register


@cache
def _entry_points() -> dict[str, Any]:
    from importlib.metadata import entry_points  # slow to import, and needed for lists and unknown names only

    return {point.name: point for point in entry_points(group=GROUP)}


@cache
def load_plugins() -> None:
    """Import the modules and files of RELMO_PLUGINS, once; raise `ImportError` naming one that cannot be imported."""
    for plugin in filter(None, os.environ.get(PLUGINS, "").split(os.pathsep)):
        try:
            if not plugin.endswith(".py"):
                import_module(plugin)
                continue
            name = f"relmo_plugin_{Path(plugin).stem}"  # which hides no module of the same name
            spec = spec_from_file_location(name, plugin)
            assert spec is not None
            assert spec.loader is not None
            sys.modules[name] = module_from_spec(spec)
            spec.loader.exec_module(sys.modules[name])
        except (ImportError, OSError, SyntaxError, ValueError) as error:
            raise ImportError(f"{PLUGINS}: {plugin} cannot be imported: {error}") from error


def cell_names() -> tuple[str, ...]:
    """Return the names of all cells."""
    load_plugins()
    return tuple(dict.fromkeys([*CELLS, *_entry_points()]))


def cell_entry(name: str) -> CellEntry:
    """Return a registered cell; an entry point is imported on first use. Raises `LookupError` for unknown names."""
    if name not in CELLS:
        load_plugins()
    if name not in CELLS and name in _entry_points():
        register_cell(name)(_entry_points()[name].load())
    if name not in CELLS:
        raise LookupError(f"Unknown cell {name!r}; expected one of {', '.join(cell_names())}{UNKNOWN_CELL_ADVICE}")
    return CELLS[name]


def cells_with(option: str) -> tuple[str, ...]:
    """Return the names of the cells that have an option; this imports the cells of entry points."""
    return tuple(name for name in cell_names() if option in cell_entry(name).options)


def cell_class(name: str) -> Any:
    """Return the class of a cell; this imports torch."""
    target = cell_entry(name).target
    if isinstance(target, str):
        module, class_name = target.split(":")
        return getattr(import_module(module), class_name)
    return target
