"""Reading times from file to table: the regression by hand, invented times that follow a model, what is refused."""

import json
import math
import statistics
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from experiments import reading_times
from experiments.reading_times import (
    GAIN,
    GPT3,
    HIGH,
    LOW,
    Reader,
    Stories,
    baseline_settings,
    bootstrap_interval,
    compute_surprisal,
    control_predictors,
    held_out_log_likelihood,
    make_table,
    parse_rates,
    read_data,
    read_stories,
    train_baselines,
    write_beginning,
)
from relmo.errors import CorpusError, SettingError
from relmo.models.lm import LanguageModel
from relmo.networks import make_language_model
from relmo.networks.ngram import NGramLM
from relmo.settings.lm import LanguageModelSettings, LMSettings, TextSettings
from relmo.text.vocabulary import Vocabulary
from support.published import find_row

WORDS = ["the", "cat", "saw", "a", "very", "old", "dog", "and", "the", "dog,", "of", "course,", "ran."]
HEADER = "story\tposition\tword\treaders\tgeometric_mean_ms\tgoogle_count\tgpt3_surprisal_bits\n"


def model_of() -> LanguageModel:
    torch.manual_seed(1)
    settings = LMSettings(model=LanguageModelSettings(hidden=8), text=TextSettings(unit="word"))
    vocabulary = Vocabulary([*Vocabulary.specials, "\n", ".", ",", *sorted({word.strip(",.") for word in WORDS})])
    network = make_language_model(settings.model, len(vocabulary))
    for parameter in network.parameters():
        parameter.data.mul_(4.0)
    return LanguageModel(network, vocabulary, settings)


def ngram_of() -> LanguageModel:
    model = model_of()
    settings = LMSettings(model=LanguageModelSettings(cell="ngram", order=2), text=model.settings.text)
    ids = model.vocabulary.ids(["the", "cat", "saw", "a", "dog", ".", "\n", "</s>"])
    return LanguageModel(NGramLM.fit(ids, vocab_size=len(model.vocabulary), order=2), model.vocabulary, settings)


def write_stories(path: Path, bits: np.ndarray | None = None, slope: float = 0.0, stories: int = 2) -> Path:
    """Stories of shuffled words; times follow length and these surprisals, with a little noise."""
    random = np.random.default_rng(0)
    count = 240
    words = [WORDS[i] for i in random.integers(len(WORDS), size=stories * count)]
    bits = np.zeros(len(words)) if bits is None else bits
    noise = random.normal(scale=0.02, size=len(words))
    rows = []
    for i, word in enumerate(words):
        time = 300 * math.exp(0.01 * len(word) + slope * bits[i] + noise[i])
        gpt3 = "" if i % count == 0 else f"{random.uniform(1, 9):.3f}"
        rows.append(f"{1 + i // count}\t{1 + i % count}\t{word}\t80\t{time:.4f}\t{1000 + 10 * len(word)}\t{gpt3}\n")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(HEADER + "".join(rows))
    return path


def test_places_are_those_in_the_story_and_in_the_sentence(tmp_path: Path) -> None:
    rows = [("1", "A"), ("1", "dog."), ("1", "It"), ("1", 'ran."'), ("2", "So"), ("2", "it"), ("2", "did!)")]
    (tmp_path / "s.tsv").write_text(HEADER + "".join(f"{s}\t1\t{w}\t9\t300\t7\t1.5\n" for s, w in rows))
    stories = read_stories(tmp_path / "s.tsv")
    assert stories.in_story.tolist() == [0, 1, 2, 3, 0, 1, 2]
    assert stories.in_sentence.tolist() == [0, 1, 0, 1, 0, 1, 2]
    assert stories.sentence.tolist() == [0, 0, 1, 1, 2, 2, 2]


def test_held_out_likelihoods_are_those_of_the_normal_equations() -> None:
    random = np.random.default_rng(1)
    x, folds = np.column_stack([np.ones(90), random.normal(size=(90, 4))]), np.arange(90) % 3
    y = x @ [3.0, 1.0, 2.0, 0.0, -1.0] + random.normal(size=90)
    found = held_out_log_likelihood(x, y, folds)
    for fold in range(3):
        train, test = folds != fold, folds == fold
        fit = np.linalg.solve(x[train].T @ x[train], x[train].T @ y[train])
        spread = statistics.NormalDist(sigma=math.sqrt(((y[train] - x[train] @ fit) ** 2).sum() / (60 - 5)))
        expected = [math.log(spread.pdf(gap)) for gap in (y[test] - x[test] @ fit).tolist()]
        assert found[test] == pytest.approx(expected)


def test_an_interval_is_wider_where_the_words_of_a_sentence_agree() -> None:
    random = np.random.default_rng(2)
    sentence = np.repeat(np.arange(60), 5)
    alone = random.normal(size=300)
    agreed = np.repeat(random.normal(size=60), 5)
    low, high = bootstrap_interval(alone, sentence)
    assert low < alone.mean() < high
    assert high - low == pytest.approx(2 * 1.96 / math.sqrt(300), rel=0.25)
    low, high = bootstrap_interval(agreed, sentence)
    assert high - low == pytest.approx(2 * 1.96 / math.sqrt(60), rel=0.3)


def test_a_model_whose_surprisal_times_follow_gains_and_its_cost_is_found(tmp_path: Path) -> None:
    model = model_of()
    stories = read_stories(write_stories(tmp_path / "a.tsv"))
    bits, unknown = compute_surprisal(Reader(model), stories.words)
    assert unknown == 0.0
    expected = [
        row.surprisal
        for story in (1, 2)
        for row in model.surprisal(
            " ".join(w.text for w in stories.words if w.story == story) + "\n", rows="whitespace"
        )
    ]
    assert bits == pytest.approx(expected)
    stories = read_stories(write_stories(tmp_path / "b.tsv", bits, slope=0.01))
    table = make_table(stories, {"mine": model})
    assert [row.name for row in table.rows] == ["mine", "mine, untrained", GPT3]
    mine, chance = find_row(table, "mine").ours, find_row(table, GPT3).ours
    assert mine[LOW] > 0
    assert mine[LOW] < mine[GAIN] < mine[HIGH]
    assert mine["%/bit"] == pytest.approx(1.0, abs=0.2)
    assert mine["%/bit, word before"] == pytest.approx(0.0, abs=0.2)
    assert chance[LOW] < 0 < chance[HIGH] or chance[GAIN] < 0
    more = table.extra["differences"][f"mine - {GPT3}"]
    assert more[GAIN] == pytest.approx(mine[GAIN] - chance[GAIN])
    assert json.loads(json.dumps(table.summary()))["columns"] == list(reading_times.COLUMNS)


def test_adapted_models_are_updated_after_each_sentence_and_begin_each_story_anew(tmp_path: Path) -> None:
    model = model_of()
    stories = read_stories(write_stories(tmp_path / "a.tsv"))
    by_story = [" ".join(word.text for word in stories.words if word.story == story) for story in (1, 2)]
    lines = [story.replace(". ", ".\n") + "\n" for story in by_story]
    tables = [model.surprisal(text, rows="whitespace", adapt=0.5) for text in lines]
    expected = [row.surprisal for table in tables for row in table]
    bits, _ = compute_surprisal(Reader(model, by_sentence=True, adapt=0.5), stories.words)
    assert bits == pytest.approx(expected)
    stories = read_stories(write_stories(tmp_path / "b.tsv", bits, slope=0.01))
    table = make_table(stories, {"5-gram": ngram_of(), "mine": model}, rates=[0.5, 0.01])
    names = ["5-gram", "mine", "mine, adapted 0.5", "mine, adapted 0.01", "mine, untrained", GPT3]
    assert [row.name for row in table.rows] == names
    plain, adapted = (find_row(table, name).ours for name in names[1:3])
    assert adapted["bits/word"] < plain["bits/word"]
    assert adapted[GAIN] > plain[GAIN] > 0
    difference = table.extra["differences"]["mine, adapted 0.5 - mine"]
    assert difference[GAIN] == pytest.approx(adapted[GAIN] - plain[GAIN])
    assert 0 < difference[LOW] < difference[GAIN] < difference[HIGH]
    assert any(f"{difference[LOW]:.2f} to {difference[HIGH]:.2f}" in note for note in table.notes)


def test_rates_that_cannot_be_used(tmp_path: Path) -> None:
    assert parse_rates("0.03, 1") == [0.03, 1.0]
    for text in ("", "fast", "0.1,", "0", "-1", "nan", "inf"):
        with pytest.raises(SettingError, match="learning rates above 0"):
            parse_rates(text)
    stories = read_stories(write_stories(tmp_path / "a.tsv"))
    with pytest.raises(SettingError, match="neural"):
        make_table(stories, {"5-gram": ngram_of()}, rates=[0.1])


def test_controls_are_those_of_the_word_and_of_the_two_before(tmp_path: Path) -> None:
    stories = read_stories(write_stories(tmp_path / "a.tsv"))
    x = control_predictors(stories)
    assert x.shape == (480, 3 + 3 * 4)
    lengths = [len(word.text) for word in stories.words]
    assert x[7, [3, 7, 11]].tolist() == [lengths[7], lengths[6], lengths[5]]
    assert x[7, 6] == float(not stories.words[7].text[-1].isalnum())


def test_the_picture_is_drawn(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    stories: Stories = read_stories(write_stories(tmp_path / "a.tsv"))
    reading_times.draw_gains(tmp_path / "gains.png", make_table(stories, {"mine": model_of()}).rows)
    assert (tmp_path / "gains.png").read_bytes().startswith(b"\x89PNG")


def test_any_story_is_read_from_one_file_or_several(tmp_path: Path) -> None:
    folder = tmp_path / "tasks" / "reading_times"
    folder.mkdir(parents=True)
    with pytest.raises(CorpusError, match="natural_stories"):
        read_data(tmp_path)
    for name, numbers in (("natural_stories_1-5", (1, 5)), ("natural_stories_6-10", (6, 10))):
        rows = [f"{number}\t1\t{word}\t9\t300\t7\t1.5\n" for number in numbers for word in ("A", "dog.")]
        (folder / f"{name}.tsv").write_text(HEADER + "".join(rows))
    stories = read_data(tmp_path)
    assert [word.story for word in stories.words] == [1, 1, 5, 5, 6, 6, 10, 10]
    assert stories.sentence.tolist() == [0, 0, 1, 1, 2, 2, 3, 3]
    bits, _ = compute_surprisal(Reader(model_of()), stories.words)
    assert bits.shape == (8,)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (HEADER + "1\t1\tA\t80\tfast\t9\t\n", r"s.tsv:2: expected story, word, geometric_mean_ms"),
        (HEADER + "1\t1\tA\t80\t0\t9\t\n", r"s.tsv:2: expected one word, a time above 0"),
        ("story\tword\n1\tA\n", r"s.tsv:2: expected story, word, .*gpt3_surprisal_bits"),
        (HEADER, r"s.tsv"),
    ],
)
def test_a_broken_file_is_one_clear_line(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "s.tsv").write_text(text)
    with pytest.raises(CorpusError, match=message):
        read_stories(tmp_path / "s.tsv")


def test_the_two_models_are_trained_on_the_beginning_of_the_text_and_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = "the old cat saw a dog .\nthe dog ran .\n"
    (tmp_path / "lm").mkdir()
    (tmp_path / reading_times.TEXT).write_text(lines * 300)
    write_beginning(tmp_path / reading_times.TEXT, tmp_path / "begin.txt", 100)
    assert (tmp_path / "begin.txt").read_text() == lines * 2 + "the old cat saw a dog .\n"
    monkeypatch.setattr(reading_times, "TEXT_BYTES", len(lines) * 40)
    usual = baseline_settings("cpu")
    small = replace(usual["LSTM"].model, hidden=8), replace(usual["LSTM"].train, batch=2, unroll=8, threads=1)
    asked = usual | {"LSTM": replace(usual["LSTM"], model=small[0], train=small[1])}
    monkeypatch.setattr(reading_times, "baseline_settings", lambda device: asked)
    said: list[str] = []
    first = train_baselines(tmp_path, tmp_path / "keep", device="cpu", on_message=said.append)
    again = train_baselines(tmp_path, tmp_path / "keep", device="cpu", on_message=said.append)
    assert list(first) == list(usual) == ["5-gram", "LSTM"]
    assert len(said) == 2, "the second time nothing is trained"
    for name in first:
        text = "the dog saw a cat ."
        assert first[name].perplexity(text) == pytest.approx(again[name].perplexity(text))
    with pytest.raises(CorpusError, match=r"pretrain-0.txt"):
        train_baselines(tmp_path / "none", None, on_message=said.append)


def test_the_real_stories_have_the_words_they_are_known_for(data: Callable[[str], Path]) -> None:
    stories = read_stories(data("tasks/reading_times/natural_stories_1-5.tsv"))
    assert len(stories.words) == 5201
    assert {word.story for word in stories.words} == {1, 2, 3, 4, 5}
    assert 200 < stories.sentence[-1] < 300
