#!/usr/bin/env bash
# Models of `relmo explore` without arguments: about ten minutes on one GPU for prose, code and the three of equal size, minutes on a CPU for the others.
#   experiments/recipes/example_models.sh DATA OUT [full|reduced]     the bundled folders are below OUT/examples
# DATA has lm/war-and-peace/input.txt and lm/sqlite/input.txt (SQLite's source). The translation models come from experiments/seq2seq_results.py.
# Finished steps are skipped and training resumes: after an interruption, run the same command again.
set -euo pipefail
data=$1 out=$2 size=${3:-full}
relmo=${RELMO:-relmo} python=${PYTHON:-python3}
prose=$data/lm/war-and-peace/input.txt code=$data/lm/sqlite/input.txt
large="--preset char" alike="--layers 1 --hidden 256 --embedding 64 --dropout 0.1 --batch 64 --unroll 128 --lr 0.002 --clip-norm 1"
epochs=14 code_epochs=10 counting="--seeds 5" seeds=5
mkdir -p "$out/examples"

if [ "$size" = reduced ]; then  # the same steps on a hundred thousand characters, in seconds
  head -n 2000 "$prose" > "$out/prose.txt"
  [ -f "$code" ] || code=$(dirname "$0")/../../src/relmo/nn/kernels/lstm.c
  head -n 2000 "$code" > "$out/code.txt"
  prose=$out/prose.txt code=$out/code.txt
  large="--unit char --cell lstm --layers 2 --hidden 16 --embedding 8 --batch 32" alike="--layers 1 --hidden 16 --embedding 8 --batch 32"
  epochs=1 code_epochs=1 counting="--limit 5 --steps 60 --seeds 1" seeds=1
fi

train() {  # NAME TEXT SETTING…
  local name=$1 text=$2; shift 2
  echo "relmo train lm $(basename "$text") --decay cosine $* --out $name" | fold -s -w 112 | sed '$!s/ *$/ \\/; 2,$s/^/  /' > "$out/$name.command"
  if [ -d "$out/$name/run" ]; then $relmo train lm --resume --out "$out/$name"
  elif [ ! -f "$out/$name/config.json" ]; then $relmo train lm "$text" --out "$out/$name" --decay cosine "$@"; fi
}
train prose "$prose" $large --epochs $epochs --valid-fraction 0.05
train code "$code" $large --epochs $code_epochs --valid-fraction 0.02
for cell in elman gru lstm; do
  train "prose-$cell" "$prose" --unit char --cell $cell $alike --epochs $epochs --valid-fraction 0.05
done
[ -d "$out/hello/hello-lstm" ] || $python "$(dirname "$0")/hello_models.py" "$out/hello" $seeds
[ -d "$out/counting/anbn-gru" ] || $relmo analyse counting anbn --cells lstm,gru --save "$out/counting" $counting

pack() {  # FOLDER NAME WHAT PRECISION
  [ -d "$out/examples/$2" ] && return
  { echo "# $2"; echo; echo "$3" | fold -s -w 118; echo; [ ! -f "$1.command" ] || { echo '```'; cat "$1.command"; echo '```'; echo; }; sed 1,2d "$1/README.md"; } > "$out/$2.md"
  $relmo convert "$1" "$out/examples/$2" --precision "$4" --card "$out/$2.md"
}
war_and_peace="War and Peace (Tolstoy, translated by L. and A. Maude; public domain), with its line ends"
pack "$out/prose" prose "A network that has read $war_and_peace, by experiments/recipes/example_models.sh; the last 5 % is held out." int8
pack "$out/code" code "A network that has read the C source of SQLite (public domain), by experiments/recipes/example_models.sh; the last 2 % is held out." int8
for cell in elman gru lstm; do
  pack "$out/prose-$cell" "prose-$cell" "One of three networks of equal size that have read $war_and_peace, by experiments/recipes/example_models.sh; the last 5 % is held out." int8
done
for cell in lstm gru; do
  pack "$out/counting/anbn-$cell" "anbn-$cell" "Trained to count a's and b's by experiments/recipes/example_models.sh." float32
done
for name in hello hello-gru hello-lstm; do
  pack "$out/hello/$name" "$name" "Three units that write \"hello\", small enough to compute by hand: symbols are vectors of one 1, weights have one decimal. Made by experiments/recipes/hello_models.py." float32
done

named() {  # NAME TEXT OPTION…: named cells, measured on held-out text
  [ -f "$out/examples/$1/cells.json" ] || $relmo analyse cells "$out/examples/$1" "$2" --ablate zero --name-cells "${@:3}"
}
if [ "$size" = full ]; then
  tail -c 150000 "$prose" > "$out/war-and-peace-end.txt"  # held out
  tail -c 190160 "$code" > "$out/sqlite-end.c"
  $python -c 'print("".join("a" * n + "b" * n for n in range(1, 41)), end="")' > "$out/anbn.txt"
  few="--ablate-symbols 3000 --among 24"  # candidate units
  novel="--symbols 45900"  # the end of the novel; an essay follows, with one quotation of 2,400 characters
  lines="--feature quotes --feature column --feature to_line_end --feature word_position --feature capitalised"
  for name in prose prose-elman prose-gru prose-lstm; do named $name "$out/war-and-peace-end.txt" $lines $novel $few; done
  named code "$out/sqlite-end.c" --symbols 60000 $few --feature comment --feature depth --feature column --feature indentation --feature if --feature if_body --feature string
  for cell in lstm gru; do named "anbn-$cell" "$out/anbn.txt" --feature surplus; done
fi
# When the folders are in src/relmo/data/examples, run: python -m experiments.recipes.explorer_answers
