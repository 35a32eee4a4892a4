"""Rows of the table: files, network, use of ELMo and published scores of each task.

`settings` and `elmo` are flags of `relmo train`; `elmo` is added for networks with a biLM:

    --elmo-at        only the input for roles, coreference and named entities, both places otherwise, as in the paper
    --elmo-dropout   the paper has 0.5 for vectors of 1024 dimensions, and 0.1 for roles
    --elmo-l2        lambda, the penalty on the layer weights
    --elmo-norm      SNLI: without it, a biLM of the original geometry adds less (docs/results.md)
    --epochs         coreference: with ELMo the network needs half as many, then overfits

`seeds` is the default number of seeds: more where training is cheap.

`FINE_TUNING` has the flags of `relmo train bilm` for `--fine-tune`, `tuning` those that differ for a task: a smaller
learning rate for the tasks with more than a million words. The weights after the last epoch are saved, so that the
validation file serves only to measure the perplexity.
"""

from typing import NamedTuple


class TaskRow(NamedTuple):
    """Task of the table.

    score     name of the metric;  kind  of model, as in `relmo train KIND`
    train     training file inside the data folder;  valid  the file that is scored
    table1    published scores, plain and with ELMo
    table2    published scores without ELMo, with the last layer, with all layers and lambda 1, with lambda 0.001
    table3    published scores with ELMo at the input, at both places, at the output
    differs   differences of data and network from the paper
    reduced   settings of a tiny network, which trains on a slice in seconds
    tuning    settings of the fine-tuning of a biLM that differ from `FINE_TUNING`
    """

    title: str
    score: str
    kind: str
    train: str
    valid: str
    settings: str
    elmo: str
    seeds: int
    table1: tuple[float, float]
    differs: str
    reduced: str
    table2: tuple[float, ...] = ()
    table3: tuple[float, ...] = ()
    tuning: str = ""


ROWS = {
    "squad": TaskRow(
        title="SQuAD",
        score="F1",
        kind="reader",
        train="tasks/squad/train-v1.1.json",
        valid="tasks/squad/dev-v1.1.json",
        settings="--preset squad",
        elmo="--elmo-at both --elmo-dropout 0.2 --elmo-l2 0.001",
        seeds=1,
        table1=(81.1, 85.8),
        table2=(80.8, 84.7, 85.0, 85.2),
        table3=(85.1, 85.6, 84.8),
        differs="scored on 24 of the 48 dev articles; 6 epochs for 24",
        reduced="--hidden 8 --filters 5x8",
        tuning="--lr 0.0005",
    ),
    "snli": TaskRow(
        title="SNLI",
        score="accuracy",
        kind="pairs",
        train="tasks/snli/snli_train_subset.tsv",
        valid="tasks/snli/snli_1.0_dev.tsv",
        settings="--preset snli --hidden 300 --batch 128 --lr 0.0015 --epochs 6",
        elmo="--elmo-at both --elmo-dropout 0.3 --elmo-l2 0.001 --elmo-norm",
        seeds=3,
        table1=(88.0, 88.7),
        table2=(88.1, 89.1, 89.3, 89.5),
        table3=(88.9, 89.5, 88.7),
        differs="78,003 of the 549,367 pairs",
        reduced="--hidden 8",
        tuning="--lr 0.0005",
    ),
    "srl": TaskRow(
        title="SRL",
        score="F1",
        kind="srl",
        train="tasks/srl_propbank_ewt/ewt-train.jsonl",
        valid="tasks/srl_propbank_ewt/ewt-dev.jsonl",
        settings="--preset propbank --batch 64 --tokens-per-batch 1800",
        elmo="--elmo-at input --elmo-dropout 0.1 --elmo-l2 0.001",
        seeds=1,
        table1=(81.4, 84.6),
        table2=(81.6, 84.1, 84.6, 84.8),
        table3=(84.7, 84.3, 80.9),
        differs="PropBank EWT (web, 40,429 predicates, not verbs alone) for OntoNotes; 15 epochs for 500",
        reduced="--layers 2 --hidden 8 --mark-dim 4 --detector 4",
    ),
    "coref": TaskRow(
        title="Coref",
        score="average F1",
        kind="coref",
        train="tasks/coref_gum/ontogum_train.conll",
        valid="tasks/coref_gum/ontogum_dev.conll",
        settings="--preset lee",
        elmo="--elmo-at input --elmo-dropout 0.2 --elmo-l2 0.001 --epochs 16",
        seeds=3,
        table1=(67.2, 70.4),
        differs="OntoGUM (177 documents) for OntoNotes (2,802); no gold speakers; a loss for mentions",
        reduced="--hidden 8 --filters 3x8 --mlp 8 --antecedents 10 --spans-per-word 0.1 --max-sentences 8",
    ),
    "ner": TaskRow(
        title="NER",
        score="F1",
        kind="tagger",
        train="tasks/ner_uner_en/en_ewt-ud-train.iob2",
        valid="tasks/ner_uner_en/en_ewt-ud-dev.iob2",
        settings="--preset ner",
        elmo="--elmo-at input --elmo-dropout 0.2 --elmo-l2 0.001",
        seeds=5,
        table1=(90.15, 92.22),
        differs="UNER EWT (web, three types) for CoNLL-2003 (news, four types)",
        reduced="--hidden 8 --filters 3x8",
    ),
    "sst5": TaskRow(
        title="SST-5",
        score="accuracy",
        kind="classifier",
        train="tasks/sst5/train.txt",
        valid="tasks/sst5/dev.txt",
        settings="--preset sst5",
        elmo="--elmo-at input --elmo-dropout 0.3 --elmo-l2 0.001",
        seeds=5,
        table1=(51.4, 54.7),
        differs="the same data; a biLSTM with attention for the BCN",
        reduced="--hidden 8",
    ),
}

REDUCED = "--epochs 1 --threads 1"  # of every row
FINE_TUNING = (
    "--tokenizer whitespace --epochs 3 --batch 64 --optimizer adam --lr 0.001 --warmup 20 --decay linear --dropout 0.1 "
    "--average 0 --validate-every 1000000000"
)
REDUCED_TUNING = f"{REDUCED} --batch 2"
VECTORS = "static vectors are relmo's skip-gram (words); the paper has GloVe or Senna"
PAPER_BILM = (
    "the paper's biLM: 93.6M parameters without its output layer, ten epochs of a billion words, perplexity 39.7 on "
    "other text"
)
