// The page: its state, which is stored in the URL fragment, its header, and the current view.

import { answers, ask, bundle, canonical, Mistake, parseUnit, send, spokenUnit, unitName } from "./data.js";
import { button, choice, download, labelled, make, put, say } from "./dom.js";
import { savePicture } from "./picture.js";
import { present } from "./present.js";
import { showStart } from "./start.js";
import { showRead } from "./read.js";
import { showFind } from "./find.js";
import { showCell } from "./cell.js";
import { showMemory } from "./memory.js";
import { showExperiments } from "./experiments.js";
import { showCompare } from "./compare.js";
import { showMeaning } from "./meaning.js";
import { showAlign } from "./align.js";
import { showEquations } from "./equations.js";
import { showWrite } from "./write.js";
import { showTrace } from "./trace.js";
import { showLayers } from "./layers.js";

// Views: label; show(root, view), which fills root and returns { update(changed), key(event), close(), text } or nothing; the kinds of
// model it supports; the jobs of which a saved page must have one to offer it; and its state in the URL, with defaults. A view sends
// requests with `ask` (ENDPOINTS in endpoints.py) and `work` (JOBS in work.py), and sets its title with `heading` of dom.js.
const SCREENS = {
  start: { label: "Start", show: showStart, kinds: ["lm", "bilm", "seq2seq"] },
  read: { label: "Read", show: showRead, kinds: ["lm", "bilm"] },
  find: { label: "Find", show: showFind, kinds: ["lm", "bilm"], needs: ["job:find"] },
  cell: { label: "Cell", show: showCell, kinds: ["lm", "bilm"] },
  memory: { label: "Memory", show: showMemory, kinds: ["lm", "bilm"], needs: ["job:memory", "job:fresh", "job:past"] },
  experiments: { label: "Experiments", show: showExperiments, kinds: ["lm", "bilm"], needs: ["job:count", "job:agree", "job:gates"] },
  meaning: { label: "Meaning", show: showMeaning, kinds: ["bilm"], needs: ["job:meaning", "job:tags"] },
  compare: { label: "Compare", show: showCompare, kinds: ["lm"], needs: ["job:compare", "job:emerge"] },
  equations: { label: "Equations", show: showEquations, kinds: ["lm", "bilm"], needs: ["step"], state: { together: true } },
  write: { label: "Write", show: showWrite, kinds: ["lm", "window"], needs: ["next"],
    state: { taken: "", how: "draw", temperature: 1, topk: 0, topp: 0, width: 3, deep: 8, started: false } },
  trace: { label: "Trace", show: showTrace, kinds: ["lm", "bilm"], state: { shown: "", span: -1, sentences: "", traced: false } },
  layers: { label: "Layers", show: showLayers, kinds: ["bilm"], needs: ["layers"], state: { bilm: "" } },
  align: { label: "Align", show: showAlign, kinds: ["seq2seq"], state: { source: "", step: -1, way: 0, beams: 0 } },
};
const DEFAULTS = { screen: "", model: "", text: "", page: 0, unit: "", mode: "", at: -1, pins: "", marks: false,
  likely: true, gates: false, threshold: 0, own: "", language: "", event: "", features: "", patterns: "", measure: "r", sort: "",
  bias: 1, radius: 1, languageName: "anbn", pairs: "", other: "", order: 6, sentence: "The children play in the garden .", position: 2,
  same: false, pack: "", most: 100, conditions: "", swept: false, train: "", feature: "", prompt: "", seed: 0, jacobians: false, beside: false };
for (const { state: own } of Object.values(SCREENS)) Object.assign(DEFAULTS, own);
const SHORT = 1500; // characters of a text of one's own that the address carries

let state = { ...DEFAULTS };
let about = null;
let current = null;
let turned = performance.now();
let opened = ""; // the screen that an empty address stands for

function fromAddress() {
  const given = new URLSearchParams(location.hash.slice(1));
  const found = { ...DEFAULTS };
  for (const [name, value] of given) {
    if (!(name in DEFAULTS)) continue;
    const kind = typeof DEFAULTS[name];
    if (kind === "number") found[name] = Number.isFinite(Number(value)) ? Number(value) : DEFAULTS[name];
    else found[name] = kind === "boolean" ? value === "true" : value;
  }
  if (!(found.screen in SCREENS)) found.screen = "";
  if (!/^([a-z])(\d{1,4})\.(\d{1,6})(b?)$/.test(found.unit)) found.unit = "";
  return found;
}

function toAddress(push, shown = state) {
  const kept = Object.entries(shown).filter(([name, value]) => value !== DEFAULTS[name]);
  const address = `#${new URLSearchParams(kept)}`;
  try {
    history[push ? "pushState" : "replaceState"](null, "", address);
  } catch {
    // a frame without a URL
  }
}

const view = {
  // Whether this view exists.
  offers(name) { return name in SCREENS; },
  get state() { return state; },
  get about() { return about; },
  set(more) {
    const changed = Object.keys(more).filter((name) => more[name] !== state[name]);
    if (!changed.length) return;
    if ("text" in more && more.text !== state.text) Object.assign(more, { page: 0, at: -1, ...more });
    const next = { ...state, ...more };
    toAddress(changed.includes("screen"), next);
    if (changed.includes("model")) return arrive(next);
    if (changed.includes("screen") || !current?.update) {
      state = next;
      return show();
    }
    Object.assign(state, more);
    head();
    turned = performance.now();
    const again = current.update(changed); // a screen that shows itself anew gives what it then is
    if (again?.update) current = again;
    Promise.resolve(again).then(() => {
      document.documentElement.dataset.took = (performance.now() - turned).toFixed(1);
    }, (error) => say(error.message));
  },
  note(more) {
    Object.assign(state, more);
    toAddress(false);
  },
  neighbour(by, from = this.state.unit) {
    const unit = parseUnit(from);
    const size = this.about.states[unit.state] / this.about.directions;
    return unitName({ ...unit, number: (unit.number + by + size) % size });
  },
  turn(by) { this.set({ unit: this.neighbour(by) }); },
  // The name of a unit, if it has one.
  named(unit = this.state.unit) { return this.about.named?.find((cell) => cell.unit === unit) ?? null; },
  called(unit = this.state.unit) { return this.named(unit)?.name ?? spokenUnit(unit, this.about.layers); },
  get symbols() { return this.about.unit === "char" ? "characters" : "words"; },
  get symbol() { return this.about.unit === "char" ? "character" : "word"; },
  feature(name) { return this.about.features.find((each) => each.name === name)?.words ?? name.replaceAll("_", " "); },
  // The source of a figure, in one line.
  get source() {
    const text = (this.about.texts ?? []).find((each) => each.name === this.state.text)?.title;
    return ["relmo", `model ${this.about.name}`, text && this.state.screen !== "start" ? text : ""].filter(Boolean).join(" · ");
  },
  async own(text, language) {
    try {
      const { text: name } = await send("api/text", { model: this.state.model, text, language });
      this.set({ text: name, page: 0, at: -1, own: text.length <= SHORT ? text : "", language: language ?? "", screen: "read" });
    } catch (error) {
      say(error.message);
    }
  },
  download,
};

// The context of the current view. A view that was left keeps its state and model, so that late answers change nothing.
function ownView() {
  const mine = state;
  const live = (what) => ({ value: (more) => { if (mine === state) view[what](more); } });
  return Object.create(view, { state: { value: mine }, about: { value: about }, set: live("set"), note: live("note") });
}

function head() {
  const tabs = Object.entries(SCREENS).filter(([name]) => offered(name)).map(([name, { label }]) =>
    button(label, () => view.set({ screen: name }), { "aria-current": name === state.screen ? "page" : "false" }));
  const models = (bundle ? [] : about.examples).map((each) => [each.name, each.name]);
  if (!models.some(([name]) => name === about.name)) models.unshift([about.name, about.name]);
  const translates = about.kind === "seq2seq";
  const texts = (about.texts ?? []).map((each) => [each.name, each.title]);
  if (!texts.some(([name]) => name === state.text)) texts.unshift([state.text, "Your text"]);
  const known = about.examples?.find((each) => each.name === about.name)?.about;
  const opened = { unit: "", mode: "", text: "", page: 0, at: -1, pins: "", source: "", step: -1, way: 0, beams: 0, other: "", feature: "",
    prompt: "", taken: "", started: false, shown: "", sentences: "", traced: false, span: -1 };
  const nav = make("nav", { "aria-label": "screens", class: "tabs" }, ...tabs);
  put(document.getElementById("top"),
    make("h1", {}, "relmo ", make("span", {}, "explore")), nav,
    make("div", { class: "tools" },
      button("Present", () => present(document.getElementById("screen"), view), { title: "this view as a slide (f)" }),
      button("◐", dark, { "aria-label": "light or dark theme" }),
      bundle ? null : button("Save page", save, { title: "one self-contained page with the views you have opened" })),
    make("div", { class: "pickers" },
      bundle ? make("span", { class: "kind" }, about.name) :
        labelled("Model", choice(models, about.name, (model) => view.set({ ...opened, model }))),
      bundle || translates || state.screen === "start" ? null : labelled("Text", choice(texts, state.text, (text) => view.set({ text }))),
      make("p", { class: "kind" }, make("b", {}, known ? `${known[0].toUpperCase()}${known.slice(1)}. ` : ""), kindOf(about))));
  nav.querySelector("[aria-current=page]")?.scrollIntoView({ block: "nearest", inline: "center" });
  document.title = `${SCREENS[state.screen].label} · ${about.name} · relmo`;
}

function kindOf(it) {
  if (it.kind === "window") return `${it.cell}, context of ${it.window} symbols, ${it.parameters.toLocaleString("en")} parameters; reads ${it.unit === "char" ? "characters" : "words"}.`;
  const size = it.kind === "seq2seq" ? it.hidden : it.states[it.memory] / it.directions;
  const [reads, writes] = (it.units ?? [it.unit]).map((unit) => ({ char: "characters", word: "words" }[unit] ?? "subwords"));
  const layers = it.layers > 1 ? `${it.layers} layers of ${size} cells` : `${size} cells`;
  return `${it.cell.toUpperCase()}, ${layers}, ${it.parameters.toLocaleString("en")} parameters; reads ${reads}${writes ? `, writes ${writes}` : ""}.`;
}

// A saved page offers the views whose answers it has.
function offered(name) {
  const { kinds, needs } = SCREENS[name];
  if (!kinds.includes(about.kind)) return false;
  if (name === "start") return !bundle;
  return !bundle || !needs || needs.some((job) => [...answers.keys()].some((key) => key.split(/[:?]/).slice(0, job.includes(":") ? 2 : 1).join(":") === job));
}

function dark() {
  const root = document.documentElement;
  const now = root.dataset.theme ?? (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
  root.dataset.theme = now === "dark" ? "light" : "dark";
  show();
}

async function save() {
  try {
    const unit = state.unit && parseUnit(state.unit);
    if (unit) await ask("units", { model: state.model, text: state.text, page: state.page, state: unit.state, layer: unit.layer });
    const { html } = await ask("shell", {});
    const kept = Object.fromEntries([...answers].filter(([key]) => key.startsWith("job") || [state.model, ...(about.alike ?? []).map((each) => each.model ?? state.model)].some((model) => key.includes(new URLSearchParams({ model })))));
    delete kept["shell?"];
    const bundled = { model: state.model, text: state.text, address: location.hash, answers: kept };
    const data = JSON.stringify(bundled, (name, value) => (name === "bytes" ? undefined : value)).replaceAll("<", "\\u003c");
    const place = html.indexOf("__BUNDLE__");
    view.download(`${state.model.replace(/[^\w-]+/g, "_")}.html`, html.slice(0, place) + data + html.slice(place + "__BUNDLE__".length), "text/html");
  } catch (error) {
    say(error.message);
  }
}

function show() {
  current?.close?.();
  head();
  const root = document.getElementById("screen");
  if (root.dataset.screen !== state.screen) {
    root.dataset.screen = state.screen;
    if (root.contains(document.activeElement)) root.focus({ preventScroll: true });
    scrollTo(0, 0);
  }
  put(root);
  current = SCREENS[state.screen].show(root, ownView());
}

let asked = 0; // how often a model was asked for

// Open a model, then show the state `next`. The previous view stays until the model is loaded.
async function start(next) {
  const turn = ++asked;
  next.model ||= bundle?.model ?? "";
  const found = await ask("about", { ...(next.model ? { model: next.model } : {}), ...(bundle ? {} : { opening: 1 }) });
  for (const [key, value] of Object.entries(found.answers ?? {})) answers.set(canonical(key), value);
  found.answers = {};
  next.model = found.name;
  answers.set(`about?${new URLSearchParams({ model: found.name })}`, found);
  if (next.own && next.text.startsWith("own-") && !bundle) {
    await send("api/text", { model: next.model, text: next.own, language: next.language || null });
  }
  if (turn !== asked) return; // another was asked for since
  [state, about] = [next, found];
  settle();
  opened ||= state.screen;
  show();
}

function arrive(next) {
  start(next).catch((error) => say(error.message));
}

// Fill in the defaults of the model.
function settle() {
  const opens = state.unit || state.text || state.at >= 0 || state.page || !about.shipped || bundle ? "read" : "start";
  if (about.kind === "seq2seq") {
    Object.assign(state, { screen: state.screen === "start" ? "start" : "align", text: "", unit: "" });
    state.source ||= about.first;
    return;
  }
  state.screen ||= opens;
  state.text ||= bundle?.text ?? about.first;
  if (about.kind === "window") return void Object.assign(state, { screen: "write", unit: "" });
  state.unit ||= about.opened;
  state.mode ||= about.mode;
  if (!offered(state.screen)) state.screen = "read";
  if (!(parseUnit(state.unit).state in about.states)) state.unit = about.opened;
}

document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault(); // the fragment of the address is the state
  document.getElementById("screen").focus();
});

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || !about) return;
  if (/^(INPUT|TEXTAREA|SELECT)$/.test(event.target.tagName)) return;
  if (current?.key?.(event)) return event.preventDefault();
  if ((event.key === "[" || event.key === "]") && state.unit) view.turn(event.key === "[" ? -1 : 1);
  else if (event.key === "/") search();
  else if (event.key === "f") present(document.getElementById("screen"), view);
  else if (event.key === "p" || event.key === "P") savePicture(document.getElementById("screen"), event.key === "p" ? "png" : "svg");
  else return;
  event.preventDefault();
});

// The next occurrence of a text in the page.
function search() {
  const text = current?.text;
  if (!text) return;
  const box = make("input", { type: "search", "aria-label": "search in this page", placeholder: "search, Enter" });
  const bar = make("div", { class: "searching" }, box);
  document.body.append(bar);
  box.focus();
  const close = () => { if (document.activeElement === box) text.element.focus(); else bar.remove(); };
  box.addEventListener("keydown", (event) => {
    if (event.key === "Escape") return close();
    if (event.key !== "Enter" || !box.value) return;
    const [whole, places] = joined(text.spans);
    const from = text.at < 0 ? 0 : places.indexOf(text.at) + 1;
    let found = whole.toLowerCase().indexOf(box.value.toLowerCase(), from);
    if (found < 0) found = whole.toLowerCase().indexOf(box.value.toLowerCase());
    if (found < 0) return say(`“${box.value}” is not in this page`);
    text.focus(places[found]);
    if (!event.shiftKey) close();
  });
  box.addEventListener("blur", () => bar.remove());
}

function joined(spans) {
  const places = [];
  let whole = "";
  spans.forEach((span, i) => {
    const part = span.textContent + (span.textContent.length > 1 || spans.length < 2 ? " " : "");
    for (let n = 0; n < part.length; n++) places.push(i);
    whole += part;
  });
  return [whole, places];
}

addEventListener("popstate", () => {
  const next = fromAddress();
  if (next.model && next.model !== state.model) return arrive(next);
  asked++;
  next.model = state.model;
  if (location.hash.length < 2) next.screen = opened;
  state = next;
  settle();
  show();
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => about && show());

state = fromAddress();
if (bundle?.address && !location.hash) {
  for (const [name, value] of new URLSearchParams(bundle.address.slice(1))) {
    if (name in DEFAULTS) state[name] = typeof DEFAULTS[name] === "number" ? Number(value) : typeof DEFAULTS[name] === "boolean" ? value === "true" : value;
  }
}
start(state).catch((error) => {
  document.getElementById("screen").textContent = error instanceof Mistake ? error.message : `The page failed: ${error.message}`;
});
