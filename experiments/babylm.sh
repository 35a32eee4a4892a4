#!/usr/bin/env bash
# A language model under a budget of the BabyLM challenge: a counted number of words, at most 10 epochs, and checkpoints after
# 1M, 2M … 10M, 20M … 100M, 200M … words seen, each scored on BLiMP and SyntaxGym, beside published models.
#   experiments/babylm.sh DATA OUT WORDS [CELL]      WORDS: 10M, 100M or any number; CELL: of `relmo cells`, by default lstm
# DATA has lm/pretrain-[0-7].txt, lm/pretrain-valid.txt and the evaluation data (docs/reproduce.md).
# KIND=bilm trains a bidirectional model, which reads words by their characters; it is scored forward. EPOCHS=5 trains for fewer
# epochs, and MINUTES=50 for a time. SETTINGS="--hidden 512 --lr 0.001" are further flags of relmo train; with NAME=mine, the
# model is OUT/mine (by default OUT/KIND-CELL), beside others on the same text. Finished steps are skipped, and training resumes.
# LIMIT=1500 interrupts the script after 1,500 seconds, with a checkpoint of the training; the same command continues.
set -euo pipefail
data=$1 out=$2 words=$3 cell=${4:-lstm} kind=${KIND:-lm}
name=${NAME:-$kind-$cell} epochs=${EPOCHS:-10} relmo=${RELMO:-relmo} python=${PYTHON:-python}
model=$out/$name/model scores=$out/$name/scores valid=$data/lm/pretrain-valid.txt
export PYTHONPATH="$(dirname "$0")/..${PYTHONPATH:+:$PYTHONPATH}"

run() { if [ -n "${LIMIT:-}" ]; then timeout --signal TERM "$((LIMIT > SECONDS ? LIMIT - SECONDS : 1))" "$@"; else "$@"; fi; }

snapshots=$($python -m experiments.babylm epochs "$words" "$epochs")
mkdir -p "$scores"
run $python -m experiments.babylm text "$data" "$out" "$words"

settings=$out/$name/settings.toml
precision=$($python -c 'import torch; print("bfloat16" if torch.cuda.is_available() else "float32")')
if [ "$kind" = lm ]; then cat > "$settings" <<TOML
[text]
unit = "word"
text_per = "line"
vocabulary_size = 50000     # as the LSTM of Gulordava et al. 2018

[model]
cell = "$cell"
layers = 2
hidden = 1024
embedding = 512
last_hidden = 512
tied = true
dropout = 0.3
input_dropout = 0.2

[train]
batch = 64
unroll = 70
lr = 0.002
warmup = 500
weight_decay = 0.01
clip_norm = 0.5
precision = "$precision"
TOML
else cat > "$settings" <<TOML
[text]
vocabulary_size = 50000

[model]
cell = "$cell"
projection = 256

[train]
precision = "$precision"
TOML
fi

if [ -e "$model/run/run.json" ]; then
  run $relmo train "$kind" --out "$model" --resume --json > "$out/$name/train.json"
elif [ ! -e "$model/config.json" ]; then
  preset=; [ "$kind" = bilm ] && preset="--preset small"
  run $relmo train "$kind" "$out/text.txt" --valid "$valid" $preset --config "$settings" ${SETTINGS:-} --epochs "$epochs" \
    ${MINUTES:+--minutes $MINUTES} ${snapshots:+--snapshots $snapshots} --out "$model" --json > "$out/$name/train.json"
fi

score() {  # FILE COMMAND…
  local file=$1; shift
  if [ ! -e "$file" ]; then run "$@" --json > "$file.part"; mv "$file.part" "$file"; fi
}
for folder in $([ ! -d "$model/snapshots" ] || ls -dv "$model"/snapshots/*) "$model"; do
  stage=$(basename "$folder"); [ "$folder" = "$model" ] && stage=best
  score "$scores/$stage-text.json" $relmo evaluate "$folder" "$valid"
  score "$scores/$stage-suites.json" $relmo analyse suite "$folder" "$data/tasks/agreement/blimp" "$data/tasks/syntaxgym" \
    --no-control --quiet
done
$python -m experiments.babylm table "$out" "$name"
