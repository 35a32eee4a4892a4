"""Attention by a trilinear similarity, between a passage and a question and of a passage to itself.

    s(x, y) = w_x . x + w_y . y + (w_xy * x) . y

Positions past a text's end get no attention and give none. A bias, which the papers add to s, changes no softmax and no
choice of a maximum; it is left out.

Seo et al. 2017, Bidirectional attention flow for machine comprehension
Clark & Gardner 2017, Simple and effective multi-paragraph reading comprehension (self-attention by the same similarity)
"""

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from relmo.nn.attention import masked_softmax
from relmo.nn.pooling import blank, inside

ROOM = 1 << 25  # similarities of a passage's words with each other that are held at once


def _weights(size: int) -> nn.Parameter:
    """One of the three vectors of w . [x; y; x * y], as Xavier's rule has the whole of it."""
    bound = (6 / (3 * size + 1)) ** 0.5
    return nn.Parameter(torch.empty(size).uniform_(-bound, bound))


class PassageQuestionAttention(nn.Module):
    """What each word of a passage x finds in the question y, and what the question finds in the passage.

    s_ij = s(x_i, y_j)
    a_i  = sum_j softmax_j(s_ij) y_j                     passage to question
    h    = sum_i softmax_i(max_j s_ij) x_i               question to passage
    out  = [x_i; a_i; x_i * a_i; x_i * h]
    """

    def __init__(self, size: int):
        super().__init__()
        self.w_x, self.w_y, self.w_xy = _weights(size), _weights(size), _weights(size)
        self.output_size = 4 * size

    def forward(self, x: Tensor, y: Tensor, lengths_x: Tensor, lengths_y: Tensor) -> Tensor:
        """x (B, S, D), y (B, T, D), lengths (B,) -> (B, S, 4D), zero past a passage's end."""
        x, y = blank(x, lengths_x), blank(y, lengths_y)
        y = pad(y, (0, 0, 0, 1)) if y.shape[1] == 0 else y  # torch knows no maximum of nothing
        in_x = inside(lengths_x.to(x.device), x.shape[1])  # (B, S)
        in_y = inside(lengths_y.to(x.device), y.shape[1]).unsqueeze(1)  # (B, 1, T)
        s = (x @ self.w_x).unsqueeze(2) + (y @ self.w_y).unsqueeze(1) + (x * self.w_xy) @ y.transpose(1, 2)
        a = masked_softmax(s, in_y & in_x.unsqueeze(2)) @ y  # (B, S, D)
        most = s.masked_fill(~in_y, torch.finfo(s.dtype).min).amax(dim=2)  # (B, S)
        h = masked_softmax(most, in_x & in_y.any(dim=2)).unsqueeze(1) @ x  # (B, 1, D)
        return torch.cat([x, a, x * a, x * h], dim=2)


class PassageSelfAttention(nn.Module):
    """What each word of a passage finds in its other words.

    a_i = sum_{j != i} softmax_j(s(x_i, x_j)) x_j
    out = [x_i; a_i; x_i * a_i]

    w_x . x_i is the same for all j, so that it changes nothing and is left out. Words are taken a portion at a time
    where a passage is so long that all similarities would take much memory.
    """

    def __init__(self, size: int):
        super().__init__()
        self.w_y, self.w_xy = _weights(size), _weights(size)
        self.output_size = 3 * size

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        """x (B, T, D), lengths (B,) -> (B, T, 3D), zero past a passage's end."""
        x = blank(x, lengths)
        batch, steps, _ = x.shape
        portion = max(ROOM // max(batch * steps, 1), 1)
        a = torch.cat([self._attend(x, lengths, at, portion) for at in range(0, steps, portion)], dim=1)
        return torch.cat([x, a, x * a], dim=2)

    def _attend(self, x: Tensor, lengths: Tensor, at: int, portion: int) -> Tensor:
        """a_i of a portion of the words."""
        some = x[:, at : at + portion]  # (B, P, D)
        s = (x @ self.w_y).unsqueeze(1) + (some * self.w_xy) @ x.transpose(1, 2)  # (B, P, T)
        words = inside(lengths.to(x.device), x.shape[1])  # (B, T)
        place = torch.arange(x.shape[1], device=x.device)
        others = place != place[at : at + portion].unsqueeze(1)  # (P, T)
        return masked_softmax(s, words.unsqueeze(1) & words[:, at : at + portion].unsqueeze(2) & others) @ x
