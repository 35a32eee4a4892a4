"""TensorBoard's projector: vectors as clouds of points in a browser.

    export_projector({"words": static_vectors(relmo.load("words"))}, "points")
    tensorboard --logdir points

A cloud is a .tsv of vectors, and a .tsv that says what each of them is. The files are plain text, and TensorBoard is
needed only to look at them.
"""

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from relmo.disk.outputs import new_folder
from relmo.errors import SettingError
from relmo.models.bilm import BiLM

CONFIG = "projector_config.pbtxt"
OURS = re.compile(r"projector_config\.pbtxt|[\w-]+-(vectors|labels)\.tsv")
NAME = re.compile(r"[\w-]+", re.ASCII)
Labels = Sequence[str] | Mapping[str, Sequence[str]]


def export_projector(
    clouds: Mapping[str, tuple[Labels, np.ndarray]], folder: str | Path, *, overwrite: bool = False
) -> None:
    """Writes a folder for `tensorboard --logdir`: for each name the labels and the vectors (N, D) of its points.

    Labels are one text a point; or several columns of them, by the columns' names. Tabs and line ends in them become
    spaces.
    """
    config = []
    with new_folder(Path(folder), overwrite=overwrite, ours=OURS) as inside:
        for name, (labels, vectors) in clouds.items():
            if not NAME.fullmatch(name):
                raise SettingError(f"a cloud is named by letters, digits, - and _, not {name!r}")
            columns = labels if isinstance(labels, Mapping) else {"": labels}
            _check(name, columns, vectors)
            files = f"{name}-vectors.tsv", f"{name}-labels.tsv"
            with (inside / files[0]).open("w", encoding="utf-8", newline="\n") as file:
                for row in vectors.tolist():
                    file.write("\t".join(f"{x:.7g}" for x in row) + "\n")
            with (inside / files[1]).open("w", encoding="utf-8", newline="\n") as file:
                if len(columns) > 1:
                    file.write("\t".join(map(_one_line, columns)) + "\n")  # with a single column there is no first line
                for row in zip(*columns.values(), strict=True):
                    file.write("\t".join(map(_one_line, row)) + "\n")
            config += _entry(name, vectors, files)
        (inside / CONFIG).write_text("\n".join(config) + "\n", encoding="utf-8")


def occurrences(
    model: BiLM, sentences: Sequence[str], *, layer: int | None = None
) -> tuple[dict[str, list[str]], np.ndarray]:
    """Every word of these sentences as a point, labelled with its sentence. `layer` is the top one where not given."""
    tokens = [model.tokens(sentence) for sentence in sentences]
    vectors = model.embed(tokens, layers="top" if layer is None else layer)
    labels = {
        "word": [word for words in tokens for word in words],
        "sentence": [sentence for sentence, words in zip(sentences, tokens, strict=True) for _ in words],
    }
    return labels, np.concatenate(vectors) if vectors else np.zeros((0, model.network.size), dtype=np.float32)


def _check(name: str, columns: Mapping[str, Sequence[str]], vectors: np.ndarray) -> None:
    if not columns or vectors.ndim != 2 or not len(vectors):
        raise SettingError(f"{name}: a cloud has labels and vectors (points, size), at least one of them")
    for column in columns.values():
        if len(column) != len(vectors):
            raise SettingError(f"{name}: {len(column):,} labels for {len(vectors):,} points")


def _one_line(label: str) -> str:
    return re.sub(r"\s+", " ", label).strip() or " "


def _entry(name: str, vectors: np.ndarray, files: tuple[str, str]) -> list[str]:
    """The cloud in the projector's settings, a protocol buffer as text."""
    return [
        "embeddings {",
        f"  tensor_name: {json.dumps(name)}",
        *(f"  tensor_shape: {size}" for size in vectors.shape),
        f"  tensor_path: {json.dumps(files[0])}",
        f"  metadata_path: {json.dumps(files[1])}",
        "}",
    ]
