"""`relmo train bilm` as a plain function: sentences -> numbers of words -> network -> the training loop -> a model
folder.

With `init` the run starts from a model that is there already, whose geometry it keeps. Where the vocabulary stays the
same, so does the output layer. Otherwise that is a fresh one, with the rows of the words that the old one has too, and
it is trained alone for the first `softmax_first` epochs, so that its noise does not spoil what the rest has learned.
"""

import dataclasses
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from relmo.errors import SettingError
from relmo.loading import load
from relmo.models.bilm import BiLM, bilm_text
from relmo.models.evaluate import BiScore, bilm_nll
from relmo.networks.bilm import BiLMNetwork
from relmo.networks.taught import TaughtBiLM
from relmo.runs.encoded import encoded_sentences, new_vocabulary
from relmo.runs.files import Files, listed_files
from relmo.runs.folder import CHECKPOINT, run_folder
from relmo.runs.reporter import Reporter
from relmo.runs.run import finish, go, prepare, save_best
from relmo.settings.bilm import BiLMModelSettings, BiLMSettings, check_bilm, check_bilm_model
from relmo.settings.bounds import parse_filters
from relmo.store.folder import own_tensors
from relmo.text.characters import Spellings
from relmo.text.sentences import SentenceCorpus, Sentences
from relmo.text.vocabulary import SentenceVocabulary
from relmo.training.batch import BiLanes, BiText
from relmo.training.loop import Trainer
from relmo.training.parallel import Team
from relmo.training.plan import make_plan

LANES = {"cpu": 32, "cuda": 256}  # lanes of a validation; they change its speed only
FREE = ("dropout", "state_dropout", "softmax", "samples")  # of the model's settings, those that may differ from init's


def train_bilm(
    files: Files,
    settings: BiLMSettings,
    out: str | Path,
    *,
    resume: bool = False,
    overwrite: bool = False,
    dry_run: bool = False,
    reporter: Reporter | None = None,
) -> dict[str, Any]:
    """Trains a bidirectional language model on the files, in order, into the folder `out`. -> its results: the scores
    of the validation part."""
    files, out, reporter = listed_files(files), Path(out), reporter or Reporter()
    # with init, what is said of the model is checked when the rest of it is known
    check_bilm(settings if settings.train.init is None else dataclasses.replace(settings, model=BiLMModelSettings()))
    if settings.model.input == "dictionary":
        raise SettingError("input dictionary is that of models from ELMoForManyLangs; train with char or word")
    device = prepare(settings.train)
    with run_folder(out, "bilm", files, settings, resume=resume, overwrite=overwrite, keep=not dry_run) as team:
        start = None
        if settings.train.init is not None and not team.share((out / CHECKPOINT).exists()):
            with team.together():
                start = _load_start(settings)
                settings = _settings_after(start, settings)
        corpus, settings, fresh = encoded_sentences(files, settings, start, out, team)
        torch.manual_seed(settings.train.seed)
        network = _make_network(settings, corpus.vocabulary, start).to(device)
        model = BiLM(network, settings, corpus.vocabulary, device)
        text = bilm_text(corpus.train.words, corpus.lexicon, corpus.vocabulary, settings.model, device)
        if text.spellings is not None and text.spellings.truncated:
            reporter.said(_cut_words(text.spellings, settings.model.max_characters - 2, corpus.lexicon))
        trainer = _make_trainer(model, text, corpus.valid, team, fresh=fresh)
        reporter.plan(make_plan(trainer, corpus.train.predictions, "words"))
        if dry_run:
            return {}
        go(trainer, out, partial(save_best, model, out), reporter)
        with team.together():
            model = BiLM.from_pretrained(out, device=device.type)
        return finish(model, out, files, _results(model, corpus), team)


def _load_start(settings: BiLMSettings) -> BiLM:
    """The model of `init`. What the settings say of its geometry must be so; a default counts as nothing said."""
    source = settings.train.init
    assert source is not None
    model = load(source, kinds="bilm", device="cpu")
    if model.dictionaries is not None:
        raise SettingError(f"--init {source}: a model of ELMoForManyLangs gives vectors and cannot be trained further")
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
    if model.settings.model.input == "word" and new_vocabulary(settings):
        raise SettingError(
            f"--init {source} reads words by their number, so its vocabulary is kept; "
            "leave out vocabulary, vocabulary_size and min_count"
        )
    return model


def _shown(value: Any) -> str:
    """A setting's value as it is typed."""
    return " ".join(map(str, value)) if isinstance(value, tuple) else str(value)


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
            network.softmax.weight[rows] = start.network.softmax.weight[old]
            network.softmax.bias[rows] = start.network.softmax.bias[old]
            if network.softmax.bottleneck is not None and start.network.softmax.bottleneck is not None:
                network.softmax.bottleneck.weight.copy_(start.network.softmax.bottleneck.weight)
    return network


def _cut_words(spellings: Spellings, room: int, lexicon: Sequence[str]) -> str:
    """Says how many words have more bytes than the model reads of one."""
    words = spellings.truncated
    return (
        f"{len(words):,} distinct words have more than {room} bytes and are read by their first {room}, "
        f"for example {lexicon[words[0]]}"
    )


def _make_trainer(model: BiLM, text: BiText, valid: Sentences | None, team: Team, *, fresh: bool) -> Trainer:
    """The model learns the text by truncated back-propagation through time."""
    train = model.settings.train
    seed = train.seed if train.shuffle else None
    lanes = BiLanes(
        text,
        batch=train.batch,
        unroll=train.unroll,
        seed=seed,
        stretch=train.stretch,
        rank=team.rank,
        size=team.size,
    )
    validate = None
    if valid is not None:
        assert model.vocabulary is not None
        held_out = BiText(
            valid.words, model.vocabulary, spellings=text.spellings, margin=text.margin, device=model.device
        )
        validate = _validation(model.network, held_out)
    learner = model.network if train.teacher is None else _taught(model, text)
    return Trainer(learner, lanes, train, validate, frozen=_softmax_first(model) if fresh else None, team=team)


def _taught(model: BiLM, text: BiText) -> TaughtBiLM:
    """The model's network beside its teacher, which reads the same windows: they get room for its widest filter."""
    train, own = model.settings.train, model.settings.model
    assert train.teacher is not None
    assert model.vocabulary is not None
    teacher = load(train.teacher, kinds="bilm", device=model.device.type)
    other = teacher.settings.model
    if teacher.vocabulary is None or teacher.vocabulary.symbols != model.vocabulary.symbols:
        raise SettingError(
            f"--teacher {train.teacher}: predicts other words; train with its vocabulary, "
            f"--vocabulary {train.teacher}/vocabulary.txt, or teach with another model"
        )
    if (other.input, other.max_characters) != (own.input, own.max_characters):
        raise SettingError(
            f"--teacher {train.teacher}: reads words otherwise (input {other.input}, max_characters "
            f"{other.max_characters}); give the same to both"
        )
    text.margin = max(text.margin, *(width for width, _ in parse_filters(other.filters)))
    taught = TaughtBiLM(model.network, teacher.network, share=train.teacher_share, layers=train.teacher_layers)
    return taught.to(model.device)


def _validation(network: BiLMNetwork, text: BiText) -> Callable[[nn.Module], float]:
    """Mean negative log-likelihood of a word of the validation part, over both directions."""
    return lambda _: sum(bilm_nll(network, text, lanes=LANES[text.device.type])) / (2 * text.steps)


def _softmax_first(model: BiLM) -> Callable[[float], Sequence[nn.Parameter]]:
    """In the first epochs all but the output layer is frozen."""
    assert model.network.softmax is not None
    output = {id(parameter) for parameter in model.network.softmax.parameters()}
    others = [parameter for parameter in model.network.parameters() if id(parameter) not in output]
    return lambda epoch: others if epoch < model.settings.train.softmax_first else []


def _results(model: BiLM, corpus: SentenceCorpus) -> dict[str, Any]:
    """The size of the training part and of the model, and the scores of the validation part."""
    results: dict[str, Any] = {
        "train_tokens": corpus.train.predictions,
        "vocabulary": len(corpus.vocabulary),
        "parameters": model.parameter_count(),
    }
    part = corpus.valid
    if part is not None:
        text = bilm_text(part.words, corpus.lexicon, corpus.vocabulary, model.settings.model, model.device)
        score = BiScore(part.predictions, part.unknown, *bilm_nll(model.network, text, lanes=LANES[model.device.type]))
        kept = {key: value for key, value in score.summary().items() if key.endswith(("perplexity", "tokens"))}
        results |= {f"valid_{key}": value for key, value in kept.items()}
        results["valid_unknown_rate"] = score.unknown / score.tokens
    return results
