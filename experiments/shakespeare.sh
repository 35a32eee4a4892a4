#!/usr/bin/env bash
# Character models of equal size on tiny Shakespeare: LSTM, GRU, Elman, and n-gram baselines. Validation on the 5% of the text after
# the first 90%; the last 5% is the test set.
#   experiments/shakespeare.sh TEXT OUT       (RELMO="python3 -m relmo" to run without an installed command)
set -euo pipefail
text=$1 out=$2 relmo=${RELMO:-relmo}
common="--test-fraction 0.05 --preset char --json"
run() { name=$1; shift; $relmo train lm "$text" $common --out "$out/$name" "$@" > "$out/$name.json"; }
mkdir -p "$out"
run lstm
run gru --cell gru --hidden 594
run elman --cell elman --hidden 1045 --lr 0.001
for order in 5 10; do
  $relmo train lm "$text" --test-fraction 0.05 --json --cell ngram --order $order --out "$out/ngram-$order" > "$out/ngram-$order.json"
done
