#!/usr/bin/env bash
# From raw text to the models that ship with relmo. A step whose result is there already is left out, and training goes on where it was
# stopped: after any interruption, the same command again.
#   recipes/bundled_models.sh DATA OUT [small|original]      one GPU, some minutes; `make recipe` goes through it at reduced size
# DATA holds lm/pretrain-*.txt and what is evaluated on (docs/reproduce.md). The folders that ship are then OUT/bundled/{small,words}.
set -euo pipefail
data=$1 out=$2 geometry=${3:-small}
here=$(dirname "$0") relmo=${RELMO:-relmo} python=${PYTHON:-python3}
parts=$(ls "$data"/lm/pretrain-[0-4].txt)
scores="perplexity pos wsd neighbours agreement"
common="--valid $data/lm/pretrain-valid.txt --vocabulary-size 50000 --batch 512 --precision bfloat16"
again="--valid $data/lm/pretrain-valid.txt --batch 512 --precision bfloat16"
case $geometry in
  small)    network="--preset small --epochs 6 --dropout 0.05 --validate-every 4400 $common"
            again="--preset small --lr 0.003 --epochs 6 --dropout 0.05 --validate-every 8800 $again" ;;
  original) network="--preset original --epochs 3 --validate-every 8800 $common" again="" ;;  # words in any case from the start
  reduced)  network="--preset tiny --epochs 1 --vocabulary-size 2000 --valid $out/parts/valid.txt --device cpu" scores=""
            again="--preset tiny --epochs 0.2 --valid $out/parts/valid.txt --device cpu" ;;
esac
vectors="--vocabulary-size 50000 --dimensions 100"

if [ "$geometry" = reduced ]; then  # a thousand paragraphs of each part that is there, one more to validate on
  mkdir -p "$out/parts"
  for part in $parts; do head -n 1000 "$part" > "$out/parts/$(basename "$part")"; done
  head -n 1050 "$(echo "$parts" | head -n 1)" | tail -n 50 > "$out/parts/valid.txt"
  parts=$(ls "$out"/parts/pretrain-*.txt) vectors="--vocabulary-size 5000 --dimensions 20 --epochs 1 --min-count 2"
fi

[ -f "$out/text/report.json" ] || $python "$here/pretraining_text.py" $parts --held-out "$data" --out "$out/text"

[ -f "$out/text-cased/done" ] || { $python "$here/other_case.py" "$out"/text/pretrain-*.txt --out "$out/text-cased"; touch "$out/text-cased/done"; }

train() {  # KIND TEXT FOLDER SETTING…
  local kind=$1 text=$2 folder=$3; shift 3
  if [ -d "$folder/run" ]; then $relmo train "$kind" --resume --out "$folder"
  elif [ ! -f "$folder/config.json" ]; then $relmo train "$kind" "$text"/pretrain-*.txt --out "$folder" "$@"; fi
}
if [ -z "$again" ]; then train bilm "$out/text-cased" "$out/$geometry" $network
else
  train bilm "$out/text" "$out/$geometry-first" $network
  train bilm "$out/text-cased" "$out/$geometry" --init "$out/$geometry-first" $again  # words in any case; the vocabulary stays
fi
train skipgram "$out/text" "$out/words" $vectors

pack() {  # NAME PRECISION
  [ -d "$out/bundled/$1" ] && return
  $python "$here/model_card.py" "$out/$1" "$out/text/report.json" $( [ -f "$out/$geometry.json" ] && echo "$out/$geometry.json" ) > "$out/$1.md"
  $relmo convert "$out/$1" "$out/bundled/$1" --precision "$2" --shard-mb 8 --card "$out/$1.md"
}
mkdir -p "$out/bundled"
[ -z "$scores" ] || [ -f "$out/$geometry.json" ] || {
  $relmo reproduce $scores --model "$out/$geometry" --vectors "$out/words" --data "$data" --json > "$out/$geometry.json.partial"
  mv "$out/$geometry.json.partial" "$out/$geometry.json"
}
pack "$geometry" int8
pack words float16
