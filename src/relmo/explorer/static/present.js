// Present: the view as a slide, large and without controls; and its figure alone in the size of a slide or of a column.

import { button, download, make, put, say, svg } from "./dom.js";
import { drawing, rendered } from "./picture.js";

const SLIDE = { width: 1920, height: 1080, laid: 1000 }; // pixels of the slide, and how wide the figure is laid out
const COLUMN = { width: 1004, laid: 420 }; // 85 millimetres at 300 dots an inch
const EDGE = 60;
const FONT = "system-ui, 'Segoe UI', 'Noto Sans', sans-serif";

// Show the figures of a view one after the other; arrow keys turn, Escape ends. The bar is visible while the pointer moves.
export function present(root, view) {
  const figures = [...root.querySelectorAll("[data-picture]")].filter((each) => each.getClientRects().length);
  if (!figures.length) return say("There is no figure in this view yet.");
  const first = figures.findIndex((each) => each.matches(":hover") || each.contains(document.activeElement));
  let at = Math.max(first, 0);
  const image = make("img", { class: "slideimage" });
  const count = make("span", { role: "status" });
  const save = (label, sized, kind) => button(label, () => saved(sized(figures[at], view), figures[at].dataset.picture, kind));
  const bar = make("div", { class: "slidebar" }, button("◀", () => turn(-1), { "aria-label": "previous figure" }), count, button("▶", () => turn(1), { "aria-label": "next figure" }),
    save("Slide PNG", slide, "png"), save("Slide SVG", slide, "svg"), save("Column PNG", column, "png"), save("Column SVG", column, "svg"),
    button("Close", close));
  const over = make("div", { class: "slide", role: "dialog", "aria-modal": "true", "aria-label": "the view as a slide" }, image, bar);
  const before = document.activeElement;
  document.body.append(over);
  document.documentElement.classList.add("presenting");
  over.addEventListener("keydown", (event) => {
    event.stopPropagation();
    const keys = { Escape: close, ArrowRight: () => turn(1), ArrowLeft: () => turn(-1) };
    if (keys[event.key]) {
      event.preventDefault();
      keys[event.key]();
    }
    if (event.key !== "Tab") return;
    const all = [...bar.querySelectorAll("button")];
    const next = (all.indexOf(document.activeElement) + (event.shiftKey ? -1 : 1) + all.length) % all.length;
    event.preventDefault();
    all[next].focus();
  });
  let hiding = 0;
  over.addEventListener("mousemove", () => {
    bar.classList.add("shown");
    clearTimeout(hiding);
    hiding = setTimeout(() => bar.classList.remove("shown"), 2000);
  });
  turn(0);
  bar.lastChild.focus();

  function turn(by) {
    at = (at + by + figures.length) % figures.length;
    const { text } = slide(figures[at], view);
    image.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(text)}`;
    image.alt = `${titleOf()}: ${figures[at].dataset.picture}`;
    put(count, ` ${at + 1} of ${figures.length} `);
  }

  function close() {
    over.remove();
    document.documentElement.classList.remove("presenting");
    before?.focus?.();
  }
}

async function saved({ text, width, height }, name, kind) {
  const file = name.replace(/[^\w.-]+/g, "_");
  try {
    if (kind === "svg") return download(`${file}.svg`, text, "image/svg+xml");
    download(`${file}.png`, await rendered(text, width, height, 1), "image/png");
  } catch (error) {
    say(`The figure could not be saved: ${error.message}`);
  }
}

function titleOf() {
  const claim = document.querySelector("#screen .claim")?.cloneNode(true);
  claim?.querySelector(".address")?.remove();
  return claim?.textContent.trim() ?? "";
}

// A slide: claim, figure, caption and source.
export function slide(element, view) {
  const { width, height, laid } = SLIDE;
  const look = getComputedStyle(document.body);
  const title = broken(titleOf(), 62);
  const caption = broken(document.querySelector("#screen .lead")?.textContent ?? element.dataset.picture, 110).slice(0, 2);
  const top = EDGE + 70 * title.length;
  const bottom = 70 + 38 * caption.length;
  const drawn = drawing(element, { laid, tall: Math.round((laid * (height - top - bottom)) / (width - 2 * EDGE)) });
  const scale = Math.min((width - 2 * EDGE) / drawn.width, (height - top - bottom) / drawn.height, 4);
  const words = (lines, y, size, weight, each) => lines.map((line, i) => svg("text", { x: EDGE, y: y + i * each, "font-size": size, "font-weight": weight, "font-family": FONT, fill: look.color }, line));
  drawn.whole.setAttribute("x", (width - drawn.width * scale) / 2);
  drawn.whole.setAttribute("y", top);
  drawn.whole.setAttribute("width", drawn.width * scale);
  drawn.whole.setAttribute("height", drawn.height * scale);
  const whole = svg("svg", { width, height, viewBox: `0 0 ${width} ${height}` }, svg("rect", { width, height, fill: look.backgroundColor }),
    ...words(title, EDGE + 30, 58, 700, 70), drawn.whole, ...words(caption, height - bottom + 50, 30, 400, 38),
    ...words([view.source], height - 24, 22, 400, 30));
  return { text: new XMLSerializer().serializeToString(whole), width, height };
}

// The figure with the width of a printed column.
export function column(element) {
  const drawn = drawing(element, { laid: COLUMN.laid, tall: 900 });
  const height = Math.round((COLUMN.width * drawn.height) / drawn.width);
  drawn.whole.setAttribute("width", COLUMN.width);
  drawn.whole.setAttribute("height", height);
  return { text: new XMLSerializer().serializeToString(drawn.whole), width: COLUMN.width, height };
}

// Wrap a text to a number of characters.
function broken(text, wide) {
  const lines = [""];
  for (const word of text.trim().split(/\s+/)) {
    if (lines.at(-1) && lines.at(-1).length + word.length >= wide) lines.push("");
    lines[lines.length - 1] += `${lines.at(-1) ? " " : ""}${word}`;
  }
  return lines;
}
