"""`relmo train lm` as a plain function: corpus -> ids -> network -> the training loop -> a model folder."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from relmo.models.evaluate import Score, total_nll
from relmo.models.lm import LanguageModel
from relmo.networks import make_language_model
from relmo.networks.language_model import NeuralLM
from relmo.networks.ngram import NGramLM
from relmo.runs.folder import encoded_corpus, remove_scratch, run_folder
from relmo.runs.run import Plan, Reporter, go, make_plan, prepare
from relmo.settings.lm import LMSettings, check_lm
from relmo.store.weights import save_weights
from relmo.text.encode import Corpus, Stream
from relmo.training.batch import Lanes
from relmo.training.loop import Trainer
from relmo.training.parallel import Team, one_process_only

LANES = 32  # lanes of a validation; they change its speed only


def train_lm(
    files: Sequence[str],
    settings: LMSettings,
    out: Path,
    *,
    resume: bool = False,
    overwrite: bool = False,
    dry_run: bool = False,
    reporter: Reporter | None = None,
) -> dict[str, Any]:
    """Trains a language model on the files, in order, into the folder `out`. -> its results: the scores of the held-out
    parts."""
    reporter = reporter or Reporter()
    check_lm(settings)
    if settings.model.cell == "ngram":
        one_process_only("an n-gram model")
    device = prepare(settings.train)
    with run_folder(out, "lm", files, settings, resume=resume, overwrite=overwrite, keep=not dry_run) as team:
        corpus = encoded_corpus(files, settings.text, out, team)
        torch.manual_seed(settings.train.seed)
        if settings.model.cell == "ngram":
            network: NGramLM | NeuralLM | None = _fit_ngram(corpus, settings, reporter, dry_run)
        else:
            network = _fit_neural(corpus, settings, device, out, reporter, dry_run, team)
        if network is None:
            return {}
        return finish(LanguageModel(network, corpus.vocabulary, settings, device), corpus, out, files, team)


def _fit_ngram(corpus: Corpus, settings: LMSettings, reporter: Reporter, dry_run: bool) -> NGramLM | None:
    """Counts; there are no steps."""
    reporter.plan(Plan("cpu", corpus.train.predictions, steps=0, parameters=0, memory=0, seconds=0.0))
    if dry_run:
        return None
    return NGramLM.fit(corpus.train.ids, vocab_size=len(corpus.vocabulary), order=settings.model.order)


def _fit_neural(
    corpus: Corpus,
    settings: LMSettings,
    device: torch.device,
    out: Path,
    reporter: Reporter,
    dry_run: bool,
    team: Team,
) -> NeuralLM | None:
    """Trains by truncated back-propagation through time. -> the network with the best weights."""
    network = make_language_model(settings.model, len(corpus.vocabulary)).to(device)
    assert isinstance(network, NeuralLM)
    batch, unroll = settings.train.batch, settings.train.unroll
    lanes = Lanes(corpus.train.ids, batch=batch, unroll=unroll, rank=team.rank, size=team.size)
    trainer = Trainer(network, lanes, settings.train, validation(corpus.valid, device), team=team)
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
    with team.together():
        return LanguageModel.from_pretrained(out, device=device.type).network  # type: ignore[return-value]


def validation(stream: Stream | None, device: torch.device) -> Callable[[nn.Module], float] | None:
    """Mean negative log-likelihood of a symbol of the validation part."""
    if stream is None:
        return None
    ids, count = np.asarray(stream.ids), stream.predictions
    return lambda network: total_nll(network, ids, lanes=LANES, device=device) / count  # type: ignore[arg-type]


def finish(model: LanguageModel, corpus: Corpus, out: Path, files: Sequence[str], team: Team) -> dict[str, Any]:
    """Scores the held-out parts, writes the whole folder, removes what only the run needed."""
    results: dict[str, Any] = {
        "trained_on": [Path(file).name for file in files],
        "train_symbols": corpus.train.predictions,
        "parameters": model.parameter_count(),
    }
    for name, part in (("valid", corpus.valid), ("test", corpus.test)):
        if part is not None:
            nll = total_nll(model.network, np.asarray(part.ids), lanes=LANES, device=model.device)
            score = Score(part.predictions, part.characters, part.unknown, nll)
            results |= {f"{name}_{key}": value for key, value in score.summary().items()}
    with team.together():
        if team.leads:
            if isinstance(model.network, NGramLM):
                model.save_pretrained(out, results=results)
            else:
                model.save_description(out, results)
            remove_scratch(out)
    return team.share(results)
