// Read: a text coloured by one cell, page by page, with the truth below.

import { ask, bundle, correspondingUnit, describeAddress, extractValues, formatAddress, getCached, parseUnit, unitName } from "./data.js";
import { button, checkbox, dropdown, evidence, field, formatFixed, formatSigned, grid, heading, make, notify, put, showWhitespace, unitButton } from "./dom.js";
import { histogram, textMap } from "./charts.js";
import { saveButtons } from "./picture.js";
import { ColouredText } from "./text.js";
import { paint } from "./colour.js";
import { describeCell } from "./words.js";
import { createProof } from "./proof.js";

const MODES = [["centred", "deviation from the mean"], ["value", "value"], ["change", "change from the previous symbol"], ["on", "on or off, by a threshold"],
  ["surprisal", "surprisal (bits)"], ["gradient", "gradient of a prediction (select a symbol)"]];
const STRIP_LENGTH = 24; // symbols

export function showRead(root, view) {
  const { about, state } = view;
  const text = new ColouredText("the text; arrow keys move, [ and ] change the cell", { onFocus });
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
  let display = { values: [], scale: 1 };
  let predictions = null;
  let strip = null;
  let hoveredIndex = -1;
  let loadedPage = ""; // text and page number of the displayed symbols
  let latestRequest = 0; // number of the newest request; earlier answers are dropped

  const buildParams = (params) => ({ model: state.model, text: state.text, page: state.page, ...params });

  async function loadPage() {
    const request = ++latestRequest;
    const pageKey = `${state.text} ${state.page}`;
    if (loadedPage !== pageKey) {
      [predictions, strip, loadedPage] = [null, null, ""];
      for (const part of [right, strips, focus]) put(part);
    }
    const [response, values] = await Promise.all([ask("page", buildParams()), getUnitValues()]);
    if (request !== latestRequest) return;
    const isNew = loadedPage !== pageKey;
    if (isNew) {
      [page, loadedPage] = [response, pageKey];
      text.set(page.symbols, page.gaps);
      if (state.mode === "gradient" && !isOnPage()) view.saveState({ at: -1 });
      drawPager();
    }
    const colouring = colourBy(values, request);
    if (isNew && isOnPage()) text.scrollToSymbol(state.at - page.first); // before the first paint
    if (!(await colouring)) return;
    drawControls();
    if (!predictions) {
      const response = await ask("expected", buildParams()).catch(() => null);
      if (request !== latestRequest) return;
      predictions = response;
      if (state.mode === "surprisal" && !(await colourBy(values, request))) return;
    }
    if (isNew && text.at < 0) reveal();
    if (text.at >= 0) {
      describeSymbol(text.at);
      drawStrip(text.at);
    }
    prefetch();
    drawOverview().catch((error) => notify(error.message));
  }

  function isOnPage() {
    return page && state.at >= page.first && state.at < page.first + page.symbols.length;
  }

  // Return the unit's values; empty, with a message, if they are not available.
  function getUnitValues() {
    return ask("values", buildParams({ unit: state.unit })).catch((error) => (notify(error.message), { values: [], scale: 1 }));
  }

  // Draw the values of the current mode with the truth below. Returns whether this is still the newest request.
  async function colourBy(values, request) {
    display = { ...values, name: "" };
    const cell = view.getNamedCell();
    const sign = cell?.binary && cell.r < 0 ? -1 : 1;
    if (!values.values.length) display = { values: new Array(page.symbols.length).fill(0), scale: 1, name: "This saved page does not include the cell here." };
    else if (state.mode === "centred") {
      const mean = values.values.reduce((sum, v) => sum + v, 0) / values.values.length;
      display.values = values.values.map((v) => sign * (v - mean));
      display.scale = quantile(display.values.map(Math.abs), 0.99) || 1;
      display.name = sign < 0 ? "Sign inverted: the cell is negative where it is on." : "";
    } else if (state.mode === "change") {
      display.values = values.values.map((v, i) => (i ? v - values.values[i - 1] : 0));
      display.scale = quantile(display.values.map(Math.abs), 0.99) || 1;
    } else if (state.mode === "on") {
      display.values = values.values.map((v) => (v >= state.threshold ? 1 : -1));
      display.scale = 1;
    } else if (state.mode === "surprisal" && predictions?.bits.length) {
      display = { values: predictions.bits, scale: 8, name: `surprisal of each ${view.symbol} in bits` };
    } else if (state.mode === "gradient") {
      display = { values: new Array(page.symbols.length).fill(0), scale: 1, name: `Select a ${view.symbol} with the pointer or the arrow keys.` };
      if (isOnPage()) {
        const params = { model: state.model, text: state.text, at: state.at };
        if (!getCached("gradient", params)) {
          display.name = `Computing the gradient of the prediction after ${view.symbol} ${state.at}…`;
          draw();
        }
        const gradient = await ask("gradient", params);
        if (request !== latestRequest) return false;
        showGradient(gradient);
      }
    }
    draw();
    await drawTruth(request);
    if (request === latestRequest) drawScale();
    return request === latestRequest;
  }

  function draw() {
    text.colour(display.values, display.scale, { marks: state.marks });
    drawHeadline();
    drawScale();
  }

  function showGradient(gradient) {
    gradient.values.forEach((value, i) => {
      const index = gradient.first + i - page.first;
      if (index >= 0 && index < display.values.length) display.values[index] = value;
    });
    display.scale = quantile(gradient.values, 0.98) || 1;
    display.name = `The prediction of “${showWhitespace(gradient.symbol)}” after ${view.symbol} ${state.at} depends on these symbols; half of the gradient comes from the last ${gradient.half}.`;
  }

  // Return the feature drawn as truth: the selected one, or the feature of the named cell.
  function getTruthFeature() {
    if (state.mode === "surprisal" || state.mode === "gradient") return "";
    return state.feature === "none" ? "" : state.feature || view.getNamedCell()?.feature || "";
  }

  async function drawTruth(request) {
    const feature = getTruthFeature();
    const truth = feature ? await ask("truth", buildParams({ feature })).catch(() => null) : null;
    if (request !== latestRequest) return;
    text.drawTruth(truth?.changes ? truth.values : null);
    display.truth = truth?.changes ? truth.words : "";
  }

  // Scroll to the first position at which the feature is on.
  function reveal() {
    const firstSpan = text.spans.find((span) => span.dataset.truth);
    if (firstSpan) text.reveal(firstSpan);
  }

  function drawHeadline() {
    const cell = view.getNamedCell();
    const titles = { surprisal: `Surprisal of each ${view.symbol}`, gradient: "Gradient of a prediction" };
    const leads = { surprisal: `Orange: the network gave this ${view.symbol} a low probability.`, gradient: `Select a ${view.symbol}: the prediction after it depends most on the orange ones.` };
    const lead = cell ? `Orange: it is ${cell.binary ? "on" : "high"}. Blue: it is ${cell.binary ? "off" : "low"}. The line below the text shows the truth: ${cell.words}.`
      : "Orange: high. Blue: low. Most cells look like this: they have no known interpretation.";
    put(top, heading(titles[state.mode] ?? describeCell(cell, view.getUnitLabel()), leads[state.mode] ?? lead));
    top.querySelector("h2").append(" ", make("small", { class: "address" }, state.mode === "surprisal" || state.mode === "gradient" ? "" : describeAddress(view, state.unit)));
    const cellButtons = about.named.map((namedCell) => button(namedCell.name, () => view.set({ unit: namedCell.unit, mode: "centred", feature: "" }),
      { "aria-pressed": String(namedCell.unit === state.unit), title: formatAddress(namedCell.unit) }));
    put(chips, ...(cellButtons.length ? [make("span", {}, "Named cells: "), ...cellButtons] : []),
      button("a cell without interpretation", () => view.set({ unit: findUnnamed(), mode: "centred", feature: "" }), { "aria-pressed": String(!cell) }));
    put(proof, cell && !titles[state.mode] ? createProof(view, cell) : "");
  }

  // Return the next cell without a name.
  function findUnnamed() {
    let unit = state.unit;
    do unit = view.neighbour(1, unit); while (view.getNamedCell(unit) && unit !== state.unit);
    return unit;
  }

  function drawScale() {
    const isUnsigned = state.mode === "surprisal" || state.mode === "gradient";
    const sides = state.mode === "on" || view.getNamedCell()?.binary ? ["off", "on"] : ["low", "high"];
    const ends = isUnsigned ? [[0, "none"], [display.scale, "much"]] : [[-display.scale, sides[0]], [0, "between"], [display.scale, sides[1]]];
    const hasNumbers = state.mode === "value" || state.mode === "change";
    put(legend, ...ends.map(([value, word]) => {
      const box = make("span", { class: "swatch" }, hasNumbers || isUnsigned ? formatFixed(value, state.mode === "gradient" ? 4 : 2) : word);
      paint(box, value, display.scale);
      return box;
    }), ` ${isUnsigned ? "" : `${view.getUnitLabel()} `}`, isUnsigned ? "" : make("small", { class: "address" }, formatAddress(state.unit)), ` ${display.name}`,
    display.truth ? make("span", { class: "truthkey" }, make("i", {}), ` truth: ${display.truth}`) : "");
  }

  function drawControls() {
    const unit = parseUnit(state.unit);
    const size = about.states[unit.state] / about.directions;
    const selectUnit = (changes) => view.set({ unit: unitName({ ...unit, ...changes }) });
    const address = make("output", { class: "address" }, formatAddress(state.unit));
    const slider = make("input", { type: "range", min: 1, max: size, value: unit.number + 1, oninput: () => {
      selectUnit({ number: Number(slider.value) - 1 });
      address.textContent = formatAddress(state.unit);
    } });
    const number = make("input", { type: "number", min: 1, max: size, value: unit.number + 1, onchange: () =>
      selectUnit({ number: Math.max(0, Math.min(size - 1, Math.round(Number(number.value) || 1) - 1)) }) });
    const pins = state.pins ? state.pins.split(",") : [];
    const isPinned = pins.includes(state.unit);
    const states = Object.keys(about.states).map((name) => [name, `${about.words[name]} (${name})`]);
    const truths = [["", "feature of the named cell"], ["none", "none"], ...about.features.map((feature) => [feature.name, feature.words])];
    const isOpen = side.querySelector("details")?.open;
    put(side,
      make("h3", {}, `Cell ${unit.number + 1} of ${size}${about.layers > 1 ? `, layer ${unit.layer + 1}` : ""} `, make("small", { class: "address" }, formatAddress(state.unit))),
      make("div", { class: "row" }, button("◀ [", () => view.moveUnit(-1), { "aria-label": "previous cell" }),
        button("] ▶", () => view.moveUnit(1), { "aria-label": "next cell" }),
        button(isPinned ? "Unpin" : "Pin", () => {
          const newPins = isPinned ? pins.filter((pin) => pin !== state.unit) : [...pins, state.unit];
          view.set({ pins: newPins.join(",") });
        }),
        button("Details →", () => view.set({ screen: "cell" }))),
      pins.length ? make("div", { class: "row pins" }, "Pinned ", ...pins.map((pin) =>
        unitButton(view, pin, () => view.set({ unit: pin }), { "aria-pressed": String(pin === state.unit) }))) : null,
      field("Colour shows", dropdown(MODES.filter(([mode]) => !bundle || mode !== "gradient"), state.mode, (mode) => view.set({ mode }))),
      field("Cell index", slider).appendChild(address).parentElement,
      make("details", { open: Boolean(isOpen) }, make("summary", {}, "State, gate, layer"),
        field("Number", number),
        field("State or gate", dropdown(states, unit.state, (name) =>
          selectUnit(correspondingUnit(about, unit, name) ?? { state: name, number: 0 }))),
        about.layers > 1 ? field("Layer", dropdown(Array.from({ length: about.layers }, (_, i) => [String(i), String(i + 1)]),
          String(unit.layer), (layer) => selectUnit({ layer: Number(layer) }))) : null,
        about.directions > 1 ? field("Reads", dropdown([["", "forwards"], ["b", "backwards"]], unit.backward ? "b" : "",
          (direction) => selectUnit({ backward: direction === "b" }))) : null,
        bundle ? null : field("Feature below the text", dropdown(truths, state.feature, (feature) => view.set({ feature }))),
        checkbox("Mark signs: + solid line, − dotted line", state.marks, (marks) => view.set({ marks }))),
      checkbox("Predictions", state.likely, (likely) => view.set({ likely })),
      checkbox("All gates", state.gates, (gates) => view.set({ gates })),
      ...(bundle ? [] : createTextForm(view)),
    );
  }

  function drawPager() {
    const pageButton = (label, number) => button(label, () => view.set({ page: number, at: -1 }), { disabled: !hasPage(number) });
    put(pager, make("b", {}, page.title), ...(page.pages > 1 ? [pageButton("◀ Page", state.page - 1), ` ${state.page + 1} of ${page.pages} `, pageButton("Page ▶", state.page + 1)] : []),
      ` ${page.total.toLocaleString("en")} ${view.symbols}${page.left_out ? `; ${page.left_out.toLocaleString("en")} more are omitted because of the size of the model` : ""}`,
      saveButtons(picture, `${state.model} ${state.unit} page ${state.page + 1}`), button("CSV", downloadCsv, { title: `the page's ${view.symbols} with this cell's values` }),
      bundle?.note ? make("small", {}, `Saved: ${bundle.note}.`) : null);
  }

  // Return whether a page is available; a saved page may have only some.
  function hasPage(number) {
    return number >= 0 && number < page.pages && (!bundle || Boolean(getCached("page", buildParams({ page: number }))));
  }

  function downloadCsv() {
    const quote = (value) => `"${String(value).replaceAll('"', '""')}"`;
    const rows = page.symbols.map((symbol, i) => [page.first + i, quote(symbol), display.values[i]].join(","));
    view.download(`${state.unit}.csv`, ["position,symbol,value", ...rows].join("\n"), "text/csv");
  }

  function onFocus(index, trigger) {
    if (!loadedPage || (trigger === "hover" && hoveredIndex === index)) return;
    hoveredIndex = index;
    describeSymbol(index);
    if (trigger !== "focus") return;
    drawStrip(index);
    const hasMoved = state.at !== page.first + index;
    if (hasMoved) view.saveState({ at: page.first + index });
    if (hasMoved && state.mode === "gradient") loadPage().catch((error) => notify(error.message));
  }

  function describeSymbol(index) {
    const rows = [["value", formatSigned(display.values[index], 3)]];
    if (strip) for (const [name, values] of Object.entries(strip.states)) rows.push([name, formatSigned(values[index], 3)]);
    if (predictions?.bits.length) {
      rows.push(["prob.", (2 ** -predictions.bits[index]).toPrecision(2)], ["bits", formatFixed(predictions.bits[index], 2)]);
    }
    const nextSymbols = predictions?.likely[index]?.map(([symbol, p]) => `${showWhitespace(symbol)}\u00a0${p.toFixed(2)}`).join("  ");
    put(focus,
      make("h3", {}, `“${showWhitespace(page.symbols[index])}” `, make("small", {}, `${view.symbol} ${page.first + index}`)),
      make("dl", {}, ...rows.flatMap(([name, value]) => [make("dt", { title: about.words[name] ?? "" }, name), make("dd", {}, value)])),
      nextSymbols ? make("p", { class: "after" }, make("b", {}, "predicted next: "), nextSymbols) : "");
  }

  // Draw predictions and gates around the focused symbol, in one table with aligned columns.
  async function drawStrip(index) {
    if (!state.likely && !state.gates) return put(strips);
    const start = Math.max(0, Math.min(index - STRIP_LENGTH / 2, page.symbols.length - STRIP_LENGTH));
    const symbols = page.symbols.slice(start, start + STRIP_LENGTH);
    const rows = [];
    if (state.likely && predictions?.likely.length) {
      for (const n of [0, 1, 2, 3, 4]) {
        rows.push([n ? `prediction ${n + 1}` : "best prediction", ...symbols.map((_, i) => {
          const [symbol, p] = predictions.likely[start + i][n] ?? ["", 0];
          const cell = make("td", { title: p.toFixed(3) }, showWhitespace(symbol));
          paint(cell, p, 1);
          if (symbol === page.symbols[start + i + 1]) cell.classList.add("right");
          return cell;
        })]);
      }
    }
    if (state.gates) {
      strip ??= await ask("strip", buildParams({ unit: state.unit })).catch((error) => (notify(error.message), null));
      if (!strip || text.at !== index) return;
      for (const [name, values] of Object.entries(strip.states)) {
        const maxValue = about.gates[name]?.[1] ?? (quantile(values.map(Math.abs), 0.99) || 1);
        rows.push([`${about.words[name] ?? name} ${name}`, ...symbols.map((_, i) => {
          const cell = make("td", { title: values[start + i] }, formatFixed(values[start + i], 1));
          paint(cell, values[start + i], maxValue);
          return cell;
        })]);
      }
    }
    if (!rows.length) return put(strips);
    const label = `Predictions after each ${view.symbol} (underlined: correct)${state.gates ? ", and the cell's states and gates" : ""}`;
    put(strips, make("p", { class: "verdict" }, label), grid(["after", ...symbols.map(showWhitespace)], rows, { label }));
    const header = strips.querySelectorAll("thead th")[index - start + 1];
    header?.classList.add("here");
    const box = strips.querySelector(".scroll");
    if (header && box) box.scrollLeft = header.offsetLeft - box.clientWidth / 2;
  }

  async function drawOverview() {
    if (!about.carried.includes(parseUnit(state.unit).state)) {
      put(right, make("p", {}, "Maps of the text are available for ", about.carried.join(" and "), "."));
      return;
    }
    const params = { model: state.model, text: state.text, unit: state.unit };
    if (!getCached("overview", params)) put(right, make("p", { class: "loading" }, "reading the text…"));
    const overview = await ask("overview", params).catch((error) => ({ error: error.message }));
    if (params.unit !== state.unit || params.text !== state.text) return;
    if (overview.error) return put(right, make("p", {}, bundle ? "" : overview.error));
    const { low, high } = overview.histogram;
    const thresholdSlider = make("input", { type: "range", min: low, max: high, step: (high - low) / 100, value: state.threshold,
      oninput: () => view.set({ mode: "on", threshold: Number(thresholdSlider.value) }) });
    const pageShares = [page.first / overview.total, (page.first + page.symbols.length - 1) / overview.total];
    const jump = (position) => goToPosition(view, overview, position);
    put(right,
      make("h3", {}, "Highest values"),
      make("ol", { class: "contexts" }, ...overview.high.slice(0, 8).map((occurrence) => createContext(occurrence, jump))),
      make("h3", {}, "Lowest values"),
      make("ol", { class: "contexts" }, ...overview.low.slice(0, 5).map((occurrence) => createContext({ ...occurrence, value: -occurrence.value }, jump))),
      evidence("Map and histogram of the text",
        textMap(overview.map, overview.scale, pageShares, (share) => jump(Math.floor(share * overview.total))),
        histogram(overview.histogram, state.mode === "on" ? state.threshold : null), field("Threshold", thresholdSlider),
        make("p", {}, `mean ${formatFixed(overview.mean)}, standard deviation ${formatFixed(overview.sd)}`)));
  }

  function prefetch() {
    for (const offset of [1, -1]) {
      const next = view.neighbour(offset);
      if (!bundle) ask("values", buildParams({ unit: next })).catch(() => {});
    }
    if (!bundle || extractValues("strip", buildParams({ unit: state.unit }))) {
      const unit = state.unit;
      ask("strip", buildParams({ unit })).then((response) => { if (unit !== state.unit) return; strip = response; if (text.at >= 0) describeSymbol(text.at); }).catch(() => {});
    }
  }

  loadPage().catch((error) => { notify(error.message); text.element.textContent = error.message; });
  return {
    text,
    update(changedNames) {
      if (changedNames.includes("unit")) strip = null;
      if (changedNames.includes("at") && loadedPage === `${state.text} ${state.page}` && isOnPage()) {
        text.focus(state.at - page.first);
        text.reveal(text.spans[text.at]);
      }
      return changedNames.every((name) => name === "at") && loadedPage && state.mode !== "gradient" ? null : loadPage();
    },
  };
}

// Show the text at a position, on its page.
export function goToPosition(view, overview, position) {
  const { model, text } = view.state;
  const page = overview.bounds.findLastIndex((firstPosition) => firstPosition <= position);
  if (bundle && !getCached("page", { model, text, page })) return notify("This page of the text is not in the saved file.");
  view.set({ screen: "read", page, at: position });
}

// Create a list item with a context. The left side is truncated at its start, so that the symbol is always visible.
export function createContext(occurrence, jump, numBefore = 19, numAfter = 10) {
  const contextButton = make("button", { type: "button", class: "plain context", onclick: () => jump(occurrence.at) });
  contextButton.append(make("b", {}, formatSigned(occurrence.value)), make("span", { class: "before" }, make("bdi", {}, escapeNewlines(occurrence.before.slice(-numBefore)))),
    make("mark", {}, showWhitespace(occurrence.symbol)), make("span", { class: "after" }, escapeNewlines(occurrence.after.slice(0, numAfter))));
  return make("li", {}, contextButton);
}

export function escapeNewlines(text) {
  return text.replaceAll("\n", "↵");
}

export function quantile(values, q) {
  const sorted = [...values].sort((a, b) => a - b);
  return sorted[Math.floor(q * (sorted.length - 1))] ?? 0;
}

function createTextForm(view) {
  const area = make("textarea", { rows: "4", maxlength: String(view.about.limit.characters), spellcheck: "false" });
  const language = dropdown([["", "prose"], ["python", "Python"], ["c", "C"]], "", () => {});
  return [make("details", {}, make("summary", {}, "Your own text"), field("Text", area), field("Language", language),
    button("Open", () => view.openText(area.value, language.value || null)))];
}
