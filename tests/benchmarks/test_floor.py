"""The least work, counted by hand for a small model."""

from benchmarks.floor import distinct_prefixes, embedding_work, step_flops, training_work, word_flops
from relmo.config import build, read_preset
from relmo.settings.bilm import BiLMModelSettings, BiLMSettings

SMALL = BiLMModelSettings(
    char_dim=2, filters=("1x3", "2x5"), highway=1, hidden=6, projection=4, max_characters=10, samples=9
)
CONVOLUTION = 2 * 2 * (1 * 3 + 2 * 5)  # a window
ENCODER = 4 * 8 * 8 + 2 * 8 * 4  # highway and projection of a word
GATES = 2 * 8 * 6 * 4  # 4 gates of 6 from 4 numbers, both directions
PROJECTION = 2 * 2 * 6 * 4


def test_a_words_work_is_its_windows_and_its_encoder() -> None:
    assert word_flops(SMALL, [1, 100]) == ((1 + 3 + 8 + 3) * CONVOLUTION, 2 * ENCODER)  # the second is cut to 8 bytes


def test_a_steps_work_is_two_products_a_layer_and_its_projection() -> None:
    assert step_flops(SMALL) == (GATES, 3 * GATES + 2 * PROJECTION)
    square = BiLMModelSettings(hidden=4, projection=4, layers=1)
    assert step_flops(square) == (2 * 8 * 4 * 4, 2 * 8 * 4 * 4)


def test_sentences_that_begin_alike_share_their_steps() -> None:
    assert distinct_prefixes([["a", "b"], ["a", "c"], ["a", "b"], ["b"]]) == 4
    assert distinct_prefixes([]) == 0


def test_embedding_is_counted_by_distinct_words_prefixes_and_suffixes() -> None:
    work = embedding_work(SMALL, [["a", "bb"], ["a", "a"]])
    steps = (3 + 4) / 2  # a, a bb, a a; bb, bb a, a, a a
    assert work.warm == steps * (3 * GATES + 2 * PROJECTION) / 4
    words = (4 + 5) * CONVOLUTION + 2 * ENCODER + 2 * GATES
    assert work.cold == work.warm + words / 4


def test_training_is_three_times_the_forward_pass_but_for_the_convolutions() -> None:
    softmax = 2 * 2 * 4 * 10
    step = 4 * GATES + 2 * PROJECTION + softmax
    assert training_work(SMALL, [1, 1], 8, 100) == (8 * CONVOLUTION + 3 * 2 * ENCODER) / 8 + 3 * step


def test_the_original_geometry_makes_117_million_operations_a_step() -> None:
    settings = build(BiLMSettings, read_preset("original", "bilm")).model
    assert round(step_flops(settings)[1] / 1e5) == 1174
