"""Peers of relmo's biLM: modules with the same weights and the same results, computed as others compute them.

`TextbookBiLM` is ELMo the way PyTorch tools of its time ran it. A batch is padded to its longest sentence; the
character convolutions run over every position, at all columns of a word; each layer and direction is a module that
loops over time, in each step one product with the input and one with the state, over the sentences that are still going
on; a step's output is written into the layer's output. In training each direction encodes its own tokens.

`TorchStacks` is torch's nn.LSTM with projections, cuDNN on a GPU: it neither clips nor adds skip connections, and so
computes less; the weights are the same.
"""

import copy
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn.functional import dropout, embedding, pad
from torch.nn.utils.rnn import PackedSequence

from relmo.networks.bilm import BiLMNetwork, BiWindow, CharacterEncoder
from relmo.networks.language_model import Loss
from relmo.nn.cells import State, clip
from relmo.nn.elmo_lstm import ElmoLayer, ElmoLSTM
from relmo.nn.kernels.layer import Clips
from relmo.text.characters import CHARACTERS

Pair = tuple[Tensor, Tensor]


def all_columns(window: BiWindow, columns: int) -> BiWindow:
    """The window with its words as one tensor of ids (U, columns), padding and all."""
    groups = [window.words] if isinstance(window.words, Tensor) else window.words
    return window._replace(words=torch.cat([pad(ids, (0, columns - ids.shape[1]), value=CHARACTERS) for ids in groups]))


class TextbookEncoder(nn.Module):
    """Characters to a token's vector: a convolution for each width over all columns; id 0 is no word."""

    def __init__(self, encoder: CharacterEncoder):
        super().__init__()
        cnn = encoder.cnn
        self.max_characters, self.activation = cnn.max_characters, cnn.activation
        nothing = torch.zeros_like(cnn.embedding[:1])
        self.embedding = nn.Parameter(torch.cat([nothing, cnn.embedding.detach()]))
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
        """(N, max_characters) -> (N, P)."""
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
        """x (B, T, I), the longest first, how many of them reach each step, and the state h (B, P), c (B, H); `reverse`
        reads from the end. -> (B, T, P), the state at each one's end."""
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
        """Both directions' inputs, each (B, T, I), the longest first. `mirrored`: the backward one comes reversed
        already. -> every layer's outputs; the state as `ElmoLSTM` has it."""
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
        """The state before the first step: zeros for as many sentences."""
        return tuple(like.new_zeros(len(like), 2, size) for sizes in self.state_sizes for size in sizes)


class TextbookBiLM(nn.Module):
    """The whole model, with the weights of a `BiLMNetwork` that reads characters."""

    def __init__(self, network: BiLMNetwork):
        super().__init__()
        assert isinstance(network.encoder, CharacterEncoder)
        self.encoder = TextbookEncoder(network.encoder)
        self.lstm = TextbookStacks(network.lstm)
        self.softmax = copy.deepcopy(network.softmax)
        self.dropout = network.dropout

    @torch.no_grad()
    def forward(self, ids: Tensor, lengths: Tensor) -> Tensor:
        """Character ids (B, T, C), zero where there is no word, and lengths (B,), boundaries included -> all layers
        (K, B, T, 2P), without gradients."""
        tokens = self.encoder(ids.flatten(0, 1)).unflatten(0, ids.shape[:2])  # (B, T, P)
        order = torch.argsort(lengths, descending=True, stable=True).to(ids.device)
        x = tokens[order]
        outputs, _ = self.lstm((x, x), sorted(lengths.tolist(), reverse=True))
        layers = torch.stack([torch.cat(pair, dim=-1) for pair in [(x, x), *outputs]])
        return layers[:, torch.argsort(order)]

    def loss(self, window: BiWindow, carry: State | None) -> Loss:
        """What `BiLMNetwork.loss` gives: every token of each direction is encoded, then the loops."""
        assert self.softmax is not None
        ids = all_columns(window, self.encoder.max_characters).words  # (U, C)
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
    """The LSTMs as torch's nn.LSTM: two stacks, the backward one over reversed sentences. Outputs of the top layers."""

    def __init__(self, lstm: ElmoLSTM):
        super().__init__()
        self.stacks = nn.ModuleList(self._stack(lstm, d) for d in range(2))

    @staticmethod
    def _stack(lstm: ElmoLSTM, direction: int) -> nn.LSTM:
        first = lstm.stack[0]
        projection = 0 if first.weight_hr is None else first.output_size
        stack = nn.LSTM(first.weight_ih.shape[2], first.hidden_size, len(lstm.stack), proj_size=projection)
        for depth, layer in enumerate(lstm.stack):
            own = {"weight_ih": layer.weight_ih, "weight_hh": layer.weight_hh, "bias_ih": layer.full_bias()}
            own |= {} if layer.weight_hr is None else {"weight_hr": layer.weight_hr}
            for name, tensor in own.items():
                getattr(stack, f"{name}_l{depth}").data.copy_(tensor[direction].detach())
            getattr(stack, f"bias_hh_l{depth}").data.zero_()
        return stack

    def forward(self, forward: Tensor | PackedSequence, backward: Tensor | PackedSequence) -> Pair:
        """Both directions' inputs (T, B, I), or such sentences packed, the backward one reversed -> (T, B, P) each, or
        (N, P) packed."""
        runs = [stack(x)[0] for stack, x in zip(self.stacks, (forward, backward), strict=True)]
        ys = [y.data if isinstance(y, PackedSequence) else y for y in runs]
        return ys[0], ys[1]
