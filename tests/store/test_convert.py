"""Original ELMo files: the published vectors, every variant of the format, what is refused, and the way back."""

import io
import json
import shutil
import zipfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch

import relmo
from relmo.cli import main
from relmo.errors import ModelError, StorageError
from relmo.models.bilm import BiLM
from relmo.networks.bilm import BiLMNetwork
from relmo.settings.bilm import BiLMModelSettings, BiLMSettings
from relmo.store.original import write_original
from relmo.text.characters import character_ids
from relmo.text.vocabulary import SentenceVocabulary
from support import original_elmo

Data = Callable[[str], Path]
WORDS = ["The", "Straße", "of", "words-longer-than-twelve", "."]


def write(
    folder: Path, options: Any, weights: dict[str, np.ndarray], names: tuple[str, str] = ("o.json", "w.hdf5")
) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / names[0]).write_text(json.dumps(options))
    with h5py.File(folder / names[1], "w") as file:
        for name, array in weights.items():
            file[name] = array
    return folder


def small(folder: Path, **changes: Any) -> tuple[Path, dict, original_elmo.Weights]:
    options = original_elmo.options_of(**changes)
    weights = original_elmo.random_weights(options, scale=0.5)
    return write(folder, options, weights), options, weights


@torch.no_grad()
def layers(model: BiLM, words: list[str]) -> np.ndarray:
    """Every layer of one sentence, the boundaries dropped."""
    ids = character_ids(["<S>", *words, "</S>"], model.settings.model.max_characters)
    tokens = model.network.encoder(torch.from_numpy(ids)).unsqueeze(0)
    return model.network(tokens, torch.tensor([len(ids)])).layers[:, 0, 1:-1].numpy()


def assert_reads(source: Any, options: dict, weights: original_elmo.Weights) -> BiLM:
    model = relmo.load(source, device="cpu")
    assert isinstance(model, BiLM)
    np.testing.assert_allclose(layers(model, WORDS), original_elmo.layers(WORDS, options, weights), atol=2e-6)
    return model


@pytest.mark.parametrize("fast", [True, False], ids=["fast", "by definition"])
@torch.no_grad()
def test_the_published_vectors_with_the_state_carried(data: Data, fast: bool) -> None:
    folder = data("parity/options.json").parent
    model = relmo.load(folder, device="cpu")
    assert isinstance(model, BiLM)
    network = model.network
    network.lstm.fast = fast
    sentences = [
        [line.split() for line in row] for row in json.loads((folder / "lm_embeddings_sentences.json").read_text())
    ]
    state, worst, batches = network.initial_state(4), 0.0, []
    with h5py.File(folder / "all_layers_tf.hdf5") as everything:
        for i in range(10):
            rows = [["<S>", *sentences[k][i], "</S>"] for k in range(3)]
            lengths = torch.tensor([len(row) for row in rows])
            tokens = torch.zeros(3, int(lengths.max()), 16)
            for k, row in enumerate(rows):
                tokens[k, : len(row)] = network.encoder(torch.from_numpy(character_ids(row, 50)))
            output = network(tokens, lengths, tuple(tensor[:3] for tensor in state))
            state = tuple(torch.cat([new, old[3:]]) for new, old in zip(output.state, state, strict=True))
            batches.append((output.layers, lengths))
            for k in range(3):
                ours = output.layers[:, k, 1 : lengths[k] - 1].numpy()
                worst = max(worst, np.abs(ours - everything[f"{i}/{k}"][()]).max())
                assert not output.layers[:, k, lengths[k] :].any()
    assert worst < 2e-6
    assert all(not tensor[3].any() and tensor[:3].any() for tensor in state)
    for k in range(3):
        with h5py.File(folder / f"lm_embeddings_{k}.hdf5") as top:
            for i, (made, lengths) in enumerate(batches):
                forward, backward = top[str(i)][()]
                ours = made[-1, k, 1 : lengths[k] - 1].numpy()
                assert np.abs(ours - np.concatenate([forward, backward], axis=1)).max() < 2e-6


@torch.no_grad()
def test_the_published_model_agrees_with_the_float64_implementation_sentence_by_sentence(data: Data) -> None:
    folder = data("parity/options.json").parent
    options = json.loads((folder / "options.json").read_text())
    weights: original_elmo.Weights = {}
    with h5py.File(folder / "lm_weights.hdf5") as file:
        file.visititems(lambda name, at: weights.update({name: at[()]}) if isinstance(at, h5py.Dataset) else None)
    assert_reads((folder / "options.json", folder / "lm_weights.hdf5"), options, weights)


VARIANTS: dict[str, dict[str, Any]] = {
    "261 characters": {"n_characters": 261},
    "no number of characters": {"n_characters": None},
    "other maximum": {"max_characters_per_token": 7},
    "no highway key": {"n_highway": None},
    "highway 0": {"n_highway": 0},
    "three highways": {"n_highway": 3},
    "no CNN projection": {"filters": [[1, 2], [3, 4]]},
    "no skip connections": {"use_skip_connections": False},
    "no skip key": {"use_skip_connections": None},
    "one layer": {"n_layers": 1},
    "no number of layers": {"n_layers": None},
    "four layers": {"n_layers": 4},
    "projection as large as the LSTM": {"dim": 6},
    "no clips": {"cell_clip": None, "proj_clip": None},
    "clips that bite": {"cell_clip": 0.2, "proj_clip": 0.1},
    "tanh": {"activation": "tanh"},
}


@pytest.mark.parametrize("changes", VARIANTS.values(), ids=VARIANTS.keys())
def test_every_variant_is_read_and_comes_back_bit_by_bit(changes: dict[str, Any], tmp_path: Path) -> None:
    folder, options, weights = small(tmp_path / "original", **changes)
    assert_reads(folder, options, weights)
    for source, out in ((folder, "relmo"), (tmp_path / "relmo", "back")):
        with pytest.raises(SystemExit) as end:
            main(["convert", str(source), str(tmp_path / out), "--quiet"])
        assert end.value.code == 0
    assert_reads(tmp_path / "relmo", options, weights)
    assert_reads(tmp_path / "back", options, weights)
    again = json.loads((tmp_path / "back" / "options.json").read_text())
    filled = original_elmo.options_of(
        **{"n_layers": 1, "n_highway": 0} | {k: v for k, v in changes.items() if v is not None} | {"n_characters": 262}
    )
    for section in ("lstm", "char_cnn"):
        for key, value in options[section].items():
            assert again[section][key] == (262 if key == "n_characters" else value)
        assert again[section].keys() == filled[section].keys()
    found: dict[str, np.ndarray] = {}
    with h5py.File(tmp_path / "back" / "weights.hdf5") as file:
        file.visititems(lambda name, at: found.update({name: at[()]}) if isinstance(at, h5py.Dataset) else None)
    assert found.keys() == weights.keys()
    for name, array in weights.items():
        assert found[name].dtype == np.float32
        assert found[name].tobytes() == array.tobytes(), name
    assert sorted(p.name for p in (tmp_path / "back").iterdir()) == ["options.json", "weights.hdf5"]


def test_null_stands_for_an_absent_key_and_unknown_keys_are_ignored(tmp_path: Path) -> None:
    folder, options, weights = small(tmp_path, n_highway=0, cell_clip=None)
    options["lstm"]["cell_clip"] = None
    options["char_cnn"] |= {"n_highway": None, "projection_after_highway": True}
    options |= {"bidirectional": True, "dropout": 0.1, "n_train_tokens": 1e99, "reverse": None}
    assert_reads(write(folder, options, weights), options, weights)


def test_one_layer_under_the_names_of_the_original_export(tmp_path: Path) -> None:
    options = original_elmo.options_of(n_layers=1)
    weights = original_elmo.random_weights(options, scale=0.5)
    renamed = {name.replace("MultiRNNCell/Cell0/", ""): array for name, array in weights.items()}
    assert "RNN_1/RNN/LSTMCell/W_0" in renamed
    assert_reads(write(tmp_path, options, renamed), options, weights)


@pytest.mark.parametrize("kind", ["<f2", "<f8", ">f4"])
def test_other_precisions_become_float32(tmp_path: Path, kind: str) -> None:
    options = original_elmo.options_of()
    weights = {name: array.astype(kind) for name, array in original_elmo.random_weights(options, scale=0.5).items()}
    model = assert_reads(write(tmp_path, options, weights), options, weights)
    assert {p.dtype for p in model.network.parameters()} == {torch.float32}


def test_compressed_and_chunked_files_are_read(tmp_path: Path) -> None:
    folder, options, weights = small(tmp_path)
    with h5py.File(folder / "w.hdf5", "w") as file:
        for name, array in weights.items():
            file.create_dataset(name, data=array, compression="gzip", shuffle=True)
    assert_reads(folder, options, weights)


class TestPlaces:
    """Wherever the two files lie."""

    def test_a_pair_by_any_names(self, tmp_path: Path) -> None:
        options = original_elmo.options_of()
        weights = original_elmo.random_weights(options, scale=0.5)
        write(tmp_path, options, weights, ("opts", "model.weights"))
        assert_reads((tmp_path / "opts", tmp_path / "model.weights"), options, weights)
        assert_reads([str(tmp_path / "opts"), str(tmp_path / "model.weights")], options, weights)

    def test_the_path_of_either_file(self, tmp_path: Path) -> None:
        folder, options, weights = small(tmp_path)
        assert_reads(folder / "o.json", options, weights)
        assert_reads(str(folder / "w.hdf5"), options, weights)

    def test_a_folder_with_other_files(self, tmp_path: Path) -> None:
        folder, options, weights = small(tmp_path)
        (folder / "vocab.txt").write_text("<S>\n</S>\n<UNK>\nthe\n")
        (folder / "meta.json").write_text('{"language": "no"}')
        (folder / "broken.json").write_text("{")
        with h5py.File(folder / "vectors.h5", "w") as file:
            file["0"] = np.zeros((3, 2, 12))
        assert assert_reads(folder, options, weights).vocabulary is None

    def test_a_subfolder(self, tmp_path: Path) -> None:
        _, options, weights = small(tmp_path / "a" / "b")
        (tmp_path / "README").write_text("x")
        assert_reads(tmp_path, options, weights)

    @pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_LZMA])
    def test_a_zip(self, tmp_path: Path, method: int) -> None:
        folder, options, weights = small(tmp_path / "model")
        with zipfile.ZipFile(tmp_path / "216.zip", "w", method) as archive:
            archive.writestr("216/README", "x")
            archive.writestr("216/meta.json", "[]")
            archive.writestr("__MACOSX/216/._w.hdf5", "x")
            archive.write(folder / "o.json", "216/options.json")
            archive.write(folder / "w.hdf5", "216/model.hdf5")
        shutil.rmtree(folder)
        assert_reads(tmp_path / "216.zip", options, weights)
        assert sorted(p.name for p in tmp_path.iterdir()) == ["216.zip"]  # nothing was unpacked

    def test_several_models_are_told_apart_by_name_or_listed(self, tmp_path: Path) -> None:
        options = original_elmo.options_of()
        for name, seed in (("small", 1), ("large", 2)):
            weights = original_elmo.random_weights(options, seed, scale=0.5)
            write(tmp_path, options, weights, (f"elmo_{name}_options.json", f"elmo_{name}_weights.hdf5"))
        assert_reads(tmp_path / "elmo_large_options.json", options, weights)
        with pytest.raises(
            ModelError, match=r"several options files: .*large_options.json, .*small_options.json; give"
        ):
            relmo.load(tmp_path)
        (tmp_path / "elmo_large_options.json").unlink()
        (tmp_path / "elmo_small_options.json").rename(tmp_path / "o.json")
        with pytest.raises(
            ModelError, match=r"several weights files: .*large_weights.hdf5, .*small_weights.hdf5; give"
        ):
            relmo.load(tmp_path)

    def test_half_a_model_says_which_half(self, tmp_path: Path) -> None:
        folder, _, _ = small(tmp_path)
        (folder / "w.hdf5").rename(tmp_path / "elsewhere")
        for source in (folder, folder / "o.json"):
            with pytest.raises(ModelError, match=r"o\.json, but no weights"):
                relmo.load(source)
        (tmp_path / "elsewhere").rename(folder / "w.hdf5")
        (folder / "o.json").write_text('{"kind": 1}')
        with pytest.raises(ModelError, match=r"w.hdf5, but no .json with 'lstm' and 'char_cnn'.*o.json"):
            relmo.load(folder)


Edit = Callable[[dict], Any]
BAD_OPTIONS: dict[str, tuple[Edit, str]] = {
    "no char_cnn": (lambda o: o.pop("char_cnn"), r"o.json: 'char_cnn' is missing"),
    "lstm a list": (lambda o: o.update(lstm=[]), r"o.json: lstm must be an object, not a list"),
    "no dim": (lambda o: o["lstm"].pop("dim"), r"lstm.dim is missing; expected int"),
    "dim a string": (lambda o: o["lstm"].update(dim="4096"), r"lstm.dim is a string; expected int"),
    "dim true": (lambda o: o["lstm"].update(dim=True), r"lstm.dim is true or false; expected int"),
    "dim 1e3": (lambda o: o["lstm"].update(dim=1e3), r"lstm.dim is 1000.0; expected int"),
    "dim 0": (lambda o: o["lstm"].update(dim=0), r"hidden must be from 1"),
    "dim huge": (lambda o: o["lstm"].update(dim=10**30), r"hidden must be from 1"),
    "clip NaN": (lambda o: o["lstm"].update(cell_clip=float("nan")), r"cell_clip must be from 0"),
    "clip huge": (lambda o: o["lstm"].update(cell_clip=10**400), r"cannot be built: int too large"),
    "projection above dim": (lambda o: o["lstm"].update(projection_dim=11), r"projection 11 must not be larger"),
    "activation": (lambda o: o["char_cnn"].update(activation="gelu"), r"activation must be relu or tanh, not 'gelu'"),
    "filters": (lambda o: o["char_cnn"].update(filters=[[1]]), r"filters must be pairs"),
    "no filters": (lambda o: o["char_cnn"].update(filters=[]), r"filters must be WIDTHxCOUNT"),
    "negative filter": (lambda o: o["char_cnn"].update(filters=[[1, -4]]), r"filters must be WIDTHxCOUNT"),
    "wide filter": (lambda o: o["char_cnn"].update(filters=[[13, 4]]), r"filters of width 13"),
    "embedding": (lambda o: o["char_cnn"].pop("embedding"), r"char_cnn.embedding is missing"),
    "embedding a number": (lambda o: o["char_cnn"].update(embedding=4), r"embedding is 4"),
    "n_characters": (lambda o: o["char_cnn"].update(n_characters=60), r"n_characters is 60"),
    "layers": (lambda o: o["lstm"].update(n_layers=10**6), r"layers must be from 1 to 1,000"),
}


@pytest.mark.parametrize(("edit", "line"), BAD_OPTIONS.values(), ids=BAD_OPTIONS.keys())
def test_options_that_cannot_be(edit: Edit, line: str, tmp_path: Path) -> None:
    folder, options, weights = small(tmp_path)
    edit(options)
    write(folder, options, weights)
    with pytest.raises(ModelError, match=line) as error:
        relmo.load(folder)
    assert "\n" not in str(error.value)


def test_options_that_are_no_options(tmp_path: Path) -> None:
    folder, _, _ = small(tmp_path)
    deep = '{"lstm":' * 50_000
    for text in ("{", "", "\x00", "[1]", "null", deep, '{"lstm": "' + "x" * (5 << 20) + '"}'):
        (folder / "o.json").write_text(text)
        with pytest.raises(ModelError, match=r"is not valid JSON|must be a JSON object|too large|no .json with"):
            relmo.load(folder)
        with pytest.raises(ModelError, match=r"is not valid JSON|must be a JSON object|too large"):
            relmo.load((folder / "o.json", folder / "w.hdf5"))


def edit_weights(path: Path, edit: Callable[[h5py.File], Any]) -> None:
    with h5py.File(path, "r+") as file:
        edit(file)


def replace(name: str, **dataset: Any) -> Callable[[h5py.File], Any]:
    def edit(file: h5py.File) -> None:
        del file[name]
        file.create_dataset(name, **dataset)

    return edit


def link(name: str, target: Any) -> Callable[[h5py.File], Any]:
    def edit(file: h5py.File) -> None:
        del file[name]
        file[name] = target

    return edit


def virtual(file: h5py.File) -> None:
    del file["char_embed"]
    there = h5py.VirtualLayout(shape=(261, 4), dtype="f4")
    there[:] = h5py.VirtualSource("elsewhere.h5", "x", shape=(261, 4))
    file.create_virtual_dataset("char_embed", there)


CELL = "RNN_1/RNN/MultiRNNCell/Cell1/LSTMCell"
BAD_WEIGHTS: dict[str, tuple[Callable[[h5py.File], Any], str]] = {
    "missing": (lambda f: f.__delitem__(f"{CELL}/W_P_0"), rf"'{CELL}/W_P_0' is missing.*10 x 6"),
    "missing group": (lambda f: f.__delitem__("CNN"), r"'CNN/W_cnn_0' is missing.*1 x 1 x 4 x 3"),
    "shape": (replace(f"{CELL}/B", shape=(44,), dtype="f4"), rf"'{CELL}/B' is 44.*40"),
    "rows": (
        replace("char_embed", shape=(262, 4), dtype="f4"),
        r"'char_embed' is 262 x 4.* 261 x 4",
    ),
    "huge": (
        replace("char_embed", shape=(1 << 40, 1 << 20), chunks=(1, 1), dtype="f4"),
        r"'char_embed' is 1099511627776",
    ),
    "integers": (replace("char_embed", shape=(261, 4), dtype="i4"), r"'char_embed' holds int32; expected float32"),
    "strings": (replace("char_embed", shape=(261, 4), dtype=h5py.string_dtype()), r"'char_embed' holds object"),
    "empty": (replace("char_embed", data=h5py.Empty("f4")), r"'char_embed' is empty"),
    "a single number": (replace("char_embed", data=np.float32(1)), r"'char_embed' is a single number"),
    "a group": (lambda f: (f.__delitem__("char_embed"), f.create_group("char_embed")), r"'char_embed' is missing"),
    "external link": (
        link("char_embed", h5py.ExternalLink("/etc/passwd", "x")),
        r"'char_embed' is a link",
    ),
    "external group": (link("CNN", h5py.ExternalLink("other.h5", "CNN")), r"'CNN/W_cnn_0' is a link"),
    "soft link": (link("char_embed", h5py.SoftLink("/CNN")), r"'char_embed' is a link"),
    "external storage": (
        replace("char_embed", shape=(261, 4), dtype="f4", external=[("/etc/passwd", 0, 261 * 16)]),
        r"'char_embed' .*another file",
    ),
    "virtual": (virtual, r"'char_embed' .*another file"),
    "NaN": (lambda f: f["char_embed"].__setitem__((3, 2), np.nan), r"'/char_embed' has values that are not finite"),
    "float64 beyond float32": (
        replace("char_embed", data=np.full((261, 4), 1e300)),
        r"'/char_embed' has values that are not finite",
    ),
}


@pytest.mark.filterwarnings("ignore:overflow")
@pytest.mark.parametrize(("edit", "line"), BAD_WEIGHTS.values(), ids=BAD_WEIGHTS.keys())
def test_weights_that_do_not_fit_or_lead_elsewhere(edit: Callable[[h5py.File], Any], line: str, tmp_path: Path) -> None:
    folder, _, _ = small(tmp_path)
    edit_weights(folder / "w.hdf5", edit)
    with pytest.raises(ModelError, match=line) as error:
        relmo.load(folder)
    assert "w.hdf5" in str(error.value)
    assert "\n" not in str(error.value)


def test_a_geometry_of_many_gigabytes_that_the_file_only_declares_takes_no_memory(tmp_path: Path) -> None:
    options = original_elmo.options_of(dim=1 << 20, projection_dim=1 << 10)
    (tmp_path / "o.json").write_text(json.dumps(options))
    shapes = original_elmo.random_weights(original_elmo.options_of(), 0)
    with h5py.File(tmp_path / "w.hdf5", "w") as file:
        for name in shapes:
            big = {"W_0": (1 << 11, 1 << 22), "B": (1 << 22,), "W_P_0": (1 << 20, 1 << 10), "W_proj": (12, 1 << 10)}
            big["b_proj"] = (1 << 10,)
            shape = big.get(name.split("/")[-1], shapes[name].shape)
            file.create_dataset(name, shape, dtype="f4", chunks=tuple(min(n, 64) for n in shape))
    with pytest.raises(ModelError, match=r"declares [0-9,]+ bytes of weights but stores 0; it is not a model"):
        relmo.load(tmp_path)


def test_broken_hdf5_and_zip_files(tmp_path: Path) -> None:
    folder, _, _ = small(tmp_path / "m")
    whole = (folder / "w.hdf5").read_bytes()
    for content in (b"", b"x" * 3000, whole[:100], whole[: len(whole) // 2], whole[:-100]):
        (folder / "w.hdf5").write_bytes(content)
        with pytest.raises(ModelError, match=r"w.hdf5: cannot be read as HDF5 \(.*\); restore it"):
            relmo.load(folder)
    (folder / "w.hdf5").write_bytes(whole)
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.write(folder / "o.json", "o.json")
        archive.write(folder / "w.hdf5", "w.hdf5")
    packed = buffer.getvalue()
    flipped = bytearray(packed)
    flipped[len(packed) // 2] ^= 255
    for content in (b"", packed[:-30], packed[100:], bytes(flipped)):
        (tmp_path / "m.zip").write_bytes(content)
        with pytest.raises(ModelError, match=r"m.zip"):
            relmo.load(tmp_path / "m.zip")


def test_a_damaged_hdf5_never_crashes_or_hangs(tmp_path: Path) -> None:
    folder, _, _ = small(tmp_path)
    whole = (folder / "w.hdf5").read_bytes()
    rng = np.random.default_rng(0)
    for _ in range(60):
        damaged = bytearray(whole)
        for place in rng.integers(0, len(whole), 8):
            damaged[place] = rng.integers(256)
        (folder / "w.hdf5").write_bytes(bytes(damaged))
        with suppress(ModelError):
            relmo.load(folder, device="cpu")


def test_a_zip_that_would_unpack_to_absurd_sizes_is_refused(tmp_path: Path) -> None:
    folder, _, _ = small(tmp_path / "m")
    with zipfile.ZipFile(tmp_path / "m.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.write(folder / "o.json", "o.json")
        with archive.open("w.hdf5", "w") as file:
            for _ in range(80):
                file.write(b"\0" * (1 << 20))
    with pytest.raises(ModelError, match=r"m.zip/w.hdf5: would unpack from [0-9,]+ to 83,886,080 bytes"):
        relmo.load(tmp_path / "m.zip")


def trained(words: bool = False) -> BiLM:
    torch.manual_seed(0)
    vocabulary = SentenceVocabulary(["<S>", "</S>", "<UNK>", "the", "a\\b", "new\u2028line", "Straße"])
    model = {"hidden": 8, "projection": 4, "softmax": "full"}
    if words:
        model |= {"input": "word"}
    else:
        model |= {"filters": ("1x3", "2x3"), "char_dim": 3, "max_characters": 20}
    settings = BiLMSettings(model=BiLMModelSettings(**model))  # type: ignore[arg-type]
    return BiLM(BiLMNetwork(settings.model, vocab_size=7), settings, vocabulary)


def test_a_trained_model_becomes_original_files_with_a_plain_vocabulary(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = trained()
    model.save_pretrained(tmp_path / "mine")
    with pytest.raises(SystemExit):
        main(["convert", str(tmp_path / "mine"), str(tmp_path / "original")])
    assert "the output layer" in capsys.readouterr().out
    assert (tmp_path / "original" / "vocab.txt").read_text(encoding="utf-8").split("\n") == [
        *("<S>", "</S>", "<UNK>", "the", "a\\b", "new\\u2028line", "Straße", "")
    ]
    options = json.loads((tmp_path / "original" / "options.json").read_text())
    assert options["char_cnn"]["n_characters"] == 262
    assert {"cell_clip", "proj_clip", "n_layers", "use_skip_connections"} < options["lstm"].keys()
    again = relmo.load(tmp_path / "original", device="cpu")
    assert isinstance(again, BiLM)
    assert (layers(again, WORDS) == layers(model, WORDS)).all()
    assert again.tokens("Don't stop.") == model.tokens("Don't stop.")


def run(*arguments: object) -> int:
    with pytest.raises(SystemExit) as end:
        main([str(argument) for argument in arguments])
    return int(end.value.code or 0)


def test_what_cannot_be_converted_is_one_line_and_leaves_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trained(words=True).save_pretrained(tmp_path / "words")
    assert run("convert", tmp_path / "words", tmp_path / "out") == 2
    assert "word input" in capsys.readouterr().err
    folder, _, _ = small(tmp_path / "m")
    for there in (tmp_path / "words", folder / "o.json"):
        assert run("convert", folder, there) == 2
        assert ": already exists" in (said := capsys.readouterr().err) or ": is a file; give the name of a" in said
    assert run("convert", tmp_path / "nothing", tmp_path / "out") == 2
    assert "does not exist" in capsys.readouterr().err
    assert run("convert", folder, folder / "o.json" / "x") == 2
    assert "cannot be written" in capsys.readouterr().err
    assert run("convert", tmp_path / "words", tmp_path / "out", "--weights", folder / "w.hdf5") == 2
    capsys.readouterr()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["m", "words"]


def test_weights_that_lie_elsewhere_and_the_words_of_the_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, options, weights = small(tmp_path / "m")
    (folder / "w.hdf5").rename(tmp_path / "weights")
    assert run("convert", folder / "o.json", tmp_path / "out", "--weights", tmp_path / "weights", "--json") == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["format"] == "relmo"
    assert printed["parameters"] == sum(array.size for array in weights.values())
    assert "no output layer" in printed["note"]
    assert_reads(tmp_path / "out", options, weights)
    assert (tmp_path / "out" / "README.md").read_text().startswith("# out\n")


def test_a_failed_write_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> None:
        raise ModelError("no")

    monkeypatch.setattr("relmo.store.original.write_json", fail)
    with pytest.raises(ModelError, match="no"):
        write_original(trained(), tmp_path / "deep" / "out")
    assert list((tmp_path / "deep").iterdir()) == []


def test_a_full_disk_names_the_place_that_was_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(path: Path, *_: Any) -> None:
        raise StorageError(f"{path}: the disk is full")

    monkeypatch.setattr("relmo.store.original.write_hdf5", full)
    with pytest.raises(StorageError, match=f"^{tmp_path / 'out' / 'weights.hdf5'}: the disk is full$"):
        write_original(trained(), tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_info_describes_original_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder, _, weights = small(tmp_path / "m", n_characters=261)
    assert run("info", folder, "--json") == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["kind"] == "bilm"
    assert facts["parameters"] == sum(array.size for array in weights.values())
    assert facts["settings"]["hidden"] == 10
    assert facts["sha256"].keys() == {"o.json", "w.hdf5"}
    assert run("convert", folder, tmp_path / "relmo", "--quiet") == 0
    assert capsys.readouterr().out == ""
    assert run("info", tmp_path / "relmo", "--json") == 0
    again = json.loads(capsys.readouterr().out)
    assert again["weights_digest"] == facts["weights_digest"]
    assert again["vocabulary"] is None
    with zipfile.ZipFile(tmp_path / "m.zip", "w") as archive:
        archive.write(folder / "o.json", "o.json")
        archive.write(folder / "w.hdf5", "w.hdf5")
    assert run("info", tmp_path / "m.zip") == 0
    assert facts["weights_digest"] in capsys.readouterr().out


def test_reading_what_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="not a model folder"):
        relmo.load(tmp_path)
    with pytest.raises(ModelError, match=r"missing.json: does not exist; give the path of a file"):
        relmo.load((tmp_path / "missing.json", tmp_path / "w"))
    with pytest.raises(ModelError, match=r"two paths, not 3"):
        relmo.load(["a", "b", "c"])
