// Align: output and attention of a sequence-to-sequence model, step by step, and the comparison with another model.

import { answers, ask, bundle } from "./data.js";
import { button, choice, fixed, grid, labelled, make, put, say } from "./dom.js";
import { bars } from "./charts.js";
import { bothSides, heatMap, labelOf, percent } from "./heatmap.js";
import { saving } from "./picture.js";

const NAMES = { word: ["word", "words"], char: ["character", "characters"], bpe: ["piece", "pieces"], unigram: ["piece", "pieces"] };
const BEAMS = [2, 3, 5, 10];
const MOSTLY = 0.5;

export function showAlign(root, view) {
  const { about, state } = view;
  const [one, many] = NAMES[about.units[1]];
  const subwords = about.units.map((unit) => unit === "bpe" || unit === "unigram");
  const picture = make("div", { class: "alignment" });
  const claim = make("h2", { class: "claim" });
  const lead = make("p", { class: "lead" });
  const stepper = make("div", { class: "stepper", role: "group", "aria-label": "decoder steps" });
  const [likely, others, searched] = [make("div", {}), make("section", { class: "panel" }), make("section", { class: "panel" })];
  const [sides, map] = [make("figure", {}), make("figure", {})];
  let found = null;
  let latest = 0;

  const asked = (source) => ({ model: about.name, source, ...(state.beams ? { beams: state.beams } : {}), ...(state.other ? { other: state.other } : {}) });
  const sources = bundle ? savedSources(asked(""))
    : [...new Set([...about.pairs.map((pair) => pair.source), state.source])];

  put(root, form(), make("section", { class: "panel" }, claim, lead, stepper, picture), make("div", { class: "pair" }, others, searched));
  put(picture, sides, map, likely);
  new ResizeObserver(() => found && draw()).observe(picture);
  load();

  function form() {
    const source = make("input", { type: "text", maxlength: "2000", value: state.source, lang: "", autocomplete: "off", spellcheck: false });
    const go = () => source.value.trim() && view.set({ source: source.value.trim(), step: -1, way: 0 });
    source.addEventListener("keydown", (event) => { if (event.key === "Enter") go(); });
    const list = choice(sources.map((each) => [each, each.length > 70 ? `${each.slice(0, 69)}…` : each]), state.source, (chosen) => {
      source.value = chosen;
      view.set({ source: chosen, step: -1, way: 0 });
    });
    if (bundle) return sources.length > 1 ? labelled("Example", list) : make("span", {});
    return make("div", { class: "asking" }, labelled("Source", source), button("Run", go, { class: "go" }), labelled("or an example", list));
  }

  async function load() {
    const turn = ++latest;
    picture.classList.toggle("waiting", Boolean(found));
    try {
      const answer = await ask("align", asked(state.source));
      if (turn !== latest) return; // another text was asked for since
      found = answer;
      draw();
    } catch (error) {
      say(error.message);
      if (!found) put(lead, error.message);
    } finally {
      if (turn === latest) picture.classList.remove("waiting");
    }
  }

  // The selected output: greedy, or a hypothesis of the beam search.
  function text() {
    const { written } = found.models[0];
    return written[Math.min(Math.max(0, state.way), written.length - 1)];
  }

  // The selected step. By default a word with concentrated attention, preferably on a different word.
  function at() {
    const { units, attention } = text();
    if (state.step >= 0 || !attention) return Math.min(Math.max(0, state.step), units.length - 1);
    const tells = units.map((unit, t) => {
      if (unit === null || !/[\p{L}\p{N}]/u.test(unit)) return 0;
      const most = Math.max(...attention[t]);
      return most + (found.models[0].source[attention[t].indexOf(most)] === unit ? 0 : 0.3);
    });
    return tells.indexOf(Math.max(...tells));
  }

  function draw() {
    const [model, shown, step] = [found.models[0], text(), at()];
    if (!shown.units.length) return put(lead, "The output is empty.");
    const of = { source: model.source.map((unit) => labelOf(unit, subwords[0])), target: shown.units.map((unit) => labelOf(unit, subwords[1])), weights: shown.attention, step, name: model.name,
      reached: state.step < 0 ? shown.units.length : step };
    const turn = (t) => view.set({ step: t });
    drawClaim(model, of);
    steps(of);
    const room = picture.clientWidth;
    const [narrow, wide] = room < 640 ? [room, room] : room < 1000 ? [room * 0.4, room * 0.56] : [room * 0.27, room * 0.4];
    put(sides, make("figcaption", {}, "Source and output", " ", saving(sides, "both texts")), bothSides(of, narrow - 10, turn));
    map.hidden = !shown.attention;
    if (shown.attention) put(map, make("figcaption", {}, "Attention weights, in percent", " ", saving(map, "attention")), heatMap(of, wide - 10, turn));
    picture.classList.toggle("long", of.source.length > 24);
    for (const each of picture.querySelectorAll(".scroll")) each.centre();
    put(likely, next(shown.steps[step], `Predictions at step ${step + 1}`));
    beside(model, shown, step);
    search(model);
  }

  // The headline.
  function drawClaim(model, { source, target, weights, step }) {
    const writing = text().units[step] === null ? "At the end of the output" : `To write “${target[step]}”`;
    const order = weights ? weights[step].map((weight, j) => [weight, j]).sort((a, b) => b[0] - a[0]) : [];
    const seen = ([weight, j]) => `“${source[j]}” (${percent(weight)})`;
    put(claim, !weights ? `${writing}, the decoder depends on one vector of ${model.vector} numbers`
      : order[0][0] >= MOSTLY || order.length < 2 ? `${writing}, the decoder attends mostly to ${seen(order[0])}`
        : `${writing}, the decoder attends to several positions: ${seen(order[0])}, ${seen(order[1])}`);
    const unknown = model.unknown.map((j) => `“${model.source[j]}”`).join(", ");
    put(lead, weights ? `Lines join each output ${one} to the source units with the largest attention weights; the map shows all weights. Step with ← and →, or select a ${one}.`
      : `Without attention, no weights connect a ${one} to the source. Step with ← and → to see the predictions.`,
    unknown ? make("b", {}, ` Not in the vocabulary: ${unknown}.`) : null,
    text().ended ? null : make("b", {}, " The output was cut off at the maximum length."));
  }

  function steps({ target, step, reached }) {
    const last = target.length - 1;
    const to = (label, t) => button(label, () => view.set({ step: t }), { disabled: t < 0 || t > last || t === state.step });
    const join = NAMES[about.units[1]][0] === "character" ? "" : " ";
    const part = (from, to) => (from < to && from ? join : "") + target.slice(from, to).join(join);
    const done = Math.min(reached + 1, target.length);
    put(stepper, to("First", 0), to("◀ Back", step - 1), to("Forward ▶", step + 1), to("Last", last),
      make("span", { class: "told", role: "status" }, `step ${step + 1} of ${last + 1}`),
      make("span", { class: "sofar" }, part(0, step), step ? join : "", make("u", {}, target[step]), part(step + 1, done), make("span", { class: "rest" }, part(done, target.length))));
  }

  // A distribution as bars.
  function next(distribution, label) {
    const rows = distribution.map(([unit, p, taken]) => [`${labelOf(unit, subwords[1])}${taken ? " ✓" : ""}`, 100 * p]);
    return bars(rows, { label: `${label}, in percent (✓ is the output)`, digits: 1, limit: 100 });
  }

  // The output, with differences marked and a sign where text is missing.
  function marked(parts) {
    const join = about.units[1] === "char" ? "" : " ";
    const shown = [];
    parts.forEach(([kind, part], i) => {
      const replaced = kind === "missing" && parts[i - 1]?.[0] === "other";
      if (replaced) return;
      if (shown.length && kind !== "missing") shown.push(join);
      if (kind === "same") shown.push(part);
      else if (kind === "other") shown.push(make("mark", parts[i + 1]?.[0] === "missing" ? { title: `instead of ${parts[i + 1][1]}` } : {}, part));
      else shown.push(make("span", { class: "gap", title: `missing: ${part}` }, "‸"));
    });
    return shown;
  }

  function beside(mine, shown, step) {
    const other = found.models[1];
    const rows = found.reference === null ? [] : [["reference", cell(found.reference), ""]];
    rows.push([`${mine.name}, ${between(mine)}`, cell(...marked(shown.parts)), likelihood(shown)]);
    const legend = make("p", { class: "verdict" }, make("mark", {}, "marked"), ": different from ",
      found.reference === null ? `the greedy output of ${mine.name}` : "the reference", "; ", make("span", { class: "gap" }, "‸"), ": missing text.");
    if (!other) {
      const hint = bundle ? null : make("p", { class: "verdict" }, `Start with --beside MODEL to compare with another model, such as one ${mine.attention ? "without" : "with"} attention.`);
      if (found.reference === null) put(others, make("h2", {}, "Comparison with another model"), hint);
      else put(others, make("h2", {}, agrees(shown)), grid(["model", "text", "probability"], rows, { caption: "outputs" }), legend, hint);
      others.hidden = bundle && found.reference === null;
      return;
    }
    const its = other.written[Math.min(state.way, 1)];
    rows.push([`${other.name}, ${between(other)}`, cell(...marked(its.parts)), likelihood(its)]);
    const say = other.attention ? "It also has attention." : `It encodes the source as one vector of ${other.vector} numbers.`;
    const names = about.beside.map((name) => [name, name]);
    put(others, make("h2", {}, verdict(mine, shown, other, its)), make("p", {}, `Compared with ${other.name}. `, say),
      bundle || names.length < 2 ? null : labelled("Companion", choice(names, other.name, (name) => view.set({ other: name }))),
      make("div", { class: "halves" }, make("div", {}, grid(["model", "text", "probability"], rows, { caption: "outputs" }), legend, itsSides(other, its, step)),
        step < its.steps.length ? next(its.steps[step], `Predictions of ${other.name} at step ${step + 1}`)
          : make("p", {}, `${other.name} ended before step ${step + 1}.`)));
  }

  // Source and output of the other model.
  function itsSides(other, its, step) {
    if (!its.units.length) return null;
    const figure = make("figure", {});
    const target = its.units.map((unit) => labelOf(unit, subwords[1]));
    const of = { source: other.source.map((unit) => labelOf(unit, subwords[0])), target, weights: its.attention, name: other.name, step: Math.min(step, target.length - 1), reached: state.step < 0 ? target.length : step };
    const drawn = bothSides(of, 420, (t) => view.set({ step: t }));
    put(figure, make("figcaption", {}, other.name, " ", saving(figure, other.name)), drawn);
    requestAnimationFrame(() => drawn.centre()); // when it is in the page
    return figure;
  }

  function agrees(shown) {
    return shown.right ? "The output equals the reference" : "The output differs from the reference";
  }

  function verdict(mine, shown, other, its) {
    const way = other.attention ? other.name : "Without attention";
    if (its.text === shown.text) return `${way}, the output is the same${shown.right ? ", and correct" : ""}`;
    if (found.reference === null) return `${way}, the output is different`;
    if (shown.right) return `${way}, the output is wrong; ${mine.attention ? "with attention" : `from ${mine.name}`} it is correct`;
    return its.right ? `${way}, the output is correct` : `${way}, the output is different; neither equals the reference`;
  }

  function cell(...children) {
    return make("td", { class: "written", lang: "" }, ...children);
  }

  function between(model) {
    return model.attention ? "with attention" : "without attention";
  }

  function likelihood({ log_prob }) {
    const share = 100 * Math.exp(log_prob);
    return share >= 0.05 ? `${fixed(share, 1)} %` : "under 0.1 %";
  }

  function search(model) {
    const { written, beams, penalty } = model;
    const [greedy, best] = written;
    const head = best.text === greedy.text ? `Beam search with ${beams} beams finds the same output as greedy decoding`
      : best.log_prob >= greedy.log_prob ? `Beam search with ${beams} beams finds a more probable output than greedy decoding`
        : `Beam search with ${beams} beams finds another output than greedy decoding`;
    const rows = written.map((each, i) => [
      button(i ? `beam ${i}` : "greedy", () => view.set({ way: i, step: -1 }), { "aria-pressed": String(each === text()) }),
      cell(...marked(each.parts)), likelihood(each), fixed(each.log_prob, 3), ...(penalty ? [fixed(each.score, 3)] : [])]);
    put(searched, make("h2", {}, head),
      make("p", {}, `Select one to see its attention. ${penalty ? `They are ranked by score: log-probability / ((5 + length) / 6)^${penalty} (length penalty).` : "They are ranked by probability."}`),
      bundle ? null : labelled("Beams", choice([...new Set([...BEAMS, beams])].sort((a, b) => a - b).map((n) => [String(n), String(n)]), String(beams), (n) => view.set({ beams: Number(n), way: 0, step: -1 })), "short"),
      grid(["decoding", "output", "probability", "log-probability", ...(penalty ? ["score"] : [])], rows, { caption: "greedy, then beam search, best first" }));
  }

  return {
    update: (changed) => (changed.some((name) => ["source", "beams", "other"].includes(name)) ? load() : found && draw()),
    key(event) {
      const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
      const region = event.target.closest?.(".scroll");
      if (!by || !found || (region && region.scrollWidth > region.clientWidth)) return false;
      const to = at() + by;
      if (to >= 0 && to < text().units.length) view.set({ step: to });
      return true;
    },
  };
}

// The sources that a saved page has answers for, with these parameters.
function savedSources(asked) {
  const same = ([name, value]) => name === "source" || String(asked[name] ?? "") === value;
  const kept = [...answers.keys()].filter((each) => each.startsWith("align?")).map((each) => [...new URLSearchParams(each.slice(6))]);
  return kept.filter((each) => each.length === Object.keys(asked).length && each.every(same)).map((each) => new Map(each).get("source"));
}
