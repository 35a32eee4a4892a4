"""A loaded model may be used from any thread and gives the same numbers; so may every kind of model."""

import copy
import os
import random
import signal
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import relmo
from relmo.embedding import engine
from relmo.embedding.engine import Embedder
from relmo.explorer.session import Session
from relmo.models.bilm import BiLM
from relmo.models.evaluate import full_precision
from relmo.models.vectors import WordVectors
from relmo.networks.elmo import Elmo
from relmo.nn.kernels import CACHE, cached
from relmo.tasks.features import WordFeatures, count_words
from relmo.tasks.tagger import Tagger
from relmo.tasks.task import Labels
from support.at_once import at_once
from support.small_models import SENTENCES, TEXT, bilm, language_model, ngram_model
from support.tagging import settings, tiny_bilm

THREADS = 4


def calls_of(count: int, seed: int, sentences: int = 12) -> list[list[list[str]]]:
    """Calls of `embed`: sentences of words of which most are known from other calls, and some are new."""
    rng = random.Random(seed)
    common = [f"word{i * i}" for i in range(40)]
    made = []
    for call in range(count):
        words = [*common, *(f"new{seed}-{call}-{i}" for i in range(10))]
        made.append([[rng.choice(words) for _ in range(rng.randint(0, 15))] for _ in range(sentences)])
    return made


def same(found: list[np.ndarray], expected: list[np.ndarray]) -> bool:
    return len(found) == len(expected) and all(np.array_equal(a, b) for a, b in zip(found, expected, strict=True))


def with_little_room(model: BiLM) -> BiLM:
    """The model with an engine that forgets words all the time."""
    vars(model)["embedder"] = Embedder(
        model.network,
        max_characters=model.settings.model.max_characters,
        precision=model.precision,
        cached_vectors=60,
        cached_gates=30,
        chunk_bytes=1 << 14,
    )
    return model


@pytest.mark.parametrize("precision", ["float32", "int8"])
@pytest.mark.parametrize("layers", ["all", 0, "average"])
def test_vectors_are_those_of_one_thread_and_so_they_are_afterwards(precision: Any, layers: Any) -> None:
    calls = [calls_of(5, seed) for seed in range(THREADS)]
    alone, shared = bilm(), with_little_room(bilm())
    alone.precision = shared.precision = precision
    expected = [[alone.embed(call, layers=layers) for call in each] for each in calls]
    found = at_once(lambda i: [shared.embed(call, layers=layers) for call in calls[i]], THREADS)
    afterwards = [[shared.embed(call, layers=layers) for call in each] for each in calls]
    for i in range(THREADS):
        for k in range(5):
            assert same(found[i][k], expected[i][k])
            assert same(afterwards[i][k], expected[i][k])


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["float32", "int8"])
def test_the_bundled_model_gives_every_thread_the_vectors_of_one(
    precision: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("relmo.embedding.engine.WINDOW_TOKENS", (60, 60))  # several turns in a call
    lines = Path(relmo.__file__).with_name("data").joinpath("alice.txt").read_text(encoding="utf-8").split("\n")
    alone, shared = relmo.load("small", device="cpu"), relmo.load("small", device="cpu")
    alone.precision = shared.precision = precision
    with_little_room(shared)
    expected = [alone.embed(lines[12 * i : 12 * i + 12]) for i in range(THREADS)]
    found = at_once(lambda i: shared.embed(lines[12 * i : 12 * i + 12]), THREADS)
    assert all(same(found[i], expected[i]) for i in range(THREADS))
    assert all(same(shared.embed(lines[12 * i : 12 * i + 12]), expected[i]) for i in range(THREADS))


def test_streams_that_are_read_in_turns_by_one_thread_or_by_several_keep_their_words(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("relmo.embedding.engine.WINDOW_TOKENS", (40, 40))
    first, second = ([sentence for call in calls_of(4, seed) for sentence in call] for seed in (1, 2))
    expected = bilm().embed(first), bilm().embed(second)
    shared = with_little_room(bilm())
    in_turns = list(zip(shared.embed_stream(first), shared.embed_stream(second), strict=True))
    assert same([a for a, _ in in_turns], expected[0])
    assert same([b for _, b in in_turns], expected[1])
    found = at_once(lambda i: list(shared.embed_stream((first, second)[i % 2])), THREADS)
    assert all(same(each, expected[i % 2]) for i, each in enumerate(found))


def test_batches_with_carried_state_go_on_from_each_other_as_they_come() -> None:
    sentences, shared, alone = [["the", "cat", "sat"]], bilm(), bilm()

    def four(embed: Callable[[], np.ndarray]) -> list[bytes]:
        return [embed().tobytes() for _ in range(4)]

    elmo, other = (Elmo(bilm(), mixes=0, state="carry").eval() for _ in range(2))

    def layers(module: Elmo) -> np.ndarray:
        with torch.no_grad():
            ids = module.ids(sentences)
            mask = (ids > 0).any(dim=2)
            return module.read(*module.encode(ids, mask), mask)[0].numpy()

    ways: list[tuple[Callable[[], np.ndarray], Callable[[], np.ndarray]]] = [
        (
            lambda: shared.embed(sentences, state="carry", batch_size=1)[0],
            lambda: alone.embed(sentences, state="carry", batch_size=1)[0],
        ),
        (lambda: layers(elmo), lambda: layers(other)),
    ]
    for from_threads, from_one in ways:
        expected = [vectors for _ in range(THREADS) for vectors in four(from_one)]
        assert len(set(expected)) == len(expected)
        found = at_once(lambda _, embed=from_threads: four(embed), THREADS)  # type: ignore[misc]
        assert sorted(vectors for each in found for vectors in each) == sorted(expected)
    shared.reset_states()
    alone.reset_states()
    assert four(ways[0][0]) == four(ways[0][1])


def test_warming_up_is_each_calls_own() -> None:
    calls = calls_of(THREADS, 3)
    expected = [bilm().embed(call, state="warmup", batch_size=3) for call in calls]
    shared = with_little_room(bilm())
    found = at_once(lambda i: [shared.embed(calls[i], state="warmup", batch_size=3) for _ in range(3)], THREADS)
    assert all(same(each, expected[i]) for i in range(THREADS) for each in found[i])


def test_a_call_keeps_the_precision_it_began_with(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("relmo.embedding.engine.WINDOW_TOKENS", (40, 40))
    (sentences,) = calls_of(1, 5, sentences=30)
    alone, shared = bilm(), bilm()
    expected = {}
    for precision in ("float32", "int8"):
        alone.precision = precision  # type: ignore[assignment]
        expected[precision] = alone.embed(sentences), alone.log_probs(sentences)

    def work(number: int) -> list[tuple[list[np.ndarray], list[np.ndarray]]]:
        if number:
            return [(shared.embed(sentences), shared.log_probs(sentences)) for _ in range(3)]
        for i in range(200):
            shared.precision = ("float32", "int8")[i % 2]  # type: ignore[assignment]
        return []

    for each in at_once(work, THREADS):
        for vectors, scores in each:
            assert any(same(vectors, one) for one, _ in expected.values())
            assert any(same(scores, one) for _, one in expected.values())


def test_a_thread_in_torchs_inference_mode_leaves_the_model_usable_for_others() -> None:
    calls = calls_of(2, 1)
    expected, model = [bilm().embed(call) for call in calls], bilm()
    with torch.inference_mode():
        assert same(model.embed(calls[0]), expected[0])
        assert torch.is_inference_mode_enabled()
    assert same(at_once(lambda _: model.embed(calls[1]), 1)[0], expected[1])


def test_all_threads_get_the_same_engine_and_a_copy_makes_its_own() -> None:
    model = bilm()
    engines = at_once(lambda _: model.embedder, 8)
    assert all(engine is engines[0] for engine in engines)
    expected = model.embed(["the cat"])

    def work(number: int) -> list[list[np.ndarray]]:
        if number:
            return [model.embed(call) for call in calls_of(8, number)]
        return [copy.deepcopy(model).embed(["the cat"]) for _ in range(20)]

    assert all(same(found, expected) for found in at_once(work, THREADS)[0])
    twin = copy.copy(model)
    twin.precision = "int8"
    assert twin.network is model.network
    assert twin.embedder is not model.embedder
    assert model.embedder.precision == "float32"


def test_scores_of_sentences_and_files_are_those_of_one_thread(tmp_path: Path) -> None:
    file = tmp_path / "text.txt"
    file.write_text(SENTENCES, encoding="utf-8")

    def scores(model: BiLM) -> tuple[Any, ...]:
        found = model.log_probs(SENTENCES.splitlines())
        first = [tensor.numpy().tobytes() for tensor in model.embedder.after_boundary()[0]]
        return [each.tobytes() for each in found], model.evaluate(str(file)), first

    expected, shared = scores(bilm()), bilm()
    for _ in range(3):
        assert at_once(lambda _: scores(shared), THREADS) == [expected] * THREADS
        shared.embedder.forget_words()


@pytest.mark.parametrize("kind", ["lstm", "gru", "elman", "ngram"])
def test_a_language_model_writes_and_scores_the_same_from_every_thread(kind: str) -> None:
    def made() -> Any:
        return ngram_model() if kind == "ngram" else language_model(kind)

    def work(model: Any, seed: int) -> tuple[Any, ...]:
        texts = [model.generate("the ", seed=seed + i, limit=20, temperature=1.5) for i in range(3)]
        p, _ = model.step(torch.tensor([2, 3]))
        return texts, model.generate("a", beams=3, limit=10), model.perplexity(TEXT), p.numpy().tobytes()

    alone, shared = made(), made()
    expected = [work(alone, 10 * i) for i in range(THREADS)]
    assert len({tuple(texts) for texts, *_ in expected}) == THREADS
    assert at_once(lambda i: work(shared, 10 * i), THREADS) == expected


def test_tf32_is_off_until_the_last_who_wants_it_off_has_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", True)
    first, second = full_precision(), full_precision()
    seen = []
    for step in (first.__enter__, second.__enter__):
        step()
        seen.append(torch.backends.cudnn.allow_tf32)
    for leave in (first, second):
        leave.__exit__(None, None, None)
        seen.append(torch.backends.cudnn.allow_tf32)
    assert seen == [False, False, False, True]


def test_threads_leave_warnings_as_they_are() -> None:
    model = language_model("lstm")
    before = {repr(each) for each in warnings.filters}
    for _ in range(20):
        at_once(lambda _: [model.perplexity("the cat") for _ in range(3)], THREADS)
    new = [each for each in warnings.filters if repr(each) not in before]
    assert all(message is not None for _, message, *_ in new)  # none that is of all warnings


@pytest.mark.parametrize("elmo", [False, True])
def test_a_task_predicts_the_same_from_every_thread_and_counts_all_words_that_were_cut(elmo: bool) -> None:
    sentences = [sentence for call in calls_of(4, 1) for sentence in call] + [["x" * 40]]

    def tagger() -> Tagger:
        torch.manual_seed(0)
        made = settings(input={"elmo": "x"} if elmo else {}, model={"decoder": "crf"})
        reads = with_little_room(tiny_bilm()) if elmo else None
        known = WordFeatures(made.input, count_words(sentences, made.input), bilm=reads)
        return Tagger(made, known, {"labels": Labels(["NOUN", "DET", "VERB"])}).initialize()

    shared, expected = tagger(), tagger().predict(sentences)
    assert len({tuple(found.tags) for found in expected}) > 5
    assert at_once(lambda _: shared.predict(sentences), THREADS) == [expected] * THREADS
    if elmo:
        assert shared.features.cut.count == THREADS


def test_word_vectors_have_the_same_neighbours_from_every_thread() -> None:
    vectors = relmo.load("words", device="cpu")
    assert isinstance(vectors, WordVectors)
    asked = ["king", "water", "red", "run"]
    found = at_once(lambda i: vectors.most_similar(asked[i]), THREADS)
    assert found == [vectors.most_similar(word) for word in asked]


def test_the_explorers_answers_do_not_depend_on_what_else_is_asked() -> None:
    texts = ["\n".join(" ".join(words) for call in calls_of(30, seed) for words in call) for seed in range(THREADS)]

    def answers(session: Session, number: int) -> list[Any]:
        name = session.add(texts[number])["text"]
        return [
            session.answer("overview", {"text": name, "unit": "c0.3"}),
            session.answer("values", {"text": name, "page": "2", "unit": "h1.2b"}),
            session.answer("expected", {"text": name, "page": "0"}),
        ]

    expected = [answers(Session(bilm(), "mine"), i) for i in range(THREADS)]
    shared = Session(with_little_room(bilm()), "mine")
    assert at_once(lambda i: answers(shared, i), THREADS) == expected


def test_what_is_made_of_weights_is_right_for_every_thread_and_goes_with_them() -> None:
    weights = [torch.full((300,), float(i)) for i in range(3)]
    before = len(CACHE)

    def work(number: int) -> bool:
        right = True
        for i in range(200):
            weight = weights[(number + i) % 3]
            right &= bool(cached("twice", [weight], lambda weight=weight: 2 * weight)[0] == 2 * weight[0])  # type: ignore[misc]
            own = torch.full((300,), float(i))
            right &= bool(cached("twice", [own], lambda own=own: 2 * own)[0] == 2 * i)  # type: ignore[misc]
        return right

    assert all(at_once(work, THREADS))
    assert len(CACHE) == before + 3
    weights.clear()
    assert len(CACHE) == before


def test_results_that_come_from_a_gpu_pass_one_after_another_through_the_room_they_share(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    held: list[bool] = []
    room = torch.empty(100)
    monkeypatch.setattr(engine, "staging_buffer", lambda: held.append(engine.STAGING_LOCK.locked()) or room)
    results = engine.ResultsOnGPU(np.array([3, 2]), 0, [0], 1, 4, device=torch.device("cpu"))
    results.put_words(torch.arange(10.0).view(5, 2), np.arange(5), np.array([0, 3]))
    first, second = results.arrays()
    assert held == [True]
    assert not engine.STAGING_LOCK.locked()
    assert first[0, :, 0].tolist() == [0, 2, 4]
    assert second[0, :, 3].tolist() == [7, 9]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_child_that_is_forked_while_a_thread_computes_computes_the_same() -> None:
    model = bilm()
    expected = model.embed(["the cat sat"])[0]
    with model.embedder.lock:  # as a thread holds it that does not exist in the child
        model.embedder.cache.changing = True
        child = os.fork()
        if child == 0:
            torch.set_num_threads(1)  # OpenMP's threads do not exist in the child either
            signal.alarm(60)  # a deadlock ends the child
            os._exit(0 if np.array_equal(model.embed(["the cat sat"])[0], expected) else 1)
        model.embedder.cache.changing = False
    assert os.waitpid(child, 0)[1] == 0
    assert np.array_equal(model.embed(["the cat sat"])[0], expected)


@pytest.mark.parametrize("compute", [lambda: bilm().embed(["the cat"]), lambda: language_model().perplexity(TEXT)])
def test_computing_leaves_the_filters_of_warnings_as_they_are(compute: Callable[[], Any]) -> None:
    compute()
    with warnings.catch_warnings():
        warnings.resetwarnings()
        warnings.simplefilter("default")
        before = list(warnings.filters)
        compute()
        assert warnings.filters == before
