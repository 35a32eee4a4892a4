#!/usr/bin/env bash
# The task models in models/, built on the bundled biLM: names and parts of speech in minutes on a CPU, the others on a GPU.
#   experiments/recipes/task_models.sh DATA OUT [NAME…]     the packages are below OUT/packages
# NAMEs are names, pos, reading, roles and coreference; by default all. Finished steps are skipped and training resumes:
# after an interruption, run the same command again. SETTINGS has further settings of the trainings, such as --seeds 3.
set -euo pipefail
data=$1/tasks out=$2; shift 2
relmo=${RELMO:-relmo} settings=${SETTINGS:-}
[ $# -gt 0 ] || set -- names pos reading roles coreference
mkdir -p "$out/packages"

make() {  # NAME KIND HEADLINE DATA-AND-LICENCE FILE SETTING…
  local name=$1 kind=$2 headline=$3 text=$4; shift 4
  if [ -d "$out/$name/run" ]; then $relmo train "$kind" --resume --out "$out/$name"
  elif [ ! -f "$out/$name/config.json" ]; then $relmo train "$kind" "$@" --elmo small $settings --out "$out/$name"; fi
  [ ! -d "$out/packages/$name" ] || return 0
  { echo "# $name"; echo; echo "$headline Built on relmo's \`small\`."; echo; echo "Training data: $text." | fold -s -w 118
    echo; echo '```'
    echo "relmo train $kind ${*//$data\//} --elmo small $settings" | fold -s -w 112 | sed '$!s/ *$/ \\/; 2,$s/^/  /'
    echo '```'; sed 1,3d "$out/$name/README.md"; } > "$out/$name.md"
  $relmo package "$out/$name" "$out/packages/$name" --name "relmo-$name" --version 1.0.0 --precision int8 \
    --card "$out/$name.md" --text "$text" --language en --license CC-BY-SA-4.0
}

for name in "$@"; do
  case $name in
    names) make names tagger "Names of persons, places and organisations in English text." \
      "Universal NER, English EWT (Mayhew et al. 2024; CC BY-SA 4.0)" \
      "$data/ner_uner_en/en_ewt-ud-train.iob2" --valid "$data/ner_uner_en/en_ewt-ud-dev.iob2" --preset ner ;;
    pos) make pos tagger "Universal parts of speech of English words." \
      "Universal Dependencies, English EWT (Silveira et al. 2014; CC BY-SA 4.0)" \
      "$data/pos_ud/en_ewt/en_ewt-ud-train.conllu" --valid "$data/pos_ud/en_ewt/en_ewt-ud-dev.conllu" --preset pos ;;
    reading) make reading reader "Answers to questions about an English passage, as a span of it." \
      "SQuAD 1.1 (Rajpurkar et al. 2016; CC BY-SA 4.0)" \
      "$data/squad/train-v1.1.json" --valid "$data/squad/dev-v1.1.json" --preset squad --elmo-at both ;;
    roles) make roles srl "Predicates of English sentences and their semantic roles." \
      "PropBank, English EWT (Pradhan et al. 2022; CC BY-SA 4.0)" \
      "$data/srl_propbank_ewt/ewt-train.jsonl" --valid "$data/srl_propbank_ewt/ewt-dev.jsonl" \
      --preset propbank --batch 64 --tokens-per-batch 1800 --elmo-dropout 0.1 ;;
    coreference)
      # without the genres whose texts may not be used commercially, or whose licence is not stated
      awk '/^# begin document/ { keep = $0 ~ /GUM_(academic|bio|conversation|interview|news|speech|textbook|vlog|voyage)_/ }
        keep' "$data/coref_gum/ontogum_train.conll" > "$out/ontogum_train.conll"
      make coreference coref "Clusters of the mentions of one entity in an English document." \
        "OntoGUM (Zhu et al. 2021), genres of free texts (CC BY and CC BY-SA)" \
        "$out/ontogum_train.conll" --valid "$data/coref_gum/ontogum_dev.conll" --preset lee --epochs 16 ;;
    *) echo "unknown model $name" >&2; exit 2 ;;
  esac
done
