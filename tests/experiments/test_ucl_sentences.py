"""The UCL sentences from file to table, with invented measures that follow a predictor."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from experiments.reading_times import Reader
from experiments.ucl_sentences import (
    ADAPTED,
    FILE,
    MEASURES,
    PUBLISHED,
    REGRESSIONS,
    compare_models,
    compute_predictors,
    make_tables,
    measure_gains,
    read_sentences,
    select_words,
)
from relmo.errors import CorpusError
from relmo.models.lm import LanguageModel
from relmo.networks import make_language_model
from relmo.settings.lm import LanguageModelSettings, LMSettings, TextSettings
from relmo.text.vocabulary import Vocabulary

WORDS = ["the", "cat", "saw", "a", "very", "old", "dog", "and", "of"]


def write_sentences(folder: Path) -> Path:
    """Sentences of 8 words; the self-paced times follow the column psg, and all else is noise."""
    random = np.random.default_rng(0)
    names = [*MEASURES, *PUBLISHED]
    lines = ["\t".join(["sent_id", "context_length", "word", "sentence", "length", "Subtlex_log10", *names])]
    for number in range(60):
        words = [WORDS[i] for i in random.integers(len(WORDS), size=8)]
        words[-1] += "."
        text = f"{' '.join(words)}".replace("the", f"the{number}", 1) if number else " ".join(words)
        for position in range(1, 8):
            values = dict(zip(names, random.normal(size=len(names)), strict=True))
            values["self_paced_reading_time"] = 300 + 5 * values["psg"] + random.normal()
            row = [number, position, text.split()[position], text, 3, "" if position == 4 else 5 + position]
            lines.append("\t".join(map(str, [*row, *(f"{values[name]:.5f}" for name in names)])))
    path = folder / FILE
    path.parent.mkdir(parents=True)
    path.write_text("\n".join(lines) + "\n")
    return path


def model_of() -> LanguageModel:
    settings = LMSettings(model=LanguageModelSettings(hidden=8), text=TextSettings(unit="word"))
    vocabulary = Vocabulary([*Vocabulary.specials, "\n", ".", *WORDS])
    return LanguageModel(make_language_model(settings.model, len(vocabulary)), vocabulary, settings)


def test_a_predictor_that_times_follow_gains_in_every_regression(tmp_path: Path) -> None:
    write_sentences(tmp_path)
    sentences = read_sentences(tmp_path)
    assert select_words(sentences).sum() == 60 * 5
    assert sentences.frequency[sentences.position == 4] == pytest.approx(6.0), "missing ones are the lowest"
    predictors = {name: sentences.columns[name] for name in ("psg", "rnn")}
    gains = measure_gains(sentences, predictors, {})
    assert list(gains) == [*REGRESSIONS, "smooth - linear"]
    bent, smooth, linear = (
        gains[name]["psg"]["self-paced"]["gain"] for name in ("smooth - linear", "smooth", "linear")
    )
    assert bent == pytest.approx(smooth - linear)
    for by_predictor in (gains[name] for name in REGRESSIONS):
        follows, noise = (by_predictor[name]["self-paced"] for name in ("psg", "rnn"))
        assert follows["from"] > 1000
        assert follows["from"] < follows["gain"] < follows["to"]
        assert abs(noise["gain"]) < 50
        assert abs(by_predictor["psg"]["N400"]["gain"]) < 50
    tables = make_tables({"gains": gains, "bits/word": {}})
    assert [table.rows[0][1].endswith("*") for table in tables] == [True] * 3
    assert len(tables[0].columns) == 1 + len(MEASURES)


def test_predictors_of_models_are_those_of_whole_sentences_read_alone(tmp_path: Path) -> None:
    write_sentences(tmp_path)
    sentences, model = read_sentences(tmp_path), model_of()
    predictors = compute_predictors(Reader(model), sentences)
    for i in (0, 6, 20, 419):
        text = sentences.texts[sentences.sentence[i]]
        row = model.surprisal(text + "\n", context="sentence", rows="whitespace")[int(sentences.position[i])]
        assert row.word == sentences.words[i]
        assert predictors["surprisal"][i] == pytest.approx(row.surprisal, rel=1e-4)
        assert predictors["entropy_reduction"][i] == pytest.approx(row.entropy_reduction, rel=1e-3, abs=1e-5)


def test_models_are_compared_with_the_published_predictors(tmp_path: Path) -> None:
    write_sentences(tmp_path)
    report = compare_models(read_sentences(tmp_path), {"mine": model_of()})
    names = list(report["gains"]["linear"])
    assert names == ["mine", "mine, entropy reduction", "mine, untrained", *PUBLISHED.values()]
    assert (report["words"], report["sentences"]) == (300, 60)
    json.dumps(report)


def test_adapted_models_read_the_sentences_in_the_order_of_the_file(tmp_path: Path) -> None:
    write_sentences(tmp_path)
    sentences, model = read_sentences(tmp_path), model_of()
    report = compare_models(sentences, {"mine": model}, rates=[0.5])
    table = model.surprisal(sentences.texts, context="sentence", rows="whitespace", adapt=0.5)
    bits = [row.surprisal for row in table if 3 <= row.position <= 7]
    assert report["bits/word"]["mine, adapted 0.5"] == pytest.approx(np.mean(bits))
    assert report["bits/word"]["mine, adapted 0.5"] < report["bits/word"]["mine"]
    gains = report["gains"]
    assert list(gains[ADAPTED]) == ["mine, adapted 0.5"]
    for label in MEASURES.values():
        cell = gains[ADAPTED]["mine, adapted 0.5"][label]
        plain, adapted = (gains["linear"][name][label]["gain"] for name in ("mine", "mine, adapted 0.5"))
        assert cell["gain"] == pytest.approx(adapted - plain)
        assert cell["from"] < cell["gain"] < cell["to"]
    tables = make_tables(report)
    assert len(tables) == len(REGRESSIONS) + 1
    assert [row[0] for row in tables[-1].rows] == ["mine, adapted 0.5"]
    assert any("mine, adapted 0.5" in note for note in tables[-1].notes)


def test_a_word_that_is_not_in_its_place_is_refused(tmp_path: Path) -> None:
    path = write_sentences(tmp_path)
    lines = path.read_text().splitlines()
    path.write_text("\n".join([lines[0], lines[2].replace("\t2\t", "\t9\t", 1)]) + "\n")
    with pytest.raises(CorpusError, match=r"tsv:2: .* is not word 10"):
        read_sentences(tmp_path)
    path.write_text("sent_id\tword\n1\tcat\n")
    with pytest.raises(CorpusError, match=r"tsv:2: expected the columns"):
        read_sentences(tmp_path)


def test_the_real_sentences_have_the_words_they_are_known_for(data: Callable[[str], Path]) -> None:
    sentences = read_sentences(data(FILE).parents[2])
    assert (len(sentences.texts), len(sentences.words)) == (103, 868)
    assert select_words(sentences).sum() == 662
