"""The rules of the tree itself: which way imports point, how long things may be, and what is never used."""

import ast
import inspect
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from functools import cached_property
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import relmo

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src" / "relmo"
FILES = sorted(SOURCE.rglob("*.py"))
LONGEST_FILE, LONGEST_FUNCTION = 600, 80
FORBIDDEN_CALLS = {"eval", "exec", "__import__", "torch.load", "torch.save", "pickle.load", "pickle.loads"}
FORBIDDEN_MODULES = {"pickle", "cPickle", "dill", "shelve", "marshal", "joblib", "cloudpickle"}


def name_of(path: Path) -> str:
    return path.relative_to(SOURCE).as_posix()


def trees() -> Iterator[tuple[str, ast.Module]]:
    for path in FILES:
        yield name_of(path), ast.parse(path.read_text(encoding="utf-8"))


def public_names(module: ModuleType) -> Iterator[tuple[str, Any]]:
    """Functions and classes that a module defines for others, and their methods."""
    for name, value in vars(module).items():
        if getattr(value, "__module__", None) != module.__name__ or name.startswith("_"):
            continue
        if inspect.isfunction(value) or inspect.isclass(value):
            yield name, value
        if inspect.isclass(value):
            for method, kind in vars(value).items():
                known = inspect.isfunction(kind) or isinstance(
                    kind, property | classmethod | staticmethod | cached_property
                )
                if known and not method.startswith("_"):
                    yield f"{name}.{method}", getattr(value, method)


def test_the_source_that_is_looked_at_is_the_source_that_runs() -> None:
    assert Path(relmo.__file__).parent == SOURCE
    assert len(FILES) > 20


def test_imports_point_one_way() -> None:
    linter = Path(sys.executable).with_name("lint-imports")
    if not linter.exists():
        pytest.skip("import-linter is not installed: pip install 'relmo[dev]'")
    done = subprocess.run([linter, "--no-cache"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_a_file_reads_in_one_sitting(path: Path) -> None:
    assert len(path.read_text(encoding="utf-8").splitlines()) <= LONGEST_FILE


def test_a_function_fits_on_one_screen() -> None:
    for file, tree in trees():
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                length = (node.end_lineno or 0) - node.lineno + 1
                assert length <= LONGEST_FUNCTION, f"{file}: {node.name} has {length} lines"


def test_every_file_says_first_what_it_is() -> None:
    for file, tree in trees():
        assert ast.get_docstring(tree) or not tree.body, file


def test_every_public_name_has_a_docstring_of_its_own_or_of_what_it_overrides() -> None:
    modules = [name_of(path).removesuffix(".py").removesuffix("/__init__").replace("/", ".") for path in FILES]
    checked, bare = 0, []
    for module in modules:
        if module in ("__init__", "__main__") or _lacks_its_library(module):
            continue
        for name, value in public_names(import_module(f"relmo.{module}")):
            checked += 1
            if not inspect.getdoc(value):
                bare.append(f"relmo.{module}.{name}")
    assert checked > 200
    assert bare == []


def _lacks_its_library(module: str) -> bool:
    """Whether this is a file for another library, which says that it is not installed."""
    try:
        import_module(f"relmo.{module}")
    except ImportError as error:
        return module.startswith("compat.") and "try: pip install 'relmo[" in str(error)
    return False


def test_nothing_is_unpickled_or_evaluated() -> None:
    for file, tree in trees():
        for node in ast.walk(tree):
            if isinstance(node, ast.Call):
                assert ast.unparse(node.func) not in FORBIDDEN_CALLS, f"{file}:{node.lineno}"
            if isinstance(node, ast.Import):
                assert not {alias.name.split(".")[0] for alias in node.names} & FORBIDDEN_MODULES, file
            if isinstance(node, ast.ImportFrom):
                assert (node.module or "").split(".")[0] not in FORBIDDEN_MODULES, file


def test_there_is_no_drawer_for_odds_and_ends() -> None:
    assert not {path.stem for path in FILES} & {"utils", "util", "helpers", "misc", "common"}


def test_nothing_is_printed_outside_the_command_line_and_the_progress_of_a_run() -> None:
    for file, tree in trees():
        if not file.startswith("cli/") and file != "runs/progress.py":
            for node in ast.walk(tree):
                assert not (isinstance(node, ast.Call) and ast.unparse(node.func) == "print"), f"{file}:{node.lineno}"


def test_consoles_are_made_in_one_place_where_no_text_is_markup() -> None:
    for file, tree in trees():
        if file != "runs/progress.py":
            for node in ast.walk(tree):
                if isinstance(node, ast.Call):
                    maker = ast.unparse(node.func).split(".")[-1]
                    assert maker not in ("Console", "TextColumn", "from_markup"), f"{file}:{node.lineno}"


def test_at_the_top_stands_only_what_everybody_needs() -> None:
    assert {path.stem for path in SOURCE.glob("*.py")} == {
        "__init__",
        "__main__",
        "errors",
        "config",
        "loading",
        "registry",
    }


def test_every_room_says_at_its_door_what_it_holds() -> None:
    doors = sorted(SOURCE.rglob("__init__.py"))
    assert [name_of(door) for door in doors if not ast.get_docstring(ast.parse(door.read_text(encoding="utf-8")))] == []


def test_a_class_name_means_one_class() -> None:
    places: dict[str, list[str]] = {}
    for file, tree in trees():
        if not file.startswith("compat/"):  # other tools' names for what we have
            for node in ast.walk(tree):
                if isinstance(node, ast.ClassDef):
                    places.setdefault(node.name, []).append(file)
    assert {name: files for name, files in places.items() if len(files) > 1} == {}


def test_every_module_of_the_source_is_in_one_layer_of_the_contract() -> None:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    layers = next(contract for contract in contracts if contract["type"] == "layers")["layers"]
    named = [module.strip() for layer in layers for module in layer.replace(":", "|").split("|")]
    modules = {f"relmo.{p.stem}" for p in SOURCE.glob("[!_]*.py")} | {
        f"relmo.{p.parent.name}" for p in SOURCE.glob("*/__init__.py")
    }
    assert sorted(named) == sorted(modules)
