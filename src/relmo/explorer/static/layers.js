// Layers: weights of the layers of a biLM learned by tasks.

import { ask } from "./data.js";
import { choice, heading, labelled, make, put, say } from "./dom.js";
import { saving } from "./picture.js";

const LAYER_NAMES = ["characters", "first LSTM layer", "second LSTM layer"];
const PLACES_OF_ELMO = { input: "at the input of the task network", output: "at the output of the task network" };

export function showLayers(root, view) {
  const { state } = view;
  const place = make("div", {});
  put(root, place);

  async function draw() {
    const found = await ask("layers", { model: state.model });
    const models = [...new Set(found.shipped.map((each) => each.bilm))];
    const wanted = found.shipped.filter((each) => !state.bilm || each.bilm === state.bilm);
    const rows = (name) => wanted.flatMap((each) => each.mixes.filter((mix) => mix.name === name).map((mix) => [plainTask(each.task), each.bilm, mix.shares]));
    const input = rows("input");
    const most = input.filter(([, , shares]) => shares.indexOf(Math.max(...shares)) === 1).length;
    const own = found.given.flatMap((task) => task.mixes.map((mix) => [`${task.task}, ${mix.name}`, `γ ${mix.gamma.toFixed(2)}`, mix.shares]));
    const figure = make("div", {}, legendOf(), ...Object.entries(PLACES_OF_ELMO).map(([name, label]) => (rows(name).length ? mixesOf(label, rows(name)) : "")));
    figure.append(saving(figure, "layers"));
    put(place, heading(`${most} of ${input.length} tasks give the first LSTM layer the largest weight`,
      "A task with ELMo learns a weight for each layer. The largest weight of each bar is bold. Named entities and acceptability (CoLA) use more of the second layer; at the output, lower layers lead."),
    own.length ? make("section", { class: "panel" }, make("h3", {}, "Your tasks"), mixesOf("learned weights", own)) : "",
    labelled("biLM", choice([["", "both"], ...models.map((each) => [each, each])], state.bilm, (bilm) => view.set({ bilm })), "short"),
    make("section", { class: "panel" }, figure),
    make("p", { class: "verdict" }, "Means over three to five runs each, by experiments/task_results.py; the scores are in docs/results.md. After figure 2 of Peters et al. 2018, Deep contextualized word representations. ",
      "Start with --beside TASK to see the weights of a trained task."));
  }

  draw().catch((error) => say(error.message));
  return { update: draw };
}

// "POS, EWT" with the name of the task first.
function plainTask(task) {
  const [short, ...rest] = task.split(", ");
  const plain = { "SST-5": "Sentiment", SNLI: "Inference", CoLA: "Acceptability", "STS-B": "Sentence similarity", POS: "Part-of-speech tagging", NER: "Named entities" }[short];
  return plain ? `${plain} (${[short, ...rest].join(", ")})` : task;
}

function legendOf() {
  return make("ul", { class: "legend" }, ...LAYER_NAMES.map((name, n) => make("li", {}, make("span", { class: `mixkey share${n}` }, String(n + 1)), ` ${name}`)));
}

function mixesOf(label, rows) {
  return make("table", { class: "mixes" }, make("caption", {}, label), make("tbody", {}, ...rows.map(([task, bilm, shares]) => {
    const parts = shares.map((share, n) => {
      const part = make("span", { class: `share share${Math.min(n, 2)}${share === Math.max(...shares) ? " most" : ""}`, title: LAYER_NAMES[n] ?? `layer ${n}` }, `${Math.round(100 * share)} %`);
      part.style.width = `${100 * share}%`;
      return part;
    });
    return make("tr", {}, make("th", { scope: "row" }, task, " ", make("small", {}, bilm)), make("td", {}, make("div", { class: "mix" }, ...parts)));
  })));
}
