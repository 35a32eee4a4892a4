"""Clouds of points as TensorBoard's own server reads them."""

import json
import logging
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from relmo.cli import main
from relmo.compat.projector import export_projector, occurrences
from relmo.errors import SettingError, StorageError
from support.small_models import bilm

Ask = Callable[..., bytes]


@pytest.fixture
def serve() -> Iterator[Callable[[Path], Ask]]:
    """Starts TensorBoard on a folder. -> a function that asks its projector something."""
    program = pytest.importorskip("tensorboard.program", reason="tensorboard is not installed")
    logging.getLogger("werkzeug").setLevel(logging.ERROR)

    def start(folder: Path) -> Ask:
        board = program.TensorBoard()
        board.configure(argv=[None, "--logdir", str(folder), "--port", "0", "--load_fast", "false"])
        address = board.launch()

        def ask(what: str, **values: str) -> bytes:
            query = "&".join(f"{name}={value}" for name, value in values.items())
            with urllib.request.urlopen(f"{address}data/plugin/projector/{what}?{query}") as answer:
                return answer.read()

        return ask

    return start


def test_tensorboard_shows_the_points_and_what_they_are(tmp_path: Path, serve: Callable[[Path], Ask]) -> None:
    model = bilm()
    sentences = ["the cat sat", "a mat\twith a\nline end"]
    labels, vectors = occurrences(model, sentences)
    words = ["a", "cat"], np.float32([[1, 2.5, -3e-7], [0, 1e9, 4]])
    export_projector({"words": words, "in-context": (labels, vectors)}, tmp_path / "points")
    ask = serve(tmp_path / "points")
    assert json.loads(ask("runs")) == ["."]
    info = json.loads(ask("info", run="."))
    shapes = {cloud["tensorName"]: cloud["tensorShape"] for cloud in info["embeddings"]}
    assert shapes == {"words": [2, 3], "in-context": [len(vectors), 8]}
    tensor = np.frombuffer(ask("tensor", run=".", name="in-context"), dtype=np.float32).reshape(-1, 8)
    np.testing.assert_allclose(tensor, vectors, rtol=1e-6)
    np.testing.assert_allclose(np.frombuffer(ask("tensor", run=".", name="words"), np.float32), words[1].ravel())
    assert ask("metadata", run=".", name="words").decode().splitlines() == ["a", "cat"]
    rows = ask("metadata", run=".", name="in-context").decode().splitlines()
    assert rows[0] == "word\tsentence"
    assert rows[1:4] == [f"{word}\tthe cat sat" for word in ("the", "cat", "sat")]
    assert rows[-1] == "end\ta mat with a line end"
    assert len(rows) == 1 + len(vectors)


def test_convert_writes_a_models_words(tmp_path: Path) -> None:
    bilm().save_pretrained(tmp_path / "m")
    for flags, status in (([], 0), ([], 2), (["--overwrite"], 0)):
        with pytest.raises(SystemExit) as end:
            main(["convert", str(tmp_path / "m"), str(tmp_path / "p"), "--to", "projector", *flags])
        assert end.value.code == status
    assert (tmp_path / "p" / "words-labels.tsv").read_text().split() == ["a", "cat", "mat", "sat", "the"]


def test_importing_relmo_and_its_commands_imports_no_other_library() -> None:
    libraries = "{'gensim', 'huggingface_hub', 'onnx', 'onnxruntime', 'sentence_transformers', 'sklearn', 'spacy'}"
    script = f"import sys, relmo, relmo.cli, relmo.cli.models; print({libraries} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


def test_what_is_no_cloud_is_one_clear_line(tmp_path: Path) -> None:
    points = np.ones((2, 3), dtype=np.float32)
    for name, labels, vectors, said in (
        ("a b", ["x", "y"], points, "a b"),
        ("a", ["x"], points, "1 labels"),
        ("a", {"x": ["u", "v"], "y": ["u"]}, points, "1 labels"),
        ("a", [], points[:0], "vector"),
    ):
        with pytest.raises(SettingError, match=said):
            export_projector({name: (labels, vectors)}, tmp_path / "p")  # type: ignore[dict-item]
    (tmp_path / "mine.txt").write_text("my own")
    with pytest.raises((StorageError, SettingError)):
        export_projector({"a": (["x", "y"], points)}, tmp_path, overwrite=True)
    assert (tmp_path / "mine.txt").exists()
