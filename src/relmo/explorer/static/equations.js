// Equations: one step of a cell with its numbers, all units at a glance and one of them written out; models side by side.

import { ask, bundle, formatAddress, parseUnit, unitName } from "./data.js";
import { button, checkbox, formatFixed, formatSigned, heading, make, notify, put, showWhitespace } from "./dom.js";
import { colour, paint } from "./colour.js";
import { saveButtons } from "./picture.js";

const MAX_NUMBERED_UNITS = 16; // larger vectors are drawn without numbers

// Name of a quantity, with its letter.
export function quantityName(word, letter) {
  return [make("b", {}, word), " ", make("i", { class: "letter" }, letter)];
}

export function cellName(about) {
  return { elman: "Elman network", gru: "GRU", lstm: "LSTM" }[about.cell] ?? about.cell;
}

// Typeset an equation such as "W_ii x + b_ii".
export function typeset(equation) {
  const parts = equation.replaceAll(" * ", " · ").replace(/(^|[ (])-/g, "$1−").split(/([A-Za-z]_\w+|\b[A-Za-z]'?(?![\w(]))/);
  return parts.map((part) => {
    const match = /^([A-Za-z])_(\w+)$/.exec(part);
    if (match) return make("span", {}, make("i", {}, match[1]), make("sub", {}, match[2]));
    return /^[A-Za-z]'?$/.test(part) ? make("i", {}, part.replace("'", "′")) : part;
  });
}

export function showEquations(root, view) {
  const { about, state } = view;
  const head = make("div", {});
  const strip = make("div", { class: "stepper symbols", role: "group", "aria-label": "the text; arrow keys step" });
  const models = make("div", { class: "sidebyside" });
  put(root, head, strip, models);
  let latestRequest = 0;
  const getPosition = () => Math.max(0, state.at);
  const getCompanions = () => (state.together ? about.alike : []);

  // Load the displayed models with their request parameters and the corresponding unit.
  async function loadModels() {
    const unit = parseUnit(state.unit);
    const entries = [{ name: about.name, about, params: { model: state.model }, unit: state.unit }];
    for (const companion of getCompanions()) {
      const params = { model: companion.model ?? state.model, ...(companion.of ? { of: companion.of } : {}) };
      const companionAbout = await ask("about", params).catch(() => null);
      if (!companionAbout || companionAbout.kind !== about.kind) continue;
      const size = companionAbout.states[companionAbout.memory] / companionAbout.directions;
      const matchingUnit = { state: companionAbout.memory, layer: Math.min(unit.layer, companionAbout.layers - 1), number: Math.min(unit.number, size - 1), backward: unit.backward };
      entries.push({ name: companion.name, about: companionAbout, params, unit: unitName(matchingUnit) });
    }
    return entries;
  }

  async function draw() {
    const request = ++latestRequest;
    const entries = await loadModels();
    const steps = await Promise.all(entries.map((entry) => ask("step", { ...entry.params, text: state.text, at: getPosition(), unit: entry.unit }).catch((error) => ({ error: error.message }))));
    if (request !== latestRequest) return;
    const [mainStep] = steps;
    if (mainStep.error) {
      put(head, heading("Step not available", mainStep.error));
      return put(models);
    }
    drawTitle(mainStep);
    drawSymbols(mainStep);
    put(models, ...steps.map((step, n) => (step.error ? "" : drawModel(entries[n], step))));
    models.classList.toggle("several", steps.filter((step) => !step.error).length > 1);
    if (!bundle) for (const offset of [1, -1]) prefetchStep(entries, mainStep, getPosition() + offset);
  }

  function prefetchStep(entries, step, position) {
    if (position < 0 || position >= step.total) return;
    for (const entry of entries) ask("step", { ...entry.params, text: state.text, at: position, unit: entry.unit }).catch(() => {});
  }

  function drawTitle(step) {
    const symbol = showWhitespace(step.symbols[step.at - step.first]);
    const [next] = step.likely;
    const prediction = next ? ` and predicts ${next[0] === "</s>" ? "the end" : `“${showWhitespace(next[0])}”`} (${Math.round(100 * next[1])} %)` : "";
    put(head, heading(`The network reads “${symbol}”${prediction}`,
      "One step in numbers: input, previous state, gates and new state. ← and → step through the text; [ and ] change the unit."),
    about.alike.length ? checkbox(`${about.alike.map((companion) => companion.name).join(" and ")} for comparison`, state.together, (together) => view.set({ together })) : null);
  }

  function drawSymbols(step) {
    const stepButton = (position) => button(position < getPosition() ? "◀" : "▶", () => move(position - getPosition()), { disabled: position < 0 || position >= step.total, "aria-label": position < getPosition() ? "step back" : "step forward" });
    put(strip, stepButton(getPosition() - 1), stepButton(getPosition() + 1), make("span", { class: "strip" }, ...step.symbols.map((symbol, i) => {
      const position = step.first + i;
      return button(showWhitespace(symbol), () => view.set({ at: position }), { class: "symbol", "aria-pressed": String(position === getPosition()), "aria-label": `step ${position + 1}: ${showWhitespace(symbol)}` });
    })), make("small", {}, `step ${getPosition() + 1} of ${step.total.toLocaleString("en")}`));
  }

  function move(offset) {
    const position = getPosition() + offset;
    if (position < 0) return notify("This is the beginning of the text.");
    view.set({ at: position });
  }

  function drawModel(entry, step) {
    const unit = parseUnit(entry.unit);
    const selectUnit = (changes) => (entry.about === about ? view.set({ unit: unitName({ ...unit, ...changes }) }) : null);
    const size = entry.about.states[unit.state] / entry.about.directions;
    // A click selects the unit that a value belongs to, or the value itself if it has none.
    const drawQuantity = (quantity, values, prime = "") => vectorMap([quantity.word, quantity.name + prime], values, quantity.unit ?? -1, (number) => {
      if (quantity.unit !== null) selectUnit({ number: Math.floor((number * size) / values.length) });
      else if (quantity.name in entry.about.states) selectUnit({ state: quantity.name, number });
    }, quantity.shape);
    const drawGroup = (label, quantities, prime) => (quantities.length ? group(label, ...quantities.map((quantity) => drawQuantity(quantity, quantity.values, prime))) : "");
    const states = step.quantities.filter((quantity) => quantity.state);
    const outputs = step.quantities.filter((quantity) => quantity.output && !quantity.state);
    const flow = make("div", { class: "flow" },
      group("input", vectorMap(["input", "x"], step.x)),
      group("previous state", ...states.map((quantity) => drawQuantity(quantity, step.before[quantity.name]))),
      drawGroup("gates and candidates", step.quantities.filter((quantity) => !quantity.state && !quantity.output)),
      drawGroup("new state", states, "′"),
      drawGroup("output", outputs),
      step.likely.length ? group("prediction", drawPredictions(step.likely)) : "");
    const workedOut = make("dl", { class: "workedout" }, ...step.quantities.flatMap((quantity) => describeQuantity(quantity, size)));
    const card = make("section", { class: "panel step", "aria-label": entry.name },
      make("h3", {}, cellName(entry.about), " ", make("small", {}, `${entry.name}, layer ${unit.layer + 1} of ${entry.about.layers}`)), flow,
      make("h4", {}, `${capitalise(entry.about.named?.find((namedCell) => namedCell.unit === entry.unit)?.name ?? `unit ${unit.number + 1}`)} written out `, make("small", {}, formatAddress(entry.unit))), workedOut);
    card.append(saveButtons(card, `${entry.name} step ${getPosition() + 1}`));
    return card;
  }

  draw().catch((error) => notify(error.message));
  return {
    update: draw,
    key(event) {
      const offset = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
      if (offset) move(offset);
      return Boolean(offset);
    },
  };
}

export function capitalise(text) {
  return text[0].toUpperCase() + text.slice(1);
}

function group(label, ...parts) {
  return make("div", { class: "group" }, make("span", { class: "grouped" }, label), make("div", { class: "vectors" }, ...parts));
}

// Draw a vector as coloured boxes with numbers, or as a map if it is large; a matrix row by row.
function vectorMap([word, letter], values, number = -1, onSelect = null, shape = []) {
  const scale = Math.max(1, ...values.map(Math.abs));
  const caption = make("figcaption", {}, ...quantityName(word, letter));
  if (values.length <= MAX_NUMBERED_UNITS) {
    const boxes = values.map((value, i) => {
      const box = onSelect ? button(formatFixed(value, 2), () => onSelect(i), { "aria-label": `${word} of unit ${i + 1}: ${formatFixed(value, 2)}` }) : make("span", {}, formatFixed(value, 2).replace(/\.00$/, ""));
      box.classList.add("box");
      if (i === number) box.classList.add("here");
      paint(box, value, scale);
      return box;
    });
    const length = shape.length > 1 ? shape.at(-1) : boxes.length;
    const rows = boxes.filter((_, i) => i % length === 0).map((_, row) => make("div", { class: "boxes" }, ...boxes.slice(row * length, (row + 1) * length)));
    return make("figure", { class: "vector" }, caption, ...rows);
  }
  // A matrix is drawn as it is, the matrices of heads side by side, one column apart.
  const width = shape.length > 1 ? shape.at(-1) : Math.ceil(Math.sqrt(values.length * 2));
  const numRows = shape.length > 1 ? shape.at(-2) : Math.ceil(values.length / width);
  const numColumns = Math.ceil(values.length / (numRows * width)) * (width + 1) - 1;
  const getPlace = (i) => [Math.floor(i / width) % numRows, Math.floor(i / (numRows * width)) * (width + 1) + (i % width)];
  const size = Math.max(3, Math.min(8, Math.floor(170 / numColumns)));
  const canvas = make("canvas", { width: numColumns * size, height: numRows * size, role: "img", "aria-label": `${word} ${letter}: ${values.length} units${number >= 0 ? `, unit ${number + 1} at ${formatSigned(values[number], 2)}` : ""}`,
    onclick: (event) => {
      const bounds = canvas.getBoundingClientRect();
      const row = Math.floor(((event.clientY - bounds.top) / bounds.height) * numRows);
      const column = Math.floor(((event.clientX - bounds.left) / bounds.width) * numColumns);
      const index = (Math.floor(column / (width + 1)) * numRows + row) * width + (column % (width + 1));
      if (onSelect && index < values.length && column % (width + 1) < width) onSelect(index);
    } });
  const context = canvas.getContext("2d");
  values.forEach((value, i) => {
    context.fillStyle = colour(value, scale);
    const [row, column] = getPlace(i);
    context.fillRect(column * size, row * size, size, size);
  });
  if (number >= 0 && number < values.length) {
    context.strokeStyle = getComputedStyle(document.documentElement).getPropertyValue("--ink");
    context.lineWidth = 2;
    const [row, column] = getPlace(number);
    context.strokeRect(column * size - 1, row * size - 1, size + 2, size + 2);
  }
  const value = number >= 0 && number < values.length ? make("small", {}, ` ${formatSigned(values[number], 3)}`) : "";
  return make("figure", { class: "vector" }, caption, canvas, value);
}

function drawPredictions(predictions) {
  return make("ol", { class: "nexts" }, ...predictions.slice(0, 4).map(([symbol, p]) => {
    const bar = make("span", { class: "bar plus" });
    bar.style.width = `${Math.max(1, 60 * p)}px`;
    return make("li", {}, make("b", {}, symbol === "</s>" ? "(end)" : showWhitespace(symbol)), bar, ` ${Math.round(100 * p)} %`);
  }));
}

// Return a quantity's equation and its evaluation for the unit; `size` is the number of units of the unit's state.
function describeQuantity(quantity, size) {
  const prime = quantity.state ? "′" : "";
  const value = quantity.values[quantity.unit];
  const place = value !== undefined && quantity.values.length !== size ? make("small", {}, ` ${describePlace(quantity)}`) : "";
  const lines = quantity.lines.length ? quantity.lines : [value === undefined ? "" : formatFixed(value, 3)];
  const note = quantity.lines.length || value === undefined ? "" : make("small", {}, " as computed by the network");
  return [make("dt", {}, ...quantityName(quantity.word, quantity.name + prime), place),
    make("dd", {}, quantity.equation ? make("p", { class: "equation" }, make("i", {}, quantity.name + prime), " = ", ...typeset(quantity.equation)) : "",
      value === undefined ? make("p", { class: "numbers" }, "has other units; select one above") : make("p", { class: "numbers" }, ...lines.map((line, i) => make(i === lines.length - 1 ? "strong" : "span", {}, `= ${line}`)), note))];
}

// Describe which value of a quantity with other units is shown, such as "1 of 4" or "1, 2 of 4 × 8".
function describePlace({ shape, unit }) {
  const indices = [];
  for (const length of [...shape].reverse()) {
    indices.unshift((unit % length) + 1);
    unit = Math.floor(unit / length);
  }
  return `${indices.join(", ")} of ${shape.join(" × ")}`;
}
