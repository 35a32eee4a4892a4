"""Weights in fewer bits and in several files come back as what they were, rounded; what does not fit is one line."""

import json
import math
import resource
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import relmo
from relmo.errors import ModelError
from relmo.models.bilm import BiLM
from relmo.models.lm import LanguageModel
from relmo.models.saved import pack
from relmo.models.vectors import WordVectors
from relmo.networks import make_language_model
from relmo.networks.bilm import BiLMNetwork
from relmo.networks.ngram import NGramLM
from relmo.nn.quantize import NF4_LEVELS, quantize
from relmo.settings.bilm import BiLMModelSettings, BiLMSettings
from relmo.settings.lm import LanguageModelSettings, LMSettings
from relmo.store.folder import (
    MB,
    STORED_PRECISIONS,
    StoredPrecision,
    TensorForm,
    WeightsRecord,
    as_rows,
    decode_tensor,
    encode_tensor,
    merge_forms,
    read_tensors,
    split_shards,
    stored_forms,
    write_tensors,
)
from relmo.text.vocabulary import SPECIALS, SentenceVocabulary, Vocabulary

WORDS = Vocabulary([*SPECIALS, *(f"w{i}" for i in range(300))])


def bilm() -> BiLM:
    torch.manual_seed(1)
    model = BiLMModelSettings(hidden=200, projection=64, filters=("1x32", "2x64"), char_dim=4, highway=1)
    words = SentenceVocabulary([*SentenceVocabulary.specials, *(f"w{i}" for i in range(700))])
    return BiLM(BiLMNetwork(model, vocab_size=len(words)), BiLMSettings(model=model), words)


def lm(**values: Any) -> LanguageModel:
    torch.manual_seed(2)
    chosen = LanguageModelSettings(**values)
    network = make_language_model(chosen, len(WORDS))
    if isinstance(network, NGramLM):
        network = NGramLM.fit(np.arange(900) % 7 * 5 + 2, vocab_size=len(WORDS), order=3)
    return LanguageModel(network, WORDS, LMSettings(model=chosen))


def vectors() -> WordVectors:
    matrix = np.random.default_rng(0).normal(size=(len(WORDS), 100)).astype(np.float32)
    matrix[:3] = 0
    return WordVectors(WORDS, matrix)


MAKERS: dict[str, Callable[[], Any]] = {
    "bilm": bilm,
    "tied lm": lambda: lm(cell="lstm", hidden=96, tied=True),
    "adaptive gru": lambda: lm(cell="gru", hidden=80, softmax="adaptive", cutoffs=(50, 100)),
    "ngram": lambda: lm(cell="ngram", order=3),
    "vectors": vectors,
}


def packed(tmp_path: Path, model: Any, precision: StoredPrecision, shard_mb: int | None = None) -> Path:
    if not (tmp_path / "plain").exists():
        model.save_pretrained(tmp_path / "plain")
    pack(tmp_path / "plain", tmp_path / precision, precision=precision, shard_mb=shard_mb)
    return tmp_path / precision


def one_line(folder: Path) -> str:
    """The message of the error that loading gives, and whether it came before memory was taken."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(ModelError) as caught:
        relmo.load(folder, device="cpu")
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 50_000  # kilobytes
    assert "\n" not in str(caught.value)
    assert str(folder) in str(caught.value)
    return str(caught.value)


def change(folder: Path, edit: Callable[[dict[str, Any]], Any]) -> None:
    config = json.loads((folder / "config.json").read_text())
    edit(config)
    (folder / "config.json").write_text(json.dumps(config))


@pytest.mark.parametrize("precision", STORED_PRECISIONS)
@pytest.mark.parametrize("kind", MAKERS)
def test_every_kind_of_model_is_float32_again_when_loaded_and_near_what_it_was(
    kind: str, precision: StoredPrecision, tmp_path: Path
) -> None:
    model = MAKERS[kind]()
    found = relmo.load(packed(tmp_path, model, precision), device="cpu")
    assert type(found) is type(model)
    own, back = model.tensors(), found.tensors()
    assert own.keys() == back.keys()
    for name, tensor in own.items():
        assert (back[name].dtype, back[name].shape) == (tensor.dtype, tensor.shape)
        if precision == "float32" or not tensor.is_floating_point():
            assert torch.equal(back[name], tensor), name
            continue
        off = (back[name] - tensor).abs().max() / tensor.abs().max().clamp(min=1e-6)
        error = 0.35 if precision == "nf4" and ("weight_" in name or name == "softmax.weight") else 0.5003 / 127
        assert off <= (1 / 2**11 if precision == "float16" or min(tensor.shape[-2:]) < 64 else error), name


def test_files_are_a_half_a_quarter_and_less_as_large(tmp_path: Path) -> None:
    sizes = [(packed(tmp_path, bilm(), p) / "model.safetensors").stat().st_size for p in STORED_PRECISIONS]
    assert [sizes[0] / size for size in sizes[1:]] == pytest.approx([2, 3.8, 6.9], rel=0.03)


def test_int8_is_the_nearest_whole_number_of_float16_scales_by_blocks_of_512() -> None:
    x = torch.randn(70, 1300) * torch.logspace(-3, 2, 70).unsqueeze(1)
    stored = encode_tensor("w", x, "int8")
    assert {name: (t.dtype, tuple(t.shape)) for name, t in stored.items()} == {
        "w": (torch.int8, (70, 1300)),
        "w:scale": (torch.float16, (70, 3)),
    }
    for row, block in ((0, 0), (33, 1), (69, 2)):
        numbers = x[row, 512 * block : 512 * (block + 1)].double()
        scale = np.float16(np.float32(numbers.abs().max()) / np.float32(127))
        assert float(stored["w:scale"][row, block]) == scale
        whole = (numbers / float(scale)).round()
        assert (stored["w"][row, 512 * block : 512 * (block + 1)] - whole).abs().max() <= 1e-9
        assert whole.abs().max() == 127
        assert torch.equal(
            decode_tensor("w", stored)[row, 512 * block : 512 * (block + 1)].double(), whole * float(scale)
        )


def test_biases_and_small_tensors_stay_in_float16_and_zeros_zeros() -> None:
    for shape in ((5,), (2, 4096), (64, 63), (128, 16, 7), ()):
        assert encode_tensor("x", torch.randn(shape), "int8")["x"].dtype == torch.float16
    assert encode_tensor("x", torch.arange(5000).reshape(50, 100), "int8")["x"].dtype == torch.int64
    x = torch.randn(64, 64)
    x[3] = 0
    back = decode_tensor("x", encode_tensor("x", x, "int8"))
    assert torch.equal(back == 0, (x == 0) | (back == 0))
    assert (back[3] == 0).all()


def test_weights_stored_in_int8_are_not_rounded_again_by_int8_products() -> None:
    stored = encode_tensor("w", torch.randn(64, 1300), "int8")
    again = quantize(decode_tensor("w", stored))
    assert torch.equal(again.values, stored["w"].float())
    assert torch.equal(again.scale, stored["w:scale"].float())


def test_nf4_is_the_nearest_of_16_levels_of_columns_of_equal_length() -> None:
    x = torch.randn(2, 70, 129) * torch.logspace(-2, 2, 129)
    stored = encode_tensor("a.weight_hr", x, "nf4")
    assert {name: (t.dtype, tuple(t.shape)) for name, t in stored.items()} == {
        "a.weight_hr": (torch.uint8, (2, 70, 65)),
        "a.weight_hr:scale": (torch.float16, (2, 70, 3)),
        "a.weight_hr:length": (torch.float16, (2, 1, 129)),
    }
    back, length = decode_tensor("a.weight_hr", stored), stored["a.weight_hr:length"].float()
    torch.testing.assert_close(length, torch.linalg.vector_norm(x, dim=1, keepdim=True), rtol=1e-3, atol=0)
    for d, row, group in ((0, 0, 0), (0, 33, 1), (1, 69, 2)):
        part = slice(64 * group, 64 * (group + 1))
        numbers = x[d, row, part] / length[d, 0, part]
        levels = torch.tensor(NF4_LEVELS) * stored["a.weight_hr:scale"][d, row, group].float()
        nearest = levels[(numbers.unsqueeze(1) - levels).abs().argmin(dim=1)]
        torch.testing.assert_close(back[d, row, part], nearest * length[d, 0, part])
    assert (back - x).square().mean() < 0.012 * x.square().mean()
    types = {name: encode_tensor(name, x[0], "nf4")[name].dtype for name in ("softmax.weight", "projection.weight")}
    assert types == {"softmax.weight": torch.uint8, "projection.weight": torch.int8}


def test_a_column_of_zeros_stays_zero_in_nf4() -> None:
    x = torch.randn(64, 64)
    x[:, 3] = 0
    x[5] = 0
    back = decode_tensor("weight_ih", encode_tensor("weight_ih", x, "nf4"))
    assert (back[:, 3] == 0).all()
    assert (back[5] == 0).all()


@pytest.mark.parametrize("number", [1e8, math.inf, math.nan])
def test_numbers_without_a_float16_length_are_refused_in_nf4(number: float) -> None:
    with pytest.raises(ModelError, match="too large for nf4"):
        encode_tensor("weight_ih", torch.full((64, 64), number), "nf4")


def test_weights_in_four_bits_are_encoded_once(tmp_path: Path) -> None:
    folder = packed(tmp_path, lm(cell="lstm", hidden=512, embedding=300), "nf4")
    again = pack(folder, tmp_path / "again", precision="nf4", shard_mb=1)
    assert len(list((tmp_path / "again").glob("*.safetensors"))) > 1
    first = relmo.load(folder, device="cpu").tensors()
    for tensors in (again.tensors(), relmo.load(tmp_path / "again", device="cpu").tensors()):
        assert all(torch.equal(tensors[name], first[name]) for name in first)


@pytest.mark.parametrize("precision", ["float16", "int8"])
@pytest.mark.parametrize("number", [1e8, math.inf, math.nan])
def test_what_the_precision_has_no_number_for_is_refused(precision: StoredPrecision, number: float) -> None:
    with pytest.raises(ModelError, match=f"'x' has numbers that are too large for {precision}, or NaN"):
        encode_tensor("x", torch.full((64, 64), number), precision)


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_tensors_cut_into_files_of_a_size_make_the_whole_again(data: st.DataObject) -> None:
    shapes = st.lists(st.lists(st.integers(0, 9), max_size=3).map(tuple), min_size=1, max_size=6)
    tensors = {str(i): torch.randn(shape) for i, shape in enumerate(data.draw(shapes))}
    room = data.draw(st.integers(1, 800))
    parts = list(split_shards(tensors, room + 1000 + 200 * len(tensors)))
    pieces: dict[str, list[Tensor]] = {}
    for part in parts:
        full = [tensor for tensor in part.values() if tensor.nbytes]
        one_row = len(full) == 1 and as_rows(tuple(full[0].shape))[0] == 1
        assert sum(tensor.nbytes for tensor in full) <= room or one_row
        for name, tensor in part.items():
            pieces.setdefault(name, []).append(tensor)
    assert pieces.keys() == tensors.keys()
    for name, tensor in tensors.items():
        whole = TensorForm(tuple(tensor.shape), tensor.dtype)
        assert merge_forms([TensorForm(tuple(t.shape), t.dtype) for t in pieces[name]], whole) == whole
        back = pieces[name][0] if len(pieces[name]) == 1 else torch.cat(pieces[name]).reshape(tensor.shape)
        assert torch.equal(back, tensor)


@pytest.mark.parametrize("precision", STORED_PRECISIONS)
def test_a_model_in_several_files_is_the_model_in_one(precision: StoredPrecision, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = lm(cell="lstm", hidden=512, embedding=300)
    folder = packed(tmp_path, model, precision, shard_mb=1)
    files = sorted(folder.glob("*.safetensors"))
    count = {"float32": 8, "float16": 4, "int8": 2, "nf4": 2}[precision]
    assert [path.name for path in files] == [f"model-0000{i + 1}-of-0000{count}.safetensors" for i in range(count)]
    assert all(path.stat().st_size <= MB for path in files)
    assert all(path.stat().st_size > 0.9 * MB for path in files[:-1])
    assert json.loads((folder / "config.json").read_text())["stored"]["precision"] == precision
    pack(tmp_path / "plain", tmp_path / "whole", precision=precision)
    one, several = (relmo.load(f, device="cpu").tensors() for f in (tmp_path / "whole", folder))
    assert all(torch.equal(one[name], several[name]) for name in one)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A model in int8, in two files."""
    return packed(tmp_path, lm(cell="lstm", hidden=512, embedding=300), "int8", shard_mb=1)


FIRST, SECOND = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"


def test_a_model_is_saved_in_the_place_of_one_in_several_files(folder: Path) -> None:
    model = relmo.load(folder, device="cpu")
    model.save_pretrained(folder)
    assert [path.name for path in folder.glob("*.safetensors")] == ["model.safetensors"]
    own, back = model.tensors(), relmo.load(folder, device="cpu").tensors()
    assert all(torch.equal(own[name], back[name]) for name in own)


@pytest.mark.parametrize("name", [FIRST, SECOND])
def test_a_file_that_is_missing_cut_short_or_changed_is_named(name: str, folder: Path) -> None:
    path = folder / name
    whole = path.read_bytes()
    for end in (0, 100, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:end])
        assert f"{name}: is damaged" in one_line(folder)
    path.write_bytes(whole[:-5] + bytes([whole[-5] ^ 1]) + whole[-4:])
    assert f"{name}: is damaged (its checksum does not match)" in one_line(folder)
    path.unlink()
    assert f"{name}: no such file; the model folder is incomplete" in one_line(folder)


@pytest.mark.parametrize("name", ["model.safetensors", "model-00003-of-00002.safetensors", "model-copy.safetensors"])
def test_a_weight_file_too_many_is_named(name: str, folder: Path) -> None:
    (folder / name).write_bytes((folder / FIRST).read_bytes())
    assert f"{name}: is not listed in config.json" in one_line(folder)


def test_a_file_of_another_model_of_the_same_shape_is_noticed(folder: Path, tmp_path: Path) -> None:
    tensors, _ = read_tensors(folder / SECOND)
    write_tensors(folder / SECOND, {name: tensor.flip(0) for name, tensor in tensors.items()})
    assert f"{SECOND}: is not the file that config.json was written for" in one_line(folder)


def test_parts_that_do_not_make_the_whole_are_refused(folder: Path) -> None:
    tensors, _ = read_tensors(folder / SECOND)
    (name,) = {n for n in tensors if n in read_tensors(folder / FIRST)[0]}
    for wrong in (tensors[name][1:], tensors[name].unsqueeze(0), tensors[name].float(), tensors[name][:, 1:]):
        write_tensors(folder / SECOND, tensors | {name: wrong.contiguous()})
        assert f"does not match config.json: '{name}' is (" in one_line(folder)


@pytest.mark.parametrize("precision", ["float32", "float16"])
def test_weights_of_another_precision_than_config_says_are_refused(precision: str, folder: Path) -> None:
    change(folder, lambda config: config["stored"].update(precision=precision))
    assert f"of int8, expected (302, 300) of {precision}" in one_line(folder)


@pytest.mark.parametrize(
    "stored",
    [
        None,
        3,
        [],
        {},
        {"precision": "int8"},
        {"precision": "int4", "digests": []},
        {"precision": None, "digests": []},
        {"precision": ["int8"], "digests": []},
        {"precision": "int8", "digests": 2},
        {"precision": "int8", "digests": [1, 2]},
        {"precision": "int8", "digests": ["x"] * 20_000},
        {"precision": "int8", "digests": ["x"] * 3},
        {"precision": "int8", "digests": ["x", "y"]},
    ],
    ids=lambda value: str(value)[:60],
)
def test_a_config_that_says_nonsense_of_the_weights_is_refused(stored: Any, folder: Path) -> None:
    change(folder, lambda config: config.update(stored=stored))
    one_line(folder)


def test_a_network_larger_than_the_files_is_refused_before_memory_is_taken(folder: Path) -> None:
    change(folder, lambda config: config["settings"]["model"].update(hidden=10**7))
    assert "does not match config.json" in one_line(folder)


def test_types_that_weights_never_have_are_refused(tmp_path: Path) -> None:
    folder = packed(tmp_path, vectors(), "float16")
    path = folder / "model.safetensors"
    write_tensors(path, {name: tensor.double() for name, tensor in read_tensors(path)[0].items()})
    assert "'weight' is (302, 100) of another type, expected (302, 100) of float16" in one_line(folder)


def test_layout_and_encode_agree_whatever_the_shape() -> None:
    for shape in ((3,), (), (64, 64), (2, 64, 513), (1000, 1), (64, 0)):
        for precision in STORED_PRECISIONS:
            for name in ("x", "weight_hh"):
                stored = encode_tensor(name, torch.zeros(shape), precision)
                said = stored_forms(name, TensorForm(shape, torch.float32), precision)
                assert {name: TensorForm(tuple(t.shape), t.dtype) for name, t in stored.items()} == said


def test_names_of_files_say_how_many_there_are() -> None:
    assert WeightsRecord().names == WeightsRecord("int8", ("a",)).names == ["model.safetensors"]
    assert WeightsRecord("int8", ("a", "b")).names == [FIRST, SECOND]
