"""`relmo train lm` as a function: corpus -> ids -> network -> training loop -> model folder."""

from functools import partial
from pathlib import Path
from typing import Any, Unpack

import numpy as np
import torch

from relmo.models.evaluate import Score, total_nll
from relmo.models.lm import LanguageModel
from relmo.networks import make_language_model
from relmo.networks.ngram import NGramLM
from relmo.runs.folder import Files, RunArguments, TrainingRun, encode_once, open_run
from relmo.runs.run import Validation, finish, run_training, save_best
from relmo.settings.lm import LMSettings
from relmo.text.encode import Corpus, Stream, encode_corpus
from relmo.text.vocabulary import Vocabulary
from relmo.training.batch import Lanes
from relmo.training.loop import Plan, Trainer, make_plan
from relmo.training.parallel import require_single_process

LANES = {"cpu": 32, "cuda": 128}  # of a validation; they affect its speed only


def train_lm(files: Files, settings: LMSettings, out: str | Path, **arguments: Unpack[RunArguments]) -> dict[str, Any]:
    """Train a language model on the files, in order, in the folder `out`; return the scores of the held-out parts."""
    settings.check()
    is_ngram = settings.model.cell == "ngram"  # n-grams are counted; there are no steps
    if is_ngram:
        require_single_process("an n-gram model")
    with open_run("lm", files, settings, out, **arguments) as run:
        corpus, device, team = load_corpus(run), run.device, run.team
        torch.manual_seed(settings.train.seed)
        unit = {"char": "characters", "word": "words"}[settings.text.unit]
        size, vocab_size = corpus.train.predictions, len(corpus.vocabulary)
        if is_ngram:
            run.reporter.on_plan(Plan("cpu", size, steps=0, parameters=0, memory=0, seconds=0.0, unit=unit))
            if run.dry_run:
                return {}
            ngrams = NGramLM.fit(corpus.train.ids, vocab_size=vocab_size, order=settings.model.order)
            model = LanguageModel(ngrams, corpus.vocabulary, settings, device)
            model.save_pretrained(run.out)
            return finish(run, model, _results(model, corpus, None))
        network = make_language_model(settings.model, vocab_size).to(device)
        sizes = {"batch": settings.train.batch, "unroll": settings.train.unroll}
        seed = settings.train.seed if settings.train.vary_unroll else None
        lanes = Lanes(corpus.train.ids, **sizes, seed=seed, rank=team.rank, world_size=team.world_size)
        model = LanguageModel(network, corpus.vocabulary, settings, device)
        validation = None if corpus.valid is None else Validation(model, partial(_evaluate, corpus.valid))
        trainer = Trainer(network, lanes, settings.train, validation, team=team)
        run.reporter.on_plan(make_plan(trainer, size, unit))
        if run.dry_run:
            return {}
        run_training(trainer, run.out, partial(save_best, model), run.reporter)
        with team.barrier():
            model = LanguageModel.from_pretrained(run.out, device=device.type)  # the best one; verifies the folder
            best = None if validation is None else validation.scores.get(trainer.best)
            results = _results(model, corpus, best) if team.is_leader else {}
        return finish(run, model, results)


def load_corpus(run: TrainingRun) -> Corpus[Vocabulary]:
    """Return the encoded corpus of a language model, or of word vectors."""
    return encode_once(run, Vocabulary, lambda folder: (encode_corpus(run.files, run.settings.text, folder), {}))[0]


def _evaluate(part: Stream, model: LanguageModel) -> Score:
    nll = total_nll(model.network, np.asarray(part.ids), lanes=LANES[model.device.type], device=model.device)
    return Score(part.predictions, part.characters, part.unknown, nll)


def _results(model: LanguageModel, corpus: Corpus, valid_score: Score | None) -> dict[str, Any]:
    """Return the sizes of the training part and of the model, and the scores of the held-out parts."""
    results: dict[str, Any] = {"train_symbols": corpus.train.predictions, "parameters": model.parameter_count()}
    for name, part, score in (("valid", corpus.valid, valid_score), ("test", corpus.test, None)):
        if part is not None:
            summary = (score or _evaluate(part, model)).summary()
            results |= {f"{name}_{key}": value for key, value in summary.items()}
    return results
