#!/usr/bin/env bash
# A small ELMo on UD English-EWT: three epochs with the original settings (Adagrad, sampled softmax, carried state) and the differences of
# relmo's defaults: a running average of the weights (--average 0 disables it) and occasional resets of the state.
#   experiments/bilm_ewt.sh FOLDER OUT       FOLDER has en_ewt-ud-train.conllu and en_ewt-ud-dev.conllu
set -euo pipefail
folder=$1 out=$2 relmo=${RELMO:-relmo}; shift 2
mkdir -p "$out"
$relmo train bilm "$folder/en_ewt-ud-train.conllu" --valid "$folder/en_ewt-ud-dev.conllu" --min-count 3 \
  --filters 1x32,2x32,3x64,4x128 --highway 1 --hidden 256 --projection 64 --samples 512 --batch 32 --unroll 20 --epochs 3 \
  --threads 1 --out "$out/model" --json "$@" > "$out/train.json"
$relmo evaluate "$out/model" "$folder/en_ewt-ud-dev.conllu" --json > "$out/scores.json"
