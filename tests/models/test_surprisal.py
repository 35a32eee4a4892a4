"""Surprisal of words against a loop over the symbols, for every kind of language model; n-grams against KenLM too."""

import importlib
import math
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from relmo.errors import SettingError
from relmo.models import surprisal as engine
from relmo.models.bilm import BiLM
from relmo.models.lm import LanguageModel
from relmo.networks import make_language_model
from relmo.networks.bilm import BiLMNetwork
from relmo.networks.ngram import NGramLM
from relmo.settings.bilm import BiLMModelSettings, BiLMSettings
from relmo.settings.lm import LanguageModelSettings, LMSettings, TextSettings
from relmo.settings.options import SurprisalOptions
from relmo.text.characters import character_ids
from relmo.text.tokenize import words
from relmo.text.vocabulary import SentenceVocabulary, Vocabulary

TEXT = "The cat, it sat.\n  Don't  sit on the mat!\n\nA cat sat on a mat\n"
CELLS = ("elman", "gru", "lstm", "feedforward", "ngram")


def model_of(cell: str, unit: str, **text: Any) -> LanguageModel:
    """A network with weights large enough to have opinions; the words `mat` and `!`, and the letter D, are unknown."""
    torch.manual_seed(3)
    given: dict[str, Any] = {"order": 3} if cell == "ngram" else {"hidden": 7, "embedding": 5}
    given |= {"order": 4} if cell == "feedforward" else {}
    settings = LMSettings(model=LanguageModelSettings(cell=cell, **given), text=TextSettings(unit=unit, **text))  # type: ignore[arg-type]
    read = TEXT.lower() if settings.text.lowercase else TEXT
    seen = list(read) if unit == "char" else [s for line in read.splitlines() for s in (*words(line), "\n")]
    vocabulary = Vocabulary([*Vocabulary.specials, *sorted({*seen} - {"mat", "!", "D"})])
    network = make_language_model(settings.model, len(vocabulary))
    if isinstance(network, NGramLM):
        network = NGramLM.fit(vocabulary.ids([*seen, "</s>"] * 2), vocab_size=len(vocabulary), order=3)
    for parameter in network.parameters():
        parameter.data.mul_(3.0)
    return LanguageModel(network, vocabulary, settings)


@torch.no_grad()
def one_at_a_time(model: LanguageModel, symbols: list[str]) -> list[tuple[float, float]]:
    """The definition: the surprisal of each symbol after </s>, and the entropy before it, in bits."""
    state, found = model.network.initial_state(1), []
    for before, after in zip(["</s>", *symbols], symbols, strict=False):
        log_p, state = model.network.step(torch.from_numpy(model.vocabulary.ids([before])), state)
        p = log_p[0].double().exp().numpy()
        found.append((-math.log2(p[model.vocabulary.ids([after])[0]]), -float((p * np.log2(p)).sum())))
    return found


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that the text is read in several blocks, windows and batches."""
    monkeypatch.setattr(engine, "BLOCK", 20)
    monkeypatch.setattr(engine, "UNROLL", 7)
    monkeypatch.setattr(engine, "BATCH_LINES", 2)
    monkeypatch.setattr(engine, "MAX_PROBS", {"cpu": 64, "cuda": 64})


@pytest.mark.parametrize("cell", CELLS)
def test_entropy_reductions_are_those_of_distributions_after_each_step(cell: str) -> None:
    """Every distribution is enumerated: H before the word's first symbol minus H before the next row's first symbol."""
    model = model_of(cell, "word")
    lines = [words(line) for line in TEXT.splitlines()]
    symbols = [symbol for line in lines for symbol in (*line, "\n")] + ["</s>"]
    entropies = [entropy for _, entropy in one_at_a_time(model, symbols)]
    is_word = [symbol not in ("\n", "</s>") for symbol in symbols]
    expected = [entropies[i] - entropies[i + 1] for i in range(len(symbols)) if is_word[i]]
    table = model.surprisal(TEXT, ends=True)
    assert [row.entropy_reduction for row in table if not row.is_end] == pytest.approx(expected, rel=1e-3, abs=1e-5)
    assert {row.entropy_reduction for row in table if row.is_end} == {None}
    if cell != "ngram":
        assert min(expected) < 0 < max(expected), "the sign is kept"
    # A text without an end: the distribution after its last word is computed, and its total is without one.
    (entropy,) = one_at_a_time(model, [*words(TEXT.splitlines()[0]), "</s>"])[-1:]
    alone = model.surprisal(TEXT.splitlines()[0], context="sentence", ends=True)
    assert not any(row.is_end for row in alone)
    assert alone[-1].entropy - alone[-1].entropy_reduction == pytest.approx(entropy[1], rel=1e-4)
    assert alone.total_bits == pytest.approx(sum(row.surprisal for row in alone))


@pytest.mark.parametrize("space", ["after", "before"])
def test_entropy_reductions_of_characters_are_those_between_first_characters(space: str) -> None:
    model = model_of("gru", "char")
    entropies = [entropy for _, entropy in one_at_a_time(model, [*TEXT, "</s>"])]
    starts, place = [], 0
    for line in TEXT.splitlines():
        pieces = re.findall(r"^\s*\S+\s*|\S+\s*" if space == "after" else r"\s*\S+\s*$|\s*\S+", line)
        for piece in pieces:
            starts.append((place, place + len(piece)))
            place += len(piece)
        place += 1
    table = model.surprisal(TEXT, rows="whitespace", space=space)
    expected = [entropies[start] - entropies[end] for start, end in starts]
    assert [row.entropy_reduction for row in table] == pytest.approx(expected, rel=1e-3, abs=1e-5)


@pytest.mark.parametrize("cell", CELLS)
def test_words_cost_what_a_loop_over_the_words_says(cell: str) -> None:
    model = model_of(cell, "word")
    symbols = [symbol for line in TEXT.splitlines() for symbol in (*words(line), "\n")] + ["</s>"]
    expected = [
        (symbol, *scores)
        for symbol, scores in zip(symbols, one_at_a_time(model, symbols), strict=True)
        if symbol not in ("\n", "</s>")
    ]
    table = model.surprisal(TEXT)
    assert [row.word for row in table] == [symbol for symbol, _, _ in expected]
    assert [row.surprisal for row in table] == pytest.approx([bits for _, bits, _ in expected], rel=1e-4)
    assert [row.entropy for row in table] == pytest.approx([entropy for _, _, entropy in expected], rel=1e-4)
    assert [row.word for row in table if row.unknown] == ["mat", "!", "mat"]
    assert all(TEXT.split("\n")[row.line - 1][row.start : row.end] == row.word for row in table)
    assert [(row.line, row.position) for row in table][:7] == [(1, i) for i in range(1, 7)] + [(2, 1)]


@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.parametrize("space", ["after", "before"])
def test_characters_are_summed_to_words_with_the_white_space_where_it_is_said(cell: str, space: str) -> None:
    model = model_of(cell, "char")
    scores = one_at_a_time(model, [*TEXT, "</s>"])
    table, place, expected = model.surprisal(TEXT, rows="whitespace", space=space), 0, []
    for line in TEXT.splitlines():
        pieces = re.findall(r"^\s*\S+\s*|\S+\s*" if space == "after" else r"\s*\S+\s*$|\s*\S+", line)
        assert "".join(pieces) == line
        for piece in pieces:
            expected.append(
                (piece.strip(), sum(bits for bits, _ in scores[place : place + len(piece)]), scores[place][1])
            )
            place += len(piece)
        place += 1
    assert [row.word for row in table] == [word for word, _, _ in expected]
    assert [row.surprisal for row in table] == pytest.approx([bits for _, bits, _ in expected], rel=1e-4)
    assert [row.entropy for row in table] == pytest.approx([entropy for _, _, entropy in expected], rel=1e-4)
    assert [row.word for row in table if row.unknown] == ["Don't", "mat!"]
    assert table.total_bits == pytest.approx(sum(bits for bits, _ in scores), rel=1e-5)


@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.parametrize("unit", ["char", "word"])
def test_sums_with_the_ends_are_those_of_evaluate(cell: str, unit: str, tmp_path: Path) -> None:
    for name, text, settings in [
        ("plain", TEXT, {}),
        ("no end", TEXT.strip(), {}),
        ("texts", TEXT, {"text_per": "line"}),
        ("low", TEXT, {"lowercase": True}),
    ]:
        model = model_of(cell, unit, **settings)
        (tmp_path / name).write_text(text)
        score = model.evaluate(str(tmp_path / name))
        table = model.surprisal(text, ends=True)
        assert sum(row.surprisal for row in table) == pytest.approx(score.nll / math.log(2), rel=1e-5), name
        assert table.total_bits == pytest.approx(score.nll / math.log(2), rel=1e-5), name


def test_by_sentence_each_line_is_read_as_if_it_stood_alone() -> None:
    for cell, unit in (("lstm", "char"), ("gru", "word"), ("ngram", "word"), ("feedforward", "char")):
        model = model_of(cell, unit)
        together = model.surprisal(TEXT, context="sentence", ends=True)
        alone = [
            row for line in TEXT.splitlines() for row in model.surprisal(line + "\n", context="sentence", ends=True)
        ]
        assert [row.surprisal for row in together] == pytest.approx([row.surprisal for row in alone], rel=1e-4)
        here, there = (next(r for r in rows if r.line == 4) for rows in (model.surprisal(TEXT), together))
        assert here.surprisal != pytest.approx(there.surprisal, rel=1e-3), "the lines before count"


def test_rows_at_white_space_are_sums_of_tokens() -> None:
    model = model_of("lstm", "word")
    tokens, rows = model.surprisal(TEXT), model.surprisal(TEXT, rows="whitespace")
    assert [row.word for row in rows] == TEXT.split()
    for row in rows:
        parts = [t for t in tokens if t.line == row.line and row.start <= t.start and t.end <= row.end]
        assert row.surprisal == pytest.approx(sum(part.surprisal for part in parts))
        assert row.entropy == parts[0].entropy
        assert row.unknown == any(part.unknown for part in parts)


def test_words_that_are_given_are_kept_and_letters_that_grow_in_lower_case_do_not_move_offsets() -> None:
    model = model_of("gru", "word", lowercase=True)
    table = model.surprisal([["The", "cat", "can't"], "a İ Mat"])
    assert [row.word for row in table] == ["The", "cat", "can't", "a", "İ", "Mat"]
    assert [(row.start, row.end) for row in table] == [(0, 3), (4, 7), (8, 13), (0, 1), (2, 3), (4, 7)]
    chars = model_of("gru", "char", lowercase=True).surprisal("a İ Mat")
    assert [(row.word, row.start, row.end) for row in chars] == [("a", 0, 1), ("İ", 2, 3), ("Mat", 4, 7)]


def bilm_of(unit: str = "char") -> BiLM:
    torch.manual_seed(5)
    given: dict[str, Any] = {"hidden": 9, "projection": 4, "cell_clip": 0.3, "input": unit}
    given |= {"filters": ("1x4", "2x4"), "char_dim": 3} if unit == "char" else {}
    settings = BiLMModelSettings(**given)
    vocabulary = SentenceVocabulary([*SentenceVocabulary.specials, "The", "cat", ",", "it", "sat", ".", "n't", "on"])
    network = BiLMNetwork(settings, vocab_size=len(vocabulary))
    for parameter in network.parameters():
        parameter.data.mul_(2.0)
    return BiLM(network, BiLMSettings(model=settings), vocabulary)


@torch.no_grad()
def one_word_at_a_time(model: BiLM, sentences: list[list[str]], direction: int) -> list[tuple[str, float, float]]:
    """The definition: each word of each sentence, in the order of the text, with the state carried through."""
    network, vocabulary = model.network, model.vocabulary
    assert vocabulary is not None
    assert network.softmax is not None
    state, found = network.initial_state(1), []
    first, last = ("</S>", "<S>") if direction else ("<S>", "</S>")
    for sentence in sentences:
        read = sentence[::-1] if direction else sentence
        scores = []
        for word, following in zip([first, *read], [*read, last], strict=True):
            spelled = model.settings.model.input == "char"
            ids = character_ids([word], model.settings.model.max_characters) if spelled else vocabulary.ids([word])
            run = network.lstm(network.encoder(torch.from_numpy(ids)).expand(2, 1, 1, -1), state)
            state = run.state
            p = torch.softmax(network.softmax.logits(run.layers[-1][direction, 0])[0].double(), 0).numpy()
            scores.append((following, -math.log2(p[vocabulary.ids([following])[0]]), -float((p * np.log2(p)).sum())))
        found += [*scores[-2::-1], scores[-1]] if direction else scores
    return found


@pytest.mark.parametrize("unit", ["char", "word"])
@pytest.mark.parametrize("direction", ["forward", "backward"])
def test_each_direction_of_a_bilm_costs_what_a_loop_over_its_words_says(
    unit: str, direction: str, tmp_path: Path
) -> None:
    model, sentences = bilm_of(unit), [words(line) for line in TEXT.splitlines() if line.strip()]
    (tmp_path / "text.txt").write_text(TEXT)
    expected = one_word_at_a_time(model, sentences, int(direction == "backward"))
    table = model.surprisal(TEXT, direction=direction, ends=True)
    by_place = [row for row in table if not row.is_end]
    plain = [each for each in expected if each[0] not in ("<S>", "</S>")]
    assert [row.word for row in by_place] == [word for word, _, _ in plain]
    assert [row.surprisal for row in by_place] == pytest.approx([bits for _, bits, _ in plain], rel=1e-4)
    assert [row.entropy for row in by_place] == pytest.approx([entropy for _, _, entropy in plain], rel=1e-4)
    reductions, place = [], 0
    for sentence in sentences:
        *of_words, end = [entropy for _, _, entropy in expected[place : place + len(sentence) + 1]]
        after = [end, *of_words[:-1]] if direction == "backward" else [*of_words[1:], end]
        reductions += (np.array(of_words) - after).tolist()
        place += len(sentence) + 1
    assert [row.entropy_reduction for row in by_place] == pytest.approx(reductions, rel=1e-3, abs=1e-5)
    score = model.evaluate(str(tmp_path / "text.txt"))
    nll = score.backward_nll if direction == "backward" else score.forward_nll
    assert sum(row.surprisal for row in table) == pytest.approx(nll / math.log(2), rel=1e-5)
    assert sum(row.unknown for row in by_place) == score.unknown
    alone = model.surprisal(TEXT, direction=direction, context="sentence", ends=True)
    log_p = np.concatenate(model.log_probs([line for line in TEXT.splitlines() if line.strip()], direction=direction))  # type: ignore[arg-type]
    assert [row.surprisal for row in alone] == pytest.approx((-log_p / math.log(2)).tolist(), rel=1e-4)


Arpa = list[dict[tuple[str, ...], list[float]]]


def arpa_of(network: NGramLM, names: list[str]) -> Arpa:
    """An ARPA file's tables: of each n-gram log10 p, interpolated, and the log10 weight of its back-off."""
    orders: Arpa = []
    uniform, shorter = 1 / network.vocab_size, [()]
    for k in range(1, network.order + 1):
        table = {name: network.get_buffer(f"{name}_{k}").numpy() for name in ("keys", "probability", "gamma")}
        grams = [
            (*shorter[key // network.vocab_size], names[key % network.vocab_size]) for key in table["keys"].tolist()
        ]
        for gram, weight in zip(shorter, table["gamma"].tolist(), strict=True):
            if gram:
                orders[-1][gram][1] = math.log10(weight)
        lower = (lambda gram: uniform) if k == 1 else (lambda gram: 10 ** orders[-1][gram[1:]][0])
        weights = dict(zip(shorter, table["gamma"].tolist(), strict=True))
        orders.append(
            {
                gram: [math.log10(p + weights[gram[:-1]] * lower(gram)), 0.0]
                for gram, p in zip(grams, table["probability"].tolist(), strict=True)
            }
        )
        shorter = grams
    unseen = math.log10(float(network.get_buffer("gamma_1")[0]) * uniform)
    for name in names:
        orders[0].setdefault((name,), [unseen, 0.0])
    return orders


def by_back_off(orders: Arpa, context: tuple[str, ...], word: str) -> float:
    """log10 p(word | context), as ARPA's format says."""
    if (found := orders[len(context)].get((*context, word))) is not None:
        return found[0]
    return orders[len(context) - 1].get(context, [0, 0.0])[1] + by_back_off(orders, context[1:], word)


def named(model: LanguageModel, symbols: list[str]) -> list[str]:
    """Symbols as KenLM may read them: its own marks mean something else, white space separates."""
    ids = model.vocabulary.ids(symbols).tolist()
    return ["<unk>" if i == model.vocabulary.unknown else f"w{i}" for i in ids]


@pytest.mark.parametrize("unit", ["char", "word"])
def test_ngrams_cost_what_their_arpa_file_says_by_hand_and_in_kenlm(unit: str, tmp_path: Path) -> None:
    model = model_of("ngram", unit)
    assert isinstance(model.network, NGramLM)
    orders = arpa_of(model.network, named(model, model.vocabulary.symbols))
    symbols = [*TEXT, "</s>"] if unit == "char" else [*words(TEXT.replace("\n", " ")), "</s>"]
    text = TEXT if unit == "char" else " ".join(symbols[:-1])
    read = named(model, ["</s>", *symbols])
    bits = [-by_back_off(orders, tuple(read[max(0, i - 2) : i]), read[i]) / math.log10(2) for i in range(1, len(read))]
    table = model.surprisal(text, ends=True)
    assert sum(row.surprisal for row in table) == pytest.approx(sum(bits), rel=1e-5)
    if unit == "word":
        assert [row.surprisal for row in table] == pytest.approx(bits, rel=1e-4)
    kenlm = pytest.importorskip("kenlm")
    assert kenlm_bits(kenlm, orders, read, tmp_path / "model.arpa") == pytest.approx(bits, rel=1e-4)


def kenlm_bits(
    kenlm: Any, orders: list[dict[tuple[str, ...], list[float]]], read: list[str], path: Path
) -> list[float]:
    orders[0] |= {("<s>",): [-99.0, 0.0], ("</s>",): [-99.0, 0.0]}
    lines = ["\\data\\", *(f"ngram {k}={len(table)}" for k, table in enumerate(orders, start=1))]
    for k, table in enumerate(orders, start=1):
        lines += ["", f"\\{k}-grams:"]
        lines += [
            f"{p:.7f}\t{' '.join(gram)}" + (f"\t{w:.7f}" if k < len(orders) else "") for gram, (p, w) in table.items()
        ]
    path.write_text("\n".join([*lines, "", "\\end\\", ""]))
    model, state, found = kenlm.Model(str(path)), kenlm.State(), []
    model.NullContextWrite(state)
    for word in read:
        after = kenlm.State()
        found.append(-model.BaseScore(state, word, after) / math.log10(2))
        state = after
    return found[1:]


def test_options_that_mean_nothing_for_a_model_are_errors() -> None:
    word, char = model_of("lstm", "word"), model_of("lstm", "char")
    for model, options, message in [
        (word, {"space": "after"}, "space"),
        (char, {"context": "page"}, "context must be one of text, sentence"),
        (model_of("lstm", "word", tokenizer="whitespace"), {"rows": "words"}, "rows words are smaller"),
    ]:
        with pytest.raises(SettingError, match=message):
            model.surprisal("a cat", **options)  # type: ignore[arg-type]


def test_a_table_is_columns_files_and_a_page(tmp_path: Path) -> None:
    table = model_of("lstm", "word").surprisal('He said "the cat", <b>')
    numbers = ["surprisal", "entropy", "entropy_reduction", "unknown"]
    assert list(table.to_dict()) == ["line", "position", "word", "start", "end", *numbers]
    assert table.to_dict()["word"] == [row.word for row in table]
    csv = importlib.import_module("csv")
    for name, delimiter in (("t.tsv", "\t"), ("t.csv", ",")):
        getattr(table, f"to_{name[2:]}")(tmp_path / name)
        with (tmp_path / name).open(newline="") as file:
            rows = list(csv.DictReader(file, delimiter=delimiter))
        assert [row["word"] for row in rows] == table.to_dict()["word"]
        assert [float(row["surprisal"]) for row in rows] == pytest.approx([row.surprisal for row in table], abs=1e-6)
    parquet = pytest.importorskip("pyarrow.parquet")
    table.to_parquet(tmp_path / "t.parquet")
    assert parquet.read_table(tmp_path / "t.parquet").to_pydict() == table.to_dict()
    assert "&lt;b" in table._repr_html_() or "&lt;" in table._repr_html_()


def test_a_model_that_reads_forwards_only_has_no_other_direction() -> None:
    with pytest.raises(SettingError, match="direction backward"):
        model_of("lstm", "char").surprisal_rows([], SurprisalOptions(direction="backward"))


def test_totals_are_sums_and_means_of_the_words_of_each_line() -> None:
    for cell, unit in (("lstm", "char"), ("gru", "word")):
        table = model_of(cell, unit).surprisal(TEXT, ends=True)
        totals = table.totals()
        assert [record["line"] for record in totals] == [1, 2, 4]
        for record in totals:
            line = [row for row in table if row.line == record["line"]]
            rows = [row for row in line if not row.is_end]
            assert record["words"] == len(rows)
            assert record["unknown"] == sum(row.unknown for row in rows)
            assert record["surprisal"] == pytest.approx(sum(row.surprisal for row in line))
            assert record["mean_surprisal"] == pytest.approx(np.mean([row.surprisal for row in rows]))
            assert record["mean_entropy"] == pytest.approx(np.mean([row.entropy for row in rows]))


def test_a_table_is_a_frame_of_pandas_or_an_error_that_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    table = model_of("lstm", "word").surprisal("a cat sat")
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "pandas", None)
        with pytest.raises(SettingError, match="pip install pandas"):
            table.to_pandas()
    pytest.importorskip("pandas")
    assert table.to_pandas().to_dict("list") == table.to_dict()
