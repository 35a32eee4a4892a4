"""Fixture that runs `python -m experiments`."""

from collections.abc import Callable

import pytest


@pytest.fixture
def run(request: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """A function that runs the module's COMMAND with these arguments and returns its exit status, standard output and
    standard error."""
    command = getattr(request.module, "COMMAND", "").split()

    from experiments.__main__ import main

    def run_command(*arguments: object) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as end:
            main([*command, *map(str, arguments)])
        return int(end.value.code or 0), *capsys.readouterr()

    return run_command
