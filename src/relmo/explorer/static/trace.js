// Trace: units and gates over a text as lines, for several models; or one unit over sentences of four conditions.

import { ask, bundle, parseUnit, unitName, shownUnit } from "./data.js";
import { button, choice, fixed, heading, labelled, make, put, say, tick, unitButton, visible } from "./dom.js";
import { lines } from "./charts.js";
import { capitalised, cellCalled } from "./equations.js";
import { snippet } from "./text.js";
import { quantile } from "./read.js";
import { saving } from "./picture.js";

const SPANS = [[80, "80"], [240, "240"], [1000, "1,000"], [0, "page"]];
const TAUGHT = "counting"; // a text of words as long as those that were taught
const NARROW = 720; // pixels, below which letters of a wide chart would be too small
const FEW_TO_TRY = 32; // units
const SHORT_SPAN = 240; // symbols, up to which the text itself stands below
const CONDITION_NAMES = { "nounpp singular singular": "boy … car", "nounpp singular plural": "boy … cars", "nounpp plural singular": "boys … car", "nounpp plural plural": "boys … cars" };

export function showTrace(root, view) {
  const { about, state } = view;
  const head = make("div", {});
  const place = make("div", {});
  const controls = make("div", { class: "fields tight" });
  put(root, head, place, make("section", { class: "panel" }, controls));
  let latest = 0;
  let total = 0;
  const ofSentences = () => (state.sentences === "" ? about.number_units.length > 0 : state.sentences === "yes");
  const counts = () => /^(counting|thousand)$/.test(state.text);
  const span = () => (state.span >= 0 ? state.span : counts() ? 0 : SHORT_SPAN);

  async function draw() {
    const own = ++latest;
    const made = await (ofSentences() ? sentences() : overText());
    if (own !== latest) return;
    put(place, ...made.parts);
    put(head, heading(made.title, made.lead));
    setControls();
  }

  // The traced unit: the selected one, or by default the first number unit.
  function numberUnit() {
    return about.number_units.includes(state.unit) || state.traced ? state.unit : about.number_units[0] ?? state.unit;
  }

  async function sentences() {
    const unit = numberUnit();
    const found = await ask("conditions", { model: state.model, unit });
    const names = Object.keys(found.conditions[0].means);
    const memory = found.conditions.map((each) => each.means[names.includes(about.memory) ? about.memory : names[0]].at(-1));
    const [ss, sp, ps, pp] = memory;
    const keeps = Math.min(ps, pp) > Math.max(ss, sp) ? "plural" : Math.max(ps, pp) < Math.min(ss, sp) ? "singular" : null;
    const longest = found.conditions.map((each) => each.words).reduce((a, b) => (b.length > a.length ? b : a));
    const charts = names.map((name, n) => lines(found.conditions.map((each) => ({ name: CONDITION_NAMES[each.condition] ?? each.condition, x: each.means[name].map((_, i) => i), y: each.means[name],
      lower: each.means[name].map((v, i) => v - each.errors[name][i]), upper: each.means[name].map((v, i) => v + each.errors[name][i]) })),
    { label: `${about.words[name]} (${name})`, x: "", y: `${about.words[name]} ${name}`, width: n || innerWidth < NARROW ? 430 : 760, height: n ? 210 : 300, names: longest, legend: n === 0 }));
    const figure = make("div", { class: "traces" }, charts[0], make("div", { class: "cards" }, ...charts.slice(1)));
    return {
      title: keeps ? `This cell carries the subject's number: it is higher after a ${keeps} subject` : "This cell does not encode the subject's number at the verb",
      lead: make("span", {}, `The ${found.conditions[3]?.words[1] ?? "boys"} near the cars …: each line is one condition. Look at the last word${keeps ? ": the lines separate by the first noun, not by the last" : ""}. `, make("small", {}, shownUnit(unit))),
      parts: [figure, found.right ? drawAccuracy(found.right, unit) : "", make("p", { class: "verdict" },
        `Means of ${found.pairs} sentences per condition, with 95 % intervals; words are the most frequent ones at each position. After figure 1 of Lakretz et al. 2019, The emergence of number and syntax units.`)],
    };
  }

  function drawAccuracy(right, unit) {
    const rows = Object.entries(CONDITION_NAMES).map(([condition, name]) => {
      const bar = (share, kind) => {
        const made = make("span", { class: `bar ${kind}` });
        made.style.width = `${share}%`;
        return make("div", { class: "sharebar" }, made, make("span", {}, `${fixed(share, 0)} %`));
      };
      return make("tr", {}, make("th", { scope: "row" }, name), make("td", {}, bar(right.all[condition], "grey")), make("td", {}, bar(right.without[condition], "plus")));
    });
    const table = make("table", { class: "rightforms" }, make("caption", {}, `Accuracy of the verb form on ${right.pairs} sentences per condition (Experiments uses other sentences)`),
      make("thead", {}, make("tr", {}, make("th", { scope: "col" }, "sentence"), make("th", { scope: "col" }, "intact"), make("th", { scope: "col" }, `without ${view.called(unit)} `, make("small", { class: "address" }, shownUnit(unit))))), make("tbody", {}, ...rows));
    return make("section", { class: "panel" }, table);
  }

  // The unit with the best correlation with the count on words of the training length, in small models.
  async function findCounter(its, asked) {
    const size = its.states[its.memory];
    if (size > FEW_TO_TRY) return its.opened;
    const units = Array.from({ length: size }, (_, number) => unitName({ state: its.memory, layer: 0, number }));
    const wanted = [ask("page", { model: state.model, text: TAUGHT, page: 0 }), ...units.map((unit) => ask("values", { ...asked, text: TAUGHT, page: 0, unit }))];
    const [page, ...got] = await Promise.all(wanted).catch(() => [null]);
    if (!page) return its.opened;
    const fits = got.map(({ values }) => fitLine(countSurplus(page.symbols), values).r);
    return units[fits.indexOf(Math.max(...fits))];
  }

  // Displayed models with their units.
  async function getModels() {
    const names = state.shown ? state.shown.split(",").filter((name) => name in about.states) : [about.memory];
    const unit = parseUnit(counts() && state.unit === about.opened ? await findCounter(about, { model: state.model }) : state.unit);
    const pins = state.pins ? state.pins.split(",") : [];
    const own = [...new Set([...names.map((name) => unitName({ ...unit, state: name })), ...pins])];
    const found = [{ name: about.name, about, asked: { model: state.model }, units: own }];
    for (const each of state.together ? about.alike : []) {
      const asked = { model: each.model ?? state.model, ...(each.of ? { of: each.of } : {}) };
      const its = await ask("about", asked).catch(() => null);
      if (!its || its.kind !== about.kind || !its.states) continue;
      const feature = view.named()?.feature; // the cell of the same name, where the other has one
      const same = its.named.find((cell) => feature && cell.feature === feature)?.unit ?? its.opened;
      const opened = parseUnit(counts() ? await findCounter(its, asked) : same);
      const wanted = names.map((name) => (name === about.memory ? its.memory : name)).filter((name) => name in its.states);
      found.push({ name: each.name, about: its, asked, units: [...new Set(wanted)].map((name) => unitName({ ...opened, state: name })) });
    }
    return found;
  }

  async function overText() {
    const page = await ask("page", { model: state.model, text: state.text, page: state.page });
    total = page.symbols.length;
    const size = span() || total;
    const begin = Math.max(0, Math.min(state.at < 0 ? 0 : state.at - page.first, total - Math.min(size, total)));
    const symbols = page.symbols.slice(begin, begin + size);
    const all = await getModels();
    const truth = counts() ? countSurplus(symbols) : null;
    const verdicts = [];
    const parts = [];
    for (const model of all) {
      const got = await Promise.all(model.units.map((unit) => ask("values", { ...model.asked, text: state.text, page: state.page, unit }).catch(() => null)));
      const series = model.units.map((unit, n) => [unit, got[n]?.values.slice(begin, begin + size)]).filter(([, values]) => values);
      if (!series.length) continue;
      const gate = ([unit]) => model.about.gates.includes(parseUnit(unit).state);
      const x = symbols.map((_, i) => page.first + begin + i);
      const of = (some) => some.map(([unit, values]) => ({ name: `${stateName(model.about, unit)} ${shownUnit(unit)}`, x, y: values }));
      const [unit, values] = series[0];
      const fit = truth ? fitLine(truth, values) : null;
      if (fit) verdicts.push({ model, unit, ...fit });
      const carried = of(series.filter((each) => !gate(each)));
      if (fit && !gate(series[0])) carried.push({ name: "number of a's minus b's, fitted", x, y: truth.map((count) => fit.slope * count + fit.base) });
      const [gates, called] = [of(series.filter(gate)), cellCalled(model.about)];
      const charts = [carried.length ? lines(carried, { label: `${model.name} over the text`, x: "symbol", y: "value", width: innerWidth < NARROW ? 460 : 900, height: 230 }) : "",
        gates.length ? lines(gates, { label: `gates of ${model.name} over the text`, x: "symbol", y: "gate", width: innerWidth < NARROW ? 460 : 900, height: 170, zero: true }) : ""];
      const below = size <= SHORT_SPAN ? snippet(symbols, values, quantile(values.map(Math.abs), 0.99) || 1, page.gaps?.slice(begin, begin + size)) : "";
      parts.push(make("section", { class: "panel" }, make("h3", {}, called, " ", make("small", {}, `${model.name}${fit ? `: correlation with the count r ${fixed(fit.r, 3)}` : ""}`)), ...charts, below));
    }
    const figure = make("div", { class: "traces" }, ...parts);
    if (parts.length > 1) figure.append(saving(figure, `traces of ${all.map((each) => each.name).join(" and ")}`));
    return { ...makeTitle(verdicts, page), parts: parts.length ? [figure] : [make("p", {}, "This saved page does not include these values.")] };
  }

  function makeTitle(verdicts, page) {
    const counting = verdicts.filter((each) => each.r > 0.99);
    const listCells = (some) => some.map((each) => `the ${cellCalled(each.model.about)}`).join(" and ");
    if (counting.length && counting.length < verdicts.length) {
      const rest = verdicts.filter((each) => !counting.includes(each));
      return { title: capitalised(`${listCells(counting)} counts linearly; ${listCells(rest)} does not`), lead: `${page.title}. A linear counter moves up with every a and down with every b, as the dashed line does. After Weiss et al. 2018, On the practical computational power of finite precision RNNs.` };
    }
    if (verdicts.length) return { title: capitalised(counting.length ? `${listCells(counting)} counts linearly` : `${listCells(verdicts)} does not count linearly`), lead: `${page.title}. A linear counter moves one way with every a and back with every b.` };
    const called = about.named?.find((each) => each.unit === state.unit)?.name ?? view.called();
    return { title: `${capitalised(called)} over the text`, lead: make("span", {}, `${page.title}. Each line is one quantity of the unit; the text below is coloured by it. Select a gate to see when it opens. `, make("small", {}, shownUnit(state.unit))) };
  }

  function setControls() {
    const sides = about.number_units.length ? [labelled("Over", choice([["yes", "sentences of four conditions"], ["no", "the text"]], ofSentences() ? "yes" : "no", (sentences_) => view.set({ sentences: sentences_ })))] : [];
    if (ofSentences()) {
      const units = [...new Set([...about.number_units, numberUnit()])];
      const named = make("input", { type: "text", value: numberUnit(), maxlength: "16", spellcheck: "false", onchange: () => { if (/^[a-z]\d{1,4}\.\d{1,6}$/.test(named.value)) view.set({ unit: named.value, traced: true }); } });
      return put(controls, ...sides, make("div", { class: "row" }, ...units.map((unit) => unitButton(view, unit, () => view.set({ unit, traced: true }), { "aria-pressed": String(unit === numberUnit()) }))), bundle ? "" : labelled("Another unit", named));
    }
    const names = state.shown ? state.shown.split(",") : [about.memory];
    const unit = parseUnit(state.unit);
    const size = about.states[about.memory] / about.directions;
    const number = make("input", { type: "number", min: 1, max: size, value: unit.number + 1, onchange: () => view.set({ unit: unitName({ ...unit, number: Math.max(0, Math.min(size - 1, Math.round(Number(number.value) - 1 || 0))) }) }) });
    put(controls, ...sides, labelled("Unit number", number),
      labelled("Symbols", choice(SPANS.map(([value, label]) => [String(value), label]), String(span()), (value) => view.set({ span: Number(value) }))),
      make("fieldset", { class: "ticking" }, make("legend", {}, "Lines"), ...Object.keys(about.states).filter((name) => about.states[name] === about.states[about.memory]).map((name) => tick(`${about.words[name]} ${name}`, names.includes(name), (on) => {
        view.set({ shown: (on ? [...names, name] : names.filter((each) => each !== name)).join(",") || about.memory });
      }))),
      about.alike.length ? tick(`${about.alike.map((each) => each.name).join(" and ")} below`, state.together, (together) => view.set({ together })) : "",
      make("div", { class: "row" }, button("◀", () => move(-1), { "aria-label": "earlier" }), button("▶", () => move(1), { "aria-label": "later" })));
  }

  function move(by) {
    const size = span() || total;
    view.set({ at: Math.max(0, Math.min(total - 1, Math.max(0, state.at) + by * size)) });
  }

  draw().catch((error) => { say(error.message); put(head, heading("Trace not available", error.message)); });
  return {
    update: () => draw().catch((error) => say(error.message)),
    key(event) {
      const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
      if (by && !ofSentences()) move(by);
      return Boolean(by);
    },
  };
}

function stateName(about, unit) {
  return about.words[parseUnit(unit).state];
}

// Number of a's minus b's after each symbol.
function countSurplus(symbols) {
  let count = 0;
  return symbols.map((symbol) => (count += visible(symbol) === "a" ? 1 : -1));
}

// Linear fit of a unit to the count: slope, intercept and |r|.
function fitLine(truth, values) {
  const mean = (some) => some.reduce((sum, v) => sum + v, 0) / some.length;
  const [mt, mv] = [mean(truth), mean(values)];
  const both = truth.reduce((sum, t, i) => sum + (t - mt) * (values[i] - mv), 0);
  const [vt, vv] = [truth.reduce((sum, t) => sum + (t - mt) ** 2, 0), values.reduce((sum, v) => sum + (v - mv) ** 2, 0)];
  const slope = both / (vt || 1);
  return { slope, base: mv - slope * mt, r: Math.abs(both) / Math.sqrt(vt * vv || 1) };
}
