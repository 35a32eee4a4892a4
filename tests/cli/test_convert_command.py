"""`relmo convert --precision` end to end, and the models that ship by their names in every verb that takes a model."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

import relmo
from relmo.cli import main
from relmo.models.bilm import BiLM
from relmo.models.vectors import WordVectors
from relmo.networks.bilm import BiLMNetwork
from relmo.settings.bilm import BiLMModelSettings, BiLMSettings
from relmo.store.folder import read_config, read_record
from relmo.text.vocabulary import SPECIALS, Vocabulary
from tests.support.fuzz_models import make_with_parts

MODEL = BiLMModelSettings(char_dim=4, filters=("1x8", "2x8"), hidden=128, projection=64)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    torch.manual_seed(3)
    BiLM(BiLMNetwork(MODEL, vocab_size=None), BiLMSettings(model=MODEL)).save_pretrained(tmp_path / "mine")
    return tmp_path / "mine"


def run(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as end:
        main([str(argument) for argument in arguments])
    printed = capsys.readouterr()
    return int(end.value.code or 0), printed.out, printed.err


def test_a_model_in_fewer_bits_embeds_as_before(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = folder.with_name("compact")
    status, output, _ = run(capsys, "convert", folder, out, "--precision", "int8", "--shard-mb", 8)
    assert (status, output.startswith(f"wrote {out}: ")) == (0, True)
    assert output.endswith("parameters in int8\n")
    before, after = (relmo.load(f, device="cpu").embed(["A bank"])[0] for f in (folder, out))  # type: ignore[union-attr]
    np.testing.assert_allclose(before, after, atol=0.03)
    facts = json.loads(run(capsys, "info", out, "--json")[1])
    assert facts["stored_precision"] == "int8"
    assert facts["parameters"] == json.loads(run(capsys, "info", folder, "--json")[1])["parameters"]


def test_copies_of_other_models_are_stored_in_the_same_precision(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, out = folder.with_name("tagger"), folder.with_name("compact")
    make_with_parts(source, relmo.load(folder, kinds="bilm", device="cpu"))
    assert run(capsys, "convert", source, out, "--precision", "int8")[0] == 0
    for part in (out, out / "bilm", out / "vectors"):
        assert read_record(part, read_config(part)).precision == "int8"
    bilm = relmo.load(out, kinds="tagger", device="cpu").features.bilm
    assert bilm is not None
    converted = relmo.load(out / "bilm", kinds="bilm", device="cpu")
    np.testing.assert_array_equal(bilm.embed(["A bank"])[0], converted.embed(["A bank"])[0])


def test_info_says_the_same_digest_of_the_same_weights_however_they_are_stored(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    small, back = folder.with_name("small"), folder.with_name("back")
    said = json.loads(run(capsys, "convert", folder, small, "--precision", "int8", "--json")[1])
    assert (said["written"], said["format"], said["precision"]) == (str(small), "relmo", "int8")
    run(capsys, "convert", small, back, "--precision", "float32", "--shard-mb", 1)
    first, second, third = (json.loads(run(capsys, "info", f, "--json")[1]) for f in (small, back, folder))
    assert first["weights_digest"] == second["weights_digest"] != third["weights_digest"]
    assert (second["stored_precision"], third["stored_precision"]) == ("float32", "float32")


def test_what_does_not_go_together_is_one_line_and_leaves_nothing(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = Vocabulary([*SPECIALS, "a"])
    WordVectors(words, np.eye(len(words), dtype=np.float32)).save_pretrained(folder.with_name("vectors"))
    out = folder.with_name("out")
    for arguments, says in {
        (folder, out, "--shard-mb", 8): "--precision",
        (folder, out, "--card", folder / "README.md"): "--precision",
        (folder, out, "--precision", "int4"): "int4",
        (folder, out, "--precision", "int8", "--shard-mb", 0): "0 MB",
        (folder, out, "--precision", "int8", "--card", out): "does not exist",
        (folder, folder, "--precision", "int8"): "already exists",
        (folder, out, "--precision", "int8", "--weights", folder / "README.md"): "",
        (folder.with_name("vectors"), out): "or a --precision",
    }.items():
        status, output, errors = run(capsys, "convert", *arguments)
        assert (status, output, errors.count("\n")) == (2, "", 1), arguments
        assert says in errors
        assert not out.exists()


def test_the_models_that_ship_have_names_in_every_verb(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text.txt").write_text("The river was wide .\nThe bank lends money .\n")
    facts = [json.loads(run(capsys, "info", *name, "--json")[1]) for name in ((), ("small",), ("words",))]
    assert [fact["kind"] for fact in facts] == ["bilm", "bilm", "skipgram"]
    assert facts[0] == facts[1]
    assert {fact["stored_precision"] for fact in facts} <= {"int8", "float16"}
    status, output, _ = run(capsys, "evaluate", "small", "text.txt", "--device", "cpu", "--json")
    assert (status, json.loads(output)["model"]) == (0, "small")
    assert run(capsys, "convert", "words", "mine", "--precision", "float16", "--quiet")[0] == 0
    assert len(relmo.load("mine")) == facts[2]["vocabulary"] - 2  # type: ignore[arg-type]  # no vector for two symbols
    assert "(bilm)" in run(capsys, "generate", "small")[2]
    errors = run(capsys, "embed", "text.txt", "--model", "words", "--out", "v.h5")[2]
    assert "(skipgram)" in errors
    assert "(skipgram)" in run(capsys, "train", "bilm", "text.txt", "--init", "words", "--out", "new")[2]
