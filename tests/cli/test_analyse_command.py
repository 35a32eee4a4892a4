"""`relmo analyse trace` and `relmo analyse cells`: what they print, write and refuse, with small models."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from relmo.analysis.core.trace import trace
from relmo.models.bilm import BiLM
from relmo.models.lm import LanguageModel
from relmo.networks import make_language_model
from relmo.networks.bilm import BiLMNetwork
from relmo.settings.bilm import BiLMModelSettings, BiLMSettings
from relmo.settings.lm import LanguageModelSettings, LMSettings
from relmo.text.vocabulary import SentenceVocabulary, Vocabulary

Run = Callable[..., tuple[int, str, str]]
COMMAND = "analyse"
TEXT = 'He said "go (now)" and\n    went 12 times.\n' * 30
CONLLU = (
    "1\tdogs\tdog\tNOUN\t_\tNumber=Plur\t2\tnsubj\t_\t_\n2\tbark\tbark\tVERB\t_\t_\t0\troot\t_\t_\n\n"
    "1\ta\ta\tDET\t_\t_\t2\tdet\t_\t_\n2\tdog\tdog\tNOUN\t_\tNumber=Sing\t0\troot\t_\t_\n\n"
) * 20


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A language model in lm/, a bidirectional one in bilm/, and texts."""
    torch.manual_seed(0)
    vocabulary = Vocabulary([*Vocabulary.specials, *sorted(set(TEXT))])
    settings = LMSettings(model=LanguageModelSettings(hidden=6, layers=2))
    LanguageModel(make_language_model(settings.model, len(vocabulary)), vocabulary, settings).save_pretrained(
        tmp_path / "lm"
    )
    network = BiLMModelSettings(hidden=6, projection=4, filters=("1x4", "3x6"), char_dim=3, max_characters=12)
    words = SentenceVocabulary([*SentenceVocabulary.specials, "dog", "dogs", "a"])
    BiLM(BiLMNetwork(network, vocab_size=len(words)), BiLMSettings(model=network), words).save_pretrained(
        tmp_path / "bilm"
    )
    (tmp_path / "a.txt").write_text(TEXT)
    (tmp_path / "a.py").write_text("def f(x):\n    if x:\n        return 'a'  # b\n" * 9)
    (tmp_path / "a.conllu").write_text(CONLLU)
    return tmp_path


def test_a_trace_is_printed_as_symbols_and_values(run: Run, folder: Path) -> None:
    asked = [folder / "lm", folder / "a.txt", "--state", "c", "--layer", 1, "--unit", 3, "--symbols", 25]
    status, output, _ = run("trace", *asked, "--device", "cpu")
    assert status == 0
    values = trace(LanguageModel.from_pretrained(folder / "lm", device="cpu"), TEXT[:25]).unit("c", 1, 3)
    first, *lines = output.splitlines()
    assert first.startswith("c3 of layer 1, from ")
    assert lines[:3] == [f"{symbol}\t{value:.4f}" for symbol, value in zip("He·", values, strict=False)]
    assert len(lines) == 25
    status, output, _ = run("trace", *asked, "--json")
    found = json.loads(output)
    assert "".join(found["symbols"]) == TEXT[:25]
    np.testing.assert_allclose(found["values"], values, atol=1e-6)


@pytest.mark.slow
def test_a_trace_goes_to_a_file_and_a_picture(run: Run, folder: Path) -> None:
    out, plot = folder / "t.npz", folder / "t.png"
    options = ["--direction", "backward", "--out", out, "--plot", plot, "--quiet"]
    status, output, _ = run("trace", folder / "bilm", folder / "a.conllu", *options)
    assert (status, output) == (0, "")
    with np.load(out) as file:
        assert file["c"].shape == (2, 80, 12)
        assert file["h"].shape == (2, 80, 8)
        assert file["symbols"][:4].tolist() == ["dogs", "bark", "a", "dog"]
        assert file["starts"][:3].tolist() == [0, 2, 4]
    assert plot.stat().st_size > 1000


def test_cells_are_scored_against_all_kinds_of_features(
    run: Run, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "mine.py").write_text("def length(text):\n    return [c.isupper() for c in text]\n")
    (folder / "marks.tsv").write_text("3\t7\tsaid\n46\t50\tsaid\n10\t12\n")
    monkeypatch.chdir(folder)
    status, output, _ = run(
        *("cells", "lm", "a.txt", "--feature", "quotes", "--feature", "depth", "--regex", r"go=\bgo\b"),
        *("--function", "mine:length", "--marks", "marks.tsv", "--ablate", "zero", "--ablate-symbols", 300),
        *("--plot", "cells.png", "--json"),
    )
    assert status == 0
    found = json.loads(output)
    assert found["features"] == ["quotes", "depth", "go", "mine:length", "said", "marked"]
    assert found["symbols"] == len(TEXT)
    assert len(found["units"]) == 24
    assert np.shape(found["scores"]["r"]) == (24, 6)
    assert found["found"][0]["controls"]["untrained"]["r"] > 0
    assert found["ablations"][0]["classes"][0]["name"] == "all"
    assert (folder / "cells.png").stat().st_size > 1000


def test_cells_are_shown_as_tables_with_the_usual_features_of_a_file(run: Run, folder: Path) -> None:
    status, output, _ = run("cells", folder / "lm", folder / "a.py", "--ablate", "hold", "--no-control")
    assert status == 0
    lines = output.splitlines()
    assert "24 units" in lines[0]
    assert [line.split()[0] for line in lines[2:9]] == [
        *("indentation", "depth", "column", "string", "comment", "if", "if_body")
    ]
    assert any("held on" in line for line in lines)


def test_cells_of_a_bidirectional_model_are_scored_against_columns(run: Run, folder: Path) -> None:
    columns = ["--conllu-column", "upos=NOUN", "--conllu-column", "feats.Number=Plur", "--feature", "tree-depth"]
    status, output, _ = run("cells", folder / "bilm", folder / "a.conllu", *columns, "--json")
    assert status == 0
    assert json.loads(output)["features"] == ["tree_depth", "upos=NOUN", "feats.Number=Plur"]
    status, output, _ = run("cells", folder / "bilm", folder / "a.conllu", "--json", "--symbols", 40)
    assert json.loads(output)["features"] == ["upos=DET", "upos=NOUN", "upos=VERB"]
    assert json.loads(output)["symbols"] == 40


def test_features_are_listed(run: Run) -> None:
    status, output, _ = run("cells", "--list-features")
    assert status == 0
    assert "quotes" in output
    assert any(line.startswith("indentation   ") and len(line) > 30 for line in output.splitlines())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["cells", "{}/none", "{}/a.txt"], "does not exist"),
        (["cells", "{}/lm"], "relmo analyse cells MODEL FILE"),
        (["cells", "words", "{}/a.txt"], "words"),
        (["cells", "{}/lm", "{}/none.txt"], "none.txt"),
        (["cells", "{}/lm", "{}/a.txt", "--feature", "quote"], "quote"),
        (["cells", "{}/lm", "{}/a.txt", "--feature", "string"], "language"),
        (["cells", "{}/lm", "{}/a.txt", "--regex", "a"], "NAME=PATTERN"),
        (["cells", "{}/lm", "{}/a.txt", "--regex", "a=("], "'('"),
        (["cells", "{}/lm", "{}/a.txt", "--conllu-column", "upos=NOUN"], ".conllu"),
        (["cells", "{}/lm", "{}/a.txt", "--function", "no_such_module:f"], "no_such_module"),
        (["cells", "{}/lm", "{}/a.txt", "--function", "math"], "MODULE:NAME"),
        (["cells", "{}/lm", "{}/a.txt", "--function", "math:pi"], "math:pi"),
        (["cells", "{}/lm", "{}/a.txt", "--marks", "{}/a.txt"], "a.txt:1"),
        (["cells", "{}/lm", "{}/a.txt", "--plot", "a.gif"], ".png or .svg"),
        (["cells", "{}/lm", "{}/a.txt", "--symbols", "0"], "--symbols"),
        (["cells", "{}/lm", "{}/a.txt", "--feature", "url"], "url"),
        (["trace", "{}/lm", "{}/a.txt", "--state", "r"], "h, c, i, f, o, g"),
        (["trace", "{}/lm", "{}/a.txt", "--unit", "6"], "0 to 5"),
        (["trace", "{}/lm", "{}/a.txt", "--layer", "2"], "0 to 1"),
        (["trace", "{}/lm", "{}/a.txt", "--direction", "backward"], "direction"),
        (["trace", "{}/lm", "{}/a.txt", "--out", "a.csv"], ".npz or .h5"),
    ],
)
def test_a_mistake_is_one_line_and_status_2(run: Run, folder: Path, arguments: list[str], message: str) -> None:
    status, output, error = run(*(argument.format(folder) for argument in arguments))
    assert (status, output) == (2, "")
    assert message in error
    assert error.count("\n") == 1
