// Experiments: counting and agreement.

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
  const top = make("div", {}, heading(letters ? "Which networks can count?" : "Does the verb agree with its subject?", letters ? "Three small networks learn to write n a's and then n b's, and are tested on longer words."
    : "“The keys to the cabinet are”: the verb agrees with the keys. How often does the network prefer the correct form?"));
  const limit = make("input", { type: "number", min: 5, max: 100, value: 30 });
  const steps = make("input", { type: "number", min: 50, max: 10000, value: 1500, step: 50 });
  const language = choice(LANGUAGES, state.languageName, (name) => view.note({ languageName: name }));
  const go = runner("Train and test again", async (tell, signal) => {
    const found = await work({ what: "count", model: state.model, language: language.value, limit: Number(limit.value), steps: Number(steps.value) }, tell, signal);
    keep("count", state, found);
    draw(found);
  });
  const counting = bundle && !answers.has(jobKey("count", state)) ? "" : make("section", { class: "panel" }, make("h3", {}, "Counting"),
    make("p", {}, "Three networks of ten cells each learn a formal language from its words, and are tested on longer words. To count, a network must accept the correct words and reject the incorrect ones."),
    result, bundle ? null : make("div", { class: "controls" }, make("div", { class: "fields" }, labelled("Language", language), labelled("Trained up to n =", limit), labelled("Training steps", steps)), go));
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
    put(box, make("p", { class: "scale" }, make("span", { class: "swatch yes" }, "correct words accepted"), " ", make("span", { class: "swatch no" }, "incorrect words accepted"),
      ` for n from 1 to ${found.tested}; the dashed line is n = ${found.limit}, the limit of training `), ...found.networks.map((network) => intervalsOf(network, found)));
    box.prepend(saving(box, "who can count"));
    const all = who.join(" and ");
    const claim = who.length ? `${all[0].toUpperCase()}${all.slice(1)} ${who.length > 1 ? "count" : "counts"}; ${found.networks.length > who.length ? "the others do not" : "all do"}` : "None of them counts";
    if (letters) put(top, heading(claim, `A network that counts has a full blue bar and an empty orange bar up to n = ${found.limit}: correct words accepted, incorrect words rejected. Longer words test generalisation.`));
    const told = found.networks.map((network) => `${KINDS[network.cell] ?? network.cell}: ${exact(network, found) ? `no error up to n = ${exact(network, found)}` : "errors from n = 1"}`);
    put(result, make("p", { class: "verdict" }, `${claim}. ${told.join("; ")}.`), box,
      evidence("Numbers", grid(["network", "correct words accepted", "incorrect words rejected", "balanced accuracy", "accepts all correct words for n =", "first correct word rejected", "first incorrect word accepted", "best counting cell"], rows,
        { caption: `trained up to n = ${found.limit}, tested up to ${found.tested}` })));
  }

  // Two bars: the n for which correct words are accepted, and those for which an incorrect word is.
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
      bar(network.accepted.map(([a, b]) => [Math.max(a, 1), b]), "yes", `${name} accepts correct words for n = ${stretchesOf(network.accepted)}`),
      bar(wrong, "no", `${name} accepts incorrect words for n = ${stretchesOf(wrong)}`)));
  }

  function agreementPanel() {
    const place = make("div", {});
    const own = make("textarea", { rows: "3", spellcheck: "false", oninput: () => {
      view.note({ pairs: own.value, pack: own.value.trim() ? OWN : "" });
      source.value = state.pack;
    }, placeholder: "one per line: condition, correct text, incorrect text, separated by tabs or |" });
    own.value = state.pairs;
    const packs = [["", "subjects and verbs (built in)"], [OWN, "your pairs, below"], ...about.packs.map((pack) => [pack.name, pack.title])];
    if (!packs.some(([name]) => name === state.pack)) view.note({ pack: state.pairs.trim() ? OWN : "" });
    const source = choice(packs, state.pack, (name) => view.note({ pack: name, conditions: "" }));
    const most = make("input", { type: "number", min: 2, max: 100000, value: state.most, onchange: () => view.note({ most: Number(most.value) || 100 }) });
    const run = runner("Test the model again", async (tell, signal) => {
      const found = await work({ what: "agree", model: state.model, ...getPairs(), sweep: state.swept }, tell, signal);
      keep("agree", state, found);
      drawAgreement(place, found);
      conditions(found.conditions.map((each) => each.condition).filter((name) => name !== "all"));
    });
    const changed = state.pack || state.pairs.trim() || state.swept;
    const form = [make("div", { class: "fields" }, labelled("Pairs", source), labelled("Maximum per condition", most)),
      about.packs.length ? null : make("p", { class: "verdict" }, "Start relmo explore with --data DIR to test published pairs (Lakretz, Linzen, BLiMP)."),
      labelled("Your pairs", own), tick("ablate every cell, one by one", state.swept, (on) => view.note({ swept: on })), run].filter(Boolean);
    ready("agree", state).then((found) => {
      if (found && (!changed || bundle || isMade("agree", state))) drawAgreement(place, found);
      else if (!bundle && (!letters || changed)) run.run();
    }).catch((error) => say(error.message));
    stops.push(() => run.stop());
    return make("section", { class: "panel" }, make("h3", {}, "Minimal pairs"),
      letters ? make("p", {}, "This model reads characters and has learned little about agreement; this experiment is for models that read words, such as small. You can run it anyway.")
        : make("p", {}, "Subjects with a verb that agrees and one that does not, with and without a noun between them."), place,
      bundle ? "" : letters && !changed ? evidence("Run anyway", ...form) : make("div", { class: "controls" }, ...form));
  }

  function getPairs() {
    if (state.pack !== OWN) return { pack: state.pack, most: state.most };
    const pairs = state.pairs.split("\n").filter((line) => line.trim()).map((line) => {
      const parts = line.split(/\t|\|/).map((part) => part.trim());
      return parts.length === 2 ? ["mine", ...parts] : parts;
    });
    return { pairs };
  }

  // Course of a cell's gates over the words before the two forms.
  function gatePanel() {
    const carries = about.number_units.length && state.unit === about.opened ? about.number_units[0] : state.unit;
    const unit = make("input", { type: "text", value: carries, spellcheck: "false", maxlength: "16", onchange: () => {
      if (/^[a-z]\d{1,4}\.\d{1,6}$/.test(unit.value)) view.note({ unit: unit.value });
    } });
    const run = runner("Trace its gates again", async (tell, signal) => {
      const found = await work({ what: "gates", model: state.model, ...getPairs(), unit: unit.value, conditions: state.conditions.split("|").filter(Boolean) }, tell, signal);
      keep("gates", state, found);
      conditions(found.all);
      drawGates(found);
    });
    ready("gates", state).then((found) => {
      if (!found) return;
      if (!state.pack && !state.pairs.trim()) conditions(found.all);
      drawGates(found);
    }).catch((error) => say(error.message));
    stops.push(() => { run.stop(); go.stop(); });
    const form = [make("div", { class: "fields" }, labelled("Cell address", unit)), choosing, run];
    return make("section", { class: "panel" }, make("h3", {}, "States and gates of a cell"),
      make("p", {}, "Mean states and gates after each word of the sentences above, one line per condition, with 95 % intervals."), curves,
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

  function drawGates(found) {
    const states = Object.keys(found.conditions[0].means);
    const called = (name) => `${about.words[name] ?? ""} ${name}`.trim();
    const longest = found.conditions.map((each) => each.words).reduce((a, b) => (b.length > a.length ? b : a));
    const charts = states.map((name, n) => lines(found.conditions.map((each) => ({ name: `${conditionWords(each.condition)} (${each.pairs})`, x: each.means[name].map((_, i) => i), y: each.means[name],
      lower: each.means[name].map((v, i) => v - each.errors[name][i]), upper: each.means[name].map((v, i) => v + each.errors[name][i]) })),
    { label: `${called(name)} of ${view.called(found.unit)}`, x: "", y: called(name), width: 300, height: 210, names: longest, legend: n === 0 }));
    const whole = make("div", {}, charts[0].querySelector(".legend") ?? "", make("div", { class: "cards gatecharts" }, ...charts));
    whole.prepend(saving(whole, `gates of ${view.called(found.unit)}`));
    put(curves, make("p", { class: "verdict" }, `${view.called(found.unit)} (${shownUnit(found.unit)}) over ${found.title}; the words are the most frequent ones at each position of the longest condition.`), whole);
  }

  function drawAgreement(place, found) {
    const shown = found.conditions.filter((each) => each.condition !== "all");
    const rows = found.conditions.map((each) => [conditionWords(each.condition), conditionExample(each.condition), String(each.pairs), `${fixed(each.accuracy, 1)} %`,
      `${fixed(each.interval[0], 1)} to ${fixed(each.interval[1], 1)}`, each.untrained === null ? "" : `${fixed(each.untrained, 1)} %`,
      each.more_frequent_form === null ? "" : `${fixed(each.more_frequent_form, 1)} %`]);
    const whole = found.conditions.find((each) => each.condition === "all");
    const lowest = Math.min(...shown.map((each) => each.accuracy));
    const hardest = shown.filter((each) => each.accuracy === lowest).map(({ condition }) => `${conditionWords(condition)}${conditionExample(condition) ? ` (“${conditionExample(condition)}”)` : ""}`);
    const hard = hardest.length === shown.length ? "" : hardest.length > 1 ? ` Hardest (tied): ${hardest.join("; ")}.` : ` Hardest: ${hardest[0]}.`;
    if (!letters && whole) put(top, heading(`The network prefers the correct verb in ${fixed(whole.accuracy, 0)} of 100 pairs`,
      `Measured on ${whole.pairs.toLocaleString("en")} pairs: ${found.title}. Chance is 50 %.${hard}${about.number_units.length ? " Trace uses other sentences, so its figures differ." : ""}`));
    const parts = [bars(shown.slice(0, 12).map((each) => [conditionWords(each.condition), each.accuracy, `${fixed(each.interval[0], 0)} to ${fixed(each.interval[1], 0)} %`]),
      { label: `${found.title}: accuracy in percent; chance is 50`, digits: 1, limit: 100 }),
    evidence("Numbers and baselines", grid(["condition", "example", "pairs", "accuracy", "95 % interval", "untrained network", "more frequent form"], rows,
      { caption: `${found.title}: accuracy` }))];
    if (found.sweep) {
      const { conditions: some, units, drops, of } = found.sweep;
      parts.push(grid(["condition", "cell", "drop on held-out pairs (points)", "95 % interval", "rank on held-out pairs"],
        some.map((each) => [conditionWords(each.condition), unitButton(view, each.unit.replace("←", "b")), signed(each.held_out_drop, 1),
          `${signed(each.held_out_interval[0], 1)} to ${signed(each.held_out_interval[1], 1)}`, `${each.held_out_rank} of ${of}`]),
        { caption: "most important cell of each condition, selected on half of the pairs" }));
      const most = Math.max(1, ...drops.flat().map(Math.abs));
      parts.push(grid(["cell", ...some.map((each) => conditionWords(each.condition))], units.map((unit, u) =>
        [unitButton(view, unit), ...drops[u].map((drop) => {
          const cell = make("td", {}, signed(drop, 1));
          paint(cell, drop, most);
          return cell;
        })]), { caption: "drop of the accuracy in points without a cell: the cells with the largest drops" }));
    }
    put(place, ...parts);
  }

  return { close: () => stops.forEach((stop) => stop()), update: (changed) => (changed.some((name) => ["text", "model"].includes(name)) ? (stops.forEach((stop) => stop()), showExperiments(root, view)) : null) };
}

// Largest n up to which all correct words are accepted and all incorrect ones rejected.
function exact(network, { tested }) {
  return Math.min(network.first_failure ?? tested + 1, network.first_wrong ?? tested + 1) - 1;
}

// Merge overlapping intervals.
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
