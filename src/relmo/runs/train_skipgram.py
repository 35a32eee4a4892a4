"""`relmo train skipgram` as a function: corpus -> ids -> network -> training loop -> folder of word vectors."""

from pathlib import Path
from typing import Any, Unpack

import numpy as np
import torch
from torch import nn

from relmo.errors import CorpusError
from relmo.models.vectors import WordVectors
from relmo.networks.skipgram import SkipGram
from relmo.runs.folder import Files, RunArguments, open_run
from relmo.runs.run import finish, run_training
from relmo.runs.train_lm import load_corpus
from relmo.settings.lm import SkipgramSettings
from relmo.text.encode import Stream, count
from relmo.text.vocabulary import SPECIALS
from relmo.training.batch import Contexts, move_to_device
from relmo.training.loop import Trainer, make_plan
from relmo.training.parallel import require_single_process


def train_skipgram(
    files: Files, settings: SkipgramSettings, out: str | Path, **arguments: Unpack[RunArguments]
) -> dict[str, Any]:
    """Train word vectors on the files, in order, and write them to the folder `out`; return the results."""
    settings.check()
    require_single_process("relmo train skipgram")
    unchecked = torch.sparse.check_sparse_tensor_invariants(enable=False)  # explicit, since torch warns otherwise
    with unchecked, open_run("skipgram", files, settings, out, **arguments) as run:
        corpus = load_corpus(run)
        counts = count(corpus.train.ids, len(corpus.vocabulary))  # (V,); 0 for specials and whitespace
        counts[[i for i, s in enumerate(corpus.vocabulary.symbols) if s in SPECIALS or s.isspace()]] = 0
        if not counts.any():
            raise CorpusError("no word is frequent enough for a vector; give more text, or lower --min-count")
        torch.manual_seed(settings.train.seed)
        network = SkipGram(settings.model, vocab_size=len(counts)).to(run.device)

        def make_contexts(stream: Stream) -> Contexts:
            end, batch, seed = corpus.vocabulary.end, settings.train.batch, settings.train.seed
            return Contexts(stream.ids, counts, settings.model, end=end, batch=batch, seed=seed)

        valid_contexts = None if corpus.valid is None else make_contexts(corpus.valid)

        @torch.no_grad()
        def validate(_: nn.Module) -> float:
            """Return the mean loss per pair of the validation part, with the same negatives each time."""
            assert valid_contexts is not None
            batches = (move_to_device(valid_contexts.get(0, i), run.device) for i in range(len(valid_contexts)))
            losses = [network.loss(batch, None) for batch in batches]
            pairs = sum(loss.predictions for loss in losses)
            return sum(float(loss.mean) * loss.predictions for loss in losses) / max(pairs, 1)

        validation = None if valid_contexts is None else validate
        trainer = Trainer(network, make_contexts(corpus.train), settings.train, validation)
        run.reporter.on_plan(make_plan(trainer, int(counts.sum()), "words"))
        if run.dry_run:
            return {}

        def save(folder: Path) -> None:
            has_count = (counts > 0)[:, None]  # other words have a zero vector
            matrix = network.words.weight.detach().cpu().numpy() * has_count
            WordVectors(corpus.vocabulary, matrix, settings).save_pretrained(folder)

        run_training(trainer, run.out, save, run.reporter)
        results: dict[str, Any] = {"train_words": int(counts.sum()), "words": int(np.count_nonzero(counts))}
        if validation is not None:
            results["valid_loss"] = trainer.best
        return finish(run, WordVectors.from_pretrained(run.out), results)
