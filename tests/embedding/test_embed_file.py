"""Vectors in files: every format holds the same numbers, and a run that is broken off goes on where it was."""

import gzip
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.numpy import load_file

from relmo.embedding.files import embed_file
from relmo.errors import CorpusError, RelmoError, SettingError, StorageError
from relmo.models.bilm import BiLM
from relmo.networks.bilm import BiLMNetwork
from relmo.settings.bilm import BiLMModelSettings, BiLMSettings, BiLMTextSettings
from relmo.settings.options import EmbedOptions

MODEL = BiLMModelSettings(char_dim=4, filters=("1x8", "2x8", "3x16"), hidden=24, projection=8)
TEXT = "The bank of the river.\n\nA bank lends\u2028money.\r\nThe bank of the river.\n  \t \nlast, without a line end"
LINES = [
    "The bank of the river.",
    "",
    "A bank lends\u2028money.",
    "The bank of the river.",
    "",
    "last, without a line end",
]
ROWS = ["# one", "1\tVámonos", "", "1-2\tdel", "1\tde", "2\tel"]
CONLLU = "".join(row + "\t_" * 8 + "\n" if "\t" in row else row + "\n" for row in ROWS)


def make(precision: Any = "float32", **text: Any) -> BiLM:
    torch.manual_seed(2)
    settings = BiLMSettings(model=MODEL, text=BiLMTextSettings(**text))
    return BiLM(BiLMNetwork(MODEL, vocab_size=None), settings, precision=precision)


@pytest.fixture(scope="module")
def model() -> BiLM:
    return make()


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    path.write_bytes(TEXT.encode())
    return path


def read(path: Path) -> dict[str, np.ndarray]:
    """The arrays of a file by name, of .parquet put together from its rows."""
    if path.suffix == ".npz":
        with np.load(path) as archive:
            return dict(archive)
    if path.suffix == ".safetensors":
        return load_file(path)
    if path.suffix in (".h5", ".hdf5"):
        with h5py.File(path) as file:
            return {name: file[name][:] for name in file if name != "sentence_to_index"}
    table = pytest.importorskip("pyarrow.parquet").read_table(path)
    layers, dim = int(table.schema.metadata[b"layers"]), int(table.schema.metadata[b"dim"])
    found: dict[str, list[np.ndarray]] = {}
    for line, vector in zip(table["line"].to_pylist(), table["vector"].to_numpy(), strict=True):
        found.setdefault(str(line), []).append(np.asarray(vector).reshape(layers, dim))
    return {line: np.stack(rows, axis=1) for line, rows in found.items()}


@pytest.mark.parametrize("name", ["v.h5", "v.hdf5", "v.npz", "v.safetensors", "v.parquet"])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_every_format_holds_the_vectors_of_every_line(
    model: BiLM, text: Path, tmp_path: Path, name: str, dtype: Any
) -> None:
    if name.endswith("parquet"):
        pytest.importorskip("pyarrow")
    summary = embed_file(model, text, tmp_path / name, dtype=dtype)
    expected = model.embed(LINES)
    found = read(tmp_path / name)
    assert summary[:4] == (tmp_path / name, 6, 0, sum(v.shape[1] for v in expected))
    for number, vectors in enumerate(expected):
        if name.endswith("parquet") and not vectors.shape[1]:
            assert str(number) not in found
            continue
        assert found[str(number)].dtype == dtype
        assert np.array_equal(found[str(number)], vectors.astype(dtype))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["text.txt", name]


def test_hdf5_has_the_old_tools_index_from_lines_to_numbers_the_last_of_equal_ones(
    model: BiLM, text: Path, tmp_path: Path
) -> None:
    embed_file(model, text, tmp_path / "v.h5", EmbedOptions(layers="top"))
    with h5py.File(tmp_path / "v.h5") as file:
        assert file["sentence_to_index"].shape == (1,)
        index = json.loads(file["sentence_to_index"][0])
        assert index == {line: str(number) for number, line in enumerate(LINES)}
        assert index[LINES[0]] == "3"
        assert np.array_equal(file["0"][:], file["3"][:])
        assert file["1"].shape == (0, 16)


def test_parquet_has_a_row_a_token_with_its_line_and_position(
    model: BiLM, text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    monkeypatch.setattr("relmo.embedding.formats.ROW_GROUP_BYTES", 1000)
    embed_file(model, text, tmp_path / "v.parquet", EmbedOptions(layers="average"))
    rows = parquet.read_table(tmp_path / "v.parquet").to_pylist()
    assert parquet.ParquetFile(tmp_path / "v.parquet").num_row_groups > 1
    expected = [
        (line, position, token)
        for line, sentence in enumerate(LINES)
        for position, token in enumerate(model.tokens(sentence))
    ]
    assert [(row["line"], row["position"], row["token"]) for row in rows] == expected
    vectors = np.concatenate(model.embed(LINES, layers="average"))
    assert np.array_equal(np.array([row["vector"] for row in rows], dtype=np.float32), vectors)


@pytest.mark.parametrize("name", ["v.h5", "v.npz", "v.safetensors"])
@pytest.mark.parametrize("layers", ["all", 1])
def test_pooled_vectors_are_one_array_with_a_row_a_line(
    model: BiLM, text: Path, tmp_path: Path, name: str, layers: Any
) -> None:
    embed_file(model, text, tmp_path / name, EmbedOptions(layers=layers), pooling="max")
    expected = model.sentence_vectors(LINES, layers=layers, pooling="max")
    assert np.array_equal(read(tmp_path / name)["vectors"], expected)


def test_pooled_vectors_are_a_row_a_line_in_parquet(model: BiLM, text: Path, tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    embed_file(model, text, tmp_path / "v.parquet", EmbedOptions(layers="top"), pooling="mean")
    table = parquet.read_table(tmp_path / "v.parquet")
    assert table["text"].to_pylist() == LINES
    assert np.array_equal(np.stack(table["vector"].to_numpy()), model.sentence_vectors(LINES, layers="top"))


def test_conllu_keeps_its_words_and_compressed_text_is_read(model: BiLM, tmp_path: Path) -> None:
    (tmp_path / "a.conllu").write_text(CONLLU, encoding="utf-8")
    embed_file(model, tmp_path / "a.conllu", tmp_path / "v.npz")
    for name, vectors in zip("01", model.embed([["Vámonos"], ["de", "el"]]), strict=True):
        assert np.array_equal(read(tmp_path / "v.npz")[name], vectors)
    (tmp_path / "t.gz").write_bytes(gzip.compress(b"one line\nand one"))
    assert embed_file(model, tmp_path / "t.gz", tmp_path / "v.npz", overwrite=True).sentences == 2
    embed_file(make(lowercase=True), tmp_path / "a.conllu", tmp_path / "l.npz")
    assert np.array_equal(read(tmp_path / "l.npz")["0"], model.embed([["vámonos"]])[0])


def test_a_line_longer_than_the_reader_takes_at_once_is_still_one_sentence(
    model: BiLM, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("relmo.text.corpus.MAX_LINE_BYTES", 50)
    long = " ".join(f"word{i}" for i in range(40))
    for end in ("\n", ""):
        (tmp_path / "t.txt").write_text(f"short\n{long}{end}")
        assert embed_file(model, tmp_path / "t.txt", tmp_path / "v.npz", overwrite=True).sentences == 2
        assert np.array_equal(read(tmp_path / "v.npz")["1"], model.embed([long])[0])


def test_an_error_in_the_input_leaves_nothing_behind(model: BiLM, tmp_path: Path) -> None:
    (tmp_path / "bad.txt").write_bytes(b"good\nb\xff\n")
    with pytest.raises(CorpusError, match=r"bad.txt:2"):
        embed_file(model, tmp_path / "bad.txt", tmp_path / "v.h5")
    embed_file(model, tmp_path / "bad.txt", tmp_path / "v.h5", errors="replace")
    (tmp_path / "v.h5").unlink()
    (tmp_path / "none.txt").write_bytes(b"")
    with pytest.raises(CorpusError, match="empty"):
        embed_file(model, tmp_path / "none.txt", tmp_path / "v.h5")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bad.txt", "none.txt"]


@pytest.mark.parametrize("name", ["v.txt", "v", "v.h5.gz"])
def test_a_name_that_says_no_format_is_an_error_that_lists_them(model: BiLM, text: Path, name: str) -> None:
    with pytest.raises(SettingError, match=r"\.safetensors"):
        embed_file(model, text, text.with_name(name))


def test_without_pyarrow_the_error_says_what_to_install(
    model: BiLM, text: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    with pytest.raises(SettingError, match=r"pip install 'relmo\[parquet\]'"):
        embed_file(model, text, text.with_name("v.parquet"))


class Stopped(Exception):
    """What breaks a run off in these tests."""


def stop_after(model: BiLM, source: Path, out: Path, sentences: int, **options: Any) -> None:
    def watch(progress: Any) -> None:
        if progress.done == sentences:
            raise Stopped

    with pytest.raises(Stopped):
        embed_file(model, source, out, watch=watch, **options)


@pytest.mark.parametrize("name", ["v.h5", "v.safetensors"])
@pytest.mark.parametrize("tail", [b"", b'{"text":"A bank l', b'{"text":"A"}\n', b"\n"])
def test_a_resumed_run_drops_a_half_written_tail_and_gives_the_same_file(
    model: BiLM, text: Path, tmp_path: Path, name: str, tail: bytes
) -> None:
    whole, out = tmp_path / f"whole-{name}", tmp_path / name
    embed_file(model, text, whole)
    stop_after(model, text, out, 3)
    assert not out.exists()
    with (tmp_path / f"{name}.partial" / "lines.jsonl").open("ab") as file:
        file.write(tail)
    with (tmp_path / f"{name}.partial" / "vectors.bin").open("ab") as file:
        file.write(b"half a vector")
    summary = embed_file(model, text, out, resume=True)
    assert (summary.sentences, summary.resumed) == (6, 3)
    assert out.read_bytes() == whole.read_bytes()
    assert not (tmp_path / f"{name}.partial").exists()


def test_lines_whose_vectors_never_reached_the_disk_are_done_again(model: BiLM, text: Path, tmp_path: Path) -> None:
    embed_file(model, text, tmp_path / "whole.npz")
    stop_after(model, text, tmp_path / "v.npz", 4)
    vectors = tmp_path / "v.npz.partial" / "vectors.bin"
    os.truncate(vectors, vectors.stat().st_size - 1)
    assert embed_file(model, text, tmp_path / "v.npz", resume=True).resumed == 3
    for name, array in read(tmp_path / "whole.npz").items():
        assert np.array_equal(read(tmp_path / "v.npz")[name], array)


def damage(path: Path, place: int) -> None:
    data = bytearray(path.read_bytes())
    data[place] ^= 1
    path.write_bytes(data)


def change_line(path: Path, number: int, **values: Any) -> None:
    lines = path.read_bytes().splitlines(keepends=True)
    replace_line(path, number, json.dumps(json.loads(lines[number]) | values).encode() + b"\n")


def replace_line(path: Path, number: int, line: bytes) -> None:
    lines = path.read_bytes().splitlines(keepends=True)
    lines[number] = line
    path.write_bytes(b"".join(lines))


def pipe(path: Path) -> None:
    path.unlink(missing_ok=True)
    os.mkfifo(path)


DAMAGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "the first vectors": (lambda f: damage(f / "vectors.bin", 0), r"lines.jsonl:1: .* damaged"),
    "the last vectors": (lambda f: damage(f / "vectors.bin", -1), r"lines.jsonl:4: .* damaged"),
    "a letter": (lambda f: damage(f / "lines.jsonl", 12), r"lines.jsonl:1: .* damaged"),
    "a token": (lambda f: change_line(f / "lines.jsonl", 2, tokens=["A"] * 6), r"lines.jsonl:3: .* damaged"),
    "tokens": (lambda f: change_line(f / "lines.jsonl", 2, tokens=[]), r"lines.jsonl:3: .* damaged"),
    "no tokens": (lambda f: change_line(f / "lines.jsonl", 0, tokens=None), r"lines.jsonl:1: .* damaged"),
    "numbers": (lambda f: change_line(f / "lines.jsonl", 0, tokens=[1]), r"lines.jsonl:1: .* damaged"),
    "a surrogate": (lambda f: change_line(f / "lines.jsonl", 0, text="\ud800"), r"lines.jsonl:1: .* damaged"),
    "a checksum": (lambda f: change_line(f / "lines.jsonl", 0, checksum="x"), r"lines.jsonl:1: .* damaged"),
    "no UTF-8": (lambda f: replace_line(f / "lines.jsonl", 0, b"\xff\n"), r"lines.jsonl:1: .* damaged"),
    "nested": (lambda f: replace_line(f / "lines.jsonl", 1, b"[" * 99_999 + b"\n"), r"lines.jsonl:2: .* damaged"),
    "a lost line": (lambda f: replace_line(f / "lines.jsonl", 0, b""), r"lines.jsonl:2: .* damaged"),
    "a note": (lambda f: (f / "note.json").write_bytes(b"[]"), "note.json"),
    "a note's bytes": (lambda f: (f / "note.json").write_bytes(b"\xff"), "note.json"),
    "a nested note": (lambda f: (f / "note.json").write_bytes(b"[" * 99_999), "note.json"),
    "an empty note": (lambda f: (f / "note.json").write_bytes(b"{}"), "another model"),
    "no vectors": (lambda f: (f / "vectors.bin").unlink(), "vectors.bin"),
    "a pipe of lines": (lambda f: pipe(f / "lines.jsonl"), "lines.jsonl"),
    "a pipe of vectors": (lambda f: pipe(f / "vectors.bin"), "vectors.bin"),
    "a piped note": (lambda f: pipe(f / "note.json"), "note.json"),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_damage_to_what_was_done_is_one_line_with_what_to_do(
    name: str, model: BiLM, text: Path, tmp_path: Path
) -> None:
    stop_after(model, text, tmp_path / "v.npz", 4)
    change, says = DAMAGES[name]
    change(tmp_path / "v.npz.partial")
    with pytest.raises(StorageError, match=says + r".* remove ") as caught:
        embed_file(model, text, tmp_path / "v.npz", resume=True)
    assert len(str(caught.value)) < 1000


def test_pipes_in_place_of_what_a_kill_left_of_a_result_are_not_written_to(
    model: BiLM, text: Path, tmp_path: Path
) -> None:
    embed_file(model, text, tmp_path / "whole.h5")
    stop_after(model, text, tmp_path / "v.h5", 4)
    for name in ("result", "index.json"):
        pipe(tmp_path / "v.h5.partial" / name)
    embed_file(model, text, tmp_path / "v.h5", resume=True)
    assert (tmp_path / "v.h5").read_bytes() == (tmp_path / "whole.h5").read_bytes()


def test_a_broken_off_run_is_not_overwritten_nor_mixed_with_another(model: BiLM, text: Path, tmp_path: Path) -> None:
    out = tmp_path / "v.h5"
    stop_after(model, text, out, 4)
    kept = (tmp_path / "v.h5.partial" / "lines.jsonl").read_bytes()
    torch.manual_seed(9)
    other = BiLM(BiLMNetwork(MODEL, vocab_size=None), BiLMSettings(model=MODEL))
    mistakes: list[tuple[type[RelmoError], str, BiLM, dict[str, Any]]] = [
        (StorageError, "add --resume", model, {"resume": False}),
        (StorageError, "layers 'all', not 'top'", model, {"options": EmbedOptions(layers="top")}),
        (StorageError, "dtype 'float32', not 'float16'", model, {"dtype": "float16"}),
        (StorageError, "precision 'float32', not 'int8'", make(precision="int8"), {}),
        (StorageError, "another model", other, {}),
        (StorageError, "tokenizer 'words', not 'whitespace'", make(tokenizer="whitespace"), {}),
    ]
    for kind, says, asked, options in mistakes:
        with pytest.raises(kind, match=says):
            embed_file(asked, text, out, **({"resume": True} | options))
    text.write_bytes(TEXT.encode().replace(b"lends", b"takes"))
    with pytest.raises(CorpusError, match=r"text.txt:3:"):
        embed_file(model, text, out, resume=True)
    text.write_bytes(b"The bank of the river.\n")
    with pytest.raises(CorpusError, match=r"text.txt:2:"):
        embed_file(model, text, out, resume=True)
    assert (tmp_path / "v.h5.partial" / "lines.jsonl").read_bytes() == kept
    text.write_bytes(TEXT.encode())
    assert embed_file(model, text, out, resume=True).resumed == 4


def test_carried_state_is_written_as_embed_gives_it_and_cannot_be_resumed(
    model: BiLM, text: Path, tmp_path: Path
) -> None:
    options = EmbedOptions(state="carry", batch_size=2)
    model.reset_states()
    stop_after(model, text, tmp_path / "v.npz", 3, options=options)
    assert not (tmp_path / "v.npz.partial").exists()
    with pytest.raises(SettingError, match="resumed"):
        embed_file(model, text, tmp_path / "v.npz", options, resume=True)
    model.reset_states()
    expected = model.embed(LINES, state="carry", batch_size=2)
    model.reset_states()
    embed_file(model, text, tmp_path / "v.npz", options)
    for number, vectors in enumerate(expected):
        assert np.array_equal(read(tmp_path / "v.npz")[str(number)], vectors)


def test_more_sentences_than_safetensors_can_name_is_an_error(
    model: BiLM, text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("relmo.embedding.formats.MAX_HEADER_BYTES", 400)
    with pytest.raises(StorageError, match=r"write .h5 or .parquet"):
        embed_file(model, text, tmp_path / "v.safetensors")
    assert not (tmp_path / "v.safetensors").exists()


DRIVER = """
import sys
import torch
torch.set_num_threads(1)
import relmo.embedding.engine
import relmo.embedding.files
relmo.embedding.engine.WINDOW_TOKENS = (200, 200)  # results come a few at a time
relmo.embedding.files.COMMIT_SECONDS = 0.01
from relmo.cli import main
main(sys.argv[1:])
"""


def command(*more: str) -> list[str]:
    given = ["embed", "text.txt", "--model", "model", "--out", "v.safetensors", "--device", "cpu", "--quiet", *more]
    return [sys.executable, "-c", DRIVER, *given]


@pytest.mark.slow
def test_a_run_killed_again_and_again_ends_with_the_same_bytes(tmp_path: Path) -> None:
    big = BiLMModelSettings(char_dim=4, filters=("1x8", "2x8"), hidden=512, projection=32)
    model = BiLM(BiLMNetwork(big, vocab_size=None), BiLMSettings(model=big))
    model.save_pretrained(tmp_path / "model")
    lines = [" ".join(f"w{i * k % 113}" for k in range(i % 23)) for i in range(1200)]
    (tmp_path / "text.txt").write_text("\n".join(lines) + "\n")
    embed_file(model, tmp_path / "text.txt", tmp_path / "whole.safetensors")
    done = tmp_path / "v.safetensors.partial" / "lines.jsonl"
    for at in (1, 500):
        process = subprocess.Popen(command("--resume"), cwd=tmp_path)
        while process.poll() is None and (not done.exists() or done.read_bytes().count(b"\n") < at):
            time.sleep(0.01)
        process.send_signal(signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL
        assert not (tmp_path / "v.safetensors").exists()
    assert subprocess.run(command("--resume"), cwd=tmp_path, check=False).returncode == 0
    assert (tmp_path / "v.safetensors").read_bytes() == (tmp_path / "whole.safetensors").read_bytes()


@pytest.mark.parametrize("lowercase", [False, True])
def test_hdf5_has_tokens_and_offsets_beside_the_vectors_and_the_old_names_alone(
    text: Path, tmp_path: Path, lowercase: bool
) -> None:
    model = make(lowercase=lowercase)
    embed_file(model, text, tmp_path / "v.h5", EmbedOptions(layers="top"))
    with h5py.File(tmp_path / "v.h5") as file:
        assert set(file) == {*map(str, range(6)), "sentence_to_index"}
        for number, line in enumerate(LINES):
            tokens, offsets = (file[str(number)].attrs[name] for name in ("tokens", "offsets"))
            assert tokens.tolist() == model.tokens(line)
            found = [line[start:end] for start, end in offsets.tolist()]
            assert [word.lower() if lowercase else word for word in found] == tokens.tolist()
            assert len(tokens) == len(file[str(number)]) == len(offsets)


def test_a_line_of_very_many_words_has_its_tokens_too(model: BiLM, tmp_path: Path) -> None:
    (tmp_path / "long.txt").write_text("a " * 20_000)
    embed_file(model, tmp_path / "long.txt", tmp_path / "v.h5", EmbedOptions(layers=0), dtype="float16")
    with h5py.File(tmp_path / "v.h5") as file:
        assert file["0"].attrs["tokens"].tolist() == ["a"] * 20_000
        assert file["0"].attrs["offsets"][-1].tolist() == [39_998, 39_999]


@pytest.mark.parametrize("pooling", [None, "mean"])
def test_a_table_keeps_its_ids_and_parquet_has_offsets(model: BiLM, tmp_path: Path, pooling: Any) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    (tmp_path / "t.csv").write_text('id,text,n\nx1,"A bank, so",1\nx2,The river.,2\n')
    for name in ("v.h5", "v.npz", "v.safetensors", "v.parquet"):
        embed_file(model, tmp_path / "t.csv", tmp_path / name, EmbedOptions(layers="top"), pooling=pooling)
    rows = parquet.read_table(tmp_path / "v.parquet").to_pylist()
    texts = ["A bank, so", "The river."]
    if pooling is None:
        expected = model.embed(texts, layers="top")
        assert [(row["id"], row["token"]) for row in rows] == [
            (name, token) for name, line in zip(("x1", "x2"), texts, strict=True) for token in model.tokens(line)
        ]
        assert all(texts[row["line"]][row["start"] : row["end"]] == row["token"] for row in rows)
    else:
        expected = list(model.sentence_vectors(texts, layers="top"))
        assert [(row["id"], row["text"]) for row in rows] == [("x1", texts[0]), ("x2", texts[1])]
    with h5py.File(tmp_path / "v.h5") as file:
        ids = file["ids"].asstr()[:].tolist() if pooling else [file[n].attrs["id"] for n in ("0", "1")]
        assert ids == ["x1", "x2"]
    with np.load(tmp_path / "v.npz") as archive:
        assert archive["ids"].tolist() == ["x1", "x2"]
        first = archive["vectors"][0] if pooling else archive["0"]
        assert np.array_equal(first, expected[0])
    with safe_open(tmp_path / "v.safetensors", "np") as file:
        assert json.loads(file.metadata()["ids"]) == ["x1", "x2"]


def test_a_run_over_a_table_goes_on_with_its_ids(model: BiLM, tmp_path: Path) -> None:
    (tmp_path / "t.tsv").write_text("id\ttext\n" + "".join(f"k{i}\tthe bank {i}\n" for i in range(8)))
    stop_after(model, tmp_path / "t.tsv", tmp_path / "v.npz", 4)
    embed_file(model, tmp_path / "t.tsv", tmp_path / "v.npz", resume=True)
    with np.load(tmp_path / "v.npz") as archive:
        assert archive["ids"].tolist() == [f"k{i}" for i in range(8)]


def test_prose_is_embedded_by_sentences(model: BiLM, tmp_path: Path) -> None:
    (tmp_path / "prose.txt").write_text("The bank of\nthe river. A bank\nlends money.\n")
    embed_file(model, tmp_path / "prose.txt", tmp_path / "v.npz", EmbedOptions(layers="top"), split="sentences")
    expected = model.embed(["The bank of the river.", "A bank lends money."], layers="top")
    assert [read(tmp_path / "v.npz")[name].tolist() for name in "01"] == [array.tolist() for array in expected]
