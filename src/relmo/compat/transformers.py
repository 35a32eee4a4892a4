"""transformers: recurrent language models and the directions of biLMs as `AutoModelForCausalLM`, with their tokenizers.

    relmo convert prose prose-hf --to transformers

    model = AutoModelForCausalLM.from_pretrained("prose-hf", trust_remote_code=True)
    tokenizer = AutoTokenizer.from_pretrained("prose-hf", trust_remote_code=True)

The folder's code only imports this module; after `import relmo.compat.transformers`, `trust_remote_code` is not needed.
A text begins with the boundary that precedes texts in relmo. The symbol after the vocabulary is padding, and its logit
is so low that its probability is zero.
"""

import dataclasses
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from relmo.config import build
from relmo.disk.outputs import new_folder
from relmo.errors import ModelError
from relmo.models.bilm import BiLM
from relmo.models.lm import LanguageModel
from relmo.networks.bilm import DirectionLM
from relmo.networks.language_model import NeuralLM, RecurrentLM
from relmo.nn.recurrence import State
from relmo.nn.recurrence.stack import expand_mask
from relmo.nn.softmax import FullSoftmax
from relmo.settings.kinds import settings_class
from relmo.store.folder import MODEL_FILES, VOCABULARY, WEIGHTS
from relmo.text.characters import BOS, EOS, Spellings
from relmo.text.encode import TOKENIZERS, encode_text, join_symbols
from relmo.text.vocabulary import SentenceVocabulary, Vocabulary

try:
    import transformers
    from transformers import GenerationMixin, PreTrainedConfig, PreTrainedModel, PythonBackend
    from transformers.modeling_outputs import CausalLMOutputWithPast
    from transformers.utils.generic import can_return_tuple
except ImportError as error:
    hint = "try: pip install 'relmo[transformers]'"
    raise ImportError(f"relmo.compat.transformers needs transformers, version 5; {hint}") from error

CLASSES = "RelmoConfig", "RelmoForCausalLM", "RelmoTokenizer"
CODE = "modeling_relmo.py"
CODE_TEXT = f'''"""Classes of this model; they are those of the package relmo: pip install relmo."""

from relmo.compat.transformers import {", ".join(CLASSES)}

__all__ = [{", ".join(f'"{name}"' for name in CLASSES)}]
'''
CONFIG_CLASS, MODEL_CLASS, TOKENIZER_CLASS = (f"modeling_relmo.{name}" for name in CLASSES)
PADDING_LOGIT = -1e4
ENCODER_BATCH = 4096  # words


class NotCopied:
    """Mix-in that keeps `save_pretrained` from copying this module to the folder, whose code imports it."""

    @classmethod
    def register_for_auto_class(cls, auto_class: str | None = None) -> None:
        """Do nothing."""


class RelmoConfig(NotCopied, PreTrainedConfig):
    """Configuration of a model: the kind and the settings of relmo, and for a biLM the direction of reading."""

    model_type = "relmo"
    kind: str = "lm"
    direction: str = "forward"
    settings: dict[str, Any] | None = None
    vocab_size: int = 3
    hidden_size: int | None = None
    num_hidden_layers: int | None = None
    bos_token_id: int | None = None
    eos_token_id: int | None = None
    pad_token_id: int | None = None
    tie_word_embeddings: bool = False

    def save_pretrained(self, save_directory: Any, *args: Any, **kwargs: Any) -> None:
        """Write the configuration and the code that imports the classes."""
        super().save_pretrained(save_directory, *args, **kwargs)
        (Path(save_directory) / CODE).write_text(CODE_TEXT, encoding="utf-8")

    def make_network(self) -> NeuralLM:
        """Create the network of the settings."""
        settings = build(settings_class(self.kind), self.settings or {}, source="config.json")
        settings.check()
        if self.kind == "bilm":
            return DirectionLM(settings.model, vocab_size=self.vocab_size - 1)
        # scores are those of the full layer, and transformers computes the loss from them
        softmax = "full" if settings.model.softmax == "sampled" else settings.model.softmax
        return RecurrentLM(dataclasses.replace(settings.model, softmax=softmax), vocab_size=self.vocab_size - 1)


class RelmoCache:
    """State after the symbols that were read, as transformers' generation carries it; B rows."""

    is_compileable = is_croppable = False

    def __init__(self, state: State, length: int):
        self.state, self.length = state, length

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Return the number of symbols that were read, including padding."""
        return self.length

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Select the rows of the beams that continue."""
        self.state = tuple(tensor.index_select(0, beam_idx.to(tensor.device)) for tensor in self.state)


class RelmoForCausalLM(NotCopied, PreTrainedModel, GenerationMixin):
    """Recurrent language model with the interface of transformers."""

    config_class = RelmoConfig
    main_input_name = "input_ids"
    base_model_prefix = ""
    _is_stateful = True

    def __init__(self, config: RelmoConfig):
        super().__init__(config)
        self.network: Any = config.make_network()
        if config.tie_word_embeddings:
            self._tied_weights_keys = {"network.softmax.weight": "network.encoder.embedding.weight"}
        self.post_init()

    def _init_weights(self, module: Any) -> None:
        """Do nothing: the constructors of relmo's layers initialise them."""

    @classmethod
    def _supports_default_dynamic_cache(cls) -> bool:
        return False

    def get_input_embeddings(self) -> Any:
        """Return the table of input vectors, which has no row for padding."""
        return self.network.encoder.embedding

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        past_key_values: RelmoCache | None = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        output_hidden_states: bool | None = None,
        logits_to_keep: int | Tensor = 0,
        **kwargs: Any,
    ) -> Any:
        """Read ids (B, T) after the cached state; return logits (B, T, V), and the loss of labels, which are shifted.

        Symbols with 0 in the mask, of which the last T columns count, are not read, wherever they are. The hidden
        states are the input vectors and the output of each layer.
        """
        if input_ids is None:
            raise ValueError("The model needs input_ids; it does not read inputs_embeds.")
        network, ids = self.network, input_ids
        ids = torch.where(ids == self.config.pad_token_id, self.config.eos_token_id, ids)  # its output is not used
        state = network.initial_state(len(ids)) if past_key_values is None else past_key_values.state
        packing = None
        if attention_mask is not None and not (mask := attention_mask[:, -ids.shape[1] :].bool()).all():
            packing = Packing.from_mask(mask)
            ids = ids.gather(1, packing.order)
        output_hidden_states = (
            self.config.output_hidden_states if output_hidden_states is None else output_hidden_states
        )
        lengths = None if packing is None else packing.lengths.clamp(min=1)
        run = network.encoder(ids, state, lengths, every_layer=bool(output_hidden_states))
        layers, new_state = [run.output], run.state
        if output_hidden_states:
            layers = [network.encoder.embedding(ids), *run.layers]
        if packing is not None:
            layers = [packing.restore(layer) for layer in layers]
            pairs = zip(new_state, state, strict=True)
            was_read = packing.lengths > 0
            new_state = tuple(torch.where(expand_mask(was_read, new), new, old) for new, old in pairs)
        features = network.dropout(layers[-1])
        features = features[:, -logits_to_keep:] if isinstance(logits_to_keep, int) else features[:, logits_to_keep]
        if getattr(network, "bottleneck", None) is not None:
            features = network.bottleneck(features)
        softmax = network.softmax
        score = softmax.logits if isinstance(softmax, FullSoftmax) else softmax.log_probs
        logits = pad(score(features.flatten(0, 1)), (0, 1), value=PADDING_LOGIT).unflatten(0, features.shape[:2])
        loss = None
        if labels is not None:
            loss = self.loss_function(logits=logits, labels=labels, vocab_size=self.config.vocab_size, **kwargs)
        use_cache = not self.training if use_cache is None else use_cache
        length = input_ids.shape[1] + (0 if past_key_values is None else past_key_values.length)
        return CausalLMOutputWithPast(
            loss=loss,
            logits=logits,
            past_key_values=RelmoCache(new_state, length) if use_cache else None,
            hidden_states=tuple(layers) if output_hidden_states else None,
        )


class Packing(NamedTuple):
    """Order (B, T) that puts the symbols that are read before the others, and the number of these (B,)."""

    order: Tensor
    lengths: Tensor

    @classmethod
    def from_mask(cls, mask: Tensor) -> "Packing":
        """Return the packing of a mask (B, T) of the symbols that are read."""
        return cls(mask.byte().argsort(dim=1, descending=True, stable=True), mask.sum(dim=1))

    def restore(self, x: Tensor) -> Tensor:
        """Return packed x (B, T, D) in the original order."""
        return x.gather(1, self.order.argsort(dim=1).unsqueeze(2).expand_as(x))


class RelmoTokenizer(NotCopied, PythonBackend):
    """Tokenizer of a model: characters or words, as relmo splits a text. Ids are in the order of reading: for a
    backward direction, from the last word to the first."""

    vocab_files_names = {"vocab_file": VOCABULARY}  # noqa: RUF012  (as in the library)
    model_input_names = ["input_ids", "attention_mask"]  # noqa: RUF012
    _auto_map = {"AutoTokenizer": (TOKENIZER_CLASS, None)}  # noqa: RUF012

    def __init__(
        self,
        vocab_file: str,
        kind: str = "lm",
        direction: str = "forward",
        text: dict[str, Any] | None = None,
        **kwargs: Any,
    ):
        vocabulary_class = SentenceVocabulary if kind == "bilm" else Vocabulary
        self.vocabulary = vocabulary_class.load(Path(vocab_file))
        self.kind, self.direction, self.text = kind, direction, text
        self.text_settings = build(settings_class(kind), {"text": text or {}}, source="tokenizer_config.json").text
        index, padding = self.vocabulary.index, "<pad>"
        while padding in index:
            padding = f"<{padding}>"
        begin, end = (BOS, EOS) if kind == "bilm" else (self.vocabulary.end_symbol,) * 2
        if direction == "backward":
            begin, end = end, begin
        specials = {"bos_token": begin, "eos_token": end, "unk_token": self.vocabulary.unknown_symbol}
        options = {"pad_token": padding, "padding_side": "left", "special_tokens_pattern": "bos"}
        super().__init__(kind=kind, direction=direction, text=text, **(specials | options | kwargs))

    @property
    def vocab_size(self) -> int:
        """Size of the vocabulary without padding."""
        return len(self.vocabulary)

    def get_vocab(self) -> dict[str, int]:
        """Return the ids of all symbols."""
        return self.vocabulary.index | self._added_tokens_encoder

    def _tokenize(self, text: str, **_: Any) -> list[str]:
        if self.kind == "lm":
            return encode_text(text, self.text_settings)
        return TOKENIZERS[self.text_settings.tokenizer](text.lower() if self.text_settings.lowercase else text)

    def _convert_token_to_id(self, token: str) -> int:
        return self.vocabulary.index.get(token, self.vocabulary.unknown)

    def _convert_id_to_token(self, index: int) -> str:
        return self.vocabulary.symbols[index]

    def prepare_for_model(self, ids: list[int], pair_ids: list[int] | None = None, **kwargs: Any) -> Any:
        """Return the inputs of a model for the ids of a text, or a pair, in the order of the text."""
        pair_ids = None if pair_ids is None else self._reorder(pair_ids, [self.bos_token_id, self.eos_token_id])
        ids = self._reorder(ids, [self.bos_token_id, self.eos_token_id])
        return super().prepare_for_model(ids, pair_ids=pair_ids, **kwargs)

    def convert_tokens_to_string(self, tokens: list[str]) -> str:
        """Join tokens in the order of reading to a text, as relmo does."""
        return join_symbols(self._reorder(tokens, [self.bos_token, self.eos_token]), self.text_settings)

    def _reorder(self, symbols: list[Any], boundaries: list[Any]) -> list[Any]:
        """Convert between the order of the text and of reading, which differ between boundaries of a backward text."""
        if self.direction == "forward":
            return symbols
        runs = groupby(symbols, boundaries.__contains__)
        return [symbol for is_boundary, run in runs for symbol in (run if is_boundary else reversed(list(run)))]

    def save_vocabulary(self, save_directory: str, filename_prefix: str | None = None) -> tuple[str, ...]:
        """Write the vocabulary and the code that imports the classes."""
        paths = [Path(save_directory) / name for name in (f"{filename_prefix or ''}{VOCABULARY}", CODE)]
        self.vocabulary.save(paths[0])
        paths[1].write_text(CODE_TEXT, encoding="utf-8")
        return tuple(map(str, paths))


transformers.AutoConfig.register(RelmoConfig.model_type, RelmoConfig)
transformers.AutoModelForCausalLM.register(RelmoConfig, RelmoForCausalLM)
transformers.AutoTokenizer.register(RelmoConfig, slow_tokenizer_class=RelmoTokenizer)


def convert_model(model: LanguageModel | BiLM, direction: str = "forward") -> RelmoForCausalLM:
    """Return a recurrent language model, or one direction of a biLM, as a model of transformers.

    Input vectors of a biLM that reads characters are computed for the words that it predicts, so that all other words
    are read as <UNK>.
    """
    vocabulary, network = model.get_output_vocabulary(), model.get_recurrent_network()
    if direction not in model.directions:
        raise ModelError(f"The model reads {' and '.join(model.directions)} only, not {direction}.")
    ids = {"bos_token_id": vocabulary.end, "eos_token_id": vocabulary.end, "pad_token_id": len(vocabulary)}
    if isinstance(model, BiLM):
        begin, end = (BOS, EOS)[:: -1 if direction == "backward" else 1]
        ids |= {"bos_token_id": vocabulary.index[begin], "eos_token_id": vocabulary.index[end]}
    settings = model.settings.model
    config = RelmoConfig(
        kind=model.kind,
        direction=direction,
        settings={"model": dataclasses.asdict(settings)},
        vocab_size=len(vocabulary) + 1,
        hidden_size=settings.hidden,
        num_hidden_layers=settings.layers,
        tie_word_embeddings=settings.tied and getattr(settings, "input", "word") == "word",
        auto_map={"AutoConfig": CONFIG_CLASS, "AutoModelForCausalLM": MODEL_CLASS},
        **ids,
    )
    converted = RelmoForCausalLM(config).eval()
    if isinstance(model, BiLM):
        vectors = compute_input_vectors(model)
        converted.network.copy_weights(network, vectors, model.directions.index(direction))
    else:
        converted.network.load_state_dict(network.state_dict())
    converted.generation_config = transformers.GenerationConfig(
        **ids, suppress_tokens=[vocabulary.unknown]
    )  # as in relmo
    return converted


@torch.no_grad()
def compute_input_vectors(model: BiLM) -> Tensor:
    """Return the input vectors (V, P) of the words that a biLM predicts."""
    network, words = model.network, model.get_output_vocabulary().symbols
    if model.settings.model.input == "word":
        return network.encoder.embedding.weight  # type: ignore[union-attr, return-value]
    ids = torch.from_numpy(Spellings(words, model.settings.model.max_characters).ids()).to(model.device)
    return torch.cat([network.encoder(part) for part in ids.split(ENCODER_BATCH)])


def export_transformers(
    model: LanguageModel | BiLM, destination: Path, *, direction: str = "forward", overwrite: bool = False
) -> int:
    """Write the folder of a model for transformers; return its number of parameters."""
    converted = convert_model(model, direction)
    text = dataclasses.asdict(model.settings.text)
    text = {name: text[name] for name in ("unit", "tokenizer", "lowercase") if name in text}
    with new_folder(destination, overwrite=overwrite, ours=MODEL_FILES) as folder:
        model.get_output_vocabulary().save(folder / VOCABULARY)
        tokenizer = RelmoTokenizer(str(folder / VOCABULARY), kind=model.kind, direction=direction, text=text)
        shows_progress = transformers.logging.is_progress_bar_enabled()
        transformers.logging.disable_progress_bar()
        converted.save_pretrained(folder)
        if shows_progress:
            transformers.logging.enable_progress_bar()
        tokenizer.save_pretrained(folder)
        (folder / WEIGHTS).chmod((folder / VOCABULARY).stat().st_mode)  # safetensors ignores the umask
    return converted.num_parameters()
