"""A language model in Python: its methods agree, and its encoder starts a classifier (Dai & Le 2015)."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import relmo
from relmo.errors import ModelError
from relmo.models.lm import LanguageModel
from relmo.networks import make_language_model
from relmo.networks.ngram import NGramLM
from relmo.settings.lm import LanguageModelSettings, LMSettings, TextSettings
from relmo.text.encode import encode_text
from relmo.text.vocabulary import SPECIALS, Vocabulary

ALICE = (Path(relmo.__file__).parent / "data" / "alice.txt").read_text(encoding="utf-8")
LINE = "Alice was beginning to get very tired"

MODELS: dict[str, dict[str, Any]] = {
    "lstm": {"cell": "lstm", "layers": 2, "hidden": 12, "embedding": 8},
    "gru": {"cell": "gru", "hidden": 12, "dropout": 0.5, "weight_drop": 0.5},
    "elman": {"cell": "elman", "hidden": 12},
    "adaptive": {"cell": "lstm", "hidden": 16, "softmax": "adaptive", "cutoffs": (5, 20)},
    "mixture": {"cell": "lstm", "hidden": 16, "embedding": 8, "tied": True, "softmax": "mixture", "mixtures": 3},
    "sampled": {"cell": "lstm", "hidden": 12, "softmax": "sampled", "samples": 5},
    "feedforward": {"cell": "feedforward", "hidden": 12, "embedding": 8, "order": 4},
    "ngram": {"cell": "ngram", "order": 3},
}


def make(name: str, unit: str = "char", **text: Any) -> LanguageModel:
    """A model with random weights (n-gram: counted) over the symbols of the beginning of Alice."""
    chosen = LMSettings(text=TextSettings(unit=unit, **text), model=LanguageModelSettings(**MODELS[name]))
    symbols = encode_text(ALICE[:3000], chosen.text)
    vocabulary = Vocabulary([*SPECIALS, *sorted(set(symbols))])
    torch.manual_seed(4)
    network = make_language_model(chosen.model, len(vocabulary))
    if isinstance(network, NGramLM):
        network = NGramLM.fit(vocabulary.ids(symbols), vocab_size=len(vocabulary), order=chosen.model.order)
    return LanguageModel(network, vocabulary, chosen)


def log_prob(model: LanguageModel, ids: list[int]) -> float:
    """ln p of the ids from the beginning of a text, by hand, a step at a time."""
    total, state, before = 0.0, None, model.vocabulary.end
    for symbol in ids:
        scores, state = model.step(torch.tensor([before]), state)
        assert scores.logsumexp(dim=1).item() == pytest.approx(0, abs=1e-4)
        total += scores[0, symbol].item()
        before = symbol
    return total


@pytest.mark.parametrize("unit", ["char", "word"])
@pytest.mark.parametrize("name", MODELS)
def test_the_perplexity_of_a_text_is_that_of_its_steps_with_its_end(name: str, unit: str) -> None:
    model = make(name, unit)
    ids = model.encode(LINE).tolist()
    by_hand = log_prob(model, [*ids, model.vocabulary.end])
    assert model.perplexity(LINE) == pytest.approx(math.exp(-by_hand / (len(ids) + 1)), rel=1e-4)


@pytest.mark.parametrize("name", MODELS)
def test_the_score_of_a_generated_text_is_that_of_its_steps(name: str) -> None:
    model = make(name)
    *_, texts = model.stream(LINE, limit=12, samples=3, seed=2)
    assert len({text.text for text in texts}) > 1
    start = model.encode(LINE).tolist()
    for text in texts:
        added = model.encode(text.text).tolist()[len(start) :]
        whole = [*start, *added, *([model.vocabulary.end] if text.ended else [])]
        assert text.symbols == len(added)
        assert text.log_prob == pytest.approx(log_prob(model, whole) - log_prob(model, start), abs=1e-3)


@pytest.mark.parametrize("name", ["lstm", "ngram"])
def test_greedy_choice_takes_the_most_probable_symbol_of_each_step(name: str) -> None:
    model = make(name)
    made = model.generate("Alice", limit=10, temperature=0.0)
    ids, state = model.encode("Alice").tolist(), None
    for before in [model.vocabulary.end, *ids]:
        scores, state = model.step(torch.tensor([before]), state)
    for _ in range(10):
        scores[0, model.vocabulary.unknown] = -torch.inf
        best = int(scores.argmax())
        if best == model.vocabulary.end:
            break
        ids.append(best)
        scores, state = model.step(torch.tensor([best]), state)
    assert made == model.decode(ids)


def test_beams_give_texts_with_the_probability_of_their_steps() -> None:
    model = make("ngram")
    texts = model.search("Alice ", beams=6, limit=5)
    assert model.generate("Alice ", beams=6, limit=5) == texts[0].text
    start = model.encode("Alice ").tolist()
    for text in texts:
        whole = [*model.encode(text.text).tolist(), *([model.vocabulary.end] if text.ended else [])]
        assert text.log_prob == pytest.approx(log_prob(model, whole) - log_prob(model, start), abs=1e-4)


def test_steps_of_several_rows_are_those_of_each_row() -> None:
    model = make("lstm")
    rows = torch.tensor([[3, 4, 5], [9, 2, 7]])
    together, alone = None, [None, None]
    for column in rows.T:
        scores, together = model.step(column, together)
        for row in (0, 1):
            own, alone[row] = model.step(column[row : row + 1], alone[row])  # type: ignore[call-overload]
            assert torch.allclose(scores[row], own[0], atol=1e-5)


def test_characters_are_decoded_to_the_text_they_were_encoded_from() -> None:
    model = make("lstm")
    assert model.decode(model.encode(ALICE[:3000]).tolist()) == ALICE[:3000]
    assert model.encode("Ω").tolist() == [model.vocabulary.unknown]


@pytest.mark.parametrize("tokenizer", ["words", "whitespace"])
def test_words_are_put_together_as_they_are_written(tokenizer: str) -> None:
    model = make("lstm", "word", tokenizer=tokenizer)
    begin = ALICE.index("So she was considering")
    text = ALICE[begin : begin + 250]
    assert text.count("\n") > 2
    model.vocabulary = Vocabulary([*SPECIALS, *sorted(set(encode_text(text, model.settings.text)))])
    assert model.decode(model.encode(text).tolist()) == text


def test_generation_keeps_the_prompt_and_the_limit_and_repeats_with_its_seed() -> None:
    model = make("gru")
    one, same, other = (model.generate(LINE, limit=20, seed=seed) for seed in (1, 1, 2))
    assert one == same != other
    assert one.startswith(LINE)
    assert len(one) <= len(LINE) + 20
    *grown, last = model.stream(LINE, limit=20, seed=1)
    assert last[0].text == one
    assert [len(texts[0].text) for texts in grown] == list(range(len(LINE) + 1, len(LINE) + len(grown) + 1))


def test_a_file_is_scored_like_the_text_in_it(tmp_path: Path) -> None:
    model = make("lstm")
    (tmp_path / "a.txt").write_text(ALICE[:2000], encoding="utf-8")
    score = model.evaluate(str(tmp_path / "a.txt"))
    assert score.perplexity == pytest.approx(model.perplexity(ALICE[:2000]), rel=1e-5)
    assert (score.symbols, score.characters) == (2001, 2000)


def test_scoring_and_generating_leave_the_weights_and_the_mode_alone() -> None:
    model = make("gru")
    before = {name: tensor.clone() for name, tensor in model.network.state_dict().items()}
    first = model.perplexity(LINE)
    model.generate(LINE, limit=5)
    assert model.perplexity(LINE) == first  # no dropout, no state that stays
    assert not model.network.training
    assert all(torch.equal(before[name], tensor) for name, tensor in model.network.state_dict().items())


class Classifier(nn.Module):
    """An encoder of a language model, and one linear layer over its last state."""

    def __init__(self, model: LanguageModel):
        super().__init__()
        self.encoder = model.encoder
        self.output = nn.Linear(self.encoder.recurrent.output_size, 2)

    def forward(self, ids: Tensor, lengths: Tensor) -> Tensor:
        run = self.encoder(ids, lengths=lengths)
        return self.output(run.output[torch.arange(len(ids)), lengths - 1])


@pytest.mark.parametrize("name", ["lstm", "gru", "elman"])
def test_a_classifier_starts_from_the_weights_of_the_language_model_and_learns(name: str) -> None:
    model = make(name)
    classifier = Classifier(model)
    network = dict(model.network.named_parameters())
    for parameter_name, parameter in classifier.encoder.named_parameters():
        assert parameter is network[f"encoder.{parameter_name}"]
    lines = [line for line in ALICE[:3000].splitlines() if line][:16]
    texts = [model.encode(line) for line in lines]
    labels = torch.tensor([int("e" in line[:12]) for line in lines])
    lengths = torch.tensor([len(text) for text in texts])
    ids = torch.zeros(len(texts), int(lengths.max()), dtype=torch.int64)
    for row, text in zip(ids, texts, strict=True):
        row[: len(text)] = torch.from_numpy(text)
    optimizer = torch.optim.Adam(classifier.parameters(), lr=0.02)
    before = [parameter.detach().clone() for parameter in classifier.encoder.parameters()]
    losses = []
    for _ in range(30):
        loss = nn.functional.cross_entropy(classifier(ids, lengths), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.5 * losses[0]
    assert all(not torch.equal(a, b) for a, b in zip(before, classifier.encoder.parameters(), strict=True))


def test_a_row_of_a_padded_batch_has_the_features_it_has_alone() -> None:
    model = make("lstm")
    ids, lengths = torch.tensor([[5, 6, 7, 0], [8, 9, 10, 11]]), torch.tensor([3, 4])
    together = model.encoder(ids, lengths=lengths).output
    alone = model.encoder(ids[:1, :3]).output
    assert torch.allclose(together[0, :3], alone[0], atol=1e-6)


@pytest.mark.parametrize("name", ["ngram", "feedforward"])
def test_a_model_without_recurrent_layers_has_no_encoder_and_says_so(name: str) -> None:
    with pytest.raises(ModelError, match=f"a {name} model has no recurrent encoder"):
        _ = make(name).encoder
