"""Hugging Face hub: models of any kind saved with the hub's card metadata, uploaded and downloaded.

    HubModel(relmo.load("models/mine"), language="en", license="cc-by-4.0").push_to_hub("me/mine")
    model = HubModel.from_pretrained("me/mine").model

`HubModel` adds the card's metadata to a model folder. It is the only part of relmo that uses the network, and only for
a repository name; a local folder of that name takes precedence.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from relmo.disk.outputs import atomic
from relmo.errors import optional_import
from relmo.loading import load
from relmo.models.saved import SavedModel
from relmo.store.folder import CARD, read_config
from relmo.store.references import find_foundations

with optional_import("relmo.compat.huggingface_hub needs huggingface_hub", "hub", ImportError):
    from huggingface_hub import ModelCard, ModelCardData, ModelHubMixin, snapshot_download

PIPELINES = {
    "bilm": "feature-extraction",
    "classifier": "text-classification",
    "lm": "text-generation",
    "pairs": "text-classification",
    "reader": "question-answering",
    "seq2seq": "text2text-generation",
    "skipgram": "feature-extraction",
    "srl": "token-classification",
    "tagger": "token-classification",
}
"""The hub's pipeline tag of each kind of model; other kinds have none."""


class HubModel(ModelHubMixin):
    """A relmo model with the hub's methods: `save_pretrained`, `push_to_hub`, `from_pretrained`.

    model      any model that `relmo.load` returns
    language   language of the training text, such as "en", or several
    license    the hub's name of the license, such as "apache-2.0"
    datasets   names of the training datasets on the hub
    """

    def __init__(
        self,
        model: SavedModel,
        *,
        language: str | Sequence[str] | None = None,
        license: str | None = None,  # noqa: A002  (the hub's name)
        datasets: Sequence[str] | None = None,
    ):
        self.model, self.language, self.license, self.datasets = model, language, license, datasets

    def card_data(self) -> ModelCardData:
        """Return the metadata of the card."""
        is_single = self.language is None or isinstance(self.language, str)
        return ModelCardData(
            language=self.language if is_single else list(self.language),  # type: ignore[arg-type]
            license=self.license,
            library_name="relmo",
            tags=["relmo", self.model.kind],
            datasets=None if self.datasets is None else list(self.datasets),
            pipeline_tag=PIPELINES.get(self.model.kind),
        )

    def _save_pretrained(self, save_directory: Path) -> None:
        self.model.save_pretrained(save_directory)
        # Users who download a task model must also get the models that it is built on.
        find_foundations(save_directory, read_config(save_directory))
        text = (save_directory / CARD).read_text(encoding="utf-8")
        card = ModelCard(f"---\n{self.card_data().to_yaml()}\n---\n\n{text}")
        with atomic(save_directory / CARD) as temporary:
            temporary.write_text(str(card), encoding="utf-8")

    @classmethod
    def _from_pretrained(
        cls,
        *,
        model_id: str,
        revision: str | None,
        cache_dir: str | Path | None,
        force_download: bool,
        local_files_only: bool,
        token: str | bool | None,
        device: str = "auto",
        **_: Any,
    ) -> "HubModel":
        folder = Path(model_id)
        if not folder.is_dir():
            options: Any = {"revision": revision, "cache_dir": cache_dir, "force_download": force_download}
            folder = Path(snapshot_download(model_id, local_files_only=local_files_only, token=token, **options))
        model = load(folder, device=device)
        data: Any = ModelCard.load(folder / CARD).data if (folder / CARD).is_file() else ModelCardData()
        return cls(model, language=data.language, license=data.license, datasets=data.datasets)
