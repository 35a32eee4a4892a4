"""What is fuzzed, everything but models: texts, files of tasks, settings, runs and caches that are gone on with."""

import gzip
import json
import lzma
import os
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import relmo
from experiments.senses import SenseIndex, read_framework, read_semcor
from relmo.analysis.meaning.occurrences import OccurrenceIndex, build_index
from relmo.config import build, check_keys, read_toml, to_toml
from relmo.disk.files import sha256
from relmo.embedding.elmo_cache import ElmoCache
from relmo.embedding.files import embed_file
from relmo.explorer.extras import Extras
from relmo.models.vectors import WordVectors
from relmo.runs.folder import read_run
from relmo.runs.progress import Reporter
from relmo.runs.run import METRICS, read_metrics
from relmo.runs.settings import settings_layers
from relmo.runs.train_bilm import train_bilm
from relmo.runs.train_lm import train_lm
from relmo.runs.train_skipgram import train_skipgram
from relmo.runs.train_task import train_task
from relmo.settings.bilm import BiLMModelSettings, BiLMSettings, BiLMTextSettings, BiLMTrainSettings
from relmo.settings.lm import (
    LanguageModelSettings,
    LMSettings,
    SkipgramModelSettings,
    SkipgramSettings,
    SkipgramTextSettings,
    SkipgramTrainSettings,
    TextSettings,
)
from relmo.settings.sections import TrainSettings
from relmo.settings.tasks import (
    ClassifierSettings,
    CorefSettings,
    PairsSettings,
    ReaderSettings,
    SRLSettings,
    TaggerSettings,
)
from relmo.tasks.tagger import Tagger
from relmo.text.encode import encode_corpus, encode_sentence_corpus
from relmo.text.minimal_pairs import read_pairs as read_minimal_pairs
from relmo.text.readers.coref import read_documents
from relmo.text.readers.labelled import read_labelled, read_pairs
from relmo.text.readers.parallel import read_parallel
from relmo.text.readers.reading import read_questions
from relmo.text.readers.roles import read_roles
from relmo.text.readers.tagged import read_tagged
from relmo.text.suites import read_suite
from relmo.text.trees import read_conllu_sentences, read_depths
from relmo.training.loop import Step
from support import sentence_tasks, small_models, suites, tagging
from support.fuzz_models import WORDS, Subject, digest

TEXT = "the cat sat on the mat .\na dog sees the cat\n" * 6
ROWS = ["1\tThe\tthe\tDET\tD\tA=B\t2\tdet\t_\t_", "2\tcat\tcat\tNOUN\tN\t_\t0\troot\t_\t_"]
CONLLU = "# sent_id = 1\n" + "\n".join(ROWS) + "\n\n1-2\tdel\t_\t_\t_\t_\t_\t_\t_\t_\n" + "\n".join(ROWS) + "\n"
TASK_FILES = {
    "sums.tsv": "q\ta\n1 + 2\t3\n4 + 5\t9\n",
    "sums.csv": '"1 + 2, say",3\n4 + 5,"9\n"\n',
    "sums.jsonl": '{"source": ["1 +", "2"], "target": ["3", "three"]}\n{"source": "4 + 5", "target": "9"}\n',
    "words.conllu": CONLLU,
    "names.iob2": "-DOCSTART- O\n\nAnna B-PER\nsees O\n\nNew B-LOC\nYork I-LOC\n",
    "tagged.jsonl": '{"words": ["a", "cat"], "tags": ["DET", "NOUN"]}\n{"words": ["b"], "tags": ["X"]}\n',
    "texts.tsv": "label\ttext\npos\tA good film.\nneg\tA bad film.\n",
    "texts.jsonl": '{"text": "A good film.", "label": "pos"}\n{"text": ["A", "bad"], "label": 0}\n',
    "trees.txt": sentence_tasks.TREES,
    "cola.tsv": "gj04\t1\t\tThe cat sat.\ngj04\t0\t*\tCat the sat.\n",
    "pairs.tsv": "gold_label\tsentence1\tsentence2\nyes\ta b\tc\n-\tx\ty\nno\td\te\n",
    "pairs.jsonl": '{"premise": "a b", "hypothesis": "c", "label": "yes"}\n'
    '{"premise": "d", "hypothesis": "e", "label": 1}\n',
    "roles.jsonl": '{"words": ["I", "go"], "pos": ["PRP", "VBP"], "frames": [{"verb_index": 1, "frame": "go.01", '
    '"tags": ["B-ARG0", "B-V"]}]}\n{"words": ["Oh"], "frames": []}\n',
    "propbank.gold_conll": "d\t0\t0\tI\tPRP\t(S*\t-\t-\t(ARG0*)\nd\t0\t1\tgo\tVBP\t*)\tgo\tgo.01\t(V*)\n",
    "props.txt": "My - (ARG0* *\ncat - *) *\nsees see (V*) *\nme - (ARG1*) (ARG0*)\ngo go * (V*)\n\nOh -\n",
    "people.conll": "#begin document (bc/a); part 000\nbc/a 0 0 Anna - - - - - Lee * (1|(0)\n"
    "bc/a 0 1 Lee - - - - - Lee * 1)\n\nbc/a 0 0 She - - - - - - * (0)|(1)\n#end document\n",
    "people.jsonl": '{"sentences": [["A", "cat"], ["It"]], "clusters": [[[0, 1], [2, 2]]], '
    '"speakers": [["x", "x"], ["y"]]}\n',
    "asked.json": '{"data": [{"paragraphs": [{"context": "A cat sat.", "qas": [{"id": "1", "question": "Who?", '
    '"answers": [{"text": "A cat", "answer_start": 0}]}, {"id": "2", "question": "Why?", "is_impossible": true}]}]}]}',
    "asked.jsonl": '{"passage": "A cat sat.", "question": "Who?", "answers": ["A cat", "cat"]}\n',
    "stsb.csv": "genre\tfile\t2012\t0001\t5.000\tThe cat\tA cat\ngenre\tfile\t2012\t0002\t1.5\tThe cat\tA dog\n",
}
MINIMAL_PAIRS = {
    "nounpp.txt": "The cat by the dogs is\tsingular\tplural\tcorrect\tid1\n"
    "The cat by the dogs are\tsingular\tplural\twrong\tid1\n",
    "verbs.jsonl": '{"sentence_good": "Cats run.", "sentence_bad": "Cats runs.", '
    '"linguistics_term": "a", "UID": "b"}\n',
    "items.tab": "correct_number\tform\tclass\ttype\tprefix\tn_attr\nplur\tare\tcorrect\toriginal\tThe cats\t0\n"
    "plur\tis\twrong\toriginal\tThe cats\t0\n",
    "mine.csv": 'condition,good,bad\none,Cats run.,Cats runs.\ntwo,"Cats, run.",Cats runs.\n',
    "short.tsv": "context\tright\twrong\nThe cat\tis\tare\n",
    "set.gold": "2\tare\tis\t1\n1\tsits\tsit\t0\n",
    "set.text": "`` cats are here . <eos>\nit sits <eos>\n",
}
SUITES = {"suite.json": json.dumps(suites.make_suite())}
SENSES = {
    "index.sense": "bank%1:14:00:: 08420278 2 20\nbank%1:17:01:: 09213565 1 25\nold%3:00:01:: 01638438 2 67\n",
    "semcor.jsonl": '{"tokens": ["The", "New_York"], "sense_keys": [[], ["city%1:15:00::"]]}\n',
    "set.xml": '<?xml version="1.0" encoding="UTF-8" ?>\n<corpus lang="en"><text id="d0"><sentence id="d0.s0">\n'
    '<wf lemma="it" pos="PRON">It</wf>\n<instance id="d0.s0.t0" lemma="bank" pos="NOUN">bank</instance>\n'
    "</sentence></text></corpus>\n",
    "set.gold.key.txt": "d0.s0.t0 bank%1:17:01::\n",
}
VECTORS = {
    "word2vec.txt": "3 2\ncat 0.5 1\ndog 1e-3 -2\nthe 0 1\n",
    "glove.txt": "cat 0.5 1 2\nnew york 1 1 1\nthe 0 1 3\n",
}
SETTINGS: dict[str, Any] = {
    "lm": LMSettings(),
    "bilm": BiLMSettings(),
    "skipgram": SkipgramSettings(),
    "tagger": TaggerSettings(),
    "classifier": ClassifierSettings(),
    "pairs": PairsSettings(),
    "srl": SRLSettings(),
    "coref": CorefSettings(),
    "reader": ReaderSettings(),
}
FIGURES = {"pos": {"name": "pos", "title": "parts", "rows": [{"name": "layer 1", "ours": {"all words": 94.5}}]}}


def write(files: dict[str, str], folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name).write_text(text, encoding="utf-8")


def use_task_files(folder: Path) -> str:
    tagged = [list(read_tagged(folder / name)) for name in ("words.conllu", "names.iob2", "tagged.jsonl")]
    texts = ("texts.tsv", "texts.jsonl", "trees.txt", "cola.tsv")
    labelled = [list(read_labelled(folder / name, split=str.split, subtrees=name == "trees.txt")) for name in texts]
    pairs = [list(read_pairs(folder / name, split=str.split)) for name in ("pairs.tsv", "pairs.jsonl")]
    scored = list(read_pairs(folder / "stsb.csv", split=str.split, numbers=True))
    roles = [list(read_roles(folder / name)) for name in ("roles.jsonl", "propbank.gold_conll", "props.txt")]
    coreference = [list(read_documents(folder / name)) for name in ("people.conll", "people.jsonl")]
    asked = [list(read_questions(folder / name)) for name in ("asked.json", "asked.jsonl")]
    words = list(read_conllu_sentences(folder / "words.conllu"))
    names = ("sums.tsv", "sums.csv", "sums.jsonl")
    written = [list(read_parallel(folder / name, columns="q,a" if "tsv" in name else None)) for name in names]
    depths = [read_depths(folder / "words.conllu"), read_depths(folder / "trees.txt", "depth")]
    return digest(tagged, labelled, pairs, scored, roles, coreference, asked, words, depths, written)


def make_labels(folder: Path) -> None:
    """A folder for each label, a text a file."""
    write({"one.txt": "A good film.\n", "two.txt": "So good.\n"}, folder / "pos")
    write({"one.txt": "A bad film.\n"}, folder / "neg")


def use_senses(folder: Path) -> str:
    index = SenseIndex.read(folder / "index.sense")
    framework = read_framework(folder / "set.xml", folder / "set.gold.key.txt")
    return digest(index.senses, list(read_semcor(folder / "semcor.jsonl")), framework)


def use_vectors(folder: Path) -> str:
    found = [WordVectors.read_word2vec(folder / name) for name in sorted(VECTORS)]
    return digest(*(each.matrix for each in found), [each.vocabulary.symbols for each in found])


def make_settings(folder: Path) -> None:
    write({f"{name}.toml": to_toml(settings) for name, settings in SETTINGS.items()}, folder)


def use_settings(folder: Path) -> str:
    found = []
    for name, settings in SETTINGS.items():
        tables = read_toml(folder / f"{name}.toml")
        check_keys(type(settings), tables, f"{name}.toml")
        found.append(build(type(settings), tables))
        found[-1].check()
    return digest(found)


def make_corpora(folder: Path) -> None:
    write({"plain.txt": TEXT, "words.conllu": CONLLU, "vocabulary.txt": "the\ncat\n\\n\ncaf\\xe9\n"}, folder)
    (folder / "packed.txt.gz").write_bytes(gzip.compress(TEXT.encode(), mtime=0))
    (folder / "packed.txt.xz").write_bytes(lzma.compress(TEXT.encode()))
    import zstandard

    (folder / "packed.txt.zst").write_bytes(zstandard.compress(TEXT.encode()))


def use_corpora(folder: Path) -> str:
    packed = [f"packed.txt.{suffix}" for suffix in ("gz", "xz", "zst")]
    files = [str(folder / name) for name in ("plain.txt", "words.conllu", *packed)]
    out, sentences = folder / "out", folder / "sentences"
    out.mkdir()
    sentences.mkdir()
    chars = encode_corpus(files, TextSettings(), out)
    words = encode_corpus(files, TextSettings(unit="word", vocabulary=str(folder / "vocabulary.txt")), out)
    both = encode_sentence_corpus(files, BiLMTextSettings(vocabulary=str(folder / "vocabulary.txt")), sentences)
    return digest(chars.vocabulary.symbols, words.train.ids, both.lexicon)


def make_explorer(folder: Path) -> None:
    write({"figures.json": json.dumps(FIGURES)}, folder)
    write(MINIMAL_PAIRS, folder / "agreement")


def use_explorer(folder: Path) -> str:
    extras = Extras(data=folder, figures=folder / "figures.json")
    return digest(extras.figures, [pack.pairs() for pack in extras.packs.values()])


def make_index(folder: Path, dtype: Any) -> None:
    model = small_models.bilm()
    folder.mkdir(parents=True)
    model.save_pretrained(folder / "model")
    build_index(folder / "index", model, [WORDS, ["a", "\u2028"], ["cat"]], dtype=dtype)


def use_index(folder: Path) -> str:
    from relmo.analysis.meaning.occurrences import meaning

    index = OccurrenceIndex.open(folder / "index")
    found = meaning(relmo.load(folder / "model", device="cpu"), index, WORDS, "cat")  # type: ignore[arg-type]
    return digest([index.sentence(place) for place in range(len(index))], repr(found))


def make_cache(folder: Path) -> None:
    tagging.tiny_bilm().save_pretrained(folder / "model")
    ElmoCache(folder / "cache", tagging.tiny_bilm()).vectors([WORDS, ["a"]])


def use_cache(folder: Path) -> str:
    kept = ElmoCache(folder / "cache", relmo.load(folder / "model", device="cpu")).vectors([WORDS, ["a"], ["new"]])  # type: ignore[arg-type]
    return digest(*kept.batch(range(3)))


class Broken(Exception):
    """Stands for a kill."""


class Breaking(Reporter):
    """Breaks a run off after some steps."""

    def on_step(self, step: Step, total: int) -> None:
        if step.number == 3:
            raise Broken


def make_partial(folder: Path) -> None:
    """What `relmo embed` leaves when it is killed."""
    tagging.tiny_bilm().save_pretrained(folder / "model")
    write({"text.txt": TEXT}, folder)

    def stop(progress: Any) -> None:
        if progress.done == 5:
            raise Broken

    os.chdir(folder)
    with suppress(Broken):
        embed_file(tagging.tiny_bilm(), "text.txt", "out.npz", watch=stop)


def use_partial(folder: Path) -> str:
    embed_file(relmo.load(folder / "model", device="cpu"), "text.txt", "out.npz", resume=True)  # type: ignore[arg-type]
    return sha256(folder / "out.npz")


TRAIN: dict[str, Any] = {"epochs": 3.0, "batch": 2, "device": "cpu", "checkpoint_every": 0.0, "log_every": 1}
RUNS: dict[str, tuple[Any, Any]] = {
    "lm": (
        train_lm,
        LMSettings(
            text=TextSettings(valid_fraction=0.2),
            model=LanguageModelSettings(hidden=6),
            train=TrainSettings(**TRAIN, unroll=20),
        ),
    ),
    "bilm": (
        train_bilm,
        BiLMSettings(
            text=BiLMTextSettings(valid_fraction=0.2),
            model=BiLMModelSettings(char_dim=2, filters=("1x4",), max_characters=8, hidden=6, projection=4, samples=4),
            train=BiLMTrainSettings(**TRAIN, unroll=5),
        ),
    ),
    "skipgram": (
        train_skipgram,
        SkipgramSettings(
            text=SkipgramTextSettings(min_count=1),
            model=SkipgramModelSettings(dimensions=4),
            train=SkipgramTrainSettings(**TRAIN | {"batch": 20}),
        ),
    ),
    "tagger": (
        partial(train_task, Tagger),
        tagging.settings(
            input={"elmo": "elmo", "cache": "cache", "char_dim": 0, "filters": ("3x128",)},
            model={"hidden": 4},
            train=TRAIN | {"epochs": 2.0, "batch": 4},
        ),
    ),
}


def make_run(folder: Path, kind: str) -> None:
    """A run that was killed after three steps."""
    write({"corpus.txt": TEXT}, folder)
    tagging.conllu(folder / "words.conllu", 20)
    if kind == "tagger":
        tagging.tiny_bilm().save_pretrained(folder / "elmo")
    train, settings = RUNS[kind]
    os.chdir(folder)
    with suppress(Broken):
        train(["words.conllu" if kind == "tagger" else "corpus.txt"], settings, Path("out"), reporter=Breaking())
    records = [record | {"symbols_per_second": 1.0} for record in read_metrics(Path("out") / METRICS)]
    (Path("out") / METRICS).write_text("".join(json.dumps(record) + "\n" for record in records))
    for name in ("words.conllu",) if kind != "tagger" else ("corpus.txt",):
        (folder / name).unlink()


def use_run(folder: Path, kind: str) -> str:
    """Goes on with a run, as `relmo train --resume` does."""
    train, settings = RUNS[kind]
    out = Path("out")
    given = build(type(settings), *settings_layers(kind, resumed=out))
    train(read_run(out)["files"], given, out, resume=True)
    return sha256(out / "model.safetensors")


def runs() -> list[Subject]:
    found = []
    for kind in RUNS:
        found.append(
            Subject(
                f"run of {kind}",
                partial(make_run, kind=kind),
                partial(use_run, kind=kind),
                covered=("out/run/*",),
                whole=("corpus.txt", "words.conllu", "elmo/*"),
            )
        )
    return found


FILES = [
    Subject("settings", make_settings, use_settings, special=False),
    Subject("corpora", make_corpora, use_corpora, special=False),
    Subject("task files", partial(write, TASK_FILES), use_task_files, special=False),
    Subject("labelled folder", make_labels, lambda folder: digest(list(read_labelled(folder, split=str.split)))),
    Subject(
        "minimal pairs", partial(write, MINIMAL_PAIRS), lambda folder: digest(read_minimal_pairs(folder)), special=False
    ),
    Subject(
        "test suites", partial(write, SUITES), lambda folder: digest(read_suite(folder / "suite.json")), special=False
    ),
    Subject("senses", partial(write, SENSES), use_senses, special=False),
    Subject("word vectors", partial(write, VECTORS), use_vectors, special=False),
    Subject("explorer", make_explorer, use_explorer, special=False),
    Subject("index in int8", partial(make_index, dtype="int8"), use_index, covered=("index/*",), whole=("model/*",)),
    Subject(
        "index in float16", partial(make_index, dtype="float16"), use_index, covered=("index/*",), whole=("model/*",)
    ),
    Subject("cache", make_cache, use_cache, covered=("cache/*",), whole=("model/*",)),
    Subject("embed --resume", make_partial, use_partial, covered=("out.npz.partial/*",), whole=("model/*", "text.txt")),
    *runs(),
]
