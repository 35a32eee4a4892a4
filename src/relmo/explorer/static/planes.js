// Projections of a word's occurrences by layer; points can be selected with the pointer or the arrow keys.

import { make, put, svg } from "./dom.js";
import { saveButtons } from "./picture.js";

const PLANE_WIDTH = 320;
const PLANE_HEIGHT = 250;
const PAD = 16;
const LABEL = 14;
const NUM_NEAREST = 10;
// Centred at 0, 0: disc, square, triangle, rhombus, cross, inverted triangle.
const SHAPES = ["M4 0A4 4 0 1 1 -4 0A4 4 0 1 1 4 0Z", "M-3.6 -3.6H3.6V3.6H-3.6Z", "M0 -4.6L4.4 3.4H-4.4Z", "M0 -5L4.6 0L0 5L-4.6 0Z",
  "M-1.5 -4.5H1.5V-1.5H4.5V1.5H1.5V4.5H-1.5V1.5H-4.5V-1.5H-1.5Z", "M0 4.6L4.4 -3.4H-4.4Z"];
const STAR = "M0 -9L2.3 -3L8.6 -2.8L3.7 1.1L5.3 7.3L0 3.8L-5.3 7.3L-3.7 1.1L-8.6 -2.8L-2.3 -3Z";

export function drawPlanes(projection, names) {
  const tags = [...new Set(projection.points.map((point) => point.tag ?? ""))].sort((a, b) => count(b) - count(a));
  function count(tag) {
    return projection.points.filter((point) => (point.tag ?? "") === tag).length;
  }
  const shapeIndex = (point) => Math.min(tags.indexOf(point.tag ?? ""), SHAPES.length - 1);
  const status = make("p", { class: "context", role: "status" }, "Point at an occurrence, or move over them with the arrow keys: sideways and up and down.");
  const marksByLayer = [];
  let selectedIndex = -1;
  const charts = projection.layers.map((layer, number) => drawLayer(layer, names[number]));
  const box = make("div", {}, make("div", { class: "planes" }, ...charts.map(({ element }) => element)), drawLegend(), status);
  box.prepend(saveButtons(box, `occurrences of ${projection.word}`));
  return box;

  function drawLegend() {
    const entry = (path, className, text) => make("li", {}, svg("svg", { viewBox: "-9 -9 18 18", width: 16, height: 16, "aria-hidden": "true" },
      svg("path", { d: path, class: `point ${className}` })), ` ${text}`);
    const tagEntries = tags.length > 1 || tags[0] ? tags.slice(0, SHAPES.length).map((tag, i) =>
      entry(SHAPES[i], `point${i} near`, i === SHAPES.length - 1 && tags.length > SHAPES.length ? "other tags" : tag || "without a tag")) : [];
    return make("ul", { class: "legend" }, entry(STAR, "asked", "the word you ask about"), entry(SHAPES[0], "point0 near", `the ${NUM_NEAREST} nearest to it in the layer`),
      entry(SHAPES[0], "point0", "another"), ...tagEntries);
  }

  function drawLayer(layer, name) {
    const shares = layer.shares?.map((share) => `${Math.round(100 * share)} %`);
    const [fx, fy] = createScales(layer.x, layer.y);
    const nearest = new Set(layer.cosines.map((cosine, i) => [cosine, i]).sort((a, b) => b[0] - a[0]).slice(0, NUM_NEAREST).map(([, i]) => i));
    const marks = projection.points.map((point, i) => {
      const mark = svg("path", { d: SHAPES[shapeIndex(point)], transform: `translate(${fx(layer.x[i + 1])} ${fy(layer.y[i + 1])})`,
        class: `point point${shapeIndex(point)}${nearest.has(i) ? " near" : ""}` });
      mark.addEventListener("mouseover", () => selectPoint(i));
      return mark;
    });
    marksByLayer.push(marks);
    const selectedWord = svg("path", { d: STAR, transform: `translate(${fx(layer.x[0])} ${fy(layer.y[0])})`, class: "point asked" });
    const chart = svg("svg", { viewBox: `0 0 ${PLANE_WIDTH} ${PLANE_HEIGHT}`, class: "chart", "aria-hidden": "true" }, ...marks, selectedWord,
      svg("text", { x: PLANE_WIDTH / 2, y: PLANE_HEIGHT - 4, "text-anchor": "middle" }, shares ? `first direction, ${shares[0]} of the differences` : ""),
      svg("text", { transform: `translate(11 ${PLANE_HEIGHT / 2}) rotate(-90)`, "text-anchor": "middle" }, shares && layer.shares[1] >= 0.005 ? `second, ${shares[1]}` : ""));
    const surface = make("div", { tabindex: "0", role: "application", "aria-roledescription": "scatter plot",
      "aria-label": `${projection.points.length} occurrences, ${name}` }, chart);
    const across = [...projection.points.keys()].sort((a, b) => layer.x[a + 1] - layer.x[b + 1]);
    const down = [...projection.points.keys()].sort((a, b) => layer.y[b + 1] - layer.y[a + 1]);
    surface.addEventListener("keydown", (event) => {
      if (event.ctrlKey || event.metaKey || event.altKey) return;
      const steps = { ArrowRight: [across, 1], ArrowLeft: [across, -1], ArrowDown: [down, 1], ArrowUp: [down, -1], Home: [across, "first"], End: [across, "last"] };
      if (!steps[event.key]) return;
      event.preventDefault();
      const [order, offset] = steps[event.key];
      if (typeof offset === "string") return selectPoint(order[offset === "first" ? 0 : order.length - 1], name);
      const orderIndex = order.indexOf(selectedIndex);
      selectPoint(order[orderIndex < 0 ? 0 : Math.max(0, Math.min(order.length - 1, orderIndex + offset))], name);
    });
    const note = layer.shares ? null : make("p", { class: "verdict" }, "All occurrences have the same vector in this layer.");
    return { element: make("div", { class: "plane" }, make("h3", {}, name), surface, note) };
  }

  function selectPoint(i) {
    for (const marks of marksByLayer) {
      marks[selectedIndex]?.classList.remove("here");
      marks[i].classList.add("here");
    }
    selectedIndex = i;
    const { before, word, after, tag } = projection.points[i];
    const cosines = projection.layers.map((layer, n) => `${names[n].toLowerCase()} ${layer.cosines[i].toFixed(3)}`).join(", ");
    put(status, `${i + 1} of ${projection.points.length}${tag ? `, ${tag}` : ""}: `, before ? `${before} ` : "", make("mark", {}, word), after ? ` ${after}` : "",
      make("br"), make("small", {}, `cosine to the selected word: ${cosines}`));
  }
}

// Return the x and y scales. Both axes have the same unit, so that distances are comparable.
function createScales(x, y) {
  const [left, right, low, high] = [Math.min(...x), Math.max(...x), Math.min(...y), Math.max(...y)];
  const scale = Math.min((PLANE_WIDTH - 2 * PAD - LABEL) / (right - left || 1e-9), (PLANE_HEIGHT - 2 * PAD - LABEL) / (high - low || 1e-9), 1e6);
  const [middle, centre] = [(left + right) / 2, (low + high) / 2];
  return [(value) => (PLANE_WIDTH + LABEL) / 2 + (value - middle) * scale, (value) => (PLANE_HEIGHT - LABEL) / 2 - (value - centre) * scale];
}
