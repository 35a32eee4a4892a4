// Align: what a model makes of a text, and what it looks at while it writes, a step at a time; beside it another model.

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
  const stepper = make("div", { class: "stepper", role: "group", "aria-label": "steps of the decoder" });
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
    return make("div", { class: "asking" }, labelled("Your own text", source), button("Write", go, { class: "go" }), labelled("or an example", list));
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

  // The text that is looked at: the greedy one, or one that the beam search has found.
  function text() {
    const { written } = found.models[0];
    return written[Math.min(Math.max(0, state.way), written.length - 1)];
  }

  // The step that is looked at. Where none was chosen, one that shows something: a word that looked at one place, best at
  // one that is written otherwise.
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
    if (!shown.units.length) return put(lead, "It wrote nothing.");
    const of = { source: model.source.map((unit) => labelOf(unit, subwords[0])), target: shown.units.map((unit) => labelOf(unit, subwords[1])), weights: shown.attention, step, name: model.name,
      reached: state.step < 0 ? shown.units.length : step };
    const turn = (t) => view.set({ step: t });
    tell(model, of);
    steps(of);
    const room = picture.clientWidth;
    const [narrow, wide] = room < 640 ? [room, room] : room < 1000 ? [room * 0.4, room * 0.56] : [room * 0.27, room * 0.4];
    put(sides, make("figcaption", {}, "The two texts", " ", saving(sides, "both texts")), bothSides(of, narrow - 10, turn));
    map.hidden = !shown.attention;
    if (shown.attention) put(map, make("figcaption", {}, "Attention, in percent", " ", saving(map, "attention")), heatMap(of, wide - 10, turn));
    picture.classList.toggle("long", of.source.length > 24);
    for (const each of picture.querySelectorAll(".scroll")) each.centre();
    put(likely, next(shown.steps[step], `What it expects at step ${step + 1}`));
    beside(model, shown, step);
    search(model);
  }

  // What is to be seen, in a sentence.
  function tell(model, { source, target, weights, step }) {
    const writing = text().units[step] === null ? "Before it stopped" : `To write “${target[step]}”`;
    const order = weights ? weights[step].map((weight, j) => [weight, j]).sort((a, b) => b[0] - a[0]) : [];
    const seen = ([weight, j]) => `“${source[j]}” (${percent(weight)})`;
    put(claim, !weights ? `${writing}, it had one vector of ${model.vector} numbers to go by`
      : order[0][0] >= MOSTLY || order.length < 2 ? `${writing}, it looked mostly at ${seen(order[0])}`
        : `${writing}, it looked at several places: ${seen(order[0])}, ${seen(order[1])}`);
    const unknown = model.unknown.map((j) => `“${model.source[j]}”`).join(", ");
    put(lead, weights ? `Each ${one} it writes is joined to what it looked at; the map has the same for all of them. Step with ← and →, or press a ${one}.`
      : `Without attention, nothing joins a ${one} to its source. Step with ← and → to see what it expects.`,
    unknown ? make("b", {}, ` It has never seen ${unknown}.`) : null,
    text().ended ? null : make("b", {}, " It did not come to an end; the rest is cut off."));
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

  // A distribution as bars, from nothing to certain.
  function next(distribution, label) {
    const rows = distribution.map(([unit, p, taken]) => [`${labelOf(unit, subwords[1])}${taken ? " ✓" : ""}`, 100 * p]);
    return bars(rows, { label: `${label}, in percent (✓ is what it wrote)`, digits: 1, limit: 100 });
  }

  // What was written, as it was written: marked where it is otherwise, with a sign where something is left out.
  function marked(parts) {
    const join = about.units[1] === "char" ? "" : " ";
    const shown = [];
    parts.forEach(([kind, part], i) => {
      const replaced = kind === "missing" && parts[i - 1]?.[0] === "other";
      if (replaced) return;
      if (shown.length && kind !== "missing") shown.push(join);
      if (kind === "same") shown.push(part);
      else if (kind === "other") shown.push(make("mark", parts[i + 1]?.[0] === "missing" ? { title: `in the place of ${parts[i + 1][1]}` } : {}, part));
      else shown.push(make("span", { class: "gap", title: `left out: ${part}` }, "‸"));
    });
    return shown;
  }

  function beside(mine, shown, step) {
    const other = found.models[1];
    const rows = found.reference === null ? [] : [["as it should be", cell(found.reference), ""]];
    rows.push([`${mine.name}, ${between(mine)}`, cell(...marked(shown.parts)), likelihood(shown)]);
    const legend = make("p", { class: "verdict" }, make("mark", {}, "marked"), ": otherwise than ",
      found.reference === null ? `what ${mine.name} writes greedily` : "it should be", "; ", make("span", { class: "gap" }, "‸"), ": something is left out.");
    if (!other) {
      const hint = bundle ? null : make("p", { class: "verdict" }, `Start the explorer with --beside MODEL to see here what another model makes of it, such as one ${mine.attention ? "without" : "with"} attention.`);
      if (found.reference === null) put(others, make("h2", {}, "Another model can stand beside it"), hint);
      else put(others, make("h2", {}, agrees(shown)), grid(["model", "text", "probability"], rows, { caption: "what was written" }), legend, hint);
      others.hidden = bundle && found.reference === null;
      return;
    }
    const its = other.written[Math.min(state.way, 1)];
    rows.push([`${other.name}, ${between(other)}`, cell(...marked(its.parts)), likelihood(its)]);
    const say = other.attention ? "It has attention too." : `All it knows of the source is one vector of ${other.vector} numbers, made before the first ${one} is written.`;
    const names = about.beside.map((name) => [name, name]);
    put(others, make("h2", {}, verdict(mine, shown, other, its)), make("p", {}, `Beside it stands ${other.name}. `, say),
      bundle || names.length < 2 ? null : labelled("Beside", choice(names, other.name, (name) => view.set({ other: name }))),
      make("div", { class: "halves" }, make("div", {}, grid(["model", "text", "probability"], rows, { caption: "what each wrote" }), legend, itsSides(other, its, step)),
        step < its.steps.length ? next(its.steps[step], `What ${other.name} expects at its step ${step + 1}`)
          : make("p", {}, `${other.name} has ended before step ${step + 1}.`)));
  }

  // The other model's two texts, and what is between them.
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
    return shown.right ? "It wrote what it should" : "It did not write quite what it should";
  }

  function verdict(mine, shown, other, its) {
    const way = other.attention ? other.name : "Through one vector";
    if (its.text === shown.text) return `${way} it comes out the same${shown.right ? ", and right" : ""}`;
    if (found.reference === null) return `${way} it comes out otherwise`;
    if (shown.right) return `${way} it comes out wrong; with attention it is right`.replace("with attention", mine.attention ? "with attention" : `from ${mine.name}`);
    return its.right ? `${way} it comes out right, this time` : `${way} it comes out otherwise; neither is quite as it should be`;
  }

  function cell(...children) {
    return make("td", { class: "written", lang: "" }, ...children);
  }

  function between(model) {
    return model.attention ? "with attention" : "through one vector";
  }

  function likelihood({ log_prob }) {
    const share = 100 * Math.exp(log_prob);
    return share >= 0.05 ? `${fixed(share, 1)} %` : "under 0.1 %";
  }

  function search(model) {
    const { written, beams, penalty } = model;
    const [greedy, best] = written;
    const head = best.text === greedy.text ? `Keeping ${beams} texts open finds the same as taking the likeliest ${one} each time`
      : best.log_prob >= greedy.log_prob ? `Keeping ${beams} texts open finds a likelier text than taking the likeliest ${one} each time`
        : `Keeping ${beams} texts open finds another text than taking the likeliest ${one} each time`;
    const rows = written.map((each, i) => [
      button(i ? `beam ${i}` : "greedy", () => view.set({ way: i, step: -1 }), { "aria-pressed": String(each === text()) }),
      cell(...marked(each.parts)), likelihood(each), fixed(each.log_prob, 3), ...(penalty ? [fixed(each.score, 3)] : [])]);
    put(searched, make("h2", {}, head),
      make("p", {}, `Press one to see its map. ${penalty ? `They are ranked by score: the logarithm over ((5 + length) / 6)^${penalty}, so that long texts have a chance.` : "They are ranked by their probability."}`),
      bundle ? null : labelled("Texts kept open", choice([...new Set([...BEAMS, beams])].sort((a, b) => a - b).map((n) => [String(n), String(n)]), String(beams), (n) => view.set({ beams: Number(n), way: 0, step: -1 })), "short"),
      grid(["way", "text", "probability", "its logarithm", ...(penalty ? ["score"] : [])], rows, { caption: "greedy, then the beam's, best first" }));
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

// The sources that a saved page has answers for, asked in this way.
function savedSources(asked) {
  const same = ([name, value]) => name === "source" || String(asked[name] ?? "") === value;
  const kept = [...answers.keys()].filter((each) => each.startsWith("align?")).map((each) => [...new URLSearchParams(each.slice(6))]);
  return kept.filter((each) => each.length === Object.keys(asked).length && each.every(same)).map((each) => new Map(each).get("source"));
}
