// Export of a part of the page: boxes, words and charts as SVG, or rendered on a canvas as PNG.

import { button, download, make, notify, svg } from "./dom.js";

const INHERITED = ["fill", "stroke", "stroke-width", "opacity", "font-size", "font-family"];
const MARGIN = 12;

// Two buttons that save an element; they are excluded from the figure.
export function saveButtons(element, name) {
  element.dataset.picture = name;
  const formatButton = (kind) => button(kind.toUpperCase(), () => saveFigure(element, kind), { title: `save as ${kind.toUpperCase()} (${kind === "png" ? "p" : "P"})` });
  return make("span", { class: "saving" }, formatButton("png"), formatButton("svg"));
}

// Save the figure under the pointer or with the focus, otherwise the first one.
export function savePicture(root, kind) {
  const figures = [...root.querySelectorAll("[data-picture]")];
  const activeFigure = figures.findLast((figure) => figure.matches(":hover")) ?? figures.findLast((figure) => figure.contains(document.activeElement)) ?? figures[0];
  if (!activeFigure) return notify("There is no figure yet.");
  return saveFigure(activeFigure, kind);
}

async function saveFigure(element, kind) {
  const name = element.dataset.picture.replace(/[^\w.-]+/g, "_");
  try {
    const { text, width, height } = drawSvg(element);
    if (kind === "svg") return download(`${name}.svg`, text, "image/svg+xml");
    download(`${name}.png`, await renderPng(text, width, height), "image/png");
  } catch (error) {
    notify(`The figure could not be saved: ${error.message}`);
  }
}

export async function renderPng(text, width, height, maxScale = 2) {
  const image = new Image();
  image.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(text)}`;
  await image.decode();
  const scale = Math.min(maxScale, 16000 / width, 16000 / height);
  const canvas = make("canvas", { width: Math.ceil(width * scale), height: Math.ceil(height * scale) });
  canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
  return new Promise((resolve, reject) => canvas.toBlob((blob) => (blob ? resolve(blob) : reject(new Error("it is too large"))), "image/png"));
}

// Draw an element as SVG in its current layout, or `layoutWidth` wide with text regions clipped so that it fits `maxHeight`.
export function drawSvg(element, { layoutWidth, maxHeight } = {}) {
  const className = layoutWidth ? "sliding" : "picturing"; // while it is measured
  element.classList.add(className);
  const originalStyle = [element.style.width, element.style.maxHeight];
  if (layoutWidth) Object.assign(element.style, { width: `${layoutWidth}px` });
  const scrollRegions = layoutWidth ? [...element.querySelectorAll(".text, .snippet, pre, .scroll")] : [];
  const scrollTops = scrollRegions.map((region) => region.scrollTop);
  const textHeight = layoutWidth ? Math.max(140, maxHeight - (element.getBoundingClientRect().height - scrollRegions.reduce((sum, region) => Math.max(sum, region.getBoundingClientRect().height), 0))) : 0;
  scrollRegions.forEach((region, i) => { region.style.maxHeight = `${textHeight}px`; region.scrollTop = scrollTops[i]; });
  const parts = { boxes: [], words: [], charts: [], right: 0, bottom: 0, clip: null };
  try {
    const origin = element.getBoundingClientRect();
    collectParts(element, parts, origin);
  } finally {
    element.classList.remove(className);
    [element.style.width, element.style.maxHeight] = originalStyle;
    scrollRegions.forEach((region, i) => { region.style.maxHeight = ""; region.scrollTop = scrollTops[i]; });
  }
  const [width, height] = [Math.ceil(parts.right) + 2 * MARGIN, Math.ceil(parts.bottom) + 2 * MARGIN];
  const background = getComputedStyle(document.body).backgroundColor;
  const root = svg("svg", { width, height, viewBox: `${-MARGIN} ${-MARGIN} ${width} ${height}` },
    svg("rect", { x: -MARGIN, y: -MARGIN, width, height, fill: background }), ...parts.boxes, ...parts.charts, ...parts.words.map(({ element: node }) => node));
  return { root, text: new XMLSerializer().serializeToString(root), width, height };
}

function collectParts(element, parts, origin) {
  const style = getComputedStyle(element);
  if (style.display === "none" || style.visibility === "hidden" || element.classList.contains("saving") || element.hidden) return;
  const toArea = (box) => ({ x: box.left - origin.left, y: box.top - origin.top, width: box.width, height: box.height });
  const extendBounds = (area) => {
    parts.right = Math.max(parts.right, area.x + area.width);
    parts.bottom = Math.max(parts.bottom, area.y + area.height);
    return area;
  };
  const bounds = element.getBoundingClientRect();
  if (parts.clip && (bounds.bottom <= parts.clip.top + 2 || bounds.top >= parts.clip.bottom - 2 || bounds.bottom > parts.clip.bottom + 2 || bounds.top < parts.clip.top - 2)) return;
  if (element instanceof SVGElement) return void parts.charts.push(copyChart(element, extendBounds(toArea(element.getBoundingClientRect()))));
  if (element instanceof HTMLCanvasElement) {
    return void parts.charts.push(svg("image", { ...extendBounds(toArea(element.getBoundingClientRect())), href: element.toDataURL(), preserveAspectRatio: "none" }));
  }
  if (!/^rgba\(.*, 0\)$/.test(style.backgroundColor)) {
    for (const box of element.getClientRects()) if (box.width) addBox(parts.boxes, extendBounds(toArea(box)), style.backgroundColor);
  }
  if (element.dataset.truth) underline(element, parts, toArea);
  const outerClip = parts.clip;
  if (/^(auto|hidden|scroll)$/.test(style.overflowY) && element.scrollHeight > element.clientHeight + 2) parts.clip = bounds;
  if (element instanceof HTMLSelectElement) {
    const area = toArea(element.getBoundingClientRect());
    return addWord(parts.words, element.selectedOptions[0]?.text ?? "", { ...area, x: area.x + 12 }, style);
  }
  const prefix = getComputedStyle(element, "::before").content;
  if (/^"(.|\n)+"$/.test(prefix)) addWord(parts.words, prefix.slice(1, -1), toArea(element.getClientRects()[0]), style);
  for (const node of element.childNodes) {
    if (node instanceof Element) collectParts(node, parts, origin);
    else if (node instanceof Text) forEachLine(node, (text, box) => addWord(parts.words, text, extendBounds(toArea(box)), style));
  }
  parts.clip = outerClip;
}

// Draw the truth line below a symbol.
function underline(element, parts, toArea) {
  const lineHeight = Number(element.dataset.truth);
  const colour = getComputedStyle(document.documentElement).getPropertyValue("--truth").trim();
  for (const box of element.getClientRects()) {
    const area = toArea(box);
    addBox(parts.boxes, { ...area, y: area.y + area.height - lineHeight, height: lineHeight }, colour);
  }
}

// Add a box, or widen the previous one.
function addBox(boxes, area, colour) {
  const last = boxes.at(-1);
  const getNumber = (name) => Number(last.getAttribute(name));
  if (last?.getAttribute("fill") === colour && getNumber("y") === area.y && getNumber("height") === area.height && Math.abs(getNumber("x") + getNumber("width") - area.x) < 0.5) {
    last.setAttribute("width", area.x + area.width - getNumber("x"));
  } else boxes.push(svg("rect", { ...area, fill: colour }));
}

// Pass each laid-out line of a text node to `onLine`.
function forEachLine(node, onLine) {
  if (!node.data.trim()) return;
  const range = document.createRange();
  range.selectNodeContents(node);
  if (range.getClientRects().length <= 1 || node.data.length === 1) {
    const box = range.getClientRects()[0];
    return box && onLine(node.data, box);
  }
  let [lineStart, line] = [0, null];
  const endLine = (lineEnd) => line && node.data.slice(lineStart, lineEnd).trim() && onLine(node.data.slice(lineStart, lineEnd).replace(/\n/g, " "), line);
  for (let i = 0; i < node.data.length; i++) {
    range.setStart(node, i);
    range.setEnd(node, i + 1);
    const box = range.getClientRects()[0];
    if (!box?.width) continue;
    if (line && Math.abs(box.top - line.top) < 3) continue;
    endLine(i);
    [lineStart, line] = [i, box];
  }
  endLine(node.data.length);
}

// Add a word on its line; adjacent single letters share one element, each with its position.
function addWord(words, text, area, style) {
  const size = parseFloat(style.fontSize);
  const y = Math.round((area.y + area.height / 2 + size * 0.35) * 10) / 10;
  const textAttributes = { fill: style.color, "font-size": style.fontSize, "font-family": style.fontFamily, "font-weight": style.fontWeight,
    "text-decoration": style.textDecorationLine === "none" ? "none" : `${style.textDecorationLine} ${style.textDecorationStyle}` };
  const key = [y, ...Object.values(textAttributes)].join();
  const last = words.at(-1);
  const x = Math.round(area.x * 10) / 10;
  if (text.length === 1 && last?.key === key && last.single) {
    last.element.setAttribute("x", `${last.element.getAttribute("x")} ${x}`);
    last.element.textContent += text;
    return;
  }
  const element = svg("text", { x, y, ...textAttributes }, text);
  element.style.whiteSpace = "pre"; // the content security policy forbids the style attribute
  words.push({ key, single: text.length === 1, element });
}

function copyChart(element, area) {
  const copy = element.cloneNode(true);
  const copies = [copy, ...copy.querySelectorAll("*")];
  [element, ...element.querySelectorAll("*")].forEach((original, i) => {
    const style = getComputedStyle(original);
    for (const name of INHERITED) copies[i].setAttribute(name, style.getPropertyValue(name));
    copies[i].removeAttribute("class");
  });
  for (const [name, value] of Object.entries(area)) copy.setAttribute(name, value);
  return copy;
}
