// Evidence for the name of a cell, shown under the claim.

import { evidence, fixed, make, signed } from "./dom.js";
import { strength } from "./words.js";

export function proofOf(view, cell) {
  const rows = [["this cell", Math.abs(cell.r), "plus"], ["best cell of the untrained network", cell.untrained, "grey"], ["n-gram baseline", cell.ngram, "grey"],
    ["chance", cell.chance, "grey"], ["linear probe on all cells (upper bound)", cell.probe, "minus"]];
  const bars = make("table", { class: "barchart small" }, make("caption", {}, `Correlation with the truth (1 is perfect), over ${cell.symbols.toLocaleString("en")} ${view.symbols}`),
    make("tbody", {}, ...rows.filter(([, value]) => value !== null).map(([name, value, kind]) => {
      const bar = make("span", { class: `bar ${kind}` });
      bar.style.width = `${100 * Math.min(1, value)}%`;
      return make("tr", {}, make("th", { scope: "row" }, name), make("td", { class: "bars" }, bar), make("td", {}, fixed(value)));
    })));
  const exact = [`r ${signed(cell.r)}`, cell.auc === null ? "" : `AUC ${fixed(cell.auc, 3)}`, cell.f1 === null ? "" : `F1 ${fixed(cell.f1, 3)}`].filter(Boolean).join(", ");
  const broken = cell.broken.map((each) => make("li", {}, `${each.what}: ${signed(each.bits, 3)} bits per ${view.symbol}; rank ${each.rank} of ${each.of} cells`));
  return evidence(`Evidence: ${strength(cell.r, cell.symbols)} correlation with the truth (${exact})`,
    bars, broken.length ? make("div", {}, make("p", {}, "Increase of the loss without this cell:"), make("ul", {}, ...broken)) : null,
    make("p", { class: "verdict" }, `Verdict: ${cell.verdict}.`),
    make("p", { class: "verdict" }, "Command: ", make("code", {}, cell.command)));
}
