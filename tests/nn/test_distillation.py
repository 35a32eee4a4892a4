"""The losses of a taught network equal their definitions."""

import pytest
import torch
from torch.nn.functional import log_softmax

from relmo.nn.softmax import FullSoftmax, LayerMaps, Lesson, SampledSoftmax

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
ROWS, SYMBOLS, SIZE, OTHER_SIZE, SHARE = 300, 50, 7, 11, 0.7


def defined(log_p: torch.Tensor, log_q: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    plain = -log_p.gather(1, targets.unsqueeze(1)).mean()
    taught = -(log_q.exp() * log_p).nan_to_num(0.0).sum(dim=1).mean()
    return (1 - SHARE) * plain + SHARE * taught


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("sampled", [False, True])
def test_predictions(device: str, sampled: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The sample is given: of the symbols outside it only a row's own target counts, all logits lowered."""
    torch.manual_seed(1)
    student: FullSoftmax = SampledSoftmax(SIZE, SYMBOLS, samples=20) if sampled else FullSoftmax(SIZE, SYMBOLS)
    student, teacher = student.to(device), FullSoftmax(OTHER_SIZE, SYMBOLS).to(device)
    for softmax in (student, teacher):
        torch.nn.init.normal_(softmax.bias)
    x, y = (torch.randn(ROWS, size, device=device, requires_grad=True) for size in (SIZE, OTHER_SIZE))
    targets = torch.randint(SYMBOLS, (ROWS,), device=device)
    left_out = torch.zeros(ROWS, SYMBOLS, dtype=torch.bool, device=device)
    lowered = torch.zeros(SYMBOLS, device=device)
    if isinstance(student, SampledSoftmax):
        sample = torch.randperm(SYMBOLS)[:20].to(device)
        lowered = student.log_count
        left_out[:] = True
        left_out[:, sample] = False
        left_out[torch.arange(ROWS), targets] = False
        monkeypatch.setattr(torch, "topk", lambda *_, **__: torch.return_types.topk((sample.float(), sample)))
    log_p, log_q = (
        log_softmax((softmax.logits(features) - lowered).masked_fill(left_out, -torch.inf), 1)
        for softmax, features in ((student, x), (teacher, y.detach()))
    )
    expected = defined(log_p, log_q.detach(), targets)
    learned = [x, *student.parameters()]
    wanted = torch.autograd.grad(expected, learned)
    loss = student.loss(x, targets, Lesson(y, teacher, SHARE))
    found = torch.autograd.grad(loss, learned, retain_graph=True)
    torch.testing.assert_close(loss, expected, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)
    assert torch.autograd.grad(loss, [y, *teacher.parameters()], allow_unused=True) == (None, None, None)


def test_layers() -> None:
    torch.manual_seed(1)
    maps = LayerMaps(2, SIZE, OTHER_SIZE)
    student = [torch.randn(2, 3, 5, SIZE) for _ in range(2)]
    teacher = [torch.randn(2, 3, 5, OTHER_SIZE) for _ in range(2)]
    parts = []
    for weight, h, g in zip(maps.weight, student, teacher, strict=True):
        mapped = torch.stack([h[0] @ weight[0], h[1] @ weight[1]])
        parts.append(((mapped - g) ** 2).sum() / (g**2).sum())
    torch.testing.assert_close(maps.distance(student, teacher), sum(parts) / 2)
