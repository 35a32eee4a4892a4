// Experiments: counting and agreement.

import { bundle, cachedAnswers, formatAddress, getResult, isComputedHere, jobKey, runJob, storeResult } from "./data.js";
import { checkbox, dropdown, evidence, field, formatFixed, formatSigned, grid, heading, make, notify, put, runner, unitButton } from "./dom.js";
import { bars, lines } from "./charts.js";
import { paint } from "./colour.js";
import { saveButtons } from "./picture.js";
import { conditionExample, describeCondition } from "./words.js";

const LANGUAGES = [["anbn", "aⁿbⁿ: n a's, then n b's"], ["anbncn", "aⁿbⁿcⁿ"], ["dyck-1", "balanced brackets of one kind"], ["dyck-2", "balanced brackets of two kinds"]];
const KINDS = { elman: "Elman network", gru: "GRU", lstm: "LSTM" };

const OWN_PAIRS = "own";
const MAX_CONDITIONS = 6;

export function showExperiments(root, view) {
  const { about, state } = view;
  const stopCallbacks = [];
  const [conditionPicker, curves] = [make("div", {}), make("div", {})];
  const result = make("div", {});
  const isCharModel = about.unit === "char";
  const top = make("div", {}, heading(isCharModel ? "Which networks can count?" : "Does the verb agree with its subject?", isCharModel ? "Three small networks learn to write n a's and then n b's, and are tested on longer words."
    : "“The keys to the cabinet are”: the verb agrees with the keys. How often does the network prefer the correct form?"));
  const limit = make("input", { type: "number", min: 5, max: 100, value: 50 });
  const steps = make("input", { type: "number", min: 50, max: 10000, value: 3000, step: 50 });
  const language = dropdown(LANGUAGES, state.languageName, (name) => view.saveState({ languageName: name }));
  const countingRunner = runner("Train and test again", async (onProgress, signal) => {
    const counting = await runJob({ what: "count", model: state.model, language: language.value, limit: Number(limit.value), steps: Number(steps.value) }, onProgress, signal);
    storeResult("count", state, counting);
    drawCounting(counting);
  });
  const countingPanel = bundle && !cachedAnswers.has(jobKey("count", state)) ? "" : make("section", { class: "panel" }, make("h3", {}, "Counting"),
    make("p", {}, "Three networks of ten cells each learn a formal language from its words, and are tested on longer words. To count, a network must accept the correct words and reject the incorrect ones."),
    result, bundle ? null : make("div", { class: "controls" }, make("div", { class: "fields" }, field("Language", language), field("Trained up to n =", limit), field("Training steps", steps)), countingRunner));
  const agreementPanels = [bundle && !cachedAnswers.has(jobKey("agree", state)) ? "" : createAgreementPanel(), bundle && !cachedAnswers.has(jobKey("gates", state)) ? "" : createGatePanel()];
  put(root, top, make("div", { class: "pair" }, ...(isCharModel ? [countingPanel, ...agreementPanels] : [...agreementPanels, countingPanel])));
  getResult("count", state).then((counting) => counting && drawCounting(counting)).catch((error) => notify(error.message));

  function drawCounting(counting) {
    const countingNetworks = counting.networks.filter((network) => largestExact(network, counting) >= counting.limit).map((network) => `the ${KINDS[network.cell] ?? network.cell}`);
    const rows = counting.networks.map((network) => {
      const counter = network.counters[0];
      return [KINDS[network.cell] ?? network.cell, `${formatFixed(100 * network.right, 1)} %`, `${formatFixed(100 * network.rejected, 1)} %`, `${formatFixed(100 * network.balanced, 1)} %`, formatIntervals(network.accepted), network.first_failure ?? `none up to ${counting.tested}`, network.first_wrong ?? "none",
        counter ? `cell ${counter.unit + 1} (${counter.state}) for ${counter.count}: r ${formatSigned(counter.r, 3)}, ${formatSigned(counter.slope, 3)} each` : ""].map(String);
    });
    const box = make("div", { class: "countpicture" });
    put(box, make("p", { class: "scale" }, make("span", { class: "swatch yes" }, "correct words accepted"), " ", make("span", { class: "swatch no" }, "incorrect words accepted"),
      ` for n from 1 to ${counting.tested}; the dashed line is n = ${counting.limit}, the limit of training `), ...counting.networks.map((network) => drawIntervals(network, counting)));
    box.prepend(saveButtons(box, "who can count"));
    const subject = countingNetworks.join(" and ");
    const claim = countingNetworks.length ? `${subject[0].toUpperCase()}${subject.slice(1)} ${countingNetworks.length > 1 ? "count" : "counts"}; ${counting.networks.length > countingNetworks.length ? "the others do not" : "all do"}` : "None of them counts";
    if (isCharModel) put(top, heading(claim, `A network that counts has a full blue bar and an empty orange bar up to n = ${counting.limit}: correct words accepted, incorrect words rejected. Longer words test generalisation.`));
    const summaries = counting.networks.map((network) => `${KINDS[network.cell] ?? network.cell}: ${largestExact(network, counting) ? `no error up to n = ${largestExact(network, counting)}` : "errors from n = 1"}`);
    put(result, make("p", { class: "verdict" }, `${claim}. ${summaries.join("; ")}.`), box,
      evidence("Numbers", grid(["network", "correct words accepted", "incorrect words rejected", "balanced accuracy", "accepts all correct words for n =", "first correct word rejected", "first incorrect word accepted", "best counting cell"], rows,
        { caption: `trained up to n = ${counting.limit}, tested up to ${counting.tested}` })));
  }

  // Draw two bars: the n for which correct words are accepted, and the n for which an incorrect word is accepted.
  function drawIntervals(network, counting) {
    const wronglyAccepted = mergeIntervals(Object.values(network.wrongly).flat());
    const bar = (intervals, kind, label) => {
      const element = make("div", { class: `interval ${kind}`, role: "img", "aria-label": label });
      for (const [low, high] of intervals) {
        const part = make("span", {});
        part.style.left = `${(100 * (low - 1)) / counting.tested}%`;
        part.style.width = `${Math.min(Math.max((100 * (high - low + 1)) / counting.tested, 0.5), 100 - (100 * (low - 1)) / counting.tested)}%`;
        element.append(part);
      }
      const limitMark = make("i", {});
      limitMark.style.left = `${(100 * counting.limit) / counting.tested}%`;
      element.append(limitMark);
      return element;
    };
    const name = KINDS[network.cell] ?? network.cell;
    return make("div", { class: "intervals" }, make("b", {}, name, make("br"), make("small", {}, largestExact(network, counting) >= counting.limit ? `counts, to ${largestExact(network, counting)}` : "does not count")), make("div", {},
      bar(network.accepted.map(([a, b]) => [Math.max(a, 1), b]), "yes", `${name} accepts correct words for n = ${formatIntervals(network.accepted)}`),
      bar(wronglyAccepted, "no", `${name} accepts incorrect words for n = ${formatIntervals(wronglyAccepted)}`)));
  }

  function createAgreementPanel() {
    const container = make("div", {});
    const ownPairs = make("textarea", { rows: "3", spellcheck: "false", oninput: () => {
      view.saveState({ pairs: ownPairs.value, pack: ownPairs.value.trim() ? OWN_PAIRS : "" });
      source.value = state.pack;
    }, placeholder: "one per line: condition, correct text, incorrect text, separated by tabs or |" });
    ownPairs.value = state.pairs;
    const packs = [["", "subjects and verbs (built in)"], [OWN_PAIRS, "your pairs, below"], ...about.packs.map((pack) => [pack.name, pack.title])];
    if (!packs.some(([name]) => name === state.pack)) view.saveState({ pack: state.pairs.trim() ? OWN_PAIRS : "" });
    const source = dropdown(packs, state.pack, (name) => view.saveState({ pack: name, conditions: "" }));
    const maxPairs = make("input", { type: "number", min: 2, max: 100000, value: state.most, onchange: () => view.saveState({ most: Number(maxPairs.value) || 100 }) });
    const agreementRunner = runner("Test the model again", async (onProgress, signal) => {
      const agreement = await runJob({ what: "agree", model: state.model, ...getPairs(), sweep: state.swept }, onProgress, signal);
      storeResult("agree", state, agreement);
      drawAgreement(container, agreement);
      drawConditionPicker(agreement.conditions.map((row) => row.condition).filter((name) => name !== "all"));
    });
    const hasSettings = state.pack || state.pairs.trim() || state.swept;
    const form = [make("div", { class: "fields" }, field("Pairs", source), field("Maximum per condition", maxPairs)),
      about.packs.length ? null : make("p", { class: "verdict" }, "Start relmo explore with --data DIR to test published pairs (Lakretz, Linzen, BLiMP)."),
      field("Your pairs", ownPairs), checkbox("ablate every cell, one by one", state.swept, (on) => view.saveState({ swept: on })), agreementRunner].filter(Boolean);
    getResult("agree", state).then((agreement) => {
      if (agreement && (!hasSettings || bundle || isComputedHere("agree", state))) drawAgreement(container, agreement);
      else if (!bundle && (!isCharModel || hasSettings)) agreementRunner.run();
    }).catch((error) => notify(error.message));
    stopCallbacks.push(() => agreementRunner.stop());
    return make("section", { class: "panel" }, make("h3", {}, "Minimal pairs"),
      isCharModel ? make("p", {}, "This model reads characters and has learned little about agreement; this experiment is for models that read words, such as small. You can run it anyway.")
        : make("p", {}, "Subjects with a verb that agrees and one that does not, with and without a noun between them."), container,
      bundle ? "" : isCharModel && !hasSettings ? evidence("Run anyway", ...form) : make("div", { class: "controls" }, ...form));
  }

  function getPairs() {
    if (state.pack !== OWN_PAIRS) return { pack: state.pack, most: state.most };
    const pairs = state.pairs.split("\n").filter((line) => line.trim()).map((line) => {
      const parts = line.split(/\t|\|/).map((part) => part.trim());
      return parts.length === 2 ? ["mine", ...parts] : parts;
    });
    return { pairs };
  }

  // Create the panel of a cell's gates over the words before the two forms.
  function createGatePanel() {
    const initialUnit = about.number_units.length && state.unit === about.opened ? about.number_units[0] : state.unit;
    const unit = make("input", { type: "text", value: initialUnit, spellcheck: "false", maxlength: "16", onchange: () => {
      if (/^[a-z]\d{1,4}\.\d{1,6}$/.test(unit.value)) view.saveState({ unit: unit.value });
    } });
    const gateRunner = runner("Trace its gates again", async (onProgress, signal) => {
      const traces = await runJob({ what: "gates", model: state.model, ...getPairs(), unit: unit.value, conditions: state.conditions.split("|").filter(Boolean) }, onProgress, signal);
      storeResult("gates", state, traces);
      drawConditionPicker(traces.all);
      drawGates(traces);
    });
    getResult("gates", state).then((traces) => {
      if (!traces) return;
      if (!state.pack && !state.pairs.trim()) drawConditionPicker(traces.all);
      drawGates(traces);
    }).catch((error) => notify(error.message));
    stopCallbacks.push(() => { gateRunner.stop(); countingRunner.stop(); });
    const form = [make("div", { class: "fields" }, field("Cell address", unit)), conditionPicker, gateRunner];
    return make("section", { class: "panel" }, make("h3", {}, "States and gates of a cell"),
      make("p", {}, "Mean states and gates after each word of the sentences above, one line per condition, with 95 % intervals."), curves,
      bundle ? "" : isCharModel && !state.pack && !state.pairs.trim() ? evidence("Trace a cell's gates", ...form) : make("div", { class: "controls" }, ...form));
  }

  function drawConditionPicker(names) {
    if (names.length <= MAX_CONDITIONS || bundle) return put(conditionPicker);
    const selected = new Set(state.conditions.split("|").filter((name) => names.includes(name)));
    if (!selected.size) names.slice(0, MAX_CONDITIONS).forEach((name) => selected.add(name));
    put(conditionPicker, make("fieldset", { class: "ticks chosen" }, make("legend", {}, `Conditions, up to ${MAX_CONDITIONS}`), ...names.map((name) =>
      checkbox(describeCondition(name), selected.has(name), (on) => {
        on ? selected.add(name) : selected.delete(name);
        view.saveState({ conditions: [...selected].join("|") });
      }))));
  }

  function drawGates(traces) {
    const states = Object.keys(traces.conditions[0].means);
    const quantityLabel = (name) => `${about.words[name] ?? ""} ${name}`.trim();
    const longestWords = traces.conditions.map((condition) => condition.words).reduce((a, b) => (b.length > a.length ? b : a));
    const charts = states.map((name, n) => lines(traces.conditions.map((condition) => ({ name: `${describeCondition(condition.condition)} (${condition.pairs})`, x: condition.means[name].map((_, i) => i), y: condition.means[name],
      lower: condition.means[name].map((v, i) => v - condition.errors[name][i]), upper: condition.means[name].map((v, i) => v + condition.errors[name][i]) })),
    { label: `${quantityLabel(name)} of ${view.getUnitLabel(traces.unit)}`, x: "", y: quantityLabel(name), width: 300, height: 210, names: longestWords, legend: n === 0 }));
    const figure = make("div", {}, charts[0].querySelector(".legend") ?? "", make("div", { class: "cards gatecharts" }, ...charts));
    figure.prepend(saveButtons(figure, `gates of ${view.getUnitLabel(traces.unit)}`));
    put(curves, make("p", { class: "verdict" }, `${view.getUnitLabel(traces.unit)} (${formatAddress(traces.unit)}) over ${traces.title}; the words are the most frequent ones at each position of the longest condition.`), figure);
  }

  function drawAgreement(container, agreement) {
    const conditions = agreement.conditions.filter((row) => row.condition !== "all");
    const rows = agreement.conditions.map((row) => [describeCondition(row.condition), conditionExample(row.condition), String(row.pairs), `${formatFixed(row.accuracy, 1)} %`,
      `${formatFixed(row.interval[0], 1)} to ${formatFixed(row.interval[1], 1)}`, row.untrained === null ? "" : `${formatFixed(row.untrained, 1)} %`,
      row.more_frequent_form === null ? "" : `${formatFixed(row.more_frequent_form, 1)} %`]);
    const overall = agreement.conditions.find((row) => row.condition === "all");
    const lowest = Math.min(...conditions.map((row) => row.accuracy));
    const hardest = conditions.filter((row) => row.accuracy === lowest).map(({ condition }) => `${describeCondition(condition)}${conditionExample(condition) ? ` (“${conditionExample(condition)}”)` : ""}`);
    const hardestNote = hardest.length === conditions.length ? "" : hardest.length > 1 ? ` Hardest (tied): ${hardest.join("; ")}.` : ` Hardest: ${hardest[0]}.`;
    if (!isCharModel && overall) put(top, heading(`The network prefers the correct verb in ${formatFixed(overall.accuracy, 0)} of 100 pairs`,
      `Measured on ${overall.pairs.toLocaleString("en")} pairs: ${agreement.title}. Chance is 50 %.${hardestNote}${about.number_units.length ? " Trace uses other sentences, so its figures differ." : ""}`));
    const parts = [bars(conditions.slice(0, 12).map((row) => [describeCondition(row.condition), row.accuracy, `${formatFixed(row.interval[0], 0)} to ${formatFixed(row.interval[1], 0)} %`]),
      { label: `${agreement.title}: accuracy in percent; chance is 50`, digits: 1, limit: 100 }),
    evidence("Numbers and baselines", grid(["condition", "example", "pairs", "accuracy", "95 % interval", "untrained network", "more frequent form"], rows,
      { caption: `${agreement.title}: accuracy` }))];
    if (agreement.sweep) {
      const { conditions: sweepRows, units, drops, of: numCells } = agreement.sweep;
      parts.push(grid(["condition", "cell", "drop on held-out pairs (points)", "95 % interval", "rank on held-out pairs"],
        sweepRows.map((row) => [describeCondition(row.condition), unitButton(view, row.unit.replace("←", "b")), formatSigned(row.held_out_drop, 1),
          `${formatSigned(row.held_out_interval[0], 1)} to ${formatSigned(row.held_out_interval[1], 1)}`, `${row.held_out_rank} of ${numCells}`]),
        { caption: "most important cell of each condition, selected on half of the pairs" }));
      const maxDrop = Math.max(1, ...drops.flat().map(Math.abs));
      parts.push(grid(["cell", ...sweepRows.map((row) => describeCondition(row.condition))], units.map((unit, u) =>
        [unitButton(view, unit), ...drops[u].map((drop) => {
          const cell = make("td", {}, formatSigned(drop, 1));
          paint(cell, drop, maxDrop);
          return cell;
        })]), { caption: "drop of the accuracy in points without a cell: the cells with the largest drops" }));
    }
    put(container, ...parts);
  }

  return { close: () => stopCallbacks.forEach((stop) => stop()), update: (changedNames) => (changedNames.some((name) => ["text", "model"].includes(name)) ? (stopCallbacks.forEach((stop) => stop()), showExperiments(root, view)) : null) };
}

// Return the largest n up to which all correct words are accepted and all incorrect ones rejected.
function largestExact(network, { tested }) {
  return Math.min(network.first_failure ?? tested + 1, network.first_wrong ?? tested + 1) - 1;
}

// Merge overlapping intervals.
function mergeIntervals(intervals) {
  const merged = [];
  for (const [low, high] of [...intervals].sort((a, b) => a[0] - b[0])) {
    const last = merged.at(-1);
    if (last && low <= last[1] + 1) last[1] = Math.max(last[1], high);
    else merged.push([Math.max(low, 1), high]);
  }
  return merged;
}

function formatIntervals(intervals) {
  return intervals.length ? intervals.map(([low, high]) => (low === high ? `${low}` : `${low}–${high}`)).join(", ") : "none";
}
