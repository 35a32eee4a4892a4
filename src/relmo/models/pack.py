"""A model folder written anew, to be passed on: weights in fewer bits and in small files, and a card that says so.

    pack("out/small", "models/small", precision="int8", shard_mb=8, card="small.md")

The vocabulary, the settings, the named cells and config.json come along as they are, and so does the card, unless
another is given; at its end a section on the stored weights, with their checksums, is written or renewed. What only a
run needs, and word vectors as text, stay behind.
"""

import re
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from relmo.disk.digests import sha256
from relmo.disk.outputs import atomic, new_folder
from relmo.errors import ModelError, SettingError
from relmo.loading import load
from relmo.models.vectors import ABOUT_VECTORS, VECTORS
from relmo.store.folder import (
    CARD,
    CELLS,
    CONFIG,
    COPY_OF_BILM,
    COPY_OF_VECTORS,
    OURS,
    SETTINGS,
    WEIGHTS,
    read_config,
    text_digests,
    text_files,
    write_json,
)
from relmo.store.foreign import is_foreign
from relmo.store.original import PairOrPath
from relmo.store.references import bundled
from relmo.store.weights import Record, Stored, write_weights

if TYPE_CHECKING:
    from relmo.loading import Model

HEADING = "## Stored weights"
PRECISIONS: dict[Stored, str] = {
    "float32": "in float32",
    "float16": "in float16",
    "int8": "in int8, a float16 scale for each 512 numbers of a row; biases and small tensors in float16",
}
LARGEST_CARD = 1 << 20


def pack(
    source: PairOrPath | None,
    destination: str | Path,
    *,
    precision: Stored = "float32",
    shard_mb: int | None = None,
    card: str | Path | None = None,
    overwrite: bool = False,
) -> "Model":
    """Writes the model that `relmo.load(source)` gives as a new folder, and returns it as it was loaded.

    precision   how weights are stored: float32, float16 or int8; they are float32 again when they are loaded
    shard_mb    the most megabytes of a weight file; one file holds everything where it is not given
    card        a file with another README.md for the folder
    overwrite   take the place of a folder that relmo wrote; the model that is read may be in it
    """
    if shard_mb is not None and shard_mb < 1:
        raise SettingError(f"weight files of {shard_mb} MB: it must be 1 or more")
    text = None if card is None else _read_card(Path(card))
    source = bundled(source) or source
    model = load(source, device="cpu")
    with new_folder(Path(destination), overwrite=overwrite, ours=OURS) as inside:
        if source is None or not isinstance(source, str | Path) or is_foreign(source):
            model.save_pretrained(inside)
            (inside / WEIGHTS).unlink()
        else:
            for name in (CONFIG, SETTINGS, CARD, CELLS, *text_files(Path(source))):
                if (Path(source) / name).is_file():
                    shutil.copyfile(Path(source) / name, inside / name)
            for name in (COPY_OF_BILM, COPY_OF_VECTORS):
                if (Path(source) / name).is_dir():
                    shutil.copytree(Path(source) / name, inside / name)
        (inside / VECTORS).unlink(missing_ok=True)
        record = write_weights(inside, model.tensors(), precision, shard_mb)
        _write_card(inside, text, record)
        config = read_config(inside) | {"stored": record._asdict(), "digests": text_digests(inside)}
        write_json(inside / CONFIG, config)
    return model


def _read_card(path: Path) -> str:
    """A card that somebody wrote."""
    if not path.is_file():
        raise ModelError(f"{path}: {'is not a file' if path.exists() else 'does not exist'}; give a model card")
    if path.stat().st_size > LARGEST_CARD:
        raise ModelError(f"{path}: {path.stat().st_size:,} bytes is too large for a model card")
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ModelError(f"{path}: a model card must be UTF-8 ({error})") from error


def _write_card(folder: Path, text: str | None, record: Record) -> None:
    """The folder's card, or another text in its place, with a section on the weight files."""
    if text is None:
        text = _read_card(folder / CARD) if (folder / CARD).is_file() else f"# {folder.name}\n"
        text = text.replace(ABOUT_VECTORS + "\n", "")
    before = re.sub(rf"^{HEADING}\n.*?(?=^## |\Z)", "", text, flags=re.DOTALL | re.MULTILINE).rstrip()
    about = f"Weights are stored {PRECISIONS[record.precision]}; relmo loads them as float32."
    lines = [before, "", HEADING, "", about, "", "| file | bytes | SHA-256 |", "|---|---|---|"]
    for name in record.names:
        lines.append(f"| {name} | {(folder / name).stat().st_size:,} | {sha256(folder / name)} |")
    with atomic(folder / CARD) as temporary:
        temporary.write_text("\n".join(lines) + "\n", encoding="utf-8")
