// Find: the best cell of each feature, with controls.

import { answers, ask, bundle, isMade, jobKey, keep, parseUnit, ready, work } from "./data.js";
import { button, choice, evidence, fixed, grid, heading, labelled, make, put, runner, say, signed, tick, unitButton } from "./dom.js";
import { paint } from "./colour.js";
import { saving } from "./picture.js";
import { snippet, ColouredText } from "./text.js";
import { atClass, isLittleEvidence, strength } from "./words.js";

const MEASURES = [["r", "r: Pearson correlation"], ["rho", "rho: rank correlation"], ["auc", "AUC (binary features)"], ["f1", "F1 on held-out text (binary features)"],
  ["partial", "partial r: other features held constant"]];

export function showFind(root, view) {
  const { about, state } = view;
  const results = make("div", { class: "results" });
  const top = make("div", {}, heading("Which cells correspond to features?", "Each card shows the best cell for one feature. It counts if its orange bar exceeds the grey ones."));
  const form = make("div", {});
  let go = null;
  put(root, top, results, form);
  begin().catch((error) => say(error.message));

  async function begin() {
    const { usual } = await ask("features", { model: state.model, text: state.text });
    if (bundle) put(form, make("p", {}, "Results at the time of the export."));
    else put(form, makeForm(usual));
    const before = await ready("find", state);
    if (before && (bundle || isMade("find", state) || (!state.features && !state.patterns))) draw(before);
    else if (go) go.run();
  }

  function makeForm(usual) {
    const chosen = new Set((state.features || usual.join(",")).split(",").filter(Boolean));
    const boxes = about.features.map(({ name, about: says, words }) => {
      const box = tick(words, chosen.has(name), (on) => {
        on ? chosen.add(name) : chosen.delete(name);
        view.note({ features: [...chosen].join(",") });
      });
      box.title = `${name}: ${says}`;
      return box;
    });
    const patterns = make("textarea", { rows: "2", spellcheck: "false", placeholder: "name=pattern, one per line: the=\\bthe\\b",
      onchange: () => view.note({ patterns: patterns.value }) });
    patterns.value = state.patterns;
    const columns = make("input", { type: "text", placeholder: "upos=NOUN feats.Number=Plur" });
    const size = choice([["10000", `10,000 ${view.symbols}`], ["30000", `30,000 ${view.symbols}`], ["120000", `120,000 ${view.symbols}`]], "10000", () => {});
    let ablate = true;
    const causal = tick("ablate the best cells", true, (on) => (ablate = on));
    const marking = make("div", {});
    const marks = [];
    go = runner("Score every cell", async (tell, signal) => {
      const given = patterns.value.split("\n").filter((line) => line.trim()).map((line) => {
        const cut = line.indexOf("=");
        return cut > 0 ? { name: line.slice(0, cut), pattern: line.slice(cut + 1) } : { pattern: line };
      });
      const result = await work({ what: "find", model: state.model, text: state.text, features: [...chosen], patterns: given,
        marks, columns: columns.value.split(/\s+/).filter(Boolean), ablate: ablate ? "zero" : null,
        symbols: Number(size.value) }, tell, signal);
      keep("find", state, result);
      draw(result);
    });
    return make("section", { class: "panel controls" }, make("h3", {}, "Search settings"),
      make("fieldset", { class: "ticks" }, make("legend", {}, "Features"), ...boxes),
      make("div", { class: "fields" }, labelled("Regular expressions", patterns),
        about.texts.find((each) => each.name === state.text)?.tagged ? labelled("CoNLL-U columns", columns) : null, labelled("Text length", size)),
      make("details", { ontoggle: () => mark(marking, marks) }, make("summary", {}, "Define a feature by marking spans of the text"), marking),
      causal, go);
  }

  // Spans of the first page that the user selects.
  async function mark(place, marks) {
    if (place.childNodes.length) return;
    const page = await ask("page", { model: state.model, text: state.text, page: 0 });
    const text = new ColouredText("the text; select spans to mark them");
    text.set(page.symbols, page.gaps);
    const count = make("p", { role: "status" }, "Select spans with the mouse; each selection is marked.");
    text.element.addEventListener("mouseup", () => {
      const range = getSelection().rangeCount ? getSelection().getRangeAt(0) : null;
      if (!range || range.collapsed) return;
      const inside = text.spans.filter((span) => range.intersectsNode(span));
      if (!inside.length) return;
      marks.push([inside[0].i, inside.at(-1).i + 1, "marked"]);
      inside.forEach((span) => span.classList.add("marked"));
      getSelection().removeAllRanges();
      count.textContent = `${marks.length} marked; the remaining text counts as negative`;
    });
    const clear = button("Clear", () => { marks.length = 0; text.spans.forEach((span) => span.classList.remove("marked")); });
    put(place, count, text.element, clear);
  }

  function draw(found) {
    const ordered = [...found.found].sort((a, b) => b.exists - a.exists || Math.abs(b.r) - Math.abs(a.r));
    const there = ordered.filter((each) => each.exists);
    const skipped = found.skipped.length ? ` Omitted, constant in this text: ${found.skipped.map((name) => view.feature(name)).join("; ")}.` : "";
    const best = there[0];
    const claim = best ? `${isLittleEvidence(found.symbols) ? `In only ${found.symbols} ${view.symbols}: one` : "One"} cell shows ${strength(best.r, found.symbols)} correlation with “${view.feature(best.feature)}”` : "No single cell stands for any of these";
    put(top, heading(claim, `The best cell for each feature among ${found.units} units (cell state c and hidden state h), over ${found.symbols.toLocaleString("en")} ${view.symbols}. A cell counts if its orange bar exceeds the grey ones.${skipped}`));
    put(results, make("div", { class: "cards" }, ...ordered.map((each) => card(each, found))),
      evidence("All scores: cells by features", matrix(found)));
  }

  function card(each, found) {
    const controls = [["this cell", Math.abs(each.r)], ["untrained network", each.controls.untrained?.r],
      [`n-gram baseline (n = ${found.order})`, each.controls.ngram.r], ["chance", each.controls.shift], ["linear probe on all cells", each.controls.probe.r]];
    const badges = each.exists ? [isLittleEvidence(found.symbols) ? "little evidence" : Math.abs(each.r) >= 0.8 ? "clear" : Math.abs(each.r) >= 0.5 ? "fair" : "weak", Object.keys(each.also).length ? null : "selective",
      each.causal ? "causal" : null].filter(Boolean) : ["no such cell"];
    const auc = each.binary ? `, AUC ${fixed(Math.max(each.auc, 1 - each.auc))}, F1 ${fixed(each.f1)}` : "";
    const worst = [...each.broken].filter((row) => row.class !== "all").sort((a, b) => a.rank - b.rank || b.delta - a.delta)[0];
    const { preview } = each;
    const turned = each.binary && each.r < 0 ? -1 : 1;
    const middle = preview.mean ?? 0;
    const box = make("article", { class: `card ${each.exists ? "" : "none"}` });
    put(box, make("h3", {}, view.feature(each.feature), " ", ...badges.map((badge) => make("span", { class: "badge" }, badge)), saving(box, `${state.model} ${each.feature}`)),
      make("p", {}, each.exists ? "" : "Best candidate: ", unitButton(view, each.unit), ...describeNamed(each, found)),
      snippet(preview.symbols, preview.values.map((v) => turned * (v - middle)), preview.scale, preview.gaps, preview.truth),
      make("table", { class: "barchart small" }, make("caption", {}, "correlation with the truth, and controls"), make("tbody", {}, ...controls.filter(([, v]) => v !== undefined && v !== null).map(([name, v], i) => {
        const bar = make("span", { class: `bar ${i === 0 ? "plus" : i === 4 ? "minus" : "grey"}` });
        bar.style.width = `${100 * Math.min(1, v)}%`;
        return make("tr", {}, make("th", { scope: "row" }, name), make("td", { class: "bars" }, bar), make("td", {}, fixed(v)));
      }))),
      evidence("Evidence", make("p", {}, `r ${signed(each.r)}${auc}, partial r ${signed(each.partial)} (with the other features and the current ${view.symbol} held constant).`),
        make("p", { class: "verdict" }, each.verdict),
        worst ? make("p", {}, `Ablation increases the loss by ${signed(worst.delta, 3)} bits ${atClass(view, worst.class)}: rank ${worst.rank} of ${worst.of} cells.`) : null));
    return box;
  }

  // A cell named for the feature that is not the best one in this text.
  function describeNamed(each, found) {
    const cell = about.named.find((one) => one.feature === each.feature);
    if (!cell || cell.unit === each.unit) return [];
    const row = found.rows.indexOf(cell.unit);
    const r = row < 0 ? null : found.scores.r[row][found.features.indexOf(each.feature)];
    return [" In this text it is slightly better than ", unitButton(view, cell.unit), r === null ? "." : ` (${fixed(Math.abs(r))}).`];
  }

  function matrix(found, box = make("section", {})) {
    const sort = Math.max(0, found.features.indexOf(state.sort));
    const scores = found.scores[state.measure] ?? found.scores.r;
    const size = (value) => (value === null ? -1 : state.measure === "auc" ? Math.abs(value - 0.5) : Math.abs(value));
    const order = found.rows.map((_, i) => i).sort((a, b) => size(scores[b][sort]) - size(scores[a][sort])).slice(0, 40);
    const rows = order.map((i) => [unitButton(view, found.rows[i]),
      ...scores[i].map((value) => {
        const cell = make("td", {}, fixed(value));
        if (value !== null) paint(cell, state.measure === "auc" ? value - 0.5 : value, state.measure === "auc" ? 0.5 : 1);
        return cell;
      })]);
    const again = (more) => { view.note(more); matrix(found, box); };
    put(box, make("h3", {}, "Cells and features ", saving(box, `${state.model} cells and features`)), labelled("Score", choice(MEASURES, state.measure, (measure) => again({ measure }))),
      grid(["cell", ...found.features.map((name) => view.feature(name))], rows, { caption: "the 40 best cells of the selected column; select a column head to sort",
        sort: sort + 1, pressed: (i) => again({ sort: found.features[i - 1] }) }));
    return box;
  }

  return { close: () => go?.stop(), update: (changed) => (changed.some((name) => ["text", "model"].includes(name)) ? (go?.stop(), showFind(root, view)) : null) };
}

export function foundFor(state) {
  const found = answers.get(jobKey("find", state));
  if (!found) return [];
  const own = parseUnit(state.unit);
  return found.found.filter((each) => {
    const unit = parseUnit(each.unit);
    return unit.layer === own.layer && unit.number === own.number && unit.backward === own.backward;
  }).map((each) => ({ ...each, symbols: found.symbols }));
}
