"""`relmo --install-completion`: the Tab key completes relmo's verbs, flags, choices and files."""

import os
from pathlib import Path
from typing import Literal

from cyclopts import App
from cyclopts.completion.detect import ShellDetectionError, detect_shell

from relmo.errors import SettingError

START = "autoload -Uz compinit && compinit"  # what makes zsh complete anything at all
RESTART = {"bash": "exec bash", "zsh": "exec zsh", "fish": "exec fish"}


def install_completion(app: App, *, shell: Literal["bash", "zsh", "fish"] | None = None) -> None:
    """Let the Tab key complete relmo's verbs, flags and files, in bash, zsh and fish.

    It writes a script for the shell, and a line in the shell's startup file that reads it.

        relmo --install-completion

    Parameters
    ----------
    shell
        The shell to do it for. The default is the one that runs relmo.
    """
    chosen = shell or _running_shell()
    script = app.install_completion(shell=chosen)
    print(f"wrote {script}")
    if chosen == "zsh":
        _start_completion(Path.home() / ".zshrc")
    print(f"to use it, open a new terminal, or type: {RESTART[chosen]}")


def _running_shell() -> Literal["bash", "zsh", "fish"]:
    """The shell that runs relmo."""
    try:
        found = detect_shell()
    except ShellDetectionError:
        found = None
    if found not in ("bash", "zsh", "fish"):
        raise SettingError("relmo cannot tell which shell this is; add --shell bash, zsh or fish")
    return found


def _start_completion(startup: Path) -> None:
    """Adds a line to zsh's startup file that turns completion on, where neither it nor oh-my-zsh does."""
    text = startup.read_text(encoding="utf-8", errors="replace") if startup.exists() else ""
    if "compinit" in text or "ZSH" in os.environ:
        return
    with startup.open("a", encoding="utf-8") as file:
        file.write(f"{START}\n")
    print(f"added to {startup}: {START}")
