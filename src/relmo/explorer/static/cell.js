// Cell: statistics and ablation of one unit.

import { ask, bundle, cachedAnswers, correspondingUnit, describeAddress, getResult, parseUnit, runJob, unitName } from "./data.js";
import { button, dropdown, evidence, field, formatFixed, formatSigned, grid, heading, make, notify, put, runner, showWhitespace, unitButton } from "./dom.js";
import { bars, lines } from "./charts.js";
import { createContext, goToPosition } from "./read.js";
import { getUnitCandidates } from "./find.js";
import { createProof } from "./proof.js";
import { correlationStrength, describeCell, describeClass, describeClassPosition } from "./words.js";

const EVENTS = [["\n", "line end"], [" ", "space"], ["(", "("], [")", ")"], ["\"", "\""], ["“", "“"], ["”", "”"], [".", "."], [",", ","], ["a", "a"], ["b", "b"]];

export function showCell(root, view) {
  const { about, state } = view;
  const unit = parseUnit(state.unit);
  const isState = about.carried.includes(unit.state);
  const cell = view.getNamedCell();
  const event = state.event || (cell?.event ?? (about.usual.includes("surplus") ? "b" : "\n"));
  const summary = make("p", { class: "summary" });
  const saturation = make("div", {});
  const places = make("section", { class: "panel" }, make("h3", {}, "Highest and lowest values"), make("p", { class: "loading" }, "reading the text…"));
  const eventPanel = make("section", { class: "panel" });
  const weightPanel = make("section", { class: "panel wires" });
  const pickers = make("div", { class: "row controls" }, ...about.named.map((namedCell) => button(namedCell.name, () => view.set({ unit: namedCell.unit }), { "aria-pressed": String(namedCell.unit === state.unit) })),
    button("◀ [", () => view.moveUnit(-1), { "aria-label": "previous cell" }), button("] ▶", () => view.moveUnit(1), { "aria-label": "next cell" }), button("← Show in the text", () => view.set({ screen: "read" })));
  const top = heading(describeCell(cell, view.getUnitLabel()), cell ? `${cell.name}: highest values, average around an event, weights, and ablation.`
    : "The contexts of its highest and lowest values may suggest an interpretation. Most cells have none.");
  top.querySelector("h2").append(" ", make("small", { class: "address" }, describeAddress(view, state.unit)));
  const ablationPanel = isState && !bundle ? createAblationPanel() : null;
  put(root, top, pickers, cell ? createProof(view, cell) : "", summary, saturation,
    make("div", { class: "halves" }, places, make("div", {}, eventPanel, weightPanel)), ablationPanel ?? savedPanel());
  if (!isState) {
    const memoryUnit = correspondingUnit(about, unit, about.memory);
    summary.textContent = `${about.words[unit.state] ?? unit.state} (${unit.state}) is not a state; this view needs one: ${about.carried.join(" or ")}. `;
    if (memoryUnit) summary.append(button(`${about.memory} of the same unit`, () => view.set({ unit: unitName(memoryUnit) })));
    put(places);
  } else {
    load().catch((error) => { notify(error.message); put(places, make("p", {}, error.message)); });
  }

  async function load() {
    const params = { model: state.model, text: state.text, unit: state.unit };
    await getResult("find", state).catch(() => null);
    const [overview, details] = await Promise.all([ask("overview", params), ask("cell", { ...params, event })]);
    put(summary, ...summarise(overview, details));
    const jump = (position) => goToPosition(view, overview, position);
    put(places, make("h3", {}, "Highest values"),
      make("ol", { class: "contexts" }, ...overview.high.map((occurrence) => createContext(occurrence, jump, 40, 25))),
      make("h3", {}, "Lowest values"),
      make("ol", { class: "contexts" }, ...overview.low.map((occurrence) => createContext({ ...occurrence, value: -occurrence.value }, jump, 40, 25))));
    drawEvent(details);
    drawWeights(details);
  }

  function summarise(overview, details) {
    const parts = [];
    for (const candidate of getUnitCandidates(state).filter(({ exists }) => exists)) {
      const worst = [...candidate.broken].filter((row) => row.class !== "all").sort((a, b) => a.rank - b.rank || b.delta - a.delta)[0];
      parts.push(make("strong", {}, `In this text: ${correlationStrength(candidate.r, candidate.symbols)} correlation with “${view.getFeatureLabel(candidate.feature)}” (r ${formatSigned(candidate.r)})` +
        `${worst ? `; ablation costs ${formatSigned(worst.delta, 3)} bits ${describeClassPosition(view, worst.class)} (rank ${worst.rank} of ${worst.of})` : ""}. `));
    }
    parts.push(`Over ${overview.total.toLocaleString("en")} ${view.symbols} its mean is ${formatFixed(overview.mean)}, its standard deviation ${formatFixed(overview.sd)}. `);
    const gates = [];
    for (const [gate, [low, high]] of Object.entries(details.saturation)) {
      const [bottom, top] = about.gates[gate];
      const [closed, open] = [0.1, 0.9].map((share) => Number((bottom + share * (top - bottom)).toPrecision(3)));
      gates.push(`The ${about.words[gate]} is closed (below ${closed}) at ${Math.round(100 * low)} % of the ${view.symbols}, open (above ${open}) at ${Math.round(100 * high)} %. `);
    }
    put(saturation, gates.length ? evidence("Gate saturation", ...gates) : "");
    return parts;
  }

  function drawEvent(details) {
    const events = about.unit === "char" ? EVENTS : EVENTS.filter(([event]) => !/[\n ab]/.test(event));
    const options = events.some(([symbol]) => symbol === event) ? events : [[event, showWhitespace(event)], ...events];
    const picker = bundle ? `around ${showWhitespace(details.event)}` : field("Around", dropdown(options, event, (symbol) => view.set({ event: symbol })));
    if (!details.around.count) {
      put(eventPanel, make("h3", {}, `Average around “${showWhitespace(details.event)}”`), picker, make("p", {}, `“${showWhitespace(details.event)}” is not in this text.`));
      return;
    }
    const { first: firstOffset, mean, median, lower, upper, count } = details.around;
    const x = mean.map((_, i) => firstOffset + i);
    put(eventPanel, make("h3", {}, `Average around “${showWhitespace(details.event)}”`), picker,
      lines([{ name: "mean", x, y: mean }, { name: "median and quartiles", x, y: median, lower, upper }],
        { label: `mean value of the unit around ${count} occurrences of ${showWhitespace(details.event)}`, x: `${view.symbols} after “${showWhitespace(details.event)}” (${count} occurrences)`, y: "value" }));
  }

  function drawWeights(details) {
    const { weights } = details;
    const formatWeights = (entries) => (entries ?? []).map(([name, weight]) => `${typeof name === "string" ? showWhitespace(name) : `cell ${name + 1}`} ${formatSigned(weight)}`).join("   ");
    const rows = Object.entries(weights.from).map(([gate, entries]) => [about.words[gate] ?? gate, formatWeights(entries.slice(0, 6))]);
    const symbols = Object.entries(weights.symbols).map(([gate, entries]) => [about.words[gate] ?? gate, formatWeights(entries.slice(0, 8))]);
    put(weightPanel, make("h3", {}, "Weights"),
      weights.more?.length ? make("p", {}, make("b", {}, "Raises the score of: "), formatWeights(weights.more)) : null,
      weights.less?.length ? make("p", {}, make("b", {}, "Lowers the score of: "), formatWeights(weights.less)) : null,
      symbols.length || rows.length ? evidence("Input and recurrent weights of its gates",
        symbols.length ? grid(["gate", `strongest ${view.symbols}, with their weights`], symbols, { caption: `by ${view.symbols}` }) : null,
        rows.length ? grid(["gate", "strongest cells, with their weights"], rows, { caption: "by cells of the same layer, h" }) : null) : null);
    if (!weightPanel.querySelector("p, details")) weightPanel.append(make("p", {}, "The weights of this cell cannot be attributed to single inputs."));
  }

  function savedPanel() {
    const savedResult = cachedAnswers.get(`job:change:${state.unit}`);
    return savedResult ? make("section", { class: "panel" }, ...describeChange(savedResult)) : "";
  }

  function createAblationPanel() {
    const intervention = dropdown([["zero", "set to zero"], ["mean", "set to its mean"], ["hold", "hold at a value"], ["scale", "scale"]], "zero", () => {});
    const value = make("input", { type: "number", step: "any", placeholder: "default" });
    const prompt = make("input", { type: "text", value: cell?.prompt ?? "", maxlength: "500", placeholder: "prompt of the samples" });
    const seed = make("input", { type: "number", min: 0, value: 0 });
    const result = make("div", {});
    const ablationRunner = runner("Run ablation", async (onProgress, signal) => {
      const params = { what: "change", model: state.model, text: state.text, unit: state.unit, how: intervention.value, prompt: prompt.value, seed: Number(seed.value) || 0 };
      if (value.value !== "") params.value = Number(value.value);
      const ablation = await runJob(params, onProgress, signal);
      cachedAnswers.set(`job:change:${state.unit}`, ablation);
      put(result, ...describeChange(ablation));
    });
    const savedResult = cachedAnswers.get(`job:change:${state.unit}`);
    if (savedResult) put(result, ...describeChange(savedResult));
    else if (about.kind === "lm") ablationRunner.run();
    const rankingTable = make("div", {});
    const rankRunner = runner("Rank among all cells", async (onProgress, signal) => {
      const ranking = await runJob({ what: "rank", model: state.model, text: state.text, unit: state.unit }, onProgress, signal);
      put(rankingTable, grid(["symbols", "count", "more bits", "rank", "median cell", "top cell"], ranking.classes.map((symbolClass) =>
        [describeClass(view, symbolClass.name), String(symbolClass.count), formatSigned(symbolClass.delta, 3), `${symbolClass.rank} of ${ranking.of}`, formatSigned(symbolClass.median, 3), unitButton(view, symbolClass.first)]),
      { caption: `every cell ablated on its own, over ${ranking.symbols.toLocaleString("en")} ${view.symbols}` }));
    });
    const box = make("section", { class: "panel" }, make("h3", {}, "Ablation"),
      make("p", {}, `More bits mean worse predictions. Below: two samples with the same seed, with the cell intact and changed.`), result,
      make("div", { class: "fields controls" }, field("Intervention", intervention), field("Value (hold, mean, scale)", value),
        about.kind === "lm" ? field("Prompt", prompt) : null, about.kind === "lm" ? field("Seed", seed) : null),
      ablationRunner, rankRunner, rankingTable);
    box.stop = () => { ablationRunner.stop(); rankRunner.stop(); };
    return box;
  }

  function describeChange(ablation) {
    const description = { zero: "set to zero", mean: "set to its mean", hold: `held at ${formatFixed(ablation.value)}`, scale: `times ${formatFixed(ablation.value)}` }[ablation.how];
    const parts = [bars(ablation.classes.map((symbolClass) => [describeClass(view, symbolClass.name), symbolClass.delta, `${symbolClass.count} symbols, ${formatFixed(symbolClass.bits)} bits before`]),
      { label: `more bits per ${view.symbol}, ${view.getUnitLabel(ablation.unit)} ${description}, over ${ablation.symbols.toLocaleString("en")} ${view.symbols}` })];
    if (ablation.samples.length) {
      parts.push(make("div", { class: "halves" }, ...ablation.samples.map((sample, i) =>
        make("figure", {}, make("figcaption", {}, i ? `with the cell ${description}` : "intact, the same seed"), make("pre", { tabindex: "0" }, sample)))),
      make("p", { class: "verdict" }, describeDivergence(ablation)));
    }
    return parts;
  }

  // Describe the position at which the two samples diverge.
  function describeDivergence({ samples: [intact, ablated], prompt }) {
    if (intact === ablated) return "With this seed the two samples are equal; try another seed.";
    const divergence = [...intact].findIndex((symbol, i) => symbol !== [...ablated][i]);
    const count = (divergence < 0 ? [...intact].length : divergence) - [...prompt].length;
    return `After the prompt, the two samples agree in the first ${count.toLocaleString("en")} characters.`;
  }

  return { close: () => ablationPanel?.stop(), update: () => (ablationPanel?.stop(), showCell(root, view)) };
}
