// Attention as a map with one row per output unit and one column per source unit, and as lines between source and output.

import { make, pressable, svg } from "./dom.js";

const LETTER = 7.6; // width of a letter, about
const LONGEST_LABEL = 13;
const FULL = 0.62; // above this weight black is read best, in the dark too
const MANY = 24; // rows; more of them stand closer
const SEEN = 0.1; // a weight below this gets no line and no number

export function labelOf(unit, subwords) {
  if (unit === null) return "(end)";
  if (unit === "<unk>") return "(unknown)";
  if (unit === " ") return "␣";
  if (!subwords) return unit;
  return unit.startsWith("▁") ? unit.slice(1) || "␣" : `-${unit}`;
}

export function percent(weight) {
  return `${Math.round(100 * weight)} %`;
}

function cut(label) {
  return label.length > LONGEST_LABEL ? `${label.slice(0, LONGEST_LABEL - 1)}…` : label;
}

function widest(labels) {
  return Math.max(...labels.map((label) => label.length)) * LETTER;
}

// Scrollable drawing; `centre` scrolls to the selected step.
function framed(chart, label, [x, y]) {
  const frame = make("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": label }, chart);
  frame.centre = () => frame.scrollTo(x - frame.clientWidth / 2, y - frame.clientHeight / 2);
  return frame;
}

// Arguments: source and target labels, weights by row, the selected step and the last completed one; `chosen` receives a row.
export function heatMap({ source, target, weights, step, reached }, room, chosen) {
  const [columns, rows] = [source.map(cut), target.map(cut)];
  const single = columns.every((label) => label.length === 1);
  const left = widest(rows) + 14;
  const top = single ? 26 : widest(columns) * 0.82 + 16;
  const right = single ? 4 : widest(columns.slice(-1)) * 0.58 + 4;
  const size = Math.max(19, Math.min(48, Math.floor((room - left - right) / columns.length)));
  const tall = Math.min(size, 34);
  const [width, height] = [left + size * columns.length + right, top + tall * rows.length + 4];
  const chart = svg("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "img", class: "chart heat",
    "aria-label": "attention map: one row per output unit, one column per source unit" });
  const best = weights[step].indexOf(Math.max(...weights[step]));
  columns.forEach((label, j) => {
    const [x, y] = [left + size * (j + 0.5), top - 7];
    const place = single ? { x, y, "text-anchor": "middle" } : { transform: `translate(${x - 2} ${y}) rotate(-55)` };
    chart.append(svg("text", { ...place, class: j === best ? "at" : "" }, label));
  });
  rows.forEach((label, t) => {
    const y = top + tall * t;
    const row = svg("g", { class: `maprow${t > reached ? " coming" : ""}`, "data-row": t },
      svg("text", { x: left - 8, y: y + tall / 2 + 4, "text-anchor": "end", class: t === step ? "at" : "" }, label));
    weights[t].forEach((weight, j) => {
      const x = left + size * j;
      const cell = svg("g", {}, svg("rect", { x, y, width: size - 1, height: tall - 1, "fill-opacity": weight, class: "weight" }));
      if (weight >= SEEN && size >= 26) cell.append(svg("text", { x: x + size / 2, y: y + tall / 2 + 4, "text-anchor": "middle", class: weight > FULL ? "number full" : "number" }, Math.round(100 * weight)));
      cell.append(svg("title", {}, `${target[t]} ← ${source[j]}: ${percent(weight)}`));
      cell.addEventListener("click", () => chosen(t)); // by keyboard, the words beside the map do the same
      row.append(cell);
    });
    chart.append(row);
  });
  chart.append(svg("rect", { x: left - 1, y: top + tall * step - 1, width: size * columns.length + 1, height: tall + 1, class: "outline" }));
  return framed(chart, "attention map", [left + size * (best + 0.5), top + tall * (step + 0.5)]);
}

// Source on the left, output on the right. Lines of the selected step, and of the element under the pointer, are strong.
// Without weights, all lines go through one vector.
export function bothSides({ source, target, weights, step, reached, name }, room, chosen) {
  const [from, to] = [source.map(cut), target.map(cut)];
  const [left, right] = [from, to].map((labels) => Math.max(52, widest(labels) * 1.1 + 14));
  const width = Math.max(left + right + 70, Math.min(room, left + right + 220));
  const rows = Math.max(from.length, to.length);
  const tall = rows > MANY ? 19 : 26;
  const height = tall * rows + 30;
  const at = (i, of) => 24 + tall * (i + 0.5 + (rows - of) / 2);
  const chart = svg("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "group", class: "chart sides",
    "aria-label": weights ? "source and output, with lines for attention weights" : "source and output, with one vector between them" },
    svg("text", { x: left - 6, y: 13, "text-anchor": "end", class: "side" }, "read"),
    svg("text", { x: width - right + 6, y: 13, class: "side" }, "written"));
  const lines = [];
  const join = (x1, y1, x2, y2, weight) => {
    const line = svg("line", { x1, y1, x2, y2, class: "thread" });
    line.style.strokeWidth = 1 + 8 * weight;
    chart.append(line);
    return line;
  };
  weights?.forEach((row, t) => row.forEach((weight, j) => {
    if (weight >= SEEN) lines.push({ line: join(left, at(j, from.length), width - right, at(t, to.length), weight), t, j });
  }));
  if (!weights) {
    const [x, y] = [(left + width - right) / 2, 24 + (tall * rows) / 2];
    from.forEach((_, j) => join(left, at(j, from.length), x, y, 0.15));
    to.forEach((_, t) => lines.push({ line: join(x, y, width - right, at(t, to.length), 0.15), t, j: -1 }));
    chart.append(svg("rect", { x: x - 7, y: y - 22, width: 14, height: 44, rx: 3, class: "vector" }), svg("text", { x, y: y - 28, "text-anchor": "middle", class: "side" }, "one vector"));
  }
  const light = (wanted) => lines.forEach((each) => each.line.classList.toggle("lit", wanted(each)));
  const usual = () => light(({ t }) => t === step);
  const pointed = (element, wanted) => {
    element.addEventListener("pointerenter", () => light(wanted));
    element.addEventListener("pointerleave", usual);
    return element;
  };
  const best = weights ? weights[step].indexOf(Math.max(...weights[step])) : -1;
  from.forEach((label, j) => {
    const word = svg("g", { class: "word" }, svg("rect", { x: 0, y: at(j, from.length) - tall / 2, width: left, height: tall, class: j === best ? "box best" : "box" }),
      svg("text", { x: left - 7, y: at(j, from.length) + 5, "text-anchor": "end" }, label), svg("title", {}, source[j]));
    chart.append(pointed(word, (each) => each.j === j));
  });
  to.forEach((label, t) => {
    const kind = t === step ? "word now" : t > reached ? "word coming" : "word";
    const word = svg("g", { class: kind, "data-row": t }, svg("rect", { x: width - right, y: at(t, to.length) - tall / 2 + 1, width: right, height: tall - 2, rx: 4, class: "box" }),
      svg("text", { x: width - right + 7, y: at(t, to.length) + 5 }, label));
    chart.append(pointed(pressable(word, () => chosen(t), target[t], `step ${t + 1}: ${target[t]}`), (each) => each.t === t));
  });
  usual();
  return framed(chart, `source and output of ${name}`, [width / 2, at(step, to.length)]);
}
