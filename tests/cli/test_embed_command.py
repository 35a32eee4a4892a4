"""`relmo embed` end to end: what it prints, what it leaves, and how it stops."""

import io
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import h5py
import numpy as np
import pytest
import torch

import relmo
from relmo.cli import main
from relmo.models.bilm import BiLM
from relmo.networks.bilm import BiLMNetwork
from relmo.settings.bilm import BiLMModelSettings, BiLMSettings

MODEL = BiLMModelSettings(char_dim=4, filters=("1x8", "2x8"), hidden=64, projection=8)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("models") / "mine"
    torch.manual_seed(3)
    BiLM(BiLMNetwork(MODEL, vocab_size=None), BiLMSettings(model=MODEL)).save_pretrained(path)
    return path


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    path.write_text("The bank of the river.\n\nIt's a bank!\n", encoding="utf-8")
    return path


def run(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    """A command's exit status, output and errors."""
    capsys.readouterr()
    with pytest.raises(SystemExit) as end:
        main([str(argument) for argument in arguments])
    output, errors = capsys.readouterr()
    return int(end.value.code or 0), output, errors


def test_a_file_of_vectors_and_a_line_about_it(folder: Path, text: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = text.with_name("v.h5")
    status, output, errors = run(capsys, "embed", text, "--model", folder, "--out", out, "--device", "cpu")
    assert (status, errors) == (0, "")
    assert output.startswith(f"{out}: 3 sentences, 11 tokens in ")
    expected = BiLM.from_pretrained(folder, device="cpu").embed(text.read_text().splitlines())
    with h5py.File(out) as file:
        for number, vectors in enumerate(expected):
            assert np.array_equal(file[str(number)][:], vectors)


def test_json_is_one_object_with_the_figures_and_quiet_says_nothing(
    folder: Path, text: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = text.with_name("v.npz")
    given = ["embed", text, "--model", folder, "--out", out, "--layers", "1", "--tokenizer", "whitespace"]
    status, output, _ = run(capsys, *given, "--json")
    facts = json.loads(output)
    assert (status, output.count("\n")) == (0, 1)
    assert (facts["sentences"], facts["tokens"], facts["out"], facts["cut_words"]) == (3, 8, str(out), 0)
    assert facts["tokens_per_second"] == pytest.approx(facts["tokens"] / facts["seconds"], rel=0.1)
    refused = f"error: {out}: already exists; add --overwrite to replace it, or choose another name\n"
    assert run(capsys, *given, "--quiet") == (2, "", refused)
    assert run(capsys, *given, "--quiet", "--overwrite") == (0, "", "")
    with np.load(out) as archive:
        assert archive["0"].shape == (5, 16)


def test_vectors_are_of_the_precision_asked_for_which_is_told(
    folder: Path, text: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = text.with_name("v.h5")
    given = ["embed", text, "--model", folder, "--out", out, "--device", "cpu", "--precision", "int8"]
    status, output, errors = run(capsys, *given)
    assert (status, errors, " in int8, " in output) == (0, "", True)
    assert json.loads(run(capsys, *given, "--json", "--overwrite")[1])["precision"] == "int8"
    model = BiLM.from_pretrained(folder, device="cpu")
    model.precision = "int8"
    with h5py.File(out) as file:
        assert json.loads(file.attrs["relmo"])["precision"] == "int8"
        for number, vectors in enumerate(model.embed(text.read_text().splitlines())):
            assert np.array_equal(file[str(number)][:], vectors)


@pytest.mark.parametrize("name", [[], ["-"]])
def test_standard_input_is_read_where_no_file_is_given(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, name: list[str]
) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"one\ntwo words\n")))
    status, output, _ = run(capsys, "embed", *name, "--model", folder, "--out", tmp_path / "v.npz", "--pooling", "mean")
    assert (status, "2 sentences, 3 tokens" in output) == (0, True)
    with np.load(tmp_path / "v.npz") as archive:
        assert archive["vectors"].shape == (2, 3, 16)


def test_a_word_that_is_cut_is_a_line_on_standard_error(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "t.txt").write_text(f"short {'x' * 49} {'y' * 48}\n")
    given = ["embed", tmp_path / "t.txt", "--model", folder, "--out", tmp_path / "v.npz", "--quiet"]
    assert run(capsys, *given) == (
        0,
        "",
        f"warning: 1 word was cut to the 48 bytes that the model reads of a word, for example '{'x' * 49}'\n",
    )


def test_carried_state_and_its_batch_size_reach_the_model(
    folder: Path, text: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for state in ("carry", "warmup"):
        out = text.with_name(f"{state}.h5")
        run(capsys, "embed", text, "--model", folder, "--out", out, "--state", state, "--batch-size", 1)
        lines = text.read_text().splitlines()
        expected = BiLM.from_pretrained(folder, device="cpu").embed(lines, state=state, batch_size=1)  # type: ignore[arg-type]
        with h5py.File(out) as file:
            np.testing.assert_allclose(file["2"][:], expected[2], atol=1e-6)


@pytest.mark.parametrize(
    ("more", "says"),
    [
        (["--out", "v.csv"], "v.csv"),
        (["--layers", "best"], "--layers must be all, top, average or a number"),
        (["--layers", "7"], "layers is 7"),
        (["--state", "carry"], "batch_size"),
        (["--state", "carry", "--batch-size", "2", "--resume"], "cannot be resumed"),
        (["--model", "nowhere"], "nowhere"),
        (["--batch-size", "0"], "--batch-size must be 1"),
        (["--workers", "2"], "--engine ray"),
    ],
)
def test_a_mistake_is_one_line_and_status_2(
    folder: Path,
    text: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    more: list[str],
    says: str,
) -> None:
    monkeypatch.chdir(text.parent)
    given = {"--model": str(folder), "--out": "v.h5"} | dict(zip(more[::2], more[1::2], strict=False))
    flags = [flag for flag in more if flag == "--resume"]
    pairs = [part for name, value in given.items() if name != "--resume" for part in (name, value)]
    status, output, errors = run(capsys, "embed", text, *pairs, *flags)
    assert (status, output, errors.count("\n")) == (2, "", 1)
    assert errors.startswith("error: ")
    assert says in errors
    assert [path.name for path in text.parent.iterdir()] == ["text.txt"]


def test_without_a_model_the_one_that_ships_embeds(text: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, output, _ = run(capsys, "embed", text, "--out", text.with_name("v.npz"), "--device", "cpu", "--json")
    assert (status, json.loads(output)["model"]) == (0, "small")
    vectors = relmo.load(device="cpu").embed(text.read_text().splitlines()[:1])[0]  # type: ignore[union-attr]
    with np.load(text.with_name("v.npz")) as file:
        np.testing.assert_allclose(file["0"], vectors, atol=1e-5)


def test_a_model_of_another_kind_is_refused(text: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = text.with_name("lm")
    given = ["--cell", "ngram", "--order", "2", "--valid-fraction", "0", "--quiet"]
    assert run(capsys, "train", "lm", text, "--out", out, *given)[0] == 0
    status, _, errors = run(capsys, "embed", text, "--model", out, "--out", text.with_name("v.h5"))
    assert (status, "(bilm)" in errors) == (2, True)


def test_help_shows_an_example(capsys: pytest.CaptureFixture[str]) -> None:
    status, output, _ = run(capsys, "embed", "--help")
    assert status == 0
    assert "relmo embed text.txt --model models/mine --out vectors.h5" in output


DRIVER = """
import signal
import sys
import torch
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job is started without it
torch.set_num_threads(1)
import relmo.cli.terminal
import relmo.embedding.engine
relmo.embedding.engine.WINDOW_TOKENS = (200, 200)  # results come a few at a time
relmo.cli.terminal.PLAIN_INTERVAL = 0.05
from relmo.cli import main
main(sys.argv[1:])
"""


@pytest.mark.slow
def test_ctrl_c_keeps_what_is_done_says_how_to_go_on_and_progress_is_plain_lines(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("".join(f"a line of six words {i}\n" for i in range(60_000)))
    given = ["embed", "text.txt", "--model", str(folder), "--out", "v.safetensors", "--device", "cpu"]
    environment = os.environ | {"PYTHONUNBUFFERED": "1"}
    process = subprocess.Popen(
        [sys.executable, "-c", DRIVER, *given], cwd=tmp_path, stderr=subprocess.PIPE, text=True, env=environment
    )
    assert process.stderr is not None
    first = process.stderr.readline()  # progress: there is something to keep
    process.send_signal(signal.SIGINT)
    rest = process.stderr.read()
    assert process.wait() == 130, rest
    assert " of 60,000 sentences  " in first
    assert first.rstrip().endswith(" left")
    last = rest.splitlines()[-1]
    assert last.startswith("stopped; ")
    assert last.endswith("--resume")
    kept = (tmp_path / "v.safetensors.partial" / "lines.jsonl").read_bytes().count(b"\n")
    assert int(last.split()[1].replace(",", "")) in (kept - 1, kept)
    assert not (tmp_path / "v.safetensors").exists()


def test_progress_tells_the_time_left(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    from relmo.cli.terminal import EmbedReporter
    from relmo.embedding.files import EmbedProgress

    watcher = EmbedReporter(quiet=False)
    start = watcher.start_time
    monkeypatch.setattr(time, "monotonic", lambda: start + 20.0)
    watcher.on_progress(EmbedProgress(done=300, total=1100, tokens=4000, resumed=100))
    monkeypatch.setattr(time, "monotonic", lambda: start + 25.0)
    watcher.on_progress(EmbedProgress(done=301, total=1100, tokens=4010, resumed=100))  # too early for another line
    assert capsys.readouterr().err == "300 of 1,100 sentences  200 tokens/s  80 s left\n"
