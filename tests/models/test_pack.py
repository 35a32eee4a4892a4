"""A model folder written anew: the model is the same, its card and settings come along, and nothing else does."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

import relmo
from relmo.disk.files import sha256
from relmo.errors import ModelError, SettingError, StorageError
from relmo.models.bilm import BiLM
from relmo.models.saved import HEADING, pack
from relmo.models.vectors import WordVectors
from relmo.networks.bilm import BiLMNetwork
from relmo.settings.bilm import BiLMModelSettings, BiLMSettings
from relmo.store.original import write_original
from relmo.text.vocabulary import SPECIALS, SentenceVocabulary, Vocabulary

WRITTEN = "# Mine\n\nWhat it is for.\n\n## Licence\n\nFree.\n"


def save(folder: Path) -> BiLM:
    torch.manual_seed(1)
    model = BiLMModelSettings(hidden=300, projection=64, filters=("1x32", "2x64"), char_dim=4)
    words = SentenceVocabulary([*SentenceVocabulary.specials, *(f"w{i}" for i in range(100))])
    made = BiLM(BiLMNetwork(model, vocab_size=len(words)), BiLMSettings(model=model), words)
    made.save_pretrained(folder, results={"valid_perplexity": 12.5})
    return made


def test_settings_vocabulary_results_and_card_come_along_and_a_run_s_files_do_not(tmp_path: Path) -> None:
    save(tmp_path / "plain")
    (tmp_path / "plain" / "metrics.jsonl").write_text("{}\n")
    pack(tmp_path / "plain", tmp_path / "packed", precision="int8")
    names = {"README.md", "config.json", "model.safetensors", "settings.toml", "vocabulary.txt"}
    assert {path.name for path in (tmp_path / "packed").iterdir()} == names
    for name in ("vocabulary.txt", "settings.toml"):
        assert sha256(tmp_path / "plain" / name) == sha256(tmp_path / "packed" / name)
    before, after = (json.loads((tmp_path / name / "config.json").read_text()) for name in ("plain", "packed"))
    assert after.pop("stored")["precision"] == "int8"
    assert after == before
    card = (tmp_path / "packed" / "README.md").read_text()
    assert card.startswith((tmp_path / "plain" / "README.md").read_text().rstrip() + f"\n\n{HEADING}\n\nWeights are")
    size = (tmp_path / "packed" / "model.safetensors").stat().st_size
    assert f"| model.safetensors | {size:,} | {sha256(tmp_path / 'packed' / 'model.safetensors')} |" in card
    assert "in int8, a float16 scale for each 512 numbers" in card


def test_a_card_of_ones_own_takes_the_place_of_the_models_and_survives_packing_again(tmp_path: Path) -> None:
    save(tmp_path / "plain")
    (tmp_path / "card.md").write_text(WRITTEN)
    pack(tmp_path / "plain", tmp_path / "one", precision="int8", shard_mb=1, card=tmp_path / "card.md")
    pack(tmp_path / "one", tmp_path / "two", precision="float16")
    for name, says in (("one", "in int8"), ("two", "in float16")):
        card = (tmp_path / name / "README.md").read_text()
        assert card.startswith(WRITTEN + f"\n{HEADING}\n\nWeights are stored {says}")
        assert card.count(HEADING) == 1
        for path in (tmp_path / name).glob("*.safetensors"):
            assert card.count(sha256(path)) == 1
    (tmp_path / "card.md").write_text(f"# Mine\n\n{HEADING}\n\nOld.\n\n## Licence\n\nFree.\n")
    pack(tmp_path / "plain", tmp_path / "three", card=tmp_path / "card.md")
    card = (tmp_path / "three" / "README.md").read_text()
    assert card.startswith(f"# Mine\n\n## Licence\n\nFree.\n\n{HEADING}\n\nWeights are stored in float32")
    assert "Old" not in card


def test_packing_what_is_packed_changes_nothing_more(tmp_path: Path) -> None:
    save(tmp_path / "plain")
    pack(tmp_path / "plain", tmp_path / "one", precision="int8")
    pack(tmp_path / "one", tmp_path / "two", precision="float32")
    pack(tmp_path / "two", tmp_path / "three", precision="int8")
    one, two = (relmo.load(tmp_path / name, device="cpu").tensors() for name in ("one", "two"))
    assert all(torch.equal(one[name], two[name]) for name in one)
    assert sha256(tmp_path / "one" / "model.safetensors") == sha256(tmp_path / "three" / "model.safetensors")


def test_a_folder_without_digests_of_its_text_files_gets_them(tmp_path: Path) -> None:
    save(tmp_path / "plain")
    config = json.loads((tmp_path / "plain" / "config.json").read_text())
    digests = config.pop("digests")
    (tmp_path / "plain" / "config.json").write_text(json.dumps(config))
    pack(tmp_path / "plain", tmp_path / "packed")
    assert json.loads((tmp_path / "packed" / "config.json").read_text())["digests"] == digests


def test_original_files_are_packed_too(tmp_path: Path) -> None:
    model = save(tmp_path / "plain")
    write_original(model, tmp_path / "original")
    for source in (tmp_path / "original", [tmp_path / "original" / n for n in ("options.json", "weights.hdf5")]):
        folder = tmp_path / ("one" if isinstance(source, Path) else "two")
        pack(source, folder, precision="float16")
        loaded = relmo.load(folder, device="cpu")
        assert isinstance(loaded, BiLM)
        assert loaded.vocabulary is None
        ours, theirs = loaded.embed(["w1 w2 w3"])[0], model.embed(["w1 w2 w3"])[0]
        np.testing.assert_allclose(ours, theirs, atol=2e-3)


def test_vectors_as_text_stay_behind_and_the_card_does_not_speak_of_them(tmp_path: Path) -> None:
    words = Vocabulary([*SPECIALS, "a", "b"])
    rows = np.ones((len(words), 70), dtype=np.float32)
    rows[:2] = 0
    WordVectors(words, rows).save_pretrained(tmp_path / "plain")
    assert "vectors.txt" in (tmp_path / "plain" / "README.md").read_text()
    pack(tmp_path / "plain", tmp_path / "packed", precision="float16")
    assert not (tmp_path / "packed" / "vectors.txt").exists()
    assert "vectors.txt" not in (tmp_path / "packed" / "README.md").read_text()
    assert relmo.load(tmp_path / "packed").most_similar("a") == [("b", pytest.approx(1))]  # type: ignore[union-attr]


def test_a_mistake_is_one_line_and_leaves_nothing(tmp_path: Path) -> None:
    save(tmp_path / "plain")
    (tmp_path / "latin.md").write_bytes(b"\xe9")
    out = tmp_path / "out"
    with pytest.raises(ModelError, match=r"nothing\.md: does not exist; give a model card"):
        pack(tmp_path / "plain", out, card=tmp_path / "nothing.md")
    with pytest.raises(ModelError, match=r"plain: is not a file; give a model card"):
        pack(tmp_path / "plain", out, card=tmp_path / "plain")
    with pytest.raises(ModelError, match=r"latin\.md: a model card must be UTF-8"):
        pack(tmp_path / "plain", out, card=tmp_path / "latin.md")
    with pytest.raises(SettingError, match="0 MB"):
        pack(tmp_path / "plain", out, shard_mb=0)
    with pytest.raises(StorageError, match="plain: already exists; add --overwrite"):
        pack(tmp_path / "plain", tmp_path / "plain")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["latin.md", "plain"]
