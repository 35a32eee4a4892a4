"""Recipes of the bundled models at reduced size, from raw text to model folders that load; and their parts."""

import json
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import relmo
from experiments import perplexity_in
from experiments.recipes import other_case, pretraining_text, split_pairs
from relmo.models.bilm import BiLM
from relmo.models.lm import LanguageModel
from relmo.models.vectors import WordVectors
from relmo.nn.softmax import FullSoftmax
from relmo.text.vocabulary import SentenceVocabulary

RECIPES = Path(__file__).parents[2] / "experiments" / "recipes"


@pytest.mark.slow
def test_the_reduced_recipe_makes_folders_that_load_and_is_done_when_called_again(data: Any, tmp_path: Path) -> None:
    folder = data("lm/pretrain-4.txt").parents[1]
    for needed in ("tasks/squad/dev-v1.1.json", "tasks/coref_gum/ontogum_dev.conll", "lm/wikitext-103"):
        data(needed)
    environment = os.environ | {"RELMO": f"{sys.executable} -m relmo", "PYTHON": sys.executable}
    command = ["bash", str(RECIPES / "bundled_models.sh"), str(folder), str(tmp_path), "reduced"]
    subprocess.run(command, env=environment, check=True, capture_output=True)
    model, vectors = (relmo.load(tmp_path / "bundled" / name, device="cpu") for name in ("reduced", "words"))
    assert isinstance(model, BiLM)
    assert isinstance(vectors, WordVectors)
    assert model.embed([["the", "bank"]])[0].shape == (3, 2, 32)
    card = (tmp_path / "bundled" / "reduced" / "README.md").read_text(encoding="utf-8")
    assert "CC BY-SA" in card
    assert "SHA-256" in card
    report = json.loads((tmp_path / "text" / "report.json").read_text(encoding="utf-8"))["total"]
    left_out = report["words read"] - report["words written"]
    assert 0 < left_out < report["words read"] / 5
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.safetensors")}
    subprocess.run(command, env=environment, check=True, capture_output=True)
    assert before == {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.safetensors")}


@pytest.mark.slow
def test_the_reduced_recipe_of_examples_makes_the_models_that_ship_by_name(data: Any, tmp_path: Path) -> None:
    from relmo.store.installed import EXAMPLES_DIR

    examples = {path.parent.name for path in EXAMPLES_DIR.glob("*/config.json")}
    translate = {"english-french", "addition"}  # which another recipe makes
    folder = data("lm/war-and-peace/input.txt").parents[2]
    environment = os.environ | {"RELMO": f"{sys.executable} -m relmo", "PYTHON": sys.executable}
    command = ["bash", str(RECIPES / "example_models.sh"), str(folder), str(tmp_path / "out"), "reduced"]
    subprocess.run(command, env=environment, check=True, capture_output=True)
    made = tmp_path / "out" / "examples"
    assert {path.name for path in made.iterdir()} == examples - translate
    for name in sorted(examples - translate):
        model, shipped = relmo.load(made / name, device="cpu"), relmo.load(name, device="cpu")
        assert isinstance(model, LanguageModel)
        assert isinstance(shipped, LanguageModel)
        large = name.startswith(("prose", "code"))
        same = ("cell", "layers") if large else ("cell", "layers", "hidden", "embedding")
        for setting in same:
            assert getattr(model.settings.model, setting) == getattr(shipped.settings.model, setting), (name, setting)
        card = (made / name / "README.md").read_text(encoding="utf-8")
        assert "experiments/recipes/" in card
        assert ("relmo train lm" in card) == large
        assert len(model.generate("h" if name.startswith("hello") else "aa", limit=5)) > 2
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.safetensors")}
    subprocess.run(command, env=environment, check=True, capture_output=True)
    assert before == {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.safetensors")}


def test_a_paragraph_is_found_by_eight_shared_words_and_not_by_seven() -> None:
    held_out = np.unique(
        pretraining_text.grams(pretraining_text.words("It was the best of times, it was the worst of times."))
    )
    assert pretraining_text.has_common(
        pretraining_text.grams(pretraining_text.words("He said: THE BEST of times it was the worst!")), held_out
    )
    assert not pretraining_text.has_common(
        pretraining_text.grams(pretraining_text.words("He said the best of times it was the last")), held_out
    )
    assert not pretraining_text.has_common(pretraining_text.grams(["short"]), held_out)


def test_the_last_paragraphs_are_set_aside(tmp_path: Path) -> None:
    part = tmp_path / "part.txt"
    part.write_text("One.\nTwo.\nThree.\n", encoding="utf-8")
    assert pretraining_text.set_aside(part, 2, tmp_path / "aside.txt") == ["Two.\n", "Three.\n"]
    assert (tmp_path / "aside.txt").read_text(encoding="utf-8") == "Two.\nThree.\n"


def test_cutting_loses_no_word() -> None:
    paragraph = "One two. Three four? Five six! Seven."
    pieces = [list(pretraining_text.split_paragraph(paragraph, random.Random(seed))) for seed in range(9)]
    assert all(" ".join(lines) == paragraph for lines in pieces)
    assert len({len(lines) for lines in pieces}) > 1


def test_a_share_of_the_lines_is_in_lower_case_and_another_half_in_capitals() -> None:
    chance = random.Random(3)
    line = "Ann saw the U.S. Army in Zürich .\n"
    found = [other_case.change_case(line, chance, lower=0.2, upper=0.1) for _ in range(4000)]
    assert 0.67 < found.count(line) / 4000 < 0.73
    assert 0.17 < found.count(line.lower()) / 4000 < 0.23
    rest = [other for other in found if other not in (line, line.lower())]
    assert 0.07 < len(rest) / 4000 < 0.13
    assert {word for other in rest for word in other.split()} == set(line.split()) | set(line.upper().split())
    assert 0.45 < sum(other.count("THE") for other in rest) / len(rest) < 0.58


def test_split_pairs_keep_a_source_on_one_side_with_all_its_targets() -> None:
    from relmo.text.readers.parallel import TextToText

    pairs = [TextToText(f"s{i // 2}", [f"t{i}"]) for i in range(40)]
    train, held = split_pairs.split([*pairs, pairs[0]], 5)
    assert len(held) == 5
    assert not set(train) & set(held)
    assert all(len(targets) == 2 for targets in (train | held).values())


def test_words_outside_a_smaller_vocabulary_count_as_one() -> None:
    torch.manual_seed(1)
    softmax = FullSoftmax(4, 9)
    merged = torch.tensor([False, False, True, False, False, True, False, True, True])
    x = torch.randn(9, 4)
    probabilities = softmax.log_probs(x).exp()
    expected = [row[merged].sum() if merged[i] else row[i] for i, row in enumerate(probabilities)]
    found = perplexity_in.MergedSoftmax(softmax, merged).nll(x, torch.arange(9))
    torch.testing.assert_close(found, -torch.stack(expected).log())


def test_the_perplexity_in_a_models_own_vocabulary_is_its_own_and_in_fewer_words_is_less(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text = tmp_path / "text.txt"
    text.write_text("The bank of the river was steep .\nNobody had expected the committee to agree .\n")
    model = relmo.load("small", kinds="bilm")
    symbols = model.get_output_vocabulary().symbols
    found = {}
    for size in (len(symbols), 1000):
        vocabulary = tmp_path / f"{size}.txt"
        SentenceVocabulary(symbols[:size]).save(vocabulary)
        monkeypatch.setattr(sys, "argv", ["perplexity_in.py", "small", str(vocabulary), str(text)])
        perplexity_in.main()
        found[size] = float(capsys.readouterr().out.rsplit(": ", 1)[1])
    assert found[len(symbols)] == pytest.approx(model.evaluate(text).summary()["perplexity"], abs=0.006)
    assert found[1000] < 0.9 * found[len(symbols)]
