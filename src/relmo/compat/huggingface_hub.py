"""The Hugging Face hub: a model of any kind saved with a card that the hub reads, sent there, and fetched from there.

    HubModel(relmo.load("models/mine"), language="en", license="cc-by-4.0").push_to_hub("me/mine")
    model = HubModel.from_pretrained("me/mine").model

A folder that relmo saved is laid out as the hub expects (config.json, model.safetensors, README.md). `HubModel` adds
the card's metadata and hands the folder over. It is the only part of relmo that uses the network, and only when it is
told the name of a repository. A local folder goes before a repository of the same name.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from relmo.disk.outputs import atomic
from relmo.errors import ModelError
from relmo.loading import load
from relmo.models.saved import SavedModel
from relmo.store.folder import CARD, read_config
from relmo.store.references import bundled

try:
    from huggingface_hub import ModelCard, ModelCardData, ModelHubMixin, snapshot_download
except ImportError as error:
    raise ImportError("relmo.compat.huggingface_hub needs huggingface_hub; try: pip install 'relmo[hub]'") from error

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
"""What the hub calls what a kind of model does; a kind that is not here has no tag."""


class HubModel(ModelHubMixin):
    """A relmo model as the hub's own library handles models: `save_pretrained`, `push_to_hub`, `from_pretrained`.

    model      any model that `relmo.load` gives
    language   of the text it was trained on, such as "en", or several
    license    as the hub spells it, such as "apache-2.0"
    datasets   names on the hub of what it was trained on
    """

    def __init__(
        self,
        model: SavedModel,
        *,
        language: str | Sequence[str] | None = None,
        license: str | None = None,  # noqa: A002  (the hub's word)
        datasets: Sequence[str] | None = None,
    ):
        self.model = model
        self.language = language
        self.license = license
        self.datasets = datasets

    def card_data(self) -> ModelCardData:
        """The metadata of the card."""
        names = self.language if self.language is None or isinstance(self.language, str) else list(self.language)
        return ModelCardData(
            language=names,
            license=self.license,
            library_name="relmo",
            tags=["relmo", self.model.kind],
            datasets=None if self.datasets is None else list(self.datasets),
            pipeline_tag=PIPELINES.get(self.model.kind),
        )

    def _save_pretrained(self, save_directory: Path) -> None:
        """The model's folder, its card with metadata."""
        self.model.save_pretrained(save_directory)
        _check_complete(save_directory)
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
            found = snapshot_download(
                model_id,
                revision=revision,
                cache_dir=cache_dir,
                force_download=force_download,
                local_files_only=local_files_only,
                token=token,
            )
            folder = Path(found)
        model = load(folder, device=device)
        data: Any = ModelCard.load(folder / CARD).data if (folder / CARD).is_file() else ModelCardData()
        return cls(model, language=data.language, license=data.license, datasets=data.datasets)


def _check_complete(folder: Path) -> None:
    """Whoever fetches a task's model must get the models it is built on, too."""
    config = read_config(folder)
    for name in ("elmo", "vectors"):
        reference = config.get(name)
        source = reference.get("source", "") if isinstance(reference, dict) else "."
        if not source.startswith(".") and bundled(source) is None:
            raise ModelError(f"{folder}: is built on {source}, which others do not have; train it with --copy")
