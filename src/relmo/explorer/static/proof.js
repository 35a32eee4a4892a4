// Evidence for the name of a cell, shown under the claim.

import { evidence, formatFixed, formatSigned, make } from "./dom.js";
import { correlationStrength } from "./words.js";

export function createProof(view, cell) {
  const rows = [["this cell", Math.abs(cell.r), "plus"], ["best cell of the untrained network", cell.untrained, "grey"], ["n-gram baseline", cell.ngram, "grey"],
    ["chance", cell.chance, "grey"], ["linear probe on all cells (upper bound)", cell.probe, "minus"]];
  const bars = make("table", { class: "barchart small" }, make("caption", {}, `Correlation with the truth (1 is perfect), over ${cell.symbols.toLocaleString("en")} ${view.symbols}`),
    make("tbody", {}, ...rows.filter(([, value]) => value !== null).map(([name, value, kind]) => {
      const bar = make("span", { class: `bar ${kind}` });
      bar.style.width = `${100 * Math.min(1, value)}%`;
      return make("tr", {}, make("th", { scope: "row" }, name), make("td", { class: "bars" }, bar), make("td", {}, formatFixed(value)));
    })));
  const scores = [`r ${formatSigned(cell.r)}`, cell.auc === null ? "" : `AUC ${formatFixed(cell.auc, 3)}`, cell.f1 === null ? "" : `F1 ${formatFixed(cell.f1, 3)}`].filter(Boolean).join(", ");
  const losses = cell.broken.map((ablation) => make("li", {}, `${ablation.what}: ${formatSigned(ablation.bits, 3)} bits per ${view.symbol}; rank ${ablation.rank} of ${ablation.of} cells`));
  return evidence(`Evidence: ${correlationStrength(cell.r, cell.symbols)} correlation with the truth (${scores})`,
    bars, losses.length ? make("div", {}, make("p", {}, "Increase of the loss without this cell:"), make("ul", {}, ...losses)) : null,
    make("p", { class: "verdict" }, `Verdict: ${cell.verdict}.`),
    make("p", { class: "verdict" }, "Command: ", make("code", {}, cell.command)));
}
