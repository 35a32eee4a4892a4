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
    ("alice.txt --out m", "the kind of model comes first: relmo train lm alice.txt --out DIR; kinds: lm, bilm, "),
    ("--out m alice.txt", "the kind of model comes first: relmo train lm alice.txt --out DIR"),
    ("gru alice.txt --out m", "there is no kind 'gru'; did you mean 'lm', with the cell 'gru'? (lm, bilm, "),
    ("ner names.iob2 --out m", "there is no kind 'ner'; did you mean 'tagger'?"),
    ("clasifier good.tsv --out m", "there is no kind 'clasifier'; did you mean 'classifier'?"),
    ("lm alice.txt", "relmo train lm: --out is missing; relmo train lm --help shows an example"),
    ("lm --out m", "no corpus: give the files to train on; relmo train lm --help shows an example"),
    ("lm alice.txt --out ''", "--out is empty; name a folder"),
    ("lm alice.txt --out m --preset", "relmo train lm: --preset needs a value"),
    ("lm alice.txt --out m --epoch 3", "relmo train lm: there is no option --epoch; did you mean --epochs?"),
    ("lm alice.txt --out m --learning-rate 3", "there is no option --learning-rate; did you mean --lr?"),
    ("lm alice.txt --out m --elmo small", "there is no option --elmo; it is one of relmo train classifier, pairs, "),
    ("lm alice.txt --out m --sparkle", "there is no option --sparkle; relmo train lm --help lists all"),
    # values
    ("lm alice.txt --out m --epochs 0", "epochs must be above 0"),
    ("lm alice.txt --out m --epochs many", "--epochs must be a number, not 'many'"),
    ("lm alice.txt --out m --batch 0", "batch must be from 1 to 16,777,216, not 0"),
    ("lm alice.txt --out m --dropout 50", "dropout must be from 0 to below 1, not 50.0"),
    ("lm alice.txt --out m --cell transformer", "--cell must be one of lstm, gru, elman, ngram, feedforward, not"),
    ("lm alice.txt --out m --unit words", "--unit must be one of char, word, not 'words'; did you mean word?"),
    ("lm alice.txt --out m --device gpu", "--device must be one of auto, cpu, cuda, not 'gpu'; did you mean cuda?"),
    pytest.param("lm alice.txt --out m --device cuda", "torch sees no GPU here; use --device cpu", marks=NO_GPU),
    ("lm alice.txt --out m --preset wrd", "unknown preset 'wrd'; there are char, demo, word, word-awd; did you mean"),
    ("lm alice.txt --out m --preset ner", "ner is a preset of tagger"),
    ("skipgram alice.txt --out m --preset tiny", "skipgram has no presets; tiny is a preset of bilm"),
    ("lm alice.txt --out m --config settings.yaml", "settings.yaml: cannot read settings: "),
    ("lm alice.txt --out m --config settings.yaml", "settings are TOML: a line [train], below it lr = 0.001"),
    ("lm alice.txt --out m --set epochs=3", "--set takes section.key=value, for example train.lr=0.001"),
    ("lm --out m --resume", "--resume: there is no run in m; start it without --resume"),
    ("lm alice.txt --out short.txt", "--out short.txt: is a file; give a folder"),
    # files of text
    ("lm alcie.txt --out m", "alcie.txt: no such file; check the name (relative to "),
    ("lm alice.txt --valid dev.txt --out m", "dev.txt: no such file"),
    ("lm folder --out m", "folder: is a folder; give its files, for example folder/*.txt"),
    ("lm '' --out m", "the name of a file is empty; give the path of a file"),
    ("lm 'Down the rabbit hole she went' --out m", "is a text and not the path of a file; write it to a file"),
    ("lm empty.txt --out m", "empty.txt: the corpus is empty; give a file with text in it"),
    ("lm short.txt --out m", "fewer than one window of 32 lanes x 128 steps; give more text, or lower --batch"),
    ("lm thesis.docx --out m", "thesis.docx: is a zip archive, as Word and Excel files are; save it as plain text"),
    ("lm report.pdf --out m", "report.pdf: is a PDF; save it as plain text in UTF-8 (.txt), or a table as .csv"),
    ("lm letter.rtf --out m", "letter.rtf: is an RTF file; save it as plain text"),
    (
        "lm latin.txt --out m",
        "latin.txt:1: byte 0xe9 at column 7 is not UTF-8; save the file as UTF-8 (if it",
    ),
    ("lm utf16.txt --out m", "utf16.txt: is UTF-16; save it as UTF-8, for example with iconv"),
    ("lm reviews.csv --out m", "reviews.csv: is a table, and plain text is needed; write the column with the text"),
    # files of examples
    ("classifier no-labels.csv --out m", "no-labels.csv:1: expected the first line of a table, with the names of 2"),
    ("classifier no-names.csv --out m", "there is no column text or sentence or review; the columns (from the first"),
    ("classifier reviews.csv --out m", "are stars, comment; say which has the text with --text-column"),
    (
        "classifier reviews.csv --text-column comment --column starz --out m",
        "there is no column starz; the columns (from the first line) are stars, comment; say which column has",
    ),
    ("classifier swapped.csv --out m", "36 different labels among 36, such as 'The room 0 was cold.', so that none"),
    ("classifier one-class.tsv --out m", "the training examples have 1 label, 'good'; two are needed"),
    ("classifier two.tsv --out m", "too few examples, 2, to hold out a share of 0.1 for validation; give more, or"),
    ("classifier empty.txt --out m", "empty.txt: there is no text in it; give a file with examples"),
    ("classifier alice.txt --out m", "alice.txt:1: expected the first line of a table"),
    ("classifier words.conllu --out m", "words.conllu: is CoNLL-U, words with tags, which relmo train tagger learns"),
    ("classifier folder --out m", "folder: is a folder without folders; give a file, or a folder that has one for"),
    ("classifier good.tsv --valid dev.tsv --out m", "dev.tsv: no such file"),
    ("classifier - --out m", "a task cannot learn from standard input"),
    ("tagger alice.txt --out m", "alice.txt:2: has 9 columns, the lines before have 6; a line is a word and its tag"),
    ("tagger reviews.csv --out m", "is a table; a tagger learns from CoNLL-U, from lines of a word and its tag, or"),
    ("tagger names.iob2 --out m", "names.iob2:4: has 1 column, the lines before have 2; a line is a word and its tag"),
    ("tagger words.conllu --preset ner --out m", "'DET' is not a tag of a span such as B-PER"),
    ("tagger words.conllu --task column --out m", "task column needs a column: its name, such as --column xpos"),
    ("tagger words.conllu --column foo --out m", "CoNLL-U has no column 'foo'; it has id, form, lemma, upos, "),
    ("tagger one.conllu --out m", "too few examples, 1, to hold out"),
    ("pairs good.tsv --out m", "are label, text; name the two that have the texts with --text-columns"),
    ("pairs good.tsv --text-columns text --out m", "text_columns are two, not 1; a command has the flag twice"),
    ("pairs good.tsv --task score --out m", "task score needs network cosine, as --preset stsb has it"),
    ("reader lines.jsonl --out m", "there is no key passage or context; the keys are a, b; rename one of them"),
    ("seq2seq source.txt --out m", "found 'one two'; two files are given as one: SOURCE,TARGET"),
    # models that others are built on
    (
        "classifier good.tsv --elmo smal --out m",
        "smal: does not exist; did you mean small? These ship with relmo: small",
    ),
    ("classifier good.tsv --elmo alice.txt --out m", "alice.txt: is not a model folder (it has no config.json)"),
    ("classifier good.tsv --elmo words --out m", "words: is word vectors (skipgram); give a bidirectional language"),
    ("classifier good.tsv --vectors small --out m", "small: is a bidirectional language model (bilm); give word vec"),
    ("classifier good.tsv --vectors alice.txt --out m", "alice.txt:1: expected a word and its numbers"),
    ("classifier good.tsv --elmo-at both --out m", "elmo_at has no meaning for a run without elmo; leave it out"),
]


@pytest.mark.parametrize(("typed", "told"), TYPED)
def test_a_mistake_on_the_command_line_is_one_line_that_says_what_to_type(
    typed: str, told: str, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as end:
        main(["train", *shlex.split(typed)])
    output, errors = capfd.readouterr()
    assert (end.value.code, output) == (2, ""), errors
    assert errors.startswith("error: ")
    assert errors.count("\n") == 1, errors
    assert told in errors


CALLED: list[tuple[Callable[[], object], str]] = [
    (lambda: relmo.train("lstm", "alice.txt", out="m"), "there is no kind 'lstm'; did you mean 'lm', with the cell"),
    (lambda: relmo.train("LM", "alice.txt", out="m"), "there is no kind 'LM'; did you mean 'lm'?"),
    (lambda: relmo.train("lm", ["The cat sat on the mat .", "It slept ."], out="m"), "is a text and not the path"),
    (lambda: relmo.train("lm", [["The", "cat"], ["sat"]], out="m"), "a file is given by its path"),  # type: ignore[list-item]
    (lambda: relmo.train("classifier", [("good", "Nice.")], out="m"), "a file is given by its path"),  # type: ignore[list-item]
    (lambda: relmo.train("lm", "alice.txt", out=""), 'out is empty; name a folder, for example out="models/mine"'),
    (lambda: relmo.train("lm", "alice.txt", out="m", learning_rate=1), "not a setting of kind lm; did you mean 'lr'?"),
    (lambda: relmo.train("lm", "alice.txt", out="m", epochs="3"), "train.epochs must be a number, not '3'"),
    (lambda: relmo.train("lm", "alice.txt", out="m", device="gpu"), "must be one of auto, cpu, cuda, not 'gpu'; did"),
    (lambda: relmo.train("lm", "alice.txt", out="m", preset=3), "a preset is given by its name, not 3"),
    (lambda: relmo.train("lm", "alice.txt", out="m", config={"lr": 1}), "a file is given by its path, a str or a Path"),
    (lambda: relmo.train("lm", "alice.txt", out="m", valid=0.1), "a file is given by its path"),
    (lambda: relmo.train("classifier", "reviews.csv", out="m"), "say which has the text with text_column"),
]


@pytest.mark.parametrize(("call", "told"), CALLED)
def test_a_mistake_in_python_is_one_line_in_words_of_python(call: Callable[[], object], told: str) -> None:
    with pytest.raises(RelmoError) as error:
        call()
    assert told in str(error.value)
