"""Linear probe: multinomial logistic regression on frozen vectors."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

STRENGTHS = (1e-4, 1e-5)  # of the penalty on the mean loss
ROUND_STEPS, MAX_ROUNDS = 25, 20  # L-BFGS steps per round
CONVERGED = 2e-3  # a round with a smaller relative decrease of the loss is the last
BATCH_ROWS = 1 << 15  # rows classified together


@dataclass(frozen=True)
class Probe:
    """A classifier of vectors (D,) into labels: softmax(W (x - mean) / scale + b)."""

    labels: tuple[str, ...]
    weight: Tensor  # (D, C)
    bias: Tensor  # (C,)
    mean: Tensor  # (D,)
    scale: Tensor  # (D,)
    strength: float  #: chosen strength of the L2 penalty
    held_out_accuracy: float  #: accuracy on the held-out rows, before they were used for training

    def predict(self, vectors: np.ndarray) -> np.ndarray:
        """Return the label indices of vectors (N, D); (N,)."""
        predictions = []
        for begin in range(0, len(vectors), BATCH_ROWS):
            rows = torch.as_tensor(vectors[begin : begin + BATCH_ROWS], dtype=torch.float32, device=self.weight.device)
            logits = ((rows - self.mean) / self.scale) @ self.weight + self.bias
            predictions.append(logits.argmax(dim=1).cpu().numpy())
        return np.concatenate(predictions) if predictions else np.zeros(0, dtype=np.int64)

    def mark_correct(self, vectors: np.ndarray, labels: Sequence[str]) -> np.ndarray:
        """Return whether each vector gets its label; (N,) of bool. A label unseen in training is always wrong."""
        index = {label: i for i, label in enumerate(self.labels)}
        return self.predict(vectors) == np.array([index.get(label, -1) for label in labels], dtype=np.int64)


def linear_probe(
    vectors: np.ndarray,
    labels: Sequence[str],
    *,
    held_out: np.ndarray,
    strengths: Sequence[float] = STRENGTHS,
    device: torch.device | str = "cpu",
) -> Probe:
    """Fit a classifier of `vectors` (N, D) into `labels` (N). The rows marked in `held_out` (N,) choose the strength of
    the penalty. Hold out complete sentences, since the words of a sentence share their context."""
    names = tuple(sorted(set(labels)))
    index = {label: i for i, label in enumerate(names)}
    targets = torch.tensor([index[label] for label in labels], device=device)
    x = torch.tensor(vectors, dtype=torch.float32, device=device)  # a copy: it is standardised in place
    mean, scale = x.mean(dim=0), x.std(dim=0, correction=0)
    scale = torch.where(scale > 0, scale, 1.0)
    x.sub_(mean).div_(scale)
    is_held_out = torch.as_tensor(held_out, device=device)
    if len(names) == 1 or not 0 < int(is_held_out.sum()) < len(is_held_out):
        raise ValueError("A probe needs two labels, training rows and held out rows.")

    w = torch.zeros(x.shape[1] + 1, len(names), device=device)  # the bias is the last row
    best, best_loss, strength = w, float("inf"), strengths[0]
    for l2 in sorted(strengths, reverse=True):
        w = _fit(x, targets, ~is_held_out, l2, w)
        loss = float(cross_entropy(torch.addmm(w[-1], x, w[:-1])[is_held_out], targets[is_held_out]))
        if loss >= best_loss:
            break
        best, best_loss, strength = w, loss, l2
    predictions = torch.addmm(best[-1], x, best[:-1]).argmax(dim=1)
    accuracy = float((predictions == targets)[is_held_out].double().mean())
    w = _fit(x, targets, torch.ones_like(is_held_out), strength, best)
    return Probe(names, w[:-1], w[-1], mean, scale, strength, accuracy)


def most_frequent_labels(words: Sequence[str], labels: Sequence[str], test_words: Sequence[str]) -> list[str]:
    """Return each test word's most frequent label in training, or for an unseen word the most frequent one of all."""
    counts: dict[str, Counter[str]] = {}
    for word, label in zip(words, labels, strict=True):
        counts.setdefault(word, Counter())[label] += 1
    default = Counter(labels).most_common(1)[0][0]
    label_by_word = {word: word_counts.most_common(1)[0][0] for word, word_counts in counts.items()}
    return [label_by_word.get(word, default) for word in test_words]


def _fit(x: Tensor, targets: Tensor, rows: Tensor, l2: float, start: Tensor) -> Tensor:
    """Return the weights (D + 1, C) that minimise the mean loss of the marked rows plus l2 / 2 of their squares."""
    w = start.clone().requires_grad_()
    settings = {"max_iter": ROUND_STEPS, "history_size": 20, "tolerance_grad": 0.0, "tolerance_change": 0.0}
    optimizer = torch.optim.LBFGS([w], line_search_fn="strong_wolfe", **settings)  # type: ignore[arg-type]
    shares = rows / rows.sum()  # weights rather than a selection, so that no part of a large matrix is copied

    def closure() -> Tensor:
        optimizer.zero_grad()
        losses = cross_entropy(torch.addmm(w[-1], x, w[:-1]), targets, reduction="none")
        loss = (losses * shares).sum() + l2 / 2 * w[:-1].square().sum()
        loss.backward()
        return loss

    previous = float("inf")
    for _ in range(MAX_ROUNDS):
        optimizer.step(closure)
        loss = float(closure().detach())
        if not loss < previous * (1 - CONVERGED):
            break
        previous = loss
    return w.detach()
