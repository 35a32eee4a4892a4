// Find: the best cell of each feature, with controls.

import { ask, bundle, cachedAnswers, getResult, isComputedHere, jobKey, parseUnit, runJob, storeResult } from "./data.js";
import { button, checkbox, dropdown, evidence, field, formatFixed, formatSigned, grid, heading, make, notify, put, runner, unitButton } from "./dom.js";
import { paint } from "./colour.js";
import { saveButtons } from "./picture.js";
import { ColouredText, snippet } from "./text.js";
import { correlationStrength, describeClassPosition, isLittleEvidence } from "./words.js";

const MEASURES = [["r", "r: Pearson correlation"], ["rho", "rho: rank correlation"], ["auc", "AUC (binary features)"], ["f1", "F1 on held-out text (binary features)"],
  ["partial", "partial r: other features held constant"]];

export function showFind(root, view) {
  const { about, state } = view;
  const results = make("div", { class: "results" });
  const top = make("div", {}, heading("Which cells correspond to features?", "Each card shows the best cell for one feature. It counts if its orange bar exceeds the grey ones."));
  const form = make("div", {});
  let searchRunner = null;
  put(root, top, results, form);
  load().catch((error) => notify(error.message));

  async function load() {
    const { usual: defaultFeatures } = await ask("features", { model: state.model, text: state.text });
    if (bundle) put(form, make("p", {}, "Results at the time of the export."));
    else put(form, createForm(defaultFeatures));
    const savedSearch = await getResult("find", state);
    if (savedSearch && (bundle || isComputedHere("find", state) || (!state.features && !state.patterns))) draw(savedSearch);
    else if (searchRunner) searchRunner.run();
  }

  function createForm(defaultFeatures) {
    const selected = new Set((state.features || defaultFeatures.join(",")).split(",").filter(Boolean));
    const boxes = about.features.map(({ name, about: description, words }) => {
      const box = checkbox(words, selected.has(name), (on) => {
        on ? selected.add(name) : selected.delete(name);
        view.saveState({ features: [...selected].join(",") });
      });
      box.title = `${name}: ${description}`;
      return box;
    });
    const patterns = make("textarea", { rows: "2", spellcheck: "false", placeholder: "name=pattern, one per line: the=\\bthe\\b",
      onchange: () => view.saveState({ patterns: patterns.value }) });
    patterns.value = state.patterns;
    const columns = make("input", { type: "text", placeholder: "upos=NOUN feats.Number=Plur" });
    const size = dropdown([["10000", `10,000 ${view.symbols}`], ["30000", `30,000 ${view.symbols}`], ["120000", `120,000 ${view.symbols}`]], "10000", () => {});
    let ablate = true;
    const ablateBox = checkbox("ablate the best cells", true, (on) => (ablate = on));
    const markPanel = make("div", {});
    const marks = [];
    searchRunner = runner("Score every cell", async (onProgress, signal) => {
      const parsedPatterns = patterns.value.split("\n").filter((line) => line.trim()).map((line) => {
        const separator = line.indexOf("=");
        return separator > 0 ? { name: line.slice(0, separator), pattern: line.slice(separator + 1) } : { pattern: line };
      });
      const search = await runJob({ what: "find", model: state.model, text: state.text, features: [...selected], patterns: parsedPatterns,
        marks, columns: columns.value.split(/\s+/).filter(Boolean), ablate: ablate ? "zero" : null,
        symbols: Number(size.value) }, onProgress, signal);
      storeResult("find", state, search);
      draw(search);
    });
    return make("section", { class: "panel controls" }, make("h3", {}, "Search settings"),
      make("fieldset", { class: "ticks" }, make("legend", {}, "Features"), ...boxes),
      make("div", { class: "fields" }, field("Regular expressions", patterns),
        about.texts.find((passage) => passage.name === state.text)?.tagged ? field("CoNLL-U columns", columns) : null, field("Text length", size)),
      make("details", { ontoggle: () => openMarking(markPanel, marks) }, make("summary", {}, "Define a feature by marking spans of the text"), markPanel),
      ablateBox, searchRunner);
  }

  // Let the user mark spans of the first page.
  async function openMarking(container, marks) {
    if (container.childNodes.length) return;
    const page = await ask("page", { model: state.model, text: state.text, page: 0 });
    const text = new ColouredText("the text; select spans to mark them");
    text.set(page.symbols, page.gaps);
    const count = make("p", { role: "status" }, "Select spans with the mouse; each selection is marked.");
    text.element.addEventListener("mouseup", () => {
      const range = getSelection().rangeCount ? getSelection().getRangeAt(0) : null;
      if (!range || range.collapsed) return;
      const selectedSpans = text.spans.filter((span) => range.intersectsNode(span));
      if (!selectedSpans.length) return;
      marks.push([selectedSpans[0].i, selectedSpans.at(-1).i + 1, "marked"]);
      selectedSpans.forEach((span) => span.classList.add("marked"));
      getSelection().removeAllRanges();
      count.textContent = `${marks.length} marked; the remaining text counts as negative`;
    });
    const clear = button("Clear", () => { marks.length = 0; text.spans.forEach((span) => span.classList.remove("marked")); });
    put(container, count, text.element, clear);
  }

  function draw(search) {
    const ordered = [...search.found].sort((a, b) => b.exists - a.exists || Math.abs(b.r) - Math.abs(a.r));
    const existing = ordered.filter((candidate) => candidate.exists);
    const skipped = search.skipped.length ? ` Omitted, constant in this text: ${search.skipped.map((name) => view.getFeatureLabel(name)).join("; ")}.` : "";
    const best = existing[0];
    const claim = best ? `${isLittleEvidence(search.symbols) ? `In only ${search.symbols} ${view.symbols}: one` : "One"} cell shows ${correlationStrength(best.r, search.symbols)} correlation with “${view.getFeatureLabel(best.feature)}”` : "No single cell stands for any of these";
    put(top, heading(claim, `The best cell for each feature among ${search.units} units (cell state c and hidden state h), over ${search.symbols.toLocaleString("en")} ${view.symbols}. A cell counts if its orange bar exceeds the grey ones.${skipped}`));
    put(results, make("div", { class: "cards" }, ...ordered.map((candidate) => createCard(candidate, search))),
      evidence("All scores: cells by features", drawMatrix(search)));
  }

  function createCard(candidate, search) {
    const controls = [["this cell", Math.abs(candidate.r)], ["untrained network", candidate.controls.untrained?.r],
      [`n-gram baseline (n = ${search.order})`, candidate.controls.ngram.r], ["chance", candidate.controls.shift], ["linear probe on all cells", candidate.controls.probe.r]];
    const badges = candidate.exists ? [isLittleEvidence(search.symbols) ? "little evidence" : Math.abs(candidate.r) >= 0.8 ? "clear" : Math.abs(candidate.r) >= 0.5 ? "fair" : "weak", Object.keys(candidate.also).length ? null : "selective",
      candidate.causal ? "causal" : null].filter(Boolean) : ["no such cell"];
    const auc = candidate.binary ? `, AUC ${formatFixed(Math.max(candidate.auc, 1 - candidate.auc))}, F1 ${formatFixed(candidate.f1)}` : "";
    const worst = [...candidate.broken].filter((row) => row.class !== "all").sort((a, b) => a.rank - b.rank || b.delta - a.delta)[0];
    const { preview } = candidate;
    const sign = candidate.binary && candidate.r < 0 ? -1 : 1;
    const middle = preview.mean ?? 0;
    const box = make("article", { class: `card ${candidate.exists ? "" : "none"}` });
    put(box, make("h3", {}, view.getFeatureLabel(candidate.feature), " ", ...badges.map((badge) => make("span", { class: "badge" }, badge)), saveButtons(box, `${state.model} ${candidate.feature}`)),
      make("p", {}, candidate.exists ? "" : "Best candidate: ", unitButton(view, candidate.unit), ...describeNamedCell(candidate, search)),
      snippet(preview.symbols, preview.values.map((v) => sign * (v - middle)), preview.scale, preview.gaps, preview.truth),
      make("table", { class: "barchart small" }, make("caption", {}, "correlation with the truth, and controls"), make("tbody", {}, ...controls.filter(([, v]) => v !== undefined && v !== null).map(([name, v], i) => {
        const bar = make("span", { class: `bar ${i === 0 ? "plus" : i === 4 ? "minus" : "grey"}` });
        bar.style.width = `${100 * Math.min(1, v)}%`;
        return make("tr", {}, make("th", { scope: "row" }, name), make("td", { class: "bars" }, bar), make("td", {}, formatFixed(v)));
      }))),
      evidence("Evidence", make("p", {}, `r ${formatSigned(candidate.r)}${auc}, partial r ${formatSigned(candidate.partial)} (with the other features and the current ${view.symbol} held constant).`),
        make("p", { class: "verdict" }, candidate.verdict),
        worst ? make("p", {}, `Ablation increases the loss by ${formatSigned(worst.delta, 3)} bits ${describeClassPosition(view, worst.class)}: rank ${worst.rank} of ${worst.of} cells.`) : null));
    return box;
  }

  // Describe a cell named for the feature if it is not the best one in this text.
  function describeNamedCell(candidate, search) {
    const cell = about.named.find((namedCell) => namedCell.feature === candidate.feature);
    if (!cell || cell.unit === candidate.unit) return [];
    const row = search.rows.indexOf(cell.unit);
    const r = row < 0 ? null : search.scores.r[row][search.features.indexOf(candidate.feature)];
    return [" In this text it is slightly better than ", unitButton(view, cell.unit), r === null ? "." : ` (${formatFixed(Math.abs(r))}).`];
  }

  function drawMatrix(search, box = make("section", {})) {
    const sort = Math.max(0, search.features.indexOf(state.sort));
    const scores = search.scores[state.measure] ?? search.scores.r;
    const magnitude = (value) => (value === null ? -1 : state.measure === "auc" ? Math.abs(value - 0.5) : Math.abs(value));
    const order = search.rows.map((_, i) => i).sort((a, b) => magnitude(scores[b][sort]) - magnitude(scores[a][sort])).slice(0, 40);
    const rows = order.map((i) => [unitButton(view, search.rows[i]),
      ...scores[i].map((value) => {
        const cell = make("td", {}, formatFixed(value));
        if (value !== null) paint(cell, state.measure === "auc" ? value - 0.5 : value, state.measure === "auc" ? 0.5 : 1);
        return cell;
      })]);
    const redraw = (changes) => { view.saveState(changes); drawMatrix(search, box); };
    put(box, make("h3", {}, "Cells and features ", saveButtons(box, `${state.model} cells and features`)), field("Score", dropdown(MEASURES, state.measure, (measure) => redraw({ measure }))),
      grid(["cell", ...search.features.map((name) => view.getFeatureLabel(name))], rows, { caption: "the 40 best cells of the selected column; select a column head to sort",
        sort: sort + 1, onSort: (i) => redraw({ sort: search.features[i - 1] }) }));
    return box;
  }

  return { close: () => searchRunner?.stop(), update: (changedNames) => (changedNames.some((name) => ["text", "model"].includes(name)) ? (searchRunner?.stop(), showFind(root, view)) : null) };
}

export function getUnitCandidates(state) {
  const search = cachedAnswers.get(jobKey("find", state));
  if (!search) return [];
  const selectedUnit = parseUnit(state.unit);
  return search.found.filter((candidate) => {
    const unit = parseUnit(candidate.unit);
    return unit.layer === selectedUnit.layer && unit.number === selectedUnit.number && unit.backward === selectedUnit.backward;
  }).map((candidate) => ({ ...candidate, symbols: search.symbols }));
}
