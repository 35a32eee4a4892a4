"""The floor: the arithmetic that remains if nothing is computed twice, divided by the rate of matrix products
(`machine.py`). It is not a hard limit: convolutions are counted as products, though products of single characters can
be looked up; and the rate is that of torch's products, on the machine as it was.

Counted are floating-point operations of matrix products, two per multiplication and addition. E is the size of a
character embedding, F of all filters together, H of an LSTM, P of its output, K the number of layers.

    a distinct word   convolutions   2 E sum(width x count), for each window that a character is in, and one of padding
                      highways       2 x 2 F^2 each;    projection   2 F P
                      first gates    2 directions x 8 H P: the input product of layer 1 depends on the word alone
    a step            layer 1        2 directions x (8 H P + 2 H P): recurrent product and projection
                      layers 2 to K  2 directions x (16 H P + 2 H P): the input product too

Embedding takes as many steps as there are words, since the state after a boundary is a constant. Sentences with a
common prefix share forward steps, sentences with a common suffix backward steps. "Warm" leaves out the words' part.

Training does everything three times (forward; gradients of inputs; gradients of weights) for the distinct words of each
window. Only the convolutions are done once, as their gradient passes through one window per filter. Dropout makes
tokens differ, so the input product of layer 1 is per token. The sampled softmax: 3 x 2 directions x 2 P (samples + 1).
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from relmo.settings.bilm import BiLMModelSettings
from relmo.settings.fields import parse_filters


class Work(NamedTuple):
    """Floating-point operations per token, with a warm and a cold word cache."""

    warm: float
    cold: float


def word_flops(settings: BiLMModelSettings, lengths: Sequence[int]) -> tuple[float, float]:
    """Return the operations of the convolutions and of the rest of the encoder, for words of these lengths in bytes."""
    filters = parse_filters(settings.filters)
    size = sum(count for _, count in filters)
    window = 2 * settings.char_dim * sum(width * count for width, count in filters)
    windows = sum(min(length, settings.max_characters - 2) + 3 for length in lengths)  # both marks, one of padding
    projection = 2 * size * settings.projection if size != settings.projection else 0
    return float(windows * window), float(len(lengths) * (settings.highway * 4 * size**2 + projection))


def step_flops(settings: BiLMModelSettings) -> tuple[float, float]:
    """Return the operations of the LSTMs in one step, both directions: the first layer's input product, and the
    rest."""
    inputs = 2 * 8 * settings.hidden * settings.projection
    has_projection = settings.projection < settings.hidden
    projection = 2 * 2 * settings.hidden * settings.projection if has_projection else 0
    return inputs, settings.layers * (inputs + projection) + (settings.layers - 1) * inputs


def embedding_work(settings: BiLMModelSettings, sentences: Sequence[Sequence[str]]) -> Work:
    """Return the least work of embedding these sentences."""
    tokens = sum(map(len, sentences))
    words = {word for sentence in sentences for word in sentence}
    lengths = [len(word.encode("utf-8", "ignore")) for word in words]
    inputs, recurrent = step_flops(settings)
    backward = [sentence[::-1] for sentence in sentences]
    warm = recurrent * (distinct_prefixes(sentences) + distinct_prefixes(backward)) / 2
    cold = warm + sum(word_flops(settings, lengths)) + inputs * len(words)
    return Work(warm / tokens, cold / tokens)


def distinct_prefixes(sentences: Iterable[Sequence[str]]) -> int:
    """Return the number of distinct prefixes of the sentences, themselves included."""
    nodes: dict[tuple[int, str], int] = {}
    for sentence in sentences:
        node = 0
        for word in sentence:
            node = nodes.setdefault((node, word), len(nodes) + 1)
    return len(nodes)


def training_work(settings: BiLMModelSettings, lengths: Sequence[int], tokens: int, vocab_size: int) -> float:
    """Return the least work per token of a training step over `tokens` tokens with distinct words of these lengths."""
    convolutions, encoder = word_flops(settings, lengths)
    predicted = min(settings.samples, vocab_size) + 1 if settings.softmax == "sampled" else vocab_size
    softmax = 2 * 2 * settings.projection * predicted
    return (convolutions + 3 * encoder) / tokens + 3 * (sum(step_flops(settings)) + softmax)
