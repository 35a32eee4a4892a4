"""Shared by all tests: one thread, no deadlines, the data folder, and markers that are set automatically."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, settings

settings.register_profile("any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any machine")  # no example fails because other work keeps the machine busy
ROOT = Path(__file__).resolve().parent.parent


@pytest.hookimpl(tryfirst=True)  # before -m selects
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark tests that use the `data` fixture; skip tests marked `gpu` without CUDA."""
    for item in items:
        if "data" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.data)
        if item.get_closest_marker("gpu") is not None and not torch.cuda.is_available():
            item.add_marker(pytest.mark.skip(reason="needs CUDA"))


@pytest.fixture
def data() -> Callable[[str], Path]:
    """A function from a path inside the data folder to the file; the test is skipped where the file is absent.

    Looked for in $RELMO_DATA, then in data/ at the root of the repository.
    """

    def find(relative: str) -> Path:
        folders = [Path(folder) for folder in (os.environ.get("RELMO_DATA"), ROOT / "data") if folder]
        for folder in folders:
            if (folder / relative).exists():
                return folder / relative
        pytest.skip(f"no {relative} in {' or '.join(map(str, folders))}; set RELMO_DATA to the data folder")

    return find


@pytest.fixture(autouse=True, scope="session")
def one_thread() -> None:
    """Matrices as small as the tests' only wait for each other on several threads."""
    torch.set_num_threads(1)
