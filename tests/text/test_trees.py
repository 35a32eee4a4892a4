"""How deep words stand in their trees: equal to what is counted by hand, and to the spans of phrases."""

from pathlib import Path

import pytest

from relmo.errors import CorpusError
from relmo.text.readers.labelled import parse_tree
from relmo.text.trees import read_depths

#      the keys to the cabinet are old: heads by number, the root is 7
CONLLU = "\n".join(
    f"{n}\t{word}\t_\t_\t_\t_\t{head}\t_\t_\t_"
    for n, (word, head) in enumerate(
        [("the", 2), ("keys", 7), ("to", 5), ("the", 5), ("cabinet", 2), ("are", 7), ("old", 0)], start=1
    )
)


def test_dependencies_are_open_until_head_and_dependents_have_come(tmp_path: Path) -> None:
    (tmp_path / "a.conllu").write_text(CONLLU + "\n\n")
    (sentence,) = read_depths(tmp_path / "a.conllu")
    assert sentence.words == ["the", "keys", "to", "the", "cabinet", "are", "old"]
    assert sentence.values == [1, 1, 2, 3, 1, 2, 0]
    assert read_depths(tmp_path / "a.conllu", "depth")[0].values == [2, 1, 3, 3, 2, 1, 0]


def test_phrases_are_open_until_their_last_word(tmp_path: Path) -> None:
    (tmp_path / "trees.txt").write_text("(S (NP (DT The) (NN cat)) (VP sleeps))\n\n(2 (3 -LRB-) (1 x))\n")
    first, second = read_depths(tmp_path / "trees.txt")
    assert first == (["The", "cat", "sleeps"], [2, 1, 0])
    assert second == (["(", "x"], [1, 0])
    assert read_depths(tmp_path / "trees.txt", "depth")[0].values == [3, 3, 2]


def test_open_phrases_are_those_whose_spans_go_on(tmp_path: Path) -> None:
    text = "(4 (2 It) (4 (4 (2 's) (4 (3 (2 a) (4 (3 lovely) (2 film))) (2 .))) (1 !)))"
    words = list(parse_tree(text, "here")[-1].words)
    (tmp_path / "trees.txt").write_text(text)
    (found,) = read_depths(tmp_path / "trees.txt")
    spans = [range(7), range(1, 7), range(1, 6), range(2, 6), range(2, 5), range(3, 5)]  # of more than a word
    assert found.words == words
    assert found.values == [sum(n in span and n + 1 in span for span in spans) for n in range(7)]


def test_a_broken_tree_is_said_with_its_line(tmp_path: Path) -> None:
    (tmp_path / "trees.txt").write_text("(2 (3 a) (1 b))\n(2 (3 a)\n")
    with pytest.raises(CorpusError, match=r"trees\.txt:2: a bracket is not closed"):
        read_depths(tmp_path / "trees.txt")
    (tmp_path / "none.txt").write_text("\n")
    with pytest.raises(CorpusError, match="has no trees"):
        read_depths(tmp_path / "none.txt")
