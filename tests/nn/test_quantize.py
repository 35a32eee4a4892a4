"""Products in fewer bits, as defined."""

import pytest
import torch

from relmo.nn.quantize import BLOCK, Factor, Precision, level_columns, quantize


def test_a_block_is_whole_numbers_up_to_127_times_its_scale() -> None:
    torch.manual_seed(0)
    x = torch.randn(3, 2 * BLOCK + 5) * torch.tensor([[1.0], [1e-3], [50.0]])
    values, scale = quantize(x)
    assert scale.shape == (3, 3)
    assert torch.equal(values, values.round())
    for block in range(3):
        part, whole = (tensor[:, BLOCK * block : BLOCK * (block + 1)] for tensor in (x, values))
        assert (whole.abs().amax(dim=1) == 127).all()
        error = (whole * scale[:, block : block + 1] - part).abs()
        assert (error <= 0.5001 * scale[:, block : block + 1]).all()


def test_zeros_stay_zeros_and_what_is_no_number_stays_in_its_block() -> None:
    x = torch.zeros(2, 2 * BLOCK)
    x[1, 3] = float("nan")
    values, scale = quantize(x)
    assert (values == 0).all()
    assert scale[0].tolist() == [0, 0]
    assert scale[1].isnan().tolist() == [True, False]


@pytest.mark.parametrize(("precision", "error"), [("float32", 1e-6), ("bfloat16", 6e-3), ("int8", 2e-2)])
def test_products_stay_near_the_exact_ones(precision: Precision, error: float) -> None:
    torch.manual_seed(0)
    x, weight = torch.randn(2, 7, 1300), torch.randn(2, 30, 1300)
    exact = x.double() @ weight.double().mT
    mine = Factor(weight, precision).product(x)
    assert mine.dtype == torch.float32
    assert (mine - exact).norm() / exact.norm() < error


def test_a_levelled_weight_has_columns_of_length_1_and_gives_the_same_products() -> None:
    torch.manual_seed(0)
    x, weight = torch.randn(2, 7, 1300), torch.randn(2, 30, 1300) * torch.rand(1300).exp()
    weight[1, :, 5] = 0
    even, length = level_columns(weight)
    assert length.shape == (2, 1300)
    assert (even[1, :, 5] == 0).all()
    assert length[1, 5] == 1
    even, length, x, weight = (tensor.double() for tensor in (even, length, x, weight))
    lengths = even.norm(dim=1)
    lengths[1, 5] = 1
    torch.testing.assert_close(lengths, torch.ones_like(length), rtol=0, atol=1e-6)
    torch.testing.assert_close((x * length[:, None]) @ even.mT, x @ weight.mT, rtol=0, atol=1e-4)


def test_in_int8_a_levelled_factor_rounds_what_each_number_adds_and_in_no_other_precision() -> None:
    torch.manual_seed(0)
    x, weight = torch.randn(2, 7, 600), torch.randn(2, 30, 600)
    x[:, :, 9] = 200  # a loud number, to which hardly anything listens
    weight[:, :, 9] *= 0.005
    exact = x.double() @ weight.double().mT

    def error(products: torch.Tensor) -> float:
        return float((products - exact).norm() / exact.norm())

    levelled = Factor(weight, "int8", levelled=True).product(x)
    length = weight.norm(dim=1, keepdim=True)
    by_hand = quantize(x * length).numbers() @ quantize(weight / length).numbers().mT
    torch.testing.assert_close(levelled, by_hand, rtol=0, atol=1e-2)
    assert error(levelled) < 0.02
    assert error(Factor(weight, "int8").product(x)) > 0.2
    for precision in ("float32", "bfloat16"):
        same = (Factor(weight, precision, levelled=levelled).product(x) for levelled in (False, True))
        assert torch.equal(*same)


def test_sums_of_a_blocks_whole_numbers_are_exact_in_float32() -> None:
    assert BLOCK * 127 * 127 < 1 << 24


def test_bfloat16_products_are_those_of_rounded_numbers() -> None:
    torch.manual_seed(0)
    x, weight = torch.randn(5, 40), torch.randn(9, 40)
    exact = x.bfloat16().double() @ weight.bfloat16().double().mT
    torch.testing.assert_close(Factor(weight, "bfloat16").product(x).double(), exact, rtol=0, atol=1e-5)
