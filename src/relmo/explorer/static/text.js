// Coloured text: each symbol is a span with the colour of its value. It can be selected and copied.

import { make } from "./dom.js";
import { colourIndex, colourTable, paint, STEPS, textColour } from "./colour.js";

export class ColouredText {
  constructor(label, { onFocus } = {}) {
    this.element = make("div", { class: "text", tabindex: "0", role: "application", "aria-roledescription": "coloured text",
      "aria-label": label });
    this.spans = [];
    this.at = -1;
    this.onFocus = onFocus ?? (() => {});
    this.element.addEventListener("mouseover", (event) => {
      const index = this.indexOf(event.target);
      if (index >= 0) this.onFocus(index, "hover");
    });
    this.element.addEventListener("click", (event) => {
      const index = this.indexOf(event.target);
      if (index >= 0 && !String(getSelection())) this.focus(index);
    });
    this.element.addEventListener("keydown", (event) => this.key(event));
  }

  indexOf(target) {
    return target.i ?? -1;
  }

  set(symbols, gaps) {
    this.spans = symbols.map((symbol, i) => {
      const span = document.createElement("span");
      span.textContent = symbol;
      if (symbol === "\n") span.className = "nl";
      span.i = i;
      return span;
    });
    const fragment = document.createDocumentFragment();
    this.spans.forEach((span, i) => {
      if (gaps?.[i]) fragment.append(gaps[i]);
      fragment.append(span);
    });
    this.element.replaceChildren(fragment);
    this.colourIndices = new Int16Array(symbols.length).fill(-1);
    this.at = -1;
  }

  colour(values, scale, { marks = false } = {}) {
    const colours = colourTable();
    if (this.colours !== colours) this.colourIndices.fill(-1);
    this.colours = colours;
    for (let i = 0; i < this.spans.length; i++) {
      const index = colourIndex(values[i], scale);
      if (this.colourIndices[i] === index) continue;
      this.colourIndices[i] = index;
      this.spans[i].style.backgroundColor = colours[index];
      this.spans[i].style.color = textColour(index);
    }
    this.element.classList.toggle("marks", marks);
    if (marks) {
      this.spans.forEach((span, i) => {
        const side = (this.colourIndices[i] - STEPS) / STEPS;
        span.dataset.sign = side > 0.4 ? "+" : side < -0.4 ? "-" : "";
      });
    }
  }

  // Draw a feature, 0 to 1 for each symbol, as a line below the text; null removes it.
  drawTruth(values) {
    this.spans.forEach((span, i) => {
      const lineHeight = values ? Math.round(4 * values[i]) : 0;
      if (String(lineHeight || "") === (span.dataset.truth ?? "")) return;
      if (lineHeight) span.dataset.truth = lineHeight;
      else delete span.dataset.truth;
      span.style.boxShadow = lineHeight ? `inset 0 -${lineHeight}px var(--truth)` : "";
    });
  }

  focus(index) {
    if (!this.spans.length) return;
    this.mark(index);
    this.spans[this.at].scrollIntoView({ block: "nearest" });
    this.onFocus(this.at, "focus");
  }

  mark(index) {
    this.spans[this.at]?.classList.remove("here");
    this.at = Math.max(0, Math.min(index, this.spans.length - 1));
    this.spans[this.at].classList.add("here");
  }

  // Scroll the box and the window so that this symbol is in the upper part.
  scrollToSymbol(index) {
    this.mark(index);
    const span = this.spans[this.at];
    this.reveal(span);
    scrollBy(0, Math.max(0, span.getBoundingClientRect().top - 0.75 * innerHeight));
  }

  reveal(span) {
    this.element.scrollTop = Math.max(0, span.offsetTop - this.element.clientHeight / 4);
  }

  key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const moves = { ArrowLeft: () => this.at - 1, ArrowRight: () => this.at + 1, Home: () => 0,
      End: () => this.spans.length - 1, ArrowUp: () => this.findInNextLine(-1), ArrowDown: () => this.findInNextLine(1) };
    if (!moves[event.key]) return;
    event.preventDefault();
    this.focus(moves[event.key]());
  }

  // Return the nearest symbol in the next or previous line.
  findInNextLine(direction) {
    const currentBounds = this.spans[Math.max(this.at, 0)].getBoundingClientRect();
    const middle = (currentBounds.left + currentBounds.right) / 2;
    let best = this.at;
    let row = null;
    let minDistance = Infinity;
    for (let i = this.at + direction; i >= 0 && i < this.spans.length; i += direction) {
      const box = this.spans[i].getBoundingClientRect();
      if ((box.top - currentBounds.top) * direction < 3) continue;
      row ??= box.top;
      if (Math.abs(box.top - row) > 3) break;
      const distance = Math.abs((box.left + box.right) / 2 - middle);
      if (distance < minDistance) [minDistance, best] = [distance, i];
    }
    return best;
  }
}

// A short read-only text.
export function snippet(symbols, values, scale, gaps, truth) {
  const box = make("div", { class: "snippet", tabindex: "0", role: "group", "aria-label": "a stretch of the text" });
  symbols.forEach((symbol, i) => {
    const span = make("span", { class: symbol === "\n" ? "nl" : "" }, symbol);
    paint(span, values[i], scale);
    const lineHeight = truth ? Math.round(4 * truth[i]) : 0;
    if (lineHeight) {
      span.dataset.truth = lineHeight;
      span.style.boxShadow = `inset 0 -${lineHeight}px var(--truth)`;
    }
    if (gaps?.[i]) box.append(gaps[i]);
    box.append(span);
  });
  return box;
}
