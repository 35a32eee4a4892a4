"""The network of coreference against its equations, span by span and pair by pair."""

import random
from itertools import combinations

import pytest
import torch
from torch import Tensor

from relmo.networks.coref import (
    BUCKET_STARTS,
    NUM_ROWS,
    CorefNetwork,
    DocumentBatch,
    SpanLinks,
    SpanScorer,
    keep_spans,
)
from relmo.networks.inputs import Encoded
from relmo.settings.tasks import CorefModelSettings
from support.sentence_batches import make_network

LENGTHS, WIDTH, INPUT, HIDDEN = [5, 1, 7], 3, 4, 3


def bucket(distance: int) -> int:
    return sum(distance >= start for start in BUCKET_STARTS)


def network(**options: object) -> CorefNetwork:
    torch.manual_seed(0)
    sizes = {"hidden": HIDDEN, "max_width": WIDTH, "antecedents": 4, "mlp": (6, 5), "feature_dim": 2, "num_genres": 3}
    return make_network(CorefNetwork, CorefModelSettings, input_size=INPUT, **(sizes | options)).eval()


def document(lengths: list[int], steps: int, *, begin: int = 0, keep: int = 8) -> DocumentBatch:
    """A document whose sentences are padded to `steps` words."""
    places = [begin + row * steps + t for row, length in enumerate(lengths) for t in range(length)]
    left = [length - t for length in lengths for t in range(length)]
    speakers = [(t // 3) % 3 for t in range(len(places))]
    spans = sum(max(0, length - w) for length in lengths for w in range(WIDTH))
    numbers = (torch.tensor(each, dtype=torch.long) for each in (places, left, speakers, 2))
    return DocumentBatch(*numbers, spans, min(keep, spans))


def words(lengths: list[int], steps: int, seed: int = 1) -> Tensor:
    """Random words; what stands past a sentence's end is random too."""
    torch.manual_seed(seed)
    x = torch.zeros(len(lengths), steps, INPUT)
    for row, length in zip(x, lengths, strict=True):
        row[:length] = torch.randn(length, INPUT)
        row[length:] = 7.0
    return x


def read(net: CorefNetwork, lengths: list[int], steps: int) -> tuple[Tensor, Tensor, SpanLinks]:
    """Words, words in their sentences, and the links of a document."""
    x = words(lengths, steps)
    one = document(lengths, steps)
    links = net(Encoded(x, torch.tensor(lengths)), [one])[0]
    h = torch.cat([net.recurrent(row[None, :n]).output[0] for row, n in zip(x, lengths, strict=True)])
    return torch.cat([row[:n] for row, n in zip(x, lengths, strict=True)]), h, links


def vector(net: CorefNetwork, x: Tensor, h: Tensor, start: int, end: int) -> Tensor:
    """g of the span from `start` to `end`, both included, as the paper writes it."""
    weights = net.head(h[start : end + 1]).squeeze(1).softmax(dim=0)
    return torch.cat([h[start], h[end], weights @ x[start : end + 1], net.widths.weight[end - start]])


def score(scorer: SpanScorer, x: Tensor) -> Tensor:
    """FFNN(x), with all of its first layer at once."""
    return scorer.output(scorer(x)).squeeze(-1)


def test_spans_and_pairs_score_as_the_equations_say() -> None:
    net = network()
    x, h, links = read(net, LENGTHS, 9)
    sentence = [i for i, length in enumerate(LENGTHS) for _ in range(length)]
    for start in range(len(x)):
        for more in range(WIDTH):
            found = links.all_mentions[start, more]
            if start + more >= len(x) or sentence[start] != sentence[start + more]:
                assert found == -torch.inf
            else:
                assert torch.allclose(found, score(net.mention, vector(net, x, h, start, start + more)), atol=1e-6)
    spans = [(number // WIDTH, number // WIDTH + number % WIDTH) for number in links.kept.tolist()]
    assert spans == sorted(spans)
    assert len(spans) == 8
    speakers = document(LENGTHS, 9).speakers.tolist()
    for i, k in ((i, k) for i in range(8) for k in range(4)):
        j = i - 1 - k
        if j < 0:
            assert links.scores[i, k] == -torch.inf
            continue
        a, b = (vector(net, x, h, *spans[n]) for n in (i, j))
        one, other = (speakers[spans[n][0]] for n in (i, j))
        same = 0 if not one or not other else 1 if one == other else 2
        features = [net.distances.weight[bucket(k + 1)], net.speakers.weight[same]]
        pair = score(net.pair, torch.cat([a, b, a * b, *features, net.genres.weight[2]]))
        assert torch.allclose(links.scores[i, k], score(net.mention, a) + score(net.mention, b) + pair, atol=1e-5)


@pytest.mark.parametrize("rows", [1, 3, 100])
def test_pairs_do_not_depend_on_how_many_rows_are_scored_at_once(rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    net = network()
    *_, links = read(net, LENGTHS, 9)
    monkeypatch.setitem(NUM_ROWS, "cpu", rows)
    assert torch.allclose(read(net, LENGTHS, 9)[2].scores, links.scores, atol=1e-6)


def test_padding_and_other_documents_change_nothing() -> None:
    net = network()
    *_, alone = read(net, LENGTHS, 7)
    x = torch.full((5, 12, INPUT), 9.0)
    x[1:4, :7] = words(LENGTHS, 7)
    first, second = document([2], 12), document(LENGTHS, 12, begin=12)
    last = document([4], 12, begin=48)
    beside = net(Encoded(x, torch.tensor([2, *LENGTHS, 4])), [first, second, last])[1]
    assert torch.equal(beside.kept, alone.kept)
    assert torch.allclose(beside.scores, alone.scores, atol=1e-6)


def test_a_document_without_words_has_no_spans_and_one_span_has_no_antecedent() -> None:
    net = network()
    x = torch.zeros(2, 1, INPUT)
    empty, single = net(Encoded(x, torch.tensor([0, 1])), [document([], 1), document([1], 1, begin=1)])
    assert len(empty.kept) == 0
    assert single.kept.tolist() == [0]
    assert single.scores.tolist() == [[-torch.inf]]
    assert net.loss([single], [torch.ones(1, WIDTH, dtype=torch.long)]).item() == 0


def test_kept_spans_are_the_best_that_do_not_cross() -> None:
    generator = random.Random(0)
    for _ in range(100):
        order = generator.sample(range(60), 60)
        most = generator.randint(1, 40)
        slow: list[tuple[int, int]] = []
        for number in order:
            start, end = number // 4, number // 4 + number % 4
            cross = any(a < start <= b < end or start < a <= end < b for a, b in slow)
            if len(slow) < most and not cross:
                slow.append((start, end))
        kept = keep_spans(order, width=4, max_spans=most)
        assert [(n // 4, n // 4 + n % 4) for n in kept] == sorted(slow)
        assert not any(a < c <= b < d or c < a <= d < b for (a, b), (c, d) in combinations(slow, 2))


def test_distances_fall_into_the_published_buckets() -> None:
    distances = [1, 2, 3, 4, 5, 7, 8, 15, 16, 31, 32, 63, 64, 1000]
    assert list(map(bucket, distances)) == [0, 1, 2, 3, 4, 4, 5, 5, 6, 6, 7, 7, 8, 8]


def test_the_loss_is_the_probability_of_all_right_antecedents() -> None:
    inf = torch.inf
    scores = torch.tensor([[-inf, -inf], [1.0, -inf], [2.0, 3.0], [0.5, -1.0]])
    links = SpanLinks(torch.tensor([[0.0, -inf], [2.0, 1.0]]), torch.tensor([0, 1, 2, 3]), scores)
    clusters = torch.tensor([[5, 5], [5, 0]])  # spans 0, 1 and 2 are one thing, span 3 is nothing
    p = [torch.cat([torch.zeros(1), row]).softmax(dim=0) for row in scores]
    expected = -(p[0][0].log() + p[1][1].log() + (p[2][1] + p[2][2]).log() + p[3][0].log())
    assert torch.allclose(network(mention_weight=0.0).loss([links], [clusters]), expected / 4)
    sure = [torch.tensor(0.0).sigmoid(), torch.tensor(2.0).sigmoid(), 1 - torch.tensor(1.0).sigmoid()]
    expected = expected - 0.5 * torch.stack(sure).log().sum()  # not of what is no span
    assert torch.allclose(network(mention_weight=0.5).loss([links], [clusters]), expected / 4)


def test_gradients_reach_every_weight_and_are_finite() -> None:
    net = network(mention_weight=0.5, dropout=0.0, lexical_dropout=0.0).train()
    one = document(LENGTHS, 7)
    targets = torch.zeros(13, WIDTH, dtype=torch.long)
    links = net(Encoded(words(LENGTHS, 7), torch.tensor(LENGTHS)), [one])
    targets.flatten()[links[0].kept[::2]] = 1
    net.loss(links, [targets]).backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in net.parameters())
    assert all(p.grad.abs().sum() > 0 for p in net.parameters() if p.grad is not None)
