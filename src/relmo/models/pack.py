"""Packing of a model folder for distribution: weights in fewer bits and in shards, and a card that states so.

    pack("out/small", "models/small", precision="int8", shard_mb=8, card="small.md")

The vocabulary, the settings, the named cells and config.json are copied, and so is the card unless another is given;
a section on the stored weights, with their checksums, is added to the card or renewed. Files of the training run, and
word vectors as text, are left out.
"""

import re
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from relmo.disk.digests import sha256
from relmo.disk.outputs import atomic, new_folder
from relmo.errors import ModelError, SettingError
from relmo.loading import is_foreign, load
from relmo.models.vectors import ABOUT_VECTORS, VECTORS
from relmo.store.folder import (
    CARD,
    CELLS,
    CONFIG,
    COPY_OF_BILM,
    COPY_OF_VECTORS,
    MODEL_FILES,
    SETTINGS,
    WEIGHTS,
    read_config,
    text_digests,
    text_files,
    write_json,
)
from relmo.store.original import PairOrPath
from relmo.store.references import find_bundled
from relmo.store.weights import StoredPrecision, WeightsRecord, write_weights

if TYPE_CHECKING:
    from relmo.loading import Model

HEADING = "## Stored weights"
PRECISIONS: dict[StoredPrecision, str] = {
    "float32": "in float32",
    "float16": "in float16",
    "int8": "in int8, a float16 scale for each 512 numbers of a row; biases and small tensors in float16",
}
MAX_CARD_BYTES = 1 << 20


def pack(
    source: PairOrPath | None,
    destination: str | Path,
    *,
    precision: StoredPrecision = "float32",
    shard_mb: int | None = None,
    card: str | Path | None = None,
    overwrite: bool = False,
) -> "Model":
    """Write the model that `relmo.load(source)` returns as a new folder, and return it as it was loaded.

    precision   precision of stored weights: float32, float16 or int8; loaded weights are float32
    shard_mb    maximum size of a weight file in megabytes; by default there is one file
    card        file with another README.md for the folder
    overwrite   replace a folder that relmo wrote, which may be the source
    """
    if shard_mb is not None and shard_mb < 1:
        raise SettingError(f"the size of weight files is {shard_mb} MB; it must be at least 1")
    text = None if card is None else _read_card(Path(card))
    source = find_bundled(source) or source
    model = load(source, device="cpu")
    with new_folder(Path(destination), overwrite=overwrite, ours=MODEL_FILES) as folder:
        if source is None or not isinstance(source, str | Path) or is_foreign(source):
            model.save_pretrained(folder)
            (folder / WEIGHTS).unlink()
        else:
            for name in (CONFIG, SETTINGS, CARD, CELLS, *text_files(Path(source))):
                if (Path(source) / name).is_file():
                    shutil.copyfile(Path(source) / name, folder / name)
            for name in (COPY_OF_BILM, COPY_OF_VECTORS):
                if (Path(source) / name).is_dir():
                    shutil.copytree(Path(source) / name, folder / name)
        (folder / VECTORS).unlink(missing_ok=True)
        record = write_weights(folder, model.tensors(), precision, shard_mb)
        _write_card(folder, text, record)
        config = read_config(folder) | {"stored": record._asdict(), "digests": text_digests(folder)}
        write_json(folder / CONFIG, config)
    return model


def _read_card(path: Path) -> str:
    if not path.is_file():
        raise ModelError(f"{path}: {'is not a file' if path.exists() else 'does not exist'}; give a model card")
    if path.stat().st_size > MAX_CARD_BYTES:
        raise ModelError(f"{path}: {path.stat().st_size:,} bytes is too large for a model card")
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ModelError(f"{path}: a model card must be UTF-8 ({error})") from error


def _write_card(folder: Path, text: str | None, record: WeightsRecord) -> None:
    if text is None:
        text = _read_card(folder / CARD) if (folder / CARD).is_file() else f"# {folder.name}\n"
        text = text.replace(ABOUT_VECTORS + "\n", "")
    description = re.sub(rf"^{HEADING}\n.*?(?=^## |\Z)", "", text, flags=re.DOTALL | re.MULTILINE).rstrip()
    summary = f"Weights are stored {PRECISIONS[record.precision]}; relmo loads them as float32."
    lines = [description, "", HEADING, "", summary, "", "| file | bytes | SHA-256 |", "|---|---|---|"]
    for name in record.names:
        lines.append(f"| {name} | {(folder / name).stat().st_size:,} | {sha256(folder / name)} |")
    with atomic(folder / CARD) as temporary:
        temporary.write_text("\n".join(lines) + "\n", encoding="utf-8")
