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


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """A function that runs a command, which must end with `code`. -> its standard output, or error where it fails."""

    def run(*arguments: object, code: int = 0) -> str:
        capsys.readouterr()
        with pytest.raises(SystemExit) as end:
            main([str(argument) for argument in arguments])
        output, errors = capsys.readouterr()
        assert end.value.code == code, errors
        return output if code == 0 else errors

    return run
