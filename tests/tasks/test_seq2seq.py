"""Sequence to sequence as a user has it: learned, saved, loaded; searched in batches and one by one; attention."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from relmo.errors import SettingError
from relmo.runs.progress import Reporter
from relmo.runs.train_task import train_task
from relmo.settings.tasks import (
    SearchSettings,
    Seq2SeqInputSettings,
    Seq2SeqModelSettings,
    Seq2SeqSettings,
    Seq2SeqTextSettings,
    Seq2SeqTrainSettings,
)
from relmo.tasks.results import attention_text
from relmo.tasks.seq2seq import Candidate, Rewritten, Seq2Seq
from relmo.text.makers import MakerOptions, make_pairs
from relmo.text.readers.parallel import TextToText
from relmo.training.batch import move_to_device
from support.tagging import tiny_bilm

CHARS = {"source_unit": "char", "target_unit": "char"}


def settings(**sections: Any) -> Seq2SeqSettings:
    """Those of a small and quick model."""
    text, input_, model, train, search = (sections.get(n, {}) for n in ("text", "input", "model", "train", "search"))
    return Seq2SeqSettings(
        text=Seq2SeqTextSettings(**({"metric": "exact"} | text)),
        input=Seq2SeqInputSettings(**({"word_dim": 16} | input_)),
        model=Seq2SeqModelSettings(**({"hidden": 24, "target_dim": 16, "dropout": 0.0} | model)),
        train=Seq2SeqTrainSettings(**({"epochs": 1, "batch": 32, "lr": 0.01, "device": "cpu"} | train)),
        search=SearchSettings(**({"limit": 12} | search)),
    )


def table(path: Path, pairs: Sequence[tuple[str, str]]) -> Path:
    path.write_text("".join(f"{source}\t{target}\n" for source, target in pairs))
    return path


@pytest.fixture(scope="module")
def strings(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("copy")
    made = make_pairs("reverse", MakerOptions(size=4, letters=5, count=500, held_out=60))
    return table(folder / "train.tsv", made.train), table(folder / "dev.tsv", made.held_out)


@pytest.fixture(scope="module")
def reverser(strings: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Seq2Seq:
    """One that reverses strings with attention, hardly."""
    out = tmp_path_factory.mktemp("reverser") / "out"
    made = settings(text=CHARS | {"valid": str(strings[1])}, model={"input_feeding": True}, train={"epochs": 4})
    train_task(Seq2Seq, [str(strings[0])], made, out)
    return Seq2Seq.from_pretrained(out, device="cpu")


def test_it_learns_what_no_pair_has_shown_and_its_folder_knows_it(strings: tuple[Path, Path], tmp_path: Path) -> None:
    made = settings(
        text=CHARS | {"valid": str(strings[1])}, model={"attention": "general"}, train={"epochs": 9, "lr": 0.02}
    )
    results = train_task(Seq2Seq, [str(strings[0])], made, tmp_path / "out")
    assert results["valid_exact"] > 0.8  # at first 0
    model = Seq2Seq.from_pretrained(tmp_path / "out", device="cpu")
    report = model.evaluate(str(strings[1]))
    assert report.score == results["valid_exact"]
    assert [row.texts for row in report.by_length] == [60]  # type: ignore[attr-defined]
    (found,) = model.predict(["abcd"])
    assert found.text == "dcba"
    weights = found.candidates[0].attention
    assert weights is not None
    assert weights.shape == (5, 4)
    assert np.allclose(weights.sum(axis=1), 1, atol=1e-5)
    names = sorted(path.name for path in (tmp_path / "out").glob("*.txt"))
    assert names == ["target-vocabulary.txt", "vocabulary.txt"]


NETWORKS: dict[str, dict[str, Any]] = {
    "Sutskever": {"model": {"attention": "none", "directions": 1, "layers": 2}},
    "fed, sampled, smoothed, tied": {
        "model": {
            "input_feeding": True,
            "sampling": 0.5,
            "sampling_steps": 4,
            "label_smoothing": 0.1,
            "tied": True,
            "dropout": 0.2,
        }
    },
}


class StopAfter(Reporter):
    """Breaks a run off after some steps, as a kill would."""

    def __init__(self, steps: int):
        self.steps = steps

    def on_step(self, step: object, total: int) -> None:
        """After each step."""
        self.steps -= 1
        if not self.steps:
            raise KeyboardInterrupt


@pytest.mark.parametrize("network", NETWORKS)
def test_every_network_goes_on_to_the_same_bytes_after_a_kill(
    network: str, strings: tuple[Path, Path], tmp_path: Path
) -> None:
    made = settings(
        text=CHARS | {"valid": str(strings[1])}, **NETWORKS[network], train={"checkpoint_every": 0.0, "batch": 64}
    )
    files = [str(strings[0])]
    train_task(Seq2Seq, files, made, tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        train_task(Seq2Seq, files, made, tmp_path / "broken", reporter=StopAfter(5))
    train_task(Seq2Seq, files, made, tmp_path / "broken", resume=True)
    weights = [(tmp_path / run / "last" / "model.safetensors").read_bytes() for run in ("whole", "broken")]
    assert weights[0] == weights[1]


SOURCES = ["abcd", "e", "", "dd", "abcdeabcde", "zz", "cab"]


@pytest.mark.parametrize(
    "search",
    [{"beams": 1, "length_penalty": 0.0}, {"beams": 4}, {"beams": 3, "coverage": 0.5, "length_penalty": 1.0}],
)
def test_batches_find_what_each_source_finds_alone(search: dict[str, Any], reverser: Seq2Seq) -> None:
    best = min(search["beams"], 3)
    together = reverser.predict(SOURCES, best=best, **search)
    for source, beside in zip(SOURCES, together, strict=True):
        (alone,) = reverser.predict([source], best=best, **search)
        assert [each.text for each in alone.candidates] == [each.text for each in beside.candidates]
        for a, b in zip(alone.candidates, beside.candidates, strict=True):
            assert a.score == pytest.approx(b.score, abs=1e-4)
            assert a.attention is not None
            assert b.attention is not None
            np.testing.assert_allclose(a.attention, b.attention, atol=1e-5)


@torch.no_grad()
def greedy(model: Seq2Seq, text: str, limit: int) -> str:
    """The textbook's loop."""
    encoded = model.encode([TextToText(text, [])])
    network: Any = model.network
    source = network(move_to_device(encoded.batch(np.array([0])), model.device))
    state, unit, written = network.body.initial_state(source), model.targets.end, []
    for _ in range(limit):
        log_probs, state = network.body.step(torch.tensor([unit]), state, source)
        log_probs[0, model.targets.unknown] = -torch.inf
        unit = int(log_probs.argmax())
        if unit == model.targets.end:
            break
        written.append(model.targets.symbols[unit])
    return "".join(written)


def test_one_beam_is_greedy_and_limits_hold(reverser: Seq2Seq) -> None:
    for source, found in zip(SOURCES, reverser.predict(SOURCES, beams=1, limit=6), strict=True):
        assert found.text == greedy(reverser, source, 6)
    assert {len(found.text) for found in reverser.predict(SOURCES, limit=1)} <= {0, 1}


def test_an_empty_source_becomes_an_empty_text(reverser: Seq2Seq) -> None:
    empty, alone = reverser.predict(["", "abc"], beams=3, best=2)
    assert (empty.text, len(empty.candidates)) == ("", 1)
    assert alone.text == reverser.predict(["abc"], beams=3)[0].text != ""


def test_more_beams_find_texts_at_least_as_probable_and_rank_them_by_score(reverser: Seq2Seq) -> None:
    few, many = (reverser.predict(SOURCES, beams=k, length_penalty=0.0) for k in (1, 20))
    for a, b in zip(few, many, strict=True):
        assert b.candidates[0].log_prob >= a.candidates[0].log_prob - 1e-4
    for found in reverser.predict([*filter(None, SOURCES)], beams=5, best=5, length_penalty=2.0):
        scores = [each.score for each in found.candidates]
        assert scores == sorted(scores, reverse=True)
        for each in found.candidates:
            assert each.score == pytest.approx(each.log_prob / ((5 + len(each.units) + 1) / 6) ** 2.0, rel=1e-4)
        assert len({each.text for each in found.candidates}) == 5
        assert found.as_text().splitlines()[0] == f"{scores[0]:.4f}\t{found.text}"


def test_an_unknown_word_becomes_the_word_that_was_looked_at(tmp_path: Path) -> None:
    words = [f"w{i}" for i in range(6)]
    rare = [f"rare{i}" for i in range(120)]  # each is seen once, and unknown to both sides
    pairs = [(f"{words[i % 6]} {rare[i]}", f"{words[i % 6]} {rare[i]}") for i in range(120)]
    path = table(tmp_path / "t.tsv", [*pairs, *[(f"{a} {b}", f"{a} {b}") for a in words for b in words]])
    made = settings(
        text={"valid": str(path), "target_min_count": 2, "tokenizer": "whitespace"},
        input={"min_count": 2},
        model={"attention": "dot"},
        train={"epochs": 10, "lr": 0.02},
    )
    train_task(Seq2Seq, [str(path)], made, tmp_path / "out")
    model = Seq2Seq.from_pretrained(tmp_path / "out", device="cpu")
    assert model.predict(["w3 Oslo"])[0].text == "w3 Oslo"
    assert "Oslo" not in model.predict(["w3 Oslo"], replace_unknown=False)[0].text
    (found,) = model.predict(["w3 Oslo"])
    record = found.to_dict()
    assert json.loads(json.dumps(record)) == record
    assert record["candidates"][0]["units"] == ["w3", "Oslo"]
    assert (record["source"], record["source_units"]) == ("w3 Oslo", ["w3", "Oslo"])
    assert repr(found) == "Rewritten('w3 Oslo' -> 'w3 Oslo')"


def test_elmo_reads_the_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RELMO_CACHE", str(tmp_path / "cache"))
    tiny_bilm().save_pretrained(tmp_path / "bilm")
    path = table(tmp_path / "t.tsv", [("The dog sees.", "Der Hund sieht."), ("The cat runs.", "Die Katze rennt.")])
    for at in ("input", "both"):
        made = settings(
            text={"valid": str(path)},
            input={"elmo": str(tmp_path / "bilm"), "elmo_at": at},
            train={"epochs": 30, "lr": 0.03, "validate_every": 30},
        )
        results = train_task(Seq2Seq, [str(path)], made, tmp_path / at)
        assert results["valid_exact"] == 1.0
        assert set(results["elmo_mix"]) == ({"input"} if at == "input" else {"input", "output"})
        assert Seq2Seq.from_pretrained(tmp_path / at, device="cpu").predict([["The", "dog", "sees", "."]])[0].text


@pytest.mark.slow
def test_subwords_on_both_sides_overfit_a_slice_of_multi30k(tmp_path: Path) -> None:
    pytest.importorskip("sentencepiece", reason="needs relmo[translate]")
    folder = Path("data/tasks/multi30k")
    if not folder.is_dir():
        pytest.skip("the data is not here")
    sides = [(folder / f"train.{language}").read_text().splitlines()[:8] for language in ("en", "de")]
    path = table(tmp_path / "t.tsv", list(zip(*sides, strict=True)))
    text = {"source_unit": "bpe", "target_unit": "bpe", "subwords": 200, "valid": str(path), "metric": "rouge"}
    train = {"epochs": 60, "lr": 0.01, "validate_every": 60}
    made = settings(text=text, model={"hidden": 48}, train=train, search={"limit": 60})
    results = train_task(Seq2Seq, [str(path)], made, tmp_path / "out")
    assert results["valid_rougeL"] > 0.9
    model = Seq2Seq.from_pretrained(tmp_path / "out", device="cpu")
    assert model.source_units.join(model.source_units.split(sides[0][0])) == sides[0][0]
    names = sorted(path.name for path in (tmp_path / "out").glob("*.txt"))
    assert names == ["pieces-vocabulary.txt", "target-vocabulary.txt", "vocabulary.txt"]


def test_static_vectors_read_the_source_and_low_coverage_is_reported(tmp_path: Path) -> None:
    class Messages(Reporter):
        def on_message(self, message: str) -> None:
            messages.append(message)

    messages: list[str] = []
    path = table(tmp_path / "pairs.tsv", [("the cat sat", "le chat"), ("katten sover", "le chat dort")] * 4)
    made = settings(
        text={"valid": str(path)}, input={"vectors": "words", "word_dim": 0}, model={"hidden": 8}, train={"epochs": 1}
    )
    train_task(Seq2Seq, [str(path)], made, tmp_path / "out", reporter=Messages())
    assert any("have a vector in words" in message for message in messages)
    assert Seq2Seq.from_pretrained(tmp_path / "out", device="cpu").network.inputs.static.shape[1] > 0


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        ({"model": {"attention": "none", "input_feeding": True}}, "input_feeding has no effect"),
        ({"model": {"context": "every"}}, "context has no effect"),
        ({"model": {"sampling_steps": 5}}, "sampling_steps has no effect"),
        ({"text": {"subwords": 100}}, "subwords has no effect"),
        ({"text": {"source_unit": "bpe", "target_unit": "unigram"}}, "both sides must have the same kind of subwords"),
        ({"text": CHARS, "input": {"elmo": "small"}}, "elmo and vectors need words"),
        ({"search": {"beams": 0}}, "beams must be from 1 to 1,000, not 0"),
        ({"model": {"attention": "none"}, "search": {"coverage": 0.1}}, "coverage has no effect"),
    ],
)
def test_settings_that_make_no_sense_are_errors(sections: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingError, match=message):
        settings(**sections).check()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"best": 3, "beams": 2}, "best 3 is more than beams 2"),
        ({"width": 3}, "width"),
        ({"beams": 0}, "beams must be from 1"),
        ({"best": 0}, "best must be 1 or more"),
    ],
)
def test_searches_that_make_no_sense_are_errors(options: dict[str, Any], message: str, reverser: Seq2Seq) -> None:
    with pytest.raises(SettingError, match=message):
        reverser.predict(["ab"], **options)


def test_attention_is_a_picture_in_text_and_in_a_notebook() -> None:
    weights = np.array([[0.9, 0.1], [0.0, 1.0], [0.5, 0.5]])
    assert attention_text(["the", "c t"], ["le", "chat"], weights) == (
        "      t c\n      h ␣\n      e t\n  le  █ ░\nchat    █\n   ·  ▓ ▓"
    )
    found = Rewritten("<le> chat", ["the", "cat"], [Candidate("<le> chat", ["<le>", "chat"], -1.0, -1.0, weights)])
    assert "&lt;le&gt; chat (-1.000)" in found._repr_html_()
    assert found._repr_html_().count("<td") == 6
