"""Modules of `relmo.analysis` can be imported by their former names."""

from importlib import import_module

import pytest

from relmo.analysis import MOVED


@pytest.mark.parametrize("name", MOVED)
def test_former_name_warns_and_has_the_same_functions(name: str) -> None:
    replacement = import_module(f"relmo.analysis.{MOVED[name]}")
    with pytest.warns(DeprecationWarning, match=MOVED[name]):
        former = import_module(f"relmo.analysis.{name}")
    public = [member for member in vars(replacement) if not member.startswith("_")]
    assert public
    assert all(getattr(former, member) is getattr(replacement, member) for member in public)
