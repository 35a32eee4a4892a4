"""Taggers as a user holds them, and what they know of words."""

import re
from itertools import combinations, product
from pathlib import Path

import numpy as np
import pytest
import torch

import relmo
from relmo.errors import CorpusError, ModelError, SettingError
from relmo.models.vectors import WordVectors
from relmo.settings.sections import InputSettings
from relmo.store.references import Reference
from relmo.tasks.features import WordFeatures, WordVocabulary, count_words
from relmo.tasks.results import LabelledSpan
from relmo.tasks.tagger import TaggedText, Tagger
from relmo.tasks.task import Labels, batch_by_length, count_labels
from relmo.text.tokenize import Token
from relmo.text.vocabulary import Vocabulary
from support.tagging import conllu, settings, tiny_bilm, word_bilm

SENTENCES = [["The", "dog"], ["Rex", "sees", "the", "Cat", "."], ["a"] * 30, ["dog"]]


def features(**options: object) -> WordFeatures:
    made = InputSettings(**({"word_dim": 4, "char_dim": 4, "filters": ("2x4",)} | options))  # type: ignore[arg-type]
    return WordFeatures(made, count_words(SENTENCES, made))


def tagger(*, seed: int = 0, bilm: bool = False) -> Tagger:
    torch.manual_seed(seed)
    made = settings(input={"elmo": "x"} if bilm else {})
    known = WordFeatures(made.input, count_words(SENTENCES, made.input), bilm=tiny_bilm() if bilm else None)
    return Tagger(made, known, {"labels": Labels(["NOUN", "DET", "VERB"])}).initialize()


@pytest.mark.parametrize("decoder", ["softmax", "crf"])
def test_words_without_a_tag_count_neither_in_the_loss_nor_in_the_score(tmp_path: Path, decoder: str) -> None:
    path = conllu(tmp_path / "a.conllu", 40)
    lines = path.read_text().splitlines()
    some = [line.replace("\tNOUN\t", "\t_\t") if i % 3 == 0 else line for i, line in enumerate(lines)]
    none = [re.sub(r"(?m)^(\d+\t\S+\t_)\t[A-Z]+", r"\1\t_", line) for line in lines]
    path.write_text("\n".join([*some, *none]) + "\n")
    (tmp_path / "none.conllu").write_text("\n".join(none) + "\n")
    small = {"word_dim": 8, "char_dim": 0, "hidden": 8, "batch": 8, "lr": 0.02, "epochs": 6, "device": "cpu"}
    model = relmo.train("tagger", path, valid=path, decoder=decoder, progress=False, out=tmp_path / "m", **small)
    assert sorted(model.labels.symbols) == ["DET", "NOUN", "PUNCT", "VERB"]
    report = model.evaluate(path)
    assert report.count == sum(line.count("\t") == 9 and line.split("\t")[3] != "_" for line in some)
    assert report.score == 1.0
    assert "_" not in {label.label for label in report.labels}
    with pytest.raises(CorpusError, match="no word has a tag"):
        model.evaluate(tmp_path / "none.conllu")


@pytest.mark.parametrize("bilm", [False, True])
def test_predictions_do_not_depend_on_order_or_company(bilm: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    model = tagger(bilm=bilm)
    together = model.predict(SENTENCES)
    assert [found.words for found in together] == SENTENCES
    assert [len(found.tags) for found in together] == [2, 5, 30, 1]
    others = [model.predict(SENTENCES[::-1])[::-1], [model.predict([words])[0] for words in SENTENCES]]
    monkeypatch.setattr("relmo.tasks.task.PREFETCH", 1)
    for other in [*others, model.predict(SENTENCES)]:
        assert [found.tags for found in other] == [found.tags for found in together]
        for one, two in zip(other, together, strict=True):
            assert one.probabilities == pytest.approx(two.probabilities, abs=1e-5)


def test_the_probability_of_a_stretch_is_that_of_all_its_tags_together() -> None:
    """Over all sequences of tags, by the CRF's own loss."""
    torch.manual_seed(0)
    made = settings(model={"decoder": "crf"})
    known = WordFeatures(made.input, count_words(SENTENCES, made.input))
    model = Tagger(made, known, {"labels": Labels(["NOUN", "DET", "VERB"])}).initialize()
    torch.nn.init.normal_(model.network.body.crf.transitions)  # type: ignore[union-attr, arg-type]
    output = model.network(model.encode([model.make_example("a dog sees it")]).batch(np.arange(1)))
    (found,) = model.network.body.decode(output)  # type: ignore[operator]
    shares = {
        tags: model.network.body.loss(output, torch.tensor([tags])).neg().exp().item()  # type: ignore[operator]
        for tags in product(range(3), repeat=4)
    }
    for start, end in combinations(range(5), 2):
        wanted = sum(p for tags, p in shares.items() if list(tags[start:end]) == found.tags[start:end])
        assert found.joint(start, end) == pytest.approx(wanted, rel=1e-4)


def test_a_notebook_shows_names_or_else_tags_and_words_that_share_a_place_once() -> None:
    tokens = [Token("au", 0, 2), Token("<b>", 3, 6)]
    name = LabelledSpan("<b>", 3, 6, 1, 2, "LOC", 0.9)
    shown = TaggedText("au <b>", tokens, ["O", "B-LOC"], [0.5, 0.9], [name])._repr_html_()
    assert shown.count("<span") == 1
    assert "&lt;b&gt;<sub" in shown
    both = TaggedText("au", [Token("à", 0, 2), Token("le", 0, 2)], ["ADP", "DET"], [0.5, 0.9], [])
    assert both._repr_html_().count("<span") == 1
    assert "ADP DET</sub>" in both._repr_html_()
    assert repr(both) == "TaggedText(à/ADP le/DET)"


def test_text_is_split_and_lists_are_kept_and_nothing_gives_nothing() -> None:
    model = tagger()
    raw, kept, empty, blank = model.predict(["Don't!", ["Don't!"], [], " "])
    assert raw.words == ["Do", "n't", "!"]
    assert kept.words == ["Don't!"]
    assert empty == TaggedText("", [], [], [], [])
    assert blank == TaggedText(" ", [], [], [], [])
    assert raw.offsets == [(0, 2), (2, 5), (5, 6)]
    assert (kept.text, kept.offsets) == ("Don't!", [(0, 6)])
    assert model.predict([]) == []
    with pytest.raises(SettingError, match="put a single one into a list"):
        model.predict("The dog")


def test_saved_and_loaded_it_predicts_the_same(tmp_path: Path) -> None:
    model = tagger()
    model.save_pretrained(tmp_path / "m", results={"note": 1})
    again = relmo.load(tmp_path / "m", device="cpu")
    assert isinstance(again, Tagger)
    batch = model.encode([model.make_example(words) for words in SENTENCES]).batch(np.arange(4))
    assert torch.equal(model.network(batch).scores, again.network(batch).scores)
    assert (tmp_path / "m" / "labels.txt").read_text() == "NOUN\nDET\nVERB\n"
    again.save_pretrained(tmp_path / "n")
    assert (tmp_path / "n" / "model.safetensors").read_bytes() == (tmp_path / "m" / "model.safetensors").read_bytes()


@pytest.mark.parametrize("name", ["labels.txt", "vocabulary.txt", "bilm-vocabulary.txt"])
def test_lines_of_a_text_file_that_changed_places_are_noticed(name: str, tmp_path: Path) -> None:
    made = settings(input={"elmo": "x", "elmo_tune": True})
    reference = {"elmo": Reference("x", "y")}
    known = WordFeatures(made.input, count_words(SENTENCES, made.input), bilm=word_bilm(), references=reference)
    Tagger(made, known, {"labels": Labels(["NOUN", "DET"])}).initialize().save_pretrained(tmp_path / "m")
    relmo.load(tmp_path / "m", device="cpu")
    path = tmp_path / "m" / name
    *lines, one, other = path.read_text().splitlines()
    path.write_text("\n".join([*lines, other, one, ""]))
    with pytest.raises(ModelError, match=rf"{name}: .*checksum"):
        relmo.load(tmp_path / "m", device="cpu")


def test_a_file_is_scored_against_its_tags(tmp_path: Path) -> None:
    model, file = tagger(), conllu(tmp_path / "dev.conllu", 20)
    report = model.evaluate(file)
    examples = model.read(file, model.settings.text)
    tags = [tag for found in model.predict([example.words for example in examples]) for tag in found.tags]
    gold = [tag for example in examples for tag in example.tags]
    assert report.score == sum(a == b for a, b in zip(tags, gold, strict=True)) / len(gold)
    assert report.count == len(gold)
    assert model.evaluate([file, file]).count == 2 * len(gold)


def test_words_have_numbers_of_their_own_or_that_of_the_unknown_word() -> None:
    known = features()
    assert known.vocabulary.symbols[:2] == ["<unk>", "a"]
    batch = known.encode([["THE", "zebra", "dog"], ["dog"]]).batch(np.array([0, 1]))
    assert batch.words is not None
    index = known.vocabulary.index
    assert batch.words.tolist() == [[index["the"], 0, index["dog"]], [index["dog"], 0, 0]]
    cased = features(lowercase=False)
    assert "Cat" in cased.vocabulary.index
    assert features(min_count=2).vocabulary.symbols == ["<unk>", "a", "dog", "the"]


def test_static_vectors_are_looked_up_as_they_are_then_in_lower_case() -> None:
    vectors = WordVectors(Vocabulary(["<unk>", "</s>", "dog", "Cat", "gone"]), np.array([[0.0], [0], [1], [2], [0]]))
    made = InputSettings(vectors="x")
    known = WordFeatures(made, WordVocabulary(["<unk>"]), vectors=vectors)
    batch = known.encode([["dog", "DOG", "Cat", "cat", "gone", "zebra", "<unk>"]]).batch(np.array([0]))
    assert batch.rows is not None
    assert known.static[batch.rows[0].numpy()].ravel().tolist() == [1, 1, 2, 0, 0, 0, 0]


def test_characters_of_distinct_words_are_those_of_all_words() -> None:
    known = features()
    batch = known.encode(SENTENCES).batch(np.array([1, 0]))
    inputs = Tagger(settings(), known, {"labels": Labels(["NOUN", "DET"])}).initialize().network.inputs
    assert inputs.characters is not None
    from relmo.text.characters import character_ids

    vectors = inputs.characters(batch.spellings)[batch.spelled]
    for row, words in enumerate((SENTENCES[1], SENTENCES[0])):
        alone = inputs.characters(torch.from_numpy(character_ids(words, 50)))
        assert torch.allclose(vectors[row, : len(words)], alone, atol=1e-6)


def test_a_lower_cased_bilm_reads_lower_case(monkeypatch: pytest.MonkeyPatch) -> None:
    made = InputSettings(elmo="x")
    known = WordFeatures(made, WordVocabulary(["<unk>"]), bilm=tiny_bilm(lowercase=True))
    upper, lower = (known.encode([[word]]).batch(np.array([0])).layers for word in ("DOG", "dog"))
    assert upper is not None
    assert torch.equal(upper, lower)


def test_batches_of_about_one_length_hold_every_example_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("relmo.tasks.task.MAX_BATCH_TOKENS", 20)
    monkeypatch.setattr("relmo.tasks.task.MAX_BATCH_SIZE", 4)
    lengths = np.array([3, 1, 1, 1, 1, 1, 30, 9, 10, 0])
    batches = list(batch_by_length(lengths))
    assert sorted(np.concatenate(batches).tolist()) == list(range(10))
    for batch in batches:
        assert len(batch) == 1 or (len(batch) <= 4 and len(batch) * lengths[batch].max() <= 20)


def test_one_label_is_nothing_to_learn() -> None:
    with pytest.raises(CorpusError, match="1 label"):
        count_labels([["A"], ["A", "A"]])
    assert count_labels([["B", "A"], ["B"]]).symbols == ["B", "A"]
