"""Training word vectors: they mean something, a run that was stopped ends as any other, mistakes are told early."""

import json
import signal
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import relmo
from relmo.errors import CorpusError, SettingError
from relmo.models.vectors import WordVectors
from relmo.runs.progress import Reporter
from relmo.runs.run import TrainingInterrupted, read_metrics
from relmo.runs.train_skipgram import train_skipgram
from relmo.settings.lm import SkipgramModelSettings, SkipgramSettings, SkipgramTextSettings, SkipgramTrainSettings
from relmo.training.loop import Plan

SIDE = 4
SMALL = SkipgramSettings(
    model=SkipgramModelSettings(dimensions=16, window=3, subsample=1.0),
    train=SkipgramTrainSettings(epochs=4, batch=256, log_every=10, threads=1),
)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Lines about things of a kind and a colour: `thing21` stands among words of kind 2 and words of colour 1."""
    generator = np.random.default_rng(0)
    lines = []
    for _ in range(3000):
        i, j = generator.integers(SIDE, size=2)
        around = [f"kind{i}{generator.integers(3)}" for _ in range(2)] + [
            f"colour{j}{generator.integers(3)}" for _ in range(2)
        ]
        generator.shuffle(around)
        lines.append(" ".join([*around[:2], f"Thing{i}{j}", *around[2:]]))
    path = tmp_path_factory.mktemp("corpus") / "things.txt"
    path.write_text("\n".join(lines) + "\n")
    return str(path)


@pytest.fixture(scope="module")
def trained(corpus: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("trained") / "vectors"
    results = train_skipgram([corpus], SMALL, out)
    assert results == {"trained_on": ["things.txt"], "train_words": 15_000, "words": SIDE**2 + 2 * 3 * SIDE}
    return out


def test_neighbours_share_what_the_words_stand_for(trained: Path) -> None:
    vectors = WordVectors.from_pretrained(trained)
    for kind, i in product(("kind", "colour"), range(SIDE)):
        alike = {f"{kind}{i}{k}" for k in range(3)}
        nearest = [word for word, _ in vectors.most_similar(f"{kind}{i}0", topn=40) if not word.startswith("thing")][:2]
        assert {f"{kind}{i}0", *nearest} == alike


def test_a_thing_is_to_another_colour_of_its_kind_as_any_other_kind_is(trained: Path) -> None:
    vectors = WordVectors.from_pretrained(trained)
    right = total = 0
    for i, j, k, m in product(range(SIDE), repeat=4):
        if i != k and j != m:
            total += 1
            best = vectors.most_similar([f"thing{i}{m}", f"thing{k}{j}"], [f"thing{i}{j}"], topn=1)
            right += best[0][0] == f"thing{k}{m}"
    assert right / total > 0.9, "chance is below 0.1"


def test_the_folder_holds_the_vectors_in_both_formats_and_nothing_of_the_run(trained: Path) -> None:
    names = {
        "config.json",
        "model.safetensors",
        "vocabulary.txt",
        "vectors.txt",
        "README.md",
        "settings.toml",
        "metrics.jsonl",
    }
    assert {path.name for path in trained.iterdir()} == names
    vectors, text = relmo.load(trained), WordVectors.read_word2vec(trained / "vectors.txt")
    assert isinstance(vectors, WordVectors)
    assert set(text.vocabulary.symbols) == set(vectors.vocabulary.symbols)
    assert all(np.array_equal(text[w], vectors[w]) for w in text.vocabulary.symbols[2:])
    assert not vectors.matrix[:2].any()
    assert json.loads((trained / "config.json").read_text())["kind"] == "skipgram"


class Stopping(Reporter):
    """Stops the run at a step: by Ctrl-C, or by an error as sudden as a kill."""

    def __init__(self, at: int, error: type[Exception] | None):
        self.at, self.error = at, error

    def on_log(self, record: dict[str, Any]) -> None:
        if record["step"] == self.at:
            if self.error is not None:
                raise self.error
            signal.raise_signal(signal.SIGINT)


@pytest.mark.parametrize(("error", "every"), [(None, 60.0), (MemoryError, 0.0), (MemoryError, 60.0)])
def test_a_stopped_run_goes_on_to_the_same_vectors(
    corpus: str, trained: Path, tmp_path: Path, error: type[Exception] | None, every: float
) -> None:
    settings = replace(SMALL, train=replace(SMALL.train, checkpoint_every=every))
    with pytest.raises(error or TrainingInterrupted):
        train_skipgram([corpus], settings, tmp_path / "v", reporter=Stopping(90, error))
    train_skipgram([corpus], settings, tmp_path / "v", resume=True)
    found, expected = WordVectors.from_pretrained(tmp_path / "v"), WordVectors.from_pretrained(trained)
    assert np.array_equal(found.matrix, expected.matrix)


def test_validation_falls_and_is_told(corpus: str, tmp_path: Path) -> None:
    settings = replace(SMALL, text=SkipgramTextSettings(valid_fraction=0.1))
    results = train_skipgram([corpus], settings, tmp_path / "v")
    losses = [record["valid"] for record in read_metrics(tmp_path / "v/metrics.jsonl") if "valid" in record]
    assert len(losses) == 4
    assert losses == sorted(losses, reverse=True)
    assert results["valid_loss"] == losses[-1] < (1 + 5) * np.log(2) - 0.5, "what vectors of zeros would get"


def test_a_dry_run_tells_the_plan_and_leaves_nothing(corpus: str, tmp_path: Path) -> None:
    plans: list[Plan] = []
    reporter = Reporter()
    reporter.on_plan = plans.append  # type: ignore[method-assign]
    assert train_skipgram([corpus], SMALL, tmp_path / "v", dry_run=True, reporter=reporter) == {}
    assert (plans[0].predictions, plans[0].steps) == (15_000, 4 * -(-18_001 // 256))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("section", "change", "says"),
    [
        ("text", {"unit": "char"}, "unit must be one of word"),
        ("text", {"test_fraction": 0.1}, "test_fraction"),
        ("train", {"optimizer": "adamw"}, "sgd, adagrad"),
        ("train", {"clip_norm": 1.0}, "clip_norm"),
        ("train", {"weight_decay": 0.1}, "weight_decay"),
        ("model", {"window": 0}, "window must be from 1"),
        ("model", {"subsample": 0.0}, "subsample must be above 0"),
    ],
)
def test_settings_that_make_no_sense_are_errors(tmp_path: Path, section: str, change: dict, says: str) -> None:
    settings = replace(SMALL, **{section: replace(getattr(SMALL, section), **change)})
    with pytest.raises(SettingError, match=says):
        train_skipgram(["no-such-file.txt"], settings, tmp_path / "v")


def test_a_text_without_a_frequent_word_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("every word is here but once\n")
    with pytest.raises(CorpusError, match="--min-count"):
        train_skipgram([str(tmp_path / "text.txt")], SMALL, tmp_path / "v")
