"""`relmo train lm` as a plain function: corpus -> ids -> network -> the training loop -> a model folder."""

import dataclasses
import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from relmo.batch import Lanes
from relmo.config import build
from relmo.errors import ModelError, SettingError
from relmo.evaluate import Score, total_nll
from relmo.folder import VOCABULARY, atomic, save_weights, storage_errors, write_json
from relmo.lm import LanguageModel, parameter_count, pick_device
from relmo.models import make_language_model
from relmo.models.language_model import NeuralLM
from relmo.models.ngram import NGramLM
from relmo.run import SCRATCH, Plan, Reporter, go, make_plan
from relmo.settings import LMSettings, check_lm
from relmo.text.encode import Corpus, Stream, encode_corpus, open_stream
from relmo.text.vocabulary import Vocabulary
from relmo.train import Trainer

RUN, ENCODED = "run/run.json", "run/encoded.json"
LANES = 32  # lanes of a validation; they change its speed only


def train_lm(
    files: Sequence[str],
    settings: LMSettings,
    out: Path,
    *,
    resume: bool = False,
    dry_run: bool = False,
    reporter: Reporter | None = None,
) -> dict[str, Any]:
    """Trains a language model on the files, in order, into the folder `out`. -> its results: the scores of the held-out parts."""
    reporter = reporter or Reporter()
    check_lm(settings)
    if settings.train.threads:
        torch.set_num_threads(settings.train.threads)
    device = pick_device(settings.train.device)
    scratch = begin(files, settings, out, resume)
    try:
        with storage_errors(out):
            corpus = encoded_corpus(files, settings, out)
        torch.manual_seed(settings.train.seed)
        if settings.model.cell == "ngram":
            network = fit_ngram(corpus, settings, reporter, dry_run)
        else:
            network = fit_neural(corpus, settings, device, out, reporter, dry_run)
    except BaseException:
        if dry_run:
            shutil.rmtree(scratch)
        raise
    if dry_run or network is None:
        shutil.rmtree(scratch)
        remove_if_empty(out)
        return {}
    return finish(LanguageModel(network, corpus.vocabulary, settings, device), corpus, out, files)


def begin(files: Sequence[str], settings: LMSettings, out: Path, resume: bool) -> Path:
    """Makes the folder and notes what was asked for; or finds the run that is to go on and checks that it is this one."""
    scratch, note = out / SCRATCH, {"kind": "lm", "files": list(files), "settings": dataclasses.asdict(settings)}
    if out.exists() and not out.is_dir():
        raise SettingError(f"--out {out}: is a file; give a folder")
    if (out / "config.json").exists() and not scratch.exists():
        raise SettingError(f"--out {out}: holds a finished model; choose another folder")
    if (out / RUN).exists():
        if not resume:
            raise SettingError(
                f"--out {out}: holds a run already; pass --resume to go on with it, or choose another folder"
            )
        if json.dumps(note) != json.dumps(read_run(out)):
            raise SettingError(
                f"--resume: {out} was begun with other files or settings; leave them out to go on as it was begun"
            )
    with storage_errors(out):
        scratch.mkdir(parents=True, exist_ok=True)
    write_json(out / RUN, note)
    return scratch


def read_run(out: Path) -> dict[str, Any]:
    """What a run in this folder was asked for: its files and settings."""
    try:
        return json.loads((out / RUN).read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        if (out / "config.json").exists():
            raise SettingError(f"--resume: the run in {out} is finished; there is nothing to go on with") from error
        raise SettingError(f"--resume: there is no run in {out}; start it without --resume") from error
    except (OSError, json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ModelError(f"{out / RUN}: is damaged ({error}); start again in another folder") from error


def saved_run(out: Path) -> tuple[list[str], LMSettings]:
    """Files and settings of a run that is to go on."""
    note = read_run(out)
    return note["files"], build(LMSettings, note["settings"], source=str(out / RUN))


def encoded_corpus(files: Sequence[str], settings: LMSettings, out: Path) -> Corpus:
    """The corpus as ids under out/run: read from the files once, from there ever after."""
    scratch = out / SCRATCH
    if (out / ENCODED).exists():
        note = json.loads((out / ENCODED).read_text(encoding="utf-8"))
        vocabulary = Vocabulary.load(scratch / VOCABULARY)
        streams = {
            name: Stream(open_stream(scratch / f"{name}.ids", len(vocabulary)), *figures)
            for name, figures in note.items()
        }
        return Corpus(vocabulary, streams["train"], streams.get("valid"), streams.get("test"))
    corpus = encode_corpus(files, settings.text, scratch)
    with atomic(scratch / VOCABULARY) as temporary:
        corpus.vocabulary.save(temporary)
    parts = {"train": corpus.train, "valid": corpus.valid, "test": corpus.test}
    write_json(out / ENCODED, {name: (part.characters, part.unknown) for name, part in parts.items() if part})
    return corpus


def fit_ngram(corpus: Corpus, settings: LMSettings, reporter: Reporter, dry_run: bool) -> NGramLM | None:
    """Counts; there are no steps."""
    reporter.plan(Plan("cpu", corpus.train.predictions, steps=0, parameters=0, memory=0, seconds=0.0))
    if dry_run:
        return None
    return NGramLM.fit(corpus.train.ids, vocab_size=len(corpus.vocabulary), order=settings.model.order)


def fit_neural(
    corpus: Corpus, settings: LMSettings, device: torch.device, out: Path, reporter: Reporter, dry_run: bool
) -> NeuralLM | None:
    """Trains by truncated back-propagation through time. -> the network with the best weights."""
    network = make_language_model(settings.model, len(corpus.vocabulary)).to(device)
    assert isinstance(network, NeuralLM)
    lanes = Lanes(corpus.train.ids, batch=settings.train.batch, unroll=settings.train.unroll, device=device)
    trainer = Trainer(network, lanes, settings.train, validation(corpus.valid, device))
    reporter.plan(make_plan(trainer, corpus.train.predictions))
    if dry_run:
        return None
    model = LanguageModel(network, corpus.vocabulary, settings, device)

    def save() -> None:
        if (out / "config.json").exists():
            save_weights(out, network)
        else:
            model.save_pretrained(out)

    go(trainer, out, save, reporter)
    return LanguageModel.from_pretrained(out, device=device.type).network  # type: ignore[return-value]


def validation(stream: Stream | None, device: torch.device) -> Callable[[nn.Module], float] | None:
    """Mean negative log-likelihood of a symbol of the validation part."""
    if stream is None:
        return None
    ids, count = np.asarray(stream.ids), stream.predictions
    return lambda network: total_nll(network, ids, lanes=LANES, device=device) / count  # type: ignore[arg-type]


def finish(model: LanguageModel, corpus: Corpus, out: Path, files: Sequence[str]) -> dict[str, Any]:
    """Scores the held-out parts, writes the whole folder, removes what only the run needed."""
    results: dict[str, Any] = {
        "trained_on": [Path(file).name for file in files],
        "train_symbols": corpus.train.predictions,
        "parameters": parameter_count(model.network),
    }
    for name, part in (("valid", corpus.valid), ("test", corpus.test)):
        if part is not None:
            nll = total_nll(model.network, np.asarray(part.ids), lanes=LANES, device=model.device)
            score = Score(part.predictions, part.characters, part.unknown, nll)
            results |= {f"{name}_{key}": value for key, value in score.summary().items()}
    if isinstance(model.network, NGramLM):
        model.save_pretrained(out, results=results)
    else:
        model.save_description(out, results)
    shutil.rmtree(out / SCRATCH)
    return results


def remove_if_empty(folder: Path) -> None:
    """A dry run leaves nothing behind."""
    if not any(folder.iterdir()):
        folder.rmdir()
