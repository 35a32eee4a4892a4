// Projections of a word's occurrences by layer; points can be selected with the pointer or the arrow keys.

import { make, put, svg } from "./dom.js";
import { saving } from "./picture.js";

const WIDE = 320;
const TALL = 250;
const PAD = 16;
const LABEL = 14;
const NEAREST = 10;
// Around 0, 0: a disc, a square, a triangle, a rhomb, a cross, a triangle on its tip.
const SHAPES = ["M4 0A4 4 0 1 1 -4 0A4 4 0 1 1 4 0Z", "M-3.6 -3.6H3.6V3.6H-3.6Z", "M0 -4.6L4.4 3.4H-4.4Z", "M0 -5L4.6 0L0 5L-4.6 0Z",
  "M-1.5 -4.5H1.5V-1.5H4.5V1.5H1.5V4.5H-1.5V1.5H-4.5V-1.5H-1.5Z", "M0 4.6L4.4 -3.4H-4.4Z"];
const STAR = "M0 -9L2.3 -3L8.6 -2.8L3.7 1.1L5.3 7.3L0 3.8L-5.3 7.3L-3.7 1.1L-8.6 -2.8L-2.3 -3Z";

export function planesOf(found, names) {
  const tags = [...new Set(found.points.map((point) => point.tag ?? ""))].sort((a, b) => count(b) - count(a));
  function count(tag) {
    return found.points.filter((point) => (point.tag ?? "") === tag).length;
  }
  const kind = (point) => Math.min(tags.indexOf(point.tag ?? ""), SHAPES.length - 1);
  const told = make("p", { class: "context", role: "status" }, "Point at an occurrence, or move over them with the arrow keys: sideways and up and down.");
  const all = [];
  let at = -1;
  const charts = found.layers.map((layer, number) => drawn(layer, names[number]));
  const box = make("div", {}, make("div", { class: "planes" }, ...charts.map(({ element }) => element)), keys(), told);
  box.prepend(saving(box, `occurrences of ${found.word}`));
  return box;

  function keys() {
    const entry = (path, more, text) => make("li", {}, svg("svg", { viewBox: "-9 -9 18 18", width: 16, height: 16, "aria-hidden": "true" },
      svg("path", { d: path, class: `point ${more}` })), ` ${text}`);
    const seen = tags.length > 1 || tags[0] ? tags.slice(0, SHAPES.length).map((tag, i) =>
      entry(SHAPES[i], `point${i} near`, i === SHAPES.length - 1 && tags.length > SHAPES.length ? "other tags" : tag || "without a tag")) : [];
    return make("ul", { class: "legend" }, entry(STAR, "asked", "the word you ask about"), entry(SHAPES[0], "point0 near", `the ${NEAREST} nearest to it in the layer`),
      entry(SHAPES[0], "point0", "another"), ...seen);
  }

  function drawn(layer, name) {
    const shares = layer.shares?.map((share) => `${Math.round(100 * share)} %`);
    const [fx, fy] = placed(layer.x, layer.y);
    const near = new Set(layer.cosines.map((cosine, i) => [cosine, i]).sort((a, b) => b[0] - a[0]).slice(0, NEAREST).map(([, i]) => i));
    const marks = found.points.map((point, i) => {
      const mark = svg("path", { d: SHAPES[kind(point)], transform: `translate(${fx(layer.x[i + 1])} ${fy(layer.y[i + 1])})`,
        class: `point point${kind(point)}${near.has(i) ? " near" : ""}` });
      mark.addEventListener("mouseover", () => go(i));
      return mark;
    });
    all.push(marks);
    const asked = svg("path", { d: STAR, transform: `translate(${fx(layer.x[0])} ${fy(layer.y[0])})`, class: "point asked" });
    const chart = svg("svg", { viewBox: `0 0 ${WIDE} ${TALL}`, class: "chart", "aria-hidden": "true" }, ...marks, asked,
      svg("text", { x: WIDE / 2, y: TALL - 4, "text-anchor": "middle" }, shares ? `first direction, ${shares[0]} of the differences` : ""),
      svg("text", { transform: `translate(11 ${TALL / 2}) rotate(-90)`, "text-anchor": "middle" }, shares && layer.shares[1] >= 0.005 ? `second, ${shares[1]}` : ""));
    const surface = make("div", { tabindex: "0", role: "application", "aria-roledescription": "scatter plot",
      "aria-label": `${found.points.length} occurrences, ${name}` }, chart);
    const across = [...found.points.keys()].sort((a, b) => layer.x[a + 1] - layer.x[b + 1]);
    const down = [...found.points.keys()].sort((a, b) => layer.y[b + 1] - layer.y[a + 1]);
    surface.addEventListener("keydown", (event) => {
      if (event.ctrlKey || event.metaKey || event.altKey) return;
      const steps = { ArrowRight: [across, 1], ArrowLeft: [across, -1], ArrowDown: [down, 1], ArrowUp: [down, -1], Home: [across, "first"], End: [across, "last"] };
      if (!steps[event.key]) return;
      event.preventDefault();
      const [order, by] = steps[event.key];
      if (typeof by === "string") return go(order[by === "first" ? 0 : order.length - 1], name);
      const from = order.indexOf(at);
      go(order[from < 0 ? 0 : Math.max(0, Math.min(order.length - 1, from + by))], name);
    });
    const note = layer.shares ? null : make("p", { class: "verdict" }, "All occurrences have the same vector in this layer.");
    return { element: make("div", { class: "plane" }, make("h3", {}, name), surface, note) };
  }

  function go(i) {
    for (const marks of all) {
      marks[at]?.classList.remove("here");
      marks[i].classList.add("here");
    }
    at = i;
    const { before, word, after, tag } = found.points[i];
    const cosines = found.layers.map((layer, n) => `${names[n].toLowerCase()} ${layer.cosines[i].toFixed(3)}`).join(", ");
    put(told, `${i + 1} of ${found.points.length}${tag ? `, ${tag}` : ""}: `, before ? `${before} ` : "", make("mark", {}, word), after ? ` ${after}` : "",
      make("br"), make("small", {}, `cosine to the selected word: ${cosines}`));
  }
}

// Both axes have one scale, so that distances are comparable.
function placed(x, y) {
  const [left, right, low, high] = [Math.min(...x), Math.max(...x), Math.min(...y), Math.max(...y)];
  const scale = Math.min((WIDE - 2 * PAD - LABEL) / (right - left || 1e-9), (TALL - 2 * PAD - LABEL) / (high - low || 1e-9), 1e6);
  const [middle, centre] = [(left + right) / 2, (low + high) / 2];
  return [(value) => (WIDE + LABEL) / 2 + (value - middle) * scale, (value) => (TALL - LABEL) / 2 - (value - centre) * scale];
}
