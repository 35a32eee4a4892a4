// Align: output and attention of a sequence-to-sequence model, step by step, and the comparison with another model.

import { ask, bundle, cachedAnswers } from "./data.js";
import { button, dropdown, field, formatFixed, grid, make, notify, put } from "./dom.js";
import { bars } from "./charts.js";
import { drawAlignment, formatPercent, formatUnit, heatMap } from "./heatmap.js";
import { saveButtons } from "./picture.js";

const UNIT_NAMES = { word: "word", char: "character", bpe: "piece", unigram: "piece" };
const BEAMS = [2, 3, 5, 10];
const MIN_MAIN_WEIGHT = 0.5;

export function showAlign(root, view) {
  const { about, state } = view;
  const unitWord = UNIT_NAMES[about.units[1]];
  const subwords = about.units.map((unit) => unit === "bpe" || unit === "unigram");
  const picture = make("div", { class: "alignment" });
  const claim = make("h2", { class: "claim" });
  const lead = make("p", { class: "lead" });
  const stepper = make("div", { class: "stepper", role: "group", "aria-label": "decoder steps" });
  const [predictions, comparison, beamPanel] = [make("div", {}), make("section", { class: "panel" }), make("section", { class: "panel" })];
  const [sides, map] = [make("figure", {}), make("figure", {})];
  let alignment = null;
  let latestRequest = 0;

  const buildParams = (source) => ({ model: about.name, source, ...(state.beams ? { beams: state.beams } : {}), ...(state.other ? { other: state.other } : {}) });
  const sources = bundle ? savedSources(buildParams(""))
    : [...new Set([...about.pairs.map((pair) => pair.source), state.source])];

  put(root, form(), make("section", { class: "panel" }, claim, lead, stepper, picture), make("div", { class: "pair" }, comparison, beamPanel));
  put(picture, sides, map, predictions);
  new ResizeObserver(() => alignment && draw()).observe(picture);
  load();

  function form() {
    const source = make("input", { type: "text", maxlength: "2000", value: state.source, lang: "", autocomplete: "off", spellcheck: false });
    const submit = () => source.value.trim() && view.set({ source: source.value.trim(), step: -1, way: 0 });
    source.addEventListener("keydown", (event) => { if (event.key === "Enter") submit(); });
    const exampleSelect = dropdown(sources.map((text) => [text, text.length > 70 ? `${text.slice(0, 69)}…` : text]), state.source, (text) => {
      source.value = text;
      view.set({ source: text, step: -1, way: 0 });
    });
    if (bundle) return sources.length > 1 ? field("Example", exampleSelect) : make("span", {});
    return make("div", { class: "asking" }, field("Source", source), button("Run", submit, { class: "go" }), field("or an example", exampleSelect));
  }

  async function load() {
    const request = ++latestRequest;
    picture.classList.toggle("waiting", Boolean(alignment));
    try {
      const response = await ask("align", buildParams(state.source));
      if (request !== latestRequest) return; // superseded by a newer request
      alignment = response;
      draw();
    } catch (error) {
      notify(error.message);
      if (!alignment) put(lead, error.message);
    } finally {
      if (request === latestRequest) picture.classList.remove("waiting");
    }
  }

  // Return the selected output: greedy, or a hypothesis of the beam search.
  function getOutput() {
    const { written: hypotheses } = alignment.models[0];
    return hypotheses[Math.min(Math.max(0, state.way), hypotheses.length - 1)];
  }

  // Return the selected step; by default, that of a word with concentrated attention, preferably on a different word.
  function getStep() {
    const { units, attention } = getOutput();
    if (state.step >= 0 || !attention) return Math.min(Math.max(0, state.step), units.length - 1);
    const scores = units.map((unit, t) => {
      if (unit === null || !/[\p{L}\p{N}]/u.test(unit)) return 0;
      const maxWeight = Math.max(...attention[t]);
      return maxWeight + (alignment.models[0].source[attention[t].indexOf(maxWeight)] === unit ? 0 : 0.3);
    });
    return scores.indexOf(Math.max(...scores));
  }

  function draw() {
    const [model, output, step] = [alignment.models[0], getOutput(), getStep()];
    if (!output.units.length) return put(lead, "The output is empty.");
    const chartData = { source: model.source.map((unit) => formatUnit(unit, subwords[0])), target: output.units.map((unit) => formatUnit(unit, subwords[1])), weights: output.attention, step, name: model.name,
      reached: state.step < 0 ? output.units.length : step };
    const selectStep = (t) => view.set({ step: t });
    drawClaim(model, chartData);
    drawStepper(chartData);
    const availableWidth = picture.clientWidth;
    const [sidesWidth, mapWidth] = availableWidth < 640 ? [availableWidth, availableWidth] : availableWidth < 1000 ? [availableWidth * 0.4, availableWidth * 0.56] : [availableWidth * 0.27, availableWidth * 0.4];
    put(sides, make("figcaption", {}, "Source and output", " ", saveButtons(sides, "both texts")), drawAlignment(chartData, sidesWidth - 10, selectStep));
    map.hidden = !output.attention;
    if (output.attention) put(map, make("figcaption", {}, "Attention weights, in percent", " ", saveButtons(map, "attention")), heatMap(chartData, mapWidth - 10, selectStep));
    picture.classList.toggle("long", chartData.source.length > 24);
    for (const region of picture.querySelectorAll(".scroll")) region.centre();
    put(predictions, drawPredictions(output.steps[step], `Predictions at step ${step + 1}`));
    drawComparison(model, output, step);
    drawBeamSearch(model);
  }

  // Draw the headline.
  function drawClaim(model, { source, target, weights, step }) {
    const phrase = getOutput().units[step] === null ? "At the end of the output" : `To write “${target[step]}”`;
    const order = weights ? weights[step].map((weight, j) => [weight, j]).sort((a, b) => b[0] - a[0]) : [];
    const describeSource = ([weight, j]) => `“${source[j]}” (${formatPercent(weight)})`;
    put(claim, !weights ? `${phrase}, the decoder depends on one vector of ${model.vector} numbers`
      : order[0][0] >= MIN_MAIN_WEIGHT || order.length < 2 ? `${phrase}, the decoder attends mostly to ${describeSource(order[0])}`
        : `${phrase}, the decoder attends to several positions: ${describeSource(order[0])}, ${describeSource(order[1])}`);
    const unknown = model.unknown.map((j) => `“${model.source[j]}”`).join(", ");
    put(lead, weights ? `Lines join each output ${unitWord} to the source units with the largest attention weights; the map shows all weights. Step with ← and →, or select a ${unitWord}.`
      : `Without attention, no weights connect a ${unitWord} to the source. Step with ← and → to see the predictions.`,
    unknown ? make("b", {}, ` Not in the vocabulary: ${unknown}.`) : null,
    getOutput().ended ? null : make("b", {}, " The output was cut off at the maximum length."));
  }

  function drawStepper({ target, step, reached }) {
    const last = target.length - 1;
    const stepButton = (label, t) => button(label, () => view.set({ step: t }), { disabled: t < 0 || t > last || t === state.step });
    const join = unitWord === "character" ? "" : " ";
    const joinUnits = (start, to) => (start < to && start ? join : "") + target.slice(start, to).join(join);
    const numWritten = Math.min(reached + 1, target.length);
    put(stepper, stepButton("First", 0), stepButton("◀ Back", step - 1), stepButton("Forward ▶", step + 1), stepButton("Last", last),
      make("span", { class: "told", role: "status" }, `step ${step + 1} of ${last + 1}`),
      make("span", { class: "sofar" }, joinUnits(0, step), step ? join : "", make("u", {}, target[step]), joinUnits(step + 1, numWritten), make("span", { class: "rest" }, joinUnits(numWritten, target.length))));
  }

  // Draw a distribution as bars.
  function drawPredictions(distribution, label) {
    const rows = distribution.map(([unit, p, taken]) => [`${formatUnit(unit, subwords[1])}${taken ? " ✓" : ""}`, 100 * p]);
    return bars(rows, { label: `${label}, in percent (✓ is the output)`, digits: 1, limit: 100 });
  }

  // Return the output with differences marked and a sign where text is missing.
  function markDifferences(parts) {
    const join = about.units[1] === "char" ? "" : " ";
    const nodes = [];
    parts.forEach(([kind, part], i) => {
      const isReplaced = kind === "missing" && parts[i - 1]?.[0] === "other";
      if (isReplaced) return;
      if (nodes.length && kind !== "missing") nodes.push(join);
      if (kind === "same") nodes.push(part);
      else if (kind === "other") nodes.push(make("mark", parts[i + 1]?.[0] === "missing" ? { title: `instead of ${parts[i + 1][1]}` } : {}, part));
      else nodes.push(make("span", { class: "gap", title: `missing: ${part}` }, "‸"));
    });
    return nodes;
  }

  function drawComparison(model, output, step) {
    const companion = alignment.models[1];
    const rows = alignment.reference === null ? [] : [["reference", outputCell(alignment.reference), ""]];
    rows.push([`${model.name}, ${describeAttention(model)}`, outputCell(...markDifferences(output.parts)), formatLikelihood(output)]);
    const legend = make("p", { class: "verdict" }, make("mark", {}, "marked"), ": different from ",
      alignment.reference === null ? `the greedy output of ${model.name}` : "the reference", "; ", make("span", { class: "gap" }, "‸"), ": missing text.");
    if (!companion) {
      const hint = bundle ? null : make("p", { class: "verdict" }, `Start with --beside MODEL to compare with another model, such as one ${model.attention ? "without" : "with"} attention.`);
      if (alignment.reference === null) put(comparison, make("h2", {}, "Comparison with another model"), hint);
      else put(comparison, make("h2", {}, describeAgreement(output)), grid(["model", "text", "probability"], rows, { caption: "outputs" }), legend, hint);
      comparison.hidden = bundle && alignment.reference === null;
      return;
    }
    const companionOutput = companion.written[Math.min(state.way, 1)];
    rows.push([`${companion.name}, ${describeAttention(companion)}`, outputCell(...markDifferences(companionOutput.parts)), formatLikelihood(companionOutput)]);
    const description = companion.attention ? "It also has attention." : `It encodes the source as one vector of ${companion.vector} numbers.`;
    const names = about.beside.map((name) => [name, name]);
    put(comparison, make("h2", {}, compareOutputs(model, output, companion, companionOutput)), make("p", {}, `Compared with ${companion.name}. `, description),
      bundle || names.length < 2 ? null : field("Companion", dropdown(names, companion.name, (name) => view.set({ other: name }))),
      make("div", { class: "halves" }, make("div", {}, grid(["model", "text", "probability"], rows, { caption: "outputs" }), legend, drawCompanion(companion, companionOutput, step)),
        step < companionOutput.steps.length ? drawPredictions(companionOutput.steps[step], `Predictions of ${companion.name} at step ${step + 1}`)
          : make("p", {}, `${companion.name} ended before step ${step + 1}.`)));
  }

  // Draw source and output of the companion model.
  function drawCompanion(model, output, step) {
    if (!output.units.length) return null;
    const figure = make("figure", {});
    const target = output.units.map((unit) => formatUnit(unit, subwords[1]));
    const chartData = { source: model.source.map((unit) => formatUnit(unit, subwords[0])), target, weights: output.attention, name: model.name, step: Math.min(step, target.length - 1), reached: state.step < 0 ? target.length : step };
    const drawing = drawAlignment(chartData, 420, (t) => view.set({ step: t }));
    put(figure, make("figcaption", {}, model.name, " ", saveButtons(figure, model.name)), drawing);
    requestAnimationFrame(() => drawing.centre()); // after it has been inserted into the page
    return figure;
  }

  function describeAgreement(output) {
    return output.right ? "The output equals the reference" : "The output differs from the reference";
  }

  function compareOutputs(model, output, companion, companionOutput) {
    const condition = companion.attention ? companion.name : "Without attention";
    if (companionOutput.text === output.text) return `${condition}, the output is the same${output.right ? ", and correct" : ""}`;
    if (alignment.reference === null) return `${condition}, the output is different`;
    if (output.right) return `${condition}, the output is wrong; ${model.attention ? "with attention" : `from ${model.name}`} it is correct`;
    return companionOutput.right ? `${condition}, the output is correct` : `${condition}, the output is different; neither equals the reference`;
  }

  function outputCell(...children) {
    return make("td", { class: "written", lang: "" }, ...children);
  }

  function describeAttention(model) {
    return model.attention ? "with attention" : "without attention";
  }

  function formatLikelihood({ log_prob }) {
    const share = 100 * Math.exp(log_prob);
    return share >= 0.05 ? `${formatFixed(share, 1)} %` : "under 0.1 %";
  }

  function drawBeamSearch(model) {
    const { written: hypotheses, beams, penalty } = model;
    const [greedy, best] = hypotheses;
    const title = best.text === greedy.text ? `Beam search with ${beams} beams finds the same output as greedy decoding`
      : best.log_prob >= greedy.log_prob ? `Beam search with ${beams} beams finds a more probable output than greedy decoding`
        : `Beam search with ${beams} beams finds another output than greedy decoding`;
    const rows = hypotheses.map((hypothesis, i) => [
      button(i ? `beam ${i}` : "greedy", () => view.set({ way: i, step: -1 }), { "aria-pressed": String(hypothesis === getOutput()) }),
      outputCell(...markDifferences(hypothesis.parts)), formatLikelihood(hypothesis), formatFixed(hypothesis.log_prob, 3), ...(penalty ? [formatFixed(hypothesis.score, 3)] : [])]);
    put(beamPanel, make("h2", {}, title),
      make("p", {}, `Select one to see its attention. ${penalty ? `They are ranked by score: log-probability / ((5 + length) / 6)^${penalty} (length penalty).` : "They are ranked by probability."}`),
      bundle ? null : field("Beams", dropdown([...new Set([...BEAMS, beams])].sort((a, b) => a - b).map((n) => [String(n), String(n)]), String(beams), (n) => view.set({ beams: Number(n), way: 0, step: -1 })), "short"),
      grid(["decoding", "output", "probability", "log-probability", ...(penalty ? ["score"] : [])], rows, { caption: "greedy, then beam search, best first" }));
  }

  return {
    update: (changedNames) => (changedNames.some((name) => ["source", "beams", "other"].includes(name)) ? load() : alignment && draw()),
    key(event) {
      const offset = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
      const region = event.target.closest?.(".scroll");
      if (!offset || !alignment || (region && region.scrollWidth > region.clientWidth)) return false;
      const step = getStep() + offset;
      if (step >= 0 && step < getOutput().units.length) view.set({ step });
      return true;
    },
  };
}

// Return the sources for which a saved page has answers with these parameters.
function savedSources(params) {
  const matchesParam = ([name, value]) => name === "source" || String(params[name] ?? "") === value;
  const savedParams = [...cachedAnswers.keys()].filter((entries) => entries.startsWith("align?")).map((entries) => [...new URLSearchParams(entries.slice(6))]);
  return savedParams.filter((entries) => entries.length === Object.keys(params).length && entries.every(matchesParam)).map((entries) => new Map(entries).get("source"));
}
