"""The fixed-window neural language model that recurrent ones are compared with.

    Bengio et al. 2003, A neural probabilistic language model:   y = b + W x + U tanh(d + H x)

x is the concatenation of the embeddings of the last order - 1 symbols; W, the direct connections, and U share one
output layer over the features (x, tanh(d + H x)).
"""

import torch
from torch import Tensor, nn

from relmo.networks.language_model import NeuralLM, make_softmax
from relmo.nn.cells import State
from relmo.nn.dropout import SequenceDropout
from relmo.settings.lm import LanguageModelSettings


class FeedforwardLM(NeuralLM):
    """The state is the last order - 2 symbols read, (B, order - 2): with the next one they are the window."""

    def __init__(self, settings: LanguageModelSettings, *, vocab_size: int):
        super().__init__()
        self.vocab_size = vocab_size
        self.window = settings.order - 1
        size = settings.embedding or settings.hidden
        self.embedding = nn.Embedding(vocab_size + 1, size)  # the last row stands before the beginning of the text
        self.input_dropout = SequenceDropout(settings.input_dropout)
        self.hidden = nn.Linear(self.window * size, settings.hidden)
        self.dropout = SequenceDropout(settings.dropout if settings.output_dropout is None else settings.output_dropout)
        self.softmax = make_softmax(settings, self.window * size + settings.hidden, vocab_size)

    def initial_state(self, batch: int) -> State:
        return (torch.full((batch, self.window - 1), self.vocab_size, device=self.embedding.weight.device),)

    def features(self, inputs: Tensor, state: State) -> tuple[Tensor, State]:
        (past,) = state
        ids = torch.cat([past, inputs], dim=1)  # (B, window - 1 + T)
        x = self.input_dropout(self.embedding(ids)).unfold(1, self.window, 1)  # (B, T, size, window)
        x = x.transpose(2, 3).flatten(2)  # one embedding after the other
        hidden = self.dropout(torch.tanh(self.hidden(x)))
        return torch.cat([x, hidden], dim=-1), (ids[:, inputs.shape[1] :],)
