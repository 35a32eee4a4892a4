"""Language models as models of transformers: scores, generation with the carried state, masks, tokenizers, folders."""

import copy
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

pytest.importorskip("transformers", reason="transformers is not installed: pip install 'relmo[transformers]'")

from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

import relmo
from relmo.cli import main
from relmo.compat.transformers import RelmoCache, RelmoForCausalLM, RelmoTokenizer, export_transformers
from relmo.errors import ModelError
from relmo.models.bilm import BiLM
from relmo.models.lm import LanguageModel
from relmo.networks import make_language_model
from relmo.registry import CELLS
from relmo.settings.lm import LanguageModelSettings, LMSettings, TextSettings
from relmo.text.vocabulary import Vocabulary
from support import tagging
from support.small_models import bilm, language_model, ngram_model

TEXTS = ["the cat sat", "on the mat. ", "a", "the (cat)\nsat on"]
SENTENCES = ["the mat sat", "a cat", "the cat sat a the mat"]
SIZES = {"mlstm": 8, "slstm": 8, "rum": 8}
VARIANTS: dict[str, dict[str, Any]] = {
    "tied with a bottleneck": {"tied": True},
    "tied": {"tied": True, "embedding": 7},
    "tied and sampled": {"tied": True, "softmax": "sampled", "samples": 4},
    "adaptive": {"softmax": "adaptive", "cutoffs": (4, 9)},
    "sampled": {"softmax": "sampled", "samples": 4},
    "projection and residual": {"projection": 5, "residual": True, "layers": 3},
    "a smaller last layer": {"layers": 2, "last_hidden": 5, "tied": True},
    "options of the cell": {"cell_options": ("peephole=true", "learned_start=true")},
    "dropout": {"dropout": 0.5, "variational": True, "weight_drop": 0.5, "word_dropout": 0.3, "layers": 2},
    "mixed precision of states": {"cell": "minlstm", "layers": 2, "residual": True},
}


def word_model(*, tokenizer: Any = "words", lowercase: bool = True) -> LanguageModel:
    """Return a model over lowercase words and line ends."""
    torch.manual_seed(1)
    model = LanguageModelSettings(cell="gru", hidden=6)
    text = TextSettings(unit="word", tokenizer=tokenizer, lowercase=lowercase)
    vocabulary = Vocabulary([*Vocabulary.specials, "\n", "the", "cat", "n't", "do", ".", "mat,"])
    network = make_language_model(model, len(vocabulary))
    return LanguageModel(network, vocabulary, LMSettings(text=text, model=model))


def save(model: LanguageModel | BiLM, folder: Path, **options: Any) -> tuple[Any, Any]:
    """Return the model and the tokenizer that transformers loads from a converted folder."""
    export_transformers(model, folder, **options)
    return AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)


def reference_log_probs(model: LanguageModel, text: str) -> Tensor:
    """Return relmo's log-probabilities (T + 1, V) after the boundary and after each symbol."""
    ids = torch.tensor([[model.vocabulary.end, *model.encode(text)]])
    features, _ = model.network.features(ids, model.network.initial_state(1))
    return model.network.log_probs(features[0])


@pytest.mark.parametrize("cell", CELLS)
def test_every_cell_has_the_logits_of_relmo(cell: str, tmp_path: Path) -> None:
    source = language_model(cell, scale=2.0, hidden=SIZES.get(cell, 6), layers=2)
    model, tokenizer = save(source, tmp_path / "hf")
    ids = tokenizer(TEXTS[0], return_tensors="pt").input_ids
    features, _ = source.network.features(ids, source.network.initial_state(1))
    expected = source.network.softmax.logits(features[0])
    # weights that are mapped from a file are aligned differently, which changes the order of sums
    assert torch.equal(copy.deepcopy(model)(ids).logits[0, :, :-1], expected)
    torch.testing.assert_close(model(ids).logits[0, :, :-1], expected, rtol=0, atol=1e-5)
    assert (model(ids).logits.softmax(-1)[..., -1] == 0).all()


@pytest.mark.parametrize("options", VARIANTS.values(), ids=VARIANTS.keys())
def test_every_output_layer_and_size_has_the_probabilities_of_relmo(options: dict[str, Any], tmp_path: Path) -> None:
    source = language_model(scale=1.5, **options)
    model, tokenizer = save(source, tmp_path / "hf")
    encoded = tokenizer(TEXTS[3], return_tensors="pt")
    output = model(**encoded, labels=encoded.input_ids)
    expected = reference_log_probs(source, TEXTS[3])
    torch.testing.assert_close(output.logits[0].log_softmax(-1)[:, :-1], expected, rtol=0, atol=1e-6)
    nll = -expected[:-1].gather(1, encoded.input_ids[0, 1:, None]).mean()
    assert output.loss.item() == pytest.approx(nll.item(), rel=1e-6)
    model.save_pretrained(tmp_path / "again")
    tokenizer.save_pretrained(tmp_path / "again")
    again = AutoModelForCausalLM.from_pretrained(tmp_path / "again", output_hidden_states=True)
    assert again(encoded.input_ids).hidden_states[-1].shape[:2] == encoded.input_ids.shape
    assert torch.equal(again(encoded.input_ids).logits, output.logits)
    assert AutoTokenizer.from_pretrained(tmp_path / "again")(TEXTS).input_ids == tokenizer(TEXTS).input_ids
    if options.get("tied"):
        assert again.network.softmax.weight is again.network.encoder.embedding.weight


BILMS: dict[str, Any] = {
    "elmo": bilm,
    "one layer without skips": lambda: bilm(layers=1, skip_connections=False, cell_clip=0.0, projection_clip=0.0),
    "a smaller output layer": lambda: bilm(softmax_dim=2, softmax="full"),
    "gru": lambda: bilm(cell="gru", hidden=5, cell_clip=3.0),
    "variant of the lstm": lambda: bilm(cell_options=("coupled=true",)),
    "words": tagging.word_bilm,
}


@pytest.mark.parametrize("direction", ["forward", "backward"])
@pytest.mark.parametrize("make", BILMS.values(), ids=BILMS.keys())
def test_both_directions_of_a_bilm_have_its_log_probabilities(make: Any, direction: Any, tmp_path: Path) -> None:
    source = make()
    model, tokenizer = save(source, tmp_path / "hf", direction=direction)
    sentences = SENTENCES if make is not tagging.word_bilm else ["The dog runs .", "The"]
    for words in sentences:
        ids = torch.tensor([[*tokenizer(words).input_ids, tokenizer.eos_token_id]])
        log_probs = model(ids).logits[0, :-1].log_softmax(-1).gather(1, ids[0, 1:, None])[:, 0]
        (expected,) = source.log_probs([words], direction=direction)
        in_reading_order = expected if direction == "forward" else expected[::-1]
        np.testing.assert_allclose(log_probs.detach(), in_reading_order, atol=2e-6)


def test_other_words_of_a_bilm_are_read_as_the_unknown_word(tmp_path: Path) -> None:
    source = bilm()
    model, tokenizer = save(source, tmp_path / "hf")
    ids = tokenizer("the dog sat", return_tensors="pt").input_ids
    assert tokenizer.convert_ids_to_tokens(ids[0].tolist()) == ["<S>", "the", "<UNK>", "sat"]
    log_probs = model(ids).logits[0, :-1].log_softmax(-1).gather(1, ids[0, 1:, None])[:, 0]
    np.testing.assert_allclose(log_probs.detach(), source.log_probs([["the", "<UNK>", "sat"]])[0][0, :-1], atol=2e-6)
    assert not np.allclose(log_probs.detach(), source.log_probs(["the dog sat"])[0][0, :-1], atol=1e-4)


@pytest.mark.parametrize("make", [language_model, lambda: language_model("minlstm", layers=2, residual=True), bilm])
@pytest.mark.parametrize(("side", "direction"), [("left", "forward"), ("right", "forward"), ("left", "backward")])
def test_padding_changes_nothing(make: Any, side: Any, direction: Any, tmp_path: Path) -> None:
    model, tokenizer = save(make(), tmp_path / "hf", direction=direction if make is bilm else "forward")
    texts = SENTENCES if make is bilm else TEXTS
    batch = tokenizer(texts, return_tensors="pt", padding=True, padding_side=side)
    output = model(**batch, output_hidden_states=True)
    for row, text in enumerate(texts):
        single = model(tokenizer(text, return_tensors="pt").input_ids, output_hidden_states=True)
        mask = batch.attention_mask[row].bool()
        torch.testing.assert_close(output.logits[row, mask], single.logits[0], rtol=0, atol=2e-6)
        for layer, single_layer in zip(output.hidden_states, single.hidden_states, strict=True):
            torch.testing.assert_close(layer[row, mask], single_layer[0], rtol=0, atol=2e-6)
        for state, single_state in zip(output.past_key_values.state, single.past_key_values.state, strict=True):
            torch.testing.assert_close(state[row], single_state[0], rtol=0, atol=2e-6)


@pytest.mark.parametrize("direction", [None, "forward", "backward"])
def test_a_masked_part_leaves_the_state(direction: Any, tmp_path: Path) -> None:
    source = language_model() if direction is None else bilm()
    model, _ = save(source, tmp_path / "hf", direction=direction or "forward")
    ids = torch.tensor([[1, 4, 3, 5, 6, 4, 5, 5, 7], [1, 1, 1, 6, 7, 3, 3, 3, 4]])
    mask = torch.tensor([[1, 1, 0, 0, 1, 0, 1, 1, 0], [0, 0, 0, 1, 1, 0, 1, 1, 1]])
    expected = model(ids, attention_mask=mask)
    cache, logits = None, []
    for start in range(0, 9, 3):  # of the second row, the first part is masked
        part = slice(start, start + 3)
        output = model(ids[:, part], attention_mask=mask[:, : start + 3], past_key_values=cache)
        logits.append(output.logits)
        cache = output.past_key_values
    assert cache.get_seq_length() == 9
    is_read = mask.bool()
    torch.testing.assert_close(torch.cat(logits, 1)[is_read], expected.logits[is_read], rtol=0, atol=2e-6)
    for state, whole in zip(cache.state, expected.past_key_values.state, strict=True):
        if direction is not None:  # a biLM's state is that of both directions
            state, whole = (tensor[:, int(direction == "backward")] for tensor in (state, whole))
        torch.testing.assert_close(state, whole, rtol=0, atol=2e-6)


def test_generation_carries_the_state_and_agrees_with_relmo(tmp_path: Path) -> None:
    source = relmo.load("prose", device="cpu")
    model, tokenizer = save(source, tmp_path / "hf")
    sizes: list[int] = []
    model.network.encoder.register_forward_pre_hook(lambda _, arguments: sizes.append(arguments[0].shape[1]))
    prompts = ["The old man ", "Anna said that she "]
    options: dict[str, Any] = {"max_new_tokens": 30, "do_sample": False}
    batch = tokenizer(prompts, return_tensors="pt", padding=True)
    texts = tokenizer.batch_decode(model.generate(**batch, **options), skip_special_tokens=True)
    assert sizes == [batch.input_ids.shape[1]] + [1] * 29
    recomputed = model.generate(**batch, **options, use_cache=False)
    assert tokenizer.batch_decode(recomputed, skip_special_tokens=True) == texts
    first = model.generate(**batch, max_new_tokens=10, do_sample=False, return_dict_in_generate=True)
    assert isinstance(first.past_key_values, RelmoCache)
    mask = torch.cat([batch.attention_mask, torch.ones(2, 10, dtype=torch.long)], 1)
    later = model.generate(
        first.sequences, attention_mask=mask, past_key_values=first.past_key_values, max_new_tokens=20, do_sample=False
    )
    assert tokenizer.batch_decode(later, skip_special_tokens=True) == texts
    assert texts == [source.generate(prompt, limit=30, temperature=0) for prompt in prompts]


@pytest.mark.parametrize("make", [language_model, bilm, lambda: language_model("mlstm", hidden=8)])
def test_beams_keep_their_states(make: Any, tmp_path: Path) -> None:
    model, tokenizer = save(make(), tmp_path / "hf")
    batch = tokenizer(["the cat", "a"], return_tensors="pt", padding=True)
    output = model.generate(
        **batch,
        max_new_tokens=8,
        num_beams=4,
        num_return_sequences=4,
        length_penalty=0.0,
        return_dict_in_generate=True,
        output_scores=True,
    )
    start = batch.input_ids.shape[1]
    mask = torch.cat(
        [batch.attention_mask.repeat_interleave(4, 0), torch.ones(8, output.sequences.shape[1] - start)], 1
    )
    with torch.no_grad():
        log_probs = model(output.sequences, attention_mask=mask).logits.log_softmax(-1)
    for row, ids in enumerate(output.sequences):
        generated = [t for t in range(start, len(ids)) if ids[t] != tokenizer.pad_token_id]
        total = sum(log_probs[row, t - 1, ids[t]].item() for t in generated)
        assert output.sequences_scores[row].item() == pytest.approx(total, abs=1e-4)
    assert len({tuple(ids.tolist()) for ids in output.sequences}) == 8


def test_beam_search_finds_the_texts_of_relmo(tmp_path: Path) -> None:
    source = relmo.load("prose", device="cpu")
    model, tokenizer = save(source, tmp_path / "hf")
    encoded = tokenizer("The old man ", return_tensors="pt")
    beams = model.generate(**encoded, max_new_tokens=15, num_beams=3, num_return_sequences=3, length_penalty=0.0)
    texts = [beam.text for beam in source.search("The old man ", beams=3, limit=15)]
    assert tokenizer.batch_decode(beams, skip_special_tokens=True) == texts


@pytest.mark.parametrize("make", [lambda: language_model(layers=2, tied=True, dropout=0.1), bilm])
def test_it_learns_and_every_weight_has_a_gradient(make: Any, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = save(make(), tmp_path / "hf")[0].train()
    ids = torch.tensor([[1, 5, 4, 6, 3, 5, 4, 6]])
    optimizer = torch.optim.Adam(model.parameters(), lr=0.03)
    losses = []
    for _ in range(40):
        output = model(ids, labels=ids)
        optimizer.zero_grad()
        output.loss.backward()
        assert all(parameter.grad is not None for parameter in model.parameters())
        optimizer.step()
        losses.append(output.loss.item())
    assert losses[-1] < losses[0] / 3


@pytest.mark.parametrize(
    "text", ["the cat (sat)\n", "", "THE Cat don't\n\nsit.", "mat, cat", "<unk> the", "Ünï\t\x1cthe"]
)
@pytest.mark.parametrize("number", range(4))
def test_the_tokenizer_has_the_ids_and_the_text_of_relmo(number: int, text: str, tmp_path: Path) -> None:
    makers = [language_model, word_model, lambda: word_model(tokenizer="whitespace"), bilm]
    source: Any = makers[number]()
    _, tokenizer = save(source, tmp_path / "hf")
    ids = tokenizer(text, split_special_tokens=True).input_ids
    assert ids == [tokenizer.bos_token_id, *source.encode(text)]
    assert tokenizer(text, add_special_tokens=False, split_special_tokens=True).input_ids == ids[1:]
    if not isinstance(source, BiLM):
        assert tokenizer.decode(ids[1:]) == source.decode(ids[1:])
    symbols = [i for i in ids[1:] if i >= len(source.vocabulary.specials)]
    assert tokenizer.decode(ids, skip_special_tokens=True) == tokenizer.decode(symbols)


def test_a_backward_tokenizer_reverses_each_sentence_and_decodes_it_in_order(tmp_path: Path) -> None:
    source = bilm()
    _, tokenizer = save(source, tmp_path / "hf", direction="backward")
    ids = tokenizer("the cat sat").input_ids
    assert tokenizer.convert_ids_to_tokens(ids) == ["</S>", "sat", "cat", "the"]
    assert tokenizer.decode(ids, skip_special_tokens=True) == "the cat sat"
    assert tokenizer(["the", "cat", "sat"], is_split_into_words=True).input_ids == ids
    assert tokenizer("the cat sat<S>").input_ids == [*ids, tokenizer.eos_token_id]
    assert tokenizer(["a", "the cat"], padding=True).attention_mask == [[0, 1, 1], [1, 1, 1]]


def test_padding_has_a_symbol_of_its_own(tmp_path: Path) -> None:
    source = word_model(tokenizer="whitespace")
    vocabulary = Vocabulary([*source.vocabulary.symbols[:-1], "<pad>"])
    model, tokenizer = save(LanguageModel(source.network, vocabulary, source.settings), tmp_path / "hf")
    assert tokenizer.pad_token == "<padding>"
    assert tokenizer.pad_token_id == len(vocabulary) == model.config.vocab_size - 1
    assert len(tokenizer) == model.config.vocab_size
    ids = tokenizer("<pad>").input_ids
    assert ids[1] == len(vocabulary) - 1


REMOTE = """
import sys
from transformers import AutoModelForCausalLM, AutoTokenizer
folder = sys.argv[1]
model = AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=True)
tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=True)
model.save_pretrained(folder + "-again"), tokenizer.save_pretrained(folder + "-again")
again = AutoModelForCausalLM.from_pretrained(folder + "-again", trust_remote_code=True)
tokenizer = AutoTokenizer.from_pretrained(folder + "-again", trust_remote_code=True)
ids = tokenizer("the cat", return_tensors="pt").input_ids
assert again(ids).logits.equal(model(ids).logits)
print(*ids[0].tolist(), *again(ids).logits[0, -1].tolist())
"""


def test_a_folder_is_loaded_by_its_code_alone_and_saved_with_it(tmp_path: Path) -> None:
    source = language_model()
    model, tokenizer = save(source, tmp_path / "hf")
    names = {path.name for path in (tmp_path / "hf").iterdir()}
    environment = os.environ | {"HF_HOME": str(tmp_path / "home"), "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, "-c", REMOTE, str(tmp_path / "hf")]
    process = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert process.returncode == 0, process.stderr
    ids = tokenizer("the cat", return_tensors="pt").input_ids
    expected = [*ids[0].tolist(), *model(ids).logits[0, -1].tolist()]
    assert list(map(float, process.stdout.split())) == expected
    assert {path.name for path in (tmp_path / "hf-again").iterdir()} == names
    assert (tmp_path / "hf-again" / "config.json").read_text() == (tmp_path / "hf" / "config.json").read_text()


def test_a_new_model_of_a_config_is_initialised_as_in_relmo(tmp_path: Path) -> None:
    source = language_model(hidden=40, scale=1.0)
    export_transformers(source, tmp_path / "hf")
    model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(tmp_path / "hf"))
    assert isinstance(model, RelmoForCausalLM)
    for new, old in zip(model.network.parameters(), source.network.parameters(), strict=True):
        assert new.detach().std().item() == pytest.approx(old.std().item(), rel=0.6, abs=1e-6)


def test_what_cannot_be_converted_is_an_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ModelError, match="no recurrent layers"):
        export_transformers(ngram_model(), tmp_path / "out")
    with pytest.raises(ModelError, match="forward only"):
        export_transformers(language_model(), tmp_path / "out", direction="backward")
    assert not (tmp_path / "out").exists()
    language_model().save_pretrained("mine")
    for arguments, word in (
        (["mine", "out", "--direction", "forward"], "--to transformers"),
        (["words", "out", "--to", "transformers"], "word vectors"),
        (["mine", "out", "--to", "transformers", "--precision", "int8"], "--precision"),
    ):
        assert run_command(["convert", *arguments]) != 0
        errors = capsys.readouterr().err
        assert word in errors
        assert errors.count("\n") == 1
    assert run_command(["convert", "mine", "out", "--to", "transformers"]) == 0
    captured = capsys.readouterr()
    assert captured.out.startswith("wrote out: ")
    assert captured.err == ""
    assert run_command(["convert", "mine", "out", "--to", "transformers"]) != 0
    assert run_command(["convert", "mine", "out", "--to", "transformers", "--overwrite", "--quiet"]) == 0
    with pytest.raises(ModelError, match="not a relmo config"):
        relmo.load("out")


def run_command(arguments: list[str]) -> int:
    """Return the exit status of a command line."""
    try:
        main(arguments)
    except SystemExit as error:
        return int(error.code or 0)
    return 0


@pytest.mark.parametrize("direction", [None, "forward", "backward"])
def test_minicons_has_the_surprisal_of_relmo(direction: Any, tmp_path: Path) -> None:
    scorer_module = pytest.importorskip("minicons.scorer", reason="minicons is not installed")
    source: Any = language_model() if direction is None else bilm()
    options = {} if direction is None else {"direction": direction}
    export_transformers(source, tmp_path / "hf", **options)
    scorer = scorer_module.IncrementalLMScorer(str(tmp_path / "hf"))
    assert isinstance(scorer.tokenizer, RelmoTokenizer)
    sentences = ["the cat sat", "a mat"]
    rows = list(source.surprisal(sentences, context="sentence", ends=True, **options))
    bits = [[row.surprisal for row in rows if row.line == line] for line in (1, 2)]
    if direction is None:  # rows are words, tokens are characters
        bits = [[row.surprisal for row in rows if row.line == line and not row.is_end] for line in (1, 2)]
        scores = scorer.token_score(sentences, surprisal=True, base_two=True)
        assert [sum(score for _, score in row) for row in scores] == pytest.approx([*map(sum, bits)], abs=1e-5)
        return
    if direction == "backward":
        bits = [row[:0:-1] + row[:1] for row in bits]  # the row of the beginning is the first
    words = scorer.token_score(sentences, surprisal=True, base_two=True)
    assert [[score for _, score in row[1:]] for row in words] == [pytest.approx(row[:-1], abs=1e-5) for row in bits]
    sums = scorer.sequence_score(sentences, reduction=lambda scores: -scores.sum(0).item(), eos_token=True)
    assert [total / math.log(2) for total in sums] == pytest.approx([*map(sum, bits)], abs=1e-5)
    if direction == "forward":
        (score,) = scorer.conditional_score(["the cat"], ["sat"], base_two=True)
        assert -score == pytest.approx(bits[0][2], abs=1e-5)
