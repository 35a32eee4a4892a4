"""`python -m experiments`: what it lists, prints and refuses, with a small model and small data."""

import json
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from experiments import TABLES, TRAINED_TABLES
from experiments.perplexity import SETS
from experiments.tables import format_number
from relmo import loading
from relmo.cli.terminal import print_warnings
from relmo.errors import ModelError
from relmo.models.bilm import BiLM
from relmo.models.lm import LanguageModel
from relmo.models.vectors import WordVectors
from relmo.networks.bilm import BiLMNetwork
from relmo.networks.ngram import NGramLM
from relmo.settings.bilm import BiLMModelSettings, BiLMSettings
from relmo.settings.lm import LanguageModelSettings, LMSettings, TextSettings
from relmo.text.vocabulary import SentenceVocabulary, Vocabulary
from support.small_models import language_model

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A biLM in model/, word vectors in words/, and texts in data/."""
    torch.manual_seed(0)
    network = BiLMModelSettings(hidden=12, projection=6, filters=("1x4", "3x6"), char_dim=3, max_characters=12)
    vocabulary = SentenceVocabulary([*SentenceVocabulary.specials, "the", "sea", "."])
    model = BiLM(BiLMNetwork(network, vocab_size=len(vocabulary)), BiLMSettings(model=network), vocabulary)
    model.save_pretrained(tmp_path / "model")
    WordVectors(Vocabulary(["<unk>", "</s>", "sea"]), np.eye(3, dtype=np.float32)).save_pretrained(tmp_path / "words")
    for file in SETS.values():
        (tmp_path / "data" / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "data" / file).write_text("the sea , the extraordinarily wide sea .\n" * 3)
    return tmp_path


def options(folder: Path) -> list[object]:
    return ["--model", folder / "model", "--vectors", folder / "words", "--data", folder / "data", "--device", "cpu"]


def test_without_a_name_all_names_are_listed_with_what_they_show(run: Run) -> None:
    status, output, _ = run()
    assert status == 0
    for name, text in (TABLES | TRAINED_TABLES).items():
        assert any(line.startswith(f"{name} ") and line.endswith(text) for line in output.splitlines())
    assert json.loads(run("--json")[1]) == TABLES | TRAINED_TABLES


def test_the_help_has_an_example(run: Run) -> None:
    assert "python -m experiments perplexity --model models/mine" in run("--help")[1]


def test_a_table_shows_our_figures_and_the_published_ones_and_progress_apart(run: Run, folder: Path) -> None:
    status, output, errors = run("perplexity", *options(folder))
    assert status == 0
    header = next(line for line in output.splitlines() if "forward" in line)
    assert "published average" in header
    assert "published forward" not in header
    ours = next(line for line in output.splitlines() if line.startswith("pretrain-valid  "))
    assert len(ours.split()) == 8
    assert "39.70" in next(line for line in output.splitlines() if line.startswith("biLM of the paper"))
    assert "- tokens are words" in output
    assert "perplexity: WikiText-2 valid, 24 words" in errors


def test_json_holds_the_same_figures_and_nothing_else_is_printed(run: Run, folder: Path) -> None:
    status, output, errors = run("perplexity", *options(folder), "--json", "--quiet")
    assert (status, errors) == (0, "")
    (table,) = json.loads(output)["reproductions"]
    rows = {row["name"]: row["ours"] for row in table["rows"]}
    direct = loading.load(folder / "model", device="cpu")
    assert isinstance(direct, BiLM)
    score = direct.evaluate(str(folder / "data" / SETS["pretrain-valid"]))
    assert rows["pretrain-valid"]["joint"] == pytest.approx(score.perplexity, rel=1e-6)


def test_the_seed_is_that_of_the_untrained_network_alone(run: Run, folder: Path) -> None:
    tables = [
        json.loads(run("perplexity", *options(folder), "--json", "--quiet", "--seed", seed)[1])["reproductions"][0]
        for seed in (0, 0, 1)
    ]
    rows = [{row["name"]: row["ours"] for row in table["rows"]} for table in tables]
    assert rows[0] == rows[1]
    assert {name for name in rows[0] if rows[0][name] != rows[2][name]} == {f"{s}, untrained network" for s in SETS}


def test_an_unknown_name_is_refused_before_anything_is_loaded(run: Run) -> None:
    status, output, errors = run("perplexity", "perplex", "--model", "nowhere")
    assert (status, output) == (2, "")
    assert "'perplex'" in errors
    assert "perplexity, pos," in errors


def test_a_table_with_a_command_of_its_own_is_not_made_beside_others(run: Run) -> None:
    status, _, errors = run("pos", "elmo-table", "--model", "nowhere")
    assert status == 2
    assert "python -m experiments elmo-table --help" in errors


def test_a_number_out_of_bounds_is_refused(run: Run) -> None:
    status, output, errors = run("pos", "--seed=-1")
    assert (status, output) == (2, "")
    assert "--seed" in errors


def test_missing_data_is_one_line_that_says_what_is_looked_for_and_where(run: Run, folder: Path) -> None:
    status, output, errors = run("pos", *options(folder), "--quiet")
    assert (status, output) == (2, "")
    assert errors.count("\n") == 1
    assert f"the English Web Treebank: {folder / 'data/tasks/pos_ud/en_ewt'}" in errors


def test_a_model_or_vectors_of_another_kind_are_refused(run: Run, folder: Path) -> None:
    status, _, errors = run("perplexity", "--model", folder / "words", "--data", folder / "data")
    assert status == 2
    assert "skipgram" in errors
    status, _, errors = run("perplexity", "--model", folder / "model", "--vectors", folder / "model")
    assert status == 2
    assert "skipgram" in errors


def test_without_bundled_vectors_the_rest_is_done(run: Run, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = loading.load

    def load(source: str, **more: str) -> object:
        if source == "words":
            raise ModelError("words: not there")
        return real(source, **more)

    monkeypatch.setattr(loading, "load", load)
    status, _, errors = run("perplexity", "--model", folder / "model", "--data", folder / "data")
    assert status == 0
    assert "words: not there" in errors
    status, _, errors = run("perplexity", "--model", folder / "model", "--vectors", "words")
    assert status == 2


def test_warnings_come_as_plain_lines_each_once() -> None:
    said: list[str] = []
    with print_warnings(said.append):
        for words in (3, 3, 4):
            warnings.warn(f"{words} words were cut", stacklevel=1)
    assert said == ["note: 3 words were cut", "note: 4 words were cut"]


@pytest.mark.parametrize(
    ("value", "shown"), [(None, ""), (3, "3"), (20000, "20,000"), (97.3, "97.30"), (1683.5, "1,684"), (-0.5, "-0.50")]
)
def test_figures_are_shown_for_people(value: float | None, shown: str) -> None:
    assert format_number(value) == shown


def test_reading_times_takes_any_language_model_and_needs_no_training(run: Run, tmp_path: Path) -> None:
    model = LanguageModel(
        NGramLM.fit(np.array([1, 2, 3, 2, 1]), vocab_size=4, order=2),
        Vocabulary(["<unk>", "</s>", "a", "b"]),
        LMSettings(model=LanguageModelSettings(cell="ngram", order=2), text=TextSettings(unit="word")),
    )
    model.save_pretrained(tmp_path / "model")
    header = "story\tposition\tword\treaders\tgeometric_mean_ms\tgoogle_count\tgpt3_surprisal_bits\n"
    rows = [f"1\t{i}\t{'ab' * (i % 4)}c{'.' * (i % 9 == 8)}\t9\t{300 + i % 7}\t{i}\t{i % 5}\n" for i in range(200)]
    (tmp_path / "tasks" / "reading_times").mkdir(parents=True)
    (tmp_path / "tasks" / "reading_times" / "natural_stories_1-5.tsv").write_text(header + "".join(rows))
    options = ["--data", tmp_path, "--device", "cpu", "--no-train", "--model", tmp_path / "model"]
    status, output, _ = run("reading-times", *options, "--json", "--quiet")
    assert status == 0
    (table,) = json.loads(output)["reproductions"]
    assert [row["name"] for row in table["rows"]] == [str(tmp_path / "model"), "GPT-3 (davinci, published)"]
    for rate, message in (("fast", "learning rates"), ("0.1", "neural network")):
        status, _, errors = run("reading-times", *options, "--adapt", rate)
        assert status == 2
        assert message in errors
    language_model().save_pretrained(tmp_path / "neural")
    options = [*options[:-1], tmp_path / "neural"]
    status, output, _ = run("reading-times", *options, "--adapt", "0.1,0.2")
    assert status == 0
    assert f"{tmp_path / 'neural'}, adapted 0.2 - {tmp_path / 'neural'}: " in output
    status, _, errors = run("reading-times", *options[2:], "--data", tmp_path / "none")
    assert status == 2
    assert "Natural Stories: " in errors
    status, _, errors = run("reading-times", *options[2:], "--data", tmp_path, "--corpus", "ucl")
    assert status == 2
    assert "UCL sentences: " in errors
    assert "--plot" in run("reading-times", "--corpus", "ucl", "--plot", tmp_path / "a.png")[2]
    assert "python -m experiments reading-times --help" in run("pos", "reading-times", "--data", tmp_path)[2]
