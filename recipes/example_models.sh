#!/usr/bin/env bash
# The small models that `relmo explore` offers when it is given none: half an hour of one CPU core.
#   recipes/example_models.sh DATA OUT [full|reduced]     the folders that ship are then OUT/examples/{prose,code,anbn-lstm,anbn-gru,hello,hello-gru,hello-lstm}
# DATA holds lm/war-and-peace/input.txt; source code is that of the standard library of the Python that runs it. A step whose result is
# there already is left out, and training goes on where it was stopped: after any interruption, the same command again.
set -euo pipefail
data=$1 out=$2 size=${3:-full}
relmo=${RELMO:-relmo} python=${PYTHON:-python3}
prose=$data/lm/war-and-peace/input.txt symbols=5000000
prose_network="--hidden 128 --embedding 32 --lr 0.006" code_network="--hidden 128 --lr 0.005" counting="--limit 100 --steps 6000 --seeds 5" seeds=5
mkdir -p "$out/examples"

if [ "$size" = reduced ]; then  # the same steps on two hundred thousand characters, in seconds
  head -n 4000 "$prose" > "$out/prose.txt"
  prose=$out/prose.txt symbols=200000
  prose_network="--hidden 16 --embedding 8 --lr 0.01" code_network="--hidden 16 --lr 0.01" counting="--limit 5 --steps 60 --seeds 1" seeds=1
fi

[ -f "$out/code.txt" ] || $python - "$out" "$symbols" <<'PYTHON'
import pathlib, random, sys, sysconfig

out, symbols = pathlib.Path(sys.argv[1]), int(sys.argv[2])
root = pathlib.Path(sysconfig.get_path("stdlib"))
left_out = {"site-packages", "test", "tests", "idlelib", "lib2to3", "encodings", "__pycache__", "pydoc_data"}
files = sorted(path for path in root.rglob("*.py") if not left_out & set(path.relative_to(root).parts))
random.Random(0).shuffle(files)
texts = [text for text in (path.read_text(encoding="utf-8", errors="ignore") for path in files) if text.isascii()]
ends = 0
for held, text in enumerate(texts):  # files that are not learnt from, to look at cells in
    ends += len(text)
    if ends >= symbols * 2 // 25:
        break
(out / "code-held-out.txt").write_text("".join(texts[: held + 1]), encoding="utf-8")
(out / "code.partial").write_text("".join(texts[held + 1 :])[:symbols], encoding="utf-8")
(out / "code.partial").rename(out / "code.txt")
PYTHON

train() {  # NAME TEXT SETTING…
  local name=$1 text=$2; shift 2
  if [ -d "$out/$name/run" ]; then $relmo train lm --resume --out "$out/$name"
  elif [ ! -f "$out/$name/config.json" ]; then $relmo train lm "$text" --out "$out/$name" --unit char --cell lstm --batch 32 --device cpu "$@"; fi
}
train prose "$prose" $prose_network --unroll 64 --epochs 2 --valid-fraction 0.02
train code "$out/code.txt" $code_network --unroll 100 --epochs 2
[ -d "$out/hello/hello-lstm" ] || $python "$(dirname "$0")/hello_models.py" "$out/hello" $seeds
[ -d "$out/counting/anbn-gru" ] || $relmo analyse counting anbn --cells lstm,gru --save "$out/counting" $counting

pack() {  # FOLDER NAME WHAT PRECISION
  [ -d "$out/examples/$2" ] && return
  { echo "# $2"; echo; echo "$3"; echo; sed 1,2d "$1/README.md"; } > "$out/$2.md"
  $relmo convert "$1" "$out/examples/$2" --precision "$4" --card "$out/$2.md"
}
pack "$out/prose" prose "Trained on War and Peace (Tolstoy, translated by L. and A. Maude; public domain) by recipes/example_models.sh." int8
pack "$out/code" code "Trained on modules of Python's standard library (PSF licence) by recipes/example_models.sh." int8
for cell in lstm gru; do
  pack "$out/counting/anbn-$cell" "anbn-$cell" "Learnt to count a's and b's by recipes/example_models.sh." float32
done
for name in hello hello-gru hello-lstm; do
  pack "$out/hello/$name" "$name" "Three units that write \"hello\", small enough to compute by hand: symbols are vectors of one 1, weights have one decimal. Made by recipes/hello_models.py." float32
done

named() {  # NAME TEXT OPTION…: cells with a name, measured on a text that the model has not read
  [ -f "$out/examples/$1/cells.json" ] || $relmo analyse cells "$out/examples/$1" "$2" --ablate zero --name-cells "${@:3}"
}
if [ "$size" = full ]; then
  $python - "$out" <<'PYTHON'
import pathlib, sys

from relmo.explorer.examples import DATA, printed

out = pathlib.Path(sys.argv[1])
alice = (DATA / "alice.txt").read_text(encoding="utf-8")
(out / "alice-printed.txt").write_text(printed(alice[alice.index("CHAPTER I") :]), encoding="utf-8")
sources = "".join(path.read_text(encoding="utf-8") for path in sorted(DATA.parent.rglob("*.py")))
(out / "relmo.py").write_text(sources[:130_000], encoding="utf-8")
(out / "anbn.txt").write_text("".join("a" * n + "b" * n for n in range(1, 41)), encoding="utf-8")
PYTHON
  named prose "$out/alice-printed.txt" --symbols 60000 --feature quotes --feature column --feature to_line_end --feature word_position --feature capitalised
  named code "$out/relmo.py" --symbols 60000
  for cell in lstm gru; do named "anbn-$cell" "$out/anbn.txt" --feature surplus; done
fi
# When the folders are in their place, src/relmo/data/examples: python recipes/explorer_answers.py
