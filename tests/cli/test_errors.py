"""User errors are one line on standard error and exit status 2, and leave nothing behind."""

import gzip
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

import relmo
from relmo.cli import main
from relmo.runs.progress import TrainingReporter
from relmo.store.folder import read_tensors
from relmo.training.loop import Step

ALICE = Path(relmo.__file__).parent / "data" / "alice.txt"
TINY = "--hidden 8 --embedding 4 --batch 4 --unroll 8 --epochs 0.1 --validate-every 5 --threads 1 --device cpu --quiet"

Fails = Callable[..., str]


def succeed(*arguments: object) -> None:
    with pytest.raises(SystemExit) as end:
        main([str(argument) for argument in arguments])
    assert end.value.code == 0


@pytest.fixture
def fails(capfd: pytest.CaptureFixture[str]) -> Fails:
    """A function that runs a command which must fail as promised. -> its line, without "error: "."""

    def run(*arguments: object) -> str:
        capfd.readouterr()
        with pytest.raises(SystemExit) as end:
            main([str(argument) for argument in arguments])
        output, errors = capfd.readouterr()
        assert end.value.code == 2, errors
        assert errors.startswith("error: ")
        assert errors.endswith("\n")
        assert errors.count("\n") == 1, errors
        assert "Traceback" not in errors
        assert output == ""
        return errors.removeprefix("error: ").rstrip("\n")

    return run


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("text") / "alice.txt"
    path.write_text(ALICE.read_text(encoding="utf-8")[:4000], encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def model(text: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small finished model, not to be changed."""
    out = tmp_path_factory.mktemp("model") / "lstm"
    succeed("train", "lm", text, "--out", out, *TINY.split())
    return out


@pytest.fixture
def copy(model: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(model, tmp_path / "copy"))


def test_an_empty_corpus(fails: Fails, tmp_path: Path) -> None:
    for content in ("", "\n"):
        (tmp_path / "empty.txt").write_text(content)
        assert "empty.txt: the corpus is empty" in fails(
            "train", "lm", tmp_path / "empty.txt", "--out", tmp_path / "m", *TINY.split()
        )
        assert not (tmp_path / "m").exists()


def test_a_corpus_shorter_than_one_window(fails: Fails, tmp_path: Path) -> None:
    (tmp_path / "short.txt").write_text("Down the rabbit-hole")
    options = TINY.replace("--unroll 8", "--unroll 100").split()
    line = fails("train", "lm", tmp_path / "short.txt", "--out", tmp_path / "m", *options)
    assert "4 lanes x 100 steps" in line
    assert "--unroll" in line
    assert not (tmp_path / "m").exists()


def test_a_directory_a_missing_file_and_a_missing_validation_file(fails: Fails, text: Path, tmp_path: Path) -> None:
    train = ("train", "lm", "--out", tmp_path / "m", *TINY.split())
    assert "is a folder" in fails(*train, text.parent)
    assert "alcie.txt: no such file" in fails(*train, text.with_name("alcie.txt"))
    assert "alcie.txt: no such file" in fails(*train, text, "--valid", text.with_name("alcie.txt"))
    assert "alcie.txt: no such file" in fails(*train, text, "--vocabulary", text.with_name("alcie.txt"))
    assert "--help" in fails(*train)
    assert not (tmp_path / "m").exists()


def test_bytes_that_are_not_utf_8_are_named_with_file_and_line(fails: Fails, tmp_path: Path) -> None:
    path = tmp_path / "latin.txt"
    path.write_bytes(b"one\ntwo\ncaf\xe9\n" * 50)
    line = fails("train", "lm", path, "--out", tmp_path / "m", *TINY.split())
    assert line.startswith(f"{path}:3: byte 0xe9 at column 4")
    assert "--errors replace" in line
    assert not (tmp_path / "m").exists()


def test_a_binary_file(fails: Fails, tmp_path: Path) -> None:
    path = tmp_path / "program"
    path.write_bytes(b"\x7fELF\x02\x01\x01\0\0\0\0" * 100)
    assert "binary" in fails("train", "lm", path, "--out", tmp_path / "m", *TINY.split())
    assert not (tmp_path / "m").exists()


def test_an_archive_that_was_cut_short(fails: Fails, text: Path, tmp_path: Path) -> None:
    path = tmp_path / "alice.txt.gz"
    path.write_bytes(gzip.compress(text.read_bytes())[:-20])
    assert "truncated or damaged" in fails("train", "lm", path, "--out", tmp_path / "m", *TINY.split())
    assert not (tmp_path / "m").exists()


def test_a_vocabulary_file_with_duplicates_is_named_with_both_lines(fails: Fails, text: Path, tmp_path: Path) -> None:
    path = tmp_path / "letters.txt"
    path.write_text("a\nb\nc\nb\n")
    line = fails("train", "lm", text, "--out", tmp_path / "m", *TINY.split(), "--vocabulary", path)
    assert line.startswith(f"{path}:4: 'b'")
    assert not (tmp_path / "m").exists()


def test_an_unknown_setting_names_the_nearest(fails: Fails, text: Path, tmp_path: Path) -> None:
    train = ("train", "lm", text, "--out", tmp_path / "m")
    assert "did you mean 'model.hidden'?" in fails(*train, "--set", "model.hiden=3")
    assert "did you mean 'train'?" in fails(*train, "--set", "training.lr=3")
    (tmp_path / "mine.toml").write_text("[train]\nclipnorm = 1.0\n")
    line = fails(*train, "--config", tmp_path / "mine.toml")
    assert "'train.clipnorm'" in line
    assert "did you mean 'train.clip_norm'?" in line
    assert line.startswith(str(tmp_path / "mine.toml"))
    assert "--hidden" in fails(*train, "--hiden", 3)
    assert "char, demo, " in fails(*train, "--preset", "chra")
    assert not (tmp_path / "m").exists()


def test_a_value_of_the_wrong_kind(fails: Fails, text: Path, tmp_path: Path) -> None:
    train = ("train", "lm", text, "--out", tmp_path / "m")
    assert "train.lr must be a number" in fails(*train, "--set", "train.lr=fast")
    assert "section.key=value" in fails(*train, "--set", "lr=1")
    assert "fast" in fails(*train, "--lr", "fast")
    assert "lstm, gru, elman" in fails(*train, "--set", "model.cell=rnn")
    assert "rnn" in fails(*train, "--cell", "rnn")
    assert "dropout must be from 0" in fails(*train, "--dropout", 1.5)
    assert "order" in fails(*train, "--order", 3)
    (tmp_path / "mine.toml").write_text("[train\n")
    assert "mine.toml" in fails(*train, "--config", tmp_path / "mine.toml")
    assert "none.toml" in fails(*train, "--config", tmp_path / "none.toml")
    assert "--out" in fails("train", "lm", text)
    assert not (tmp_path / "m").exists()


def test_cutoffs_beyond_the_vocabulary(fails: Fails, text: Path, tmp_path: Path) -> None:
    adaptive = ("--softmax", "adaptive", "--cutoffs", 5000)
    assert "cutoffs" in fails("train", "lm", text, "--out", tmp_path / "m", *TINY.split(), *adaptive)
    assert not (tmp_path / "m").exists()


def test_an_unknown_verb_and_kind(fails: Fails) -> None:
    assert "generat" in fails("generat")
    assert "lmm" in fails("train", "lmm")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_a_gpu_that_is_not_there(fails: Fails, text: Path, model: Path, tmp_path: Path) -> None:
    assert "GPU" in fails("train", "lm", text, "--out", tmp_path / "m", "--device", "cuda")
    assert "GPU" in fails("evaluate", model, text, "--device", "cuda")
    assert not (tmp_path / "m").exists()


def all_verbs(fails: Fails, folder: Path, text: Path) -> str:
    """The line of every verb that reads a model, which is the same for each, but for what to give instead."""
    lines = fails("evaluate", folder, text), fails("generate", folder, "--limit", 3), fails("info", folder)
    (line,) = {line.partition(";")[0] for line in lines}
    return line


def test_a_model_that_is_not_there(fails: Fails, text: Path, tmp_path: Path) -> None:
    assert "does not exist" in all_verbs(fails, tmp_path / "nothing", text)
    assert "is not a model folder" in all_verbs(fails, text.parent, text)


def test_weights_that_were_cut_short(fails: Fails, copy: Path, text: Path) -> None:
    weights = copy / "model.safetensors"
    for length in (weights.stat().st_size - 50, 100, 4, 0):
        with weights.open("rb+") as file:
            file.truncate(length)
        assert "model.safetensors" in all_verbs(fails, copy, text)


def test_weights_with_a_flipped_bit(fails: Fails, copy: Path, text: Path) -> None:
    data = bytearray((copy / "model.safetensors").read_bytes())
    data[-1000] ^= 4
    (copy / "model.safetensors").write_bytes(data)
    assert "checksum" in all_verbs(fails, copy, text)


@pytest.mark.parametrize("name", ["model.safetensors", "vocabulary.txt", "config.json"])
def test_a_model_folder_with_a_file_missing(name: str, fails: Fails, copy: Path, text: Path) -> None:
    (copy / name).unlink()
    assert name in all_verbs(fails, copy, text)


def test_a_config_that_says_something_else_than_the_weights(fails: Fails, copy: Path, text: Path) -> None:
    config = json.loads((copy / "config.json").read_text())
    config["settings"]["model"]["hidden"] = 9
    (copy / "config.json").write_text(json.dumps(config))
    assert "config.json" in all_verbs(fails, copy, text)
    (copy / "config.json").write_text("{")
    assert "config.json" in all_verbs(fails, copy, text)


def test_a_kind_of_model_the_verb_does_not_take(fails: Fails, text: Path, tmp_path: Path) -> None:
    vectors = tmp_path / "vectors"
    options = "--dimensions 4 --min-count 2 --epochs 1 --threads 1 --quiet"
    succeed("train", "skipgram", text, "--out", vectors, *options.split())
    assert "(skipgram)" in fails("generate", vectors)
    assert "(skipgram)" in fails("evaluate", vectors, text)


def test_a_text_that_cannot_be_scored(fails: Fails, model: Path, text: Path, tmp_path: Path) -> None:
    (tmp_path / "empty.txt").write_text("")
    assert "empty.txt: the corpus is empty" in fails("evaluate", model, tmp_path / "empty.txt")
    assert "nothing.txt: no such file" in fails("evaluate", model, tmp_path / "nothing.txt")
    assert "FILE" in fails("evaluate", model)
    assert "--batch" in fails("evaluate", model, tmp_path / "empty.txt", "--batch", 0)
    assert "empty.txt" in fails("surprisal", model, tmp_path / "empty.txt")
    assert ".parquet" in fails("surprisal", model, text, "--out", tmp_path / "w.txt")
    assert "direction" in fails("surprisal", model, text, "--direction", "backward")


def test_a_bilm_that_cannot_be_trained_or_scored(
    fails: Fails, text: Path, tmp_path: Path, data: Callable[[str], Path]
) -> None:
    def train(*options: object) -> str:
        return fails("train", "bilm", text, "--out", tmp_path / "model", "--device", "cpu", "--quiet", *options)

    assert "128 lanes x 20 steps" in train()
    assert "WIDTHxCOUNT" in train("--filters", "3*5")
    assert "softmax_first" in train("--softmax-first", 1)
    assert "teacher_share" in train("--teacher-share", 0.9)
    assert "nowhere" in train("--init", "nowhere")
    assert "hidden" in train("--init", data("parity"), "--hidden", 99)
    assert not (tmp_path / "model").exists()
    assert "output layer" in fails("evaluate", data("parity"), text)


def test_choices_that_make_no_sense(fails: Fails, model: Path) -> None:
    assert "--samples" in fails("generate", model, "--samples", 0)
    assert "--limit" in fails("generate", model, "--limit", 0)
    assert "--greedy" in fails("generate", model, "--beams", 2, "--greedy")
    assert "--beams 2" in fails("generate", model, "--beams", 2, "--samples", 3)
    assert "top_p" in fails("generate", model, "--top-p", 2.0).replace("-", "_")
    assert "top_k" in fails("generate", model, "--top-k", 0).replace("-", "_")
    assert "temperature" in fails("generate", model, "--temperature", -1.0)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of one megabyte."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(disk)]
    if shutil.which("mount") is None or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("mounting a small disk needs root")
    try:
        yield disk
    finally:
        subprocess.run(["umount", "--lazy", str(disk)], check=True)


def test_a_disk_too_small_for_the_text(fails: Fails, small_disk: Path, tmp_path: Path) -> None:
    (tmp_path / "long.txt").write_text("alice " * 100_000)
    line = fails("train", "lm", tmp_path / "long.txt", "--out", small_disk / "m", *TINY.split())
    assert "the disk is full" in line
    assert not (small_disk / "m" / "config.json").exists()


def test_a_disk_too_small_for_the_model(fails: Fails, text: Path, small_disk: Path) -> None:
    options = TINY.replace("--hidden 8", "--hidden 256").split()
    line = fails("train", "lm", text, "--out", small_disk / "m", *options)
    assert "the disk is full" in line
    assert "config.json" not in {path.name for path in (small_disk / "m").iterdir()}
    assert "model.safetensors" not in {path.name for path in (small_disk / "m").iterdir()}


def test_a_disk_that_fills_up_during_training_and_going_on_when_there_is_space_again(
    fails: Fails, text: Path, small_disk: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = [*TINY.split(), "--dropout", "0.2", "--checkpoint-every", "0", "--log-every", "1"]
    succeed("train", "lm", text, "--out", tmp_path / "m", *options)

    def fill(self: TrainingReporter, step: Step, total: int) -> None:
        if step.number == 7:
            with (small_disk / "filler").open("wb", 0) as file:
                while file.write(bytes(4096)) == 4096:
                    pass

    with monkeypatch.context() as patch:
        patch.setattr(TrainingReporter, "on_step", fill)
        line = fails("train", "lm", text, "--out", small_disk / "m", *options)
    assert "the disk is full" in line
    assert "--resume" in line
    (small_disk / "filler").unlink()
    succeed("train", "lm", "--out", small_disk / "m", "--resume", "--quiet")
    found, expected = (read_tensors(d / "m" / "model.safetensors")[0] for d in (small_disk, tmp_path))
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], expected[name]) for name in expected)


@pytest.mark.slow
def test_the_command_itself_fails_with_one_line_and_status_2(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "relmo", "train", "lm", "nothing.txt", "--out", "m"],
        cwd=tmp_path,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("error: nothing.txt: ")
    assert done.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "code",
    [
        "import relmo",
        "from relmo.cli import main; main(['--help'])",
        "from relmo.cli import main; main(['train', 'lm', '--help'])",
        "from relmo.cli import main; main(['train', 'bilm', '--help'])",
        "from relmo.cli import main; main(['generate', '--help'])",
        "from relmo.cli import main; main(['--version'])",
    ],
)
def test_help_and_import_do_not_import_torch(code: str) -> None:
    program = (
        f"import sys\ntry:\n    {code}\nfinally:\n    assert 'relmo' in sys.modules\n    print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "False"


@pytest.mark.parametrize(
    "arguments",
    [["train", "lm"], ["train", "bilm"], ["train", "skipgram"], ["evaluate"], ["generate"], ["info"], ["convert"]],
    ids=" ".join,
)
def test_the_help_of_every_verb_has_a_worked_example(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    succeed(*arguments, "--help")
    assert f"relmo {' '.join(arguments)} " in capsys.readouterr().out.split("Usage:")[1].split("\n", 1)[1]


def test_help_shows_the_unknown_symbol_as_it_is_written(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in (["train", "lm"], ["generate"]):
        succeed(*arguments, "--help")
        assert "<unk>" in capsys.readouterr().out
