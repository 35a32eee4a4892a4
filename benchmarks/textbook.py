"""Peers of relmo's biLM: other implementations with the same weights and the same outputs.

`TextbookBiLM` is ELMo as PyTorch tools of its time ran it. A batch is padded to its longest sentence; the character
convolutions run over every position, at all columns of a word; each layer and direction is a module that loops over
time, in each step one product with the input and one with the state, over the sentences that have not ended; the output
of a step is written into the layer's output. In training each direction encodes its own tokens.

`TorchStacks` is torch's nn.LSTM with projections, cuDNN on a GPU, with the same weights: it neither clips nor adds skip
connections, and so computes less.
"""

import copy
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn.functional import dropout, embedding, pad
from torch.nn.utils.rnn import PackedSequence

from relmo.networks.bilm import BiLMNetwork, BiWindow, CharacterEncoder
from relmo.networks.language_model import Loss
from relmo.nn.kernels.lstm_step import Clips
from relmo.nn.recurrence import State
from relmo.nn.recurrence.elmo_lstm import ElmoLayer, ElmoLSTM
from relmo.nn.recurrence.lstm import clip
from relmo.text.characters import CHARACTERS

Pair = tuple[Tensor, Tensor]


def pad_columns(window: BiWindow, columns: int) -> BiWindow:
    """Return the window with its words as one padded tensor of ids (U, columns)."""
    groups = [window.words] if isinstance(window.words, Tensor) else window.words
    return window._replace(words=torch.cat([pad(ids, (0, columns - ids.shape[1]), value=CHARACTERS) for ids in groups]))


class TextbookEncoder(nn.Module):
    """Character encoder: a convolution for each width over all columns; id 0 is padding."""

    def __init__(self, encoder: CharacterEncoder):
        super().__init__()
        cnn = encoder.cnn
        self.max_characters, self.activation = cnn.max_characters, cnn.activation
        padding = torch.zeros_like(cnn.embedding[:1])
        self.embedding = nn.Parameter(torch.cat([padding, cnn.embedding.detach()]))
        self.convolutions = nn.ModuleList()
        for weight, bias in zip(cnn.weights, cnn.biases, strict=True):
            convolution = nn.Conv1d(weight.shape[1], weight.shape[0], weight.shape[2])
            convolution.weight.data.copy_(weight.detach())
            convolution.bias.data.copy_(bias.detach())  # type: ignore[union-attr]
            self.convolutions.append(convolution)
        self.highways = copy.deepcopy(encoder.highways)
        for highway in self.highways:
            highway.fast = False  # type: ignore[assignment]
        self.projection = copy.deepcopy(encoder.projection)

    def forward(self, ids: Tensor) -> Tensor:
        """Encode ids (N, max_characters) as vectors (N, P)."""
        x = embedding(ids, self.embedding).transpose(1, 2)  # (N, E, C)
        maxima = [convolution(x).max(dim=-1).values for convolution in self.convolutions]
        x = torch.cat(maxima, dim=-1)
        x = torch.relu(x) if self.activation == "relu" else torch.tanh(x)
        for highway in self.highways:
            x = highway(x)
        return x if self.projection is None else self.projection(x)


class TextbookLSTM(nn.Module):
    """One layer in one direction."""

    def __init__(self, layer: ElmoLayer, direction: int, clips: Clips):
        super().__init__()
        hidden, inputs, outputs = layer.hidden_size, layer.weight_ih.shape[2], layer.output_size
        self.clips = clips
        self.input_linear = nn.Linear(inputs, 4 * hidden, bias=False)
        self.state_linear = nn.Linear(outputs, 4 * hidden)
        self.projection = None if layer.weight_hr is None else nn.Linear(hidden, outputs, bias=False)
        self.input_linear.weight.data.copy_(layer.weight_ih[direction].detach())
        self.state_linear.weight.data.copy_(layer.weight_hh[direction].detach())
        self.state_linear.bias.data.copy_(layer.full_bias()[direction].detach())
        if self.projection is not None and layer.weight_hr is not None:
            self.projection.weight.data.copy_(layer.weight_hr[direction].detach())

    def forward(self, x: Tensor, sizes: Sequence[int], state: Pair, *, reverse: bool = False) -> tuple[Tensor, Pair]:
        """Return outputs (B, T, P) and final states of x (B, T, I), sorted by decreasing length.

        `sizes` is the number of sentences that reach each step; the state is h (B, P), c (B, H)."""
        h, c = state
        steps = x.shape[1]
        outputs = x.new_zeros(x.shape[0], steps, h.shape[1])
        for t in range(steps - 1, -1, -1) if reverse else range(steps):
            n = sizes[t]
            gates = self.input_linear(x[:n, t]) + self.state_linear(h[:n])
            i, f, g, o = gates.chunk(4, dim=1)
            cell = clip(torch.sigmoid(i) * torch.tanh(g) + torch.sigmoid(f) * c[:n], self.clips.cell)
            output = torch.sigmoid(o) * torch.tanh(cell)
            if self.projection is not None:
                output = clip(self.projection(output), self.clips.projection)
            outputs[:n, t] = output
            h, c = (new if n == len(old) else torch.cat([new, old[n:]]) for new, old in ((output, h), (cell, c)))
        return outputs, (h, c)


class TextbookStacks(nn.Module):
    """The LSTMs: two stacks of `TextbookLSTM` with skip connections."""

    def __init__(self, lstm: ElmoLSTM):
        super().__init__()
        self.skip_connections, self.dropout = lstm.skip_connections, lstm.dropout
        self.depth, self.state_sizes = len(lstm.stack), [(y.output_size, y.hidden_size) for y in lstm.stack]
        self.layers = nn.ModuleList(TextbookLSTM(layer, d, lstm.clips) for layer in lstm.stack for d in range(2))

    def forward(
        self, x: Pair, lengths: Sequence[int], state: State | None = None, *, mirrored: bool = False
    ) -> tuple[list[Pair], State]:
        """Return the outputs of every layer and the state as in `ElmoLSTM`, from the inputs of both directions (B, T,
        I), sorted by decreasing length. `mirrored`: the backward input is already reversed."""
        state = self.initial_state(x[0]) if state is None else state
        sizes = [sum(length > t for length in lengths) for t in range(x[0].shape[1])]
        outputs: list[Pair] = []
        finals: list[Tensor] = []
        for depth in range(self.depth):
            x = tuple(dropout(y, self.dropout, self.training) for y in x)  # type: ignore[assignment]
            hs, cs = state[2 * depth : 2 * depth + 2]
            runs = [
                self.layers[2 * depth + d](x[d], sizes, (hs[:, d], cs[:, d]), reverse=d == 1 and not mirrored)
                for d in range(2)
            ]
            ys = [y for y, _ in runs]
            x = (x[0] + ys[0], x[1] + ys[1]) if depth and self.skip_connections else (ys[0], ys[1])
            outputs.append(x)
            finals += [torch.stack(tensors, dim=1) for tensors in zip(*(final for _, final in runs), strict=True)]
        return outputs, tuple(finals)

    def initial_state(self, like: Tensor) -> State:
        """Return the zero state for a batch like this."""
        return tuple(like.new_zeros(len(like), 2, size) for sizes in self.state_sizes for size in sizes)


class TextbookBiLM(nn.Module):
    """Textbook biLM with the weights of a `BiLMNetwork` with character inputs."""

    def __init__(self, network: BiLMNetwork):
        super().__init__()
        assert isinstance(network.encoder, CharacterEncoder)
        assert isinstance(network.lstm, ElmoLSTM)
        self.encoder = TextbookEncoder(network.encoder)
        self.lstm = TextbookStacks(network.lstm)
        self.softmax = copy.deepcopy(network.softmax)
        self.dropout = network.dropout

    @torch.no_grad()
    def forward(self, ids: Tensor, lengths: Tensor) -> Tensor:
        """Return all layers (K, B, T, 2P), without gradients, of character ids (B, T, C), zero for padding, and lengths
        (B,) with boundaries."""
        tokens = self.encoder(ids.flatten(0, 1)).unflatten(0, ids.shape[:2])  # (B, T, P)
        order = torch.argsort(lengths, descending=True, stable=True).to(ids.device)
        x = tokens[order]
        outputs, _ = self.lstm((x, x), sorted(lengths.tolist(), reverse=True))
        layers = torch.stack([torch.cat(pair, dim=-1) for pair in [(x, x), *outputs]])
        return layers[:, torch.argsort(order)]

    def loss(self, window: BiWindow, carry: State | None) -> Loss:
        """Return the loss of `BiLMNetwork.loss`; every token of each direction is encoded, then the loops run."""
        assert self.softmax is not None
        ids = pad_columns(window, self.encoder.max_characters).words  # (U, C)
        steps, batch = window.inputs.shape[1:]
        x = tuple(
            self.encoder(ids[inputs.flatten()]).unflatten(0, (steps, batch)).transpose(0, 1) for inputs in window.inputs
        )
        outputs, state = self.lstm(x, [steps] * batch, carry, mirrored=True)
        top = torch.stack(outputs[-1]).transpose(1, 2)  # (2, T, B, P)
        top = dropout(top, self.dropout, self.training)
        mean = self.softmax.loss(top.flatten(0, 2), window.targets.flatten())
        return Loss(mean, window.targets[0].numel(), tuple(tensor.detach() for tensor in state))


class TorchStacks(nn.Module):
    """LSTMs as torch's nn.LSTM: two stacks, the backward one over reversed sentences; returns the top layers."""

    def __init__(self, lstm: ElmoLSTM):
        super().__init__()
        self.stacks = nn.ModuleList(self._stack(lstm, d) for d in range(2))

    @staticmethod
    def _stack(lstm: ElmoLSTM, direction: int) -> nn.LSTM:
        bottom = lstm.stack[0]
        projection = 0 if bottom.weight_hr is None else bottom.output_size
        stack = nn.LSTM(bottom.weight_ih.shape[2], bottom.hidden_size, len(lstm.stack), proj_size=projection)
        for depth, layer in enumerate(lstm.stack):
            weights = {"weight_ih": layer.weight_ih, "weight_hh": layer.weight_hh, "bias_ih": layer.full_bias()}
            weights |= {} if layer.weight_hr is None else {"weight_hr": layer.weight_hr}
            for name, tensor in weights.items():
                getattr(stack, f"{name}_l{depth}").data.copy_(tensor[direction].detach())
            getattr(stack, f"bias_hh_l{depth}").data.zero_()
        return stack

    def forward(self, forward: Tensor | PackedSequence, backward: Tensor | PackedSequence) -> Pair:
        """Return outputs (T, B, P) of both directions' inputs (T, B, I), the backward one reversed, or (N, P) of packed
        inputs."""
        runs = [stack(x)[0] for stack, x in zip(self.stacks, (forward, backward), strict=True)]
        ys = [y.data if isinstance(y, PackedSequence) else y for y in runs]
        return ys[0], ys[1]
