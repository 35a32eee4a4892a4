// Export of a part of the page: boxes, words and charts as SVG, or rendered on a canvas as PNG.

import { button, download, make, say, svg } from "./dom.js";

const INHERITED = ["fill", "stroke", "stroke-width", "opacity", "font-size", "font-family"];
const MARGIN = 12;

// Two buttons that save an element; they are excluded from the figure.
export function saving(element, name) {
  element.dataset.picture = name;
  const one = (kind) => button(kind.toUpperCase(), () => saveOne(element, kind), { title: `save as ${kind.toUpperCase()} (${kind === "png" ? "p" : "P"})` });
  return make("span", { class: "saving" }, one("png"), one("svg"));
}

// The picture under the pointer or the focus, else the first one.
export function savePicture(root, kind) {
  const all = [...root.querySelectorAll("[data-picture]")];
  const wanted = all.findLast((each) => each.matches(":hover")) ?? all.findLast((each) => each.contains(document.activeElement)) ?? all[0];
  if (!wanted) return say("There is no figure yet.");
  return saveOne(wanted, kind);
}

async function saveOne(element, kind) {
  const name = element.dataset.picture.replace(/[^\w.-]+/g, "_");
  try {
    const { text, width, height } = drawing(element);
    if (kind === "svg") return download(`${name}.svg`, text, "image/svg+xml");
    download(`${name}.png`, await rendered(text, width, height), "image/png");
  } catch (error) {
    say(`The figure could not be saved: ${error.message}`);
  }
}

export async function rendered(text, width, height, sharpest = 2) {
  const image = new Image();
  image.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(text)}`;
  await image.decode();
  const sharp = Math.min(sharpest, 16000 / width, 16000 / height);
  const canvas = make("canvas", { width: Math.ceil(width * sharp), height: Math.ceil(height * sharp) });
  canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
  return new Promise((done, failed) => canvas.toBlob((blob) => (blob ? done(blob) : failed(new Error("it is too large"))), "image/png"));
}

// An element as SVG, as it is laid out: all of it, or as wide as `laid` says and a text of it no taller than `tall`.
export function drawing(element, { laid, tall } = {}) {
  const how = laid ? "sliding" : "picturing"; // for as long as it is measured
  element.classList.add(how);
  const before = [element.style.width, element.style.maxHeight];
  if (laid) Object.assign(element.style, { width: `${laid}px` });
  const cut = laid ? [...element.querySelectorAll(".text, .snippet, pre, .scroll")] : [];
  const scrolled = cut.map((each) => each.scrollTop);
  const room = laid ? Math.max(140, tall - (element.getBoundingClientRect().height - cut.reduce((sum, each) => Math.max(sum, each.getBoundingClientRect().height), 0))) : 0;
  cut.forEach((each, i) => { each.style.maxHeight = `${room}px`; each.scrollTop = scrolled[i]; });
  const parts = { boxes: [], words: [], charts: [], right: 0, bottom: 0, clip: null };
  try {
    const origin = element.getBoundingClientRect();
    walk(element, parts, origin);
  } finally {
    element.classList.remove(how);
    [element.style.width, element.style.maxHeight] = before;
    cut.forEach((each, i) => { each.style.maxHeight = ""; each.scrollTop = scrolled[i]; });
  }
  const [width, height] = [Math.ceil(parts.right) + 2 * MARGIN, Math.ceil(parts.bottom) + 2 * MARGIN];
  const ground = getComputedStyle(document.body).backgroundColor;
  const whole = svg("svg", { width, height, viewBox: `${-MARGIN} ${-MARGIN} ${width} ${height}` },
    svg("rect", { x: -MARGIN, y: -MARGIN, width, height, fill: ground }), ...parts.boxes, ...parts.charts, ...parts.words.map(({ made }) => made));
  return { whole, text: new XMLSerializer().serializeToString(whole), width, height };
}

function walk(element, parts, origin) {
  const style = getComputedStyle(element);
  if (style.display === "none" || style.visibility === "hidden" || element.classList.contains("saving") || element.hidden) return;
  const place = (box) => ({ x: box.left - origin.left, y: box.top - origin.top, width: box.width, height: box.height });
  const reach = (at) => {
    parts.right = Math.max(parts.right, at.x + at.width);
    parts.bottom = Math.max(parts.bottom, at.y + at.height);
    return at;
  };
  const own = element.getBoundingClientRect();
  if (parts.clip && (own.bottom <= parts.clip.top + 2 || own.top >= parts.clip.bottom - 2 || own.bottom > parts.clip.bottom + 2 || own.top < parts.clip.top - 2)) return;
  if (element instanceof SVGElement) return void parts.charts.push(chart(element, reach(place(element.getBoundingClientRect()))));
  if (element instanceof HTMLCanvasElement) {
    return void parts.charts.push(svg("image", { ...reach(place(element.getBoundingClientRect())), href: element.toDataURL(), preserveAspectRatio: "none" }));
  }
  if (!/^rgba\(.*, 0\)$/.test(style.backgroundColor)) {
    for (const box of element.getClientRects()) if (box.width) fill(parts.boxes, reach(place(box)), style.backgroundColor);
  }
  if (element.dataset.truth) underline(element, parts, place);
  const outside = parts.clip;
  if (/^(auto|hidden|scroll)$/.test(style.overflowY) && element.scrollHeight > element.clientHeight + 2) parts.clip = own;
  if (element instanceof HTMLSelectElement) {
    const at = place(element.getBoundingClientRect());
    return word(parts.words, element.selectedOptions[0]?.text ?? "", { ...at, x: at.x + 12 }, style);
  }
  const sign = getComputedStyle(element, "::before").content;
  if (/^"(.|\n)+"$/.test(sign)) word(parts.words, sign.slice(1, -1), place(element.getClientRects()[0]), style);
  for (const node of element.childNodes) {
    if (node instanceof Element) walk(node, parts, origin);
    else if (node instanceof Text) lined(node, (text, box) => word(parts.words, text, reach(place(box)), style));
  }
  parts.clip = outside;
}

// The truth line below a symbol.
function underline(element, parts, place) {
  const tall = Number(element.dataset.truth);
  const colour = getComputedStyle(document.documentElement).getPropertyValue("--truth").trim();
  for (const box of element.getClientRects()) {
    const at = place(box);
    fill(parts.boxes, { ...at, y: at.y + at.height - tall, height: tall }, colour);
  }
}

// A box, or the one before it made wider.
function fill(boxes, at, colour) {
  const last = boxes.at(-1);
  const is = (name) => Number(last.getAttribute(name));
  if (last?.getAttribute("fill") === colour && is("y") === at.y && is("height") === at.height && Math.abs(is("x") + is("width") - at.x) < 0.5) {
    last.setAttribute("width", at.x + at.width - is("x"));
  } else boxes.push(svg("rect", { ...at, fill: colour }));
}

// A text, line by line as it is laid out.
function lined(node, tell) {
  if (!node.data.trim()) return;
  const range = document.createRange();
  range.selectNodeContents(node);
  if (range.getClientRects().length <= 1 || node.data.length === 1) {
    const box = range.getClientRects()[0];
    return box && tell(node.data, box);
  }
  let [begun, line] = [0, null];
  const end = (at) => line && node.data.slice(begun, at).trim() && tell(node.data.slice(begun, at).replace(/\n/g, " "), line);
  for (let i = 0; i < node.data.length; i++) {
    range.setStart(node, i);
    range.setEnd(node, i + 1);
    const box = range.getClientRects()[0];
    if (!box?.width) continue;
    if (line && Math.abs(box.top - line.top) < 3) continue;
    end(i);
    [begun, line] = [i, box];
  }
  end(node.data.length);
}

// A word on its line; adjacent single letters share one element, each with its position.
function word(words, text, at, style) {
  const size = parseFloat(style.fontSize);
  const y = Math.round((at.y + at.height / 2 + size * 0.35) * 10) / 10;
  const look = { fill: style.color, "font-size": style.fontSize, "font-family": style.fontFamily, "font-weight": style.fontWeight,
    "text-decoration": style.textDecorationLine === "none" ? "none" : `${style.textDecorationLine} ${style.textDecorationStyle}` };
  const key = [y, ...Object.values(look)].join();
  const last = words.at(-1);
  const x = Math.round(at.x * 10) / 10;
  if (text.length === 1 && last?.key === key && last.single) {
    last.made.setAttribute("x", `${last.made.getAttribute("x")} ${x}`);
    last.made.textContent += text;
    return;
  }
  const made = svg("text", { x, y, ...look }, text);
  made.style.whiteSpace = "pre"; // not as an attribute, which the page's policy forbids
  words.push({ key, single: text.length === 1, made });
}

function chart(element, at) {
  const copy = element.cloneNode(true);
  const copies = [copy, ...copy.querySelectorAll("*")];
  [element, ...element.querySelectorAll("*")].forEach((each, i) => {
    const style = getComputedStyle(each);
    for (const name of INHERITED) copies[i].setAttribute(name, style.getPropertyValue(name));
    copies[i].removeAttribute("class");
  });
  for (const [name, value] of Object.entries(at)) copy.setAttribute(name, value);
  return copy;
}
