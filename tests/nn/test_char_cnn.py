"""Convolutions over characters against their definition, and the columns that may be left out."""

import pytest
import torch

from relmo.nn.char_cnn import CharCNN, Maximum
from relmo.nn.kernels import cpu, encoder_cpu
from relmo.text.characters import END_OF_WORD, character_ids

FILTERS = [(1, 3), (2, 4), (4, 5)]
WORDS = ["a", "cat", "", "straightforward", "日本", "<S>"]


def cnn(activation: str = "relu", room: int = 20) -> CharCNN:
    torch.manual_seed(0)
    made = CharCNN(
        FILTERS,
        char_dim=3,
        characters=261,
        max_characters=room,
        end=END_OF_WORD,
        activation=activation,  # type: ignore[arg-type]
    )
    with torch.no_grad():
        for bias in made.biases:
            bias.normal_()
        for weight in made.weights:
            weight.normal_()
    return made.double()


def define(module: CharCNN, ids: torch.Tensor) -> torch.Tensor:
    """Every filter at every place where it fits, activation before the maximum, each word by itself."""
    rows = []
    for word in ids:
        x = module.embedding[word - 1]  # (C, E)
        features = []
        for weight, bias in zip(module.weights, module.biases, strict=True):
            width = weight.shape[2]
            places = [(x[t : t + width].T * weight).sum(dim=(1, 2)) + bias for t in range(len(word) - width + 1)]
            y = torch.stack(places)
            features.append((torch.relu(y) if module.activation == "relu" else torch.tanh(y)).amax(dim=0))
        rows.append(torch.cat(features))
    return torch.stack(rows)


@pytest.mark.parametrize("activation", ["relu", "tanh"])
@pytest.mark.parametrize("room", [20, 17, 5, 4])
def test_it_is_the_maximum_over_all_windows(activation: str, room: int) -> None:
    module = cnn(activation, room)
    ids = torch.from_numpy(character_ids(WORDS, room))
    torch.testing.assert_close(module(ids), define(module, ids))


def test_columns_of_padding_may_be_left_out_but_for_as_many_as_the_widest_filter() -> None:
    module = cnn(room=20)
    ids = torch.from_numpy(character_ids(["a", "cat", "doggy"], 20))
    used = 7  # the longest word and its two marks
    for columns in range(used + module.widest, 20):
        torch.testing.assert_close(module(ids[:, :columns]), module(ids))


def test_padding_inside_a_word_is_a_learned_character() -> None:
    module = cnn()
    ids = torch.from_numpy(character_ids(["cat"], 20))
    before = module(ids)
    with torch.no_grad():
        module.embedding[260] += 5
    assert not torch.allclose(module(ids), before)


@pytest.mark.parametrize("room", [20, 4])
def test_the_gradients_are_those_of_the_definition(room: int) -> None:
    module = cnn("tanh", room)
    ids = torch.from_numpy(character_ids(WORDS, room))
    parameters = list(module.parameters())
    weights = torch.randn(len(WORDS), module.output_size, dtype=torch.float64)
    ours = torch.autograd.grad((module(ids) * weights).sum(), parameters)
    theirs = torch.autograd.grad((define(module, ids) * weights).sum(), parameters)
    for one, other in zip(ours[1:], theirs[1:], strict=True):  # the embedding's depends on which of equals is taken
        torch.testing.assert_close(one, other)


def test_the_gradient_of_equal_maxima_goes_to_one_window_once() -> None:
    module = cnn("tanh")
    ids = torch.from_numpy(character_ids(["cat", "a"], 20))
    module(ids).sum().backward()
    full = module.embedding.grad.clone()  # type: ignore[union-attr]
    module.zero_grad()
    module(ids[:, :12]).sum().backward()
    torch.testing.assert_close(module.embedding.grad, full)


needs_library = pytest.mark.skipif(cpu.library() is None, reason="the kernels were not built: no C compiler here")


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets the compiled twin take few words too."""
    monkeypatch.setattr(encoder_cpu, "MIN_WORDS", 1)


@needs_library
@pytest.mark.usefixtures("few")
@pytest.mark.parametrize("activation", ["relu", "tanh"])
@pytest.mark.parametrize("room", [20, 17, 5, 4])
def test_the_compiled_twin_equals_the_products_forward_and_backward(activation: str, room: int) -> None:
    slow, fast = cnn(activation, room), cnn(activation, room).float()
    ids = torch.from_numpy(character_ids(WORDS, room))
    groups = [ids[:2, : min(room, 9)], ids[2:]] if room > 9 else [ids]
    assert encoder_cpu.supports_words(groups, fast.embedding)
    weights = torch.randn(len(WORDS), slow.output_size)
    y, expected = fast(*groups), slow(ids)
    torch.testing.assert_close(y, expected.float(), rtol=0, atol=1e-5)
    ours = torch.autograd.grad((y * weights).sum(), list(fast.parameters()))
    theirs = torch.autograd.grad((expected * weights).sum(), list(slow.parameters()))
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other.float(), rtol=0, atol=1e-4)


@needs_library
@pytest.mark.usefixtures("few")
def test_in_the_compiled_twin_a_word_does_not_depend_on_its_group() -> None:
    module = cnn().float()
    ids = torch.from_numpy(character_ids(["a", "cat", "doggy"], 20))
    together = module(ids)
    for word, columns in ((0, 7), (1, 9), (2, 20)):
        assert torch.equal(module(ids[word : word + 1, :columns])[0], together[word])


@pytest.mark.usefixtures("few")
@pytest.mark.parametrize("bad", [0, 262])
def test_ids_that_are_no_characters_are_an_error_in_both(bad: int) -> None:
    ids = torch.from_numpy(character_ids(["cat"], 20))
    ids[0, 1] = bad
    for module in (cnn(), cnn().float()):
        with pytest.raises(IndexError):
            module(ids)


@pytest.mark.gpu
@pytest.mark.parametrize("precision", [torch.float32, torch.bfloat16])
def test_on_a_gpu_a_maximums_gradient_is_shared_as_on_a_cpu(precision: torch.dtype) -> None:
    torch.manual_seed(0)
    x = torch.randint(4, (5, 7, 700)).to(precision)  # with equal elements
    dy = torch.randn(5, 700).to(precision)
    found = []
    for device in ("cpu", "cuda"):
        here = x.detach().to(device).requires_grad_()
        Maximum.apply(here).backward(dy.to(device))
        found.append(here.grad.cpu().float())  # type: ignore[union-attr]
    torch.testing.assert_close(*found, rtol=1e-2 if precision == torch.bfloat16 else 1e-6, atol=0)
