"""The compiled products against torch's, and a row's independence of all others."""

from collections.abc import Iterator

import pytest
import torch
from torch.nn.functional import linear

from relmo.nn.char_cnn import Highway
from relmo.nn.kernels import CACHE, cpu, encoder_cpu

pytestmark = pytest.mark.skipif(cpu.library() is None, reason="the kernels were not built: no C compiler here")


@pytest.fixture(params=list(cpu.libraries()) or [None], autouse=True)
def build(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Every build that this processor can run."""
    monkeypatch.setattr(cpu, "library", lambda: cpu.libraries()[request.param])
    with torch.no_grad():
        yield


@pytest.mark.slow
@pytest.mark.parametrize("rows", [0, 1, 5, 6, 7, 97, 200])
@pytest.mark.parametrize(("inputs", "outputs"), [(1, 1), (16, 64), (300, 70), (513, 17), (40, 129)])
def test_a_product_is_torchs(rows: int, inputs: int, outputs: int) -> None:
    torch.manual_seed(0)
    x, weight, bias = torch.randn(rows, inputs), torch.randn(outputs, inputs), torch.randn(outputs)
    expected = linear(x.double(), weight.double(), bias.double()).float()
    torch.testing.assert_close(encoder_cpu.linear(x, weight, bias), expected, atol=1e-4, rtol=0)


@pytest.mark.parametrize("size", [1, 5, 16, 32, 70, 300])
def test_a_highway_layer_is_its_definition(size: int) -> None:
    torch.manual_seed(0)
    fast = Highway(size)
    slow = Highway(size, fast=False).double()
    fast.carry.weight.normal_()
    fast.transform.bias.normal_()
    slow.load_state_dict(fast.state_dict())
    x = torch.randn(103, size)
    torch.testing.assert_close(fast(x), slow(x.double()).float(), atol=1e-4, rtol=0)
    x[5, 0] = torch.nan
    assert fast(x)[5].isnan().all()
    assert not fast(x)[4].isnan().any()


def test_a_row_does_not_depend_on_the_rows_beside_it_nor_on_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    layer, x, weight, bias = Highway(70), torch.randn(150, 70), torch.randn(33, 70), torch.randn(33)
    highway, product = layer(x), encoder_cpu.linear(x, weight, bias)
    monkeypatch.setitem(cpu.MIN_PARALLEL_WORK, 1, 0)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    for a, b in ((0, 150), (7, 8), (13, 120)):
        assert torch.equal(layer(x[a:b]), highway[a:b])
        assert torch.equal(encoder_cpu.linear(x[a:b], weight, bias), product[a:b])


def test_rows_go_where_they_are_told_and_nowhere_else() -> None:
    x, weight, bias = torch.randn(3, 20), torch.randn(70, 20), torch.randn(70)
    y = torch.zeros(6, 70)
    encoder_cpu.linear_into(y, torch.tensor([4, 0, 3]), x, encoder_cpu.pack(weight, bias))
    assert torch.equal(y[[4, 0, 3]], encoder_cpu.linear(x, weight, bias))
    assert not y[[1, 2, 5]].any()
    with pytest.raises(ValueError, match="6"):
        encoder_cpu.linear_into(y, torch.tensor([4, 0, 6]), x, encoder_cpu.pack(weight, bias))


@pytest.mark.parametrize("change", ["in place", "through data", "replaced"])
def test_a_changed_weight_is_packed_anew(change: str) -> None:
    torch.manual_seed(0)
    layer, x = torch.nn.Linear(20, 10), torch.randn(3, 20)
    encoder_cpu.linear(x, layer.weight, layer.bias)
    if change == "in place":
        layer.weight.add_(1)
    elif change == "through data":
        layer.weight.data.mul_(2)
    else:
        layer.weight = torch.nn.Parameter(torch.randn(10, 20))
    torch.testing.assert_close(encoder_cpu.linear(x, layer.weight, layer.bias), layer(x), atol=1e-5, rtol=0)


def test_what_was_packed_goes_with_its_weights() -> None:
    layer = torch.nn.Linear(20, 10)
    before = len(CACHE)
    encoder_cpu.linear(torch.randn(3, 20), layer.weight, layer.bias)
    encoder_cpu.linear(torch.randn(3, 20), layer.weight, layer.bias)
    assert len(CACHE) == before + 1
    del layer
    assert len(CACHE) == before


def test_it_is_taken_without_gradients_alone() -> None:
    x = torch.randn(3, 20)
    assert encoder_cpu.supports(x)
    assert not encoder_cpu.supports(x.double())
    with torch.autocast("cpu"):
        assert not encoder_cpu.supports(x)
    with torch.enable_grad():
        assert not encoder_cpu.supports(x)
