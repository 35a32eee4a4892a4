#!/usr/bin/env bash
# Bundled models, from raw text. Finished steps are skipped and training resumes: after an interruption, run the same command again.
#   experiments/recipes/bundled_models.sh DATA OUT [small|large]      one GPU, half an hour; `make recipe` runs it at reduced size
# DATA has lm/pretrain-*.txt and the evaluation data (docs/reproduce.md). The bundled folders are OUT/bundled/{small,words};
# `large`, of the original geometry, is the package OUT/packages/large.
set -euo pipefail
data=$1 out=$2 geometry=${3:-small}
here=$(dirname "$0") relmo=${RELMO:-relmo} python=${PYTHON:-python3}
parts=$(ls "$data"/lm/pretrain-[0-7].txt)
scores="perplexity pos wsd neighbours agreement" words=50000 aside=2000
common="--valid $data/lm/pretrain-valid.txt --batch 1024 --dropout 0.02 --precision bfloat16"
teacher="--preset original --optimizer muon --lr 0.003 --warmup 500 --epochs 2.4856 --validate-every 3000 $common"
first="--preset small --hidden 1152 --projection 256 --softmax-dim 128 --filters 1x32,2x32,3x64,4x128,5x256,6x512 \
  --optimizer muon --lr 0.005 --final-lr 0.4 --warmup 500 --epochs 2.0031 --validate-every 5000 $common"
taught="--preset small --lr 0.0012 --warmup 100 --epochs 1 --validate-every 2000 $common"
vectors="--vocabulary-size 50000 --dimensions 100"

large="--preset original --optimizer muon --lr 0.0024 --weight-decay 0.2 --warmup 500 --epochs 5.92 --batch 2048 --stretch 3 \
  --dropout 0.03 --state-dropout 0.03 --precision bfloat16 --validate-every 5000 --valid $data/lm/pretrain-valid.txt"

[ "$geometry" != large ] || words=100000
if [ "$geometry" = reduced ]; then  # five hundred paragraphs of each part, and fifty for validation
  mkdir -p "$out/parts"
  for part in $parts; do head -n 500 "$part" > "$out/parts/$(basename "$part")"; done
  head -n 550 "$(echo "$parts" | head -n 1)" | tail -n 50 > "$out/parts/valid.txt"
  parts=$(ls "$out"/parts/pretrain-*.txt) scores="" words=2000 aside=50
  common="--valid $out/parts/valid.txt --device cpu --preset tiny"
  teacher="$common --epochs 0.3" first="$common --softmax-dim 8 --epochs 0.5" taught="$common --epochs 0.2"
  vectors="--vocabulary-size 5000 --dimensions 20 --epochs 1 --min-count 2"
fi

[ -f "$out/text/report.json" ] || $python "$here/pretraining_text.py" $parts --held-out "$data" --out "$out/text" --aside $aside

[ -f "$out/text-cased/done" ] || { $python "$here/other_case.py" "$out"/text/pretrain-*.txt --out "$out/text-cased"; touch "$out/text-cased/done"; }

vocabulary=$out/vocabulary-$words.txt
[ -f "$vocabulary" ] || $python "$here/vocabulary.py" "$out"/text/pretrain-*.txt --size $words --out "$vocabulary"

train() {  # KIND FOLDER FILES… -- SETTING…
  local kind=$1 folder=$2 files=(); shift 2
  while [ "$1" != -- ]; do files+=("$1"); shift; done; shift
  if [ -d "$folder/run" ]; then $relmo train "$kind" --resume --out "$folder"
  elif [ ! -f "$folder/config.json" ]; then $relmo train "$kind" "${files[@]}" --out "$folder" "$@"; fi
}
cased=("$out"/text-cased/pretrain-*.txt)  # with changed case
if [ "$geometry" = large ]; then
  train bilm "$out/large" "${cased[@]}" -- --vocabulary "$vocabulary" $large
  $python "$here/model_card.py" "$out/large" "$out/text/report.json" > "$out/large.md"
  [ -d "$out/packages/large" ] || $relmo package "$out/large" "$out/packages/large" --name relmo-large --precision nf4 --shard-mb 40 \
    --card "$out/large.md" --text "125 million words of openly licensed English" --language en --license CC-BY-SA-4.0
  exit
fi
train bilm "$out/original" "${cased[@]}" -- --vocabulary "$vocabulary" $teacher
train bilm "$out/$geometry-first" "${cased[@]}" -- --vocabulary "$vocabulary" $first
train bilm "$out/$geometry" "${cased[@]}" -- --init "$out/$geometry-first" --teacher "$out/original" --teacher-share 0.5 \
  --teacher-layers 1 $taught
train skipgram "$out/words" "$out"/text/pretrain-[0-4].txt -- $vectors  # more text did not make them better (docs/results.md)

pack() {  # NAME PRECISION
  [ -d "$out/bundled/$1" ] && return
  $python "$here/model_card.py" "$out/$1" "$out/text/report.json" $( [ -f "$out/$geometry.json" ] && echo "$out/$geometry.json" ) > "$out/$1.md"
  $relmo convert "$out/$1" "$out/bundled/$1" --precision "$2" --shard-mb 8 --card "$out/$1.md"
}
mkdir -p "$out/bundled"
[ -z "$scores" ] || [ -f "$out/$geometry.json" ] || {
  PYTHONPATH="$here/../..${PYTHONPATH:+:$PYTHONPATH}" $python -m experiments $scores --model "$out/$geometry" --vectors "$out/words" --data "$data" --json > "$out/$geometry.json.partial"
  mv "$out/$geometry.json.partial" "$out/$geometry.json"
}
pack "$geometry" int8
pack words float16
