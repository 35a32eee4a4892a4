"""transformers: recurrent language models and directions of biLMs as `AutoModelForCausalLM`, with their tokenizers.

A folder of `relmo convert MODEL FOLDER --to transformers` contains code that only imports this module, for
`trust_remote_code`, which is not needed after an import of this module. A text begins with the boundary that precedes
texts in relmo. The symbol after the vocabulary is padding; its logit is so low that its probability is zero.
"""

import json
from dataclasses import asdict, dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from relmo.config import build
from relmo.disk.outputs import new_folder
from relmo.errors import ModelError, optional_import
from relmo.networks.bilm import BiLMNetwork
from relmo.networks.language_model import RecurrentLM
from relmo.nn.dropout import drop
from relmo.nn.recurrence.stack import expand_mask, reverse_sequences
from relmo.settings.kinds import settings_class
from relmo.store.folder import MODEL_FILES, WEIGHTS
from relmo.text.characters import Spellings
from relmo.text.encode import TOKENIZERS, encode_text, join_symbols
from relmo.text.vocabulary import BOS, END, EOS

with optional_import("relmo.compat.transformers needs transformers 5", "transformers", ImportError):
    import transformers
    from transformers import GenerationMixin, PreTrainedConfig, PreTrainedModel, PythonBackend
    from transformers.modeling_outputs import CausalLMOutputWithPast
    from transformers.utils.generic import can_return_tuple

CODE = "relmo.compat.modeling_relmo"  # `save_pretrained` copies the module of a class to the folder
SYMBOLS = "vocab.json"


class RelmoConfig(PreTrainedConfig):
    """Configuration with the attributes `kind`, `direction` and `settings`, relmo's in the section `model`."""

    __module__, _auto_class = CODE, "AutoConfig"
    model_type = "relmo"
    keys_to_ignore_at_inference = ["past_key_values"]  # noqa: RUF012


@dataclass
class RelmoCache:
    """State after `length` symbols, including padding, as the generation of transformers carries it."""

    state: tuple[Tensor, ...]
    length: int
    is_compileable = is_croppable = False

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Return the number of symbols that were read."""
        return self.length

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Select the rows of the beams that continue."""
        self.state = tuple(tensor[beam_idx] for tensor in self.state)


class RelmoForCausalLM(PreTrainedModel, GenerationMixin):
    """Recurrent language model with the interface of transformers; a biLM has the layers of both directions."""

    __module__, _auto_class = CODE, "AutoModelForCausalLM"
    config_class = RelmoConfig
    _is_stateful = True
    _tied_weights_keys = {"network.softmax.weight": "network.encoder.embedding.weight"}  # noqa: RUF012
    _supports_default_dynamic_cache = staticmethod(lambda: False)

    def __init__(self, config: RelmoConfig):
        super().__init__(config)
        settings = build(settings_class(config.kind), config.settings, source="config.json").model
        network = BiLMNetwork if config.kind == "bilm" else RecurrentLM
        self.network: Any = network(settings, vocab_size=config.vocab_size - 1)
        self.post_init()

    def _init_weights(self, module: Any) -> None:
        """Do nothing: the constructors of relmo's layers initialise them."""

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        past_key_values: RelmoCache | None = None,
        labels: Tensor | None = None,
        use_cache: bool = True,
        output_hidden_states: bool = False,
        logits_to_keep: int | Tensor = 0,
        **kwargs: Any,
    ) -> Any:
        """Read ids (B, T) after the cached state, except those with 0 in the last T columns of the mask; return logits
        (B, T, V), the loss of labels, which are shifted, and as hidden state the input of the output layer."""
        network, config, steps = self.network, self.config, input_ids.shape[1]
        ids = torch.where(input_ids == config.pad_token_id, config.eos_token_id, input_ids)  # any symbol will do
        cache = RelmoCache(network.initial_state(len(ids)), 0) if past_key_values is None else past_key_values
        mask = torch.ones_like(ids) if attention_mask is None else attention_mask[:, -steps:].long()
        lengths, order = mask.sum(dim=1), mask.argsort(dim=1, descending=True, stable=True)
        if backward := config.direction == "backward":  # the network reads from the end
            order = reverse_sequences(order, lengths)
        ids, sizes = ids.gather(1, order), lengths.clamp(min=1)
        if config.kind == "bilm":
            layers, state = network(network.encoder(ids), sizes, cache.state)
            x = drop(layers[-1].chunk(2, dim=2)[backward], network.dropout, self.training)
        else:
            x, state = network.features(ids, cache.state, None if (sizes == steps).all() else sizes)
        x = x.gather(1, order.argsort(dim=1).unsqueeze(2).expand_as(x))
        pairs = zip(state, cache.state, strict=True)
        state = tuple(torch.where(expand_mask(lengths > 0, new), new, old) for new, old in pairs)
        features = x[:, -logits_to_keep:] if isinstance(logits_to_keep, int) else x[:, logits_to_keep]
        score = getattr(network.softmax, "logits", network.softmax.log_probs)
        logits = pad(score(features.flatten(0, 1)), (0, 1), value=-1e4).unflatten(0, features.shape[:2])
        loss = None if labels is None else self.loss_function(logits, labels, vocab_size=config.vocab_size, **kwargs)
        new_cache = RelmoCache(state, cache.length + steps) if use_cache else None
        hidden_states = (x,) if output_hidden_states or config.output_hidden_states else None
        return CausalLMOutputWithPast(loss, logits, new_cache, hidden_states)


class RelmoTokenizer(PythonBackend):
    """Tokenizer of a model: characters or words, as relmo splits a text. Ids are in the order of reading: for a
    backward direction, from the last word to the first."""

    __module__, _auto_class = CODE, "AutoTokenizer"
    vocab_size = 0  # without padding
    vocab_files_names = {"vocab_file": SYMBOLS}  # noqa: RUF012  (as in the library)
    model_input_names = ["input_ids", "attention_mask"]  # noqa: RUF012

    def __init__(self, vocab_file: Any, kind: str, direction: str, text: dict[str, Any], **kwargs: Any):
        self.vocab = json.loads(Path(vocab_file).read_text(encoding="utf-8"))
        self.symbols = {number: symbol for symbol, number in self.vocab.items()}
        self.vocab_size, self.kind, self.direction, self.text = len(self.vocab), kind, direction, text
        self.text_settings = build(settings_class(kind), {"text": text}, source="tokenizer_config.json").text
        super().__init__(kind=kind, direction=direction, text=text, special_tokens_pattern="bos", **kwargs)

    def get_vocab(self) -> dict[str, int]:
        return self.vocab | self._added_tokens_encoder

    def _tokenize(self, text: str, **_: Any) -> list[str]:
        if self.kind == "lm":
            return encode_text(text, self.text_settings)
        return TOKENIZERS[self.text_settings.tokenizer](text.lower() if self.text_settings.lowercase else text)

    def _convert_token_to_id(self, token: str) -> int:
        return self.vocab.get(token, self.vocab[self.unk_token])

    def _convert_id_to_token(self, index: int) -> str:
        return self.symbols[index]

    def prepare_for_model(self, ids: list[int], pair_ids: list[int] | None = None, **kwargs: Any) -> Any:
        return super().prepare_for_model(self._reorder(ids), pair_ids and self._reorder(pair_ids), **kwargs)

    def convert_tokens_to_string(self, tokens: list[str]) -> str:
        return join_symbols(self._reorder(tokens), self.text_settings)

    def _reorder(self, symbols: list[Any]) -> list[Any]:
        """Convert between the order of the text and of reading, which differ between boundaries of a backward text."""
        if self.direction == "forward":
            return symbols
        runs = groupby(symbols, (self.bos_token, self.eos_token, self.bos_token_id, self.eos_token_id).__contains__)
        return [symbol for is_boundary, run in runs for symbol in (run if is_boundary else reversed([*run]))]


transformers.AutoConfig.register("relmo", RelmoConfig)
transformers.AutoModelForCausalLM.register(RelmoConfig, RelmoForCausalLM)
transformers.AutoTokenizer.register(RelmoConfig, slow_tokenizer_class=RelmoTokenizer)
import relmo.compat.modeling_relmo  # noqa: E402, F401  (to which the classes belong)


def export_transformers(model: Any, destination: Path, *, direction: str = "forward", overwrite: bool = False) -> int:
    """Write a recurrent language model, or one direction of a biLM, for transformers; return its number of parameters.

    Input vectors of a biLM that reads characters are computed for its vocabulary: other words are read as <UNK>.
    """
    vocabulary, network, settings = model.get_output_vocabulary(), model.get_recurrent_network(), model.settings.model
    if direction not in model.directions:
        raise ModelError(f"The model reads {' and '.join(model.directions)} only, not {direction}.")
    weights = network.state_dict()
    # Scores are exact with a sampled softmax too, and transformers computes the loss from them.
    changes = {"softmax": "full"} if settings.softmax == "sampled" else {}
    if getattr(settings, "input", "word") == "char":
        ids = torch.from_numpy(Spellings(vocabulary.symbols, settings.max_characters).ids()).to(model.device)
        table = torch.cat([network.encoder(part).detach() for part in ids.split(4096)])
        weights = {name: weight for name, weight in weights.items() if not name.startswith("encoder.")}
        weights["encoder.embedding.weight"], changes["input"] = table, "word"
    begin, end = ((BOS, EOS) if model.kind == "bilm" else (END, END))[:: -1 if direction == "backward" else 1]
    padding = "<pad>" if "<pad>" not in vocabulary.index else "<padding>"
    specials = {"bos_token": begin, "eos_token": end, "unk_token": vocabulary.unknown_symbol, "pad_token": padding}
    special_ids = {f"{name}_id": vocabulary.index.get(symbol, len(vocabulary)) for name, symbol in specials.items()}
    model_settings, reading = {"model": asdict(settings) | changes}, {"kind": model.kind, "direction": direction}
    config = RelmoConfig(settings=model_settings, vocab_size=len(vocabulary) + 1, **reading, **special_ids)
    config.tie_word_embeddings = settings.tied
    converted = RelmoForCausalLM(config)
    converted.network.load_state_dict(weights)
    converted.generation_config = transformers.GenerationConfig(suppress_tokens=[vocabulary.unknown], **special_ids)
    text = {key: value for key, value in vars(model.settings.text).items() if key in ("unit", "tokenizer", "lowercase")}
    with new_folder(destination, overwrite=overwrite, ours=MODEL_FILES) as folder:
        (folder / SYMBOLS).write_text(json.dumps(vocabulary.index), encoding="utf-8")
        tokenizer = RelmoTokenizer(folder / SYMBOLS, text=text, padding_side="left", **reading, **specials)
        tokenizer.save_pretrained(folder)
        converted.save_pretrained(folder)
        (folder / WEIGHTS).chmod((folder / SYMBOLS).stat().st_mode)  # safetensors ignores the umask
    return converted.num_parameters()
