"""What a decoder does when it writes a text, step by step: what it expects next, and what it looks at."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch

from relmo.tasks.seq2seq import Seq2Seq, decoder_inputs
from relmo.text.readers.parallel import TextToText
from relmo.training.batch import on_device


class DecoderSteps(NamedTuple):
    """The steps of one text: a row for each unit that was written, and for the end.

    log_probs   (T + 1, V): log p(unit | source, units before), the network's own, of units that a search bans too
    attention   (T + 1, S): the weight of each unit of the source; None of a network without attention
    """

    log_probs: np.ndarray
    attention: np.ndarray | None


@torch.no_grad()
def decoder_steps(model: Seq2Seq, source: TextToText, texts: Sequence[Sequence[int]]) -> Iterator[DecoderSteps]:
    """The steps by which the model would write each of these texts, given as ids, for one source. All texts are read
    together; distributions are made one text at a time, since they are large."""
    body = model.network.body
    batch = model.encode([source]).batch(np.zeros(1, dtype=np.int64))
    read = model.network(on_device(batch, model.device))
    same = torch.zeros(len(texts), dtype=torch.int64, device=model.device)
    decoded = body.decode(read.of(same), decoder_inputs(texts, model.targets.end).to(model.device))  # type: ignore[operator]
    for ids, readout, weights in zip(texts, *decoded, strict=True):
        steps = len(ids) + 1
        log_probs = body.output.log_probs(readout[:steps]).float().cpu().numpy()  # type: ignore[operator, union-attr]
        attention = weights[:steps].float().cpu().numpy() if model.has_attention else None
        yield DecoderSteps(log_probs, attention)
