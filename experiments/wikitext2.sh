#!/usr/bin/env bash
# Word models on WikiText-2 as published (whitespace tokens, a line end is a symbol): plain settings, those of AWD-LSTM
# with Adam, an n-gram model; and longer runs (a GPU): AWD-LSTM as published and with Adam, Mogrifier, mixture of softmaxes.
#   experiments/wikitext2.sh FOLDER OUT [NAME…]      default: word word-awd ngram; also awd-sgd awd-adam mogrifier mos
# A finished run is skipped and an interrupted one is resumed. MINUTES=50 sets the time of each run instead of its epochs.
# LIMIT=1500 interrupts the script after 1,500 seconds, with a checkpoint; the same command continues.
set -euo pipefail
folder=$1 out=$2 relmo=${RELMO:-relmo}; shift 2
mkdir -p "$out"

awd="--unit word --layers 3 --hidden 1152 --embedding 400 --last-hidden 400 --tied --variational --word-dropout 0.1
  --input-dropout 0.65 --activation-penalty 2 --temporal-penalty 1 --batch 80 --unroll 70 --vary-unroll --clip-norm 0.25
  --precision bfloat16"
adam="--optimizer adamw --lr 0.002 --weight-decay 0.1 --average 0.9995"
settings() {
  case $1 in
    ngram) echo "--cell ngram --order 5 --unit word" ;;
    awd-sgd) echo "$awd --dropout 0.2 --output-dropout 0.4 --weight-drop 0.5 --optimizer sgd --lr 30 --decay constant
      --warmup 0 --weight-decay 1.2e-6 --average-after 5 --epochs 750" ;;
    awd-adam) echo "$awd --dropout 0.25 --output-dropout 0.5 --weight-drop 0.6 $adam --epochs 150" ;;
    mogrifier) echo "${awd/--layers 3 --hidden 1152 --embedding 400 --last-hidden 400/--layers 2 --hidden 1280
      --embedding 512 --last-hidden 512} --cell mogrifier --cell-options rounds=5,rank=48 --dropout 0.3
      --output-dropout 0.5 --weight-drop 0.4 $adam --epochs 100" ;;
    mos) echo "${awd/--embedding 400 --last-hidden 400/--embedding 304 --last-hidden 656} --softmax mixture
      --mixtures 15 --mixture-dropout 0.29 --dropout 0.2 --output-dropout 0.4 --weight-drop 0.5 $adam --epochs 100" ;;
    *) echo "--preset $1" ;;
  esac
}

run() { if [ -n "${LIMIT:-}" ]; then timeout --signal TERM "$((LIMIT > SECONDS ? LIMIT - SECONDS : 1))" "$@"; else "$@"; fi; }

for name in ${@:-word word-awd ngram}; do
  [ -e "$out/$name-scores.json" ] && continue
  if [ -e "$out/$name/run/run.json" ]; then
    run $relmo train lm --out "$out/$name" --resume --json > "$out/$name.json"
  elif [ ! -e "$out/$name/config.json" ]; then
    minutes=; [ "$name" != ngram ] && minutes=${MINUTES:+--minutes $MINUTES}
    run $relmo train lm "$folder/wiki.train.tokens" --valid "$folder/wiki.valid.tokens" --tokenizer whitespace \
      $(settings "$name") $minutes --out "$out/$name" --json > "$out/$name.json"
  fi
  $relmo evaluate "$out/$name" "$folder/wiki.valid.tokens" "$folder/wiki.test.tokens" --json > "$out/$name-scores.json.part"
  mv "$out/$name-scores.json.part" "$out/$name-scores.json"
done
