"""`relmo train bilm` as a function: sentences -> indices of words -> network -> training loop -> model folder.

With `init` the run starts from another model, whose geometry it keeps. If the vocabulary stays the same, so does the
output layer. Otherwise it is new, with the rows of the words that both vocabularies have, and is trained alone for the
first `softmax_first` epochs, so that its noise does not spoil what the rest has learned.
"""

import dataclasses
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias, Unpack

import torch
from torch import nn

from relmo.config import build
from relmo.errors import SettingError
from relmo.loading import load
from relmo.models.bilm import BiLM, bilm_text
from relmo.models.evaluate import BiScore, bilm_nll
from relmo.networks.bilm import BiLMNetwork, DistilledBiLM
from relmo.runs.folder import CHECKPOINT, ENCODED, Files, RunArguments, TrainingRun, check_note, encode_once, open_run
from relmo.runs.run import Validation, finish, run_training, save_best
from relmo.settings.bilm import BiLMModelSettings, BiLMSettings
from relmo.settings.fields import inherit, parse_filters
from relmo.store.folder import named_tensors
from relmo.text.encode import Corpus, encode_sentence_corpus
from relmo.text.vocabulary import SentenceVocabulary
from relmo.training.batch import BiLanes, BiText
from relmo.training.loop import Trainer, make_plan
from relmo.training.parallel import Team

LANES = {"cpu": 32, "cuda": 256}  # of a validation; they affect its speed only
FREE_SETTINGS = ("dropout", "state_dropout", "softmax", "samples")  # of the model; they may differ from those of init
EncodedSentences: TypeAlias = tuple[Corpus[SentenceVocabulary], BiLMSettings, bool]


def train_bilm(
    files: Files, settings: BiLMSettings, out: str | Path, **arguments: Unpack[RunArguments]
) -> dict[str, Any]:
    """Train a bidirectional language model on the files, in order, in the folder `out`; return validation scores."""
    # with init, settings of the model are checked once they are complete
    (settings if settings.train.init is None else dataclasses.replace(settings, model=BiLMModelSettings())).check()
    if settings.model.input == "dictionary":
        raise SettingError("input dictionary is that of models from ELMoForManyLangs; train with char or word")
    with open_run("bilm", files, settings, out, **arguments) as run:
        device, team, start = run.device, run.team, None
        if settings.train.init is not None and not team.broadcast((run.out / CHECKPOINT).exists()):
            with team.barrier():
                start, settings = _load_start(settings)
        corpus, settings, has_new_softmax = _load_sentences(run, settings, start)
        torch.manual_seed(settings.train.seed)
        network = _make_network(settings, corpus.vocabulary, start).to(device)
        model = BiLM(network, settings, corpus.vocabulary, device)
        text = bilm_text(corpus.train.ids, corpus.lexicon, corpus.vocabulary, settings.model, device)
        if text.spellings is not None and text.spellings.truncated:
            words, max_bytes = text.spellings.truncated, settings.model.max_characters - 2
            run.reporter.on_message(
                f"{len(words):,} distinct words have more than {max_bytes} bytes and are read by their first "
                f"{max_bytes}, for example {corpus.lexicon[words[0]]}"
            )
        validation = None
        if corpus.valid is not None:  # shares the spellings of the lexicon
            reading: dict[str, Any] = {"spellings": text.spellings, "margin": text.margin, "device": device}
            valid_text = BiText(corpus.valid.ids, corpus.vocabulary, **reading)
            validation = Validation(model, partial(_evaluate, valid_text, corpus.valid.unknown))
        softmax = set() if network.softmax is None else {id(parameter) for parameter in network.softmax.parameters()}
        body = [parameter for parameter in network.parameters() if id(parameter) not in softmax]
        frozen = (lambda epoch: body if epoch < settings.train.softmax_first else []) if has_new_softmax else None
        trainer = Trainer(*_make_learner(model, text, team), settings.train, validation, frozen=frozen, team=team)
        run.reporter.on_plan(make_plan(trainer, corpus.train.predictions, "words"))
        if run.dry_run:
            return {}
        run_training(trainer, run.out, partial(save_best, model), run.reporter)
        results: dict[str, Any] = {
            "train_tokens": corpus.train.predictions,
            "vocabulary": len(corpus.vocabulary),
            "parameters": model.parameter_count(),
        }
        with team.barrier():
            model = BiLM.from_pretrained(run.out, device=device.type)  # the best one; verifies the folder
            if team.is_leader and validation is not None:
                # The best score is missing if it is from before the run was resumed.
                score = validation.scores.get(trainer.best) or validation.evaluate(model)
                metrics = {k: value for k, value in score.summary().items() if k.endswith(("perplexity", "tokens"))}
                results |= {f"valid_{key}": value for key, value in metrics.items()}
                results["valid_unknown_rate"] = score.unknown / score.tokens
        return finish(run, model, results)


def _evaluate(text: BiText, unknown: int, model: BiLM) -> BiScore:
    return BiScore(text.steps, unknown, *bilm_nll(model.network, text, lanes=LANES[text.device.type]))


def _has_new_vocabulary(settings: BiLMSettings) -> bool:
    text = settings.text
    return text.vocabulary is not None or text.vocabulary_size is not None or text.min_count != 1


def _load_sentences(run: TrainingRun, settings: BiLMSettings, start: BiLM | None) -> EncodedSentences:
    """Return the encoded corpus, the complete settings, and whether the vocabulary differs from that of `start`."""

    def encode(folder: Path) -> tuple[Corpus[SentenceVocabulary], dict[str, Any]]:
        initial = None if start is None else start.vocabulary
        vocabulary = None if _has_new_vocabulary(settings) else initial
        corpus = encode_sentence_corpus(run.files, settings.text, folder, vocabulary)
        is_new = start is not None and (initial is None or initial.symbols != corpus.vocabulary.symbols)
        return corpus, {"settings": dataclasses.asdict(settings), "fresh": is_new}

    corpus, note = encode_once(run, SentenceVocabulary, encode)
    with check_note(run.out / ENCODED):
        complete_settings = build(BiLMSettings, note["settings"], source=str(run.out / ENCODED))
        complete_settings.model.check()
        return corpus, complete_settings, bool(note["fresh"])


def _load_start(settings: BiLMSettings) -> tuple[BiLM, BiLMSettings]:
    """Load the model of `init`; return it and the settings with its geometry and, by default, its tokenizer."""
    source = settings.train.init
    assert source is not None
    start = load(source, kinds="bilm", device="cpu")
    if start.dictionaries is not None:
        raise SettingError(f"--init {source}: models of ELMoForManyLangs provide vectors and cannot be trained further")
    geometry = {name: value for name, value in vars(start.settings.model).items() if name not in FREE_SETTINGS}
    model = inherit(settings.model, geometry, source)
    if start.settings.model.input == "word" and _has_new_vocabulary(settings):
        raise SettingError(
            f"--init {source} reads words by their number, so its vocabulary is kept; "
            "omit vocabulary, vocabulary_size and min_count"
        )
    text = start.settings.text
    tokenizer = text.tokenizer if settings.text.tokenizer == type(text)().tokenizer else settings.text.tokenizer
    lowercase = settings.text.lowercase or text.lowercase
    new_text = dataclasses.replace(settings.text, tokenizer=tokenizer, lowercase=lowercase)
    settings = dataclasses.replace(settings, text=new_text, model=model)
    settings.model.check()
    return start, settings


def _make_network(settings: BiLMSettings, vocabulary: SentenceVocabulary, start: BiLM | None) -> BiLMNetwork:
    """Create the network; with `start`, copy its weights, and output rows of the words in both vocabularies."""
    network = BiLMNetwork(settings.model, vocab_size=len(vocabulary))
    if start is None:
        return network
    weights = named_tensors(network)
    with torch.no_grad():
        for name, tensor in named_tensors(start.network).items():
            if not name.startswith("softmax."):
                weights[name].copy_(tensor)
        if start.vocabulary is not None and start.network.softmax is not None and network.softmax is not None:
            rows = [i for i, word in enumerate(vocabulary.symbols) if word in start.vocabulary.index]
            start_rows = start.vocabulary.ids(vocabulary.symbols[i] for i in rows)
            network.softmax.weight[rows] = start.network.softmax.weight[start_rows]
            network.softmax.bias[rows] = start.network.softmax.bias[start_rows]
            if network.softmax.bottleneck is not None and start.network.softmax.bottleneck is not None:
                network.softmax.bottleneck.weight.copy_(start.network.softmax.bottleneck.weight)
    return network


def _make_learner(model: BiLM, text: BiText, team: Team) -> tuple[nn.Module, BiLanes]:
    """Return the network, or the network with its teacher, and the lanes of the text."""
    train, geometry = model.settings.train, model.settings.model
    seed, rank, world_size = train.seed if train.shuffle else None, team.rank, team.world_size
    sizes = {"batch": train.batch, "unroll": train.unroll, "stretch": train.stretch}
    lanes = BiLanes(text, **sizes, seed=seed, rank=rank, world_size=world_size)
    if train.teacher is None:
        return model.network, lanes
    assert model.vocabulary is not None
    teacher = load(train.teacher, kinds="bilm", device=model.device.type)
    teacher_geometry = teacher.settings.model
    if teacher.vocabulary is None or teacher.vocabulary.symbols != model.vocabulary.symbols:
        raise SettingError(
            f"--teacher {train.teacher}: has another vocabulary; train with its vocabulary, "
            f"--vocabulary {train.teacher}/vocabulary.txt, or choose another teacher"
        )
    teacher_input = teacher_geometry.input, teacher_geometry.max_characters
    if teacher_input != (geometry.input, geometry.max_characters):
        raise SettingError(
            f"--teacher {train.teacher}: reads other input (input {teacher_input[0]}, max_characters "
            f"{teacher_input[1]}); use the same for both"
        )
    # both networks read the same windows, padded for the wider filters
    text.margin = max(text.margin, *(width for width, _ in parse_filters(teacher_geometry.filters)))
    taught = DistilledBiLM(model.network, teacher.network, share=train.teacher_share, layers=train.teacher_layers)
    return taught.to(model.device), lanes
