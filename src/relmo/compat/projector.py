"""TensorBoard's projector: vectors as point clouds in a browser.

    export_projector({"words": static_vectors(relmo.load("words"))}, "points")
    tensorboard --logdir points

A cloud is a .tsv file of vectors and one of labels. TensorBoard is needed only to view them.
"""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np

from relmo.disk.outputs import new_folder
from relmo.errors import SettingError
from relmo.models.bilm import BiLM

CONFIG = "projector_config.pbtxt"
PROJECTOR_FILES = re.compile(r"projector_config\.pbtxt|[\w-]+-(vectors|labels)\.tsv")
NAME = re.compile(r"[\w-]+", re.ASCII)
Labels = Sequence[str] | Mapping[str, Sequence[str]]


def export_projector(
    clouds: Mapping[str, tuple[Labels, np.ndarray]], folder: str | Path, *, overwrite: bool = False
) -> None:
    """Write a folder for `tensorboard --logdir`: for each name the labels and the vectors (N, D) of its points.

    Labels are one string per point, or several columns of strings by name. Tabs and line ends in them become spaces.
    """
    config = []
    with new_folder(Path(folder), overwrite=overwrite, ours=PROJECTOR_FILES) as temporary:
        for name, (labels, vectors) in clouds.items():
            if not NAME.fullmatch(name):
                raise SettingError(f"the name of a cloud consists of letters, digits, - and _, not {name!r}")
            columns = labels if isinstance(labels, Mapping) else {"": labels}
            if not columns or vectors.ndim != 2 or not len(vectors):
                raise SettingError(f"{name}: a cloud needs labels and at least one vector, (points, size)")
            for column in columns.values():
                if len(column) != len(vectors):
                    raise SettingError(f"{name}: {len(column):,} labels for {len(vectors):,} points")
            rows: list[Iterable[str]] = list(zip(*columns.values(), strict=True))
            if len(columns) > 1:
                rows.insert(0, columns)  # the projector expects no header for a single column
            lines = ("\t".join(re.sub(r"\s+", " ", label).strip() or " " for label in row) for row in rows)
            points = ("\t".join(f"{x:.7g}" for x in vector) for vector in vectors.tolist())
            for kind, table in (("vectors", points), ("labels", lines)):
                with (temporary / f"{name}-{kind}.tsv").open("w", encoding="utf-8", newline="\n") as file:
                    file.writelines(f"{line}\n" for line in table)
            config += [  # a protocol buffer as text
                "embeddings {",
                f"  tensor_name: {json.dumps(name)}",
                *(f"  tensor_shape: {size}" for size in vectors.shape),
                f"  tensor_path: {json.dumps(f'{name}-vectors.tsv')}",
                f"  metadata_path: {json.dumps(f'{name}-labels.tsv')}",
                "}",
            ]
        (temporary / CONFIG).write_text("\n".join(config) + "\n", encoding="utf-8")


def occurrences(
    model: BiLM, sentences: Sequence[str], *, layer: int | None = None
) -> tuple[dict[str, list[str]], np.ndarray]:
    """Return every word of these sentences as a point labelled with its sentence; `layer` is the top one by default."""
    tokens = [model.tokens(sentence) for sentence in sentences]
    vectors = model.embed(tokens, layers="top" if layer is None else layer)
    labels = {
        "word": [word for words in tokens for word in words],
        "sentence": [sentence for sentence, words in zip(sentences, tokens, strict=True) for _ in words],
    }
    return labels, np.concatenate(vectors) if vectors else np.zeros((0, model.network.size), dtype=np.float32)
