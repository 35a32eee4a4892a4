#!/usr/bin/env bash
# Word models on WikiText-2 as published (whitespace tokens, a line end is a symbol): plain settings, and those of AWD-LSTM with Adam.
#   experiments/wikitext2.sh FOLDER OUT [NAME…]      names: word word-awd ngram; default: all
set -euo pipefail
folder=$1 out=$2 relmo=${RELMO:-relmo}; shift 2
mkdir -p "$out"
for name in ${@:-word word-awd ngram}; do
  settings="--preset $name"; [ "$name" = ngram ] && settings="--cell ngram --order 5 --unit word"
  $relmo train lm "$folder/wiki.train.tokens" --valid "$folder/wiki.valid.tokens" --tokenizer whitespace $settings \
    --out "$out/$name" --json > "$out/$name.json"
  $relmo evaluate "$out/$name" "$folder/wiki.valid.tokens" "$folder/wiki.test.tokens" --json > "$out/$name-scores.json"
done
