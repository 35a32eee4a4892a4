"""Minimal pairs from files to table, with a network of our own and small files."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from experiments import agreement
from experiments.agreement import PHENOMENA, WordChoice, make_table, read_blimp, read_lakretz, read_linzen
from experiments.tables import Controls, PublishedTable
from relmo.errors import CorpusError, ModelError
from relmo.models.bilm import BiLM
from relmo.models.sequence_model import untrained
from relmo.networks.bilm import BiLMNetwork
from relmo.settings.bilm import BiLMModelSettings, BiLMSettings
from relmo.text.vocabulary import SentenceVocabulary
from support.published import find_row

TEXT = "the cat `` near the dogs '' is here . <eos>\nthe cats are here . <eos>\n"
GOLD = "7\tis\tare\t1\n2\tAre\tIs\t0\n"


def make_bilm() -> BiLM:
    torch.manual_seed(0)
    network = BiLMModelSettings(hidden=12, projection=6, filters=("1x4", "3x6"), char_dim=3, max_characters=12)
    words = ["the", ".", "is", "are", "cat", "cats", "here", "The", "sees", "see"]
    vocabulary = SentenceVocabulary([*SentenceVocabulary.specials, *words])
    return BiLM(BiLMNetwork(network, vocab_size=len(vocabulary)), BiLMSettings(model=network), vocabulary)


def blimp_line(good: str, bad: str, term: str) -> str:
    return json.dumps({"sentence_good": good, "sentence_bad": bad, "linguistics_term": term}) + "\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The data folder with a few pairs of each set."""
    root = tmp_path / "tasks" / "agreement"
    for name in ("blimp", "linzen", "lakretz"):
        (root / name).mkdir(parents=True)
    paradigms = {
        "animate": blimp_line("The cat sees.", "The rock sees.", "s-selection"),
        "passive": blimp_line("The cat is here.", "The cat are here.", "argument_structure"),
        "verbs": blimp_line("The cats are here.", "The cats is here.", "subject_verb_agreement") * 3,
    }
    for name, text in paradigms.items():
        (root / "blimp" / f"{name}.jsonl").write_text(text)
    (root / "linzen" / "subj_agr_filtered.text").write_text(TEXT)
    (root / "linzen" / "subj_agr_filtered.gold").write_text(GOLD)
    for name in agreement.LAKRETZ:
        (root / "lakretz" / f"{name}.txt").write_text(
            "The cat sees\tsingular\tcorrect\tid1\nThe cat see\tsingular\twrong\tid1\n"
            "The cats purr\tplural\tcorrect\tid2\nThe cats purrs\tplural\twrong\tid2\n"
        )
    return tmp_path


def run(folder: Path, model: BiLM, said: list[str] | None = None) -> PublishedTable:
    say: Callable[[str], None] = (said if said is not None else []).append
    return make_table(model, data=folder, controls=Controls(untrained(model, 1)), on_message=say)


def test_the_table_has_a_row_for_each_set_and_its_parts(folder: Path) -> None:
    said: list[str] = []
    table = run(folder, make_bilm(), said)
    names = [row.name.strip() for row in table.rows]
    assert names[:6] == [
        "BLiMP",
        "argument structure",
        "subject verb agreement",
        "Linzen",
        "0 attractors",
        "1 attractor",
    ]
    assert names[6:9] == ["Lakretz, by the subject's number", "simple, singular", "simple, plural"]
    assert len(names) == 7 + 2 * len(agreement.LAKRETZ)
    assert find_row(table, "BLiMP").ours["pairs"] == 5
    assert find_row(table, "  argument structure").ours["pairs"] == 2, "selection counts as argument structure"
    assert find_row(table, "BLiMP").published is not None
    assert find_row(table, "BLiMP").published["LSTM"] == 69.8
    assert find_row(table, "  preposition and name, plural").published == {"LSTM": 68.9}
    assert any("BLiMP 3 of 3" in line for line in said)
    assert json.loads(json.dumps(table.summary()))["name"] == "agreement"


def test_figures_are_those_of_the_pairs_own_probabilities(folder: Path) -> None:
    model = make_bilm()
    table = run(folder, model)
    good, bad = (each.sum(axis=1) for each in model.log_probs(["The cats are here.", "The cats is here."]))
    row = find_row(table, "  subject verb agreement").ours
    assert (row["forward"], row["backward"]) == (100.0 * (good[0] > bad[0]), 100.0 * (good[1] > bad[1]))
    assert row["sum"] == 100.0 * (good.sum() > bad.sum())
    words = ["the", "cat", '"', "near", "the", "dogs", '"']
    one, other = (model.log_probs([[*words, verb]])[0][0, 7] for verb in ("is", "are"))
    linzen = find_row(table, "  1 attractor").ours
    assert linzen["forward"] == 100.0 * (one > other)
    assert linzen[agreement.FREQUENCY] == 100.0, "'is' stands before 'are' in the vocabulary"


def test_the_context_of_a_verb_is_all_before_it_with_quotes_as_typed(folder: Path) -> None:
    first, second = read_linzen(folder / "tasks" / "agreement" / "linzen")
    assert first == (1, WordChoice(["the", "cat", '"', "near", "the", "dogs", '"'], "is", "are"))
    assert second == (0, WordChoice(["the", "cats"], "are", "is")), "in small letters like the text"


def test_unknown_forms_are_a_tie_and_are_left_out_of_known_words(folder: Path) -> None:
    row = find_row(run(folder, make_bilm()), "  simple, plural").ours
    assert row["forward"] == row[agreement.UNTRAINED] == row[agreement.FREQUENCY] == 50.0
    assert agreement.KNOWN not in row
    assert row[agreement.KNOWN_PAIRS] == 0
    table = run(folder, make_bilm())
    assert table.extra["blimp"]["paradigms"]["animate"]["forward"]["known_pairs"] == 0
    assert table.extra["blimp"]["overall"]["forward"]["known_pairs"] == 4


def test_the_untrained_network_reads_the_first_pairs_of_each_paradigm(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agreement, "UNTRAINED_PAIRS", 2)
    table = run(folder, make_bilm())
    assert table.extra["blimp"]["overall"]["untrained"]["pairs"] == 4
    assert table.extra["blimp"]["overall"]["untrained"]["known_pairs"] == 3


def test_a_model_that_predicts_no_words_is_told_how_to(folder: Path) -> None:
    network = BiLMModelSettings(hidden=12, projection=6, filters=("1x4",), char_dim=3)
    model = BiLM(BiLMNetwork(network, vocab_size=None), BiLMSettings(model=network))
    with pytest.raises(ModelError, match="no output layer"):
        run(folder, model)


def test_missing_data_is_one_line_that_says_where_it_was_looked_for(tmp_path: Path) -> None:
    with pytest.raises(CorpusError, match=r"tasks/agreement.*--data"):
        run(tmp_path, make_bilm())


@pytest.mark.parametrize(
    ("file", "text", "message"),
    [
        ("blimp/verbs.jsonl", "{}\n", r"verbs.jsonl:1: expected the texts sentence_good"),
        ("blimp/verbs.jsonl", "[\n", r"verbs.jsonl:1: is not a JSON object"),
        ("blimp/verbs.jsonl", "", r"verbs.jsonl: has no pairs"),
        ("linzen/subj_agr_filtered.gold", "6\tis\tare\t1\n2\tare\tis\t0\n", r"gold:1: expected the verb's place"),
        ("linzen/subj_agr_filtered.gold", "99\tis\tare\t1\n2\tare\tis\t0\n", r"gold:1: expected the verb's place"),
        ("linzen/subj_agr_filtered.gold", "7\tis\tare\t1\n", r"has 1 lines"),
        ("lakretz/simple.txt", "The cat sees\tsingular\tcorrect\tid1\n", "last word"),
        (
            "lakretz/simple.txt",
            "The cat sees\tsingular\tcorrect\tid1\nA cat see\tsingular\twrong\tid1\n",
            r"simple.txt:1: expected lines that differ",
        ),
    ],
)
def test_a_broken_file_is_one_clear_line(file: str, text: str, message: str, folder: Path) -> None:
    (folder / "tasks" / "agreement" / file).write_text(text)
    with pytest.raises(CorpusError, match=message):
        run(folder, make_bilm())


@pytest.mark.slow
def test_the_real_sets_have_the_sizes_and_phenomena_they_are_known_for(data: Callable[[str], Path]) -> None:
    paradigms = read_blimp(data("tasks/agreement/blimp"))
    assert {len(paradigm.pairs) for paradigm in paradigms} == {1000}
    assert len(paradigms) == 67
    assert {paradigm.phenomenon for paradigm in paradigms} == set(PHENOMENA)
    linzen = read_linzen(data("tasks/agreement/linzen"))
    assert [sum(count == n for count, _ in linzen) for n in range(5)] == [1972, 1957, 1943, 1287, 330]
    sizes = {name: len(read_lakretz(data(f"tasks/agreement/lakretz/{name}.txt"), name)) for name in agreement.LAKRETZ}
    assert sizes == {"simple": 600, "adv": 1800, "adv_adv": 1800, "adv_conjunction": 1200, "namepp": 1800}
