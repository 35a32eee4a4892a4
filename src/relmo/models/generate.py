"""Text from a language model, symbol by symbol: greedy, sampled, or by beam search. Symbols are ids here.

temperature   divides the logits before a symbol is drawn; 0 always takes the most probable symbol (greedy)
top_k         draws from the k most probable symbols only
top_p         draws from the most probable symbols that together hold probability p

Holtzman et al. 2020, The curious case of neural text degeneration (nucleus sampling)
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from relmo.errors import ModelError, SettingError
from relmo.models.beam_search import Beam, BeamOptions, BeamStep, beam_search
from relmo.networks.language_model import Network
from relmo.nn.cells import State
from relmo.settings.arguments import check_whole

COLDEST, HOTTEST = 1e-30, 1e30
"""A temperature beyond these counts as the nearer of them: float32 could not hold the divided scores."""


@dataclass(frozen=True)
class Sampling:
    """How the next symbol is chosen."""

    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.temperature, int | float) or not 0 <= self.temperature < math.inf:
            raise SettingError(f"temperature must be 0 or more, and finite, not {self.temperature}")
        if self.top_k is not None:
            check_whole("top_k", self.top_k)
        if self.top_p is not None and not 0 < self.top_p <= 1:
            raise SettingError(f"top_p must be above 0 and at most 1, not {self.top_p}")


@torch.no_grad()
def _read_prompt(network: Network, prompt: Sequence[int], rows: int, device: torch.device) -> tuple[Tensor, State]:
    """Log-probabilities (rows, V) of the symbol after the prompt, and the state; the prompt begins with </s>."""
    state = network.initial_state(1)
    for symbol in prompt:
        log_probs, state = network.step(torch.tensor([symbol], device=device), state)
    return log_probs.expand(rows, -1), tuple(tensor.expand(rows, *tensor.shape[1:]) for tensor in state)


class Draws:
    """Texts that are sampled side by side from one prompt. The network reads `unread`, which is the prompt and then
    what was drawn last; `heard` takes what it says; and once the prompt is read, `draw` gives each text a symbol.

    Whoever asks the network may do so for several prompts at once (`step_together`)."""

    def __init__(
        self,
        network: Network,
        prompt: Sequence[int],
        *,
        rows: int,
        limit: int,
        end: int,
        banned: Sequence[int] = (),
        sampling: Sampling = Sampling(),
        generator: torch.Generator,
    ):
        self.rows, self.left, self.end, self.banned = rows, limit, end, banned
        self.sampling, self.generator = sampling, generator
        self.state = network.initial_state(1)
        self.log_probs: Tensor | None = None  # (rows, V) once the prompt is read
        self.ended = torch.zeros(rows, dtype=torch.bool, device=generator.device)
        self._prompt = torch.tensor(prompt, device=generator.device).split(1)
        self._read = 0
        self._chosen = self.ended

    @property
    def unread(self) -> Tensor:
        """What the network is to read next: (1,) of the prompt, (rows,) after it."""
        return self._prompt[self._read] if self._read < len(self._prompt) else self._chosen

    @property
    def done(self) -> bool:
        """Whether all texts have ended, or are as long as they may be."""
        return self.left <= 0 or bool(self.ended.all())

    def heard(self, log_probs: Tensor, state: State) -> None:
        """Takes the log-probabilities of the next symbol and the state after `unread`."""
        self.state = state
        self._read += 1
        if self._read == len(self._prompt):
            self.state = tuple(tensor.expand(self.rows, *tensor.shape[1:]) for tensor in state)
            log_probs = log_probs.expand(self.rows, -1)
        self.log_probs = log_probs if self._read >= len(self._prompt) else None

    @torch.no_grad()
    def draw(self) -> tuple[list[int], list[float]]:
        """One symbol of each text, and its log-probability under the model. A text that has ended goes on with
        `end`."""
        assert self.log_probs is not None  # the prompt is read
        chosen = choose(without(self.log_probs, self.banned), self.sampling, self.generator)  # (rows,)
        self._chosen = torch.where(self.ended, self.end, chosen)
        scores = self.log_probs.gather(1, self._chosen.unsqueeze(1)).squeeze(1)
        self.ended = self.ended | (self._chosen == self.end)
        self.left -= 1
        return self._chosen.tolist(), scores.tolist()


@torch.no_grad()
def step_together(network: Network, several: Sequence[Draws]) -> None:
    """Lets a network read what is unread of several prompts' texts, all in one batch."""
    sizes = [len(draws.unread) for draws in several]
    state = tuple(torch.cat(tensors) for tensors in zip(*(draws.state for draws in several), strict=True))
    log_probs, state = network.step(torch.cat([draws.unread for draws in several]), state)
    rows = log_probs.split(sizes)
    states = zip(*(tensor.split(sizes) for tensor in state), strict=True) if state else [()] * len(sizes)
    for draws, own, after in zip(several, rows, states, strict=True):
        draws.heard(own, tuple(after))


def without(log_probs: Tensor, banned: Sequence[int]) -> Tensor:
    """Log-probabilities (rows, V) with these symbols at -inf."""
    return log_probs.index_fill(1, torch.tensor(banned, dtype=torch.int64, device=log_probs.device), -torch.inf)


def choose(log_probs: Tensor, sampling: Sampling, generator: torch.Generator) -> Tensor:
    """One symbol for each row: (rows, V) -> (rows,)."""
    if sampling.temperature < COLDEST:
        return log_probs.argmax(dim=1)
    try:
        return torch.multinomial(drawn_from(log_probs, sampling), 1, generator=generator).squeeze(1)
    except RuntimeError as error:
        raise ModelError(f"the model gives no probabilities ({error}); its weights are damaged") from error


def drawn_from(log_probs: Tensor, sampling: Sampling) -> Tensor:
    """The probabilities (rows, V) with which symbols are drawn; without temperature the most probable one has 1."""
    if sampling.temperature < COLDEST:
        return torch.zeros_like(log_probs).scatter(1, log_probs.argmax(dim=1, keepdim=True), 1.0)
    return keep_top(log_probs / min(sampling.temperature, HOTTEST), sampling).softmax(dim=1)


def keep_top(scores: Tensor, sampling: Sampling) -> Tensor:
    """The scores (rows, V) with everything that top_k and top_p leave out at -inf."""
    if sampling.top_k is not None and sampling.top_k < scores.shape[1]:
        least = scores.topk(sampling.top_k, dim=1).values[:, -1:]
        scores = scores.masked_fill(scores < least, -torch.inf)
    if sampling.top_p is not None and sampling.top_p < 1:
        ordered, order = scores.sort(dim=1, descending=True)
        p = ordered.softmax(dim=1)
        beyond = p.cumsum(dim=1) - p >= sampling.top_p  # the symbol that crosses p stays
        beyond[:, 0] = False  # so does the first, where p is too small for a float32
        scores = scores.masked_fill(beyond.gather(1, order.argsort(dim=1)), -torch.inf)
    return scores


@torch.no_grad()
def search_texts(
    network: Network,
    prompt: Sequence[int],
    *,
    beams: int,
    limit: int,
    end: int,
    banned: Sequence[int] = (),
    device: torch.device,
    watch: Callable[[BeamStep], object] | None = None,
) -> list[Beam]:
    """The most probable texts after the prompt that a beam search finds, at most `beams`, best first. `watch` is told
    what each step has done."""
    log_probs, state = _read_prompt(network, prompt, 1, device)
    options = BeamOptions(beams, end, banned)
    return beam_search(network.step, log_probs, state, options, limits=torch.tensor([limit]), watch=watch)[0]
