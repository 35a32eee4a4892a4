// Cell: one unit, and what happens when it is changed.

import { answers, ask, bundle, parseUnit, shownUnit, work } from "./data.js";
import { button, choice, fixed, grid, labelled, make, put, runner, say, signed, visible } from "./dom.js";
import { bars, lines } from "./charts.js";
import { context, turnTo } from "./read.js";
import { foundFor } from "./find.js";

const EVENTS = [["\n", "a line's end"], [" ", "a space"], ["(", "("], [")", ")"], ["\"", "\""], ["“", "“"], ["”", "”"], [".", "."], [",", ","], ["a", "a"], ["b", "b"]];

export function showCell(root, view) {
  const { about, state } = view;
  const unit = parseUnit(state.unit);
  const carried = about.carried.includes(unit.state);
  const title = make("h2", {}, `Unit ${shownUnit(state.unit)}`);
  const summary = make("p", { class: "summary" });
  const places = make("section", { class: "panel" }, make("h3", {}, "Where it is highest and lowest"), make("p", { class: "loading" }, "reading the whole text…"));
  const course = make("section", { class: "panel" });
  const wiring = make("section", { class: "panel wires" });
  const pickers = make("div", { class: "row" }, button("◀ [", () => view.turn(-1), { "aria-label": "previous unit" }),
    button("] ▶", () => view.turn(1), { "aria-label": "next unit" }), button("← Read", () => view.set({ screen: "read" })));
  put(root, make("section", { class: "panel" }, title, pickers, summary),
    make("div", { class: "halves" }, places, make("div", {}, course, wiring)), carried && !bundle ? change() : saved());
  if (!carried) {
    summary.textContent = `${unit.state} is a gate; choose ${about.carried.join(" or ")} to see a cell. `;
    summary.append(button(`${about.memory} of the same unit`, () => view.set({ unit: state.unit.replace(/^./, about.memory) })));
    put(places);
  } else {
    fill().catch((error) => { say(error.message); put(places, make("p", {}, error.message)); });
  }

  async function fill() {
    const asked = { model: state.model, text: state.text, unit: state.unit };
    const [over, cell] = await Promise.all([ask("overview", asked), ask("cell", { ...asked, event: state.event })]);
    put(summary, ...sentences(over, cell));
    const jump = (at) => turnTo(view, over, at);
    put(places, make("h3", {}, "Where it is highest"),
      make("ol", { class: "contexts" }, ...over.high.map((place) => context(place, jump, 40, 25))),
      make("h3", {}, "Where it is lowest"),
      make("ol", { class: "contexts" }, ...over.low.map((place) => context({ ...place, value: -place.value }, jump, 40, 25))));
    around(cell);
    wires(cell);
  }

  function sentences(over, cell) {
    const parts = [`Over ${over.total.toLocaleString("en")} symbols: mean ${fixed(over.mean)}, standard deviation ${fixed(over.sd)}. `];
    for (const each of foundFor(state)) {
      const auc = each.binary ? `AUC ${fixed(Math.max(each.auc, 1 - each.auc))}, ` : "";
      const delay = each.binary && each.delay?.on !== null && each.delay?.on !== undefined ? `, follows ${fixed(each.delay.on, 0)} symbols after it begins` : "";
      const worst = [...each.broken].filter((row) => row.class !== "all").sort((a, b) => a.rank - b.rank || b.delta - a.delta)[0];
      parts.push(make("strong", {}, `${each.feature.replaceAll("_", " ")}: ${auc}r ${signed(each.r)}, partial r ${signed(each.partial)}${delay}` +
        `${worst ? `; without it ${signed(worst.delta, 3)} bits on “${worst.class}” (rank ${worst.rank} of ${worst.of})` : ""}; ${each.verdict}. `));
    }
    for (const [gate, [low, high]] of Object.entries(cell.saturation)) {
      parts.push(`The ${about.words[gate]} is below 0.1 at ${Math.round(100 * low)} % of the symbols and above 0.9 at ${Math.round(100 * high)} %. `);
    }
    return parts;
  }

  function around(cell) {
    const options = EVENTS.some(([event]) => event === state.event) ? EVENTS : [[state.event, state.event], ...EVENTS];
    const picker = bundle ? `around ${visible(cell.event)}` : labelled("Around", choice(options, state.event, (event) => view.set({ event })));
    if (!cell.around.count) {
      put(course, make("h3", {}, "Its course around an event"), picker, make("p", {}, `“${visible(cell.event)}” is not in this text.`));
      return;
    }
    const { first, mean, median, lower, upper, count } = cell.around;
    const x = mean.map((_, i) => first + i);
    put(course, make("h3", {}, "Its course around an event"), picker,
      lines([{ name: "mean", x, y: mean }, { name: "median and quartiles", x, y: median, lower, upper }],
        { label: `the unit's value around ${count} times ${visible(cell.event)}`, x: `symbols after “${visible(cell.event)}” (${count} times)`, y: "value" }));
  }

  function wires(cell) {
    const { weights } = cell;
    const pairs = (some) => (some ?? []).map(([name, weight]) => `${typeof name === "string" ? visible(name) : name} ${signed(weight)}`).join("   ");
    const rows = Object.entries(weights.from).map(([gate, some]) => [gate, pairs(some.slice(0, 6))]);
    const symbols = Object.entries(weights.symbols).map(([gate, some]) => [gate, pairs(some.slice(0, 8))]);
    put(wiring, make("h3", {}, "What it is wired to"),
      weights.more ? make("p", {}, make("b", {}, "Makes likelier: "), pairs(weights.more)) : null,
      weights.less ? make("p", {}, make("b", {}, "Makes unlikelier: "), pairs(weights.less)) : null,
      symbols.length ? grid(["gate", "strongest symbols, with their weights"], symbols, { caption: "what opens and closes its gates: symbols" }) : null,
      rows.length ? grid(["gate", "strongest units of h, with their weights"], rows, { caption: "what opens and closes its gates: units" }) : null);
  }

  function saved() {
    const before = answers.get(`job:change:${state.unit}`);
    return before ? make("section", { class: "panel" }, ...drawn(before)) : "";
  }

  function change() {
    const how = choice([["zero", "set to zero"], ["mean", "set to its mean"], ["hold", "hold on"], ["scale", "scale"]], "zero", () => {});
    const value = make("input", { type: "number", step: "any", placeholder: "as usual" });
    const prompt = make("input", { type: "text", value: about.unit === "char" ? "" : "", maxlength: "500", placeholder: "how the samples begin" });
    const seed = make("input", { type: "number", min: 0, value: 0 });
    const result = make("div", {});
    const go = runner("Change it", async (tell, signal) => {
      const given = { what: "change", model: state.model, text: state.text, unit: state.unit, how: how.value, prompt: prompt.value, seed: Number(seed.value) || 0 };
      if (value.value !== "") given.value = Number(value.value);
      const found = await work(given, tell, signal);
      answers.set(`job:change:${state.unit}`, found);
      put(result, ...drawn(found));
    });
    const ranked = make("div", {});
    const rank = runner("Rank it among all", async (tell, signal) => {
      const found = await work({ what: "rank", model: state.model, text: state.text, unit: state.unit }, tell, signal);
      put(ranked, grid(["symbols", "count", "more bits", "rank", "median unit", "first"], found.classes.map((each) =>
        [each.name, String(each.count), signed(each.delta, 3), `${each.rank} of ${found.of}`, signed(each.median, 3), shownUnit(each.first)]),
      { caption: `every unit's h set to zero by itself, over ${found.symbols.toLocaleString("en")} symbols` }));
    });
    return make("section", { class: "panel" }, make("h3", {}, "What happens when it is changed?"),
      make("div", { class: "fields" }, labelled("Change", how), labelled("Value (hold, mean, scale)", value),
        about.kind === "lm" ? labelled("Prompt", prompt) : null, about.kind === "lm" ? labelled("Seed", seed) : null),
      go, result, rank, ranked);
  }

  function drawn(found) {
    const what = { zero: "set to zero", mean: "set to its mean", hold: `held at ${fixed(found.value)}`, scale: `times ${fixed(found.value)}` }[found.how];
    const parts = [bars(found.classes.map((each) => [each.name, each.delta, `${each.count} symbols, ${fixed(each.bits)} bits before`]),
      { label: `more bits a symbol, ${shownUnit(found.unit)} ${what}, over ${found.symbols.toLocaleString("en")} symbols` })];
    if (found.samples.length) {
      parts.push(make("div", { class: "halves" }, ...found.samples.map((sample, i) =>
        make("figure", {}, make("figcaption", {}, i ? `with the unit ${what}` : "as it is, the same seed"), make("pre", { tabindex: "0" }, sample)))));
    }
    return parts;
  }

  return { update: () => showCell(root, view) };
}
