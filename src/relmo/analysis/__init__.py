"""Analyses of recurrent networks: recorded states, interventions, memory, meaning, syntax, single units."""

import sys
import warnings
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

MOVED = {
    "core.published": "core.untrained",
    "meaning.lookup": "meaning.occurrences",
    "meaning.neighbours": "meaning.occurrences",
    "memory.fresh": "memory.gradients",
    "syntax.connections": "syntax.gate_traces",
    "syntax.decoding": "syntax.number_units",
    "units.ngram": "units.compare",
}


class MovedModules(MetaPathFinder, Loader):
    """Import modules by their former names, with a deprecation warning."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        """Find a former name of a module of this package."""
        return ModuleSpec(name, self) if name.removeprefix(f"{__name__}.") in MOVED else None

    def exec_module(self, module: ModuleType) -> None:
        """Copy the names of the module that replaces this one."""
        replacement = import_module(f"{__name__}.{MOVED[module.__name__.removeprefix(f'{__name__}.')]}")
        warnings.warn(f"{module.__name__} is now {replacement.__name__}.", DeprecationWarning, stacklevel=2)
        vars(module).update({name: value for name, value in vars(replacement).items() if not name.startswith("__")})


sys.meta_path.append(MovedModules())
