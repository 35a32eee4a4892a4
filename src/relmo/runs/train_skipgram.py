"""`relmo train skipgram` as a plain function: corpus -> ids -> network -> training loop -> a folder of word vectors."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from relmo.errors import CorpusError
from relmo.models.vectors import WordVectors
from relmo.networks.skipgram import SkipGram
from relmo.runs.encoded import encoded_corpus
from relmo.runs.files import Files, listed_files
from relmo.runs.folder import run_folder
from relmo.runs.reporter import Reporter
from relmo.runs.run import finish, go, prepare
from relmo.settings.skipgram import SkipgramSettings, check_skipgram
from relmo.text.encode import Corpus, Stream, count
from relmo.text.vocabulary import SPECIALS
from relmo.training.batch import Contexts, on_device
from relmo.training.loop import Trainer
from relmo.training.parallel import one_process_only
from relmo.training.plan import make_plan


def train_skipgram(
    files: Files,
    settings: SkipgramSettings,
    out: str | Path,
    *,
    resume: bool = False,
    overwrite: bool = False,
    dry_run: bool = False,
    reporter: Reporter | None = None,
) -> dict[str, Any]:
    """Trains word vectors on the files, in order, into the folder `out`. -> its results."""
    files, out, reporter = listed_files(files), Path(out), reporter or Reporter()
    check_skipgram(settings)
    one_process_only("relmo train skipgram")
    device = prepare(settings.train)
    unchecked = torch.sparse.check_sparse_tensor_invariants(enable=False)  # said aloud, lest torch warn of it
    with unchecked, run_folder(out, "skipgram", files, settings, resume=resume, overwrite=overwrite, keep=not dry_run):
        corpus = encoded_corpus(files, settings.text, out)
        counts = _word_counts(corpus)
        trainer = _make_trainer(corpus, counts, settings, device)
        reporter.plan(make_plan(trainer, int(counts.sum())))
        if dry_run:
            return {}

        def save() -> None:
            assert isinstance(trainer.model, SkipGram)
            seen = (counts > 0)[:, None]  # the other words get the zero vector
            matrix = trainer.model.words.weight.detach().cpu().numpy() * seen
            WordVectors(corpus.vocabulary, matrix, settings).save_pretrained(out)

        go(trainer, out, save, reporter)
        results: dict[str, Any] = {"train_words": int(counts.sum()), "words": int(np.count_nonzero(counts))}
        if trainer.validate is not None:
            results["valid_loss"] = trainer.best
        return finish(WordVectors.from_pretrained(out), out, files, results)


def _word_counts(corpus: Corpus) -> np.ndarray:
    """How often each symbol occurs in the training part; 0 for what is no word: the specials and white space. (V,)"""
    counts = count(corpus.train.ids, len(corpus.vocabulary))
    counts[[i for i, s in enumerate(corpus.vocabulary.symbols) if s in SPECIALS or s.isspace()]] = 0
    if not counts.any():
        raise CorpusError("no word occurs often enough to get a vector; give more text, or lower --min-count")
    return counts


def _make_trainer(corpus: Corpus, counts: np.ndarray, settings: SkipgramSettings, device: torch.device) -> Trainer:
    """The network at its beginning, and the text it learns from."""
    torch.manual_seed(settings.train.seed)
    model = settings.model
    network = SkipGram(vocab_size=len(counts), dimensions=model.dimensions, negatives=model.negatives).to(device)

    def contexts(stream: Stream) -> Contexts:
        end, batch, seed = corpus.vocabulary.end, settings.train.batch, settings.train.seed
        return Contexts(stream.ids, counts, model, end=end, batch=batch, seed=seed)

    validate = None if corpus.valid is None else _validation(contexts(corpus.valid))
    return Trainer(network, contexts(corpus.train), settings.train, validate)


def _validation(contexts: Contexts) -> Callable[[nn.Module], float]:
    """The mean loss of a pair of the validation part, against the same negatives each time."""

    @torch.no_grad()
    def validate(network: nn.Module) -> float:
        assert isinstance(network, SkipGram)
        device = next(network.parameters()).device
        losses = [network.loss(on_device(contexts.get(0, i), device), None) for i in range(len(contexts))]
        pairs = sum(loss.predictions for loss in losses)
        return sum(float(loss.mean) * loss.predictions for loss in losses) / max(pairs, 1)

    return validate
