// Equations: one step of a cell with its numbers, all units at a glance and one of them written out; models side by side.

import { ask, bundle, parseUnit, unitName, shownUnit } from "./data.js";
import { button, fixed, heading, make, put, say, signed, tick, visible } from "./dom.js";
import { colour, paint } from "./colour.js";
import { saving } from "./picture.js";

const FEW_UNITS = 16; // that are shown with their numbers

// Name of a quantity, with its letter.
export function plainName(word, letter) {
  return [make("b", {}, word), " ", make("i", { class: "letter" }, letter)];
}

export function cellCalled(about) {
  return { elman: "Elman network", gru: "GRU", lstm: "LSTM" }[about.cell] ?? about.cell;
}

// Typeset an equation such as "W_ii x + b_ii".
export function typeset(equation) {
  const parts = equation.replaceAll(" * ", " · ").replaceAll(" - ", " − ").split(/([A-Za-z]_\w+|\b[a-z]'?(?![\w(]))/);
  return parts.map((part) => {
    const named = /^([A-Za-z])_(\w+)$/.exec(part);
    if (named) return make("span", {}, make("i", {}, named[1]), make("sub", {}, named[2]));
    return /^[a-z]'?$/.test(part) ? make("i", {}, part.replace("'", "′")) : part;
  });
}

export function showEquations(root, view) {
  const { about, state } = view;
  const head = make("div", {});
  const strip = make("div", { class: "stepper symbols", role: "group", "aria-label": "the text; arrow keys step" });
  const models = make("div", { class: "sidebyside" });
  put(root, head, strip, models);
  let latest = 0;
  const at = () => Math.max(0, state.at);
  const others = () => (state.together ? about.alike : []);

  // Displayed models with their request parameters and the corresponding unit.
  async function shown() {
    const unit = parseUnit(state.unit);
    const found = [{ name: about.name, about, asked: { model: state.model }, unit: state.unit }];
    for (const each of others()) {
      const asked = { model: each.model ?? state.model, ...(each.of ? { of: each.of } : {}) };
      const its = await ask("about", asked).catch(() => null);
      if (!its || its.kind !== about.kind) continue;
      const size = its.states[its.memory] / its.directions;
      const same = { state: its.memory, layer: Math.min(unit.layer, its.layers - 1), number: Math.min(unit.number, size - 1), backward: unit.backward };
      found.push({ name: each.name, about: its, asked, unit: unitName(same) });
    }
    return found;
  }

  async function draw() {
    const own = ++latest;
    const all = await shown();
    const steps = await Promise.all(all.map((each) => ask("step", { ...each.asked, text: state.text, at: at(), unit: each.unit }).catch((error) => ({ error: error.message }))));
    if (own !== latest) return;
    const [first] = steps;
    if (first.error) {
      put(head, heading("Step not available", first.error));
      return put(models);
    }
    title(first);
    symbols(first);
    put(models, ...steps.map((step, n) => (step.error ? "" : oneModel(all[n], step))));
    models.classList.toggle("several", steps.filter((step) => !step.error).length > 1);
    if (!bundle) for (const by of [1, -1]) prefetchStep(all, first, at() + by);
  }

  function prefetchStep(all, step, place) {
    if (place < 0 || place >= step.total) return;
    for (const each of all) ask("step", { ...each.asked, text: state.text, at: place, unit: each.unit }).catch(() => {});
  }

  function title(step) {
    const symbol = visible(step.symbols[step.at - step.first]);
    const [next] = step.likely;
    const expects = next ? ` and predicts ${next[0] === "</s>" ? "the end" : `“${visible(next[0])}”`} (${Math.round(100 * next[1])} %)` : "";
    put(head, heading(`The network reads “${symbol}”${expects}`,
      "One step in numbers: input, previous state, gates and new state. ← and → step through the text; [ and ] change the unit."),
    about.alike.length ? tick(`${about.alike.map((each) => each.name).join(" and ")} for comparison`, state.together, (together) => view.set({ together })) : null);
  }

  function symbols(step) {
    const go = (place) => button(place < at() ? "◀" : "▶", () => move(place - at()), { disabled: place < 0 || place >= step.total, "aria-label": place < at() ? "step back" : "step forward" });
    put(strip, go(at() - 1), go(at() + 1), make("span", { class: "strip" }, ...step.symbols.map((symbol, i) => {
      const place = step.first + i;
      return button(visible(symbol), () => view.set({ at: place }), { class: "symbol", "aria-pressed": String(place === at()), "aria-label": `step ${place + 1}: ${visible(symbol)}` });
    })), make("small", {}, `step ${at() + 1} of ${step.total.toLocaleString("en")}`));
  }

  function move(by) {
    const place = at() + by;
    if (place < 0) return say("This is the beginning of the text.");
    view.set({ at: place });
  }

  function oneModel(model, step) {
    const unit = parseUnit(model.unit);
    const chosen = (number) => (model.about === about ? view.set({ unit: unitName({ ...unit, number }) }) : null);
    const words = model.about.words;
    const gates = step.quantities.filter((each) => !each.state);
    const states = step.quantities.filter((each) => each.state);
    const vector = (label, values) => vectorMap(label, values, label[1] === "x" ? -1 : unit.number, label[1] === "x" ? null : chosen);
    const flow = make("div", { class: "flow" },
      group("input", vector(["input", "x"], step.x)),
      group("previous state", ...Object.entries(step.before).map(([name, values]) => vector([words[name], name], values))),
      gates.length ? group("gates", ...gates.map((each) => vector([each.word, each.name], each.values))) : "",
      group("new state", ...states.map((each) => vector([each.word, `${each.name}′`], each.values))),
      step.likely.length ? group("prediction", nextSymbols(step.likely)) : "");
    const written = make("dl", { class: "workedout" }, ...step.quantities.flatMap((each) => workOut(each, unit.number)));
    const card = make("section", { class: "panel step", "aria-label": model.name },
      make("h3", {}, cellCalled(model.about), " ", make("small", {}, `${model.name}, layer ${unit.layer + 1} of ${model.about.layers}`)), flow,
      make("h4", {}, `${capitalised(model.about.named?.find((each) => each.unit === model.unit)?.name ?? `unit ${unit.number + 1}`)} written out `, make("small", {}, shownUnit(model.unit))), written);
    card.append(saving(card, `${model.name} step ${at() + 1}`));
    return card;
  }

  draw().catch((error) => say(error.message));
  return {
    update: draw,
    key(event) {
      const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
      if (by) move(by);
      return Boolean(by);
    },
  };
}

export function capitalised(text) {
  return text[0].toUpperCase() + text.slice(1);
}

function group(label, ...parts) {
  return make("div", { class: "group" }, make("span", { class: "grouped" }, label), make("div", { class: "vectors" }, ...parts));
}

// A vector as coloured boxes with numbers, or as a map if it is large.
function vectorMap([word, letter], values, number, chosen) {
  const scale = Math.max(1, ...values.map(Math.abs));
  const caption = make("figcaption", {}, ...plainName(word, letter));
  if (values.length <= FEW_UNITS) {
    const boxes = values.map((value, i) => {
      const box = chosen ? button(fixed(value, 2), () => chosen(i), { "aria-label": `${word} of unit ${i + 1}: ${fixed(value, 2)}` }) : make("span", {}, fixed(value, 2).replace(/\.00$/, ""));
      box.classList.add("box");
      if (i === number) box.classList.add("here");
      paint(box, value, scale);
      return box;
    });
    return make("figure", { class: "vector" }, caption, make("div", { class: "boxes" }, ...boxes));
  }
  const wide = Math.ceil(Math.sqrt(values.length * 2));
  const tall = Math.ceil(values.length / wide);
  const size = Math.max(3, Math.min(8, Math.floor(170 / wide)));
  const canvas = make("canvas", { width: wide * size, height: tall * size, role: "img", "aria-label": `${word} ${letter}: ${values.length} units, unit ${number + 1} at ${signed(values[number], 2)}`,
    onclick: (event) => {
      const at = canvas.getBoundingClientRect();
      const place = Math.floor(((event.clientY - at.top) / at.height) * tall) * wide + Math.floor(((event.clientX - at.left) / at.width) * wide);
      if (chosen && place < values.length) chosen(place);
    } });
  const drawn = canvas.getContext("2d");
  values.forEach((value, i) => {
    drawn.fillStyle = colour(value, scale);
    drawn.fillRect((i % wide) * size, Math.floor(i / wide) * size, size, size);
  });
  if (number >= 0 && number < values.length) {
    drawn.strokeStyle = getComputedStyle(document.documentElement).getPropertyValue("--ink");
    drawn.lineWidth = 2;
    drawn.strokeRect((number % wide) * size - 1, Math.floor(number / wide) * size - 1, size + 2, size + 2);
  }
  const value = number >= 0 && number < values.length ? make("small", {}, ` ${signed(values[number], 3)}`) : "";
  return make("figure", { class: "vector" }, caption, canvas, value);
}

function nextSymbols(likely) {
  return make("ol", { class: "nexts" }, ...likely.slice(0, 4).map(([symbol, p]) => {
    const bar = make("span", { class: "bar plus" });
    bar.style.width = `${Math.max(1, 60 * p)}px`;
    return make("li", {}, make("b", {}, symbol === "</s>" ? "(end)" : visible(symbol)), bar, ` ${Math.round(100 * p)} %`);
  }));
}

// A quantity's equation, and its evaluation for the unit.
function workOut(each, number) {
  const prime = each.state ? "′" : "";
  const value = each.values[number];
  const lines = each.lines.length ? each.lines : [value === undefined ? "" : fixed(value, 3)];
  const none = each.lines.length || value === undefined ? "" : make("small", {}, " as computed by the network");
  return [make("dt", {}, ...plainName(each.word, each.name + prime)),
    make("dd", {}, each.equation ? make("p", { class: "equation" }, make("i", {}, each.name + prime), " = ", ...typeset(each.equation)) : "",
      value === undefined ? make("p", { class: "numbers" }, "has other units; select one above") : make("p", { class: "numbers" }, ...lines.map((line, i) => make(i === lines.length - 1 ? "strong" : "span", {}, `= ${line}`)), none))];
}
