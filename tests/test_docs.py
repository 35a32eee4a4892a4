"""Tests that run the commands, Python snippets and examples of the documentation.

Each command is a separate test. All commands run in one folder, page after page, so their outputs must not collide.
Processes are forked from a server that has imported torch, since the import takes longer than most commands.
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
import torch
from torch import nn

from relmo.cli import main
from support import many_langs, saved_allennlp

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


def read_blocks(page: str, language: str) -> list[str]:
    return find_blocks((ROOT / page).read_text(), language)


def find_blocks(text: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", text, flags=re.DOTALL | re.MULTILINE)


def find_commands(page: str) -> list[str]:
    """Return the lines `relmo …` and `echo "…" | relmo …` of the bash blocks."""
    lines = [line for block in read_blocks(page, "bash") for line in block.replace("\\\n", "").splitlines()]
    return [line for line in lines if re.match(r"(echo .+ \| )?relmo ", line)]


def call_in_folder(folder: Path, stdin: str, function: Callable[..., Any], *arguments: Any) -> None:
    """Call a function with this working folder and standard input; its output and tracebacks go to a file."""
    import torch

    os.chdir(folder)
    torch.set_num_threads(1)
    (folder / "stdin").write_text(stdin)
    with (folder / "stdin").open() as file:
        os.dup2(file.fileno(), sys.stdin.fileno())
    with (folder / "output").open("w") as file:
        os.dup2(file.fileno(), sys.stdout.fileno())
        os.dup2(file.fileno(), sys.stderr.fileno())
    function(*arguments)


def run(folder: Path, function: Callable[..., Any], *arguments: Any, stdin: str = "") -> str:
    """Return the output of a function in a separate process, which must exit with status 0."""
    args = (folder, stdin, function, *arguments)
    process = multiprocessing.get_context("forkserver").Process(target=call_in_folder, args=args)
    process.start()
    process.join()
    output = (folder / "output").read_text()
    assert process.exitcode == 0, f"{arguments}\n{output}"
    return output


def run_command(folder: Path, line: str) -> str:
    """Return the output of a command line."""
    *echo, command = line.rsplit(" | ", 1) if line.startswith("echo ") else [line]
    stdin = " ".join(shlex.split(echo[0])[1:]) + "\n" if echo else ""
    return run(folder, main, shlex.split(command, comments=True)[1:], stdin=stdin)


def run_snippets(page: str) -> None:
    execute(page, "\n".join(read_blocks(page, "python")))


def execute(page: str, code: str) -> None:
    exec(compile(code, page, "exec"), {"__name__": "__main__"})  # noqa: S102


class Pages:
    """Runner of the commands and then the snippets of each page: each runs once, in order, in one folder."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.outputs: dict[str, list[str]] = {page: [] for page in PAGES}
        (folder / "src").symlink_to(ROOT / "src")
        weights = {"weights.th": saved_allennlp.th(saved_allennlp.tagger())}  # for coming-from.md
        (folder / "stimuli.csv").write_text(read_blocks("docs/surprisal.md", "text")[0])
        saved_allennlp.archive(folder / "model.tar.gz", weights)
        many_langs.write(folder / "zh.model")
        words = ["<unk>", "<eos>", "the", "keys"]
        layers = {"encoder": nn.Embedding(4, 2), "rnn": nn.LSTM(2, 2), "decoder": nn.Linear(2, 4)}
        torch.save(nn.ModuleDict(layers).state_dict(), folder / "hidden650.pt")
        (folder / "vocab.txt").write_text("\n".join(words) + "\n")

    def run_to(self, page: str, number: int) -> str:
        outputs, steps = self.outputs[page], [*find_commands(page), None]
        for step in steps[len(outputs) : number + 1]:
            outputs.append(run(self.folder, run_snippets, page) if step is None else run_command(self.folder, step))
        return outputs[number]

    def get_output(self, page: str, start: str) -> str:
        """Return the output of the first command of the page with this prefix."""
        return self.run_to(page, next(i for i, line in enumerate(find_commands(page)) if line.startswith(start)))


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pages]:
    multiprocessing.get_context("forkserver").set_forkserver_preload(IMPORTED)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OMP_NUM_THREADS", "1")
        yield Pages(tmp_path_factory.mktemp("pages"))


@pytest.mark.parametrize(
    ("page", "number"),
    [
        pytest.param(page, number, id=f"{page}: {line[:60]}", marks=[] if page == "README.md" else pytest.mark.slow)
        for page in PAGES
        for number, line in enumerate([*find_commands(page), "its snippets"])
    ],
)
def test_commands_and_snippets_of_a_page_run_in_order_as_printed(pages: Pages, page: str, number: int) -> None:
    pages.run_to(page, number)


def parse_metric(output: str, name: str) -> float:
    """Return a metric of the table at the end of training."""
    match = re.search(rf"^{name} +([\d.,]+)$", output, re.MULTILINE)
    assert match, output
    return float(match[1].replace(",", ""))


def test_the_first_snippet_tells_two_banks_apart(pages: Pages) -> None:
    snippet = read_blocks("README.md", "python")[0]
    output = run(pages.folder, execute, "README.md", snippet)
    same_sense, different_sense = map(float, re.findall(r": (0\.\d\d)$", output, re.MULTILINE))
    assert same_sense > different_sense + 0.15


def test_the_tagger_of_the_readme_finds_names(pages: Pages) -> None:
    output = pages.get_output("README.md", "relmo train tagger")
    assert parse_metric(output, "valid_f1") > 0.8
    assert all(re.search(rf"^{label} ", output, re.MULTILINE) for label in ("PER", "LOC", "ORG"))
    tagged = dict(line.split("\t") for line in pages.get_output("README.md", 'echo "Anna').splitlines() if line)
    assert (tagged["Anna"], tagged["Berlin"], tagged["Oslo"], tagged["moved"]) == ("B-PER", "B-LOC", "B-LOC", "O")


def test_the_classifier_of_the_readme_is_scored_on_both_classes(pages: Pages) -> None:
    output = pages.get_output("README.md", "relmo train classifier")
    assert parse_metric(output, "valid_accuracy") > 0.7
    counts = re.findall(r"^(negative|positive) .* (\d+)$", output, re.MULTILINE)
    assert [label for label, count in counts if int(count) > 5] == ["negative", "positive"]
    assert pages.get_output("README.md", 'echo "The room').startswith("negative\t")


@pytest.mark.slow
def test_generated_text_has_words(pages: Pages) -> None:
    lines = [line for page in ("README.md", "docs/language-models.md") for line in find_commands(page)]
    assert any("--beams" in line for line in lines)
    for page in ("README.md", "docs/language-models.md"):
        for number, line in enumerate(find_commands(page)):
            if line.startswith("relmo generate"):
                output = pages.run_to(page, number)
                assert len(set(re.findall(r"[A-Za-z]{2,}", output))) > 4, f"{line}\n{output}"


@pytest.mark.slow
def test_semantic_roles_are_found_in_a_new_sentence(pages: Pages) -> None:
    assert "[ARG0 The postman]" in pages.get_output("docs/tasks.md", 'echo "The postman')


SECTIONS = dict(re.findall(r"^## (.+?)\n(.*?)(?=^## |\Z)", (ROOT / INTEGRATIONS).read_text(), re.DOTALL | re.MULTILINE))


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name, text in SECTIONS.items() if "```python" in text])
def test_commands_and_snippets_of_an_integration_run_as_printed(name: str, pages: Pages, tmp_path: Path) -> None:
    text = SECTIONS[name]
    extra = re.search(r"pip install 'relmo\[(.+?)\]'", text)
    assert extra or "`pip install relmo` is enough" in text, "the section does not name its extra"
    if extra and name != "TensorBoard's projector":
        pytest.importorskip(LIBRARIES.get(extra[1], extra[1]), reason=f"needs relmo[{extra[1]}]")
    for line in "".join(find_blocks(text, "bash")).splitlines():
        run(tmp_path, main, shlex.split(line)[1:])
    run(tmp_path, execute, INTEGRATIONS, "\n".join(find_blocks(text, "python")))


@pytest.mark.slow
def test_the_spacy_snippet_prints_the_figures_in_its_comments(pages: Pages, tmp_path: Path) -> None:
    pytest.importorskip("spacy", reason="needs relmo[spacy]")
    (code,) = find_blocks(SECTIONS["spaCy"], "python")
    money, river = re.findall(r"# (0\.\d\d)$", code, re.MULTILINE)
    assert re.findall(r"^\d\.\d\d$", run(tmp_path, execute, INTEGRATIONS, code), re.MULTILINE) == [money, river]
    assert float(money) > float(river)


@pytest.mark.slow
@pytest.mark.parametrize("example", EXAMPLES)
def test_example_runs_and_is_short(example: str, pages: Pages, tmp_path: Path) -> None:
    assert run(tmp_path, runpy.run_path, str(ROOT / "examples" / example), None, "__main__")
    assert len((ROOT / "examples" / example).read_text().splitlines()) <= 60


def test_every_page_has_commands() -> None:
    assert all(find_commands(page) for page in PAGES)


def test_the_readme_opens_with_the_two_commands() -> None:
    lines = read_blocks("README.md", "bash")[0].splitlines()
    assert [line.split("#")[0].strip() for line in lines] == ["make demo", "make test"]
