"""`relmo --install-completion`"""

import os
from pathlib import Path
from typing import Literal

from cyclopts import App
from cyclopts.completion.detect import ShellDetectionError, detect_shell

from relmo.errors import SettingError

ENABLE_ZSH_COMPLETION = "autoload -Uz compinit && compinit"


def install_completion(app: App, *, shell: Literal["bash", "zsh", "fish"] | None = None) -> None:
    """Install Tab completion of commands, flags, choices and files for bash, zsh and fish.

    This writes a completion script, and a line in the startup file of the shell that loads it.

        relmo --install-completion

    Parameters
    ----------
    shell
        The shell; by default the one that runs relmo.
    """
    if shell is None:
        try:
            detected = detect_shell()
        except ShellDetectionError:
            detected = None
        if detected not in ("bash", "zsh", "fish"):
            raise SettingError("Unknown shell; add --shell bash, zsh or fish.")
        shell = detected
    print(f"wrote {app.install_completion(shell=shell)}")
    if shell == "zsh":
        startup_file = Path.home() / ".zshrc"
        text = startup_file.read_text(encoding="utf-8", errors="replace") if startup_file.exists() else ""
        if "compinit" not in text and "ZSH" not in os.environ:  # oh-my-zsh sets ZSH and enables completion
            with startup_file.open("a", encoding="utf-8") as file:
                file.write(f"{ENABLE_ZSH_COMPLETION}\n")
            print(f"added to {startup_file}: {ENABLE_ZSH_COMPLETION}")
    print(f"To use it, open a new terminal, or type: exec {shell}")
