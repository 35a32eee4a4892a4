// Present: the view as a slide, large and without controls; and its figure alone in the size of a slide or of a column.

import { button, download, make, notify, put, svg } from "./dom.js";
import { drawSvg, renderPng } from "./picture.js";

const SLIDE = { width: 1920, height: 1080, layoutWidth: 1000 }; // pixels; layout width of the figure
const COLUMN = { width: 1004, layoutWidth: 420 }; // 85 millimetres at 300 dpi
const EDGE = 60;
const FONT = "system-ui, 'Segoe UI', 'Noto Sans', sans-serif";

// Show the figures of a view one after the other; arrow keys turn, Escape ends. The bar is visible while the pointer moves.
export function present(root, view) {
  const figures = [...root.querySelectorAll("[data-picture]")].filter((figure) => figure.getClientRects().length);
  if (!figures.length) return notify("There is no figure in this view yet.");
  const activeIndex = figures.findIndex((figure) => figure.matches(":hover") || figure.contains(document.activeElement));
  let figureIndex = Math.max(activeIndex, 0);
  const image = make("img", { class: "slideimage" });
  const count = make("span", { role: "status" });
  const saveButton = (label, drawFigure, kind) => button(label, () => saveImage(drawFigure(figures[figureIndex], view), figures[figureIndex].dataset.picture, kind));
  const bar = make("div", { class: "slidebar" }, button("◀", () => turnFigure(-1), { "aria-label": "previous figure" }), count, button("▶", () => turnFigure(1), { "aria-label": "next figure" }),
    saveButton("Slide PNG", drawSlide, "png"), saveButton("Slide SVG", drawSlide, "svg"), saveButton("Column PNG", drawColumn, "png"), saveButton("Column SVG", drawColumn, "svg"),
    button("Close", close));
  const overlay = make("div", { class: "slide", role: "dialog", "aria-modal": "true", "aria-label": "the view as a slide" }, image, bar);
  const previousFocus = document.activeElement;
  document.body.append(overlay);
  document.documentElement.classList.add("presenting");
  overlay.addEventListener("keydown", (event) => {
    event.stopPropagation();
    const keys = { Escape: close, ArrowRight: () => turnFigure(1), ArrowLeft: () => turnFigure(-1) };
    if (keys[event.key]) {
      event.preventDefault();
      keys[event.key]();
    }
    if (event.key !== "Tab") return;
    const buttons = [...bar.querySelectorAll("button")];
    const next = (buttons.indexOf(document.activeElement) + (event.shiftKey ? -1 : 1) + buttons.length) % buttons.length;
    event.preventDefault();
    buttons[next].focus();
  });
  let hideTimer = 0;
  overlay.addEventListener("mousemove", () => {
    bar.classList.add("shown");
    clearTimeout(hideTimer);
    hideTimer = setTimeout(() => bar.classList.remove("shown"), 2000);
  });
  turnFigure(0);
  bar.lastChild.focus();

  function turnFigure(offset) {
    figureIndex = (figureIndex + offset + figures.length) % figures.length;
    const { text } = drawSlide(figures[figureIndex], view);
    image.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(text)}`;
    image.alt = `${getTitle()}: ${figures[figureIndex].dataset.picture}`;
    put(count, ` ${figureIndex + 1} of ${figures.length} `);
  }

  function close() {
    overlay.remove();
    document.documentElement.classList.remove("presenting");
    previousFocus?.focus?.();
  }
}

async function saveImage({ text, width, height }, name, kind) {
  const file = name.replace(/[^\w.-]+/g, "_");
  try {
    if (kind === "svg") return download(`${file}.svg`, text, "image/svg+xml");
    download(`${file}.png`, await renderPng(text, width, height, 1), "image/png");
  } catch (error) {
    notify(`The figure could not be saved: ${error.message}`);
  }
}

function getTitle() {
  const claim = document.querySelector("#screen .claim")?.cloneNode(true);
  claim?.querySelector(".address")?.remove();
  return claim?.textContent.trim() ?? "";
}

// Draw a slide: claim, figure, caption and source.
export function drawSlide(element, view) {
  const { width, height, layoutWidth } = SLIDE;
  const bodyStyle = getComputedStyle(document.body);
  const title = wrapText(getTitle(), 62);
  const caption = wrapText(document.querySelector("#screen .lead")?.textContent ?? element.dataset.picture, 110).slice(0, 2);
  const top = EDGE + 70 * title.length;
  const bottom = 70 + 38 * caption.length;
  const figure = drawSvg(element, { layoutWidth, maxHeight: Math.round((layoutWidth * (height - top - bottom)) / (width - 2 * EDGE)) });
  const scale = Math.min((width - 2 * EDGE) / figure.width, (height - top - bottom) / figure.height, 4);
  const drawLines = (lines, y, size, weight, lineHeight) => lines.map((line, i) => svg("text", { x: EDGE, y: y + i * lineHeight, "font-size": size, "font-weight": weight, "font-family": FONT, fill: bodyStyle.color }, line));
  figure.root.setAttribute("x", (width - figure.width * scale) / 2);
  figure.root.setAttribute("y", top);
  figure.root.setAttribute("width", figure.width * scale);
  figure.root.setAttribute("height", figure.height * scale);
  const root = svg("svg", { width, height, viewBox: `0 0 ${width} ${height}` }, svg("rect", { width, height, fill: bodyStyle.backgroundColor }),
    ...drawLines(title, EDGE + 30, 58, 700, 70), figure.root, ...drawLines(caption, height - bottom + 50, 30, 400, 38),
    ...drawLines([view.source], height - 24, 22, 400, 30));
  return { text: new XMLSerializer().serializeToString(root), width, height };
}

// Draw the figure with the width of a printed column.
export function drawColumn(element) {
  const figure = drawSvg(element, { layoutWidth: COLUMN.layoutWidth, maxHeight: 900 });
  const height = Math.round((COLUMN.width * figure.height) / figure.width);
  figure.root.setAttribute("width", COLUMN.width);
  figure.root.setAttribute("height", height);
  return { text: new XMLSerializer().serializeToString(figure.root), width: COLUMN.width, height };
}

// Wrap a text to a number of characters.
function wrapText(text, maxLength) {
  const lines = [""];
  for (const word of text.trim().split(/\s+/)) {
    if (lines.at(-1) && lines.at(-1).length + word.length >= maxLength) lines.push("");
    lines[lines.length - 1] += `${lines.at(-1) ? " " : ""}${word}`;
  }
  return lines;
}
