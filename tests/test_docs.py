"""What the README, the guides and the examples say is executed: `relmo` commands as printed, Python snippets.

Each command is a test of its own. It runs in a process that is forked from a server which has imported torch already,
since importing takes longer than most of the commands do.
"""

import multiprocessing
import os
import re
import runpy
import shlex
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import many_langs
import saved_allennlp
from relmo.cli import main

ROOT = Path(__file__).resolve().parent.parent
PAGES = ["README.md", "docs/start.md", "docs/language-models.md", "docs/elmo.md", "docs/tasks.md", "docs/analyses.md"]
PAGES += ["docs/explorer.md", "docs/surprisal.md", "docs/seq2seq.md", "docs/serving.md", "docs/coming-from.md"]
EXAMPLES = sorted(path.name for path in (ROOT / "examples").glob("*.py"))
IMPORTED = [
    "relmo.runs.train_bilm",
    "relmo.runs.train_lm",
    "relmo.runs.train_task",
    "relmo.cli.terminal",
    "relmo.explorer.session",
]


INTEGRATIONS = "docs/integrations.md"
LIBRARIES = {"onnx": "onnxruntime", "hub": "huggingface_hub", "sentence-transformers": "sentence_transformers"}


def blocks(page: str, language: str) -> list[str]:
    return blocks_of((ROOT / page).read_text(), language)


def blocks_of(text: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", text, flags=re.DOTALL | re.MULTILINE)


def commands(page: str) -> list[str]:
    lines = [line for block in blocks(page, "bash") for line in block.replace("\\\n", "").splitlines()]
    return [line for line in lines if line.startswith("relmo ")]


def in_folder(folder: Path, function: Callable[..., Any], *arguments: Any) -> None:
    """Calls a function there; what it says, and a traceback, go to a file."""
    import torch

    os.chdir(folder)
    torch.set_num_threads(1)
    with (folder / "said").open("w") as said:
        os.dup2(said.fileno(), sys.stdout.fileno())
        os.dup2(said.fileno(), sys.stderr.fileno())
    function(*arguments)


def run(folder: Path, function: Callable[..., Any], *arguments: Any) -> str:
    """What a function says in a process of its own, which ends well."""
    process = multiprocessing.get_context("forkserver").Process(target=in_folder, args=(folder, function, *arguments))
    process.start()
    process.join()
    said = (folder / "said").read_text()
    assert process.exitcode == 0, f"{arguments}\n{said}"
    return said


def snippets(page: str) -> None:
    execute(page, "\n".join(blocks(page, "python")))


def execute(page: str, code: str) -> None:
    exec(compile(code, page, "exec"), {"__name__": "__main__"})  # noqa: S102


class Pages:
    """The commands and then the snippets of pages: each runs once, in a folder of the page's own, after those before
    it."""

    def __init__(self, root: Path):
        self.root = root
        self.done = dict.fromkeys(PAGES, 0)

    def run_to(self, page: str, number: int) -> None:
        folder, steps = self.root / page.replace("/", "-"), [*commands(page), None]
        if not folder.exists():
            folder.mkdir()
            (folder / "src").symlink_to(ROOT / "src")
            if page == "docs/coming-from.md":  # what its readers bring along
                weights = saved_allennlp.th(saved_allennlp.tagger())
                saved_allennlp.archive(folder / "model.tar.gz", {"weights.th": weights})
                many_langs.write(folder / "zh.model")
        for step in steps[self.done[page] : number + 1]:
            if step is None:
                run(folder, snippets, page)
            else:
                run(folder, main, shlex.split(step)[1:])
            self.done[page] += 1


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pages]:
    multiprocessing.get_context("forkserver").set_forkserver_preload(IMPORTED)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OMP_NUM_THREADS", "1")
        yield Pages(tmp_path_factory.mktemp("pages"))


@pytest.mark.parametrize(
    ("page", "number"),
    [
        pytest.param(page, number, id=f"{page}: {line[:60]}")
        for page in PAGES
        for number, line in enumerate([*commands(page), "its snippets"])
    ],
)
def test_commands_and_snippets_of_a_page_run_in_order_as_printed(pages: Pages, page: str, number: int) -> None:
    pages.run_to(page, number)


SECTIONS = dict(re.findall(r"^## (.+?)\n(.*?)(?=^## |\Z)", (ROOT / INTEGRATIONS).read_text(), re.DOTALL | re.MULTILINE))


@pytest.mark.parametrize("name", [name for name, text in SECTIONS.items() if "```python" in text])
def test_commands_and_snippets_of_an_integration_run_as_printed(name: str, pages: Pages, tmp_path: Path) -> None:
    text = SECTIONS[name]
    extra = re.search(r"pip install 'relmo\[(.+?)\]'", text)
    assert extra or "`pip install relmo` is enough" in text, "a section says what it needs"
    if extra and name != "TensorBoard's projector":
        pytest.importorskip(LIBRARIES.get(extra[1], extra[1]), reason=f"needs relmo[{extra[1]}]")
    for line in "".join(blocks_of(text, "bash")).splitlines():
        run(tmp_path, main, shlex.split(line)[1:])
    run(tmp_path, execute, INTEGRATIONS, "\n".join(blocks_of(text, "python")))


@pytest.mark.parametrize("example", EXAMPLES)
def test_example_runs_and_is_short(example: str, pages: Pages, tmp_path: Path) -> None:
    assert run(tmp_path, runpy.run_path, str(ROOT / "examples" / example), None, "__main__")
    assert len((ROOT / "examples" / example).read_text().splitlines()) <= 60


def test_every_page_has_commands() -> None:
    assert all(commands(page) for page in PAGES)


def test_the_readme_opens_with_the_two_commands() -> None:
    first = blocks("README.md", "bash")[0].splitlines()
    assert [line.split("#")[0].strip() for line in first] == ["make demo", "make test"]
