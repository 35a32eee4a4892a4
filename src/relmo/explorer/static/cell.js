// Cell: statistics and ablation of one unit.

import { addressed, answers, ask, bundle, parseUnit, ready, work } from "./data.js";
import { button, choice, evidence, fixed, grid, heading, labelled, make, put, runner, say, signed, unitButton, visible } from "./dom.js";
import { bars, lines } from "./charts.js";
import { context, turnTo } from "./read.js";
import { foundFor } from "./find.js";
import { proofOf } from "./proof.js";
import { atClass, claimOf, classWords, strength } from "./words.js";

const EVENTS = [["\n", "line end"], [" ", "space"], ["(", "("], [")", ")"], ["\"", "\""], ["“", "“"], ["”", "”"], [".", "."], [",", ","], ["a", "a"], ["b", "b"]];

export function showCell(root, view) {
  const { about, state } = view;
  const unit = parseUnit(state.unit);
  const carried = about.carried.includes(unit.state);
  const cell = view.named();
  const event = state.event || (cell?.event ?? (about.usual.includes("surplus") ? "b" : "\n"));
  const summary = make("p", { class: "summary" });
  const gating = make("div", {});
  const places = make("section", { class: "panel" }, make("h3", {}, "Highest and lowest values"), make("p", { class: "loading" }, "reading the text…"));
  const course = make("section", { class: "panel" });
  const wiring = make("section", { class: "panel wires" });
  const pickers = make("div", { class: "row controls" }, ...about.named.map((each) => button(each.name, () => view.set({ unit: each.unit }), { "aria-pressed": String(each.unit === state.unit) })),
    button("◀ [", () => view.turn(-1), { "aria-label": "previous cell" }), button("] ▶", () => view.turn(1), { "aria-label": "next cell" }), button("← Show in the text", () => view.set({ screen: "read" })));
  const top = heading(claimOf(cell, view.called()), cell ? `${cell.name}: highest values, average around an event, weights, and ablation.`
    : "The contexts of its highest and lowest values may suggest an interpretation. Most cells have none.");
  top.querySelector("h2").append(" ", make("small", { class: "address" }, addressed(view, state.unit)));
  const changing = carried && !bundle ? change() : null;
  put(root, top, pickers, cell ? proofOf(view, cell) : "", summary, gating,
    make("div", { class: "halves" }, places, make("div", {}, course, wiring)), changing ?? saved());
  if (!carried) {
    summary.textContent = `${about.words[unit.state] ?? unit.state} is a gate; this view needs a state: ${about.carried.join(" or ")}. `;
    summary.append(button(`${about.memory} of the same unit`, () => view.set({ unit: state.unit.replace(/^./, about.memory) })));
    put(places);
  } else {
    fill().catch((error) => { say(error.message); put(places, make("p", {}, error.message)); });
  }

  async function fill() {
    const asked = { model: state.model, text: state.text, unit: state.unit };
    await ready("find", state).catch(() => null);
    const [over, cell] = await Promise.all([ask("overview", asked), ask("cell", { ...asked, event })]);
    put(summary, ...summarise(over, cell));
    const jump = (at) => turnTo(view, over, at);
    put(places, make("h3", {}, "Highest values"),
      make("ol", { class: "contexts" }, ...over.high.map((place) => context(place, jump, 40, 25))),
      make("h3", {}, "Lowest values"),
      make("ol", { class: "contexts" }, ...over.low.map((place) => context({ ...place, value: -place.value }, jump, 40, 25))));
    drawEvent(cell);
    drawWeights(cell);
  }

  function summarise(over, cell) {
    const parts = [];
    for (const each of foundFor(state).filter(({ exists }) => exists)) {
      const worst = [...each.broken].filter((row) => row.class !== "all").sort((a, b) => a.rank - b.rank || b.delta - a.delta)[0];
      parts.push(make("strong", {}, `In this text: ${strength(each.r, each.symbols)} correlation with “${view.feature(each.feature)}” (r ${signed(each.r)})` +
        `${worst ? `; ablation costs ${signed(worst.delta, 3)} bits ${atClass(view, worst.class)} (rank ${worst.rank} of ${worst.of})` : ""}. `));
    }
    parts.push(`Over ${over.total.toLocaleString("en")} ${view.symbols} its mean is ${fixed(over.mean)}, its standard deviation ${fixed(over.sd)}. `);
    const gates = [];
    for (const [gate, [low, high]] of Object.entries(cell.saturation)) {
      gates.push(`The ${about.words[gate]} is closed (below 0.1) at ${Math.round(100 * low)} % of the ${view.symbols}, open (above 0.9) at ${Math.round(100 * high)} %. `);
    }
    put(gating, gates.length ? evidence("Gate saturation", ...gates) : "");
    return parts;
  }

  function drawEvent(cell) {
    const fits = about.unit === "char" ? EVENTS : EVENTS.filter(([event]) => !/[\n ab]/.test(event));
    const options = fits.some(([symbol]) => symbol === event) ? fits : [[event, visible(event)], ...fits];
    const picker = bundle ? `around ${visible(cell.event)}` : labelled("Around", choice(options, event, (symbol) => view.set({ event: symbol })));
    if (!cell.around.count) {
      put(course, make("h3", {}, `Average around “${visible(cell.event)}”`), picker, make("p", {}, `“${visible(cell.event)}” is not in this text.`));
      return;
    }
    const { first, mean, median, lower, upper, count } = cell.around;
    const x = mean.map((_, i) => first + i);
    put(course, make("h3", {}, `Average around “${visible(cell.event)}”`), picker,
      lines([{ name: "mean", x, y: mean }, { name: "median and quartiles", x, y: median, lower, upper }],
        { label: `mean value of the unit around ${count} occurrences of ${visible(cell.event)}`, x: `${view.symbols} after “${visible(cell.event)}” (${count} occurrences)`, y: "value" }));
  }

  function drawWeights(cell) {
    const { weights } = cell;
    const pairs = (some) => (some ?? []).map(([name, weight]) => `${typeof name === "string" ? visible(name) : `cell ${name + 1}`} ${signed(weight)}`).join("   ");
    const rows = Object.entries(weights.from).map(([gate, some]) => [about.words[gate] ?? gate, pairs(some.slice(0, 6))]);
    const symbols = Object.entries(weights.symbols).map(([gate, some]) => [about.words[gate] ?? gate, pairs(some.slice(0, 8))]);
    put(wiring, make("h3", {}, "Weights"),
      weights.more?.length ? make("p", {}, make("b", {}, "Raises the score of: "), pairs(weights.more)) : null,
      weights.less?.length ? make("p", {}, make("b", {}, "Lowers the score of: "), pairs(weights.less)) : null,
      symbols.length || rows.length ? evidence("Input and recurrent weights of its gates",
        symbols.length ? grid(["gate", `strongest ${view.symbols}, with their weights`], symbols, { caption: `by ${view.symbols}` }) : null,
        rows.length ? grid(["gate", "strongest cells, with their weights"], rows, { caption: "by cells of the same layer, h" }) : null) : null);
    if (!wiring.querySelector("p, details")) wiring.append(make("p", {}, "The weights of this cell cannot be attributed to single inputs."));
  }

  function saved() {
    const before = answers.get(`job:change:${state.unit}`);
    return before ? make("section", { class: "panel" }, ...describeChange(before)) : "";
  }

  function change() {
    const how = choice([["zero", "set to zero"], ["mean", "set to its mean"], ["hold", "hold at a value"], ["scale", "scale"]], "zero", () => {});
    const value = make("input", { type: "number", step: "any", placeholder: "default" });
    const prompt = make("input", { type: "text", value: cell?.prompt ?? "", maxlength: "500", placeholder: "prompt of the samples" });
    const seed = make("input", { type: "number", min: 0, value: 0 });
    const result = make("div", {});
    const go = runner("Run ablation", async (tell, signal) => {
      const given = { what: "change", model: state.model, text: state.text, unit: state.unit, how: how.value, prompt: prompt.value, seed: Number(seed.value) || 0 };
      if (value.value !== "") given.value = Number(value.value);
      const found = await work(given, tell, signal);
      answers.set(`job:change:${state.unit}`, found);
      put(result, ...describeChange(found));
    });
    const before = answers.get(`job:change:${state.unit}`);
    if (before) put(result, ...describeChange(before));
    else if (about.kind === "lm") go.run();
    const ranked = make("div", {});
    const rank = runner("Rank among all cells", async (tell, signal) => {
      const found = await work({ what: "rank", model: state.model, text: state.text, unit: state.unit }, tell, signal);
      put(ranked, grid(["symbols", "count", "more bits", "rank", "median cell", "top cell"], found.classes.map((each) =>
        [classWords(view, each.name), String(each.count), signed(each.delta, 3), `${each.rank} of ${found.of}`, signed(each.median, 3), unitButton(view, each.first)]),
      { caption: `every cell ablated on its own, over ${found.symbols.toLocaleString("en")} ${view.symbols}` }));
    });
    const box = make("section", { class: "panel" }, make("h3", {}, "Ablation"),
      make("p", {}, `More bits mean worse predictions. Below: two samples with the same seed, with the cell intact and changed.`), result,
      make("div", { class: "fields controls" }, labelled("Intervention", how), labelled("Value (hold, mean, scale)", value),
        about.kind === "lm" ? labelled("Prompt", prompt) : null, about.kind === "lm" ? labelled("Seed", seed) : null),
      go, rank, ranked);
    box.stop = () => { go.stop(); rank.stop(); };
    return box;
  }

  function describeChange(found) {
    const what = { zero: "set to zero", mean: "set to its mean", hold: `held at ${fixed(found.value)}`, scale: `times ${fixed(found.value)}` }[found.how];
    const parts = [bars(found.classes.map((each) => [classWords(view, each.name), each.delta, `${each.count} symbols, ${fixed(each.bits)} bits before`]),
      { label: `more bits per ${view.symbol}, ${view.called(found.unit)} ${what}, over ${found.symbols.toLocaleString("en")} ${view.symbols}` })];
    if (found.samples.length) {
      parts.push(make("div", { class: "halves" }, ...found.samples.map((sample, i) =>
        make("figure", {}, make("figcaption", {}, i ? `with the cell ${what}` : "intact, the same seed"), make("pre", { tabindex: "0" }, sample)))),
      make("p", { class: "verdict" }, differenceOf(found)));
    }
    return parts;
  }

  // Position at which the two samples diverge.
  function differenceOf({ samples: [usual, changed], prompt }) {
    if (usual === changed) return "With this seed the two samples are equal; try another seed.";
    const same = [...usual].findIndex((symbol, i) => symbol !== [...changed][i]);
    const count = (same < 0 ? [...usual].length : same) - [...prompt].length;
    return `After the prompt, the two samples agree in the first ${count.toLocaleString("en")} characters.`;
  }

  return { close: () => changing?.stop(), update: () => (changing?.stop(), showCell(root, view)) };
}
