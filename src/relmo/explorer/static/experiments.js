// Experiments: can they count, and do verbs agree?

import { answers, bundle, shownUnit, work } from "./data.js";
import { button, choice, fixed, grid, labelled, make, put, runner, signed, tick } from "./dom.js";
import { lines } from "./charts.js";
import { colour } from "./colour.js";
import { saving } from "./picture.js";

const LANGUAGES = [["anbn", "aⁿbⁿ: n a's, then n b's"], ["anbncn", "aⁿbⁿcⁿ"], ["dyck-1", "balanced brackets of one kind"], ["dyck-2", "balanced brackets of two kinds"]];

const OWN = "own";
const DRAWN = 6;

export function showExperiments(root, view) {
  const { about, state } = view;
  const agreed = `job:agree:${state.model}`;
  const gated = `job:gates:${state.model}`;
  const [choosing, curves] = [make("div", {}), make("div", {})];
  const result = make("div", {});
  const limit = make("input", { type: "number", min: 5, max: 100, value: 30 });
  const steps = make("input", { type: "number", min: 50, max: 10000, value: 1500, step: 50 });
  const language = choice(LANGUAGES, state.languageName, (name) => view.note({ languageName: name }));
  const go = runner("Train and ask them", async (tell, signal) => {
    const found = await work({ what: "count", model: state.model, language: language.value, limit: Number(limit.value), steps: Number(steps.value) }, tell, signal);
    answers.set("job:count", found);
    draw(found);
  });
  put(root, bundle && !answers.has("job:count") ? "" : make("section", { class: "panel" }, make("h2", {}, "Can they count?"),
    make("p", {}, "A network of ten units of each kind of cell learns a formal language from its words, and is asked far beyond what it has seen."),
    bundle ? null : make("div", { class: "fields" }, labelled("Language", language), labelled("Learnt up to n =", limit), labelled("Steps of training", steps)),
    bundle ? null : go, result), bundle && !answers.has(agreed) ? "" : agreementPanel(), bundle && !answers.has(gated) ? "" : gatePanel());
  if (answers.has("job:count")) draw(answers.get("job:count"));

  function draw(found) {
    const rows = found.networks.map((network) => {
      const counter = network.counters[0];
      return [network.cell, stretchesOf(network.accepted), network.first_failure ?? `none up to ${found.tested}`, network.first_wrong ?? "none",
        `${fixed(100 * network.balanced, 1)} %`, counter ? `${counter.state}${counter.unit} for ${counter.count}: r ${signed(counter.r, 3)}, ${signed(counter.slope, 3)} each` : ""].map(String);
    });
    put(result, grid(["cell", "accepts n =", "first right word rejected", "first wrong word accepted", "balanced accuracy", "best counter"], rows,
      { caption: `learnt from n up to ${found.limit}, asked up to ${found.tested}` }),
    ...found.networks.map((network) => intervalsOf(network, found)));
  }

  function intervalsOf(network, found) {
    const bar = make("div", { class: "interval", role: "img", "aria-label": `${network.cell} accepts ${stretchesOf(network.accepted)}` });
    for (const [low, high] of network.accepted) {
      const part = make("span", {});
      part.style.left = `${(100 * low) / found.tested}%`;
      part.style.width = `${Math.max((100 * (high - low + 1)) / found.tested, 0.5)}%`;
      bar.append(part);
    }
    const learnt = make("i", {});
    learnt.style.left = `${(100 * found.limit) / found.tested}%`;
    bar.append(learnt);
    return make("div", { class: "intervals" }, make("span", {}, network.cell), bar);
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
    const run = runner("Ask the model", async (tell, signal) => {
      const found = await work({ what: "agree", model: state.model, ...asked(), sweep: state.swept }, tell, signal);
      answers.set(agreed, found);
      preferred(place, found);
      conditions(found.conditions.map((each) => each.condition).filter((name) => name !== "all"));
    });
    if (answers.has(agreed)) preferred(place, answers.get(agreed));
    const absent = about.packs.length ? null : make("p", { class: "verdict" },
      "Published pairs (Lakretz, Linzen, BLiMP) are offered when relmo explore is started with --data DIR, the folder they lie in.");
    return make("section", { class: "panel" }, make("h2", {}, "Which form does it prefer?"),
      make("p", {}, "Subjects and verbs that agree and that do not, in singular (S) and plural (P), alone and with another noun between (nounpp SP: singular subject, plural noun); or other pairs."),
      ...(bundle ? [] : [make("div", { class: "fields" }, labelled("Pairs", source), labelled("At most so many of a condition", most)), absent,
        labelled("Pairs of your own", own), tick("set every unit to zero, one by one", state.swept, (on) => view.note({ swept: on })), run]), place);
  }

  function asked() {
    if (state.pack !== OWN) return { pack: state.pack, most: state.most };
    const pairs = state.pairs.split("\n").filter((line) => line.trim()).map((line) => {
      const parts = line.split(/\t|\|/).map((part) => part.trim());
      return parts.length === 2 ? ["mine", ...parts] : parts;
    });
    return { pairs };
  }

  // What a unit's gates do while the words before the two forms are read.
  function gatePanel() {
    const unit = make("input", { type: "text", value: state.unit, spellcheck: "false", maxlength: "16", onchange: () => {
      if (/^[a-z]\d{1,4}\.\d{1,6}$/.test(unit.value)) view.note({ unit: unit.value });
    } });
    const run = runner("Trace its gates", async (tell, signal) => {
      const found = await work({ what: "gates", model: state.model, ...asked(), unit: unit.value, conditions: state.conditions.split("|").filter(Boolean) }, tell, signal);
      answers.set(gated, found);
      conditions(found.all);
      traced(found);
    });
    if (answers.has(gated)) {
      conditions(answers.get(gated).all);
      traced(answers.get(gated));
    }
    return make("section", { class: "panel" }, make("h2", {}, "What do a unit's gates do meanwhile?"),
      make("p", {}, "Its states and gates after each word before the two forms, by condition, of the pairs chosen above: means, with the 95 % interval of the mean."),
      ...(bundle ? [] : [make("div", { class: "fields" }, labelled("Unit", unit)), choosing, run]), curves);
  }

  function conditions(names) {
    if (names.length <= DRAWN || bundle) return put(choosing);
    const wanted = new Set(state.conditions.split("|").filter((name) => names.includes(name)));
    if (!wanted.size) names.slice(0, DRAWN).forEach((name) => wanted.add(name));
    put(choosing, make("fieldset", { class: "ticks chosen" }, make("legend", {}, `Conditions, up to ${DRAWN}`), ...names.map((name) =>
      tick(name, wanted.has(name), (on) => {
        on ? wanted.add(name) : wanted.delete(name);
        view.note({ conditions: [...wanted].join("|") });
      }))));
  }

  function traced(found) {
    const states = Object.keys(found.conditions[0].means);
    const called = (name) => (about.carried.includes(name) ? name : `${about.words[name]} ${name}`);
    const longest = found.conditions.map((each) => each.words).reduce((a, b) => (b.length > a.length ? b : a));
    const charts = states.map((name, n) => lines(found.conditions.map((each) => ({ name: `${each.condition} (${each.pairs})`, x: each.means[name].map((_, i) => i), y: each.means[name],
      lower: each.means[name].map((v, i) => v - each.errors[name][i]), upper: each.means[name].map((v, i) => v + each.errors[name][i]) })),
    { label: `${called(name)} of ${shownUnit(found.unit)}`, x: "", y: called(name), width: 420, height: 230, names: longest, legend: n === 0 }));
    const whole = make("div", {}, charts[0].querySelector(".legend") ?? "", make("div", { class: "cards" }, ...charts));
    whole.prepend(saving(whole, `gates of ${shownUnit(found.unit)}`));
    put(curves, make("p", { class: "verdict" }, `${shownUnit(found.unit)} over ${found.title}; the words are the commonest at their place in the longest condition.`), whole);
  }

  function preferred(place, found) {
    const rows = found.conditions.map((each) => [each.condition, String(each.pairs), `${fixed(each.accuracy, 1)} %`,
      `${fixed(each.interval[0], 1)} to ${fixed(each.interval[1], 1)}`, each.untrained === null ? "" : `${fixed(each.untrained, 1)} %`,
      each.more_frequent_form === null ? "" : `${fixed(each.more_frequent_form, 1)} %`]);
    const parts = [grid(["condition", "pairs", "right", "95 % interval", "same network untrained", "more frequent form"], rows,
      { caption: `${found.title}: how often the right one is preferred` })];
    if (found.sweep) {
      const { conditions, units, drops, of } = found.sweep;
      parts.push(grid(["condition", "unit", "points it costs on the pairs it was not chosen by", "units that cost as much or more"],
        conditions.map((each) => [each.condition, shownUnit(each.unit.replace("←", "b")), signed(each.held_out_drop, 1), `${each.held_out_rank} of ${of}`]),
        { caption: "the unit that each condition needs most, chosen on half of the pairs" }));
      const most = Math.max(1, ...drops.flat().map(Math.abs));
      parts.push(grid(["unit", ...conditions.map((each) => each.condition)], units.map((unit, u) =>
        [button(shownUnit(unit), () => view.set({ unit, screen: "cell" }), { class: "unit" }), ...drops[u].map((drop) => {
          const cell = make("td", {}, signed(drop, 1));
          cell.style.backgroundColor = colour(drop, most);
          return cell;
        })]), { caption: "points lost with a unit off: the units that cost most anywhere" }));
    }
    put(place, ...parts);
  }

  return { update: () => null };
}

function stretchesOf(some) {
  return some.length ? some.map(([low, high]) => (low === high ? `${low}` : `${low}–${high}`)).join(", ") : "none";
}
