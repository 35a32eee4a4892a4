"""The one beam search: searches side by side find what each finds alone, one beam is greedy, scores have penalties."""

import pytest
import torch
from torch import Tensor, nn

from relmo.models.generate import BeamOptions, beam_search
from relmo.nn.recurrence import State

END, SYMBOLS = 0, 5


class Chain(nn.Module):
    """The next symbol depends on the two before; every search has a bias of its own."""

    def __init__(self, seed: int):
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        self.scores = torch.randn(SYMBOLS, SYMBOLS, SYMBOLS, generator=generator) * 1.5

    def log_probs(self, state: State) -> Tensor:
        before, last, bias = state
        return (self.scores[before[:, 0], last[:, 0]] + bias).log_softmax(dim=1)

    def step(self, ids: Tensor, state: State) -> tuple[Tensor, State]:
        """Reads a symbol."""
        new = (state[1], ids.unsqueeze(1), state[2])
        return self.log_probs(new), new


def start(searches: int, seed: int = 1) -> State:
    bias = torch.randn(searches, SYMBOLS, generator=torch.Generator().manual_seed(seed))
    return torch.zeros(searches, 1, dtype=torch.int64), torch.zeros(searches, 1, dtype=torch.int64), bias


@pytest.mark.parametrize("alpha", [0.0, 1.0])
@pytest.mark.parametrize("beams", [1, 2, 4])
def test_searches_side_by_side_find_what_each_finds_alone(beams: int, alpha: float) -> None:
    chain, state, limits = Chain(beams), start(9), torch.tensor([1, 2, 3, 4, 5, 6, 7, 20, 20])
    options = BeamOptions(beams, END, banned=[3], alpha=alpha)
    told: list[int] = []
    together = beam_search(
        chain.step,
        chain.log_probs(state),
        state,
        options,
        limits=limits,
        bonus=lambda carried: carried[2][:, 1] * 0.1,
        narrow=lambda which: told.append(len(which)),
    )
    for number, found in enumerate(together):
        own = tuple(tensor[number : number + 1] for tensor in state)
        bonus = own[2][:, 1] * 0.1
        (alone,) = beam_search(
            chain.step,
            chain.log_probs(own),
            own,
            options,
            limits=limits[number : number + 1],
            bonus=lambda carried, bonus=bonus: bonus.expand(len(carried[0])),  # type: ignore[misc]
        )
        assert [(beam.ids, beam.ended) for beam in alone] == [(beam.ids, beam.ended) for beam in found]
        assert [beam.score for beam in alone] == pytest.approx([beam.score for beam in found], abs=1e-5)
        for beam in found:
            more = bonus.item() if beam.ended else 0.0
            scale = ((5 + len(beam.ids) + beam.ended) / 6) ** alpha
            assert beam.score == pytest.approx(beam.log_prob / scale + more, abs=1e-5)
            assert 3 not in beam.ids
            assert len(beam.ids) <= limits[number]
    assert told == sorted(told, reverse=True)
    assert told  # some were over before the others


@pytest.mark.parametrize("seed", range(5))
def test_one_beam_takes_the_most_probable_symbol_until_that_is_the_end(seed: int) -> None:
    chain, state = Chain(seed), start(6, seed)
    found = beam_search(chain.step, chain.log_probs(state), state, BeamOptions(1, END), limits=torch.full((6,), 15))
    for number, (beam,) in enumerate(found):
        own = tuple(tensor[number : number + 1] for tensor in state)
        written: list[int] = []
        log_probs = chain.log_probs(own)
        while len(written) < 15 and (best := int(log_probs.argmax())) != END:
            written.append(best)
            log_probs, own = chain.step(torch.tensor([best]), own)
        assert (beam.ids, beam.ended) == (written, len(written) < 15)
