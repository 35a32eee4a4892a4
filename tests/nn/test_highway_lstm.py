"""The fast layers against their definition, torch's LSTM and numerical derivatives; padding, directions, dropout."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.functional import dropout

from relmo.nn.recurrence.highway_lstm import GATES, AlternatingLSTM, HighwayLSTMCell, run_layer

CLOSE = {"rtol": 1e-10, "atol": 1e-12}


class SteppedLSTM(AlternatingLSTM):
    """The definition: the cell, one step after the other, whose output is zero past the end."""

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        words = (torch.arange(x.shape[1]) < lengths.unsqueeze(1)).T.unsqueeze(2)  # (T, B, 1)
        x = x.transpose(0, 1) * words
        for depth, cell in enumerate(self.layers):
            ones = x.new_ones(x.shape[1], self.output_size)
            z = dropout(ones, self.dropout) if self.dropout else ones
            (h, c), outputs = cell.initial_state(x.shape[1]), list(x)
            for t in range(len(x))[:: -1 if depth % 2 else 1]:
                new_h, (_, new_c) = cell.step(cell.project_input(x[t]), (h, c))
                outputs[t] = h = new_h * words[t] * z
                c = torch.where(words[t], new_c, c)
            x = torch.stack(outputs)
        return x.transpose(0, 1)


def twins(layers: int, *, inputs: int = 3, hidden: int = 4, dropout: float = 0.0) -> tuple[AlternatingLSTM, ...]:
    """The same stack by its fast path and by its definition, with weights that hide nothing."""
    fast, slow = (
        make(input_size=inputs, hidden=hidden, layers=layers, dropout=dropout).double()
        for make in (AlternatingLSTM, SteppedLSTM)
    )
    for parameter in fast.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    slow.load_state_dict(fast.state_dict())
    return fast, slow


@given(
    layers=st.integers(1, 4),
    lengths=st.lists(st.integers(0, 6), min_size=1, max_size=4),
    seed=st.integers(0, 1000),
    dropout=st.sampled_from([0.0, 0.4]),
)
@settings(max_examples=12)
def test_the_fast_path_equals_the_definition_forward_and_backward(
    layers: int, lengths: list[int], seed: int, dropout: float
) -> None:
    torch.manual_seed(seed)
    stacks = twins(layers, dropout=dropout)
    steps = max(*lengths, 1)
    x = torch.randn(len(lengths), steps, 3, dtype=torch.float64, requires_grad=True)
    weights = torch.randn(len(lengths), steps, 4, dtype=torch.float64)
    results = []
    for stack in stacks:
        torch.manual_seed(seed)  # the same units are dropped
        y = stack(x, torch.tensor(lengths))
        results.append([y, *torch.autograd.grad((y * weights).sum(), [x, *stack.parameters()])])
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other, **CLOSE)


def test_the_backward_pass_equals_numerical_derivatives() -> None:
    torch.manual_seed(0)
    fast, _ = twins(2, hidden=2)
    x = torch.randn(2, 3, 3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda *given: fast(given[0], torch.tensor([3, 2])), (x, *fast.parameters()))


def with_gate(layer: HighwayLSTMCell, value: float) -> None:
    """Holds the highway's gate open (r = 1, all from the LSTM) or closed."""
    for weight, filler in ((layer.weight_ih, 0.0), (layer.weight_hh, 0.0), (layer.bias, value)):
        torch.nn.init.constant_(weight.data.split(layer.hidden_size)[GATES.index("r")], filler)


@pytest.mark.parametrize("reverse", [False, True])
def test_with_the_gate_open_it_is_an_lstm_and_closed_a_linear_layer(reverse: bool) -> None:
    torch.manual_seed(0)
    layer = HighwayLSTMCell(3, 4)
    x, words = torch.randn(5, 2, 3), torch.ones(5, 2, 1, dtype=torch.bool)
    with_gate(layer, 1e4)
    theirs = torch.nn.LSTM(3, 4)
    order = [GATES.index(gate) for gate in ("i", "f", "g", "o")]  # as torch stacks them
    for name, weight in (
        ("weight_ih_l0", layer.weight_ih),
        ("weight_hh_l0", layer.weight_hh),
        ("bias_ih_l0", layer.bias),
    ):
        blocks = weight.data.split(4)
        getattr(theirs, name).data.copy_(torch.cat([blocks[i] for i in order]))
    torch.nn.init.zeros_(theirs.bias_hh_l0)
    read = theirs(x.flip(0))[0].flip(0) if reverse else theirs(x)[0]
    torch.testing.assert_close(run_layer(layer, x, words, reverse=reverse), read)
    with_gate(layer, -1e4)
    torch.testing.assert_close(run_layer(layer, x, words, reverse=reverse), x @ layer.weight_xh.T)


def test_layers_read_in_turns() -> None:
    torch.manual_seed(0)
    one, two = (AlternatingLSTM(input_size=3, hidden=4, layers=layers) for layers in (1, 2))
    x = torch.randn(1, 6, 3)
    changed = x.clone()
    changed[0, 3] += 1

    def differs(stack: AlternatingLSTM) -> list[bool]:
        lengths = torch.tensor([6])
        return (stack(x, lengths) - stack(changed, lengths)).abs().sum(dim=2)[0].gt(0).tolist()

    assert differs(one) == [False, False, False, True, True, True]
    assert differs(two) == [True] * 6


def test_padding_and_batch_mates_change_nothing() -> None:
    torch.manual_seed(0)
    stack = AlternatingLSTM(input_size=3, hidden=4, layers=4)
    lengths = torch.tensor([5, 2, 0, 3])
    x = torch.randn(4, 7, 3)
    for row, length in enumerate(lengths.tolist()):
        x[row, length:] = torch.nan  # nothing may look there
    together = stack(x, lengths)
    for row, length in enumerate(lengths.tolist()):
        assert together[row, length:].eq(0).all()
        torch.testing.assert_close(
            together[row : row + 1, :length], stack(x[row : row + 1, :length], lengths[row : row + 1])
        )


def test_dropout_holds_one_mask_for_all_words_of_a_sentence_in_each_layer() -> None:
    torch.manual_seed(0)
    stack = AlternatingLSTM(input_size=3, hidden=50, layers=1, dropout=0.4)
    x, lengths = torch.randn(3, 8, 3), torch.tensor([8, 8, 8])
    dropped = stack(x, lengths).eq(0)  # (B, T, H)
    assert dropped.all(dim=1).eq(dropped.any(dim=1)).all()
    assert 0.2 < dropped.float().mean() < 0.6
    assert not dropped[0].equal(dropped[1])
    assert stack.eval()(x, lengths).ne(0).all()


def orthonormal(block: Tensor) -> bool:
    small = min(block.shape)
    product = block @ block.T if len(block) == small else block.T @ block
    return torch.allclose(product, torch.eye(small), atol=1e-5)


def test_every_block_begins_orthogonal_the_forget_gate_open_and_the_highway_s_almost_closed() -> None:
    layer = HighwayLSTMCell(6, 4)
    for weight in (layer.weight_ih, layer.weight_hh, layer.weight_xh):
        assert all(orthonormal(block) for block in weight.data.split(4))
    bias = dict(zip(GATES, layer.bias.data.split(4), strict=True))
    assert bias["f"].eq(1).all()
    assert bias["r"].eq(-2).all()
    assert layer.bias.abs().sum() == 4 + 8


def test_in_mixed_precision_the_recurrence_stays_in_float32() -> None:
    torch.manual_seed(0)
    stack = AlternatingLSTM(input_size=3, hidden=4, layers=3)
    x, lengths = torch.randn(2, 5, 3), torch.tensor([5, 3])
    exact = stack(x, lengths)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        rough = stack(x, lengths)
    assert rough.dtype == torch.float32
    torch.testing.assert_close(rough, exact, rtol=0.05, atol=0.02)
    rough.sum().backward()
