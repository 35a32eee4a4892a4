// Read: a text coloured by one cell, page by page, with the truth below.

import { addressed, ask, bundle, fromUnits, known, parseUnit, shownUnit, unitName } from "./data.js";
import { button, choice, evidence, fixed, grid, heading, labelled, make, put, say, signed, tick, unitButton, visible } from "./dom.js";
import { histogram, map } from "./charts.js";
import { saving } from "./picture.js";
import { ColouredText } from "./text.js";
import { paint } from "./colour.js";
import { claimOf } from "./words.js";
import { proofOf } from "./proof.js";

const MODES = [["centred", "deviation from the mean"], ["value", "value"], ["change", "change from the previous symbol"], ["on", "on or off, by a threshold"],
  ["surprisal", "surprisal (bits)"], ["gradient", "gradient of a prediction (select a symbol)"]];
const AROUND = 24; // symbols of a strip

export function showRead(root, view) {
  const { about, state } = view;
  const text = new ColouredText("the text; arrow keys move, [ and ] change the cell", { focused });
  const top = make("div", {});
  const chips = make("div", { class: "chips", role: "group", "aria-label": "named cells" });
  const side = make("aside", { class: "side controls", "aria-label": "display settings" });
  const right = make("aside", { class: "side", "aria-label": "the cell over the text" });
  const legend = make("div", { class: "scale" });
  const pager = make("nav", { class: "pager", "aria-label": "pages" });
  const focus = make("div", { class: "focus", "aria-live": "polite" });
  const strips = make("div", { class: "strips" });
  const proof = make("div", {});
  const picture = make("div", { class: "picture" }, legend, text.element);
  put(root, top, chips, make("div", { class: "columns" },
    make("section", { class: "middle", "aria-label": "text" }, picture, pager, proof, strips),
    make("div", { class: "rightside" }, focus, side, right)));
  let page = null;
  let shown = { values: [], scale: 1 };
  let expected = null;
  let strip = null;
  let hovered = -1;
  let loaded = ""; // the text and the page that the symbols are of
  let latest = 0; // the number of the newest request; answers to earlier ones are dropped

  const asked = (more) => ({ model: state.model, text: state.text, page: state.page, ...more });

  async function open() {
    const turn = ++latest;
    const place = `${state.text} ${state.page}`;
    if (loaded !== place) {
      [expected, strip, loaded] = [null, null, ""];
      for (const part of [right, strips, focus]) put(part);
    }
    const [got, values] = await Promise.all([ask("page", asked()), getUnitValues()]);
    if (turn !== latest) return;
    const isNew = loaded !== place;
    if (isNew) {
      [page, loaded] = [got, place];
      text.set(page.symbols, page.gaps);
      if (state.mode === "gradient" && !isOnPage()) view.note({ at: -1 });
      pages();
    }
    const colouring = colourBy(values, turn);
    if (isNew && isOnPage()) text.land(state.at - page.first); // before anything is painted
    if (!(await colouring)) return;
    controls();
    if (!expected) {
      const likely = await ask("expected", asked()).catch(() => null);
      if (turn !== latest) return;
      expected = likely;
      if (state.mode === "surprisal" && !(await colourBy(values, turn))) return;
    }
    if (isNew && text.at < 0) reveal();
    if (text.at >= 0) {
      describeSymbol(text.at);
      drawStrip(text.at);
    }
    prefetch();
    drawOverview().catch((error) => say(error.message));
  }

  function isOnPage() {
    return page && state.at >= page.first && state.at < page.first + page.symbols.length;
  }

  // The unit's values; empty, with a message, if they are not available.
  function getUnitValues() {
    return ask("values", asked({ unit: state.unit })).catch((error) => (say(error.message), { values: [], scale: 1 }));
  }

  // Draw the values of the current mode with the truth below. Returns whether this is still the newest request.
  async function colourBy(values, turn) {
    shown = { ...values, name: "" };
    const cell = view.named();
    const turned = cell?.binary && cell.r < 0 ? -1 : 1;
    if (!values.values.length) shown = { values: new Array(page.symbols.length).fill(0), scale: 1, name: "This saved page does not include the cell here." };
    else if (state.mode === "centred") {
      const mean = values.values.reduce((sum, v) => sum + v, 0) / values.values.length;
      shown.values = values.values.map((v) => turned * (v - mean));
      shown.scale = quantile(shown.values.map(Math.abs), 0.99) || 1;
      shown.name = turned < 0 ? "Sign inverted: the cell is negative where it is on." : "";
    } else if (state.mode === "change") {
      shown.values = values.values.map((v, i) => (i ? v - values.values[i - 1] : 0));
      shown.scale = quantile(shown.values.map(Math.abs), 0.99) || 1;
    } else if (state.mode === "on") {
      shown.values = values.values.map((v) => (v >= state.threshold ? 1 : -1));
      shown.scale = 1;
    } else if (state.mode === "surprisal" && expected?.bits.length) {
      shown = { values: expected.bits, scale: 8, name: `surprisal of each ${view.symbol} in bits` };
    } else if (state.mode === "gradient") {
      shown = { values: new Array(page.symbols.length).fill(0), scale: 1, name: `Select a ${view.symbol} with the pointer or the arrow keys.` };
      if (isOnPage()) {
        const wanted = { model: state.model, text: state.text, at: state.at };
        if (!known("gradient", wanted)) {
          shown.name = `Computing the gradient of the prediction after ${view.symbol} ${state.at}…`;
          draw();
        }
        const gradient = await ask("gradient", wanted);
        if (turn !== latest) return false;
        showGradient(gradient);
      }
    }
    draw();
    await underline(turn);
    if (turn === latest) scale();
    return turn === latest;
  }

  function draw() {
    text.colour(shown.values, shown.scale, { marks: state.marks });
    headline();
    scale();
  }

  function showGradient(found) {
    found.values.forEach((value, i) => {
      const place = found.first + i - page.first;
      if (place >= 0 && place < shown.values.length) shown.values[place] = value;
    });
    shown.scale = quantile(found.values, 0.98) || 1;
    shown.name = `The prediction of “${visible(found.symbol)}” after ${view.symbol} ${state.at} depends on these symbols; half of the gradient comes from the last ${found.half}.`;
  }

  // The feature drawn as truth: the selected one, or that of the named cell.
  function getTruthFeature() {
    if (state.mode === "surprisal" || state.mode === "gradient") return "";
    return state.feature === "none" ? "" : state.feature || view.named()?.feature || "";
  }

  async function underline(turn) {
    const feature = getTruthFeature();
    const found = feature ? await ask("truth", asked({ feature })).catch(() => null) : null;
    if (turn !== latest) return;
    text.truth(found?.changes ? found.values : null);
    shown.truth = found?.changes ? found.words : "";
  }

  // Scroll to the first position at which the feature is on.
  function reveal() {
    const first = text.spans.find((span) => span.dataset.truth);
    if (first) text.reveal(first);
  }

  function headline() {
    const cell = view.named();
    const titles = { surprisal: `Surprisal of each ${view.symbol}`, gradient: "Gradient of a prediction" };
    const leads = { surprisal: `Orange: the network gave this ${view.symbol} a low probability.`, gradient: `Select a ${view.symbol}: the prediction after it depends most on the orange ones.` };
    const lead = cell ? `Orange: it is ${cell.binary ? "on" : "high"}. Blue: it is ${cell.binary ? "off" : "low"}. The line below the text shows the truth: ${cell.words}.`
      : "Orange: high. Blue: low. Most cells look like this: they have no known interpretation.";
    put(top, heading(titles[state.mode] ?? claimOf(cell, view.called()), leads[state.mode] ?? lead));
    top.querySelector("h2").append(" ", make("small", { class: "address" }, state.mode === "surprisal" || state.mode === "gradient" ? "" : addressed(view, state.unit)));
    const others = about.named.map((each) => button(each.name, () => view.set({ unit: each.unit, mode: "centred", feature: "" }),
      { "aria-pressed": String(each.unit === state.unit), title: shownUnit(each.unit) }));
    put(chips, ...(others.length ? [make("span", {}, "Named cells: "), ...others] : []),
      button("a cell without interpretation", () => view.set({ unit: findUnnamed(), mode: "centred", feature: "" }), { "aria-pressed": String(!cell) }));
    put(proof, cell && !titles[state.mode] ? proofOf(view, cell) : "");
  }

  // The next cell without a name.
  function findUnnamed() {
    let unit = state.unit;
    do unit = view.neighbour(1, unit); while (view.named(unit) && unit !== state.unit);
    return unit;
  }

  function scale() {
    const bits = state.mode === "surprisal" || state.mode === "gradient";
    const sides = state.mode === "on" || view.named()?.binary ? ["off", "on"] : ["low", "high"];
    const ends = bits ? [[0, "none"], [shown.scale, "much"]] : [[-shown.scale, sides[0]], [0, "between"], [shown.scale, sides[1]]];
    const plain = state.mode === "value" || state.mode === "change";
    put(legend, ...ends.map(([value, word]) => {
      const box = make("span", { class: "swatch" }, plain || bits ? fixed(value, state.mode === "gradient" ? 4 : 2) : word);
      paint(box, value, shown.scale);
      return box;
    }), ` ${bits ? "" : `${view.called()} `}`, bits ? "" : make("small", { class: "address" }, shownUnit(state.unit)), ` ${shown.name}`,
    shown.truth ? make("span", { class: "truthkey" }, make("i", {}), ` truth: ${shown.truth}`) : "");
  }

  function controls() {
    const unit = parseUnit(state.unit);
    const size = about.states[unit.state] / about.directions;
    const turn = (more) => view.set({ unit: unitName({ ...unit, ...more }) });
    const address = make("output", { class: "address" }, shownUnit(state.unit));
    const slider = make("input", { type: "range", min: 1, max: size, value: unit.number + 1, oninput: () => {
      turn({ number: Number(slider.value) - 1 });
      address.textContent = shownUnit(state.unit);
    } });
    const number = make("input", { type: "number", min: 1, max: size, value: unit.number + 1, onchange: () =>
      turn({ number: Math.max(0, Math.min(size - 1, Math.round(Number(number.value) || 1) - 1)) }) });
    const pins = state.pins ? state.pins.split(",") : [];
    const pinned = pins.includes(state.unit);
    const states = Object.keys(about.states).map((name) => [name, `${about.words[name]} (${name})`]);
    const truths = [["", "feature of the named cell"], ["none", "none"], ...about.features.map((each) => [each.name, each.words])];
    const opened = side.querySelector("details")?.open;
    put(side,
      make("h3", {}, `Cell ${unit.number + 1} of ${size}${about.layers > 1 ? `, layer ${unit.layer + 1}` : ""} `, make("small", { class: "address" }, shownUnit(state.unit))),
      make("div", { class: "row" }, button("◀ [", () => view.turn(-1), { "aria-label": "previous cell" }),
        button("] ▶", () => view.turn(1), { "aria-label": "next cell" }),
        button(pinned ? "Unpin" : "Pin", () => {
          const kept = pinned ? pins.filter((pin) => pin !== state.unit) : [...pins, state.unit];
          view.set({ pins: kept.join(",") });
        }),
        button("Details →", () => view.set({ screen: "cell" }))),
      pins.length ? make("div", { class: "row pins" }, "Pinned ", ...pins.map((pin) =>
        unitButton(view, pin, () => view.set({ unit: pin }), { "aria-pressed": String(pin === state.unit) }))) : null,
      labelled("Colour shows", choice(MODES.filter(([mode]) => !bundle || mode !== "gradient"), state.mode, (mode) => view.set({ mode }))),
      labelled("Cell index", slider).appendChild(address).parentElement,
      make("details", { open: Boolean(opened) }, make("summary", {}, "State, gate, layer"),
        labelled("Number", number),
        labelled("State or gate", choice(states, unit.state, (name) =>
          turn({ state: name, number: Math.min(unit.number, about.states[name] / about.directions - 1) }))),
        about.layers > 1 ? labelled("Layer", choice(Array.from({ length: about.layers }, (_, i) => [String(i), String(i + 1)]),
          String(unit.layer), (layer) => turn({ layer: Number(layer) }))) : null,
        about.directions > 1 ? labelled("Reads", choice([["", "forwards"], ["b", "backwards"]], unit.backward ? "b" : "",
          (way) => turn({ backward: way === "b" }))) : null,
        bundle ? null : labelled("Feature below the text", choice(truths, state.feature, (feature) => view.set({ feature }))),
        tick("Mark signs: + solid line, − dotted line", state.marks, (marks) => view.set({ marks }))),
      tick("Predictions", state.likely, (likely) => view.set({ likely })),
      tick("All gates", state.gates, (gates) => view.set({ gates })),
      ...(bundle ? [] : ownText(view)),
    );
  }

  function pages() {
    const turn = (label, to) => button(label, () => view.set({ page: to, at: -1 }), { disabled: !hasPage(to) });
    put(pager, make("b", {}, page.title), ...(page.pages > 1 ? [turn("◀ Page", state.page - 1), ` ${state.page + 1} of ${page.pages} `, turn("Page ▶", state.page + 1)] : []),
      ` ${page.total.toLocaleString("en")} ${view.symbols}${page.left_out ? `; ${page.left_out.toLocaleString("en")} more are omitted because of the size of the model` : ""}`,
      saving(picture, `${state.model} ${state.unit} page ${state.page + 1}`), button("CSV", csv, { title: `the page's ${view.symbols} with this cell's values` }),
      bundle?.note ? make("small", {}, `Saved: ${bundle.note}.`) : null);
  }

  // Whether a page is available; a saved page may have only some.
  function hasPage(number) {
    return number >= 0 && number < page.pages && (!bundle || Boolean(known("page", asked({ page: number }))));
  }

  function csv() {
    const quoted = (value) => `"${String(value).replaceAll('"', '""')}"`;
    const rows = page.symbols.map((symbol, i) => [page.first + i, quoted(symbol), shown.values[i]].join(","));
    view.download(`${state.unit}.csv`, ["position,symbol,value", ...rows].join("\n"), "text/csv");
  }

  function focused(place, how) {
    if (!loaded || (how === "hover" && hovered === place)) return;
    hovered = place;
    describeSymbol(place);
    if (how !== "focus") return;
    drawStrip(place);
    const moved = state.at !== page.first + place;
    if (moved) view.note({ at: page.first + place });
    if (moved && state.mode === "gradient") open().catch((error) => say(error.message));
  }

  function describeSymbol(place) {
    const rows = [["value", signed(shown.values[place], 3)]];
    if (strip) for (const [name, values] of Object.entries(strip.states)) rows.push([name, signed(values[place], 3)]);
    if (expected?.bits.length) {
      rows.push(["p", (2 ** -expected.bits[place]).toPrecision(2)], ["bits", fixed(expected.bits[place], 2)]);
    }
    const after = expected?.likely[place]?.map(([symbol, p]) => `${visible(symbol)}\u00a0${p.toFixed(2)}`).join("  ");
    put(focus,
      make("h3", {}, `“${visible(page.symbols[place])}” `, make("small", {}, `${view.symbol} ${page.first + place}`)),
      make("dl", {}, ...rows.flatMap(([name, value]) => [make("dt", { title: about.words[name] ?? "" }, name), make("dd", {}, value)])),
      after ? make("p", { class: "after" }, make("b", {}, "predicted next: "), after) : "");
  }

  // Predictions and gates around the focused symbol, in one table with aligned columns.
  async function drawStrip(place) {
    if (!state.likely && !state.gates) return put(strips);
    const first = Math.max(0, Math.min(place - AROUND / 2, page.symbols.length - AROUND));
    const some = page.symbols.slice(first, first + AROUND);
    const rows = [];
    if (state.likely && expected?.likely.length) {
      for (const n of [0, 1, 2, 3, 4]) {
        rows.push([n ? `prediction ${n + 1}` : "best prediction", ...some.map((_, i) => {
          const [symbol, p] = expected.likely[first + i][n] ?? ["", 0];
          const cell = make("td", { title: p.toFixed(3) }, visible(symbol));
          paint(cell, p, 1);
          if (symbol === page.symbols[first + i + 1]) cell.classList.add("right");
          return cell;
        })]);
      }
    }
    if (state.gates) {
      strip ??= await ask("strip", asked({ unit: state.unit })).catch((error) => (say(error.message), null));
      if (!strip || text.at !== place) return;
      for (const [name, values] of Object.entries(strip.states)) {
        const most = about.gates.includes(name) ? 1 : quantile(values.map(Math.abs), 0.99) || 1;
        rows.push([`${about.words[name] ?? name} ${name}`, ...some.map((_, i) => {
          const cell = make("td", { title: values[first + i] }, fixed(values[first + i], 1));
          paint(cell, values[first + i], most);
          return cell;
        })]);
      }
    }
    if (!rows.length) return put(strips);
    const label = `Predictions after each ${view.symbol} (underlined: correct)${state.gates ? ", and the cell's states and gates" : ""}`;
    put(strips, make("p", { class: "verdict" }, label), grid(["after", ...some.map(visible)], rows, { label }));
    const here = strips.querySelectorAll("thead th")[place - first + 1];
    here?.classList.add("here");
    const box = strips.querySelector(".scroll");
    if (here && box) box.scrollLeft = here.offsetLeft - box.clientWidth / 2;
  }

  async function drawOverview() {
    if (!about.carried.includes(parseUnit(state.unit).state)) {
      put(right, make("p", {}, "Maps of the text are available for ", about.carried.join(" and "), "."));
      return;
    }
    const wanted = { model: state.model, text: state.text, unit: state.unit };
    if (!known("overview", wanted)) put(right, make("p", { class: "loading" }, "reading the text…"));
    const found = await ask("overview", wanted).catch((error) => ({ error: error.message }));
    if (wanted.unit !== state.unit || wanted.text !== state.text) return;
    if (found.error) return put(right, make("p", {}, bundle ? "" : found.error));
    const { low, high } = found.histogram;
    const slide = make("input", { type: "range", min: low, max: high, step: (high - low) / 100, value: state.threshold,
      oninput: () => view.set({ mode: "on", threshold: Number(slide.value) }) });
    const here = [page.first / found.total, (page.first + page.symbols.length - 1) / found.total];
    const jump = (at) => turnTo(view, found, at);
    put(right,
      make("h3", {}, "Highest values"),
      make("ol", { class: "contexts" }, ...found.high.slice(0, 8).map((place) => context(place, jump))),
      make("h3", {}, "Lowest values"),
      make("ol", { class: "contexts" }, ...found.low.slice(0, 5).map((place) => context({ ...place, value: -place.value }, jump))),
      evidence("Map and histogram of the text",
        map(found.map, found.scale, here, (share) => jump(Math.floor(share * found.total))),
        histogram(found.histogram, state.mode === "on" ? state.threshold : null), labelled("Threshold", slide),
        make("p", {}, `mean ${fixed(found.mean)}, standard deviation ${fixed(found.sd)}`)));
  }

  function prefetch() {
    for (const by of [1, -1]) {
      const next = view.neighbour(by);
      if (!bundle) ask("values", asked({ unit: next })).catch(() => {});
    }
    if (!bundle || fromUnits("strip", asked({ unit: state.unit }))) {
      const unit = state.unit;
      ask("strip", asked({ unit })).then((got) => { if (unit !== state.unit) return; strip = got; if (text.at >= 0) describeSymbol(text.at); }).catch(() => {});
    }
  }

  open().catch((error) => { say(error.message); text.element.textContent = error.message; });
  return {
    text,
    update(changed) {
      if (changed.includes("unit")) strip = null;
      if (changed.includes("at") && loaded === `${state.text} ${state.page}` && isOnPage()) {
        text.focus(state.at - page.first);
        text.reveal(text.spans[text.at]);
      }
      return changed.every((name) => name === "at") && loaded && state.mode !== "gradient" ? null : open();
    },
  };
}

// Show the text at a position, on its page.
export function turnTo(view, overview, at) {
  const { model, text } = view.state;
  const page = overview.bounds.findLastIndex((first) => first <= at);
  if (bundle && !known("page", { model, text, page })) return say("This page of the text is not in the saved file.");
  view.set({ screen: "read", page, at });
}

// A context in the text. The left side is truncated at its start, so that the symbol is always visible.
export function context(place, jump, before = 19, after = 10) {
  const tag = make("button", { type: "button", class: "plain context", onclick: () => jump(place.at) });
  tag.append(make("b", {}, signed(place.value)), make("span", { class: "before" }, make("bdi", {}, flat(place.before.slice(-before)))),
    make("mark", {}, visible(place.symbol)), make("span", { class: "after" }, flat(place.after.slice(0, after))));
  return make("li", {}, tag);
}

export function flat(text) {
  return text.replaceAll("\n", "↵");
}

export function quantile(values, q) {
  const sorted = [...values].sort((a, b) => a - b);
  return sorted[Math.floor(q * (sorted.length - 1))] ?? 0;
}

function ownText(view) {
  const area = make("textarea", { rows: "4", maxlength: String(view.about.limit.characters), spellcheck: "false" });
  const language = choice([["", "prose"], ["python", "Python"], ["c", "C"]], "", () => {});
  return [make("details", {}, make("summary", {}, "Your own text"), labelled("Text", area), labelled("Language", language),
    button("Open", () => view.own(area.value, language.value || null)))];
}
