"""`relmo train skipgram` as a function: corpus -> ids -> network -> training loop -> folder of word vectors."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from relmo.errors import CorpusError
from relmo.models.vectors import WordVectors
from relmo.networks.skipgram import SkipGram
from relmo.runs.encoded import load_corpus
from relmo.runs.files import Files, list_paths
from relmo.runs.folder import run_folder
from relmo.runs.progress import Reporter
from relmo.runs.run import finish, prepare, run_training
from relmo.settings.skipgram import SkipgramSettings
from relmo.text.encode import Corpus, Stream, count
from relmo.text.vocabulary import SPECIALS
from relmo.training.batch import Contexts, move_to_device
from relmo.training.loop import Trainer
from relmo.training.parallel import require_single_process
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
    """Train word vectors on the files, in order, and write them to the folder `out`; return the results."""
    files, out, reporter = list_paths(files), Path(out), reporter or Reporter()
    settings.check()
    require_single_process("relmo train skipgram")
    device = prepare(settings.train)
    unchecked = torch.sparse.check_sparse_tensor_invariants(enable=False)  # explicit, since torch warns otherwise
    with unchecked, run_folder(out, "skipgram", files, settings, resume=resume, overwrite=overwrite, keep=not dry_run):
        corpus = load_corpus(files, settings.text, out)
        counts = _word_counts(corpus)
        trainer = _make_trainer(corpus, counts, settings, device)
        reporter.on_plan(make_plan(trainer, int(counts.sum()), "words"))
        if dry_run:
            return {}

        def save() -> None:
            assert isinstance(trainer.model, SkipGram)
            has_count = (counts > 0)[:, None]  # other words have a zero vector
            matrix = trainer.model.words.weight.detach().cpu().numpy() * has_count
            WordVectors(corpus.vocabulary, matrix, settings).save_pretrained(out)

        run_training(trainer, out, save, reporter)
        results: dict[str, Any] = {"train_words": int(counts.sum()), "words": int(np.count_nonzero(counts))}
        if trainer.validate is not None:
            results["valid_loss"] = trainer.best
        return finish(WordVectors.from_pretrained(out), out, files, results)


def _word_counts(corpus: Corpus) -> np.ndarray:
    """Return the frequency (V,) of each symbol in the training part; 0 for specials and whitespace."""
    counts = count(corpus.train.ids, len(corpus.vocabulary))
    counts[[i for i, s in enumerate(corpus.vocabulary.symbols) if s in SPECIALS or s.isspace()]] = 0
    if not counts.any():
        raise CorpusError("no word is frequent enough for a vector; give more text, or lower --min-count")
    return counts


def _make_trainer(corpus: Corpus, counts: np.ndarray, settings: SkipgramSettings, device: torch.device) -> Trainer:
    torch.manual_seed(settings.train.seed)
    model = settings.model
    network = SkipGram(model, vocab_size=len(counts)).to(device)

    def make_contexts(stream: Stream) -> Contexts:
        end, batch, seed = corpus.vocabulary.end, settings.train.batch, settings.train.seed
        return Contexts(stream.ids, counts, model, end=end, batch=batch, seed=seed)

    validate = None if corpus.valid is None else _validation(make_contexts(corpus.valid))
    return Trainer(network, make_contexts(corpus.train), settings.train, validate)


def _validation(contexts: Contexts) -> Callable[[nn.Module], float]:
    """Return a function for the mean loss per pair of the validation part, with the same negatives each time."""

    @torch.no_grad()
    def validate(network: nn.Module) -> float:
        assert isinstance(network, SkipGram)
        device = next(network.parameters()).device
        losses = [network.loss(move_to_device(contexts.get(0, i), device), None) for i in range(len(contexts))]
        pairs = sum(loss.predictions for loss in losses)
        return sum(float(loss.mean) * loss.predictions for loss in losses) / max(pairs, 1)

    return validate
