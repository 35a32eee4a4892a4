#!/usr/bin/env bash
# What it costs to store a biLM in fewer bits: size, perplexity, and scores of two tasks that are built on it.
#   experiments/quantization.sh MODEL DATA OUT [SETTING…]
# A tagger of names and a model of sentence similarity are trained with MODEL as it is, then stored in each precision
# together with the biLM inside. SETTINGs are of both trainings, such as --epochs 1. TEXT=FILE is the text for the
# perplexity, by default all of pretrain-valid.txt. The same command resumes.
set -euo pipefail
model=$1 data=$2 out=$3 relmo=${RELMO:-relmo} python=${PYTHON:-python}; shift 3
mkdir -p "$out"

train() {  # NAME KIND FILES-AND-SETTINGS…
  local name=$1 kind=$2; shift 2
  if [ -d "$out/$name/run" ]; then $relmo train "$kind" --resume --out "$out/$name" --quiet
  elif [ ! -f "$out/$name/config.json" ]; then $relmo train "$kind" "$@" --elmo "$model" --copy --out "$out/$name" --quiet; fi
}
ner=$data/tasks/ner_uner_en/en_ewt-ud sts=$data/tasks/stsb
train names tagger "$ner-train.iob2" --valid "$ner-dev.iob2" --preset ner --elmo-dropout 0.2 "$@"
train similarity pairs "$sts/sts-train.csv" --valid "$sts/sts-dev.csv" --preset stsb --elmo-dropout 0.1 "$@"

for precision in float32 float16 int8 nf4; do
  folder=$out/$precision
  [ -f "$folder/bilm.json" ] || {
    mkdir -p "$folder"
    $relmo convert "$model" "$folder/bilm" --precision "$precision" --overwrite --quiet
    for task in names similarity; do
      $relmo convert "$out/$task" "$folder/$task" --precision "$precision" --overwrite --quiet
    done
    $relmo evaluate "$folder/names" "$ner-dev.iob2" --json > "$folder/names.json"
    $relmo evaluate "$folder/similarity" "$sts/sts-dev.csv" --json > "$folder/similarity.json"
    $relmo evaluate "$folder/bilm" "${TEXT:-$data/lm/pretrain-valid.txt}" --json > "$folder/bilm.tmp"
    mv "$folder/bilm.tmp" "$folder/bilm.json"
  }
done
# Loaded weights are float32 whatever they were stored in. The speed depends on the precision of the products.
for round in 1 2 3; do
  for precision in float32 bfloat16 int8; do
    $relmo embed "$data/tasks/pos_ud/en_ewt/en_ewt-ud-dev.conllu" --model "$model" --out "$out/vectors.npz" --overwrite \
      --precision "$precision" --json > "$out/embed-$precision-$round.json"
  done
done
rm -f "$out/vectors.npz"

$python - "$out" <<'PYTHON'
import json
import sys
from pathlib import Path
from statistics import median

out = Path(sys.argv[1])


def read(path: Path) -> dict:
    record = json.loads(path.read_text())
    return record["files"][0] if "files" in record else record


print("| stored in | MB | perplexity | NER, F1 | STS-B, Pearson |\n|---|---|---|---|---|")
for precision in ("float32", "float16", "int8", "nf4"):
    folder = out / precision
    size = sum(path.stat().st_size for path in (folder / "bilm").glob("*.safetensors")) / 1e6
    perplexity = read(folder / "bilm.json")["perplexity"]
    f1, pearson = read(folder / "names.json")["f1"], read(folder / "similarity.json")["pearson"]
    print(f"| {precision} | {size:.1f} | {perplexity:.2f} | {100 * f1:.2f} | {100 * pearson:.2f} |")
print("\n| products in | tokens/s, embed |\n|---|---|")
for precision in ("float32", "bfloat16", "int8"):
    rates = [json.loads(path.read_text())["tokens_per_second"] for path in out.glob(f"embed-{precision}-*.json")]
    print(f"| {precision} | {median(rates):,.0f} |")
PYTHON
