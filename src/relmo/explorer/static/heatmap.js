// Attention as a map with one row per output unit and one column per source unit, and as lines between source and output.

import { make, makePressable, svg } from "./dom.js";

const LETTER_WIDTH = 7.6; // approximate, in pixels
const MAX_LABEL_LENGTH = 13;
const MIN_DARK_TEXT_WEIGHT = 0.62; // above this weight, black text is most readable in both themes
const MAX_SPACED_ROWS = 24; // more rows are drawn closer together
const MIN_SHOWN_WEIGHT = 0.1; // smaller weights have no line and no number

export function formatUnit(unit, subwords) {
  if (unit === null) return "(end)";
  if (unit === "<unk>") return "(unknown)";
  if (unit === " ") return "␣";
  if (!subwords) return unit;
  return unit.startsWith("▁") ? unit.slice(1) || "␣" : `-${unit}`;
}

export function formatPercent(weight) {
  return `${Math.round(100 * weight)} %`;
}

function truncate(label) {
  return label.length > MAX_LABEL_LENGTH ? `${label.slice(0, MAX_LABEL_LENGTH - 1)}…` : label;
}

function labelWidth(labels) {
  return Math.max(...labels.map((label) => label.length)) * LETTER_WIDTH;
}

// Scrollable drawing; `centre` scrolls to the selected step.
function scrollable(chart, label, [x, y]) {
  const frame = make("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": label }, chart);
  frame.centre = () => frame.scrollTo(x - frame.clientWidth / 2, y - frame.clientHeight / 2);
  return frame;
}

// Arguments: source and target labels, weights by row, the selected step and the last completed one; `onSelect` receives a row.
export function heatMap({ source, target, weights, step, reached }, availableWidth, onSelect) {
  const [columns, rows] = [source.map(truncate), target.map(truncate)];
  const single = columns.every((label) => label.length === 1);
  const left = labelWidth(rows) + 14;
  const top = single ? 26 : labelWidth(columns) * 0.82 + 16;
  const right = single ? 4 : labelWidth(columns.slice(-1)) * 0.58 + 4;
  const size = Math.max(19, Math.min(48, Math.floor((availableWidth - left - right) / columns.length)));
  const rowHeight = Math.min(size, 34);
  const [width, height] = [left + size * columns.length + right, top + rowHeight * rows.length + 4];
  const chart = svg("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "img", class: "chart heat",
    "aria-label": "attention map: one row per output unit, one column per source unit" });
  const best = weights[step].indexOf(Math.max(...weights[step]));
  columns.forEach((label, j) => {
    const [x, y] = [left + size * (j + 0.5), top - 7];
    const position = single ? { x, y, "text-anchor": "middle" } : { transform: `translate(${x - 2} ${y}) rotate(-55)` };
    chart.append(svg("text", { ...position, class: j === best ? "at" : "" }, label));
  });
  rows.forEach((label, t) => {
    const y = top + rowHeight * t;
    const row = svg("g", { class: `maprow${t > reached ? " coming" : ""}`, "data-row": t },
      svg("text", { x: left - 8, y: y + rowHeight / 2 + 4, "text-anchor": "end", class: t === step ? "at" : "" }, label));
    weights[t].forEach((weight, j) => {
      const x = left + size * j;
      const cell = svg("g", {}, svg("rect", { x, y, width: size - 1, height: rowHeight - 1, "fill-opacity": weight, class: "weight" }));
      if (weight >= MIN_SHOWN_WEIGHT && size >= 26) cell.append(svg("text", { x: x + size / 2, y: y + rowHeight / 2 + 4, "text-anchor": "middle", class: weight > MIN_DARK_TEXT_WEIGHT ? "number full" : "number" }, Math.round(100 * weight)));
      cell.append(svg("title", {}, `${target[t]} ← ${source[j]}: ${formatPercent(weight)}`));
      cell.addEventListener("click", () => onSelect(t)); // keyboard users select the words next to the map
      row.append(cell);
    });
    chart.append(row);
  });
  chart.append(svg("rect", { x: left - 1, y: top + rowHeight * step - 1, width: size * columns.length + 1, height: rowHeight + 1, class: "outline" }));
  return scrollable(chart, "attention map", [left + size * (best + 0.5), top + rowHeight * (step + 0.5)]);
}

// Draw the source on the left and the output on the right. Lines of the selected step, and of the element under the pointer, are strong.
// Without weights, all lines go through one vector.
export function drawAlignment({ source, target, weights, step, reached, name }, availableWidth, onSelect) {
  const [sourceLabels, targetLabels] = [source.map(truncate), target.map(truncate)];
  const [left, right] = [sourceLabels, targetLabels].map((labels) => Math.max(52, labelWidth(labels) * 1.1 + 14));
  const width = Math.max(left + right + 70, Math.min(availableWidth, left + right + 220));
  const rows = Math.max(sourceLabels.length, targetLabels.length);
  const rowHeight = rows > MAX_SPACED_ROWS ? 19 : 26;
  const height = rowHeight * rows + 30;
  const rowCentre = (i, numRows) => 24 + rowHeight * (i + 0.5 + (rows - numRows) / 2);
  const chart = svg("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "group", class: "chart sides",
    "aria-label": weights ? "source and output, with lines for attention weights" : "source and output, with one vector between them" },
    svg("text", { x: left - 6, y: 13, "text-anchor": "end", class: "side" }, "read"),
    svg("text", { x: width - right + 6, y: 13, class: "side" }, "written"));
  const threads = [];
  const addLine = (x1, y1, x2, y2, weight) => {
    const line = svg("line", { x1, y1, x2, y2, class: "thread" });
    line.style.strokeWidth = 1 + 8 * weight;
    chart.append(line);
    return line;
  };
  weights?.forEach((row, t) => row.forEach((weight, j) => {
    if (weight >= MIN_SHOWN_WEIGHT) threads.push({ line: addLine(left, rowCentre(j, sourceLabels.length), width - right, rowCentre(t, targetLabels.length), weight), t, j });
  }));
  if (!weights) {
    const [x, y] = [(left + width - right) / 2, 24 + (rowHeight * rows) / 2];
    sourceLabels.forEach((_, j) => addLine(left, rowCentre(j, sourceLabels.length), x, y, 0.15));
    targetLabels.forEach((_, t) => threads.push({ line: addLine(x, y, width - right, rowCentre(t, targetLabels.length), 0.15), t, j: -1 }));
    chart.append(svg("rect", { x: x - 7, y: y - 22, width: 14, height: 44, rx: 3, class: "vector" }), svg("text", { x, y: y - 28, "text-anchor": "middle", class: "side" }, "one vector"));
  }
  const highlight = (isHighlighted) => threads.forEach((thread) => thread.line.classList.toggle("lit", isHighlighted(thread)));
  const highlightStep = () => highlight(({ t }) => t === step);
  const highlightOnHover = (element, isHighlighted) => {
    element.addEventListener("pointerenter", () => highlight(isHighlighted));
    element.addEventListener("pointerleave", highlightStep);
    return element;
  };
  const best = weights ? weights[step].indexOf(Math.max(...weights[step])) : -1;
  sourceLabels.forEach((label, j) => {
    const word = svg("g", { class: "word" }, svg("rect", { x: 0, y: rowCentre(j, sourceLabels.length) - rowHeight / 2, width: left, height: rowHeight, class: j === best ? "box best" : "box" }),
      svg("text", { x: left - 7, y: rowCentre(j, sourceLabels.length) + 5, "text-anchor": "end" }, label), svg("title", {}, source[j]));
    chart.append(highlightOnHover(word, (thread) => thread.j === j));
  });
  targetLabels.forEach((label, t) => {
    const kind = t === step ? "word now" : t > reached ? "word coming" : "word";
    const word = svg("g", { class: kind, "data-row": t }, svg("rect", { x: width - right, y: rowCentre(t, targetLabels.length) - rowHeight / 2 + 1, width: right, height: rowHeight - 2, rx: 4, class: "box" }),
      svg("text", { x: width - right + 7, y: rowCentre(t, targetLabels.length) + 5 }, label));
    chart.append(highlightOnHover(makePressable(word, () => onSelect(t), target[t], `step ${t + 1}: ${target[t]}`), (thread) => thread.t === t));
  });
  highlightStep();
  return scrollable(chart, `source and output of ${name}`, [width / 2, rowCentre(step, targetLabels.length)]);
}
