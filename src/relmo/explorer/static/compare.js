// Compare: two models on one text, and two samples, initially without names.

import { bundle, cachedAnswers, formatAddress, getResult, isComputedHere, jobKey, runJob, storeResult } from "./data.js";
import { button, dropdown, evidence, field, formatFixed, formatSigned, grid, heading, make, notify, put, runner } from "./dom.js";
import { paint } from "./colour.js";
import { bars, lines } from "./charts.js";
import { saveButtons } from "./picture.js";
import { capitalise } from "./equations.js";
import { ColouredText, snippet } from "./text.js";
import { describeClass } from "./words.js";

export function showCompare(root, view) {
  const { about, state } = view;
  const emergenceKey = jobKey("emerge", state);
  const top = make("div", {}, heading("Two models, one text", "Orange: this model predicts better. Blue: the other one does."));
  let emergenceRunner = null;
  const result = make("div", {});
  const companions = [["n-gram", "n-gram model of the first half of this text"], ["untrained", "untrained network"],
    ...about.beside.map((name) => [name, name]),
    ...about.examples.filter((example) => example.name !== about.name && example.name !== "small" && example.text && !about.beside.includes(example.name)).map((example) => [example.name, `${example.name}: ${example.about}`])];
  const companion = dropdown(companions, state.other || about.compared, (name) => view.saveState({ other: name }));
  const order = make("input", { type: "number", min: 1, max: 20, value: state.order, onchange: () => view.saveState({ order: Number(order.value) }) });
  const prompt = make("input", { type: "text", maxlength: "500", value: state.prompt, onchange: () => view.saveState({ prompt: prompt.value }) });
  const seed = make("input", { type: "number", min: 0, value: state.seed, onchange: () => view.saveState({ seed: Number(seed.value) || 0 }) });
  const sources = [["", "none"], ...(about.train ? [["train", `${about.train}, the training text`]] : []), ...about.texts.map((passage) => [passage.name, passage.title])];
  const train = dropdown(sources, state.train || (about.train ? "train" : ""), (name) => view.saveState({ train: name || "none" }));
  const comparisonRunner = runner("Compare again", async (onProgress, signal) => {
    const comparison = await runJob({ what: "compare", model: state.model, text: state.text, other: companion.value, order: Number(order.value) || 6,
      prompt: prompt.value, seed: Number(seed.value) || 0, train: train.value }, onProgress, signal);
    storeResult("compare", state, comparison);
    draw(comparison);
  });
  const form = bundle ? "" : make("section", { class: "panel controls" }, make("h3", {}, "Comparison settings"),
    make("div", { class: "fields" }, field("Compare with", companion), field("n-gram order", order), field("Prompt of the samples", prompt), field("Seed", seed), field("Search copies in", train)),
    about.train ? null : make("p", { class: "verdict" }, "Start with --train FILE to search copies in the training text."), comparisonRunner);
  put(root, top, result, bundle && !cachedAnswers.has(emergenceKey) ? "" : createEmergencePanel(), form);
  const hasSettings = state.other || state.prompt || state.seed || state.train || state.order !== 6;
  getResult("compare", state).then((comparison) => {
    if (comparison && (!hasSettings || bundle || isComputedHere("compare", state))) draw(comparison);
    else if (!bundle) comparisonRunner.run();
  }).catch((error) => notify(error.message));

  function draw(comparison) {
    const [firstModel, secondModel] = comparison.models;
    const [gap, low, high] = comparison.classes[0].difference;
    const range = low === null ? "text too short for an interval" : `95 % interval ${formatSigned(low, 2)} to ${formatSigned(high, 2)}`;
    const note = comparison.counted_on ? " Both are measured on its second half." : "";
    put(top, heading(describeComparison(comparison), `${firstModel} needs ${formatFixed(Math.abs(gap), 2)} bits per ${view.symbol} ${gap > 0 ? "more" : "fewer"} than ${secondModel} (${range}), over ${comparison.total.toLocaleString("en")} ${view.symbols}.${note} Orange: ${firstModel} predicts better there. Blue: ${secondModel} did.`));
    const savedBits = comparison.symbols.map((_, i) => comparison.bits[1][i] - comparison.bits[0][i]);
    const text = new ColouredText(`bits saved by ${firstModel}`, { onFocus: (i) => {
      status.textContent = `“${comparison.symbols[i]}”: ${formatFixed(comparison.bits[0][i])} bits for ${firstModel}, ${formatFixed(comparison.bits[1][i])} for ${secondModel}`;
    } });
    const status = make("p", { role: "status" }, `Point at a ${view.symbol}, or move with the arrow keys.`);
    text.set(comparison.symbols, comparison.words ? comparison.symbols.map((symbol, i) => (i && symbol !== "\n" ? " " : "")) : null);
    text.colour(savedBits, 6);
    const swatch = (value, label) => {
      const box = make("span", { class: "swatch" }, label);
      paint(box, value, 1);
      return box;
    };
    const rows = comparison.classes.map((symbolClass) => [describeClass(view, symbolClass.class), symbolClass.count.toLocaleString("en"), formatFixed(symbolClass.bits[0], 3), formatFixed(symbolClass.bits[1], 3),
      symbolClass.difference[0] === null ? "" : `${formatSigned(symbolClass.difference[0], 3)}${symbolClass.difference[1] === null ? "" : ` (${formatSigned(symbolClass.difference[1], 3)} to ${formatSigned(symbolClass.difference[2], 3)})`}`]);
    const picture = make("div", {}, make("p", { class: "scale" }, swatch(1, `${firstModel} is better`), swatch(0, "equal"), swatch(-1, `${secondModel} is better`), " up to 6 bits"), text.element);
    const ranked = comparison.ranking?.length > 2 ? bars(comparison.ranking.map(({ model, bits, difference: [gap, lower, upper] }) => [model, bits, gap === 0 ? "" : `${formatSigned(gap, 2)} (${formatSigned(lower, 2)} to ${formatSigned(upper, 2)})`]),
      { label: `bits per ${view.symbol} of ${comparison.ranking.length} networks trained on the same text; fewer are better (difference to the best, 95 % interval)` }) : "";
    put(result, ranked && make("section", { class: "panel" }, ranked), make("div", { class: "pair" }, make("section", { class: "panel" }, make("h3", {}, `Difference in bits by ${view.symbol} `, saveButtons(picture, `${firstModel} and ${secondModel}`)), picture, status,
      evidence("By kind of symbol", grid(["symbols", "count", firstModel, secondModel, "difference (95 %)"], rows,
        { caption: `bits per ${view.symbol} over ${comparison.total.toLocaleString("en")} ${view.symbols}` }))),
    make("div", {}, drawSamples(comparison), comparison.copies ? drawCopies(comparison.copies) : "")));
  }

  // Name the better model if the interval of the paired differences excludes zero.
  function describeComparison({ models: [firstModel, secondModel], classes: [{ difference: [gap, low, high] }], ranking, counted_on: countedOn }) {
    const secondName = countedOn ? `${secondModel} counted on ${countedOn}` : secondModel;
    if (ranking?.length > 2) {
      const [best, ...followers] = ranking;
      const tied = followers.filter(({ difference: [, lower] }) => lower === null || lower <= 0).map(({ model }) => model);
      return tied.length ? `No clear difference between ${[best.model, ...tied].join(" and ")}` : `${best.model} predicts best of ${ranking.length} networks`;
    }
    if (low === null || (low <= 0 && high >= 0)) return `No clear difference between ${firstModel} and ${secondName}`;
    return gap < 0 ? `${firstModel} predicts better than ${secondName}` : `${capitalise(secondName)} predicts better than ${firstModel}`;
  }

  function drawSamples({ samples, copies }) {
    const names = samples.map((sample, i) => make("figcaption", {}, `text ${i + 1}`));
    const reveal = button("Show the names", () => samples.forEach((sample, i) => (names[i].textContent = sample.model)));
    const sampleNodes = (sample) => (sample.parts ? sample.parts.map(([text, isCopied]) => (isCopied ? make("mark", {}, text) : text)) : [sample.text]);
    return make("section", { class: "panel" }, make("h3", {}, "Two samples: which model wrote which? "), reveal,
      copies ? make("p", { class: "verdict" }, `Marked: copies of at least ${copies.marked} ${view.symbols} from ${copies.of}.`) : null,
      make("div", { class: "halves" }, ...samples.map((sample, i) => make("figure", {}, names[i], make("pre", { tabindex: "0", "aria-label": `text ${i + 1}`, role: "group" }, ...sampleNodes(sample))))));
  }

  function drawCopies(copies) {
    const rows = copies.rows.map((row) => [row.name, ...row.shares.map((share) => (share === null ? "" : `${formatFixed(share, 1)} %`)), row.symbols.toLocaleString("en")]);
    return make("section", { class: "panel" }, make("h3", {}, "Copies"),
      grid([`length in ${view.symbols}`, ...copies.lengths.map(String), "searched"], rows,
        { caption: `share that occurs in ${copies.of} (${copies.symbols.toLocaleString("en")} ${view.symbols})` }));
  }

  // Create the panel of one cell in the untrained network, in every checkpoint, and in the final model.
  function createEmergencePanel() {
    const container = make("div", {});
    const initialFeature = state.feature && state.feature !== "none" ? state.feature : view.getNamedCell()?.feature ?? about.named[0]?.feature ?? about.usual[0] ?? "quotes";
    const feature = dropdown(about.features.map(({ name, words }) => [name, words]), initialFeature, (name) => { view.saveState({ feature: name }); unitSelect.value = getFeatureUnit(name); });
    const getFeatureUnit = (name) => about.named.find((namedCell) => namedCell.feature === name)?.unit ?? "";
    const units = [...new Set([state.unit, ...about.named.map((namedCell) => namedCell.unit)])].map((unit) => [unit, `${view.getUnitLabel(unit)} (${formatAddress(unit)})`]);
    const unitSelect = dropdown([["", "the best cell of the final model"], ...units], getFeatureUnit(initialFeature), () => {});
    emergenceRunner = runner("Run again", async (onProgress, signal) => {
      const emergence = await runJob({ what: "emerge", model: state.model, text: state.text, feature: feature.value, unit: unitSelect.value }, onProgress, signal);
      storeResult("emerge", state, emergence);
      drawEmergence(container, emergence);
    });
    getResult("emerge", state).then((emergence) => {
      if (emergence && (bundle || isComputedHere("emerge", state) || (!state.feature && !about.beside.length))) drawEmergence(container, emergence);
      else if (!bundle) emergenceRunner.run();
    }).catch((error) => notify(error.message));
    const hint = about.beside.length ? null : make("p", { class: "verdict" },
      "Start with --beside DIR to include the checkpoints of a run; by default there are two states, untrained and trained.");
    return make("section", { class: "panel" }, make("h3", {}, "Emergence of a cell"), container,
      ...(bundle ? [] : [make("div", { class: "controls" }, make("div", { class: "fields" }, field("Feature", feature), field("Cell", unitSelect)), hint ?? "", emergenceRunner)]));
  }

  function drawEmergence(container, emergence) {
    const frames = emergence.frames.map((_, i) => i);
    const name = view.getUnitLabel(emergence.unit);
    const gaps = emergence.words ? emergence.stretch.map((symbol, i) => (i && symbol !== "\n" ? " " : "")) : null;
    const lowest = Math.min(...emergence.track);
    const middle = (lowest + Math.max(...emergence.track)) / 2;
    const drawFrame = (title, values, scale) => make("li", {}, make("figure", {}, make("figcaption", {}, title), snippet(emergence.stretch, values, scale, gaps)));
    put(container, lines([{ name: `|r| of ${name}`, x: frames, y: emergence.frames.map((frame) => Math.abs(frame.r)) },
      { name: "|r| of the best cell of the checkpoint", x: frames, y: emergence.frames.map((frame) => Math.abs(frame.best_r)) }],
    { label: `correlation of ${name} with ${view.getFeatureLabel(emergence.feature)}, by checkpoint`, x: "", y: "|r|", width: 520, height: 260, zero: true, names: emergence.frames.map((frame) => frame.model) }),
    emergence.left_out.length ? make("p", { class: "verdict" }, `Omitted, as they have other cells: ${emergence.left_out.join(", ")}.`) : "",
    make("ol", { class: "film" }, drawFrame(`truth: ${view.getFeatureLabel(emergence.feature)}`, emergence.track.map((value) => value - middle), middle - lowest || 1),
      ...emergence.frames.map((frame) => drawFrame(`${frame.model}: r ${formatSigned(frame.r, 2)}; best cell: ${view.getUnitLabel(frame.best_unit)} (${formatAddress(frame.best_unit)}), ${formatSigned(frame.best_r, 2)}`, frame.values, frame.scale))));
  }

  return { close: () => { comparisonRunner.stop(); emergenceRunner?.stop(); }, update: (changedNames) => (changedNames.some((name) => ["text", "model"].includes(name)) ? (comparisonRunner.stop(), emergenceRunner?.stop(), showCompare(root, view)) : null) };
}
