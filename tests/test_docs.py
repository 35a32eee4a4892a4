"""What the README, the guides and the examples say is executed: `relmo` commands as printed, Python snippets.

Each command is a test of its own. All run in one folder, page after page, as somebody would who reads them in order:
so what one writes must not be in another's way. A command runs in a process that is forked from a server which has
imported torch already, since importing takes longer than most of the commands do.
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
    """The lines with `relmo …`, and those with `echo "…" | relmo …`."""
    lines = [line for block in blocks(page, "bash") for line in block.replace("\\\n", "").splitlines()]
    return [line for line in lines if re.match(r"(echo .+ \| )?relmo ", line)]


def in_folder(folder: Path, given: str, function: Callable[..., Any], *arguments: Any) -> None:
    """Calls a function there, with standard input; what it says, and a traceback, go to a file."""
    import torch

    os.chdir(folder)
    torch.set_num_threads(1)
    (folder / "given").write_text(given)
    with (folder / "given").open() as file:
        os.dup2(file.fileno(), sys.stdin.fileno())
    with (folder / "said").open("w") as said:
        os.dup2(said.fileno(), sys.stdout.fileno())
        os.dup2(said.fileno(), sys.stderr.fileno())
    function(*arguments)


def run(folder: Path, function: Callable[..., Any], *arguments: Any, given: str = "") -> str:
    """What a function says in a process of its own, which ends well."""
    target = (folder, given, function, *arguments)
    process = multiprocessing.get_context("forkserver").Process(target=in_folder, args=target)
    process.start()
    process.join()
    said = (folder / "said").read_text()
    assert process.exitcode == 0, f"{arguments}\n{said}"
    return said


def run_command(folder: Path, line: str) -> str:
    """What a line of a page says."""
    *before, command = line.rsplit(" | ", 1) if line.startswith("echo ") else [line]
    given = " ".join(shlex.split(before[0])[1:]) + "\n" if before else ""
    return run(folder, main, shlex.split(command, comments=True)[1:], given=given)


def snippets(page: str) -> None:
    execute(page, "\n".join(blocks(page, "python")))


def execute(page: str, code: str) -> None:
    exec(compile(code, page, "exec"), {"__name__": "__main__"})  # noqa: S102


class Pages:
    """The commands and then the snippets of pages: each runs once, in one folder, after those of its page before it.
    What they said is kept."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.said: dict[str, list[str]] = {page: [] for page in PAGES}
        (folder / "src").symlink_to(ROOT / "src")
        saved = {"weights.th": saved_allennlp.th(saved_allennlp.tagger())}  # what readers of coming-from.md bring along
        saved_allennlp.archive(folder / "model.tar.gz", saved)
        many_langs.write(folder / "zh.model")

    def run_to(self, page: str, number: int) -> str:
        said, steps = self.said[page], [*commands(page), None]
        for step in steps[len(said) : number + 1]:
            said.append(run(self.folder, snippets, page) if step is None else run_command(self.folder, step))
        return said[number]

    def said_by(self, page: str, start: str) -> str:
        """What the page's first command that begins so has said."""
        return self.run_to(page, next(i for i, line in enumerate(commands(page)) if line.startswith(start)))


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


def figure(said: str, name: str) -> float:
    """A figure of the table that training ends with."""
    found = re.search(rf"^{name} +([\d.,]+)$", said, re.MULTILINE)
    assert found, said
    return float(found[1].replace(",", ""))


def test_the_first_snippet_tells_two_banks_apart(pages: Pages) -> None:
    first = blocks("README.md", "python")[0]
    alike, other = map(float, re.findall(r": (0\.\d\d)$", run(pages.folder, execute, "README.md", first), re.MULTILINE))
    assert alike > other + 0.15


def test_the_tagger_of_the_readme_finds_names(pages: Pages) -> None:
    said = pages.said_by("README.md", "relmo train tagger")
    assert figure(said, "valid_f1") > 0.8
    assert all(re.search(rf"^{label} ", said, re.MULTILINE) for label in ("PER", "LOC", "ORG"))
    tagged = dict(line.split("\t") for line in pages.said_by("README.md", 'echo "Anna').splitlines() if line)
    assert (tagged["Anna"], tagged["Berlin"], tagged["Oslo"], tagged["moved"]) == ("B-PER", "B-LOC", "B-LOC", "O")


def test_the_classifier_of_the_readme_is_scored_on_both_classes(pages: Pages) -> None:
    said = pages.said_by("README.md", "relmo train classifier")
    assert figure(said, "valid_accuracy") > 0.7
    counts = re.findall(r"^(negative|positive) .* (\d+)$", said, re.MULTILINE)
    assert [label for label, count in counts if int(count) > 5] == ["negative", "positive"]
    assert pages.said_by("README.md", 'echo "The room').startswith("negative\t")


def test_generated_text_has_words(pages: Pages) -> None:
    lines = [line for page in ("README.md", "docs/language-models.md") for line in commands(page)]
    assert any("--beams" in line for line in lines)
    for page in ("README.md", "docs/language-models.md"):
        for number, line in enumerate(commands(page)):
            if line.startswith("relmo generate"):
                said = pages.run_to(page, number)
                assert len(set(re.findall(r"[A-Za-z]{2,}", said))) > 4, f"{line}\n{said}"


def test_semantic_roles_are_found_in_a_new_sentence(pages: Pages) -> None:
    assert "[ARG0 The postman]" in pages.said_by("docs/tasks.md", 'echo "The postman')


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


def test_the_spacy_snippet_prints_the_figures_in_its_comments(pages: Pages, tmp_path: Path) -> None:
    pytest.importorskip("spacy", reason="needs relmo[spacy]")
    (code,) = blocks_of(SECTIONS["spaCy"], "python")
    money, river = re.findall(r"# (0\.\d\d)$", code, re.MULTILINE)
    assert re.findall(r"^\d\.\d\d$", run(tmp_path, execute, INTEGRATIONS, code), re.MULTILINE) == [money, river]
    assert float(money) > float(river)


@pytest.mark.parametrize("example", EXAMPLES)
def test_example_runs_and_is_short(example: str, pages: Pages, tmp_path: Path) -> None:
    assert run(tmp_path, runpy.run_path, str(ROOT / "examples" / example), None, "__main__")
    assert len((ROOT / "examples" / example).read_text().splitlines()) <= 60


def test_every_page_has_commands() -> None:
    assert all(commands(page) for page in PAGES)


def test_the_readme_opens_with_the_two_commands() -> None:
    first = blocks("README.md", "bash")[0].splitlines()
    assert [line.split("#")[0].strip() for line in first] == ["make demo", "make test"]
