#!/usr/bin/env bash
# A language from end to end: a small biLM on raw text, then a tagger of parts of speech on a UD treebank with it and without.
#   experiments/language.sh TREEBANK OUT [TEXT…] [-- SETTING…]
# TREEBANK is a folder with *-ud-train.conllu and *-ud-dev.conllu. TEXT is plain text, a sentence or a paragraph per line; without any, the
# biLM reads the sentences of the treebank. The settings are those of the biLM, by default --epochs 8: minutes on a GPU. On a CPU, use
# --epochs 1 --batch 64. SEEDS (default "1 2 3") has the seeds of the taggers. The same command resumes.
set -euo pipefail
treebank=$1 out=$2 relmo=${RELMO:-relmo} python=${PYTHON:-python}; shift 2
train=$(echo "$treebank"/*-ud-train.conllu) valid=$(echo "$treebank"/*-ud-dev.conllu)
texts=()
while [ $# -gt 0 ] && [ "$1" != -- ]; do texts+=("$1"); shift; done
[ $# -eq 0 ] || shift
mkdir -p "$out"

if [ ${#texts[@]} -eq 0 ]; then corpus=$train; else corpus=$out/sentences.txt; fi
[ -e "$corpus" ] || $python - "${texts[@]}" > "$out/sentences.tmp" <<'PYTHON'
import sys
from pathlib import Path

from relmo.text.tokenize import split_tokens
from relmo.text.tokenize import tokenize

for path in sys.argv[1:]:
    with Path(path).open(encoding="utf-8") as file:
        for paragraph in file:
            for sentence in split_tokens(paragraph, tokenize(paragraph)):
                print(paragraph[sentence[0].start : sentence[-1].end])
PYTHON
[ -e "$corpus" ] || mv "$out/sentences.tmp" "$corpus"

train() {  # NAME KIND ARGUMENT…
  local name=$1 kind=$2; shift 2
  if [ -d "$out/$name/run" ]; then $relmo train "$kind" --resume --out "$out/$name" --json > "$out/$name.json"
  elif [ ! -f "$out/$name/config.json" ]; then $relmo train "$kind" "$@" --out "$out/$name" --json > "$out/$name.json"; fi
}
train bilm bilm "$corpus" --preset small --filters 1x32,2x32,3x64,4x128 --hidden 256 --projection 64 --samples 1024 \
  --vocabulary-size 20000 --threads 1 "${@:---epochs=8}"

# The settings of the preset pos, without its English word vectors.
tagger="--task pos --word-dim 50 --word-dropout 0.05 --layers 1 --hidden 200 --dropout 0.4 --decoder softmax --epochs 12 --batch 32
  --lr 0.002 --decay linear --clip-norm 5 --patience 5 --threads 1"
for seed in ${SEEDS:-1 2 3}; do
  train "plain-$seed" tagger "$train" --valid "$valid" $tagger --seed "$seed"
  train "elmo-$seed" tagger "$train" --valid "$valid" $tagger --seed "$seed" --elmo "$out/bilm"
done
$python - "$out" <<'PYTHON'
import json
import sys
from pathlib import Path
from statistics import mean

for name in ("plain", "elmo"):
    records = [json.loads(path.read_text()) for path in sorted(Path(sys.argv[1]).glob(f"{name}-*.json"))]
    scores = [100 * record["valid_accuracy"] for record in records]
    print(f"{name}: {mean(scores):.2f} ({', '.join(f'{score:.2f}' for score in scores)})")
PYTHON
