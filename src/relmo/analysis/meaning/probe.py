"""What a linear classifier can read off frozen vectors: multinomial logistic regression.

Choices:
- Inputs are standardised, so that one strength of the L2 penalty means the same for every layer.
- L-BFGS over all rows at once: no learning rate, no order of batches, hence the same result every time.
- Strengths are tried from the strongest down, each from the weights of the one before, and judged by the loss of rows
  held out from training; with the best the classifier is then fitted to all rows.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

STRENGTHS = (1e-4, 1e-5)  # of the penalty on the mean loss
ROUND, MOST_ROUNDS = 25, 20  # steps between two looks at the loss
CONVERGED = 2e-3  # a round that lowers the loss by a smaller share of it is the last
AT_ONCE = 1 << 15  # rows classified together


@dataclass(frozen=True)
class Probe:
    """A classifier of vectors (D,) into labels: softmax(W (x - mean) / scale + b)."""

    labels: tuple[str, ...]
    weight: Tensor  # (D, C)
    bias: Tensor  # (C,)
    mean: Tensor  # (D,)
    scale: Tensor  # (D,)
    strength: float
    """The strength of the L2 penalty that was chosen."""
    held_out_accuracy: float
    """The accuracy on the rows that chose it, before they were used for training."""

    def predict(self, vectors: np.ndarray) -> np.ndarray:
        """The labels of vectors (N, D), as places in `labels`; (N,)."""
        found = []
        for begin in range(0, len(vectors), AT_ONCE):
            rows = torch.as_tensor(vectors[begin : begin + AT_ONCE], dtype=torch.float32, device=self.weight.device)
            found.append((((rows - self.mean) / self.scale) @ self.weight + self.bias).argmax(dim=1).cpu().numpy())
        return np.concatenate(found) if found else np.zeros(0, dtype=np.int64)

    def right(self, vectors: np.ndarray, labels: Sequence[str]) -> np.ndarray:
        """Whether each vector gets its label; a label that training did not have is always wrong. (N,) of bool."""
        place = {label: i for i, label in enumerate(self.labels)}
        return self.predict(vectors) == np.array([place.get(label, -1) for label in labels], dtype=np.int64)


def linear_probe(
    vectors: np.ndarray,
    labels: Sequence[str],
    *,
    held_out: np.ndarray,
    strengths: Sequence[float] = STRENGTHS,
    device: torch.device | str = "cpu",
) -> Probe:
    """A classifier of `vectors` (N, D) into `labels` (N). The rows marked in `held_out` (N,) choose the strength of the
    penalty. Whole sentences should be held out, since the words of a sentence share their context."""
    names = tuple(sorted(set(labels)))
    place = {label: i for i, label in enumerate(names)}
    targets = torch.tensor([place[label] for label in labels], device=device)
    x = torch.tensor(vectors, dtype=torch.float32, device=device)  # a copy: it is standardised in place
    mean, scale = x.mean(dim=0), x.std(dim=0, correction=0)
    scale = torch.where(scale > 0, scale, 1.0)
    x.sub_(mean).div_(scale)
    held = torch.as_tensor(held_out, device=device)
    if len(names) == 1 or not 0 < int(held.sum()) < len(held):
        raise ValueError("a probe needs two labels, rows to learn from and rows held out")

    w = torch.zeros(x.shape[1] + 1, len(names), device=device)  # the bias is the last row
    best, best_loss, strength = w, float("inf"), strengths[0]
    for l2 in sorted(strengths, reverse=True):
        w = _fit(x, targets, ~held, l2, w)
        loss = _held_out_loss(x, targets, held, w)
        if loss >= best_loss:
            break
        best, best_loss, strength = w, loss, l2
    accuracy = float((_logits(x, best).argmax(dim=1) == targets)[held].double().mean())
    w = _fit(x, targets, torch.ones_like(held), strength, best)
    return Probe(names, w[:-1], w[-1], mean, scale, strength, accuracy)


def usual_labels(words: Sequence[str], labels: Sequence[str], asked: Sequence[str]) -> list[str]:
    """For each word that is asked about the label that it has most often among `labels`; for a word that is not among
    `words`, the most frequent label of all. It is the floor for any classifier of words."""
    counts: dict[str, Counter[str]] = {}
    for word, label in zip(words, labels, strict=True):
        counts.setdefault(word, Counter())[label] += 1
    common = Counter(labels).most_common(1)[0][0]
    usual = {word: each.most_common(1)[0][0] for word, each in counts.items()}
    return [usual.get(word, common) for word in asked]


def _fit(x: Tensor, targets: Tensor, used: Tensor, l2: float, start: Tensor) -> Tensor:
    """The weights (D + 1, C) that minimise the mean loss of the rows in `used` and l2 / 2 of the squared weights (not
    of the biases), from `start` on."""
    w = start.clone().requires_grad_()
    settings = {"max_iter": ROUND, "history_size": 20, "tolerance_grad": 0.0, "tolerance_change": 0.0}
    optimizer = torch.optim.LBFGS([w], line_search_fn="strong_wolfe", **settings)  # type: ignore[arg-type]
    shares = used / used.sum()  # weights, so that no part of a large matrix is copied

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = (cross_entropy(_logits(x, w), targets, reduction="none") * shares).sum() + l2 / 2 * w[:-1].square().sum()
        loss.backward()
        return loss

    before = float("inf")
    for _ in range(MOST_ROUNDS):
        optimizer.step(closure)
        now = float(closure().detach())
        if not now < before * (1 - CONVERGED):
            break
        before = now
    return w.detach()


def _logits(x: Tensor, w: Tensor) -> Tensor:
    """The logits of rows (N, D) with weights (D + 1, C); (N, C)."""
    return torch.addmm(w[-1], x, w[:-1])


def _held_out_loss(x: Tensor, targets: Tensor, held: Tensor, w: Tensor) -> float:
    return float(cross_entropy(_logits(x, w)[held], targets[held]))
