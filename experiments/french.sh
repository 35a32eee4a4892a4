#!/usr/bin/env bash
# French from end to end: a small biLM on the novels of ELTeC, then parts of speech of UD Sequoia with it and without, three seeds each.
#   experiments/french.sh DATA OUT [SETTING…]     DATA has lm/multilingual/fr/eltec-fra.txt and tasks/pos_ud/fr_sequoia
# The settings are those of the biLM: none for minutes on a GPU; --epochs 1 --batch 64 on a CPU.
set -euo pipefail
data=$1 out=$2 relmo=${RELMO:-relmo} python=${PYTHON:-python}; shift 2
sequoia=$data/tasks/pos_ud/fr_sequoia/fr_sequoia-ud
mkdir -p "$out"

# The novels have one paragraph per line; the biLM reads one sentence per line.
[ -e "$out/novels.txt" ] || $python - "$data/lm/multilingual/fr/eltec-fra.txt" > "$out/novels.tmp" <<'PYTHON'
import sys
from pathlib import Path

from relmo.text.tokenize import split_tokens
from relmo.text.tokenize import tokenize

with Path(sys.argv[1]).open(encoding="utf-8") as file:
    for paragraph in file:
        for sentence in split_tokens(paragraph, tokenize(paragraph)):
            print(paragraph[sentence[0].start : sentence[-1].end])
PYTHON
[ -e "$out/novels.txt" ] || mv "$out/novels.tmp" "$out/novels.txt"

$relmo train bilm "$out/novels.txt" --preset small --filters 1x32,2x32,3x64,4x128 --hidden 256 --projection 64 --samples 1024 \
  --vocabulary-size 20000 --threads 1 --out "$out/french" "${@:---epochs=8}"

# The settings of the preset pos, without its English word vectors.
tagger="--task pos --word-dim 50 --word-dropout 0.05 --layers 1 --hidden 200 --dropout 0.4 --decoder softmax --epochs 12 --batch 32
  --lr 0.002 --decay linear --clip-norm 5 --patience 5 --threads 1"
for seed in 1 2 3; do
  $relmo train tagger "$sequoia-train.conllu" --valid "$sequoia-dev.conllu" $tagger --seed $seed --json --out "$out/plain-$seed" > "$out/plain-$seed.json"
  $relmo train tagger "$sequoia-train.conllu" --valid "$sequoia-dev.conllu" $tagger --seed $seed --json --elmo "$out/french" --out "$out/elmo-$seed" \
    > "$out/elmo-$seed.json"
done
