"""Taggers on the command line: train, evaluate, predict, info, and a pipe."""

import io
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import relmo
from relmo.cli import main
from relmo.errors import CorpusError
from support.tagging import conllu

predict: Any = import_module("relmo.cli.predict")  # the module, whose name its function has too

Relmo = Callable[..., str]
SMALL = "--word-dim 8 --char-dim 4 --filters 2x6 --hidden 8 --dropout 0.1 --batch 8 --lr 0.02 --epochs 6 --device cpu"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tagger that has learned all there is to learn."""
    folder = tmp_path_factory.mktemp("tagger")
    train, dev = conllu(folder / "train.conllu", 40), conllu(folder / "dev.conllu", 15, seed=1)
    with pytest.raises(SystemExit) as end:
        main(["train", "tagger", str(train), "--valid", str(dev), *f"{SMALL} --quiet --out {folder / 'm'}".split()])
    assert end.value.code == 0
    return folder / "m"


def test_options_of_another_kind_of_model_are_refused(command: Relmo, model: Path, tmp_path: Path) -> None:
    (tmp_path / "t.txt").write_text("A dog\n")
    error = command("predict", model, tmp_path / "t.txt", "--length-penalty", 1, code=2)
    assert "--length-penalty" in error


def test_training_prints_its_results(command: Relmo, tmp_path: Path) -> None:
    train = conllu(tmp_path / "train.conllu", 40)
    arguments = ["train", "tagger", train, "--preset", "pos", *SMALL.replace("--epochs 6", "--epochs 1").split()]
    results = json.loads(command(*arguments, "--out", tmp_path / "m", "--json", "--quiet"))
    assert results["metric"] == "accuracy"
    assert 0 <= results["valid_accuracy"] <= 1
    settings = json.loads((tmp_path / "m" / "config.json").read_text())["settings"]
    assert settings["train"]["decay"] == "linear"  # the preset's
    assert settings["train"]["epochs"] == 1


def test_a_preset_with_english_vectors_warns_of_text_in_another_language(
    run: Callable[..., tuple[int, str, str]], tmp_path: Path
) -> None:
    (tmp_path / "da.tsv").write_text("Katten\tNOUN\nsover\tVERB\npå\tADP\nmåtten\tNOUN\n.\tPUNCT\n\n" * 20)
    arguments = ["train", "tagger", tmp_path / "da.tsv", "--preset", "pos", "--out", tmp_path / "m", "--dry-run"]
    status, _, messages = run(*arguments)
    assert status == 0
    assert "--vectors none" in messages
    status, _, messages = run(*arguments, "--vectors", "none")
    assert status == 0
    assert "warning" not in messages


def test_each_preset_is_read(command: Relmo, tmp_path: Path) -> None:
    presets = sorted(path.name for path in (Path(relmo.__file__).parent / "presets").glob("tagger-*.toml"))
    assert presets == ["tagger-ner.toml", "tagger-pos.toml"]
    said = command("train", "tagger", "none.iob2", "--preset", "ner", "--out", tmp_path / "m", code=2)
    assert "no such file" in said


def test_words_and_tags_come_line_by_line_with_an_empty_line_after_each_sentence(
    command: Relmo, model: Path, tmp_path: Path
) -> None:
    (tmp_path / "a.txt").write_text("The dog sees.\n\nThe cat.")
    expected = "The\tDET\ndog\tNOUN\nsees\tVERB\n.\tPUNCT\n\n\nThe\tDET\ncat\tNOUN\n.\tPUNCT\n\n"
    assert command("predict", model, tmp_path / "a.txt", "--device", "cpu") == expected
    split = command("predict", model, tmp_path / "a.txt", "--tokenizer", "whitespace")
    assert [line.split("\t")[0] for line in split.splitlines()[:3]] == ["The", "dog", "sees."]
    (tmp_path / "b.conllu").write_text("1\tThe\t_\tX\t_\t_\t0\t_\t_\t_\n2\tdog!?\t_\tX\t_\t_\t0\t_\t_\t_\n")
    assert [line.split("\t")[0] for line in command("predict", model, tmp_path / "b.conllu").splitlines()[:2]] == [
        "The",
        "dog!?",
    ]


def test_json_lines_have_places_in_the_text(command: Relmo, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"  The dog\n\n")))
    first, second = map(json.loads, command("predict", model, "--json").splitlines())
    assert all(0.3 < token.pop("probability") <= 1 for token in first["tokens"])
    assert first == {
        "text": "  The dog",
        "tokens": [
            {"text": "The", "start": 2, "end": 5, "tag": "DET"},
            {"text": "dog", "start": 6, "end": 9, "tag": "NOUN"},
        ],
        "entities": [],
    }
    assert second == {"text": "", "tokens": [], "entities": []}


@pytest.mark.slow
def test_a_pipe_is_answered_while_it_is_open(model: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "relmo", "predict", str(model)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write("The dog\n")
    process.stdin.flush()
    assert [process.stdout.readline() for _ in range(3)] == ["The\tDET\n", "dog\tNOUN\n", "\n"]
    process.stdin.write("The cat\n")
    process.stdin.close()
    assert process.stdout.read() == "The\tDET\ncat\tNOUN\n\n"
    assert process.wait() == 0


def with_an_open_pipe(model: Path, stdout: Any) -> Any:
    """A process that predicts what is written to it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # one that is ignored would stay so in the child
    try:
        return subprocess.Popen(
            [sys.executable, "-m", "relmo", "predict", str(model)],
            stdin=subprocess.PIPE,
            stdout=stdout,
            stderr=subprocess.PIPE,
            env=os.environ | {"OMP_NUM_THREADS": "1"},
        )
    finally:
        signal.signal(signal.SIGINT, before)


@pytest.mark.slow
def test_ctrl_c_ends_a_pipe_that_is_open_with_one_line_and_status_130(model: Path) -> None:
    with with_an_open_pipe(model, subprocess.PIPE) as process:
        process.stdin.write(b"\nThe dog\n")
        process.stdin.flush()
        assert [process.stdout.readline() for _ in range(4)] == [b"\n", b"The\tDET\n", b"dog\tNOUN\n", b"\n"]
        process.send_signal(signal.SIGINT)
        assert process.stderr.read() == b"stopped\n"
        assert process.wait() == 130


@pytest.mark.slow
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no device that is always full")
def test_a_full_device_ends_a_pipe_that_is_open_with_one_line_and_status_2(model: Path) -> None:
    with Path("/dev/full").open("wb") as full, with_an_open_pipe(model, full) as process:
        process.stdin.write(b"The dog\n")
        process.stdin.flush()
        said = process.stderr.read()
        assert process.wait() == 2
    assert said.startswith(b"error: standard output")
    assert said.endswith(b": the disk is full\n")


def test_blank_lines_are_answered_with_nothing(command: Relmo, model: Path, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("\n" * 300 + "The dog\n  \n")
    assert command("predict", model, tmp_path / "a.txt") == "\n" * 300 + "The\tDET\ndog\tNOUN\n\n\n"
    alice = Path(relmo.__file__).parent / "data" / "alice.txt"
    answers = command("predict", model, alice, "--json").splitlines()
    assert len(answers) == len(alice.read_text(encoding="utf-8").splitlines())


class Pipe(io.BytesIO):
    """What comes through a pipe, a piece at a time."""

    def __init__(self, *pieces: bytes):
        super().__init__()
        self.pieces = list(pieces)

    def read1(self, size: int | None = -1, /) -> bytes:
        return self.pieces.pop(0) if self.pieces else b""


def test_what_has_come_is_taken_together_and_errors_come_after_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def given(*pieces: bytes) -> Iterator[list[str]]:
        monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=Pipe(*pieces)))
        model = SimpleNamespace(read_file=lambda path, errors: None, read_line=lambda text, tokenized: text)
        return predict.read_examples(model, "-", (), "strict")

    assert list(given(b"a\nb", b"", b"never")) == [["a"], ["b"]]
    assert list(given(b"\n", b"a\nb", b"c\n\n", b"d")) == [[""], ["a"], ["bc", ""], ["d"]]
    groups = given(b"a\nb\n", b"\xff\n")
    assert next(groups) == ["a", "b"]
    with pytest.raises(CorpusError, match="<stdin>:3: byte 0xff"):
        next(groups)
    monkeypatch.setattr(predict, "MAX_CHUNK_LINES", 2)
    assert list(given(b"a\nb\nc\n")) == [["a", "b"], ["c"]]
    assert list(given()) == []


def test_evaluate_shows_the_score_each_label_and_the_confusions(command: Relmo, model: Path) -> None:
    dev = model.parent / "dev.conllu"
    assert command("evaluate", model, dev, dev, "--quiet") == "1.000000\n1.000000\n"
    shown = command("evaluate", model, dev, "--confusion")
    assert "accuracy" in shown
    assert "precision" in shown
    assert "predicted labels" in shown
    (row,) = json.loads(command("evaluate", model, dev, "--json"))["files"]
    assert row["accuracy"] == 1.0
    assert row["metric"] == "accuracy"
    assert row["confusion"]["labels"] == ["DET", "NOUN", "PUNCT", "VERB"]
    assert [label["label"] for label in row["labels"]] == ["DET", "NOUN", "PUNCT", "VERB"]


def test_info_and_convert_know_a_tagger(command: Relmo, model: Path, tmp_path: Path) -> None:
    facts = json.loads(command("info", model, "--json"))
    assert facts["kind"] == "tagger"
    command("convert", model, tmp_path / "half", "--precision", "float16")
    assert command("evaluate", tmp_path / "half", model.parent / "dev.conllu", "--quiet") == "1.000000\n"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["predict", "small"], "(bilm)"),
        (["predict", "MODEL", "none.txt"], "no such file"),
        (["evaluate", "MODEL", "none.conllu"], "no such file"),
        (["surprisal", "MODEL", "DEV"], "(tagger)"),
        (["evaluate", "small", "DEV", "--confusion"], "--confusion"),
        (["generate", "MODEL"], "(tagger)"),
        (["train", "tagger", "DEV", "--out", "MODEL"], "holds a finished model"),
        (["train", "tagger", "DEV", "--set", "input.elmo_layer=top", "--out", "x"], "input.elmo_layers"),
    ],
)
def test_mistakes_are_one_line(command: Relmo, model: Path, arguments: list[str], says: str) -> None:
    places = {"MODEL": str(model), "DEV": str(model.parent / "dev.conllu")}
    said = command(*(places.get(argument, argument) for argument in arguments), code=2)
    assert says in said
    assert said.count("\n") == 1
