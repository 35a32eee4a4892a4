// Four charts in plain SVG: lines with bands, bars, a histogram, a map. Lines differ by their dashes, not by colour alone.

import { make, svg } from "./dom.js";
import { colour } from "./colour.js";
import { saveButtons } from "./picture.js";

const DASHES = ["", "6 3", "2 3", "8 3 2 3", "1 2", "12 4"];

function ticks(low, high, count = 5) {
  const span = high - low || 1;
  const raw = span / count;
  const size = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].map((n) => n * size).find((n) => n >= raw);
  const positions = [];
  for (let position = Math.ceil(low / step) * step; position <= high + step / 1e6; position += step) positions.push(position);
  return positions;
}

function formatTick(value) {
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size >= 1e4 || size < 1e-3) return value.toExponential(0).replace("e", "·10^").replace("+", "");
  return String(Number(value.toPrecision(3)));
}

// `names` are the labels at 0, 1, 2, …, such as words.
export function lines(series, { label, x: xLabel, y: yLabel, logY = false, logX = false, width = 620, height = 280, zero, names, legend: hasLegend = true }) {
  const pad = { left: 62, right: 14, top: 10, bottom: names ? 58 : 40 };
  const isPositive = (v) => v > 0 && Number.isFinite(v);
  const ys = series.flatMap((s) => [...s.y, ...(s.lower ?? []), ...(s.upper ?? [])]).filter(logY ? isPositive : Number.isFinite);
  const xs = series.flatMap((s) => s.x);
  let [low, high] = [Math.min(...ys), Math.max(...ys)];
  if (logY) [low, high] = [Math.log10(Math.max(low, high * 1e-12)), Math.log10(high)];
  if (zero && !logY) low = Math.min(0, low);
  const gap = (high - low) * 0.05 || 0.5;
  [low, high] = [low - gap, high + gap];
  const fx = logX ? Math.log2 : (v) => v;
  const [left, right] = [fx(Math.min(...xs)), fx(Math.max(...xs))];
  const px = (v) => pad.left + ((fx(v) - left) / (right - left || 1)) * (width - pad.left - pad.right);
  const py = (v) => {
    const level = logY ? Math.log10(Math.max(v, 10 ** low)) : v;
    return pad.top + (1 - (level - low) / (high - low)) * (height - pad.top - pad.bottom);
  };
  const chart = svg("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label, class: "chart" });
  chart.style.maxWidth = `${Math.round(1.35 * width)}px`; // keeps the font size close to that of the page
  for (const level of ticks(low, high)) {
    const v = logY ? 10 ** level : level;
    if (logY && Math.abs(level - Math.round(level)) > 1e-9) continue;
    chart.append(svg("line", { x1: pad.left, x2: width - pad.right, y1: py(v), y2: py(v), class: "gridline" }),
      svg("text", { x: pad.left - 6, y: py(v) + 4, "text-anchor": "end" }, logY ? formatPower(Math.round(level)) : formatTick(v)));
  }
  const marks = names ? names.map((_, i) => i) : logX ? [...new Set(xs)].filter((v) => Number.isInteger(Math.log2(v))) : ticks(left, right, 8);
  for (const v of marks) {
    const [x, y] = [px(v), height - pad.bottom + 16];
    chart.append(names ? svg("text", { transform: `translate(${x + 4} ${y - 2}) rotate(-32)`, "text-anchor": "end" }, names[v])
      : svg("text", { x, y, "text-anchor": "middle" }, formatTick(v)));
  }
  chart.append(svg("text", { x: (width + pad.left) / 2, y: height - 6, "text-anchor": "middle" }, xLabel),
    svg("text", { transform: `translate(12 ${height / 2 - 10}) rotate(-90)`, "text-anchor": "middle" }, yLabel));
  series.forEach((s, n) => {
    const kind = `line${n % 6}`;
    if (s.lower) {
      const up = s.x.map((v, i) => `${px(v)},${py(s.upper[i])}`);
      const down = s.x.map((v, i) => `${px(v)},${py(s.lower[i])}`).reverse();
      chart.append(svg("polygon", { points: [...up, ...down].join(" "), class: `band ${kind}` }));
    }
    const points = s.x.map((v, i) => [v, s.y[i]]).filter(([, v]) => Number.isFinite(v) && (!logY || v > 0));
    chart.append(svg("polyline", { points: points.map(([a, b]) => `${px(a)},${py(b)}`).join(" "), class: `line ${kind}`,
      "stroke-dasharray": DASHES[n % 6] }));
  });
  const legend = make("ul", { class: "legend" }, ...series.map((s, n) => make("li", {}, lineKey(n), ` ${s.name}`)));
  const figure = make("figure", {}, chart, hasLegend && (series.length > 1 || series[0].name) ? legend : null);
  figure.append(saveButtons(figure, label));
  return figure;
}

function formatPower(n) {
  const digits = "⁰¹²³⁴⁵⁶⁷⁸⁹";
  return n === 0 ? "1" : `10${n < 0 ? "⁻" : ""}${[...String(Math.abs(n))].map((d) => digits[d]).join("")}`;
}

function lineKey(n) {
  return svg("svg", { viewBox: "0 0 34 10", class: "key", "aria-hidden": "true" },
    svg("line", { x1: 1, x2: 33, y1: 5, y2: 5, class: `line line${n % 6}`, "stroke-dasharray": DASHES[n % 6] }));
}

// Rows of [name, value, note]; bars go to the right of zero and to the left. The full length is `limit`, or the largest value.
export function bars(rows, { label, digits = 3, limit }) {
  const maxValue = limit ?? Math.max(...rows.map(([, v]) => Math.abs(v)), 1e-9);
  const hasNegative = rows.some(([, v]) => v < 0);
  const items = rows.map(([name, value, note]) => {
    const bar = make("span", { class: `bar ${value < 0 ? "minus" : "plus"}` });
    bar.style.width = `${(Math.abs(value) / maxValue) * (hasNegative ? 50 : 100)}%`;
    bar.style.marginLeft = hasNegative ? (value < 0 ? `${50 - (Math.abs(value) / maxValue) * 50}%` : "50%") : "0";
    return make("tr", {}, make("th", { scope: "row" }, name), make("td", { class: "bars" }, bar),
      make("td", {}, `${value > 0 && hasNegative ? "+" : ""}${value.toFixed(digits)}`), make("td", { class: "note" }, note ?? ""));
  });
  const caption = make("caption", {}, label);
  const table = make("table", { class: "barchart" }, caption, make("tbody", {}, ...items));
  caption.append(" ", saveButtons(table, label));
  return table;
}

export function histogram({ counts, low, high }, threshold, width = 240, height = 90) {
  const maxCount = Math.max(...counts);
  const chart = svg("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", class: "chart histogram",
    "aria-label": `histogram of the values from ${low} to ${high}` });
  const barWidth = width / counts.length;
  counts.forEach((count, i) => {
    const barHeight = (Math.sqrt(count) / Math.sqrt(maxCount)) * (height - 18);
    const middle = low + ((i + 0.5) / counts.length) * (high - low);
    const kind = threshold !== null && middle >= threshold ? "on" : "off";
    chart.append(svg("rect", { x: i * barWidth, y: height - 16 - barHeight, width: barWidth - 0.6, height: barHeight, class: kind }));
  });
  chart.append(svg("text", { x: 0, y: height - 3 }, formatTick(low)),
    svg("text", { x: width, y: height - 3, "text-anchor": "end" }, formatTick(high)));
  return chart;
}

// Draw a map of the text on a canvas, line by line; `onSelect` receives the selected position as a share of the text.
export function textMap(values, scale, pageShares, onSelect) {
  const numColumns = 50;
  const numRows = Math.ceil(values.length / numColumns);
  const canvas = make("canvas", { class: "map", width: numColumns * 5, height: Math.max(numRows * 5, 10), role: "img",
    "aria-label": "map of the whole text", onclick: (event) => {
      const box = canvas.getBoundingClientRect();
      const row = Math.floor(((event.clientY - box.top) / box.height) * numRows);
      const column = ((event.clientX - box.left) / box.width) * numColumns;
      onSelect(Math.min((row * numColumns + column) / values.length, 0.99999));
    } });
  const context = canvas.getContext("2d");
  values.forEach((value, i) => {
    context.fillStyle = colour(value, scale);
    context.fillRect((i % numColumns) * 5, Math.floor(i / numColumns) * 5, 5, 5);
  });
  const rows = pageShares.map((share) => Math.floor((share * values.length) / numColumns));
  context.strokeStyle = getComputedStyle(document.documentElement).getPropertyValue("--ink");
  context.lineWidth = 2;
  context.strokeRect(1, rows[0] * 5 + 1, numColumns * 5 - 2, (rows[1] - rows[0] + 1) * 5 - 2);
  return canvas;
}
