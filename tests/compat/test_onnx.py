"""The exported graph in onnxruntime's hands: the vectors of `embed`, whatever the batch and the length."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnx", reason="onnx is not installed: pip install 'relmo[onnx]'")
pytest.importorskip("onnxruntime", reason="onnxruntime is not installed: pip install 'relmo[onnx]'")

import onnx
import onnxruntime

import relmo
from relmo.cli import main
from relmo.compat.onnx import OnnxEmbedder, export_onnx
from relmo.errors import ModelError, SettingError
from relmo.text.characters import character_ids
from support import tagging
from support.small_models import bilm

SENTENCES = ["the cat sat", "", "the large mat , a cat sat on it", "a", ["Straße", "x" * 60, "cat"]]
GEOMETRIES: list[dict[str, Any]] = [
    {},
    {"layers": 1, "highway": 0, "activation": "tanh", "filters": ("1x2", "3x2"), "projection": 4},
    {"layers": 3, "highway": 2, "skip_connections": False, "cell_clip": 0.0, "projection_clip": 0.0},
    {"hidden": 4, "projection": 4},
]
pytestmark = pytest.mark.filterwarnings("ignore:1 word was cut")


@pytest.mark.parametrize("options", GEOMETRIES)
def test_onnxruntime_gives_the_vectors_of_embed(tmp_path: Path, options: dict[str, Any]) -> None:
    model = bilm(**options)
    export_onnx(model, tmp_path / "m.onnx")
    embedder = OnnxEmbedder(tmp_path / "m.onnx", threads=1)
    for batch_size in (1, 2, 64):
        for own, expected in zip(embedder.embed(SENTENCES, batch_size=batch_size), model.embed(SENTENCES), strict=True):
            assert own.dtype == np.float32
            np.testing.assert_allclose(own, expected, atol=1e-5)
    for layers in ("top", "average", 0):
        own = embedder.embed(SENTENCES, layers=layers)[2]  # type: ignore[arg-type]
        np.testing.assert_allclose(own, model.embed(SENTENCES, layers=layers)[2], atol=1e-5)  # type: ignore[arg-type]


def test_the_model_that_ships_agrees_within_1e_4(tmp_path: Path) -> None:
    model = relmo.load("small", kinds="bilm", device="cpu")
    export_onnx(model, tmp_path / "m.onnx")
    lines = (Path(relmo.__file__).parent / "data" / "sentences.txt").read_text().splitlines()[:20]
    found = OnnxEmbedder(tmp_path / "m.onnx", threads=1).embed(lines)
    for own, expected in zip(found, model.embed(lines), strict=True):
        np.testing.assert_allclose(own, expected, atol=1e-4)


def test_the_file_is_a_valid_graph_that_others_can_run_by_its_documented_input(tmp_path: Path) -> None:
    model = bilm()
    export_onnx(model, tmp_path / "m.onnx")
    onnx.checker.check_model(str(tmp_path / "m.onnx"), full_check=True)
    session = onnxruntime.InferenceSession(tmp_path / "m.onnx", providers=["CPUExecutionProvider"])
    assert [put.shape for put in session.get_inputs()] == [["batch", "tokens", 50]]
    ids = np.zeros((2, 4, 50), dtype=np.int64)
    ids[0, :3], ids[1, :1] = character_ids(["the", "cat", "sat"], 50), character_ids(["a"], 50)
    vectors, mask = session.run(["vectors", "mask"], {"ids": ids})
    assert mask.tolist() == [[True, True, True, False], [True, False, False, False]]
    assert not vectors.transpose(0, 2, 1, 3)[~mask].any()
    np.testing.assert_allclose(vectors[0, :, :3], model.embed(["the cat sat"])[0], atol=1e-5)


def test_running_it_imports_no_torch(tmp_path: Path) -> None:
    export_onnx(bilm(), tmp_path / "m.onnx")
    script = "import sys; from relmo.compat.onnx import OnnxEmbedder; OnnxEmbedder('m.onnx').embed(['a cat']); "
    done = subprocess.run(
        [sys.executable, "-c", script + "print('torch' in sys.modules)"],
        cwd=tmp_path, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout.strip() == "False"


def test_convert_writes_it_and_refuses_what_does_not_fit(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bilm().save_pretrained(tmp_path / "m")
    for flags, status in (([], 0), ([], 2), (["--overwrite"], 0), (["--overwrite", "--precision", "int8"], 2)):
        with pytest.raises(SystemExit) as end:
            main(["convert", str(tmp_path / "m"), str(tmp_path / "m.onnx"), "--to", "onnx", *flags])
        assert end.value.code == status
    said = capsys.readouterr()
    assert "wrote" in said.out
    assert "--overwrite" in said.err
    assert "--to onnx" in said.err
    with pytest.raises(ModelError, match="word input"):
        export_onnx(tagging.word_bilm(), tmp_path / "w.onnx")
    (tmp_path / "broken.onnx").write_bytes((tmp_path / "m.onnx").read_bytes()[:500])
    with pytest.raises(ModelError, match="ONNX"):
        OnnxEmbedder(tmp_path / "broken.onnx")
    with pytest.raises(SettingError, match="7"):
        OnnxEmbedder(tmp_path / "m.onnx").embed(["a"], layers=7)
