"""Text generation from a language model: greedy, sampled, or by beam search. Symbols are ids.

temperature   divides the logits before sampling; 0 always takes the most probable symbol (greedy)
top_k         samples from the k most probable symbols only
top_p         samples from the most probable symbols that together have probability p

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
from relmo.settings.arguments import check_integer

MIN_TEMPERATURE, MAX_TEMPERATURE = 1e-30, 1e30  # float32 overflows beyond them


@dataclass(frozen=True)
class Sampling:
    """Sampling options."""

    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.temperature, int | float) or not 0 <= self.temperature < math.inf:
            raise SettingError(f"temperature must be finite and at least 0, not {self.temperature}")
        if self.top_k is not None:
            check_integer("top_k", self.top_k)
        if self.top_p is not None and not 0 < self.top_p <= 1:
            raise SettingError(f"top_p must be above 0 and at most 1, not {self.top_p}")


class SampleBatch:
    """Texts sampled in parallel from one prompt.

    The network reads `next_input`, first the prompt and then the last symbols; `update` takes its output; after the
    prompt, `draw` adds a symbol to each text. `step_batch` does so for several prompts in one batch."""

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
        self.rows, self.remaining, self.end, self.banned = rows, limit, end, banned
        self.sampling, self.generator = sampling, generator
        self.state = network.initial_state(1)
        self.log_probs: Tensor | None = None  # (rows, V) after the prompt
        self.ended = torch.zeros(rows, dtype=torch.bool, device=generator.device)
        self._prompt = torch.tensor(prompt, device=generator.device).split(1)
        self._num_read = 0
        self._symbols = self.ended

    @property
    def next_input(self) -> Tensor:
        """Input of the network: (1,) of the prompt, (rows,) after it."""
        return self._prompt[self._num_read] if self._num_read < len(self._prompt) else self._symbols

    @property
    def done(self) -> bool:
        """True if all texts have ended or reached the limit."""
        return self.remaining <= 0 or bool(self.ended.all())

    def update(self, log_probs: Tensor, state: State) -> None:
        """Take the log-probabilities of the next symbol and the state after `next_input`."""
        self.state = state
        self._num_read += 1
        if self._num_read == len(self._prompt):
            self.state = tuple(tensor.expand(self.rows, *tensor.shape[1:]) for tensor in state)
            log_probs = log_probs.expand(self.rows, -1)
        self.log_probs = log_probs if self._num_read >= len(self._prompt) else None

    @torch.no_grad()
    def draw(self) -> tuple[list[int], list[float]]:
        """Return one symbol per text and its log-probability; a text that has ended continues with `end`."""
        assert self.log_probs is not None  # the prompt has been read
        symbols = choose_symbols(mask_symbols(self.log_probs, self.banned), self.sampling, self.generator)  # (rows,)
        self._symbols = torch.where(self.ended, self.end, symbols)
        scores = self.log_probs.gather(1, self._symbols.unsqueeze(1)).squeeze(1)
        self.ended = self.ended | (self._symbols == self.end)
        self.remaining -= 1
        return self._symbols.tolist(), scores.tolist()


@torch.no_grad()
def step_batch(network: Network, samples: Sequence[SampleBatch]) -> None:
    """Run the network on the next inputs of several prompts, in one batch."""
    sizes = [len(sample.next_input) for sample in samples]
    state = tuple(torch.cat(tensors) for tensors in zip(*(sample.state for sample in samples), strict=True))
    log_probs, state = network.step(torch.cat([sample.next_input for sample in samples]), state)
    rows = log_probs.split(sizes)
    states = zip(*(tensor.split(sizes) for tensor in state), strict=True) if state else [()] * len(sizes)
    for sample, sample_log_probs, sample_state in zip(samples, rows, states, strict=True):
        sample.update(sample_log_probs, tuple(sample_state))


def mask_symbols(log_probs: Tensor, banned: Sequence[int]) -> Tensor:
    """Return log-probabilities (rows, V) with these symbols at -inf."""
    return log_probs.index_fill(1, torch.tensor(banned, dtype=torch.int64, device=log_probs.device), -torch.inf)


def choose_symbols(log_probs: Tensor, sampling: Sampling, generator: torch.Generator) -> Tensor:
    """Return one symbol per row, (rows,), from log-probabilities (rows, V)."""
    if sampling.temperature < MIN_TEMPERATURE:
        return log_probs.argmax(dim=1)
    try:
        return torch.multinomial(sampling_probs(log_probs, sampling), 1, generator=generator).squeeze(1)
    except RuntimeError as error:
        raise ModelError(f"the model returns no probabilities ({error}); its weights are damaged") from error


def sampling_probs(log_probs: Tensor, sampling: Sampling) -> Tensor:
    """Return the probabilities (rows, V) of sampling; at temperature 0 the most probable symbol has 1."""
    if sampling.temperature < MIN_TEMPERATURE:
        return torch.zeros_like(log_probs).scatter(1, log_probs.argmax(dim=1, keepdim=True), 1.0)
    return filter_top(log_probs / min(sampling.temperature, MAX_TEMPERATURE), sampling).softmax(dim=1)


def filter_top(scores: Tensor, sampling: Sampling) -> Tensor:
    """Return the scores (rows, V) with -inf for everything that top_k and top_p exclude."""
    if sampling.top_k is not None and sampling.top_k < scores.shape[1]:
        least = scores.topk(sampling.top_k, dim=1).values[:, -1:]
        scores = scores.masked_fill(scores < least, -torch.inf)
    if sampling.top_p is not None and sampling.top_p < 1:
        ordered, order = scores.sort(dim=1, descending=True)
        p = ordered.softmax(dim=1)
        excluded = p.cumsum(dim=1) - p >= sampling.top_p  # the symbol that crosses p stays
        excluded[:, 0] = False  # and so does the best one if p is too small for a float32
        scores = scores.masked_fill(excluded.gather(1, order.argsort(dim=1)), -torch.inf)
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
    """Return the most probable texts after the prompt by beam search, best first; `watch` is called for each step.

    The prompt begins with </s>."""
    state = network.initial_state(1)
    for symbol in prompt:
        log_probs, state = network.step(torch.tensor([symbol], device=device), state)
    options = BeamOptions(beams, end, banned)
    return beam_search(network.step, log_probs, state, options, limits=torch.tensor([limit]), watch=watch)[0]
