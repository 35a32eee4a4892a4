"""`relmo train lm` as a plain function: corpus -> ids -> network -> the training loop -> a model folder."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from relmo.models.evaluate import Score, total_nll
from relmo.models.lm import LanguageModel
from relmo.networks import make_language_model
from relmo.networks.ngram import NGramLM
from relmo.runs.encoded import encoded_corpus
from relmo.runs.files import Files, listed_files
from relmo.runs.folder import run_folder
from relmo.runs.reporter import Reporter
from relmo.runs.run import finish, go, prepare, save_best
from relmo.settings.lm import LMSettings, check_lm
from relmo.text.encode import Corpus, Stream
from relmo.training.batch import Lanes
from relmo.training.loop import Trainer
from relmo.training.parallel import Team, one_process_only
from relmo.training.plan import Plan, make_plan

LANES = 32  # lanes of a validation; they change its speed only


def train_lm(
    files: Files,
    settings: LMSettings,
    out: str | Path,
    *,
    resume: bool = False,
    overwrite: bool = False,
    dry_run: bool = False,
    reporter: Reporter | None = None,
) -> dict[str, Any]:
    """Trains a language model on the files, in order, into the folder `out`. -> its results: the scores of the held-out
    parts."""
    files, out, reporter = listed_files(files), Path(out), reporter or Reporter()
    check_lm(settings)
    if settings.model.cell == "ngram":
        one_process_only("an n-gram model")
    device = prepare(settings.train)
    with run_folder(out, "lm", files, settings, resume=resume, overwrite=overwrite, keep=not dry_run) as team:
        corpus = encoded_corpus(files, settings.text, out, team)
        torch.manual_seed(settings.train.seed)
        ngram = settings.model.cell == "ngram"  # which counts; there are no steps
        trainer = None if ngram else _make_trainer(corpus, settings, device, team)
        size = corpus.train.predictions
        plan = make_plan(trainer, size) if trainer else Plan("cpu", size, steps=0, parameters=0, memory=0, seconds=0.0)
        reporter.plan(plan)
        if dry_run:
            return {}
        network = _count_ngrams(corpus, settings) if trainer is None else trainer.model
        model = LanguageModel(network, corpus.vocabulary, settings, device)  # type: ignore[arg-type]
        if trainer is None:
            model.save_pretrained(out)
        else:
            go(trainer, out, partial(save_best, model, out), reporter)
            with team.together():
                model.network = LanguageModel.from_pretrained(out, device=device.type).network
        return finish(model, out, files, _results(model, corpus), team)


def _count_ngrams(corpus: Corpus, settings: LMSettings) -> NGramLM:
    return NGramLM.fit(corpus.train.ids, vocab_size=len(corpus.vocabulary), order=settings.model.order)


def _make_trainer(corpus: Corpus, settings: LMSettings, device: torch.device, team: Team) -> Trainer:
    """A network at its beginning, which learns by truncated back-propagation through time."""
    network = make_language_model(settings.model, len(corpus.vocabulary)).to(device)
    batch, unroll = settings.train.batch, settings.train.unroll
    lanes = Lanes(corpus.train.ids, batch=batch, unroll=unroll, rank=team.rank, size=team.size)
    return Trainer(network, lanes, settings.train, _validation(corpus.valid, device), team=team)


def _validation(stream: Stream | None, device: torch.device) -> Callable[[nn.Module], float] | None:
    """Mean negative log-likelihood of a symbol of the validation part."""
    if stream is None:
        return None
    ids, count = np.asarray(stream.ids), stream.predictions
    return lambda network: total_nll(network, ids, lanes=LANES, device=device) / count  # type: ignore[arg-type]


def _results(model: LanguageModel, corpus: Corpus) -> dict[str, Any]:
    """The size of the training part and of the model, and the scores of the held-out parts."""
    results: dict[str, Any] = {"train_symbols": corpus.train.predictions, "parameters": model.parameter_count()}
    for name, part in (("valid", corpus.valid), ("test", corpus.test)):
        if part is not None:
            nll = total_nll(model.network, np.asarray(part.ids), lanes=LANES, device=model.device)
            score = Score(part.predictions, part.characters, part.unknown, nll)
            results |= {f"{name}_{key}": value for key, value in score.summary().items()}
    return results
