"""Python packages of models: pip installs them, and `relmo.load` finds their models by name (`store/installed.py`)."""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import relmo
from relmo.disk.outputs import new_folder
from relmo.errors import SettingError, quote
from relmo.models.saved import pack
from relmo.settings.kinds import KINDS
from relmo.store.folder import CARD, StoredPrecision, read_config
from relmo.store.installed import GROUP, bundled_models
from relmo.store.original import PairOrPath
from relmo.store.references import find_foundations

PROJECT = "pyproject.toml"
PREFIX = "relmo-"
PACKAGE_NAME = re.compile(r"[a-z0-9]+([-_.][a-z0-9]+)*", re.IGNORECASE)
VERSION = re.compile(r"\d+(\.\d+)*((a|b|rc)\d+)?(\.post\d+)?(\.dev\d+)?")
LICENSE = re.compile(r"[A-Za-z0-9.+-]+( (AND|OR|WITH) [A-Za-z0-9.+-]+)*")
TEMPLATE = Path(__file__).with_name("package.template")


class PackageName(NamedTuple):
    """Names of a package for pip, of its model, and of its Python module."""

    package: str
    model: str
    module: str


def parse_name(name: str) -> PackageName:
    """Return the names of a package; "relmo-large" has the model "large". Raises `SettingError` for unusable names."""
    if not PACKAGE_NAME.fullmatch(name):
        raise SettingError(f"{quote(name)} is not a valid name of a package; use letters, digits and hyphens.")
    package = re.sub(r"[-_.]+", "-", name).lower()
    model, module = package.removeprefix(PREFIX), package.replace("-", "_")
    if model in bundled_models():
        raise SettingError(f"{name}: relmo bundles a model named {model}; choose another name.")
    if not module.isidentifier() or module == "relmo":
        raise SettingError(f"{name}: {module} cannot be the name of a Python module; choose another name.")
    return PackageName(package, model, module)


def write_package(
    source: PairOrPath | None,
    destination: str | Path,
    name: str,
    *,
    version: str = "1.0.0",
    precision: StoredPrecision | None = None,
    shard_mb: int | None = None,
    card: str | Path | None = None,
    about: Mapping[str, Any] = MappingProxyType({}),
    overwrite: bool = False,
) -> PackageName:
    """Write a model as a project that `pip install` and `python -m build` accept; return its names.

    name        name of the package; without "relmo-" it is that of the model
    about       text, languages and license (an SPDX expression) of the model
    other       arguments are those of `pack`; by default the stored precision stays
    """
    names = parse_name(name)
    if not VERSION.fullmatch(version):
        raise SettingError(f"{quote(version)} is not a version, such as 1.0.0.")
    if (license_name := about.get("license")) and not LICENSE.fullmatch(license_name):
        raise SettingError(f"{quote(license_name)} is not an SPDX licence expression, such as CC-BY-SA-4.0.")
    ours = re.compile(rf"pyproject\.toml|{re.escape(names.module)}|build|dist")
    with new_folder(Path(destination), overwrite=overwrite, ours=ours) as folder:
        module = folder / names.module
        pack(source, module, precision=precision, shard_mb=shard_mb, card=card, about=about)
        config = read_config(module)
        foundations = find_foundations(module, config)
        (module / "__init__.py").write_text(f'"""The model {names.model}: relmo.load("{names.model}")."""\n')
        about = config.get("about", {})
        text = f", trained on {about['text']}" if "text" in about else ""
        kind = KINDS[config["kind"]].called
        dependencies = [f"relmo>={relmo.__version__}", *sorted({model.package for model in foundations} - {""})]
        fields: dict[str, Any] = {
            "package": names.package,
            "version": version,
            "description": f"{kind[0].upper()}{kind[1:]} for relmo{text}",
            "card": f"{names.module}/{CARD}",
            "dependencies": dependencies,
            "keywords": ["relmo", config["kind"], *about.get("languages", [])],
            "group": GROUP,
            "name": names.model,
            "module": names.module,
        }
        values = {key: json.dumps(value, ensure_ascii=False) for key, value in fields.items()}
        values["license"] = f"license = {json.dumps(about['license'])}\n" if about.get("license") else ""
        (folder / PROJECT).write_text(TEMPLATE.read_text(encoding="utf-8").format(**values), encoding="utf-8")
    return names
