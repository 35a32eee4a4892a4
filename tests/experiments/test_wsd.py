"""Word senses from files to table, with a network of our own and small files."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from experiments.senses import SenseSentence
from experiments.tables import Controls, PublishedTable
from experiments.wsd import BOTH, make_table, normalise
from relmo.errors import CorpusError
from relmo.models.bilm import BiLM
from relmo.models.sequence_model import untrained
from relmo.models.vectors import WordVectors
from relmo.networks.bilm import BiLMNetwork
from relmo.settings.bilm import BiLMModelSettings, BiLMSettings
from relmo.text.vocabulary import Vocabulary
from support.published import find_row

RIVER, MONEY, HERON = "bank%1:17:01::", "bank%1:14:00::", "heron%1:05:00::"
INDEX = f"{RIVER} 1 1 25\n{MONEY} 2 2 20\n{HERON} 3 1 0\n"


def make_bilm() -> BiLM:
    torch.manual_seed(0)
    network = BiLMModelSettings(hidden=12, projection=6, filters=("1x4", "3x6"), char_dim=3, max_characters=12)
    return BiLM(BiLMNetwork(network, vocab_size=None), BiLMSettings(model=network))


def semcor(words: str, key: str) -> str:
    tokens = words.split()
    return json.dumps({"tokens": tokens, "sense_keys": [[key] if token == "bank" else [] for token in tokens]}) + "\n"


def write_set(folder: Path, name: str, sentences: list[tuple[str, str, str]]) -> None:
    """Sentences with their target and its key."""
    body, gold = "", ""
    for number, (words, target, key) in enumerate(sentences):
        body += f'<sentence id="d0.s{number}">'
        for word in words.split():
            if word == target:
                body += f'<instance id="d0.s{number}.t0" lemma="{target}" pos="NOUN">{word}</instance>'
                gold += f"d0.s{number}.t0 {key}\n"
            else:
                body += f'<wf lemma="{word}" pos="X">{word}</wf>'
        body += "</sentence>\n"
    (folder / f"{name}.data.xml").write_text(f'<corpus><text id="d0">{body}</text></corpus>')
    (folder / f"{name}.gold.key.txt").write_text(gold)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """SemCor has two sentences; the first set asks for the same two and for a lemma that it does not have."""
    wsd = tmp_path / "tasks" / "wsd"
    wsd.mkdir(parents=True)
    (wsd / "wordnet-3.0.index.sense").write_text(INDEX)
    (wsd / "semcor3.jsonl").write_text(
        semcor("the muddy bank of a river", RIVER) + semcor("money in the bank", MONEY) * 2
    )
    asked = [("the muddy bank of a river .", "bank", RIVER), ("money in the bank .", "bank", MONEY)]
    write_set(wsd, "senseval2", [*asked, ("a heron", "heron", HERON)])
    write_set(wsd, "semeval2007", [("`` money in the bank .", "bank", MONEY)])
    return tmp_path


def run(folder: Path, vectors: WordVectors | None = None) -> PublishedTable:
    model = make_bilm()
    said: list[str] = []
    return make_table(model, data=folder, controls=Controls(untrained(model, 1), vectors), on_message=said.append)


def test_a_sentence_seen_in_training_is_answered_by_its_context_and_no_other_layer_can(folder: Path) -> None:
    table = run(folder)
    assert find_row(table, "WordNet first sense").ours["senseval2"] == pytest.approx(100 * 2 / 3)
    assert find_row(table, "SemCor most frequent sense").ours["senseval2"] == pytest.approx(100 * 2 / 3)
    for layer in ("layer 1", "layer 2", "around the word, layer 1", "around the word, layer 2"):
        assert find_row(table, layer).ours["senseval2"] == 100.0, "the very same sentences, the full stop included"
    assert find_row(table, "layer 0 (no context)").ours["senseval2"] == pytest.approx(100 * 2 / 3), (
        "a tie: the first sense"
    )


def test_the_table_has_the_published_figures_beside_ours_and_controls(folder: Path) -> None:
    matrix = np.ones((3, 2), dtype=np.float32)
    table = run(folder, WordVectors(Vocabulary(["<unk>", "</s>", "bank"]), matrix))
    names = [row.name for row in table.rows]
    assert names == [
        "WordNet first sense",
        "SemCor most frequent sense",
        "Raganato et al. 2017",
        "Iacobacci et al. 2016",
        "CoVe, first layer",
        "CoVe, second layer",
        "layer 0 (no context)",
        "layer 1",
        "layer 2",
        "average of layers",
        "around the word, layer 1",
        "around the word, layer 2",
        "skip-gram vectors",
        "untrained, layer 0 (no context)",
        "untrained, layer 1",
        "untrained, layer 2",
        "untrained, average of layers",
        "untrained, around the word, layer 1",
        "untrained, around the word, layer 2",
    ]
    published = {row.name: row.published["all five sets"] for row in table.rows if row.published}
    assert (published["layer 1"], published["layer 2"], published["WordNet first sense"]) == (67.4, 69.0, 65.9)
    assert find_row(table, "skip-gram vectors").ours["senseval2"] == pytest.approx(100 * 2 / 3)
    assert "VERB" not in find_row(table, "layer 1").ours, "no verb was asked for"
    assert json.loads(json.dumps(table.summary()))["name"] == "wsd"


def test_differences_come_with_intervals(folder: Path) -> None:
    table = run(folder)
    assert (table.extra["instances"], table.extra["seen"]) == (4, 3)
    value, low, high = table.extra["differences"]["layer 2 - layer 0"][BOTH]
    assert value == pytest.approx(
        find_row(table, "layer 2").ours[BOTH] - find_row(table, "layer 0 (no context)").ours[BOTH]
    )
    assert low <= value <= high
    assert set(table.extra["differences"]) == {
        "layer 2 - first sense",
        "layer 2 - layer 1",
        "layer 2 - layer 0",
        "around the word, layer 2 - layer 2",
        "around the word, layer 2 - first sense",
    }


def test_quotes_are_read_as_they_are_typed_and_a_lost_full_stop_is_put_back() -> None:
    sentence = SenseSentence(["``", "Yes", "''", "he"], [])
    assert normalise(sentence).words == ['"', "Yes", '"', "he"]
    assert normalise(sentence, end=".").words == ['"', "Yes", '"', "he", "."]


def test_the_model_reads_semcor_with_full_stops_and_the_sets_as_they_are(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, read = make_bilm(), []
    embed_stream = model.embed_stream
    monkeypatch.setattr(model, "embed_stream", lambda sentences: embed_stream(read.append(s) or s for s in sentences))
    make_table(model, data=folder, controls=Controls(untrained(model, 1)), on_message=lambda _: None)
    assert [" ".join(words) for words in read] == [
        "the muddy bank of a river .",
        *["money in the bank ."] * 2,
        "the muddy bank of a river .",
        "money in the bank .",
        "a heron",
        '" money in the bank .',
    ]


def test_missing_data_is_one_line_that_says_where_it_was_looked_for(folder: Path) -> None:
    (folder / "tasks" / "wsd" / "semeval2007.gold.key.txt").unlink()
    with pytest.raises(CorpusError, match=r"semeval2007\.gold\.key\.txt .*--data"):
        run(folder)
