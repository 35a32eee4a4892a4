"""Two small models that reverse strings, for tests of what is shown of such models: one with attention, which has
learned it, and one without, which has not."""

from pathlib import Path

import pytest

from relmo.runs.train_task import train_task
from relmo.settings.tasks import (
    SearchSettings,
    Seq2SeqInputSettings,
    Seq2SeqModelSettings,
    Seq2SeqSettings,
    Seq2SeqTextSettings,
    Seq2SeqTrainSettings,
)
from relmo.tasks.seq2seq import Seq2Seq
from relmo.text.makers import MakerOptions, make_pairs


@pytest.fixture(scope="session")
def translators(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, Path]:
    """The folders of the two models, and a file of pairs that they have not seen."""
    folder = tmp_path_factory.mktemp("translators")
    made = make_pairs("reverse", MakerOptions(size=5, letters=4, count=500, held_out=40))
    for name, pairs in (("train", made.train), ("held-out", made.held_out)):
        text = "".join(f"{source}\t{target}\n" for source, target in pairs)
        (folder / f"{name}.tsv").write_text(text, encoding="utf-8")
    held_out = folder / "held-out.tsv"
    for attention, epochs in (("additive", 7), ("none", 2)):
        settings = Seq2SeqSettings(
            text=Seq2SeqTextSettings(source_unit="char", target_unit="char", metric="exact", valid=str(held_out)),
            input=Seq2SeqInputSettings(word_dim=16),
            model=Seq2SeqModelSettings(hidden=24, target_dim=16, dropout=0.0, attention=attention),  # type: ignore[arg-type]
            train=Seq2SeqTrainSettings(epochs=epochs, batch=25, lr=0.015, device="cpu"),
            search=SearchSettings(beams=3),
        )
        train_task(Seq2Seq, [str(folder / "train.tsv")], settings, folder / attention)
    return folder / "additive", folder / "none", held_out
