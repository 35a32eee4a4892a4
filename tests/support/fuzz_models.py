"""What is fuzzed, models: a folder of each kind in which everything is in order, and what is read from it."""

import hashlib
import json
import shutil
import zipfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import torch

import relmo
from relmo.cli.models import format_facts, gather
from relmo.config import to_toml
from relmo.models.bilm import BiLM
from relmo.models.vectors import WordVectors
from relmo.networks.bilm import BiLMNetwork
from relmo.settings.bilm import BiLMModelSettings, BiLMSettings
from relmo.settings.sections import InputSettings
from relmo.settings.tasks import (
    CorefModelSettings,
    CorefSettings,
    SearchSettings,
    Seq2SeqInputSettings,
    Seq2SeqModelSettings,
    Seq2SeqSettings,
    Seq2SeqTextSettings,
)
from relmo.store import folder as store_folder
from relmo.store.folder import CONFIG, read_config, write_json
from relmo.tasks.classifier import Classifier, SentencePairs
from relmo.tasks.coref import Coreference
from relmo.tasks.features import WordFeatures, WordVocabulary
from relmo.tasks.reader import PassageReader
from relmo.tasks.seq2seq import Seq2Seq
from relmo.tasks.srl import RoleLabeller
from relmo.tasks.tagger import Tagger
from relmo.tasks.task import Labels, Task
from relmo.text.vocabulary import Pieces, Vocabulary
from support import many_langs, original_elmo, reading, roles, saved_allennlp, sentence_tasks, small_models, tagging

WORDS = ["the", "cat", "sat", "film", "good"]
ASKED = [WORDS, ["a"]]


@dataclass(frozen=True)
class Subject:
    """Files of one kind.

    make      writes them, in order, into an empty folder, which is the working folder
    use       reads them there -> a digest of the numbers that came of it
    covered   names (or patterns) of files that carry a checksum: these are read as they were, or refused
    whole     names (or patterns) that are never damaged: what a user keeps beside them
    special   whether FIFOs and devices are tried: where a user names a file, these are his to give
    """

    name: str
    make: Callable[[Path], object]
    use: Callable[[Path], str]
    covered: tuple[str, ...] = ()
    whole: tuple[str, ...] = ()
    special: bool = True
    words: dict[str, Any] = field(default_factory=dict)


def digest(*values: Any) -> str:
    """Of arrays, and of anything else by what Python writes for it."""
    sha = hashlib.sha256()
    for value in values:
        array = value if isinstance(value, np.ndarray) else None
        sha.update(repr(value).encode("utf-8", "surrogatepass") if array is None else array.tobytes())
    return sha.hexdigest()


def use_model(folder: Path) -> str:
    """Loads a model of any kind and asks it something."""
    model = relmo.load(folder, device="cpu")
    format_facts(gather(str(folder)))
    if isinstance(model, BiLM):
        found = model.embed([WORDS, ["a"]])
        return digest(*found, *(model.log_probs([WORDS]) if model.vocabulary is not None else ()))
    if isinstance(model, WordVectors):
        return digest(model.matrix, *([model.most_similar("cat", topn=3)] if "cat" in model else ()))
    if isinstance(model, Task):
        two, several = model.kind in ("pairs", "reader"), model.kind == "coref"
        return digest(model.predict([(words, words) if two else [words] if several else words for words in ASKED]))
    ids = torch.tensor([model.vocabulary.end])
    return digest(model.perplexity("the cat"), model.step(ids)[0].numpy(), model.generate(limit=5, seed=1))


def use_original(folder: Path) -> str:
    """A folder, or a zip in it."""
    packed = folder / "elmo.zip"
    model = relmo.load(packed if packed.is_symlink() or packed.exists() else folder, device="cpu")
    assert isinstance(model, BiLM)
    return digest(*model.embed([WORDS]))


def make_task(kind: type[Task[Any, Any]], settings: Any, folder: Path, **vocabularies: Vocabulary) -> None:
    """A task's model that has learned nothing."""
    torch.manual_seed(4)
    features = WordFeatures.build(settings.input, [WORDS], torch.device("cpu"))
    named = {name.replace("_", "-"): vocabulary for name, vocabulary in vocabularies.items()}
    kind(settings, features, named).initialize().save_pretrained(folder)


def make_tagger(folder: Path, **inputs: Any) -> None:
    settings = tagging.settings(text={"task": "ner"}, model={"decoder": "crf"}, input=inputs)
    make_task(Tagger, settings, folder, labels=Labels(["O", "U-PER", "B-PER", "I-PER", "L-PER"]))


def make_with_parts(folder: Path, bilm: BiLM, **inputs: Any) -> None:
    """A tagger that is built on two other models."""
    parts = folder.with_name("parts")
    bilm.save_pretrained(parts / "bilm")
    make_vectors(parts / "vectors")
    make_tagger(folder, elmo=str(parts / "bilm"), vectors=str(parts / "vectors"), copy=True, **inputs)
    shutil.rmtree(parts)
    config = read_config(folder)
    for name in ("elmo", "vectors"):  # no path of this machine
        config["settings"]["input"][name] = name
        if not config[name]["source"].startswith("."):
            config[name]["source"] = name
    write_json(folder / CONFIG, config)
    settings = folder / "settings.toml"
    settings.write_text(settings.read_text(encoding="utf-8").replace(str(parts), "parts"), encoding="utf-8")


def make_vectors(folder: Path) -> None:
    matrix = np.random.default_rng(0).normal(size=(len(WORDS) + 2, 5)).astype(np.float32)
    WordVectors(Vocabulary([*Vocabulary.specials, *WORDS]), matrix).save_pretrained(folder)


def make_sharded(folder: Path) -> None:
    """In int8, in several files, as models are that are passed on."""
    torch.manual_seed(1)
    settings = BiLMModelSettings(char_dim=8, filters=("1x64",), max_characters=12, hidden=70, projection=64, layers=1)
    model = BiLM(BiLMNetwork(settings, vocab_size=None), BiLMSettings(model=settings))
    model.save_pretrained(folder)
    (folder / "model.safetensors").unlink()
    megabyte, store_folder.MB = store_folder.MB, 30_000
    record = store_folder.write_weights(folder, store_folder.encode_weights(model.tensors(), "int8"), "int8", 1)
    store_folder.MB = megabyte
    write_json(folder / CONFIG, read_config(folder) | {"stored": record._asdict()})


def make_original(folder: Path) -> None:
    options = original_elmo.options_of()
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "options.json").write_text(json.dumps(options))
    with h5py.File(folder / "weights.hdf5", "w") as file:
        for name, array in original_elmo.random_weights(options).items():
            file.create_dataset(name, data=array, track_times=False)


def make_zip(folder: Path) -> None:
    make_original(folder)
    with zipfile.ZipFile(folder / "elmo.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        for path in [folder / "options.json", folder / "weights.hdf5"]:
            archive.writestr(zipfile.ZipInfo(path.name), path.read_bytes(), zipfile.ZIP_DEFLATED)
            path.unlink()


def make_lm(folder: Path) -> None:
    model = small_models.language_model(softmax="adaptive", cutoffs=(4, 9), hidden=16)
    model.save_pretrained(folder)
    (folder / "settings.toml").write_text(to_toml(model.settings), encoding="utf-8")


def make_classifier(folder: Path) -> None:
    settings = sentence_tasks.classifier_settings(model={"mlp": (5,)})
    make_task(Classifier, settings, folder, labels=Labels(["good", "bad"]))


def make_pairs(folder: Path) -> None:
    settings = sentence_tasks.pairs_settings(model={"network": "esim"})
    make_task(SentencePairs, settings, folder, labels=Labels(["yes", "no"]))


def make_coref(folder: Path) -> None:
    model = CorefModelSettings(hidden=4, mlp=(4,), max_width=3, feature_dim=2)
    settings = CorefSettings(input=InputSettings(word_dim=4, char_dim=0), model=model)
    make_task(Coreference, settings, folder, genres_vocabulary=WordVocabulary(["<unk>", "court"]))


ROLES = Labels(["O", "B-V", "B-ARG0", "I-ARG0"])


def make_seq2seq(folder: Path) -> None:
    """One with subwords on one side."""
    torch.manual_seed(4)
    settings = Seq2SeqSettings(
        text=Seq2SeqTextSettings(target_unit="unigram", metric="exact"),
        input=Seq2SeqInputSettings(word_dim=4),
        model=Seq2SeqModelSettings(hidden=4, target_dim=4, input_feeding=True),
        search=SearchSettings(limit=5),
    )
    vocabularies: dict[str, Vocabulary] = {
        "target-vocabulary": Vocabulary([*Vocabulary.specials, "▁a", "▁", "b"]),
        "pieces-vocabulary": Pieces(["▁a -1.5", "▁ -2", "b -2.5"]),
    }
    features = WordFeatures.build(settings.input, [WORDS], torch.device("cpu"))
    Seq2Seq(settings, features, vocabularies).initialize().save_pretrained(folder)


COVERED = ("*.safetensors", "*vocabulary.txt", "*labels.txt")
MODELS = [
    Subject("bilm", lambda folder: small_models.bilm().save_pretrained(folder), use_model, COVERED),
    Subject("bilm of words", lambda folder: tagging.word_bilm().save_pretrained(folder), use_model, COVERED),
    Subject("bilm in int8", make_sharded, use_model, COVERED),
    Subject("lm", make_lm, use_model, COVERED),
    Subject("ngram", lambda folder: small_models.ngram_model().save_pretrained(folder), use_model, COVERED),
    Subject("skipgram", make_vectors, use_model, COVERED),
    Subject("classifier", make_classifier, use_model, COVERED),
    Subject("pairs", make_pairs, use_model, COVERED),
    Subject("reader", lambda at: make_task(PassageReader, reading.reader_settings(), at), use_model, COVERED),
    Subject("srl", lambda at: make_task(RoleLabeller, roles.settings(), at, labels=ROLES), use_model, COVERED),
    Subject("coref", make_coref, use_model, COVERED),
    Subject("seq2seq", make_seq2seq, use_model, COVERED),
    Subject("tagger", lambda folder: make_with_parts(folder, tagging.tiny_bilm()), use_model, COVERED),
    Subject(
        "tagger, tuned bilm",
        lambda folder: make_with_parts(folder, tagging.word_bilm(), elmo_tune=True),
        use_model,
        COVERED,
    ),
    Subject("ELMoForManyLangs", many_langs.write, use_model),
    Subject("AllenNLP", saved_allennlp.write, use_model),
    Subject("original", make_original, use_original),
    Subject("original.zip", make_zip, use_original),
]
