"""`relmo train bilm` as a plain function: sentences -> numbers of words -> network -> the training loop -> a model
folder.

With `init` the run starts from a model that is there already, whose geometry it keeps. Where the vocabulary stays the
same, so does the output layer. Otherwise that is a fresh one, with the rows of the words that the old one has too, and
it is trained alone for the first `softmax_first` epochs, so that its noise does not spoil what the rest has learnt.
"""

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from relmo.config import build
from relmo.disk.digests import read_sealed
from relmo.disk.outputs import atomic
from relmo.errors import SettingError
from relmo.loading import load
from relmo.models.bilm import BiLM, bilm_text
from relmo.models.evaluate import BiScore, bilm_nll
from relmo.networks.bilm import BiLMNetwork
from relmo.runs.folder import (
    AGAIN,
    CHECKPOINT,
    ENCODED,
    SCRATCH,
    as_written,
    check_seen,
    found_encoded,
    note_encoded,
    remove_scratch,
    run_folder,
)
from relmo.runs.run import Reporter, go, make_plan, prepare
from relmo.settings.bilm import BiLMModelSettings, BiLMSettings, check_bilm, check_bilm_model
from relmo.settings.bounds import parse_filters
from relmo.store.folder import own_tensors
from relmo.store.weights import save_weights
from relmo.text.sentences import SentenceCorpus, Sentences, check_sentences, encode_sentence_corpus, open_sentences
from relmo.text.vocabulary import SentenceVocabulary
from relmo.training.batch import BiLanes, BiText
from relmo.training.loop import Trainer
from relmo.training.parallel import Team

LANES = {"cpu": 32, "cuda": 256}  # lanes of a validation; they change its speed only
FREE = ("dropout", "state_dropout", "softmax", "samples")  # of the model's settings, those that may differ from init's
LEXICON = "lexicon.txt"


def train_bilm(
    files: Sequence[str],
    settings: BiLMSettings,
    out: Path,
    *,
    resume: bool = False,
    overwrite: bool = False,
    dry_run: bool = False,
    reporter: Reporter | None = None,
) -> dict[str, Any]:
    """Trains a bidirectional language model on the files, in order, into the folder `out`. -> its results: the scores
    of the validation part."""
    reporter = reporter or Reporter()
    # with init, what is said of the model is checked when the rest of it is known
    check_bilm(settings if settings.train.init is None else dataclasses.replace(settings, model=BiLMModelSettings()))
    device = prepare(settings.train)
    with run_folder(out, "bilm", files, settings, resume=resume, overwrite=overwrite, keep=not dry_run) as team:
        start = None
        if settings.train.init is not None and not team.share((out / CHECKPOINT).exists()):
            with team.together():
                start = _load_start(settings)
                settings = _settings_after(start, settings)
        corpus, settings, fresh = _encoded_sentences(files, settings, start, out, team)
        torch.manual_seed(settings.train.seed)
        network = _make_network(settings, corpus.vocabulary, start).to(device)
        model = BiLM(network, settings, corpus.vocabulary, device)
        if not _fit(model, corpus, out, reporter, team, fresh=fresh, dry_run=dry_run):
            return {}
        with team.together():
            model = BiLM.from_pretrained(out, device=device.type)
        return finish(model, corpus, out, files, team)


def _load_start(settings: BiLMSettings) -> BiLM:
    """The model of `init`. What the settings say of its geometry must be so; a default counts as nothing said."""
    source = settings.train.init
    assert source is not None
    model = load(source, kinds="bilm", device="cpu")
    default = BiLMModelSettings()
    for name, value in vars(settings.model).items():
        own = getattr(model.settings.model, name)
        if name == "filters":
            same = parse_filters(value) in (parse_filters(own), parse_filters(default.filters))
        else:
            same = value in (own, getattr(default, name))
        if name not in FREE and not same:
            raise SettingError(
                f"{name} is {_shown(value)}, but {_shown(own)} in --init {source}, whose geometry is kept; leave it out"
            )
    if model.settings.model.input == "word" and _new_vocabulary(settings):
        raise SettingError(
            f"--init {source} reads words by their number, so its vocabulary is kept; "
            "leave out vocabulary, vocabulary_size and min_count"
        )
    return model


def _shown(value: Any) -> str:
    """A setting's value as it is typed."""
    return " ".join(map(str, value)) if isinstance(value, tuple) else str(value)


def _new_vocabulary(settings: BiLMSettings) -> bool:
    """Whether the settings ask for a vocabulary of their own."""
    text = settings.text
    return text.vocabulary is not None or text.vocabulary_size is not None or text.min_count != 1


def _settings_after(start: BiLM, settings: BiLMSettings) -> BiLMSettings:
    """The settings with the geometry of the model begun from and, where nothing else is said, its way of splitting text
    into words."""
    free = {name: getattr(settings.model, name) for name in FREE}
    own = start.settings.text
    tokenizer = own.tokenizer if settings.text.tokenizer == type(own)().tokenizer else settings.text.tokenizer
    settings = BiLMSettings(
        text=dataclasses.replace(
            settings.text, tokenizer=tokenizer, lowercase=settings.text.lowercase or own.lowercase
        ),
        model=dataclasses.replace(start.settings.model, **free),
        train=settings.train,
    )
    check_bilm_model(settings.model)
    return settings


def _encoded_sentences(
    files: Sequence[str], settings: BiLMSettings, start: BiLM | None, out: Path, team: Team
) -> tuple[SentenceCorpus, BiLMSettings, bool]:
    """The corpus under out/run: read from the files once, by the first process, from there ever after; the run's
    settings; and whether it has a fresh output layer in place of another vocabulary's or none."""
    with team.together():
        if team.leads and not found_encoded(out):
            _write_encoded(files, settings, start, out)
    with team.together():
        check_seen(out, team)
        return _read_encoded(out)


def _read_encoded(out: Path) -> tuple[SentenceCorpus, BiLMSettings, bool]:
    """What `_write_encoded` wrote."""
    scratch = out / SCRATCH
    note = read_sealed(out / ENCODED, AGAIN)
    lexicon = SentenceVocabulary.load(scratch / LEXICON).symbols
    parts: dict[str, Sentences] = {}
    with as_written(out / ENCODED):
        for name, unknown in note["unknown"].items():
            path = scratch / f"{name}.words"
            parts[name] = Sentences(open_sentences(path), int(unknown))
            check_sentences(path, parts[name].words, len(lexicon))
        vocabulary = SentenceVocabulary(lexicon[: note["vocab_size"]])
        if not vocabulary.index.keys() >= {*vocabulary.specials}:
            raise ValueError("its vocab_size leaves out marks of sentences")
        corpus = SentenceCorpus(lexicon, vocabulary, parts["train"], parts.get("valid"))
        settings = build(BiLMSettings, note["settings"], source=str(out / ENCODED))
        check_bilm_model(settings.model)
        return corpus, settings, bool(note["fresh"])


def _write_encoded(files: Sequence[str], settings: BiLMSettings, start: BiLM | None, out: Path) -> None:
    """Reads the corpus and writes it, and a note of all that follows from it, under out/run."""
    scratch = out / SCRATCH
    old = None if start is None else start.vocabulary
    corpus = encode_sentence_corpus(files, settings.text, scratch, None if _new_vocabulary(settings) else old)
    fresh = start is not None and (old is None or old.symbols != corpus.vocabulary.symbols)
    with atomic(scratch / LEXICON) as temporary:
        SentenceVocabulary(corpus.lexicon).save(temporary)
    unknown = {name: part.unknown for name, part in (("train", corpus.train), ("valid", corpus.valid)) if part}
    values = {
        "vocab_size": len(corpus.vocabulary),
        "unknown": unknown,
        "settings": dataclasses.asdict(settings),
        "fresh": fresh,
    }
    note_encoded(out, values, [LEXICON, *(f"{name}.words" for name in unknown)])


def _make_network(settings: BiLMSettings, vocabulary: SentenceVocabulary, start: BiLM | None) -> BiLMNetwork:
    """A new network; with `start`, with its weights, of its output layer those of the words that the vocabulary has
    too."""
    network = BiLMNetwork(settings.model, vocab_size=len(vocabulary))
    if start is None:
        return network
    own = own_tensors(network)
    with torch.no_grad():
        for name, tensor in own_tensors(start.network).items():
            if not name.startswith("softmax."):
                own[name].copy_(tensor)
        if start.vocabulary is not None and start.network.softmax is not None and network.softmax is not None:
            rows = [i for i, word in enumerate(vocabulary.symbols) if word in start.vocabulary.index]
            old = start.vocabulary.ids(vocabulary.symbols[i] for i in rows)
            for new, source in zip(network.softmax.parameters(), start.network.softmax.parameters(), strict=True):
                new[rows] = source[old]
    return network


def _fit(
    model: BiLM, corpus: SentenceCorpus, out: Path, reporter: Reporter, team: Team, *, fresh: bool, dry_run: bool
) -> bool:
    """Trains by truncated back-propagation through time, and leaves the best weights in the folder. -> whether it did
    (not in a dry run)"""
    assert model.vocabulary is not None
    settings, network = model.settings, model.network
    text = bilm_text(corpus.train.words, corpus.lexicon, model.vocabulary, settings.model, model.device)
    if text.spellings is not None and text.spellings.truncated:
        words, room = text.spellings.truncated, settings.model.max_characters - 2
        reporter.said(
            f"{len(words):,} distinct words have more than {room} bytes and are read by their first {room}, "
            f"for example {corpus.lexicon[words[0]]}"
        )
    valid = None
    if corpus.valid is not None:
        valid = BiText(
            corpus.valid.words, model.vocabulary, spellings=text.spellings, margin=text.margin, device=model.device
        )
    batch, unroll = settings.train.batch, settings.train.unroll
    seed = settings.train.seed if settings.train.shuffle else None
    lanes = BiLanes(text, batch=batch, unroll=unroll, seed=seed, rank=team.rank, size=team.size)
    frozen = softmax_first(model) if fresh else None
    trainer = Trainer(network, lanes, settings.train, validation(valid), frozen, team)
    reporter.plan(make_plan(trainer, corpus.train.predictions))
    if dry_run:
        return False

    def save() -> None:
        if (out / "config.json").exists():
            save_weights(out, network)
        else:
            model.save_pretrained(out)

    go(trainer, out, save, reporter)
    return True


def validation(text: BiText | None) -> Callable[[nn.Module], float] | None:
    """Mean negative log-likelihood of a word of the validation part, over both directions."""
    if text is None:
        return None
    return lambda network: sum(bilm_nll(network, text, lanes=LANES[text.device.type])) / (2 * text.steps)  # type: ignore[arg-type]


def softmax_first(model: BiLM) -> Callable[[float], Sequence[nn.Parameter]]:
    """In the first epochs all but the output layer is frozen."""
    assert model.network.softmax is not None
    output = {id(parameter) for parameter in model.network.softmax.parameters()}
    others = [parameter for parameter in model.network.parameters() if id(parameter) not in output]
    return lambda epoch: others if epoch < model.settings.train.softmax_first else []


def finish(model: BiLM, corpus: SentenceCorpus, out: Path, files: Sequence[str], team: Team) -> dict[str, Any]:
    """Scores the validation part, writes the whole folder, removes what only the run needed."""
    assert model.vocabulary is not None
    results: dict[str, Any] = {
        "trained_on": [Path(file).name for file in files],
        "train_tokens": corpus.train.predictions,
        "vocabulary": len(model.vocabulary),
        "parameters": model.parameter_count(),
    }
    part = corpus.valid
    if part is not None:
        text = bilm_text(part.words, corpus.lexicon, model.vocabulary, model.settings.model, model.device)
        score = BiScore(part.predictions, part.unknown, *bilm_nll(model.network, text, lanes=LANES[model.device.type]))
        kept = {key: value for key, value in score.summary().items() if key.endswith(("perplexity", "tokens"))}
        results |= {f"valid_{key}": value for key, value in kept.items()}
        results["valid_unknown_rate"] = score.unknown / score.tokens
    with team.together():
        if team.leads:
            model.save_description(out, results)
            remove_scratch(out)
    return team.share(results)
