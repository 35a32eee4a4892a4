"""What a newcomer does wrong with `relmo train` and `relmo.train`: one line says what is wrong, and what to type."""

import shlex
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import relmo
from relmo.cli import main
from relmo.errors import RelmoError

TEXTS = [("good", f"The room {i} was nice.") if i % 2 else ("bad", f"The room {i} was cold.") for i in range(40)]
WORDS = "# text = The dog\n1\tThe\tthe\tDET\tDT\t_\t2\tdet\t_\t_\n2\tdog\tdog\tNOUN\tNN\t_\t0\troot\t_\t_\n\n"
PLAIN = "Down the rabbit hole went Alice.\nShe never once considered how to get out again.\n" * 40


def table(header: str, between: str, *, swapped: bool = False) -> str:
    rows = [between.join((text, label) if swapped else (label, text)) for label, text in TEXTS]
    return "\n".join([header] * bool(header) + rows) + "\n"


FILES: dict[str, str | bytes] = {
    "alice.txt": PLAIN,
    "short.txt": "One sentence only.\n",
    "empty.txt": "",
    "latin.txt": "Le café était fermé.\n".encode("latin-1") * 40,
    "utf16.txt": PLAIN.encode("utf-16"),
    "report.pdf": b"%PDF-1.7\n%\xe2\xe3\xcf\xd3\n1 0 obj\n",
    "letter.rtf": "{\\rtf1\\ansi Dear reader}",
    "good.tsv": table("label\ttext", "\t"),
    "reviews.csv": table("stars,comment", ","),
    "no-names.csv": table("", ","),
    "no-labels.csv": "text\n" + "".join(f"{text}\n" for _, text in TEXTS),
    "swapped.csv": table("label,text", ",", swapped=True),
    "one-class.tsv": table("label\ttext", "\t").replace("bad\t", "good\t"),
    "two.tsv": "label\ttext\ngood\tnice\nbad\tcold\n",
    "words.conllu": WORDS * 20,
    "one.conllu": WORDS,
    "names.iob2": "Anna B-PER\nlives O\n\nBob\n\n" * 20,
    "lines.jsonl": '{"a": "x", "b": "y"}\n' * 20,
    "source.txt": "one two\n" * 20,
    "settings.yaml": "train:\n  lr: 3\n",
    "folder/one.txt": PLAIN,
}


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A folder of files as newcomers have them; a mistake leaves nothing beside them."""
    for name, content in FILES.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(content.encode() if isinstance(content, str) else content)
    with zipfile.ZipFile(tmp_path / "thesis.docx", "w") as archive:
        archive.writestr("word/document.xml", "<w:document/>")
    monkeypatch.chdir(tmp_path)
    before = {path.relative_to(tmp_path) for path in tmp_path.rglob("*")}
    yield
    assert {path.relative_to(tmp_path) for path in tmp_path.rglob("*")} == before


NO_GPU = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")

TYPED: list[Any] = [
    # the command
    ("alice.txt --out m", "relmo train lm alice.txt --out DIR"),
    ("--out m alice.txt", "relmo train lm alice.txt --out DIR"),
    ("gru alice.txt --out m", "'lm'"),
    ("ner names.iob2 --out m", "'tagger'"),
    ("clasifier good.tsv --out m", "'classifier'"),
    ("lm alice.txt", "--out is missing"),
    ("lm --out m", "--help"),
    ("lm alice.txt --out ''", "--out is empty"),
    ("lm alice.txt --out m --preset", "--preset needs a value"),
    ("lm alice.txt --out m --epoch 3", "--epochs"),
    ("lm alice.txt --out m --learning-rate 3", "--lr"),
    ("lm alice.txt --out m --elmo small", "relmo train classifier, pairs, "),
    ("lm alice.txt --out m --sparkle", "--help"),
    # values
    ("lm alice.txt --out m --epochs 0", "epochs must be above 0"),
    ("lm alice.txt --out m --epochs many", "a number, not 'many'"),
    ("lm alice.txt --out m --batch 0", "from 1 to 16,777,216"),
    ("lm alice.txt --out m --dropout 50", "from 0 to below 1"),
    ("lm alice.txt --out m --cell transformer", "lstm, gru, elman"),
    ("lm alice.txt --out m --unit words", "did you mean word?"),
    ("lm alice.txt --out m --device gpu", "did you mean cuda?"),
    pytest.param("lm alice.txt --out m --device cuda", "--device cpu", marks=NO_GPU),
    ("lm alice.txt --out m --preset wrd", "char, demo, word, word-awd"),
    ("lm alice.txt --out m --preset ner", "tagger"),
    ("skipgram alice.txt --out m --preset tiny", "bilm"),
    ("lm alice.txt --out m --config settings.yaml", "TOML"),
    ("lm alice.txt --out m --set epochs=3", "section.key=value"),
    ("lm --out m --resume", "without --resume"),
    ("lm alice.txt --out short.txt", "short.txt: is a file"),
    # files of text
    ("lm alcie.txt --out m", "alcie.txt: no such file"),
    ("lm alice.txt --valid dev.txt --out m", "dev.txt: no such file"),
    ("lm folder --out m", "folder/*.txt"),
    ("lm '' --out m", "empty"),
    ("lm 'Down the rabbit hole she went' --out m", "is a text"),
    ("lm empty.txt --out m", "empty.txt: the corpus is empty"),
    ("lm short.txt --out m", "--batch"),
    ("lm thesis.docx --out m", "zip archive"),
    ("lm report.pdf --out m", "PDF"),
    ("lm letter.rtf --out m", "RTF"),
    ("lm latin.txt --out m", "latin.txt:1: byte 0xe9 at column 7"),
    ("lm utf16.txt --out m", "UTF-16"),
    ("lm reviews.csv --out m", "reviews.csv: is a table"),
    # files of examples
    ("classifier no-labels.csv --out m", "no-labels.csv:1"),
    ("classifier no-names.csv --out m", "text or sentence or review"),
    ("classifier reviews.csv --out m", "--text-column"),
    ("classifier reviews.csv --text-column comment --column starz --out m", "stars, comment"),
    ("classifier swapped.csv --out m", "36 different labels"),
    ("classifier one-class.tsv --out m", "1 label, 'good'"),
    ("classifier two.tsv --out m", "--valid"),
    ("classifier empty.txt --out m", "empty.txt: contains no text"),
    ("classifier alice.txt --out m", "alice.txt:1"),
    ("classifier words.conllu --out m", "CoNLL-U"),
    ("classifier folder --out m", "folder: contains no folders"),
    ("classifier good.tsv --valid dev.tsv --out m", "dev.tsv: no such file"),
    ("classifier - --out m", "standard input"),
    ("tagger alice.txt --out m", "alice.txt:2: has 9 columns"),
    ("tagger reviews.csv --out m", "CoNLL-U"),
    ("tagger names.iob2 --out m", "names.iob2:4: has 1 column"),
    ("tagger words.conllu --preset ner --out m", "B-PER"),
    ("tagger words.conllu --task column --out m", "--column xpos"),
    ("tagger words.conllu --column foo --out m", "id, form, lemma, upos, "),
    ("tagger one.conllu --out m", "--valid"),
    ("pairs good.tsv --out m", "--text-columns"),
    ("pairs good.tsv --text-columns text --out m", "text_columns"),
    ("pairs good.tsv --task score --out m", "network cosine"),
    ("reader lines.jsonl --out m", "passage or context"),
    ("seq2seq source.txt --out m", "'one two'"),
    # models that others are built on
    ("classifier good.tsv --elmo smal --out m", "did you mean small?"),
    ("classifier good.tsv --elmo alice.txt --out m", "is not a model folder"),
    ("classifier good.tsv --elmo words --out m", "(skipgram)"),
    ("classifier good.tsv --vectors small --out m", "(bilm)"),
    ("classifier good.tsv --vectors alice.txt --out m", "alice.txt:1"),
    ("classifier good.tsv --elmo-at both --out m", "elmo_at"),
]


@pytest.mark.parametrize(("typed", "token"), TYPED)
def test_a_mistake_on_the_command_line_is_one_line_that_says_what_to_type(
    typed: str, token: str, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as end:
        main(["train", *shlex.split(typed)])
    output, errors = capfd.readouterr()
    assert (end.value.code, output) == (2, ""), errors
    assert errors.startswith("error: ")
    assert errors.count("\n") == 1, errors
    assert token in errors


CALLED: list[tuple[Callable[[], object], str]] = [
    (lambda: relmo.train("lstm", "alice.txt", out="m"), "'lm'"),
    (lambda: relmo.train("LM", "alice.txt", out="m"), "'lm'"),
    (lambda: relmo.train("lm", ["The cat sat on the mat .", "It slept ."], out="m"), "is a text"),
    (lambda: relmo.train("lm", [["The", "cat"], ["sat"]], out="m"), "path"),  # type: ignore[list-item]
    (lambda: relmo.train("classifier", [("good", "Nice.")], out="m"), "path"),  # type: ignore[list-item]
    (lambda: relmo.train("lm", "alice.txt", out=""), "out is empty"),
    (lambda: relmo.train("lm", "alice.txt", out="m", learning_rate=1), "'lr'"),
    (lambda: relmo.train("lm", "alice.txt", out="m", epochs="3"), "train.epochs must be a number"),
    (lambda: relmo.train("lm", "alice.txt", out="m", device="gpu"), "auto, cpu, cuda"),
    (lambda: relmo.train("lm", "alice.txt", out="m", preset=3), "preset"),
    (lambda: relmo.train("lm", "alice.txt", out="m", config={"lr": 1}), "path"),
    (lambda: relmo.train("lm", "alice.txt", out="m", valid=0.1), "path"),
    (lambda: relmo.train("classifier", "reviews.csv", out="m"), "with text_column"),
]


@pytest.mark.parametrize(("call", "token"), CALLED)
def test_a_mistake_in_python_is_one_line_in_words_of_python(call: Callable[[], object], token: str) -> None:
    with pytest.raises(RelmoError) as error:
        call()
    assert token in str(error.value)
