"""CoNLL-U with all its columns."""

from pathlib import Path

import pytest

from relmo.errors import CorpusError
from relmo.text.trees import ConlluWord, read_conllu_sentences

FILE = """# text = Dogs don't.
1\tDogs\tdog\tNOUN\tNNS\tNumber=Plur|Case=Nom\t2\tnsubj\t_\t_
2-3\tdon't\t_\t_\t_\t_\t_\t_\t_\tSpaceAfter=No
2\tdo\tdo\tAUX\tVBP\t_\t0\troot\t_\t_
3\tn't\tnot\tPART\tRB\t_\t2\tadvmod\t_\tSpaceAfter=No
3.1\tbark\tbark\tVERB\t_\t_\t_\t_\t_\t_
4\t.\t.\tPUNCT\t.\t_\t_\tpunct\t_\t_

1\tYes\tyes\tINTJ\tUH\t_\t0\troot\t_\t_
"""


def test_every_column_of_every_word_is_read_without_ranges_and_empty_nodes(tmp_path: Path) -> None:
    (tmp_path / "a.conllu").write_text(FILE)
    first, second = read_conllu_sentences(tmp_path / "a.conllu")
    assert [word.form for word in first] == ["Dogs", "do", "n't", "."]
    assert first[0] == ConlluWord("Dogs", "dog", "NOUN", "NNS", "Number=Plur|Case=Nom", 2, "nsubj", "_", "_")
    assert [word.head for word in first] == [2, 0, 2, None]
    assert [word.upos for word in second] == ["INTJ"]


def test_a_value_is_that_of_a_column_or_of_a_part_of_one() -> None:
    word = ConlluWord("Dogs", "dog", "NOUN", "NNS", "Number=Plur|Case=Nom", None, "nsubj", "_", "SpaceAfter=No")
    asked = ("upos", "feats.Number", "feats.Case", "feats.Tense", "misc.SpaceAfter", "head")
    assert [word.value(name) for name in asked] == ["NOUN", "Plur", "Nom", "", "No", ""]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("1\tDogs\tdog", "10 columns"),
        ("1\tDogs\tdog\tNOUN\t_\t_\tx\t_\t_\t_", "HEAD, the seventh column, is 'x'"),
        ("1\t\tdog\tNOUN\t_\t_\t0\t_\t_\t_", "FORM"),
    ],
)
def test_a_broken_line_is_told_with_its_place(tmp_path: Path, line: str, message: str) -> None:
    (tmp_path / "a.conllu").write_text(f"# a\n{line}\n")
    with pytest.raises(CorpusError, match=rf"a\.conllu:2: .*{message}"):
        list(read_conllu_sentences(tmp_path / "a.conllu"))
