// Find: every unit against features of the text, beside controls.

import { answers, bundle, parseUnit, shownUnit, work } from "./data.js";
import { button, choice, fixed, grid, labelled, make, put, runner, signed, tick } from "./dom.js";
import { colour } from "./colour.js";
import { saving } from "./picture.js";
import { snippet, ColouredText } from "./text.js";
import { ask } from "./data.js";

const CODE = "indentation,depth,column,string,comment,if";
const PROSE = "quotes,column,to_line_end,word_position,sentence_position,capitalised,number";
const MEASURES = [["r", "r: correlation"], ["rho", "rho: of ranks"], ["auc", "AUC (yes or no)"], ["f1", "F1 on held-out half"],
  ["partial", "partial r: others held constant"]];

export function showFind(root, view) {
  const { about, state } = view;
  const results = make("div", { class: "results" });
  const form = bundle ? make("p", {}, "What was found when this page was saved.") : asking();
  put(root, make("section", { class: "panel" }, make("h2", {}, "Which unit stands for what?"), form), results);
  const before = answers.get(resultKey()) ?? answers.get("job:find");
  if (before) draw(before);

  function resultKey() {
    return `job:find:${state.model}:${state.text}`;
  }

  function asking() {
    const chosen = new Set((state.features || (state.text === "code" ? CODE : PROSE)).split(",").filter(Boolean));
    const boxes = about.features.map(({ name, about: says }) => {
      const box = tick(name.replaceAll("_", " "), chosen.has(name), (on) => {
        on ? chosen.add(name) : chosen.delete(name);
        view.note({ features: [...chosen].join(",") });
      });
      box.title = says;
      return box;
    });
    const patterns = make("textarea", { rows: "2", spellcheck: "false", placeholder: "name=pattern, one a line: the=\\bthe\\b",
      onchange: () => view.note({ patterns: patterns.value }) });
    patterns.value = state.patterns;
    const columns = make("input", { type: "text", placeholder: "upos=NOUN feats.Number=Plur" });
    const size = choice([["10000", "10,000 symbols"], ["30000", "30,000 symbols"], ["120000", "120,000 symbols"]], "10000", () => {});
    let ablate = true;
    const causal = tick("then set the best units to zero and see what breaks", true, (on) => (ablate = on));
    const marking = make("div", {});
    const marks = [];
    const go = runner("Score every unit", async (tell, signal) => {
      const given = patterns.value.split("\n").filter((line) => line.trim()).map((line) => {
        const cut = line.indexOf("=");
        return cut > 0 ? { name: line.slice(0, cut), pattern: line.slice(cut + 1) } : { pattern: line };
      });
      const result = await work({ what: "find", model: state.model, text: state.text, features: [...chosen], patterns: given,
        marks, columns: columns.value.split(/\s+/).filter(Boolean), ablate: ablate ? "zero" : null,
        symbols: Number(size.value) }, tell, signal);
      answers.set(resultKey(), result);
      draw(result);
    });
    return make("div", {}, make("fieldset", { class: "ticks" }, make("legend", {}, "Features"), ...boxes),
      make("div", { class: "fields" }, labelled("Your own, as regular expressions", patterns),
        labelled("CoNLL-U columns, of a .conllu text", columns), labelled("Look at", size)),
      make("details", { ontoggle: () => mark(marking, marks) }, make("summary", {}, "Or show it by example: mark stretches of the text"), marking),
      causal, go);
  }

  // Stretches of the first page that the user selects.
  async function mark(place, marks) {
    if (place.childNodes.length) return;
    const page = await ask("page", { model: state.model, text: state.text, page: 0 });
    const text = new ColouredText("the text; select stretches to mark them");
    text.set(page.symbols, page.gaps);
    const count = make("p", { role: "status" }, "Select with the mouse what you mean; each selection is marked.");
    text.element.addEventListener("mouseup", () => {
      const range = getSelection().rangeCount ? getSelection().getRangeAt(0) : null;
      if (!range || range.collapsed) return;
      const inside = text.spans.filter((span) => range.intersectsNode(span));
      if (!inside.length) return;
      marks.push([inside[0].i, inside.at(-1).i + 1, "marked"]);
      inside.forEach((span) => span.classList.add("marked"));
      getSelection().removeAllRanges();
      count.textContent = `${marks.length} marked; the rest of the page counts as not meant`;
    });
    const clear = button("Clear", () => { marks.length = 0; text.spans.forEach((span) => span.classList.remove("marked")); });
    put(place, count, text.element, clear);
  }

  function open(unit) {
    view.set({ unit, screen: "cell" });
  }

  function draw(found) {
    const cards = found.found.map((each) => card(each, found));
    const skipped = found.skipped.length ? make("p", {}, `Left out, as they never change in this text: ${found.skipped.join(", ")}.`) : null;
    put(results, make("p", {}, `${found.units} units over ${found.symbols.toLocaleString("en")} symbols.`), skipped,
      make("div", { class: "cards" }, ...cards), matrix(found));
  }

  function card(each, found) {
    const controls = [["this unit", Math.abs(each.r)], ["same network untrained", each.controls.untrained?.r],
      [`the last ${found.order} symbols`, each.controls.ngram.r], ["chance", each.controls.shift], ["all units (probe)", each.controls.probe.r]];
    const badges = each.exists ? [Math.abs(each.r) >= 0.5 ? "strong" : "weak", Object.keys(each.also).length ? null : "selective",
      each.causal ? "causal" : null].filter(Boolean) : ["no such cell"];
    const auc = each.binary ? `, AUC ${fixed(Math.max(each.auc, 1 - each.auc))}, F1 ${fixed(each.f1)}` : "";
    const worst = [...each.broken].filter((row) => row.class !== "all").sort((a, b) => a.rank - b.rank || b.delta - a.delta)[0];
    return make("article", { class: `card ${each.exists ? "" : "none"}` },
      make("h3", {}, each.feature.replaceAll("_", " "), " ", ...badges.map((badge) => make("span", { class: "badge" }, badge))),
      make("p", {}, button(shownUnit(each.unit), () => open(each.unit), { class: "unit" }), ` r ${signed(each.r)}${auc}, partial r ${signed(each.partial)}`),
      make("p", { class: "verdict" }, each.verdict),
      make("table", { class: "barchart small" }, make("caption", {}, "|r| beside controls"), make("tbody", {}, ...controls.filter(([, v]) => v !== undefined && v !== null).map(([name, v], i) => {
        const bar = make("span", { class: `bar ${i ? "grey" : "plus"}` });
        bar.style.width = `${100 * v}%`;
        return make("tr", {}, make("th", { scope: "row" }, name), make("td", { class: "bars" }, bar), make("td", {}, fixed(v)));
      }))),
      worst ? make("p", {}, `Set to zero: ${signed(worst.delta, 3)} bits on “${worst.class}”, rank ${worst.rank} of ${worst.of}.`) : null,
      snippet(each.preview.symbols, each.preview.values, each.preview.scale, each.preview.gaps));
  }

  function matrix(found) {
    const box = make("section", { class: "panel" });
    const sort = Math.max(0, found.features.indexOf(state.sort));
    const scores = found.scores[state.measure] ?? found.scores.r;
    const size = (value) => (value === null ? -1 : state.measure === "auc" ? Math.abs(value - 0.5) : Math.abs(value));
    const order = found.rows.map((_, i) => i).sort((a, b) => size(scores[b][sort]) - size(scores[a][sort])).slice(0, 40);
    const rows = order.map((i) => [button(shownUnit(found.rows[i]), () => open(found.rows[i]), { class: "unit" }),
      ...scores[i].map((value) => {
        const cell = make("td", {}, fixed(value));
        if (value !== null) cell.style.backgroundColor = state.measure === "auc" ? colour(value - 0.5, 0.5) : colour(value, 1);
        return cell;
      })]);
    const again = (more) => { view.note(more); box.replaceWith(matrix(found)); };
    box.append(make("h2", {}, "Units and features ", saving(box, `${state.model} units and features`)), labelled("Score", choice(MEASURES, state.measure, (measure) => again({ measure }))),
      grid(["unit", ...found.features.map((name) => name.replaceAll("_", " "))], rows, { caption: "the 40 units that are best at the column chosen; press a head to sort by it",
        sort: sort + 1, pressed: (i) => again({ sort: found.features[i - 1] }) }));
    return box;
  }

  return { update: (changed) => (changed.some((name) => ["text", "model"].includes(name)) ? showFind(root, view) : null) };
}

export function foundFor(state) {
  const found = answers.get(`job:find:${state.model}:${state.text}`) ?? answers.get("job:find");
  if (!found) return [];
  const own = parseUnit(state.unit);
  return found.found.filter((each) => {
    const unit = parseUnit(each.unit);
    return unit.layer === own.layer && unit.number === own.number && unit.backward === own.backward;
  });
}
