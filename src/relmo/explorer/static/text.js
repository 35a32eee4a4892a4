// Coloured text: each symbol is a span with the colour of its value. It can be selected and copied.

import { make } from "./dom.js";
import { ink, paint, step, table, STEPS } from "./colour.js";

export class ColouredText {
  constructor(label, { focused } = {}) {
    this.element = make("div", { class: "text", tabindex: "0", role: "application", "aria-roledescription": "coloured text",
      "aria-label": label });
    this.spans = [];
    this.at = -1;
    this.focused = focused ?? (() => {});
    this.element.addEventListener("mouseover", (event) => {
      const place = this.place(event.target);
      if (place >= 0) this.focused(place, "hover");
    });
    this.element.addEventListener("click", (event) => {
      const place = this.place(event.target);
      if (place >= 0 && !String(getSelection())) this.focus(place);
    });
    this.element.addEventListener("keydown", (event) => this.key(event));
  }

  place(target) {
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
    const whole = document.createDocumentFragment();
    this.spans.forEach((span, i) => {
      if (gaps?.[i]) whole.append(gaps[i]);
      whole.append(span);
    });
    this.element.replaceChildren(whole);
    this.drawn = new Int16Array(symbols.length).fill(-1);
    this.at = -1;
  }

  colour(values, scale, { marks = false } = {}) {
    const colours = table();
    if (this.colours !== colours) this.drawn.fill(-1);
    this.colours = colours;
    for (let i = 0; i < this.spans.length; i++) {
      const wanted = step(values[i], scale);
      if (this.drawn[i] === wanted) continue;
      this.drawn[i] = wanted;
      this.spans[i].style.backgroundColor = colours[wanted];
      this.spans[i].style.color = ink(wanted);
    }
    this.element.classList.toggle("marks", marks);
    if (marks) {
      this.spans.forEach((span, i) => {
        const side = (this.drawn[i] - STEPS) / STEPS;
        span.dataset.sign = side > 0.4 ? "+" : side < -0.4 ? "-" : "";
      });
    }
  }

  // Draw a feature, 0 to 1 for each symbol, as a line below the text; null removes it.
  truth(values) {
    this.spans.forEach((span, i) => {
      const tall = values ? Math.round(4 * values[i]) : 0;
      if (String(tall || "") === (span.dataset.truth ?? "")) return;
      if (tall) span.dataset.truth = tall;
      else delete span.dataset.truth;
      span.style.boxShadow = tall ? `inset 0 -${tall}px var(--truth)` : "";
    });
  }

  focus(place) {
    if (!this.spans.length) return;
    this.mark(place);
    this.spans[this.at].scrollIntoView({ block: "nearest" });
    this.focused(this.at, "focus");
  }

  mark(place) {
    this.spans[this.at]?.classList.remove("here");
    this.at = Math.max(0, Math.min(place, this.spans.length - 1));
    this.spans[this.at].classList.add("here");
  }

  // Scroll the box and the window so that this symbol is in the upper part.
  land(place) {
    this.mark(place);
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
      End: () => this.spans.length - 1, ArrowUp: () => this.line(-1), ArrowDown: () => this.line(1) };
    if (!moves[event.key]) return;
    event.preventDefault();
    this.focus(moves[event.key]());
  }

  // The symbol nearest below or above.
  line(way) {
    const from = this.spans[Math.max(this.at, 0)].getBoundingClientRect();
    const middle = (from.left + from.right) / 2;
    let best = this.at;
    let row = null;
    let near = Infinity;
    for (let i = this.at + way; i >= 0 && i < this.spans.length; i += way) {
      const box = this.spans[i].getBoundingClientRect();
      if ((box.top - from.top) * way < 3) continue;
      row ??= box.top;
      if (Math.abs(box.top - row) > 3) break;
      const apart = Math.abs((box.left + box.right) / 2 - middle);
      if (apart < near) [near, best] = [apart, i];
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
    const tall = truth ? Math.round(4 * truth[i]) : 0;
    if (tall) {
      span.dataset.truth = tall;
      span.style.boxShadow = `inset 0 -${tall}px var(--truth)`;
    }
    if (gaps?.[i]) box.append(gaps[i]);
    box.append(span);
  });
  return box;
}
