// Experiments: can they count, and do verbs agree?

import { answers, bundle, isMade, jobKey, keep, ready, shownUnit, work } from "./data.js";
import { choice, evidence, fixed, grid, heading, labelled, make, put, runner, say, signed, tick, unitButton } from "./dom.js";
import { bars, lines } from "./charts.js";
import { paint } from "./colour.js";
import { saving } from "./picture.js";
import { conditionExample, conditionWords } from "./words.js";

const LANGUAGES = [["anbn", "aⁿbⁿ: n a's, then n b's"], ["anbncn", "aⁿbⁿcⁿ"], ["dyck-1", "balanced brackets of one kind"], ["dyck-2", "balanced brackets of two kinds"]];
const KINDS = { elman: "Elman network", gru: "GRU", lstm: "LSTM" };

const OWN = "own";
const DRAWN = 6;

export function showExperiments(root, view) {
  const { about, state } = view;
  const stops = [];
  const [choosing, curves] = [make("div", {}), make("div", {})];
  const result = make("div", {});
  const letters = about.unit === "char";
  const top = make("div", {}, heading(letters ? "Who can count?" : "Does the verb go with its subject?", letters ? "Three small networks learn to write n a's and then n b's, and are asked far beyond what they have seen."
    : "“The keys to the cabinet are”: the verb goes with the keys. How often does the network prefer the right form?"));
  const limit = make("input", { type: "number", min: 5, max: 100, value: 30 });
  const steps = make("input", { type: "number", min: 50, max: 10000, value: 1500, step: 50 });
  const language = choice(LANGUAGES, state.languageName, (name) => view.note({ languageName: name }));
  const go = runner("Train and ask them again", async (tell, signal) => {
    const found = await work({ what: "count", model: state.model, language: language.value, limit: Number(limit.value), steps: Number(steps.value) }, tell, signal);
    keep("count", state, found);
    draw(found);
  });
  const counting = bundle && !answers.has(jobKey("count", state)) ? "" : make("section", { class: "panel" }, make("h3", {}, "Can they count?"),
    make("p", {}, "Three networks of ten cells each learn a formal language from its words, and are asked far beyond what they have seen. To count, a network must accept the right words and reject the wrong ones."),
    result, bundle ? null : make("div", { class: "controls" }, make("div", { class: "fields" }, labelled("Language", language), labelled("Learnt up to n =", limit), labelled("Steps of training", steps)), go));
  const agreement = [bundle && !answers.has(jobKey("agree", state)) ? "" : agreementPanel(), bundle && !answers.has(jobKey("gates", state)) ? "" : gatePanel()];
  put(root, top, make("div", { class: "pair" }, ...(letters ? [counting, ...agreement] : [...agreement, counting])));
  ready("count", state).then((found) => found && draw(found)).catch((error) => say(error.message));

  function draw(found) {
    const who = found.networks.filter((network) => exact(network, found) >= found.limit).map((network) => `the ${KINDS[network.cell] ?? network.cell}`);
    const rows = found.networks.map((network) => {
      const counter = network.counters[0];
      return [KINDS[network.cell] ?? network.cell, `${fixed(100 * network.right, 1)} %`, `${fixed(100 * network.rejected, 1)} %`, `${fixed(100 * network.balanced, 1)} %`, stretchesOf(network.accepted), network.first_failure ?? `none up to ${found.tested}`, network.first_wrong ?? "none",
        counter ? `cell ${counter.unit + 1} (${counter.state}) for ${counter.count}: r ${signed(counter.r, 3)}, ${signed(counter.slope, 3)} each` : ""].map(String);
    });
    const box = make("div", { class: "countpicture" });
    put(box, make("p", { class: "scale" }, make("span", { class: "swatch yes" }, "right words accepted"), " ", make("span", { class: "swatch no" }, "wrong words accepted"),
      ` for n from 1 to ${found.tested}; the dashed line is n = ${found.limit}, where learning ended `), ...found.networks.map((network) => intervalsOf(network, found)));
    box.prepend(saving(box, "who can count"));
    const all = who.join(" and ");
    const claim = who.length ? `${all[0].toUpperCase()}${all.slice(1)} ${who.length > 1 ? "count" : "counts"}; ${found.networks.length > who.length ? "the others do not" : "all do"}` : "None of them counts";
    if (letters) put(top, heading(claim, `Who counts has the blue bar full and the orange one empty up to n = ${found.limit}: right words accepted, wrong words rejected. Beyond it nothing was learned.`));
    const told = found.networks.map((network) => `${KINDS[network.cell] ?? network.cell}: ${exact(network, found) ? `no mistake up to n = ${exact(network, found)}` : "mistakes from n = 1 on"}`);
    put(result, make("p", { class: "verdict" }, `${claim}. ${told.join("; ")}.`), box,
      evidence("The numbers", grid(["network", "right words accepted", "wrong words rejected", "mean of the two", "accepts all right words for n =", "first right word rejected", "first wrong word accepted", "its best counting cell"], rows,
        { caption: `learned from n up to ${found.limit}, asked up to ${found.tested}` })));
  }

  // Two bars: for which n right words are accepted, and for which n some wrong word is.
  function intervalsOf(network, found) {
    const wrong = merged(Object.values(network.wrongly).flat());
    const bar = (some, kind, label) => {
      const made = make("div", { class: `interval ${kind}`, role: "img", "aria-label": label });
      for (const [low, high] of some) {
        const part = make("span", {});
        part.style.left = `${(100 * (low - 1)) / found.tested}%`;
        part.style.width = `${Math.min(Math.max((100 * (high - low + 1)) / found.tested, 0.5), 100 - (100 * (low - 1)) / found.tested)}%`;
        made.append(part);
      }
      const learnt = make("i", {});
      learnt.style.left = `${(100 * found.limit) / found.tested}%`;
      made.append(learnt);
      return made;
    };
    const name = KINDS[network.cell] ?? network.cell;
    return make("div", { class: "intervals" }, make("b", {}, name, make("br"), make("small", {}, exact(network, found) >= found.limit ? `counts, to ${exact(network, found)}` : "does not count")), make("div", {},
      bar(network.accepted.map(([a, b]) => [Math.max(a, 1), b]), "yes", `${name} accepts right words for n = ${stretchesOf(network.accepted)}`),
      bar(wrong, "no", `${name} accepts wrong words for n = ${stretchesOf(wrong)}`)));
  }

  function agreementPanel() {
    const place = make("div", {});
    const own = make("textarea", { rows: "3", spellcheck: "false", oninput: () => {
      view.note({ pairs: own.value, pack: own.value.trim() ? OWN : "" });
      source.value = state.pack;
    }, placeholder: "one a line: condition, right text, wrong text, with tabs or | between" });
    own.value = state.pairs;
    const packs = [["", "subjects and verbs, made here"], [OWN, "your own, below"], ...about.packs.map((pack) => [pack.name, pack.title])];
    if (!packs.some(([name]) => name === state.pack)) view.note({ pack: state.pairs.trim() ? OWN : "" });
    const source = choice(packs, state.pack, (name) => view.note({ pack: name, conditions: "" }));
    const most = make("input", { type: "number", min: 2, max: 100000, value: state.most, onchange: () => view.note({ most: Number(most.value) || 100 }) });
    const run = runner("Ask the model again", async (tell, signal) => {
      const found = await work({ what: "agree", model: state.model, ...asked(), sweep: state.swept }, tell, signal);
      keep("agree", state, found);
      preferred(place, found);
      conditions(found.conditions.map((each) => each.condition).filter((name) => name !== "all"));
    });
    const changed = state.pack || state.pairs.trim() || state.swept;
    const form = [make("div", { class: "fields" }, labelled("Pairs", source), labelled("At most so many of a condition", most)),
      about.packs.length ? null : make("p", { class: "verdict" }, "Published pairs (Lakretz, Linzen, BLiMP) are offered when relmo explore is started with --data DIR, the folder they lie in."),
      labelled("Pairs of your own", own), tick("also set every cell to zero, one by one", state.swept, (on) => view.note({ swept: on })), run].filter(Boolean);
    ready("agree", state).then((found) => {
      if (found && (!changed || bundle || isMade("agree", state))) preferred(place, found);
      else if (!bundle && (!letters || changed)) run.run();
    }).catch((error) => say(error.message));
    stops.push(() => run.stop());
    return make("section", { class: "panel" }, make("h3", {}, "Which form does it prefer?"),
      letters ? make("p", {}, "This model reads characters. It spells, and knows next to nothing of subjects and verbs; this question is for models that read words, such as small. You may ask it all the same.")
        : make("p", {}, "Subjects and verbs that agree and that do not, alone and with another noun between them."), place,
      bundle ? "" : letters && !changed ? evidence("Ask it all the same", ...form) : make("div", { class: "controls" }, ...form));
  }

  function asked() {
    if (state.pack !== OWN) return { pack: state.pack, most: state.most };
    const pairs = state.pairs.split("\n").filter((line) => line.trim()).map((line) => {
      const parts = line.split(/\t|\|/).map((part) => part.trim());
      return parts.length === 2 ? ["mine", ...parts] : parts;
    });
    return { pairs };
  }

  // What a cell's gates do while the words before the two forms are read.
  function gatePanel() {
    const carries = about.number_units.length && state.unit === about.opened ? about.number_units[0] : state.unit;
    const unit = make("input", { type: "text", value: carries, spellcheck: "false", maxlength: "16", onchange: () => {
      if (/^[a-z]\d{1,4}\.\d{1,6}$/.test(unit.value)) view.note({ unit: unit.value });
    } });
    const run = runner("Trace its gates again", async (tell, signal) => {
      const found = await work({ what: "gates", model: state.model, ...asked(), unit: unit.value, conditions: state.conditions.split("|").filter(Boolean) }, tell, signal);
      keep("gates", state, found);
      conditions(found.all);
      traced(found);
    });
    ready("gates", state).then((found) => {
      if (!found) return;
      if (!state.pack && !state.pairs.trim()) conditions(found.all);
      traced(found);
    }).catch((error) => say(error.message));
    stops.push(() => { run.stop(); go.stop(); });
    const form = [make("div", { class: "fields" }, labelled("Cell, by its address", unit)), choosing, run];
    return make("section", { class: "panel" }, make("h3", {}, "What does a cell do meanwhile?"),
      make("p", {}, "Its states and gates after each word of the sentences above, a line for each condition: means, with the 95 % interval of the mean."), curves,
      bundle ? "" : letters && !state.pack && !state.pairs.trim() ? evidence("Trace a cell's gates", ...form) : make("div", { class: "controls" }, ...form));
  }

  function conditions(names) {
    if (names.length <= DRAWN || bundle) return put(choosing);
    const wanted = new Set(state.conditions.split("|").filter((name) => names.includes(name)));
    if (!wanted.size) names.slice(0, DRAWN).forEach((name) => wanted.add(name));
    put(choosing, make("fieldset", { class: "ticks chosen" }, make("legend", {}, `Conditions, up to ${DRAWN}`), ...names.map((name) =>
      tick(conditionWords(name), wanted.has(name), (on) => {
        on ? wanted.add(name) : wanted.delete(name);
        view.note({ conditions: [...wanted].join("|") });
      }))));
  }

  function traced(found) {
    const states = Object.keys(found.conditions[0].means);
    const called = (name) => `${about.words[name] ?? ""} ${name}`.trim();
    const longest = found.conditions.map((each) => each.words).reduce((a, b) => (b.length > a.length ? b : a));
    const charts = states.map((name, n) => lines(found.conditions.map((each) => ({ name: `${conditionWords(each.condition)} (${each.pairs})`, x: each.means[name].map((_, i) => i), y: each.means[name],
      lower: each.means[name].map((v, i) => v - each.errors[name][i]), upper: each.means[name].map((v, i) => v + each.errors[name][i]) })),
    { label: `${called(name)} of ${view.called(found.unit)}`, x: "", y: called(name), width: 300, height: 210, names: longest, legend: n === 0 }));
    const whole = make("div", {}, charts[0].querySelector(".legend") ?? "", make("div", { class: "cards gatecharts" }, ...charts));
    whole.prepend(saving(whole, `gates of ${view.called(found.unit)}`));
    put(curves, make("p", { class: "verdict" }, `${view.called(found.unit)} (${shownUnit(found.unit)}) over ${found.title}; the words are the commonest at their place in the longest condition.`), whole);
  }

  function preferred(place, found) {
    const shown = found.conditions.filter((each) => each.condition !== "all");
    const rows = found.conditions.map((each) => [conditionWords(each.condition), conditionExample(each.condition), String(each.pairs), `${fixed(each.accuracy, 1)} %`,
      `${fixed(each.interval[0], 1)} to ${fixed(each.interval[1], 1)}`, each.untrained === null ? "" : `${fixed(each.untrained, 1)} %`,
      each.more_frequent_form === null ? "" : `${fixed(each.more_frequent_form, 1)} %`]);
    const whole = found.conditions.find((each) => each.condition === "all");
    const lowest = Math.min(...shown.map((each) => each.accuracy));
    const hardest = shown.filter((each) => each.accuracy === lowest).map(({ condition }) => `${conditionWords(condition)}${conditionExample(condition) ? ` (“${conditionExample(condition)}”)` : ""}`);
    const hard = hardest.length === shown.length ? "" : hardest.length > 1 ? ` Hardest, equally: ${hardest.join("; ")}.` : ` Hardest: ${hardest[0]}.`;
    if (!letters && whole) put(top, heading(`The network prefers the right verb in ${fixed(whole.accuracy, 0)} of 100 pairs`,
      `Measured on ${whole.pairs.toLocaleString("en")} pairs: ${found.title}. Half is guessing.${hard}${about.number_units.length ? " Trace measures other sentences, so its figures differ." : ""}`));
    const parts = [bars(shown.slice(0, 12).map((each) => [conditionWords(each.condition), each.accuracy, `${fixed(each.interval[0], 0)} to ${fixed(each.interval[1], 0)} %`]),
      { label: `${found.title}: how often the right form is preferred, in percent; 50 is guessing`, digits: 1, limit: 100 }),
    evidence("The numbers, and what they must beat", grid(["condition", "such as", "pairs", "right", "95 % interval", "same network untrained", "more frequent form"], rows,
      { caption: `${found.title}: how often the right one is preferred` }))];
    if (found.sweep) {
      const { conditions: some, units, drops, of } = found.sweep;
      parts.push(grid(["condition", "cell", "points it costs on the pairs it was not chosen by", "95 % interval", "cells that cost as much or more"],
        some.map((each) => [conditionWords(each.condition), unitButton(view, each.unit.replace("←", "b")), signed(each.held_out_drop, 1),
          `${signed(each.held_out_interval[0], 1)} to ${signed(each.held_out_interval[1], 1)}`, `${each.held_out_rank} of ${of}`]),
        { caption: "the cell that each condition needs most, chosen on half of the pairs" }));
      const most = Math.max(1, ...drops.flat().map(Math.abs));
      parts.push(grid(["cell", ...some.map((each) => conditionWords(each.condition))], units.map((unit, u) =>
        [unitButton(view, unit), ...drops[u].map((drop) => {
          const cell = make("td", {}, signed(drop, 1));
          paint(cell, drop, most);
          return cell;
        })]), { caption: "points lost with a cell off: the cells that cost most anywhere" }));
    }
    put(place, ...parts);
  }

  return { close: () => stops.forEach((stop) => stop()), update: (changed) => (changed.some((name) => ["text", "model"].includes(name)) ? (stops.forEach((stop) => stop()), showExperiments(root, view)) : null) };
}

// Up to which n a network makes no mistake: all right words accepted, all wrong ones rejected.
function exact(network, { tested }) {
  return Math.min(network.first_failure ?? tested + 1, network.first_wrong ?? tested + 1) - 1;
}

// Stretches without overlaps.
function merged(some) {
  const found = [];
  for (const [low, high] of [...some].sort((a, b) => a[0] - b[0])) {
    const last = found.at(-1);
    if (last && low <= last[1] + 1) last[1] = Math.max(last[1], high);
    else found.push([Math.max(low, 1), high]);
  }
  return found;
}

function stretchesOf(some) {
  return some.length ? some.map(([low, high]) => (low === high ? `${low}` : `${low}–${high}`)).join(", ") : "none";
}
