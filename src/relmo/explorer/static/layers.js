// Layers: weights of the layers of a biLM learned by tasks.

import { ask } from "./data.js";
import { dropdown, field, heading, make, notify, put } from "./dom.js";
import { saveButtons } from "./picture.js";

const LAYER_NAMES = ["characters", "first LSTM layer", "second LSTM layer"];
const ELMO_POSITIONS = { input: "at the input of the task network", output: "at the output of the task network" };

export function showLayers(root, view) {
  const { state } = view;
  const container = make("div", {});
  put(root, container);

  async function draw() {
    const weights = await ask("layers", { model: state.model });
    const models = [...new Set(weights.shipped.map((task) => task.bilm))];
    const tasks = weights.shipped.filter((task) => !state.bilm || task.bilm === state.bilm);
    const rows = (name) => tasks.flatMap((task) => task.mixes.filter((mix) => mix.name === name).map((mix) => [describeTask(task.task), task.bilm, mix.shares]));
    const input = rows("input");
    const numFirstLayer = input.filter(([, , shares]) => shares.indexOf(Math.max(...shares)) === 1).length;
    const userRows = weights.given.flatMap((task) => task.mixes.map((mix) => [`${task.task}, ${mix.name}`, `γ ${mix.gamma.toFixed(2)}`, mix.shares]));
    const figure = make("div", {}, layerLegend(), ...Object.entries(ELMO_POSITIONS).map(([name, label]) => (rows(name).length ? drawMixes(label, rows(name)) : "")));
    figure.append(saveButtons(figure, "layers"));
    put(container, heading(`${numFirstLayer} of ${input.length} tasks give the first LSTM layer the largest weight`,
      "A task with ELMo learns a weight for each layer. The largest weight of each bar is bold. Named entities and acceptability (CoLA) use more of the second layer; at the output, lower layers lead."),
    userRows.length ? make("section", { class: "panel" }, make("h3", {}, "Your tasks"), drawMixes("learned weights", userRows)) : "",
    field("biLM", dropdown([["", "both"], ...models.map((name) => [name, name])], state.bilm, (bilm) => view.set({ bilm })), "short"),
    make("section", { class: "panel" }, figure),
    make("p", { class: "verdict" }, "Means over three to five runs each, by experiments/task_results.py; the scores are in docs/results.md. After figure 2 of Peters et al. 2018, Deep contextualized word representations. ",
      "Start with --beside TASK to see the weights of a trained task."));
  }

  draw().catch((error) => notify(error.message));
  return { update: draw };
}

// Put the full name of the task before an abbreviation such as "POS, EWT".
function describeTask(task) {
  const [shortName, ...details] = task.split(", ");
  const plainName = { "SST-5": "Sentiment", SNLI: "Inference", CoLA: "Acceptability", "STS-B": "Sentence similarity", POS: "Part-of-speech tagging", NER: "Named entities" }[shortName];
  return plainName ? `${plainName} (${[shortName, ...details].join(", ")})` : task;
}

function layerLegend() {
  return make("ul", { class: "legend" }, ...LAYER_NAMES.map((name, n) => make("li", {}, make("span", { class: `mixkey share${n}` }, String(n + 1)), ` ${name}`)));
}

function drawMixes(label, rows) {
  return make("table", { class: "mixes" }, make("caption", {}, label), make("tbody", {}, ...rows.map(([task, bilm, shares]) => {
    const parts = shares.map((share, n) => {
      const part = make("span", { class: `share share${Math.min(n, 2)}${share === Math.max(...shares) ? " most" : ""}`, title: LAYER_NAMES[n] ?? `layer ${n}` }, `${Math.round(100 * share)} %`);
      part.style.width = `${100 * share}%`;
      return part;
    });
    return make("tr", {}, make("th", { scope: "row" }, task, " ", make("small", {}, bilm)), make("td", {}, make("div", { class: "mix" }, ...parts)));
  })));
}
