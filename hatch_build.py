"""Compiles the kernels for CPUs when the package is built or installed; without a C compiler the package goes without.

A wheel with compiled files is for one kind of machine; one without is for all.
"""

import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from packaging.tags import sys_tags

KERNELS = Path("src/relmo/nn/kernels")
OPTIONS = ["-O3", "-fno-math-errno", "-ffp-contract=fast", "-fPIC", "-shared", "-fvisibility=hidden"]
SOURCES = ["lstm.c", "infer.c", "linear.c", "char_cnn.c"]
V4 = "-march=x86-64-v4"
X86 = {
    "kernels_v3": ["-march=x86-64-v3"],
    "kernels_v4": [V4],
    "kernels_v4_vnni": [V4, "-mavx512vnni"],
    "kernels_v4_bf16": [V4, "-mavx512vnni", "-mavx512bf16"],
}


class KernelsHook(BuildHookInterface):
    """Runs before a wheel is packed, an editable one too."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compiles, and has what came of it packed."""
        if self.target_name != "wheel":
            return
        built = compiled(Path(self.root) / KERNELS)
        if built:
            build_data["artifacts"] += [f"/{(KERNELS / file.name).as_posix()}" for file in built]
            build_data["pure_python"] = False
            build_data["tag"] = f"py3-none-{platform_tag()}"


def platform_tag() -> str:
    """This platform as wheels name it; the libraries do not depend on Python's version."""
    return next(tag.platform for tag in sys_tags() if not tag.platform.startswith(("manylinux", "musllinux")))


def compiled(folder: Path) -> list[Path]:
    """The libraries made of the sources, one for each kind of processor that the compiler knows; others are gone."""
    made = [] if sys.platform == "win32" else compiled_for(folder)
    for old in set(folder.glob("*.so")) - set(made):
        old.unlink()
    return made


def compiled_for(folder: Path) -> list[Path]:
    """Each library takes its place, and that of an old one, when it is done."""
    x86 = platform.machine().lower() in ("x86_64", "amd64")
    made = []
    for name, options in (X86 if x86 else {"kernels_plain": []}).items():
        target, partial = folder / f"{name}.so", folder / f"{name}.so.partial"
        sources = [str(folder / source) for source in SOURCES]
        command = [os.environ.get("CC", "cc"), *OPTIONS, *options, *sources, "-o", str(partial)]
        try:
            subprocess.run(command, check=True, capture_output=True, timeout=300)
        except (OSError, subprocess.SubprocessError):
            partial.unlink(missing_ok=True)
            continue
        partial.replace(target)
        made.append(target)
    return made
