"""What is no text, no sentence and no count is told in one line by everything that takes some."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import relmo
from relmo.compat.allennlp import batch_to_ids
from relmo.errors import SettingError
from relmo.models.vectors import WordVectors
from relmo.settings.fields import check_integer, check_seed, check_sentences
from relmo.tasks.features import WordFeatures
from relmo.tasks.tagger import Tagger
from relmo.tasks.task import Labels
from relmo.text.vocabulary import Vocabulary
from support.small_models import bilm, language_model
from support.tagging import settings

NO_TEXTS = [None, 5, 2.5, b"ab", ["a"], object()]
NO_SENTENCES = [None, 5, "a sentence", [None], [5], [b"ab"], [{"a": 1}], [["a", 5]], [["a", ["b"]]], [["a"], None]]


def refused(function: Callable[..., Any], *arguments: Any, **options: Any) -> str:
    with pytest.raises(SettingError) as error:
        function(*arguments, **options)
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 300
    return str(error.value)


def tagger() -> Tagger:
    made, device = settings(), torch.device("cpu")
    return Tagger(made, WordFeatures.build(made.input, [["a"]], device), {"labels": Labels(["A", "B"])}).initialize()


def vectors() -> WordVectors:
    return WordVectors(Vocabulary([*Vocabulary.specials, "dog", "cat"]), np.eye(4, 3, dtype=np.float32))


@pytest.mark.parametrize("odd", NO_TEXTS, ids=lambda odd: type(odd).__name__)
def test_what_is_no_text_is_refused(odd: Any) -> None:
    model, words = language_model(), vectors()
    takers: list[Callable[..., Any]] = [model.encode, model.perplexity, model.generate, model.stream, model.search]
    takers += [bilm().tokens, tagger().tokens, lambda word: words.similarity("dog", word)]
    for taker in takers:
        assert "is a string, not " in refused(taker, odd)
    assert odd not in words


@pytest.mark.parametrize("odd", NO_SENTENCES, ids=repr)
def test_what_is_no_list_of_sentences_is_refused(odd: Any) -> None:
    model = bilm()
    for taker in (model.embed, model.sentence_vectors, model.log_probs, tagger().predict, relmo.Elmo(model).ids):
        refused(taker, odd)
    refused(lambda: list(model.embed_stream(odd)))
    refused(batch_to_ids, odd)


def test_sentences_are_numbered_and_checked_when_their_turn_comes() -> None:
    assert "sentence 2 is None" in refused(bilm().embed, ["a", None])
    assert refused(tagger().predict, 5).startswith("predict")
    assert "sentence 1 is 'a b' (str)" in refused(batch_to_ids, ["a b"])
    checked = check_sentences(iter(["a", ("b",), np.array(["c"]), 7]), "embed")
    assert [next(checked) for _ in range(2)] == ["a", ("b",)]
    assert next(checked).tolist() == ["c"]
    assert "sentence 4 is 7" in refused(next, checked)
    assert refused(relmo.load, 5).endswith("not 5")
    assert refused(vectors().most_similar, [["a"], None])


def test_texts_are_not_made_in_numbers_that_make_no_sense() -> None:
    model = language_model()
    for options, says in [
        ({"limit": 0}, "limit must be 1 or more, not 0"),
        ({"limit": 2.5}, "limit must be 1 or more, not 2.5"),
        ({"limit": 0, "beams": 2}, "limit must be 1 or more, not 0"),
        ({"samples": 0}, "samples must be 1 or more, not 0"),
        ({"samples": 10**8}, "samples is 100,000,000; this model generates at most"),
        ({"beams": 10**9}, "beams is 1,000,000,000; this model generates at most"),
        ({"seed": -1}, "seed must be from 0 to"),
        ({"seed": 1 << 64}, "seed must be from 0 to"),
        ({"temperature": float("nan")}, "temperature must be finite and at least 0, not nan"),
        ({"temperature": float("inf")}, "temperature must be finite and at least 0, not inf"),
        ({"top_k": 1.5}, "top_k must be 1 or more, not 1.5"),
    ]:
        makes = model.stream if "samples" in options else model.generate
        assert refused(makes, "a", **options).startswith(says)
    greedy = model.generate("a", limit=9, temperature=0)
    assert model.generate("a", limit=9, temperature=1e-320) == greedy
    assert model.generate("a", limit=9, top_p=1e-320) == greedy
    assert len(model.generate("a", limit=9, temperature=1e300)) > 1


def test_whole_numbers_within_bounds_pass_whatever_their_type() -> None:
    check_integer("n", np.int64(3), most=3)
    check_seed(0)
    for odd in (True, "3", None, 4, 0, np.float64(2)):
        assert refused(check_integer, "n", odd, most=3).startswith("n must be from 1 to 3, not ")
