"""What the README, the guides and the examples say is executed: `relmo` commands as printed, Python snippets."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PAGES = ["README.md", "docs/language-models.md", "docs/elmo.md", "docs/tasks.md", "docs/analyses.md"]
PAGES += ["docs/explorer.md"]
ENVIRONMENT = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT / "src")}


def blocks(page: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", (ROOT / page).read_text(), flags=re.DOTALL | re.MULTILINE)


def run(command: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(command, cwd=folder, env=ENVIRONMENT, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, f"{shlex.join(command)}\n{done.stderr}"
    return done


@pytest.mark.parametrize("page", PAGES)
def test_commands_and_snippets_of_a_page_run_in_order_as_printed(page: str, tmp_path: Path) -> None:
    (tmp_path / "src").symlink_to(ROOT / "src")
    lines = [line for block in blocks(page, "bash") for line in block.splitlines() if line.startswith("relmo ")]
    assert lines
    for line in lines:
        run([sys.executable, "-m", *shlex.split(line)], tmp_path)
    run([sys.executable, "-c", "\n".join(blocks(page, "python"))], tmp_path)


@pytest.mark.parametrize("example", sorted(path.name for path in (ROOT / "examples").glob("*.py")))
def test_example_runs_and_is_short(example: str, tmp_path: Path) -> None:
    assert run([sys.executable, str(ROOT / "examples" / example)], tmp_path).stdout
    assert len((ROOT / "examples" / example).read_text().splitlines()) <= 60


def test_the_readme_opens_with_the_two_commands() -> None:
    first = blocks("README.md", "bash")[0].splitlines()
    assert [line.split("#")[0].strip() for line in first] == ["make demo", "make test"]


def test_links_between_pages_lead_somewhere() -> None:
    for page in [*PAGES, "docs/results.md", "docs/benchmarks.md", "docs/architecture.md"]:
        for target in re.findall(r"\]\(([^)#:]+)\)", (ROOT / page).read_text()):
            assert ((ROOT / page).parent / target).exists(), f"{page} links to {target}"
