"""Accuracy on test suites: values of regions against a loop over symbols, a suite with known answers, and means."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from relmo.analysis.core.effects import Interval, mean_interval, wilson
from relmo.analysis.syntax.agreement import agreement
from relmo.analysis.syntax.suites import evaluate_suites, measure_regions, read_published, read_sets, score_suite
from relmo.errors import CorpusError, SettingError
from relmo.models.lm import LanguageModel
from relmo.networks import make_language_model
from relmo.settings.lm import LanguageModelSettings, LMSettings, TextSettings
from relmo.text.minimal_pairs import read_pairs
from relmo.text.suites import Suite, read_suite
from relmo.text.vocabulary import Vocabulary
from support.small_models import bilm, language_model
from support.suites import LESSONS, make_suite, word_ngram, write_suite


@pytest.fixture
def suite(tmp_path: Path) -> Suite:
    return read_suite(write_suite(tmp_path / "number_test.json"))


def word_model(**text: Any) -> LanguageModel:
    torch.manual_seed(2)
    settings = LMSettings(model=LanguageModelSettings(hidden=6, embedding=4), text=TextSettings(unit="word", **text))
    vocabulary = Vocabulary([*Vocabulary.specials, *sorted(set(LESSONS.split()))])
    network = make_language_model(settings.model, len(vocabulary))
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.mul_(3)
    return LanguageModel(network, vocabulary, settings)


def symbols_by_region(model: LanguageModel, contents: list[str]) -> list[tuple[str, int]]:
    """Return the symbols that a model reads, each with the index of its region."""
    pairs: list[tuple[str, int]] = []
    for index, content in enumerate(contents):
        if model.unit == "word":
            pairs += [(word, index) for word in model.tokens(content)]
            continue
        if pairs and content and not content.startswith(","):
            pairs.append((" ", pairs[-1][1]))
        pairs += [(character, index) for character in content.strip()]
    return pairs if model.unit == "word" else [*pairs, (" ", pairs[-1][1])]


@pytest.mark.parametrize("metric", ["sum", "mean", "median", "range", "max", "min"])
@pytest.mark.parametrize("kind", ["words", "whitespace", "characters", "n-gram"])
def test_values_of_regions_equal_a_loop_over_symbols(kind: str, metric: str, suite: Suite) -> None:
    models: dict[str, Callable[[], LanguageModel]] = {
        "words": word_model,
        "whitespace": lambda: word_model(tokenizer="whitespace"),
        "characters": language_model,
        "n-gram": word_ngram,
    }
    model = models[kind]()
    suite.meta.metric = metric  # type: ignore[assignment]
    values = measure_regions(model, suite)
    metrics: dict[str, Callable[..., Any]] = {"sum": sum, "mean": np.mean, "median": np.median, "range": np.ptp}
    for i, item in enumerate(suite.items):
        for condition in item.conditions:
            bits: list[list[float]] = [[] for _ in condition.regions]
            unknown = [False] * len(bits)
            state, last = None, model.vocabulary.end
            for symbol, region in symbols_by_region(model, [region.content for region in condition.regions]):
                log_p, state = model.step(torch.tensor([last]), state)
                last = int(model.vocabulary.ids([symbol])[0])
                bits[region].append(-float(log_p[0, last]) / np.log(2))
                unknown[region] |= last == model.vocabulary.unknown
            for region_bits, is_unknown, number in zip(bits, unknown, "1234", strict=True):
                expected = (metrics | {"max": max, "min": min})[metric](region_bits) if region_bits else 0.0
                np.testing.assert_allclose(
                    values[condition.condition_name][number][:, i], [expected, is_unknown], rtol=1e-4, atol=1e-5
                )


def test_a_bidirectional_model_reads_forward(suite: Suite) -> None:
    model = bilm()
    values = measure_regions(model, suite)
    condition = suite.items[0].conditions[0]
    sentence = condition.join(attach=True)[0]
    (log_p,) = model.log_probs([sentence], direction="forward")
    bits = -np.asarray(log_p, dtype=np.float64) / np.log(2)  # the cat sits , the cat .
    regions = values["sing"]
    expected = [bits[:2].sum(), bits[2], 0.0, bits[3:7].sum()]
    np.testing.assert_allclose([regions[number][0, 0] for number in "1234"], expected, rtol=1e-5)
    assert [regions[number][1, 0] for number in "1234"] == [0, 1, 0, 1]


def test_a_suite_with_known_answers(suite: Suite, tmp_path: Path) -> None:
    model = word_ngram()
    figures = score_suite(model, suite)
    assert figures["wrong"] == [3]
    assert (figures["accuracy"], figures["pairs"]) == (pytest.approx(200 / 3), 3)
    assert list(figures["predictions"].values()) == [pytest.approx(200 / 3), 100.0]
    assert figures["unknown"] == pytest.approx(100 / 3)  # yak
    assert figures["known_pairs"] == 3  # the compared words are known
    # An item is right only if every prediction holds.
    both = read_suite(
        write_suite(tmp_path / "b.json", formulas=["(2;%sing%) < (2;%mismatch%)", "(2;%sing%) > (2;%mismatch%)"])
    )
    assert score_suite(model, both)["accuracy"] == 0.0
    assert list(score_suite(model, both)["predictions"].values()) == [pytest.approx(200 / 3), pytest.approx(100 / 3)]
    rest = read_suite(
        write_suite(tmp_path / "c.json", formulas=["(4;%plural%) > 0 & (3;%plural%) = 0 & (*;%sing%) > 0"])
    )
    figures = score_suite(model, rest)
    assert (figures["accuracy"], figures["known_pairs"]) == (100.0, 0)
    total = read_suite(write_suite(tmp_path / "d.json", formulas=["(*;%sing%) = (1;%sing%) + (2;%sing%) + (4;%sing%)"]))
    assert score_suite(model, total)["accuracy"] == 100.0
    tie = read_suite(write_suite(tmp_path / "e.json", formulas=["(1;%sing%) < (1;%mismatch%)"]))
    assert score_suite(model, tie)["accuracy"] == 0.0


def test_circuits_are_means_over_suites_and_published_models_stand_beside_them(tmp_path: Path) -> None:
    for name, formulas in (
        ("number_a", ["(2;%sing%) < (2;%mismatch%)"]),
        ("number_b", ["0 < 1"]),
        ("npz_c", ["1 < 0"]),
    ):
        write_suite(tmp_path / f"{name}.json", formulas=formulas, meta={"name": name})
    (tmp_path / "pairs.csv").write_text("condition,context,right,wrong\none,the cat,sits,sit\ntwo,the mouse,runs,run\n")
    (tmp_path / "published.tsv").write_text(
        "model\tnumber_a\tnumber_b\tnpz_c\tmean\ngrnn\t0.5\t.25\t\t0.4\nx\t1\t1.0\t0\t\n"
    )
    suites, pair_sets = read_sets([tmp_path, tmp_path / "pairs.csv"])
    assert [suite.meta.name for suite in suites] == ["npz_c", "number_a", "number_b"]
    assert list(pair_sets) == [("minimal pairs", "pairs")]
    published = read_published(tmp_path / "published.tsv", ["grnn"])
    model = word_ngram()
    report = evaluate_suites(model, suites, pair_sets, published=published)
    row = report.get_mean(group="Agreement")
    assert (row["accuracy"], row["pairs"]) == (pytest.approx(100 * (2 / 3 + 1) / 2), 6)
    assert row["published"] == {"grnn": 37.5, "x": 100.0}
    assert report.get_mean()["accuracy"] == pytest.approx(100 * (2 / 3 + 1 + 0) / 3)
    assert report.get_mean()["published"] == {"x": pytest.approx(200 / 3)}  # grnn lacks a suite
    assert row["interval"][0] < row["accuracy"] < row["interval"][1]
    expected = agreement(model, read_pairs(tmp_path / "pairs.csv"))
    conditions = [row for row in report.rows if row["source"] == "minimal pairs" and row["suite"]]
    assert [row["accuracy"] for row in conditions] == [
        100 * expected.of(name).model.share.value for name in ("one", "two")
    ]
    assert report.get_mean("minimal pairs")["accuracy"] == 50.0
    assert json.loads(json.dumps(report.as_dict()))["rows"][0]["suite"] == ""
    assert len(report.table().rows) == len(report.rows) == 3 + 3 + 4


def test_the_untrained_network_is_a_control(suite: Suite) -> None:
    model = word_model()
    with_control = evaluate_suites(model, [suite], seed=1).rows[-1]
    assert with_control["untrained"] is not None
    assert evaluate_suites(model, [suite], control=False).rows[-1]["untrained"] is None
    assert evaluate_suites(word_ngram(), [suite]).rows[-1]["untrained"] is None


def test_paradigms_of_blimp_are_grouped_by_phenomenon(tmp_path: Path) -> None:
    def line(good: str, bad: str, term: str) -> str:
        return json.dumps({"sentence_good": good, "sentence_bad": bad, "linguistics_term": term}) + "\n"

    (tmp_path / "a.jsonl").write_text(line("the cat sits .", "the cat sit .", "s-selection"))
    (tmp_path / "b.jsonl").write_text(line("the cats sit .", "the cats sits .", "argument_structure"))
    (tmp_path / "c.jsonl").write_text(line("the mouse runs .", "the mouse run .", "binding"))
    report = evaluate_suites(word_ngram(), *read_sets([tmp_path]))
    names = [(row["source"], row["group"], row["suite"]) for row in report.rows]
    assert names == [("BLiMP", group, suite) for group, suite in [("", ""), ("argument_structure", ""),
        ("argument_structure", "a"), ("argument_structure", "b"), ("binding", ""), ("binding", "c")]]  # fmt: skip
    assert [report.get_mean("BLiMP", group)["accuracy"] for group in ("argument_structure", "binding")] == [100.0, 0.0]


@pytest.mark.parametrize(
    ("text", "error", "message"),
    [
        ("model\ta\ngrnn\t1.5\n", CorpusError, "published.tsv:2: expected accuracies from 0 to 1, not '1.5'"),
        ("model\ta\ngrnn\tnan\n", CorpusError, "'nan'"),
        ("system\ta\ngrnn\t1\n", CorpusError, "has no column model"),
        ("model\ta\njrnn\t1\n", SettingError, "has no model 'grnn'; it has jrnn"),
    ],
)
def test_broken_published_tables(text: str, error: type[Exception], message: str, tmp_path: Path) -> None:
    (tmp_path / "published.tsv").write_text(text)
    with pytest.raises(error, match=message):
        read_published(tmp_path / "published.tsv", ["grnn"])


def test_the_interval_of_a_mean_covers_it() -> None:
    """The interval of one estimate is its own; that of a mean covers the truth in about 95% of samples."""
    one = wilson(3, 10)
    assert mean_interval([one]) == pytest.approx(one)
    generator, shares, sizes = np.random.default_rng(0), np.array([0.05, 0.5, 0.9]), np.array([20, 38, 24])
    draws = generator.binomial(sizes, shares, size=(2000, 3))
    intervals = [mean_interval([wilson(x, n) for x, n in zip(row, sizes, strict=True)]) for row in draws.tolist()]
    assert 0.93 < np.mean([low <= shares.mean() <= high for _, low, high in intervals]) < 0.98
    assert mean_interval([Interval(0.0, 0.0, 0.2), Interval(1.0, 0.8, 1.0)]) == pytest.approx((0.5, 0.4, 0.6))


def test_the_published_suites_and_models(data: Callable[[str], Path]) -> None:
    folder = data("tasks/syntaxgym")
    published = read_published(folder / "published.tsv", ["grnn", "jrnn", "gpt-2-pretrained", "rnng_bllip-lg"])
    suites, _ = read_sets([folder])
    report = evaluate_suites(word_ngram(), suites, published=published)
    means = report.get_mean()["published"]
    assert {name: round(means[name], 2) for name in ("grnn", "jrnn")} == {"grnn": 53.62, "jrnn": 60.40}
    assert "random" not in means  # it has no figures
    assert sum(bool(row["suite"]) for row in report.rows) == 20
    assert make_suite().keys() <= json.loads((folder / "cleft.json").read_text()).keys()
