"""What tests of commands share: a function that runs one."""

from collections.abc import Callable

import pytest

from relmo.cli import main


@pytest.fixture
def run(request: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """A function that runs the module's COMMAND with these arguments, and its ALWAYS behind them. -> its status,
    standard output and standard error."""
    before, behind = (getattr(request.module, name, "").split() for name in ("COMMAND", "ALWAYS"))

    def command(*arguments: object) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as end:
            main([*before, *map(str, arguments), *behind])
        return int(end.value.code or 0), *capsys.readouterr()

    return command
