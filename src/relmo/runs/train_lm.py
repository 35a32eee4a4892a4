"""`relmo train lm` as a function: corpus -> ids -> network -> training loop -> model folder."""

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from relmo.models.evaluate import Score, total_nll
from relmo.models.lm import LanguageModel
from relmo.networks import make_language_model
from relmo.networks.ngram import NGramLM
from relmo.runs.encoded import load_corpus
from relmo.runs.files import Files, list_paths
from relmo.runs.folder import run_folder
from relmo.runs.progress import Reporter
from relmo.runs.run import BestScore, finish, prepare, run_training, save_best
from relmo.settings.lm import LMSettings
from relmo.text.encode import Corpus, Stream
from relmo.training.batch import Lanes
from relmo.training.loop import Trainer
from relmo.training.parallel import require_single_process
from relmo.training.plan import Plan, make_plan

LANES = 32  # of a validation; they affect its speed only


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
    """Train a language model on the files, in order, and write it to the folder `out`.

    Return its results: the scores of the held-out parts."""
    files, out, reporter = list_paths(files), Path(out), reporter or Reporter()
    settings.check()
    is_ngram = settings.model.cell == "ngram"  # n-grams are counted; there are no steps
    if is_ngram:
        require_single_process("an n-gram model")
    device = prepare(settings.train)
    with run_folder(out, "lm", files, settings, resume=resume, overwrite=overwrite, keep=not dry_run) as team:
        corpus = load_corpus(files, settings.text, out, team)
        torch.manual_seed(settings.train.seed)
        unit = {"char": "characters", "word": "words"}[settings.text.unit]
        size, vocab_size = corpus.train.predictions, len(corpus.vocabulary)
        if is_ngram:
            reporter.on_plan(Plan("cpu", size, steps=0, parameters=0, memory=0, seconds=0.0, unit=unit))
            if dry_run:
                return {}
            ngrams = NGramLM.fit(corpus.train.ids, vocab_size=vocab_size, order=settings.model.order)
            model = LanguageModel(ngrams, corpus.vocabulary, settings, device)
            model.save_pretrained(out)
            return finish(model, out, files, _results(model, corpus, None), team)
        network = make_language_model(settings.model, vocab_size).to(device)
        batch, unroll = settings.train.batch, settings.train.unroll
        lanes = Lanes(corpus.train.ids, batch=batch, unroll=unroll, rank=team.rank, world_size=team.world_size)
        model = LanguageModel(network, corpus.vocabulary, settings, device)
        validation = None if corpus.valid is None else BestScore(partial(_evaluate, model, corpus.valid))
        trainer = Trainer(network, lanes, settings.train, validation, team=team)
        reporter.on_plan(make_plan(trainer, size, unit))
        if dry_run:
            return {}
        save = partial(save_best if validation is None else validation.save, model, out)
        run_training(trainer, out, save, reporter)
        with team.barrier():
            model = LanguageModel.from_pretrained(out, device=device.type)  # the best one; verifies the folder
            best = None if validation is None else validation.best
            results = _results(model, corpus, best) if team.is_leader else {}
        return finish(model, out, files, results, team)


def _evaluate(model: LanguageModel, part: Stream) -> Score:
    nll = total_nll(model.network, np.asarray(part.ids), lanes=LANES, device=model.device)
    return Score(part.predictions, part.characters, part.unknown, nll)


def _results(model: LanguageModel, corpus: Corpus, valid_score: Score | None) -> dict[str, Any]:
    """Return the sizes of the training part and of the model, and the scores of the held-out parts."""
    results: dict[str, Any] = {"train_symbols": corpus.train.predictions, "parameters": model.parameter_count()}
    for name, part, score in (("valid", corpus.valid, valid_score), ("test", corpus.test, None)):
        if part is not None:
            summary = (score or _evaluate(model, part)).summary()
            results |= {f"{name}_{key}": value for key, value in summary.items()}
    return results
