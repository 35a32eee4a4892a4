"""A linear-chain conditional random field: one score for a whole sequence of tags, normalised over all legal ones.

s(y) = start[y_1] + sum_t emissions[t, y_t] + sum_t transitions[y_t-1, y_t] + end[y_T]
p(y) = exp s(y) / Z,   Z = sum over legal y' of exp s(y')

Choices:
- Sequences that are not legal have probability zero, in training as in decoding, whatever the emissions.
- Sums are done in logarithms: emissions that differ by thousands neither overflow nor lose a path.
- What stands past a sentence's end is never looked at; an empty sentence has one sequence, of score zero.
- A word without a tag may have any: p is then the sum over all sequences that agree with the tags of the others.

Lafferty et al. 2001, Conditional random fields;  Lample et al. 2016, Neural architectures for named entity recognition
Tsuboi et al. 2008, Training conditional random fields using incomplete annotations
"""

import torch
from torch import Tensor, nn

NEVER = -1e30  # finite, as the gradient of a sum of infinities is not a number; so large that no emission outweighs it


class CRF(nn.Module):
    """Scores of `tags` tags following each other.

    `legal` (K + 2, K + 2) is true where the row's tag may stand before the column's; its row K is the start of a
    sentence, its column K + 1 the end. None allows everything.
    """

    legal: Tensor

    def __init__(self, tags: int, *, legal: Tensor | None = None):
        super().__init__()
        legal = torch.ones(tags + 2, tags + 2, dtype=torch.bool) if legal is None else legal.detach().clone().bool()
        if legal.shape != (tags + 2, tags + 2):
            raise ValueError(f"legal transitions of {tags} tags are {(tags + 2,) * 2}, not {tuple(legal.shape)}")
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
        emissions, inside = self._masked(emissions, lengths)
        tags = torch.where(inside, tags, 0)
        if bool((tags < 0).any()):
            return self._incomplete_nll(emissions, tags, lengths)
        if not self._all_legal(tags, lengths.to(tags.device)):
            raise ValueError("a sequence of tags is not legal; check the data, or allow the transition")
        return self._log_partition(emissions, lengths) - self._score(emissions, tags, lengths, inside)

    def _incomplete_nll(self, emissions: Tensor, tags: Tensor, lengths: Tensor) -> Tensor:
        """Return -log of the total probability of the sequences that agree with all tags that are not negative."""
        other = torch.arange(self.tags, device=tags.device) != tags.unsqueeze(2)
        agreeing = emissions.masked_fill(other & (tags >= 0).unsqueeze(2), NEVER)
        score = self._log_partition(agreeing, lengths)
        if bool((score <= NEVER / 2).any()):
            raise ValueError("a sequence of tags is not legal; check the data, or allow the transition")
        return self._log_partition(emissions, lengths) - score

    def loss(self, emissions: Tensor, tags: Tensor, lengths: Tensor) -> Tensor:
        """The mean over sentences of -log p(y)."""
        return self(emissions, tags, lengths).mean()

    @torch.no_grad()
    def decode(self, emissions: Tensor, lengths: Tensor) -> list[list[int]]:
        """The best legal sequence of each sentence (Viterbi): emissions (B, T, K), lengths (B,)."""
        emissions, inside = self._masked(emissions, lengths)
        return _viterbi(emissions, inside, *self._legal_scores())

    @torch.no_grad()
    def log_marginals(self, emissions: Tensor, tags: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """log p(y_t = tags[t]) of each word (B, T), and log p(y_t-1 = tags[t-1], y_t = tags[t]) of each word and the
        one before it (B, T - 1), over all legal sequences; past the end both are anything.

        b_T(i)             = end[i]
        b_t(i)             = log sum_j exp(transitions[i, j] + emissions[t+1, j] + b_t+1(j))
        log p(y_t = i)     = a_t(i) + b_t(i) - log Z
        log p(y_t-1 = i, y_t = j) = a_t-1(i) + transitions[i, j] + emissions[t, j] + b_t(j) - log Z
        """
        batch, steps, _ = emissions.shape
        if steps == 0:
            return emissions.new_zeros(batch, 0), emissions.new_zeros(batch, 0)
        emissions, inside = self._masked(emissions, lengths)
        emissions = emissions.double()  # log Z grows with the sentence, and a probability is a difference from it
        tags = torch.where(inside, tags, 0)
        start, into, end = (each.double() for each in self._legal_scores())
        a = torch.stack(self._forward(emissions, start, into), dim=1)  # (B, T, K)
        last = torch.arange(1, steps + 1, device=emissions.device) >= lengths.to(emissions.device).unsqueeze(1)
        b = end.expand(batch, -1)
        every = [b]
        for t in range(steps - 1, 0, -1):
            before = torch.logsumexp(into.T + (emissions[:, t] + b).unsqueeze(1), dim=2)  # over (B, from, to)
            b = torch.where(last[:, t - 1].unsqueeze(1), end, before)  # the sum begins anew at a sentence's last word
            every.append(b)
        b = torch.stack(every[::-1], dim=1)
        total = self._log_partition(emissions, lengths).unsqueeze(1)
        of = tags.unsqueeze(2)
        a, b = a.gather(2, of).squeeze(2), b.gather(2, of).squeeze(2)  # (B, T), those of the tags
        moves = into[tags[:, 1:], tags[:, :-1]] + emissions.gather(2, of).squeeze(2)[:, 1:]
        return a + b - total, a[:, :-1] + moves + b[:, 1:] - total

    def _masked(self, emissions: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """Emissions in the CRF's own precision, zero past the end (where they may be anything); the mask (B, T)."""
        inside = torch.arange(emissions.shape[1], device=emissions.device) < lengths.to(emissions.device).unsqueeze(1)
        return emissions.to(self.transitions.dtype).masked_fill(~inside.unsqueeze(2), 0.0), inside

    def _legal_scores(self) -> tuple[Tensor, Tensor, Tensor]:
        """Start (K,), transitions into the row's tag from the column's (K, K), end (K,); `NEVER` where not legal."""
        K = self.tags
        start = self.start.masked_fill(~self.legal[K, :K], NEVER)
        end = self.end.masked_fill(~self.legal[:K, K + 1], NEVER)
        return start, self.transitions.masked_fill(~self.legal[:K, :K], NEVER).T.contiguous(), end

    def _log_partition(self, emissions: Tensor, lengths: Tensor) -> Tensor:
        """log Z (B,) by the forward algorithm, with a_t of `_forward`.

        a_1(j) = start[j] + emissions[1, j]
        a_t(j) = emissions[t, j] + log sum_i exp(a_t-1(i) + transitions[i, j])
        log Z  = log sum_j exp(a_T(j) + end[j])
        """
        batch, steps, _ = emissions.shape
        if steps == 0:
            return emissions.new_zeros(batch)
        start, into, end = self._legal_scores()
        every = self._forward(emissions, start, into)
        lengths = lengths.to(emissions.device)
        last = torch.stack(every, dim=1)[torch.arange(batch, device=lengths.device), (lengths - 1).clamp(min=0)]
        return torch.where(lengths > 0, torch.logsumexp(last + end, dim=1), 0.0)

    @staticmethod
    def _forward(emissions: Tensor, start: Tensor, into: Tensor) -> list[Tensor]:
        """a_t (B, K) of every word."""
        a = start + emissions[:, 0]
        every = [a]
        for emission in emissions.unbind(dim=1)[1:]:
            a = emission + torch.logsumexp(a.unsqueeze(1) + into, dim=2)  # over (B, to, from)
            every.append(a)
        return every

    def _score(self, emissions: Tensor, tags: Tensor, lengths: Tensor, inside: Tensor) -> Tensor:
        """s(y) (B,) of tags that are 0 past the end."""
        if tags.shape[1] == 0:
            return emissions.new_zeros(len(tags))
        emitted = emissions.gather(2, tags.unsqueeze(2)).squeeze(2).sum(dim=1)  # zero past the end
        moved = torch.where(inside[:, 1:], self.transitions[tags[:, :-1], tags[:, 1:]], 0.0).sum(dim=1)
        last = tags.gather(1, (lengths.to(tags.device) - 1).clamp(min=0).unsqueeze(1)).squeeze(1)
        ends = torch.where(inside[:, 0], self.start[tags[:, 0]] + self.end[last], 0.0)
        return emitted + moved + ends

    def _all_legal(self, tags: Tensor, lengths: Tensor) -> bool:
        """Whether every sentence's tags follow each other legally, from its start to its end."""
        batch, steps = tags.shape
        at = torch.arange(steps + 1, device=tags.device)
        ends = lengths.unsqueeze(1)
        edge = tags.new_full((batch, 1), self.tags)
        before = torch.cat([edge, tags], dim=1)  # (B, T + 1): the start, then the tags
        after = torch.where(at == ends, self.tags + 1, torch.cat([tags, edge], dim=1))  # the tags, then the end
        return bool((self.legal[before, after] | (at > ends) | (ends == 0)).all())


@torch.no_grad()
def best_legal(scores: Tensor, lengths: Tensor, legal: Tensor) -> list[list[int]]:
    """Of each sentence the legal sequence whose scores have the greatest sum; scores (B, T, K) of a softmax, say, and
    `legal` as a CRF's. A tag whose score is `NEVER` is not taken."""
    K = scores.shape[2]
    inside = torch.arange(scores.shape[1], device=scores.device) < lengths.to(scores.device).unsqueeze(1)
    costs = torch.where(legal, 0.0, NEVER)
    into = costs[:K, :K].T.contiguous()
    return _viterbi(scores.masked_fill(~inside.unsqueeze(2), 0.0), inside, costs[K, :K], into, costs[:K, K + 1])


def _viterbi(emissions: Tensor, inside: Tensor, start: Tensor, into: Tensor, end: Tensor) -> list[list[int]]:
    """The best sequence of each sentence: emissions (B, T, K), zero where `inside` (B, T) is not true; scores of a
    first tag (K,), of the row's tag after the column's (K, K), of a last tag (K,)."""
    batch, steps, tags = emissions.shape
    if steps == 0:
        return [[] for _ in range(batch)]
    best = start + emissions[:, 0]  # (B, K): the score of the best sequence so far that ends in each tag
    stay = torch.arange(tags, device=best.device).expand(batch, -1)
    came_from = []
    for t in range(1, steps):
        score, before = (best.unsqueeze(1) + into).max(dim=2)  # over (B, to, from)
        now = inside[:, t].unsqueeze(1)
        best = torch.where(now, score + emissions[:, t], best)
        came_from.append(torch.where(now, before, stay))  # past the end a tag comes from itself
    score, tag = (best + end).max(dim=1)
    if bool(((score <= NEVER / 2) & inside[:, 0]).any()):
        raise ValueError("no sequence of tags is legal for a sentence of this length; allow more transitions")
    path = [tag]
    for before in reversed(came_from):
        path.append(before.gather(1, path[-1].unsqueeze(1)).squeeze(1))
    rows = torch.stack(path[::-1], dim=1).tolist()
    return [row[:length] for row, length in zip(rows, inside.sum(dim=1).tolist(), strict=True)]
