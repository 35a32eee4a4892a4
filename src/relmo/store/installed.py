"""Models that are installed by name: the bundled ones, and those of packages with an entry point like this one:

    [project.entry-points."relmo.models"]
    large = "relmo_large"

Its value is a Python package whose folder is the model folder. It is located without being imported.
"""

from functools import cache
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import relmo
from relmo.disk.files import read_json
from relmo.errors import ModelError

CONFIG = "config.json"
DEFAULT = "small"
GROUP = "relmo.models"
DATA = Path(relmo.__file__).with_name("data")
EXAMPLES_DIR = DATA / "examples"


class InstalledModel(NamedTuple):
    """Model with a name; `package` is empty for bundled models."""

    name: str
    folder: Path
    package: str = ""
    version: str = relmo.__version__

    @property
    def config(self) -> dict[str, Any]:
        """Contents of config.json, unchecked; empty if it cannot be read."""
        try:
            return read_json(self.folder / CONFIG, "")
        except ModelError:
            return {}

    def __str__(self) -> str:
        return f"{self.package} {self.version}" if self.package else f"relmo {self.version}"


@cache
def bundled_models() -> dict[str, InstalledModel]:
    """Return the models in relmo's own package by name, the default model first."""
    folders = [path.parent for root in (DATA, EXAMPLES_DIR) for path in sorted(root.glob(f"*/{CONFIG}"))]
    return {folder.name: InstalledModel(folder.name, folder) for folder in folders}


def packaged_models() -> list[InstalledModel]:
    """Return the models of other installed packages."""
    models = []
    for point in entry_points(group=GROUP):
        spec = find_spec(point.value)
        for folder in (spec.submodule_search_locations or []) if spec is not None else []:
            package, version = (point.dist.name, point.dist.version) if point.dist is not None else (point.value, "")
            models.append(InstalledModel(point.name, Path(folder), package, version))
            break
    return sorted(models)


def installed_models() -> list[InstalledModel]:
    """Return the bundled models and those of other packages."""
    return [*bundled_models().values(), *packaged_models()]


def installed_names(kinds: Any = None) -> list[str]:
    """Return the names of the installed models of these kinds, by default all."""
    models = installed_models()
    names = [model.name for model in models if kinds is None or model.config.get("kind") in kinds]
    return list(dict.fromkeys(names))


def get_installed(name: str) -> InstalledModel | None:
    """Return the installed model of this name, or None; raise `ModelError` if several packages have one."""
    if name in bundled_models():
        return bundled_models()[name]
    if not name.replace("-", "_").replace(".", "_").isidentifier():
        return None
    models = [model for model in packaged_models() if model.name == name]
    if len(models) > 1:
        raise ModelError(f"{name}: is in several installed packages; uninstall all but one of {_join(models)}")
    return models[0] if models else None


def find_clashes() -> list[str]:
    """Return a message for every name that several packages use."""
    groups: dict[str, list[InstalledModel]] = {}
    for model in installed_models():
        groups.setdefault(model.name, []).append(model)
    return [f"{name}: is in {_join(group)}; uninstall all but one" for name, group in groups.items() if len(group) > 1]


def _join(models: list[InstalledModel]) -> str:
    return ", ".join(map(str, models))
