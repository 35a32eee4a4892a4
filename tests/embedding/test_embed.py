"""Vectors of sentences: those of the definition, of the original model, and the same whatever stands beside them."""

import json
import random
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import relmo
from relmo.embedding import engine
from relmo.embedding.engine import Embedder, groups
from relmo.errors import SettingError
from relmo.models.bilm import BiLM
from relmo.networks.bilm import BiLMNetwork
from relmo.nn.recurrence.elmo_lstm import ElmoLSTM
from relmo.settings.bilm import BiLMModelSettings, BiLMSettings, BiLMTextSettings
from relmo.settings.options import EmbedOptions
from relmo.text.characters import BOS, EOS, character_ids
from relmo.text.vocabulary import SentenceVocabulary

TINY = BiLMModelSettings(char_dim=4, filters=("1x8", "2x8", "3x16", "4x32"), hidden=64, projection=16)
LARGER = BiLMModelSettings(filters=("1x16", "3x64", "7x128"), highway=2, hidden=256, projection=96, layers=3)
WORDS = BiLMModelSettings(input="word", hidden=32, projection=8)
SENTENCES = [
    ["The", "bank", "of", "the", "river", "."],
    [],
    ["A", "bank", "lends", "money", ",", "and", "then", "it", "asks", "for", "more", "of", "it", "."],
    ["naïve", "日本語", ""],
    ["x"],
    ["The", "bank", "of", "the", "river", "."],
    [BOS, "inside", EOS],
]


def make(model: BiLMModelSettings, vocabulary: SentenceVocabulary | None = None, **text: bool) -> BiLM:
    torch.manual_seed(1)
    network = BiLMNetwork(model, vocab_size=None if vocabulary is None else len(vocabulary))
    return BiLM(network, BiLMSettings(model=model, text=BiLMTextSettings(**text)), vocabulary)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def tiny() -> BiLM:
    return make(TINY)


@pytest.fixture(scope="module")
def larger() -> BiLM:
    return make(LARGER)


def defined(model: BiLM, sentence: list[str]) -> np.ndarray:
    """By the network's own forward pass, one sentence at a time, every word spelled out in full."""
    words = [BOS, *sentence, EOS]
    if model.vocabulary is None:
        ids = torch.from_numpy(character_ids(words, model.settings.model.max_characters))
    else:
        ids = torch.from_numpy(model.vocabulary.ids(words))
    with torch.no_grad():
        tokens = model.network.encoder(ids).unsqueeze(0)
        layers = model.network(tokens, torch.tensor([len(words)])).layers
    return layers[:, 0, 1:-1].numpy()


@pytest.mark.parametrize("name", ["tiny", "larger"])
def test_vectors_are_those_of_the_definition(name: str, request: pytest.FixtureRequest) -> None:
    model: BiLM = request.getfixturevalue(name)
    for sentence, vectors in zip(SENTENCES, model.embed(SENTENCES), strict=True):
        assert vectors.dtype == np.float32
        assert vectors.shape == (model.network.layer_count, len(sentence), model.network.size)
        np.testing.assert_allclose(vectors, defined(model, sentence), atol=2e-6)


def test_a_model_with_word_input_looks_words_up_and_takes_others_for_unknown() -> None:
    model = make(WORDS, SentenceVocabulary([*SentenceVocabulary.specials, "the", "bank"]))
    sentences = [["the", "bank"], ["no", "such", "the"], ["x" * 200]]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = model.embed(sentences)
    for sentence, vectors in zip(sentences, found, strict=True):
        np.testing.assert_allclose(vectors, defined(model, sentence), atol=2e-6)
    assert np.array_equal(found[1][0, 0], found[1][0, 1])


def test_layers_are_chosen_by_name_and_number(tiny: BiLM) -> None:
    whole = tiny.embed(SENTENCES)
    for layers, expected in {
        "top": [v[-1] for v in whole],
        0: [v[0] for v in whole],
        1: [v[1] for v in whole],
        "average": [v.mean(axis=0) for v in whole],
    }.items():
        found = tiny.embed(SENTENCES, layers=layers)  # type: ignore[arg-type]
        for a, b in zip(found, expected, strict=True):
            assert a.shape == b.shape
            np.testing.assert_allclose(a, b, atol=1e-7)


def test_a_string_is_split_as_the_model_splits_and_a_list_is_kept() -> None:
    model = make(TINY, lowercase=True)
    text, lower, kept = model.embed(["The river.", ["the", "river", "."], ["The", "river", "."]])
    assert np.array_equal(text, lower)
    assert not np.array_equal(text, kept)


@pytest.mark.parametrize("name", ["tiny", "larger"])
@settings(deadline=None, max_examples=12)
@given(data=st.data())
def test_no_bit_depends_on_order_batches_caches_or_chunks(name: str, data: st.DataObject) -> None:
    model, sentences, alone = by_itself(name)
    order = data.draw(st.lists(st.integers(0, len(sentences) - 1), min_size=1, max_size=120))
    embedder = Embedder(
        model.network,
        max_characters=50,
        cached_vectors=data.draw(st.sampled_from([1, 40, 1000])),
        cached_gates=data.draw(st.sampled_from([1, 20, 40, 1000])),
        chunk_bytes=data.draw(st.sampled_from([1, 6_000, 1 << 17, 1 << 26])),
    )
    options = EmbedOptions(
        batch_size=data.draw(st.none() | st.integers(1, 50)),
        tokens_per_batch=data.draw(st.none() | st.integers(1, 500)),
    )
    for i, vectors in zip(order, embedder.stream([sentences[i] for i in order], options), strict=True):
        assert np.array_equal(vectors, alone[i])


_alone: dict[str, tuple[BiLM, list[list[str]], list[np.ndarray]]] = {}


def by_itself(name: str) -> tuple[BiLM, list[list[str]], list[np.ndarray]]:
    """A model, sentences of many lengths, and the vectors of each embedded by itself; made once."""
    if name not in _alone:
        model = make({"tiny": TINY, "larger": LARGER}[name])
        rng = random.Random(3)
        vocabulary = ["".join(rng.choices("abcdefghijklmnop", k=rng.randint(1, 14))) for _ in range(80)] + ["z" * 48]
        sentences = [rng.choices(vocabulary, k=rng.choice([0, 1, 2, 5, 9, 20, 60])) for _ in range(60)]
        _alone[name] = (model, sentences, [model.embed([sentence])[0] for sentence in sentences])
    return _alone[name]


def test_a_long_sentence_in_many_chunks_has_the_bits_of_one_run_whole(tiny: BiLM) -> None:
    sentence = [f"w{i % 97}" for i in range(3000)]
    at_once = Embedder(tiny.network, max_characters=50, chunk_bytes=1 << 30)
    in_chunks = Embedder(tiny.network, max_characters=50, cached_gates=40, chunk_bytes=1 << 15)
    a, b = (next(e.stream([sentence], EmbedOptions())) for e in (at_once, in_chunks))
    assert in_chunks.chunk_tokens <= 128
    assert np.array_equal(a, b)
    np.testing.assert_allclose(a, defined(tiny, sentence), atol=2e-6)


def test_one_step_with_more_words_than_there_is_room_for_takes_the_room(tiny: BiLM) -> None:
    sentences = [["same", f"x{i}"] for i in range(9)]  # forwards one word at the first step, backwards nine
    crowded = Embedder(tiny.network, max_characters=50, cached_vectors=1, cached_gates=1, chunk_bytes=1)
    for one, other in zip(crowded.stream(sentences, EmbedOptions()), tiny.embed(sentences), strict=True):
        assert np.array_equal(one, other)


LONG = """
import re, torch
from pathlib import Path
torch.set_num_threads(1)
from relmo.models.bilm import BiLM
from relmo.networks.bilm import BiLMNetwork
from relmo.settings.bilm import BiLMModelSettings, BiLMSettings
settings = BiLMSettings(model=BiLMModelSettings(filters=("1x32", "2x32"), hidden=512, projection=128, layers=1))
model = BiLM(BiLMNetwork(settings.model, vocab_size=None), settings)
model.embed([["warm"]] * 20)
peak = lambda: int(re.search(r"VmHWM:\\s*(\\d+)", Path("/proc/self/status").read_text())[1]) / 1024
before = peak()
(vectors,) = model.embed([[f"w{i % 500}" for i in range(8_000)]])
print(vectors.nbytes / 2**20, peak() - before)
"""


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the peak of memory is read from /proc")
def test_a_long_sentence_takes_little_memory_beside_its_result() -> None:
    """All gates of this one at once would take 2 GB, with the rows that fill it up; its result takes 16 MB."""
    done = subprocess.run([sys.executable, "-c", LONG], capture_output=True, text=True, check=True)
    result, extra = map(float, done.stdout.split())
    assert 15 < result < extra < result + 60


def test_the_original_models_vectors_come_out_with_carried_state(data: Callable[[str], Path]) -> None:
    folder = data("parity/lm_weights.hdf5").parent
    model = relmo.load((folder / "options.json", folder / "lm_weights.hdf5"), device="cpu")
    assert isinstance(model, BiLM)
    columns = json.loads((folder / "lm_embeddings_sentences.json").read_text())
    sentences = [columns[row][batch].split() for batch in range(10) for row in range(3)]
    found = model.embed(sentences, state="carry", batch_size=3)
    with h5py.File(folder / "all_layers_tf.hdf5") as expected:
        for i, vectors in enumerate(found):
            assert np.abs(vectors - expected[f"{i // 3}/{i % 3}"][:]).max() < 2e-6
    for row in range(3):
        with h5py.File(folder / f"lm_embeddings_{row}.hdf5") as expected:
            for batch in range(10):
                top = np.concatenate(list(expected[str(batch)][:]), axis=-1)
                assert np.abs(found[3 * batch + row][-1] - top).max() < 2e-6


def carried(model: BiLM, batches: list[list[list[str]]], rows: int) -> Iterator[np.ndarray]:
    """The definition of carried state: each row by itself, through the network's own forward pass."""
    states = [model.network.initial_state(1) for _ in range(rows)]
    for batch in batches:
        for row, sentence in enumerate(batch):
            words = [BOS, *sentence, EOS]
            with torch.no_grad():
                tokens = model.network.encoder(torch.from_numpy(character_ids(words, 50))).unsqueeze(0)
                output = model.network(tokens, torch.tensor([len(words)]), states[row])
            states[row] = output.state
            yield output.layers[:, 0, 1:-1].numpy()


def test_state_is_carried_by_row_over_batches_of_any_size_and_over_calls_until_reset(tiny: BiLM) -> None:
    batches = [SENTENCES[:2], SENTENCES[2:5], SENTENCES[5:6], SENTENCES[2:5]]  # smaller ones, and new rows
    expected = list(carried(tiny, batches, 3))
    tiny.reset_states()
    for _ in range(2):
        found = [v for batch in batches for v in tiny.embed(batch, state="carry", batch_size=len(batch))]
        for a, b in zip(found, expected, strict=True):
            np.testing.assert_allclose(a, b, atol=2e-6)
        tiny.embed(SENTENCES)
        tiny.embed(SENTENCES, state="warmup", batch_size=2)
        assert not np.allclose(tiny.embed(batches[0], state="carry", batch_size=2)[0], expected[0], atol=1e-4)
        tiny.reset_states()


def test_state_goes_on_though_only_the_words_own_vectors_are_asked_for(tiny: BiLM) -> None:
    tiny.reset_states()
    tiny.embed(SENTENCES[:2], state="carry", batch_size=2, layers=0)
    found = tiny.embed(SENTENCES[2:4], state="carry", batch_size=2)
    tiny.reset_states()
    for a, b in zip(found, list(carried(tiny, [SENTENCES[:2], SENTENCES[2:4]], 2))[2:], strict=True):
        np.testing.assert_allclose(a, b, atol=2e-6)


def test_warm_up_runs_the_first_batch_for_its_states_and_starts_afresh_at_every_call(tiny: BiLM) -> None:
    batches = [SENTENCES[:3], SENTENCES[3:6]]
    expected = list(carried(tiny, [batches[0], *batches], 3))[3:]
    for _ in range(2):
        for a, b in zip(tiny.embed(SENTENCES[:6], state="warmup", batch_size=3), expected, strict=True):
            np.testing.assert_allclose(a, b, atol=2e-6)


def test_a_stream_reads_ahead_a_little_and_keeps_the_order(tiny: BiLM) -> None:
    read = 0

    def endless() -> Iterator[list[str]]:
        nonlocal read
        while True:
            read += 1
            yield ["w"] * (read % 7) + [str(read)]

    stream = tiny.embed_stream(endless(), layers=0)
    first = [next(stream) for _ in range(50)]
    assert read < 30_000
    for i, vectors in enumerate(first, start=1):
        assert np.array_equal(vectors, tiny.embed([["w"] * (i % 7) + [str(i)]], layers=0)[0])


def test_an_interruption_leaves_no_word_without_its_vector(monkeypatch: pytest.MonkeyPatch) -> None:
    model = make(TINY)
    model.embed(SENTENCES[:1])
    with monkeypatch.context() as patch:
        patch.setattr(type(model.network.encoder), "forward", interrupt)
        with pytest.raises(KeyboardInterrupt):
            model.embed(SENTENCES)
    for sentence, vectors in zip(SENTENCES, model.embed(SENTENCES), strict=True):
        np.testing.assert_allclose(vectors, defined(model, sentence), atol=2e-6)


def interrupt(*_: object, **__: object) -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize(
    "part",
    ["encoder.cnn.embedding", "encoder.highways.0.carry.weight", "lstm.layers.0.bias", "lstm.layers.1.weight_hh"],
)
def test_changed_weights_change_the_vectors(part: str) -> None:
    model = make(TINY)
    model.embed(SENTENCES)
    with torch.no_grad():
        model.network.get_parameter(part).mul_(1.5).add_(0.1)
    np.testing.assert_allclose(model.embed(SENTENCES)[0], defined(model, SENTENCES[0]), atol=2e-6)


def test_a_boundary_is_a_constant_not_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    model = make(LARGER)
    model.embed([["x"]])
    steps: list[list[int]] = []
    infer = ElmoLSTM.infer

    def count(self: ElmoLSTM, gates: Any, words: Any, state: Any, sizes: list[int], **options: Any) -> Any:
        steps.append(sizes)
        return infer(self, gates, words, state, sizes, **options)

    monkeypatch.setattr(ElmoLSTM, "infer", count)
    found = model.embed([["a", "b", "c"], ["d"], []])
    assert steps == [[2, 1, 1]]  # as many steps as words, and none on boundaries
    for sentence, vectors in zip((["a", "b", "c"], ["d"]), found, strict=False):
        np.testing.assert_allclose(vectors, defined(model, sentence), atol=2e-6)


def test_the_boundaries_state_is_that_of_the_definition_and_computed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    model = make(TINY)
    with torch.no_grad():
        state = model.embedder.after_boundary()[0]
        ends = model.network.encoder(torch.from_numpy(character_ids([BOS, EOS], 50)))  # (2, P)
        expected = model.network.lstm(ends.view(2, 1, 1, -1)).state
        for tensor, other in zip(state, expected, strict=True):
            assert tensor.shape == other.shape
            np.testing.assert_allclose(tensor, other, atol=1e-6)
        monkeypatch.setattr(ElmoLSTM, "infer", interrupt)
        assert model.embedder.after_boundary()[0] is state
        model.network.lstm.stack[1].weight_hh.mul_(2)
        with pytest.raises(KeyboardInterrupt):  # it would be computed anew
            model.embedder.after_boundary()


def cosine(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return (a * b).sum(axis=-1) / np.linalg.norm(a, axis=-1) / np.linalg.norm(b, axis=-1)


@pytest.mark.parametrize(("precision", "least"), [("bfloat16", 0.9999), ("int8", 0.999)])
def test_a_lower_precision_is_near_changes_at_any_time_and_never_depends_on_the_batch(
    precision: str, least: float
) -> None:
    model, sentences, alone = by_itself("larger")
    try:
        model.precision = precision  # type: ignore[assignment]
        found = model.embed(sentences)
        for vectors, exact, i in zip(found, alone, range(len(found)), strict=True):
            assert np.array_equal(vectors[0], exact[0])  # the words' own vectors stay float32
            assert (cosine(vectors[1:], exact[1:]) > least).all()
            assert not np.array_equal(vectors[-1], exact[-1]) or not len(sentences[i])
            assert np.array_equal(model.embed([sentences[i]])[0], vectors)
    finally:
        model.precision = "float32"
    assert np.array_equal(model.embed(sentences)[-1], alone[-1])


@pytest.mark.slow
def test_the_bundled_model_in_int8_keeps_a_mean_cosine_of_0_999_in_each_layer() -> None:
    """Training makes a few cells much louder than the rest, so weights as it starts tell little about this."""
    lines = (Path(relmo.__file__).parent / "data" / "sentences.txt").read_text(encoding="utf-8").splitlines()
    model = relmo.load("small", device="cpu")
    exact = model.embed(lines)
    model.precision = "int8"
    found = model.embed(lines)
    cosines = np.concatenate([cosine(a, b) for a, b in zip(found, exact, strict=True)], axis=1)  # (layers, tokens)
    assert cosines.shape[1] > 1000
    assert (cosines.mean(axis=1) >= 0.999).all(), cosines.mean(axis=1)
    assert (np.percentile(cosines, 1, axis=1) > 0.998).all()


def test_precisions_that_there_are_not_are_errors() -> None:
    model = make(TINY)
    with pytest.raises(SettingError, match="int4"):
        model.precision = "int4"  # type: ignore[assignment]
    model.device = torch.device("cuda")
    with pytest.raises(SettingError, match="int8"):
        model.precision = "int8"
    assert model.precision == "float32"


def test_words_that_are_cut_are_told_once_a_call_with_a_count_and_an_example(tiny: BiLM) -> None:
    long = "é" * 25  # 50 bytes, room for 48
    for _ in range(2):
        with pytest.warns(UserWarning, match=r"2 words .* 'ééé") as told:
            tiny.embed([["fits" * 12, long], [long]])
        assert len(told) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        tiny.embed([["fits" * 12], ["é" * 24]])


@pytest.mark.parametrize("pooling", ["mean", "max"])
def test_a_sentence_vector_pools_its_own_tokens_layer_by_layer(tiny: BiLM, pooling: str) -> None:
    whole = tiny.embed(SENTENCES)
    pooled = tiny.sentence_vectors(SENTENCES, layers="all", pooling=pooling)  # type: ignore[arg-type]
    assert pooled.shape == (len(SENTENCES), 3, 32)
    assert pooled.dtype == np.float32
    for vectors, mine in zip(whole, pooled, strict=True):
        for k in range(3):
            expected = getattr(np, pooling)(vectors[k], axis=0) if vectors.shape[1] else np.zeros(32)
            np.testing.assert_allclose(mine[k], expected, atol=1e-6)
    top = tiny.sentence_vectors(SENTENCES, layers="top", pooling=pooling)  # type: ignore[arg-type]
    assert np.array_equal(top, pooled[:, -1])


def test_a_sentence_vector_does_not_change_with_its_batch_mates(tiny: BiLM) -> None:
    alone = tiny.sentence_vectors([SENTENCES[0]])
    beside = tiny.sentence_vectors([["much", "longer"] * 30, SENTENCES[0], [], ["y"]])
    assert np.array_equal(alone[0], beside[1])
    assert not beside[2].any()
    assert tiny.sentence_vectors([]).shape == (0, 32)
    assert tiny.sentence_vectors([], layers="all").shape == (0, 3, 32)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"layers": 3}, "0 .* to 2"),
        ({"layers": "best"}, "'best'"),
        ({"state": "keep"}, "warmup"),
        ({"state": "carry"}, "batch_size"),
        ({"state": "carry", "batch_size": 2, "tokens_per_batch": 9}, "tokens_per_batch"),
        ({"batch_size": 0}, "batch_size"),
    ],
)
def test_options_that_make_no_sense_are_errors_at_once(tiny: BiLM, options: dict[str, object], says: str) -> None:
    with pytest.raises(SettingError, match=says):
        tiny.embed_stream([["a"]], **options)  # type: ignore[arg-type]


def test_sentences_that_are_no_sentences_are_errors(tiny: BiLM) -> None:
    with pytest.raises(SettingError, match=r"embed\(\[sentence\]\)"):
        tiny.embed("The bank .")
    with pytest.raises(SettingError, match="strings"):
        tiny.embed([["a", 3]])  # type: ignore[list-item]
    with pytest.raises(SettingError, match="pooling"):
        tiny.sentence_vectors([["a"]], pooling="sum")  # type: ignore[arg-type]


def test_gradients_are_neither_kept_nor_switched_off_for_the_caller(tiny: BiLM) -> None:
    for _ in tiny.embed_stream(SENTENCES):
        assert torch.is_grad_enabled()


@given(lengths=st.lists(st.integers(2, 60), max_size=60), budget=st.integers(1, 200), most=st.integers(1, 20))
def test_groups_hold_every_sentence_once_within_their_bounds(lengths: list[int], budget: int, most: int) -> None:
    found = [group.tolist() for group in groups(np.array(lengths, dtype=np.int64), budget, most)]
    assert sorted(i for group in found for i in group) == list(range(len(lengths)))
    for group in found:
        assert len(group) <= most
        assert len(group) == 1 or sum(lengths[i] for i in group) <= budget


@pytest.mark.parametrize("layers", ["all", "top", "average", 0])
@pytest.mark.parametrize("room", [40, 1 << 20])
def test_results_put_together_on_a_gpu_are_those_of_the_host(
    layers: Any, room: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "STAGING_SIZE", room)
    engine.staging_buffer.cache_clear()
    torch_empty = torch.empty
    if not torch.cuda.is_available():  # the same arithmetic on a CPU, whose memory cannot be pinned
        monkeypatch.setattr(torch, "empty", lambda *size, pin_memory=False, **more: torch_empty(*size, **more))
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    generator = np.random.default_rng(0)
    lengths, chosen = np.array([5, 4, 4, 2]), {"all": [0, 1, 2], "top": [2], "average": [0, 1, 2], 0: [0]}[layers]
    kept = len(chosen) if layers == "all" else 1
    vectors = torch.from_numpy(generator.standard_normal((30, 4)).astype(np.float32))
    words, starts = np.arange(15), np.array([0, 5, 9, 13])
    found = []
    for results in (
        engine.Results(lengths, 1, chosen, kept, 8),
        engine.ResultsOnGPU(lengths, 1, chosen, kept, 8, device=device),
    ):
        on = torch.device("cpu") if isinstance(results, engine.Results) else device
        if chosen[0] == 0:
            results.put_words(vectors.to(on), words, starts)
        if chosen != [0]:
            torch.manual_seed(1)
            for step, steps, rows in ((0, 2, 4), (2, 2, 3), (4, 1, 1)):
                layer = [torch.randn(2, steps, rows, 4).to(on) for _ in range(2)]
                results.put_chunk(step, steps, rows, layer)
        found.append(results.arrays())
    engine.staging_buffer.cache_clear()
    for a, b in zip(*found, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-6)


@pytest.mark.gpu
@pytest.mark.parametrize("layers", ["all", "top", "average", 0])
@pytest.mark.parametrize("state", ["reset", "carry"])
def test_on_a_gpu_vectors_are_those_of_a_cpu(layers: Any, state: Any) -> None:
    here = make(LARGER)
    there = BiLM(make(LARGER).network, here.settings, None, "cuda")
    sentences = SENTENCES * 3 + [["long"] * 300]
    for batch in (1, 4, 700):
        options = {"layers": layers, "state": state, "batch_size": batch}
        here.reset_states()
        there.reset_states()
        for a, b in zip(here.embed(sentences, **options), there.embed(sentences, **options), strict=True):
            np.testing.assert_allclose(a, b, atol=1e-4)
    there.precision = "bfloat16"
    for a, b in zip(here.embed(sentences), there.embed(sentences), strict=True):
        cosine = (a * b).sum(-1) / np.linalg.norm(a, axis=-1) / np.linalg.norm(b, axis=-1)
        assert cosine.size == 0 or cosine.min() > 0.999
