#!/usr/bin/env bash
# From raw text to the models that ship with relmo. A step whose result is there already is left out, and training goes on where it was
# stopped: after any interruption, the same command again.
#   recipes/bundled_models.sh DATA OUT [whole|reduced]      one GPU, three quarters of an hour; `make recipe` goes through it at reduced size
# DATA holds lm/pretrain-*.txt and what is evaluated on (docs/reproduce.md). The folders that ship are then OUT/bundled/{small,words};
# the larger model, which taught the small one, is OUT/bundled/large.
set -euo pipefail
data=$1 out=$2 size=${3:-whole}
here=$(dirname "$0") relmo=${RELMO:-relmo} python=${PYTHON:-python3}
parts=$(ls "$data"/lm/pretrain-[0-7].txt)
scores="perplexity pos wsd neighbours agreement"
common="--valid $data/lm/pretrain-valid.txt --batch 1024 --precision bfloat16"
large="--preset original --lr 0.0022 --dropout 0.05 --epochs 4.3 --validate-every 7500 $common"
first="--preset small --lr 0.005 --dropout 0 --epochs 4.2 --validate-every 7000 $common"
taught="--preset small --lr 0.003 --dropout 0 --epochs 6 --validate-every 7000 --teacher-share 0.5 $common"
words=50000 vectors="--vocabulary-size 50000 --dimensions 100"

if [ "$size" = reduced ]; then  # a thousand paragraphs of each part that is there, one more to validate on
  mkdir -p "$out/parts"
  for part in $parts; do head -n 1000 "$part" > "$out/parts/$(basename "$part")"; done
  head -n 1050 "$(echo "$parts" | head -n 1)" | tail -n 50 > "$out/parts/valid.txt"
  parts=$(ls "$out"/parts/pretrain-*.txt) scores="" words=2000
  common="--preset tiny --epochs 0.4 --valid $out/parts/valid.txt --device cpu"
  large="$common --hidden 96 --projection 48" first=$common taught=$common
  vectors="--vocabulary-size 5000 --dimensions 20 --epochs 1 --min-count 2"
fi

[ -f "$out/text/report.json" ] || $python "$here/pretraining_text.py" $parts --held-out "$data" --validate-on 5 6 7 --out "$out/text"
[ -f "$out/text-typed/done" ] || { $python "$here/as_typed.py" "$out"/text/pretrain-*.txt --out "$out/text-typed"; touch "$out/text-typed/done"; }
[ -f "$out/vocabulary.txt" ] || $python "$here/vocabulary.py" "$out"/text/pretrain-*.txt --size $words --out "$out/vocabulary.txt"

train() {  # KIND TEXT FOLDER SETTING…
  local kind=$1 text=$2 folder=$3; shift 3
  if [ -d "$folder/run" ]; then $relmo train "$kind" --resume --out "$folder"
  elif [ ! -f "$folder/config.json" ]; then $relmo train "$kind" "$text"/pretrain-*.txt --out "$folder" "$@"; fi
}
vocabulary="--vocabulary $out/vocabulary.txt"
train bilm "$out/text-typed" "$out/large" $large $vocabulary
train bilm "$out/text-typed" "$out/small-first" $first $vocabulary
train bilm "$out/text-typed" "$out/small" --init "$out/small-first" --teacher "$out/large" $taught $vocabulary
train skipgram "$out/text" "$out/words" $vectors

pack() {  # NAME PRECISION
  [ -d "$out/bundled/$1" ] && return
  [ -z "$scores" ] || [ "$1" = words ] || [ -f "$out/$1.json" ] || {
    $relmo reproduce $scores --model "$out/$1" --vectors "$out/words" --data "$data" --json > "$out/$1.json.partial"
    mv "$out/$1.json.partial" "$out/$1.json"
  }
  $python "$here/model_card.py" "$out/$1" "$out/text/report.json" $( [ -f "$out/$1.json" ] && echo "$out/$1.json" ) > "$out/$1.md"
  $relmo convert "$out/$1" "$out/bundled/$1" --precision "$2" --shard-mb 8 --card "$out/$1.md"
}
mkdir -p "$out/bundled"
pack small int8
pack large int8
pack words float16
