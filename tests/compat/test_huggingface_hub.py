"""Models in the hands of the Hugging Face hub's own library, on local folders and a local cache."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("huggingface_hub", reason="huggingface_hub is not installed: pip install 'relmo[hub]'")

import huggingface_hub as hub
import torch

import relmo
from relmo.cli import main
from relmo.compat.huggingface_hub import HubModel
from relmo.errors import ModelError
from relmo.models.bilm import BiLM
from relmo.tasks.features import WordFeatures
from relmo.tasks.tagger import Tagger
from relmo.tasks.task import Labels
from support import tagging
from support.small_models import bilm, language_model

SENTENCES = ["the cat sat", "a mat"]


@pytest.fixture(autouse=True)
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub.constants, "HF_HUB_OFFLINE", True)


def test_a_folder_has_a_card_that_the_hub_reads(tmp_path: Path) -> None:
    model = bilm()
    HubModel(model, language="en", license="cc-by-4.0", datasets=["wikitext"]).save_pretrained(tmp_path / "mine")
    card = hub.ModelCard.load(tmp_path / "mine" / "README.md")
    assert (card.data.library_name, card.data.language, card.data.license) == ("relmo", "en", "cc-by-4.0")
    assert card.data.pipeline_tag == "feature-extraction"
    assert card.data.tags == ["relmo", "bilm"]
    assert card.data.datasets == ["wikitext"]
    assert card.text.strip().startswith("# mine")
    names = {path.name for path in (tmp_path / "mine").iterdir()}
    assert {"config.json", "model.safetensors", "README.md", "vocabulary.txt"} <= names
    again = HubModel.from_pretrained(str(tmp_path / "mine"), device="cpu")
    np.testing.assert_array_equal(again.model.embed(SENTENCES)[0], model.embed(SENTENCES)[0])
    assert (again.language, again.license, again.datasets) == ("en", "cc-by-4.0", ["wikitext"])
    relmo.load(tmp_path / "mine", kinds="bilm")  # it is an ordinary folder, too


def test_a_model_is_found_in_the_cache_that_a_download_fills(tmp_path: Path) -> None:
    place = tmp_path / "models--me--prose"
    HubModel(language_model(), license="mit").save_pretrained(place / "snapshots" / ("a" * 40))
    (place / "refs").mkdir()
    (place / "refs" / "main").write_text("a" * 40)
    found = HubModel.from_pretrained("me/prose", cache_dir=tmp_path, local_files_only=True)
    assert found.model.generate(limit=5, seed=1) == language_model().generate(limit=5, seed=1)
    with pytest.raises(FileNotFoundError):
        HubModel.from_pretrained("me/nothing", cache_dir=tmp_path, local_files_only=True)


def test_pushing_hands_the_whole_folder_over(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: dict[str, Any] = {}

    def create_repo(self: Any, repo_id: str, **_: Any) -> Any:
        return type("Repo", (), {"repo_id": f"me/{repo_id}"})

    def upload_folder(self: Any, *, repo_id: str, folder_path: Path, **_: Any) -> str:
        sent[repo_id] = sorted(path.name for path in Path(folder_path).iterdir())
        sent["model"] = relmo.load(folder_path, kinds="bilm", device="cpu").embed(SENTENCES)[0]
        return "done"

    monkeypatch.setattr(hub.HfApi, "create_repo", create_repo)
    monkeypatch.setattr(hub.HfApi, "upload_folder", upload_folder)
    assert HubModel(bilm()).push_to_hub("mine") == "done"
    assert "README.md" in sent["me/mine"]
    np.testing.assert_array_equal(sent["model"], bilm().embed(SENTENCES)[0])


def test_a_model_that_is_built_on_another_goes_with_a_copy_of_it(tmp_path: Path) -> None:
    tagging.tiny_bilm().save_pretrained(tmp_path / "bilm")
    for copy in (False, True):
        settings = tagging.settings(text={"task": "ner"}, input={"elmo": str(tmp_path / "bilm"), "copy": copy})
        features = WordFeatures.build(settings.input, [["a", "b"]], torch.device("cpu"))
        tagger = HubModel(Tagger(settings, features, {"labels": Labels(["O"])}).initialize())
        if copy:
            tagger.save_pretrained(tmp_path / "hub")
        else:
            with pytest.raises(ModelError, match="--copy"):
                tagger.save_pretrained(tmp_path / "alone")
    (tmp_path / "bilm").rename(tmp_path / "elsewhere")
    found = HubModel.from_pretrained(str(tmp_path / "hub"), device="cpu").model
    assert len(found.predict([["a", "b"]])[0].tags) == 2


def test_convert_writes_such_a_folder(tmp_path: Path) -> None:
    bilm().save_pretrained(tmp_path / "m")
    with pytest.raises(SystemExit) as end:
        main(["convert", str(tmp_path / "m"), str(tmp_path / "mine"), "--to", "hub"])
    assert end.value.code == 0
    assert hub.ModelCard.load(tmp_path / "mine" / "README.md").data.library_name == "relmo"
    assert isinstance(relmo.load(tmp_path / "mine"), BiLM)
