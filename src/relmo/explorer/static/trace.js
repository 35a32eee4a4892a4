// Trace: units and gates over a text as lines, for several models; or one unit over sentences of four conditions.

import { ask, bundle, correspondingUnit, formatAddress, parseUnit, unitName } from "./data.js";
import { button, checkbox, dropdown, field, formatFixed, heading, make, notify, put, showWhitespace, unitButton } from "./dom.js";
import { lines } from "./charts.js";
import { capitalise, cellName } from "./equations.js";
import { snippet } from "./text.js";
import { quantile } from "./read.js";
import { saveButtons } from "./picture.js";

const SPANS = [[80, "80"], [240, "240"], [1000, "1,000"], [0, "page"]];
const TRAINING_TEXT = "counting"; // text with words of the training length
const MIN_WIDE_SCREEN = 720; // pixels; on narrower screens, the text of a wide chart would be too small
const MAX_TESTED_UNITS = 32; // units
const SHORT_SPAN = 240; // symbols; longer spans are shown without the text
const CONDITION_NAMES = { "nounpp singular singular": "boy … car", "nounpp singular plural": "boy … cars", "nounpp plural singular": "boys … car", "nounpp plural plural": "boys … cars" };

export function showTrace(root, view) {
  const { about, state } = view;
  const head = make("div", {});
  const container = make("div", {});
  const controls = make("div", { class: "fields tight" });
  put(root, head, container, make("section", { class: "panel" }, controls));
  let latestRequest = 0;
  let total = 0;
  const usesSentences = () => (state.sentences === "" ? about.number_units.length > 0 : state.sentences === "yes");
  const isCountingText = () => /^(counting|thousand)$/.test(state.text);
  const getSpan = () => (state.span >= 0 ? state.span : isCountingText() ? 0 : SHORT_SPAN);

  async function draw() {
    const request = ++latestRequest;
    const content = await (usesSentences() ? traceSentences() : traceText());
    if (request !== latestRequest) return;
    put(container, ...content.parts);
    put(head, heading(content.title, content.lead));
    setControls();
  }

  // Return the traced unit: the selected one, or by default the first number unit.
  function getNumberUnit() {
    return about.number_units.includes(state.unit) || state.traced ? state.unit : about.number_units[0] ?? state.unit;
  }

  async function traceSentences() {
    const unit = getNumberUnit();
    const traces = await ask("conditions", { model: state.model, unit });
    const names = Object.keys(traces.conditions[0].means);
    const memory = traces.conditions.map((condition) => condition.means[names.includes(about.memory) ? about.memory : names[0]].at(-1));
    const [ss, sp, ps, pp] = memory;
    const preferredNumber = Math.min(ps, pp) > Math.max(ss, sp) ? "plural" : Math.max(ps, pp) < Math.min(ss, sp) ? "singular" : null;
    const longestWords = traces.conditions.map((condition) => condition.words).reduce((a, b) => (b.length > a.length ? b : a));
    const charts = names.map((name, n) => lines(traces.conditions.map((condition) => ({ name: CONDITION_NAMES[condition.condition] ?? condition.condition, x: condition.means[name].map((_, i) => i), y: condition.means[name],
      lower: condition.means[name].map((v, i) => v - condition.errors[name][i]), upper: condition.means[name].map((v, i) => v + condition.errors[name][i]) })),
    { label: `${about.words[name]} (${name})`, x: "", y: `${about.words[name]} ${name}`, width: n || innerWidth < MIN_WIDE_SCREEN ? 430 : 760, height: n ? 210 : 300, names: longestWords, legend: n === 0 }));
    const figure = make("div", { class: "traces" }, charts[0], make("div", { class: "cards" }, ...charts.slice(1)));
    return {
      title: preferredNumber ? `This cell carries the subject's number: it is higher after a ${preferredNumber} subject` : "This cell does not encode the subject's number at the verb",
      lead: make("span", {}, `The ${traces.conditions[3]?.words[1] ?? "boys"} near the cars …: each line is one condition. Look at the last word${preferredNumber ? ": the lines separate by the first noun, not by the last" : ""}. `, make("small", {}, formatAddress(unit))),
      parts: [figure, traces.right ? drawAccuracy(traces.right, unit) : "", make("p", { class: "verdict" },
        `Means of ${traces.pairs} sentences per condition, with 95 % intervals; words are the most frequent ones at each position. After figure 1 of Lakretz et al. 2019, The emergence of number and syntax units.`)],
    };
  }

  function drawAccuracy(accuracy, unit) {
    const rows = Object.entries(CONDITION_NAMES).map(([condition, name]) => {
      const bar = (share, kind) => {
        const element = make("span", { class: `bar ${kind}` });
        element.style.width = `${share}%`;
        return make("div", { class: "sharebar" }, element, make("span", {}, `${formatFixed(share, 0)} %`));
      };
      return make("tr", {}, make("th", { scope: "row" }, name), make("td", {}, bar(accuracy.all[condition], "grey")), make("td", {}, bar(accuracy.without[condition], "plus")));
    });
    const table = make("table", { class: "rightforms" }, make("caption", {}, `Accuracy of the verb form on ${accuracy.pairs} sentences per condition (Experiments uses other sentences)`),
      make("thead", {}, make("tr", {}, make("th", { scope: "col" }, "sentence"), make("th", { scope: "col" }, "intact"), make("th", { scope: "col" }, `without ${view.getUnitLabel(unit)} `, make("small", { class: "address" }, formatAddress(unit))))), make("tbody", {}, ...rows));
    return make("section", { class: "panel" }, table);
  }

  // Return the unit with the best correlation with the count on words of the training length, in small models.
  async function findCounter(modelAbout, params) {
    const size = modelAbout.states[modelAbout.memory];
    if (size > MAX_TESTED_UNITS) return modelAbout.opened;
    const units = Array.from({ length: size }, (_, number) => unitName({ state: modelAbout.memory, layer: 0, number }));
    const requests = [ask("page", { model: state.model, text: TRAINING_TEXT, page: 0 }), ...units.map((unit) => ask("values", { ...params, text: TRAINING_TEXT, page: 0, unit }))];
    const [page, ...responses] = await Promise.all(requests).catch(() => [null]);
    if (!page) return modelAbout.opened;
    const correlations = responses.map(({ values }) => fitLine(countSurplus(page.symbols), values).r);
    return units[correlations.indexOf(Math.max(...correlations))];
  }

  // Load the displayed models with their units.
  async function loadModels() {
    const names = state.shown ? state.shown.split(",").filter((name) => name in about.states) : [about.memory];
    const unit = parseUnit(isCountingText() && state.unit === about.opened ? await findCounter(about, { model: state.model }) : state.unit);
    const pins = state.pins ? state.pins.split(",") : [];
    const units = [...new Set([...selectUnits(about, unit, names), ...pins])];
    const entries = [{ name: about.name, about, params: { model: state.model }, units }];
    for (const companion of state.together ? about.alike : []) {
      const params = { model: companion.model ?? state.model, ...(companion.of ? { of: companion.of } : {}) };
      const companionAbout = await ask("about", params).catch(() => null);
      if (!companionAbout || companionAbout.kind !== about.kind || !companionAbout.states) continue;
      const feature = view.getNamedCell()?.feature; // the companion's cell for the same feature is preferred
      const matchingUnit = companionAbout.named.find((cell) => feature && cell.feature === feature)?.unit ?? companionAbout.opened;
      const companionUnit = parseUnit(isCountingText() ? await findCounter(companionAbout, params) : matchingUnit);
      const stateNames = names.map((name) => (name === about.memory ? companionAbout.memory : name)).filter((name) => name in companionAbout.states);
      entries.push({ name: companion.name, about: companionAbout, params, units: selectUnits(companionAbout, companionUnit, [...new Set(stateNames)]) });
    }
    return entries;
  }

  async function traceText() {
    const page = await ask("page", { model: state.model, text: state.text, page: state.page });
    total = page.symbols.length;
    const size = getSpan() || total;
    const start = Math.max(0, Math.min(state.at < 0 ? 0 : state.at - page.first, total - Math.min(size, total)));
    const symbols = page.symbols.slice(start, start + size);
    const entries = await loadModels();
    const truth = isCountingText() ? countSurplus(symbols) : null;
    const verdicts = [];
    const parts = [];
    for (const entry of entries) {
      const responses = await Promise.all(entry.units.map((unit) => ask("values", { ...entry.params, text: state.text, page: state.page, unit }).catch(() => null)));
      const series = entry.units.map((unit, n) => [unit, responses[n]?.values.slice(start, start + size)]).filter(([, values]) => values);
      if (!series.length) continue;
      const isGate = ([unit]) => parseUnit(unit).state in entry.about.gates;
      const x = symbols.map((_, i) => page.first + start + i);
      const toSeries = (traces) => traces.map(([unit, values]) => ({ name: `${stateName(entry.about, unit)} ${formatAddress(unit)}`, x, y: values }));
      const [unit, values] = series[0];
      const fit = truth ? fitLine(truth, values) : null;
      if (fit) verdicts.push({ model: entry, unit, ...fit });
      const stateSeries = toSeries(series.filter((trace) => !isGate(trace)));
      if (fit && !isGate(series[0])) stateSeries.push({ name: "number of a's minus b's, fitted", x, y: truth.map((count) => fit.slope * count + fit.base) });
      const [gateSeries, cellType] = [toSeries(series.filter(isGate)), cellName(entry.about)];
      const charts = [stateSeries.length ? lines(stateSeries, { label: `${entry.name} over the text`, x: "symbol", y: "value", width: innerWidth < MIN_WIDE_SCREEN ? 460 : 900, height: 230 }) : "",
        gateSeries.length ? lines(gateSeries, { label: `gates of ${entry.name} over the text`, x: "symbol", y: "gate", width: innerWidth < MIN_WIDE_SCREEN ? 460 : 900, height: 170, zero: true }) : ""];
      const colouredText = size <= SHORT_SPAN ? snippet(symbols, values, quantile(values.map(Math.abs), 0.99) || 1, page.gaps?.slice(start, start + size)) : "";
      parts.push(make("section", { class: "panel" }, make("h3", {}, cellType, " ", make("small", {}, `${entry.name}${fit ? `: correlation with the count r ${formatFixed(fit.r, 3)}` : ""}`)), ...charts, colouredText));
    }
    const figure = make("div", { class: "traces" }, ...parts);
    if (parts.length > 1) figure.append(saveButtons(figure, `traces of ${entries.map((entry) => entry.name).join(" and ")}`));
    return { ...describeVerdicts(verdicts, page), parts: parts.length ? [figure] : [make("p", {}, "This saved page does not include these values.")] };
  }

  function describeVerdicts(verdicts, page) {
    const counting = verdicts.filter((verdict) => verdict.r > 0.99);
    const listCells = (group) => group.map((verdict) => `the ${cellName(verdict.model.about)}`).join(" and ");
    if (counting.length && counting.length < verdicts.length) {
      const notCounting = verdicts.filter((verdict) => !counting.includes(verdict));
      return { title: capitalise(`${listCells(counting)} counts linearly; ${listCells(notCounting)} does not`), lead: `${page.title}. A linear counter moves up with every a and down with every b, as the dashed line does. After Weiss et al. 2018, On the practical computational power of finite precision RNNs.` };
    }
    if (verdicts.length) return { title: capitalise(counting.length ? `${listCells(counting)} counts linearly` : `${listCells(verdicts)} does not count linearly`), lead: `${page.title}. A linear counter moves one way with every a and back with every b.` };
    const name = about.named?.find((namedCell) => namedCell.unit === state.unit)?.name ?? view.getUnitLabel();
    return { title: `${capitalise(name)} over the text`, lead: make("span", {}, `${page.title}. Each line is one quantity of the unit; the text below is coloured by it. Select a gate to see when it opens. `, make("small", {}, formatAddress(state.unit))) };
  }

  function setControls() {
    const sourceFields = about.number_units.length ? [field("Over", dropdown([["yes", "sentences of four conditions"], ["no", "the text"]], usesSentences() ? "yes" : "no", (sentences) => view.set({ sentences })))] : [];
    if (usesSentences()) {
      const units = [...new Set([...about.number_units, getNumberUnit()])];
      const unitInput = make("input", { type: "text", value: getNumberUnit(), maxlength: "16", spellcheck: "false", onchange: () => { if (/^[a-z]\d{1,4}\.\d{1,6}$/.test(unitInput.value)) view.set({ unit: unitInput.value, traced: true }); } });
      return put(controls, ...sourceFields, make("div", { class: "row" }, ...units.map((unit) => unitButton(view, unit, () => view.set({ unit, traced: true }), { "aria-pressed": String(unit === getNumberUnit()) }))), bundle ? "" : field("Another unit", unitInput));
    }
    const names = state.shown ? state.shown.split(",") : [about.memory];
    const unit = parseUnit(state.unit);
    const size = about.states[unit.state] / about.directions;
    const number = make("input", { type: "number", min: 1, max: size, value: unit.number + 1, onchange: () => view.set({ unit: unitName({ ...unit, number: Math.max(0, Math.min(size - 1, Math.round(Number(number.value) - 1 || 0))) }) }) });
    put(controls, ...sourceFields, field("Unit number", number),
      field("Symbols", dropdown(SPANS.map(([value, label]) => [String(value), label]), String(getSpan()), (value) => view.set({ span: Number(value) }))),
      make("fieldset", { class: "ticking" }, make("legend", {}, "Lines"), ...Object.keys(about.states).filter((name) => correspondingUnit(about, unit, name)).map((name) => checkbox(`${about.words[name]} ${name}`, names.includes(name), (on) => {
        view.set({ shown: (on ? [...names, name] : names.filter((selectedName) => selectedName !== name)).join(",") || about.memory });
      }))),
      about.alike.length ? checkbox(`${about.alike.map((companion) => companion.name).join(" and ")} below`, state.together, (together) => view.set({ together })) : "",
      make("div", { class: "row" }, button("◀", () => move(-1), { "aria-label": "earlier" }), button("▶", () => move(1), { "aria-label": "later" })));
  }

  function move(direction) {
    const size = getSpan() || total;
    view.set({ at: Math.max(0, Math.min(total - 1, Math.max(0, state.at) + direction * size)) });
  }

  draw().catch((error) => { notify(error.message); put(head, heading("Trace not available", error.message)); });
  return {
    update: () => draw().catch((error) => notify(error.message)),
    key(event) {
      const direction = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
      if (direction && !usesSentences()) move(direction);
      return Boolean(direction);
    },
  };
}

// Return the addresses of the units of these quantities that belong with a unit.
function selectUnits(about, unit, names) {
  return names.map((name) => correspondingUnit(about, unit, name)).filter(Boolean).map(unitName);
}

function stateName(about, unit) {
  return about.words[parseUnit(unit).state];
}

// Return the number of a's minus b's after each symbol.
function countSurplus(symbols) {
  let count = 0;
  return symbols.map((symbol) => (count += showWhitespace(symbol) === "a" ? 1 : -1));
}

// Linear fit of a unit to the count: slope, intercept and |r|.
function fitLine(truth, values) {
  const mean = (numbers) => numbers.reduce((sum, v) => sum + v, 0) / numbers.length;
  const [truthMean, valueMean] = [mean(truth), mean(values)];
  const covariance = truth.reduce((sum, t, i) => sum + (t - truthMean) * (values[i] - valueMean), 0);
  const [truthVariance, valueVariance] = [truth.reduce((sum, t) => sum + (t - truthMean) ** 2, 0), values.reduce((sum, v) => sum + (v - valueMean) ** 2, 0)];
  const slope = covariance / (truthVariance || 1);
  return { slope, base: valueMean - slope * truthMean, r: Math.abs(covariance) / Math.sqrt(truthVariance * valueVariance || 1) };
}
