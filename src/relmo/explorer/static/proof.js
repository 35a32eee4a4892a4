// What stands behind a named cell's name, folded open under the claim.

import { evidence, fixed, make, signed } from "./dom.js";
import { strength } from "./words.js";

export function proofOf(view, cell) {
  const rows = [["this cell", Math.abs(cell.r), "plus"], ["the best cell of the same network, untrained", cell.untrained, "grey"], ["guessing from the last few characters", cell.ngram, "grey"],
    ["chance", cell.chance, "grey"], ["all cells together (the upper bound)", cell.probe, "minus"]];
  const bars = make("table", { class: "barchart small" }, make("caption", {}, `How well each goes with the truth (1 is perfect), over ${cell.symbols.toLocaleString("en")} ${view.symbols}`),
    make("tbody", {}, ...rows.filter(([, value]) => value !== null).map(([name, value, kind]) => {
      const bar = make("span", { class: `bar ${kind}` });
      bar.style.width = `${100 * Math.min(1, value)}%`;
      return make("tr", {}, make("th", { scope: "row" }, name), make("td", { class: "bars" }, bar), make("td", {}, fixed(value)));
    })));
  const exact = [`r ${signed(cell.r)}`, cell.auc === null ? "" : `AUC ${fixed(cell.auc, 3)}`, cell.f1 === null ? "" : `F1 ${fixed(cell.f1, 3)}`].filter(Boolean).join(", ");
  const broken = cell.broken.map((each) => make("li", {}, `${each.what}: ${signed(each.bits, 3)} bits a ${view.symbol}; rank ${each.rank} of ${each.of} cells`));
  return evidence(`How sure is that? It goes with the truth ${strength(cell.r, cell.symbols)} (${exact})`,
    bars, broken.length ? make("div", {}, make("p", {}, "Without this cell the network guesses worse:"), make("ul", {}, ...broken)) : null,
    make("p", { class: "verdict" }, `Verdict of the analysis: ${cell.verdict}.`),
    make("p", { class: "verdict" }, "Measured by ", make("code", {}, cell.command)));
}
