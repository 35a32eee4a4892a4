"""The losses of a taught network equal their definitions."""

import pytest
import torch
from torch.nn.functional import log_softmax

from relmo.nn.distillation import LayerMaps, Logits, taught_loss

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU"))]
ROWS, SYMBOLS, SIZE, OTHER_SIZE, SHARE = 300, 50, 7, 11, 0.7


def draw(*shape: int, device: str) -> torch.Tensor:
    return torch.randn(*shape, device=device, requires_grad=True)


def defined(student: Logits, teacher: Logits, place: torch.Tensor) -> torch.Tensor:
    """Rows of all logits, the target's own in a column of its own where it has one."""

    def all_logits(given: Logits) -> torch.Tensor:
        z = given.x @ given.weight.t() + given.bias
        if given.own is None:
            return z
        own = (given.x * given.own).sum(dim=1) + given.own_bias
        here = torch.arange(z.shape[1], device=z.device) == place.unsqueeze(1)
        return torch.cat([z.masked_fill(here, -torch.inf), own.unsqueeze(1)], dim=1)

    log_p, log_q = log_softmax(all_logits(student), 1), log_softmax(all_logits(teacher), 1)
    y = place if student.own is None else torch.full_like(place, log_p.shape[1] - 1)
    plain = -log_p.gather(1, y.unsqueeze(1)).mean()
    taught = -(log_q.exp() * log_p).nan_to_num(0.0).sum(dim=1).mean()
    return (1 - SHARE) * plain + SHARE * taught


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("sampled", [False, True])
def test_predictions(device: str, sampled: bool) -> None:
    torch.manual_seed(1)
    place = torch.randint(-1 if sampled else 0, SYMBOLS, (ROWS,), device=device)

    def logits(size: int) -> Logits:
        own = (draw(ROWS, size, device=device), draw(ROWS, device=device)) if sampled else (None, None)
        return Logits(
            draw(ROWS, size, device=device), draw(SYMBOLS, size, device=device), draw(SYMBOLS, device=device), *own
        )

    student, teacher = logits(SIZE), logits(OTHER_SIZE)
    expected = defined(student, Logits(*(None if t is None else t.detach() for t in teacher)), place)
    wanted = torch.autograd.grad(expected, [t for t in student if t is not None])
    loss = taught_loss(student, teacher, place, SHARE)
    found = torch.autograd.grad(loss, [t for t in student if t is not None])
    torch.testing.assert_close(loss, expected, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)


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
