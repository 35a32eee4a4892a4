"""Linear-chain conditional random field: one score per sequence of tags, normalised over all legal sequences.

s(y) = start[y_1] + sum_t emissions[t, y_t] + sum_t transitions[y_t-1, y_t] + end[y_T]
p(y) = exp s(y) / Z,   Z = sum over legal y' of exp s(y')

Sequences that are not legal have probability zero, in training as in decoding. Sums are done in logarithms, so that no
path overflows or is lost. Padding has no influence; an empty sentence has one sequence, of score zero. A word without a
tag may have any: p is then the sum over all sequences that agree with the other tags (Tsuboi et al. 2008).

Lafferty et al. 2001, Conditional random fields;  Lample et al. 2016, Neural architectures for named entity recognition
"""

import torch
from torch import Tensor, nn

from relmo.nn.pooling import length_mask

NEVER = -1e30  # finite, as the gradient of a sum of infinities is not a number; so large that no emission outweighs it


class CRF(nn.Module):
    """CRF over `tags` tags.

    `legal` (K + 2, K + 2) is true where the row's tag may stand before the column's; its row K is the start of a
    sentence, its column K + 1 the end. None allows everything.
    """

    legal: Tensor

    def __init__(self, tags: int, *, legal: Tensor | None = None):
        super().__init__()
        legal = torch.ones(tags + 2, tags + 2, dtype=torch.bool) if legal is None else legal.detach().clone().bool()
        if legal.shape != (tags + 2, tags + 2):
            raise ValueError(f"legal transitions of {tags} tags have shape {(tags + 2,) * 2}, not {tuple(legal.shape)}")
        self.tags = tags
        self.transitions = nn.Parameter(torch.empty(tags, tags))  # from the row's tag to the column's
        self.start = nn.Parameter(torch.empty(tags))
        self.end = nn.Parameter(torch.empty(tags))
        self.register_buffer("legal", legal, persistent=False)
        for parameter in self.parameters():
            nn.init.uniform_(parameter, -0.1, 0.1)

    def forward(self, emissions: Tensor, tags: Tensor, lengths: Tensor) -> Tensor:
        """Return -log p(y) of each sentence, (B,): emissions (B, T, K), tags (B, T), negative for words without a tag,
        lengths (B,)."""
        emissions, mask = self._mask(emissions, lengths)
        tags = torch.where(mask, tags, 0)
        if bool((tags < 0).any()):  # the total of the sequences that agree with the other tags
            differs = torch.arange(self.tags, device=tags.device) != tags.unsqueeze(2)
            constrained = emissions.masked_fill(differs & (tags >= 0).unsqueeze(2), NEVER)
            score = self._log_partition(constrained, lengths)
            is_legal = not bool((score <= NEVER / 2).any())
        else:
            score = emissions.new_zeros(len(tags))
            ends = lengths.to(tags.device).unsqueeze(1)
            if tags.shape[1]:
                emission = emissions.gather(2, tags.unsqueeze(2)).squeeze(2).sum(dim=1)  # zero past the end
                transition = torch.where(mask[:, 1:], self.transitions[tags[:, :-1], tags[:, 1:]], 0.0).sum(dim=1)
                last = tags.gather(1, (ends - 1).clamp(min=0)).squeeze(1)
                score = emission + transition + torch.where(mask[:, 0], self.start[tags[:, 0]] + self.end[last], 0.0)
            position, edge = torch.arange(tags.shape[1] + 1, device=tags.device), torch.full_like(ends, self.tags)
            before = torch.cat([edge, tags], dim=1)  # (B, T + 1): the start, then the tags
            after = torch.where(position == ends, self.tags + 1, torch.cat([tags, edge], dim=1))  # and then the end
            is_legal = bool((self.legal[before, after] | (position > ends) | (ends == 0)).all())
        if not is_legal:
            raise ValueError("A sequence of tags is not legal. Check the data, or allow the transition.")
        return self._log_partition(emissions, lengths) - score

    def loss(self, emissions: Tensor, tags: Tensor, lengths: Tensor) -> Tensor:
        """Return the mean of -log p(y) over sentences."""
        return self(emissions, tags, lengths).mean()

    @torch.no_grad()
    def decode(self, emissions: Tensor, lengths: Tensor) -> list[list[int]]:
        """Return the best legal sequence of each sentence (Viterbi): emissions (B, T, K), lengths (B,)."""
        emissions, mask = self._mask(emissions, lengths)
        return _viterbi(emissions, mask, *self._legal_scores())

    @torch.no_grad()
    def log_marginals(self, emissions: Tensor, tags: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """Return log p(y_t = tags[t]) (B, T) and log p(y_t-1 = tags[t-1], y_t = tags[t]) (B, T - 1).

        b_T(i)             = end[i]
        b_t(i)             = log sum_j exp(transitions[i, j] + emissions[t+1, j] + b_t+1(j))
        log p(y_t = i)     = a_t(i) + b_t(i) - log Z
        log p(y_t-1 = i, y_t = j) = a_t-1(i) + transitions[i, j] + emissions[t, j] + b_t(j) - log Z
        """
        batch, steps, _ = emissions.shape
        if steps == 0:
            return emissions.new_zeros(batch, 0), emissions.new_zeros(batch, 0)
        emissions, mask = self._mask(emissions, lengths)
        emissions = emissions.double()  # log Z grows with the length, and a probability is a difference from it
        tags = torch.where(mask, tags, 0)
        start, into, end = (scores.double() for scores in self._legal_scores())
        a = torch.stack(self._forward(emissions, start, into), dim=1)  # (B, T, K)
        last = torch.arange(1, steps + 1, device=emissions.device) >= lengths.to(emissions.device).unsqueeze(1)
        b = end.expand(batch, -1)
        betas = [b]
        for t in range(steps - 1, 0, -1):
            before = torch.logsumexp(into.T + (emissions[:, t] + b).unsqueeze(1), dim=2)  # over (B, from, to)
            b = torch.where(last[:, t - 1].unsqueeze(1), end, before)  # the recursion starts at a sentence's last word
            betas.append(b)
        b = torch.stack(betas[::-1], dim=1)
        total = self._log_partition(emissions, lengths).unsqueeze(1)
        index = tags.unsqueeze(2)
        a, b = a.gather(2, index).squeeze(2), b.gather(2, index).squeeze(2)  # (B, T)
        moves = into[tags[:, 1:], tags[:, :-1]] + emissions.gather(2, index).squeeze(2)[:, 1:]
        return a + b - total, a[:, :-1] + moves + b[:, 1:] - total

    def _mask(self, emissions: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """Return emissions in the CRF's type, zero past the end (where they may be anything), and the mask (B, T)."""
        mask = length_mask(lengths.to(emissions.device), emissions.shape[1])
        return emissions.to(self.transitions.dtype).masked_fill(~mask.unsqueeze(2), 0.0), mask

    def _legal_scores(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return start (K,), transitions to the row's tag from the column's (K, K), end (K,); `NEVER` if not legal."""
        K = self.tags
        start = self.start.masked_fill(~self.legal[K, :K], NEVER)
        end = self.end.masked_fill(~self.legal[:K, K + 1], NEVER)
        return start, self.transitions.masked_fill(~self.legal[:K, :K], NEVER).T.contiguous(), end

    def _log_partition(self, emissions: Tensor, lengths: Tensor) -> Tensor:
        """Return log Z (B,) by the forward algorithm, with a_t of `_forward`.

        a_1(j) = start[j] + emissions[1, j]
        a_t(j) = emissions[t, j] + log sum_i exp(a_t-1(i) + transitions[i, j])
        log Z  = log sum_j exp(a_T(j) + end[j])
        """
        batch, steps, _ = emissions.shape
        if steps == 0:
            return emissions.new_zeros(batch)
        start, into, end = self._legal_scores()
        alphas = self._forward(emissions, start, into)
        lengths = lengths.to(emissions.device)
        last = torch.stack(alphas, dim=1)[torch.arange(batch, device=lengths.device), (lengths - 1).clamp(min=0)]
        return torch.where(lengths > 0, torch.logsumexp(last + end, dim=1), 0.0)

    @staticmethod
    def _forward(emissions: Tensor, start: Tensor, into: Tensor) -> list[Tensor]:
        """Return a_t (B, K) of every word."""
        a = start + emissions[:, 0]
        alphas = [a]
        for emission in emissions.unbind(dim=1)[1:]:
            a = emission + torch.logsumexp(a.unsqueeze(1) + into, dim=2)  # over (B, to, from)
            alphas.append(a)
        return alphas


@torch.no_grad()
def best_legal(scores: Tensor, lengths: Tensor, legal: Tensor) -> list[list[int]]:
    """Return the legal sequence of each sentence with the greatest sum of scores (B, T, K), e.g. of a softmax.
    `legal` is as in `CRF`; a tag with the score `NEVER` is not used."""
    K = scores.shape[2]
    mask = length_mask(lengths.to(scores.device), scores.shape[1])
    costs = torch.where(legal, 0.0, NEVER)
    into = costs[:K, :K].T.contiguous()
    return _viterbi(scores.masked_fill(~mask.unsqueeze(2), 0.0), mask, costs[K, :K], into, costs[:K, K + 1])


def _viterbi(emissions: Tensor, mask: Tensor, start: Tensor, into: Tensor, end: Tensor) -> list[list[int]]:
    """Return the best sequence of each sentence; emissions are zero past its end, the others from `_legal_scores`."""
    batch, steps, tags = emissions.shape
    if steps == 0:
        return [[] for _ in range(batch)]
    best = start + emissions[:, 0]  # (B, K): the score of the best sequence so far that ends in each tag
    stay = torch.arange(tags, device=best.device).expand(batch, -1)
    backpointers = []
    for t in range(1, steps):
        score, before = (best.unsqueeze(1) + into).max(dim=2)  # over (B, to, from)
        is_token = mask[:, t].unsqueeze(1)
        best = torch.where(is_token, score + emissions[:, t], best)
        backpointers.append(torch.where(is_token, before, stay))  # past the end the tag does not change
    score, tag = (best + end).max(dim=1)
    if bool(((score <= NEVER / 2) & mask[:, 0]).any()):
        raise ValueError("No sequence of tags is legal for a sentence of this length. Allow more transitions.")
    path = [tag]
    for before in reversed(backpointers):
        path.append(before.gather(1, path[-1].unsqueeze(1)).squeeze(1))
    rows = torch.stack(path[::-1], dim=1).tolist()
    return [row[:length] for row, length in zip(rows, mask.sum(dim=1).tolist(), strict=True)]
