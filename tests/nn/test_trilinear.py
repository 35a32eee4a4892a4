"""Attention by a trilinear similarity: its definition word by word, masks, portions of a long passage."""

import pytest
import torch
from torch import Tensor

from relmo.nn import attention
from relmo.nn.attention import PassageQuestionAttention, PassageSelfAttention

PASSAGES, QUESTIONS = [5, 1, 0, 7, 3], [2, 4, 3, 0, 1]


def texts(lengths: list[int], seed: int) -> tuple[Tensor, Tensor]:
    """Vectors of size 3, and not-a-number past each text's end, where nothing may look."""
    x = torch.randn(len(lengths), max(lengths), 3, generator=torch.Generator().manual_seed(seed))
    for row, length in enumerate(lengths):
        x[row, length:] = torch.nan
    return x, torch.tensor(lengths)


def test_passage_and_question_attend_as_defined() -> None:
    torch.manual_seed(0)
    layer = PassageQuestionAttention(3)
    (x, n), (y, m) = texts(PASSAGES, 1), texts(QUESTIONS, 2)
    found = layer(x, y, n, m)
    assert found.shape == (5, 7, 12)
    w_x, w_y, w_xy = (w.detach() for w in (layer.w_x, layer.w_y, layer.w_xy))
    for b, (length, asked) in enumerate(zip(PASSAGES, QUESTIONS, strict=True)):
        assert not found[b, length:].any()
        words, question = x[b, :length], y[b, :asked]
        if not length:
            continue
        if not asked:
            nothing = torch.zeros(length, 9)
            torch.testing.assert_close(found[b, :length], torch.cat([words, nothing], dim=1))
            continue
        s = torch.tensor([[w_x @ p + w_y @ q + (w_xy * p * q).sum() for q in question] for p in words])
        h = s.amax(dim=1).softmax(dim=0) @ words
        for i, p in enumerate(words):
            a = s[i].softmax(dim=0) @ question
            torch.testing.assert_close(found[b, i], torch.cat([p, a, p * a, p * h]))


@pytest.mark.parametrize("room", [1 << 25, 70, 1])
def test_a_passage_attends_to_its_other_words_as_defined_whatever_the_portions(
    room: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        attention, "MAX_SIMILARITIES", room
    )  # of 5 x 7 similarities a word: all at once, 2 words, 1 word
    torch.manual_seed(0)
    layer = PassageSelfAttention(3)
    x, n = texts(PASSAGES, 1)
    found = layer(x, n)
    assert found.shape == (5, 7, 9)
    w_x, w_y, w_xy = torch.randn(3), layer.w_y.detach(), layer.w_xy.detach()  # w_x: whatever it is
    for b, length in enumerate(PASSAGES):
        assert not found[b, length:].any()
        for i in range(length):
            others = [j for j in range(length) if j != i]
            s = torch.tensor([w_x @ x[b, i] + w_y @ x[b, j] + w_xy @ (x[b, i] * x[b, j]) for j in others])
            a = s.softmax(dim=0) @ x[b, others] if others else torch.zeros(3)
            torch.testing.assert_close(found[b, i], torch.cat([x[b, i], a, x[b, i] * a]))


def test_gradients_are_finite_and_the_same_in_portions(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    layer = PassageSelfAttention(3)
    gradients = []
    for room in (1 << 25, 1):
        monkeypatch.setattr(attention, "MAX_SIMILARITIES", room)
        layer.zero_grad()
        layer(*texts(PASSAGES, 1)).square().sum().backward()
        gradients.append([parameter.grad.clone() for parameter in layer.parameters() if parameter.grad is not None])
    assert len(gradients[0]) == 2
    for whole, portions in zip(*gradients, strict=True):
        assert whole.isfinite().all()
        torch.testing.assert_close(whole, portions)
