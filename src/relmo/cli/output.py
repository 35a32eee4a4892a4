"""Files that commands write: looked at before any work is done, so that nobody loses what was there."""

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from relmo.disk.outputs import refuse_existing
from relmo.errors import SettingError

Overwrite = Annotated[bool, Parameter(negative="", help="Replace the output if it exists already.")]


def check_plot(path: Path | None, *, overwrite: bool) -> None:
    """Raises at once where a picture, if one is asked for, could not be drawn or would replace another file."""
    from relmo.analysis.core.show import check_picture

    if path is not None:
        check_picture(path)
        refuse_existing(path, overwrite=overwrite)


def say_wrote(path: Path, *, quiet: bool = False) -> None:
    """Says on standard error which file there is now."""
    from relmo.cli.terminal import say

    if not quiet:
        say(f"wrote {path}")


def check_out(path: Path, kinds: tuple[str, ...], *, overwrite: bool) -> None:
    """Raises at once where the name of an output file says no kind that can be written, or the file exists."""
    if path.suffix.lower() not in kinds:
        raise SettingError(f"{path}: the name of this file must end in {' or '.join(kinds)}")
    refuse_existing(path, overwrite=overwrite)
