// The page: its state, which is stored in the URL fragment, its header, and the current view.

import { ask, bundle, cachedAnswers, canonicalKey, parseUnit, postJson, RequestError, unitLabel, unitName } from "./data.js";
import { button, download, dropdown, field, make, notify, put } from "./dom.js";
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
import { cellName, showEquations } from "./equations.js";
import { showWrite } from "./write.js";
import { showTrace } from "./trace.js";
import { showLayers } from "./layers.js";

// Views: label; show(root, view), which fills root and returns { update(changed), key(event), close(), text } or nothing; the kinds of
// model it supports; the jobs of which a saved page must have one to offer it; and its state in the URL, with defaults. A view sends
// requests with `ask` (ENDPOINTS in endpoints.py) and `runJob` (JOBS in work.py), and sets its title with `heading` of dom.js.
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
for (const { state: screenState } of Object.values(SCREENS)) Object.assign(DEFAULTS, screenState);
const MAX_URL_TEXT = 1500; // characters; longer user texts are not stored in the URL

let state = { ...DEFAULTS };
let about = null;
let currentScreen = null;
let updateStart = performance.now();
let initialScreen = ""; // screen of an empty URL fragment

function readAddress() {
  const params = new URLSearchParams(location.hash.slice(1));
  const parsed = { ...DEFAULTS };
  for (const [name, value] of params) {
    if (!(name in DEFAULTS)) continue;
    const kind = typeof DEFAULTS[name];
    if (kind === "number") parsed[name] = Number.isFinite(Number(value)) ? Number(value) : DEFAULTS[name];
    else parsed[name] = kind === "boolean" ? value === "true" : value;
  }
  if (!(parsed.screen in SCREENS)) parsed.screen = "";
  if (!/^([a-z])(\d{1,4})\.(\d{1,6})(b?)$/.test(parsed.unit)) parsed.unit = "";
  return parsed;
}

function writeAddress(shouldPush, values = state) {
  const changedEntries = Object.entries(values).filter(([name, value]) => value !== DEFAULTS[name]);
  const address = `#${new URLSearchParams(changedEntries)}`;
  try {
    history[shouldPush ? "pushState" : "replaceState"](null, "", address);
  } catch {
    // A frame without a URL has no history.
  }
}

const view = {
  // Return whether this view exists.
  hasScreen(name) { return name in SCREENS; },
  get state() { return state; },
  get about() { return about; },
  set(changes) {
    const changedNames = Object.keys(changes).filter((name) => changes[name] !== state[name]);
    if (!changedNames.length) return;
    if ("text" in changes && changes.text !== state.text) Object.assign(changes, { page: 0, at: -1, ...changes });
    const nextState = { ...state, ...changes };
    writeAddress(changedNames.includes("screen"), nextState);
    if (changedNames.includes("model")) return openModelSafely(nextState);
    if (changedNames.includes("screen") || !currentScreen?.update) {
      state = nextState;
      return showScreen();
    }
    Object.assign(state, changes);
    drawHeader();
    updateStart = performance.now();
    const result = currentScreen.update(changedNames); // a view that is rebuilt returns its new object
    if (result?.update) currentScreen = result;
    Promise.resolve(result).then(() => {
      document.documentElement.dataset.took = (performance.now() - updateStart).toFixed(1);
    }, (error) => notify(error.message));
  },
  // Store values in the state and the URL without a redraw.
  saveState(changes) {
    Object.assign(state, changes);
    writeAddress(false);
  },
  neighbour(offset, fromUnit = this.state.unit) {
    const unit = parseUnit(fromUnit);
    const size = this.about.states[unit.state] / this.about.directions;
    return unitName({ ...unit, number: (unit.number + offset + size) % size });
  },
  moveUnit(offset) { this.set({ unit: this.neighbour(offset) }); },
  // Return the named cell of a unit, or null.
  getNamedCell(unit = this.state.unit) { return this.about.named?.find((cell) => cell.unit === unit) ?? null; },
  getUnitLabel(unit = this.state.unit) { return this.getNamedCell(unit)?.name ?? unitLabel(unit, this.about.layers); },
  get symbols() { return this.about.unit === "char" ? "characters" : "words"; },
  get symbol() { return this.about.unit === "char" ? "character" : "word"; },
  getFeatureLabel(name) { return this.about.features.find((feature) => feature.name === name)?.words ?? name.replaceAll("_", " "); },
  // Source line of a figure.
  get source() {
    const text = (this.about.texts ?? []).find((passage) => passage.name === this.state.text)?.title;
    return ["relmo", `model ${this.about.name}`, text && this.state.screen !== "start" ? text : ""].filter(Boolean).join(" · ");
  },
  async openText(text, language) {
    try {
      const { text: name } = await postJson("api/text", { model: this.state.model, text, language });
      this.set({ text: name, page: 0, at: -1, own: text.length <= MAX_URL_TEXT ? text : "", language: language ?? "", screen: "read" });
    } catch (error) {
      notify(error.message);
    }
  },
  download,
};

// Create the context of the current view. A closed view keeps its state and model, so that late answers change nothing.
function createScreenView() {
  const screenState = state;
  const whileCurrent = (method) => ({ value: (changes) => { if (screenState === state) view[method](changes); } });
  return Object.create(view, { state: { value: screenState }, about: { value: about }, set: whileCurrent("set"), saveState: whileCurrent("saveState") });
}

function drawHeader() {
  const tabs = Object.entries(SCREENS).filter(([name]) => isOffered(name)).map(([name, { label }]) =>
    button(label, () => view.set({ screen: name }), { "aria-current": name === state.screen ? "page" : "false" }));
  const models = (bundle ? [] : about.examples).map((example) => [example.name, example.name]);
  if (!models.some(([name]) => name === about.name)) models.unshift([about.name, about.name]);
  const isTranslator = about.kind === "seq2seq";
  const texts = (about.texts ?? []).map((passage) => [passage.name, passage.title]);
  if (!texts.some(([name]) => name === state.text)) texts.unshift([state.text, "Your text"]);
  const description = about.examples?.find((example) => example.name === about.name)?.about;
  const initialState = { unit: "", mode: "", text: "", page: 0, at: -1, pins: "", source: "", step: -1, way: 0, beams: 0, other: "", feature: "",
    prompt: "", taken: "", started: false, shown: "", sentences: "", traced: false, span: -1 };
  const nav = make("nav", { "aria-label": "screens", class: "tabs" }, ...tabs);
  put(document.getElementById("top"),
    make("h1", {}, "relmo ", make("span", {}, "explore")), nav,
    make("div", { class: "tools" },
      button("Present", () => present(document.getElementById("screen"), view), { title: "this view as a slide (f)" }),
      button("◐", toggleTheme, { "aria-label": "light or dark theme" }),
      bundle ? null : button("Save page", savePage, { title: "one self-contained page with the views you have opened" })),
    make("div", { class: "pickers" },
      bundle ? make("span", { class: "kind" }, about.name) :
        field("Model", dropdown(models, about.name, (model) => view.set({ ...initialState, model }))),
      bundle || isTranslator || state.screen === "start" ? null : field("Text", dropdown(texts, state.text, (text) => view.set({ text }))),
      make("p", { class: "kind" }, make("b", {}, description ? `${description[0].toUpperCase()}${description.slice(1)}. ` : ""), describeModel(about))));
  nav.querySelector("[aria-current=page]")?.scrollIntoView({ block: "nearest", inline: "center" });
  document.title = `${SCREENS[state.screen].label} · ${about.name} · relmo`;
}

function describeModel(model) {
  if (model.kind === "window") return `${model.cell}, context of ${model.window} symbols, ${model.parameters.toLocaleString("en")} parameters; reads ${model.unit === "char" ? "characters" : "words"}.`;
  const size = model.kind === "seq2seq" ? model.hidden : model.states[model.memory] / model.directions;
  const [reads, writes] = (model.units ?? [model.unit]).map((unit) => ({ char: "characters", word: "words" }[unit] ?? "subwords"));
  const layers = model.layers > 1 ? `${model.layers} layers of ${size} cells` : `${size} cells`;
  return `${cellName(model)}, ${layers}, ${model.parameters.toLocaleString("en")} parameters; reads ${reads}${writes ? `, writes ${writes}` : ""}.`;
}

// Return whether a view is available. A saved page offers the views for which it has answers.
function isOffered(name) {
  const { kinds, needs } = SCREENS[name];
  if (!kinds.includes(about.kind)) return false;
  if (name === "start") return !bundle;
  return !bundle || !needs || needs.some((job) => [...cachedAnswers.keys()].some((key) => key.split(/[:?]/).slice(0, job.includes(":") ? 2 : 1).join(":") === job));
}

function toggleTheme() {
  const root = document.documentElement;
  const theme = root.dataset.theme ?? (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
  root.dataset.theme = theme === "dark" ? "light" : "dark";
  showScreen();
}

async function savePage() {
  try {
    const unit = state.unit && parseUnit(state.unit);
    if (unit) await ask("units", { model: state.model, text: state.text, page: state.page, state: unit.state, layer: unit.layer });
    const { html } = await ask("shell", {});
    const savedAnswers = Object.fromEntries([...cachedAnswers].filter(([key]) => key.startsWith("job") || [state.model, ...(about.alike ?? []).map((alikeModel) => alikeModel.model ?? state.model)].some((model) => key.includes(new URLSearchParams({ model })))));
    delete savedAnswers["shell?"];
    const bundled = { model: state.model, text: state.text, address: location.hash, answers: savedAnswers };
    const json = JSON.stringify(bundled, (name, value) => (name === "bytes" ? undefined : value)).replaceAll("<", "\\u003c");
    const placeholderStart = html.indexOf("__BUNDLE__");
    view.download(`${state.model.replace(/[^\w-]+/g, "_")}.html`, html.slice(0, placeholderStart) + json + html.slice(placeholderStart + "__BUNDLE__".length), "text/html");
  } catch (error) {
    notify(error.message);
  }
}

function showScreen() {
  currentScreen?.close?.();
  drawHeader();
  const root = document.getElementById("screen");
  if (root.dataset.screen !== state.screen) {
    root.dataset.screen = state.screen;
    if (root.contains(document.activeElement)) root.focus({ preventScroll: true });
    scrollTo(0, 0);
  }
  put(root);
  currentScreen = SCREENS[state.screen].show(root, createScreenView());
}

let numModelRequests = 0; // number of requests for a model so far

// Open a model, then show `nextState`. The previous view stays until the model is loaded.
async function openModel(nextState) {
  const request = ++numModelRequests;
  nextState.model ||= bundle?.model ?? "";
  const response = await ask("about", { ...(nextState.model ? { model: nextState.model } : {}), ...(bundle ? {} : { opening: 1 }) });
  for (const [key, value] of Object.entries(response.answers ?? {})) cachedAnswers.set(canonicalKey(key), value);
  response.answers = {};
  nextState.model = response.name;
  cachedAnswers.set(`about?${new URLSearchParams({ model: response.name })}`, response);
  if (nextState.own && nextState.text.startsWith("own-") && !bundle) {
    await postJson("api/text", { model: nextState.model, text: nextState.own, language: nextState.language || null });
  }
  if (request !== numModelRequests) return; // superseded by a newer request
  [state, about] = [nextState, response];
  fillDefaults();
  initialScreen ||= state.screen;
  showScreen();
}

function openModelSafely(nextState) {
  openModel(nextState).catch((error) => notify(error.message));
}

// Fill in the defaults of the model.
function fillDefaults() {
  const defaultScreen = state.unit || state.text || state.at >= 0 || state.page || !about.shipped || bundle ? "read" : "start";
  if (about.kind === "seq2seq") {
    Object.assign(state, { screen: state.screen === "start" ? "start" : "align", text: "", unit: "" });
    state.source ||= about.first;
    return;
  }
  state.screen ||= defaultScreen;
  state.text ||= bundle?.text ?? about.first;
  if (about.kind === "window") return void Object.assign(state, { screen: "write", unit: "" });
  state.unit ||= about.opened;
  state.mode ||= about.mode;
  if (!isOffered(state.screen)) state.screen = "read";
  if (!(parseUnit(state.unit).state in about.states)) state.unit = about.opened;
}

document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault(); // the URL fragment stores the state
  document.getElementById("screen").focus();
});

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || !about) return;
  if (/^(INPUT|TEXTAREA|SELECT)$/.test(event.target.tagName)) return;
  if (currentScreen?.key?.(event)) return event.preventDefault();
  if ((event.key === "[" || event.key === "]") && state.unit) view.moveUnit(event.key === "[" ? -1 : 1);
  else if (event.key === "/") openSearch();
  else if (event.key === "f") present(document.getElementById("screen"), view);
  else if (event.key === "p" || event.key === "P") savePicture(document.getElementById("screen"), event.key === "p" ? "png" : "svg");
  else return;
  event.preventDefault();
});

// Open a search bar for the text of the page.
function openSearch() {
  const text = currentScreen?.text;
  if (!text) return;
  const box = make("input", { type: "search", "aria-label": "search in this page", placeholder: "search, Enter" });
  const searchBar = make("div", { class: "searching" }, box);
  document.body.append(searchBar);
  box.focus();
  const close = () => { if (document.activeElement === box) text.element.focus(); else searchBar.remove(); };
  box.addEventListener("keydown", (event) => {
    if (event.key === "Escape") return close();
    if (event.key !== "Enter" || !box.value) return;
    const [pageText, spanIndices] = joinSpans(text.spans);
    const start = text.at < 0 ? 0 : spanIndices.indexOf(text.at) + 1;
    let matchStart = pageText.toLowerCase().indexOf(box.value.toLowerCase(), start);
    if (matchStart < 0) matchStart = pageText.toLowerCase().indexOf(box.value.toLowerCase());
    if (matchStart < 0) return notify(`“${box.value}” is not in this page`);
    text.focus(spanIndices[matchStart]);
    if (!event.shiftKey) close();
  });
  box.addEventListener("blur", () => searchBar.remove());
}

function joinSpans(spans) {
  const spanIndices = [];
  let joinedText = "";
  spans.forEach((span, i) => {
    const part = span.textContent + (span.textContent.length > 1 || spans.length < 2 ? " " : "");
    for (let n = 0; n < part.length; n++) spanIndices.push(i);
    joinedText += part;
  });
  return [joinedText, spanIndices];
}

addEventListener("popstate", () => {
  const nextState = readAddress();
  if (nextState.model && nextState.model !== state.model) return openModelSafely(nextState);
  numModelRequests++;
  nextState.model = state.model;
  if (location.hash.length < 2) nextState.screen = initialScreen;
  state = nextState;
  fillDefaults();
  showScreen();
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => about && showScreen());

state = readAddress();
if (bundle?.address && !location.hash) {
  for (const [name, value] of new URLSearchParams(bundle.address.slice(1))) {
    if (name in DEFAULTS) state[name] = typeof DEFAULTS[name] === "number" ? Number(value) : typeof DEFAULTS[name] === "boolean" ? value === "true" : value;
  }
}
openModel(state).catch((error) => {
  document.getElementById("screen").textContent = error instanceof RequestError ? error.message : `The page failed: ${error.message}`;
});
