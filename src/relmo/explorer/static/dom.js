// DOM elements, created from text and never from markup.

import { render } from "./focus.js";

export function make(name, given = {}, ...children) {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(given)) {
    if (key.startsWith("on")) element.addEventListener(key.slice(2), value);
    else if (key === "class") element.className = value;
    else if (key in element && typeof value !== "string") element[key] = value;
    else if (value !== undefined && value !== null && value !== false) element.setAttribute(key, value === true ? "" : value);
  }
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

// Replace the children, without empty ones; the focus stays on the equivalent element.
export function put(element, ...children) {
  render(element, children.filter((child) => child !== null && child !== undefined && child !== ""));
}

export function svg(name, given = {}, ...children) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(given)) element.setAttribute(key, value);
  element.append(...children);
  return element;
}

// A part of a drawing that acts as a button, by pointer and by keyboard.
export function pressable(element, pressed, title, label = title) {
  for (const [name, value] of Object.entries({ tabindex: 0, role: "button", "aria-label": label })) element.setAttribute(name, value);
  element.append(svg("title", {}, title));
  element.addEventListener("click", pressed);
  element.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" && event.key !== " ") return;
    event.preventDefault();
    event.stopPropagation();
    pressed();
  });
  return element;
}

let numbered = 0;

export function labelled(label, control, more = "") {
  control.id ||= `control-${++numbered}`;
  return make("label", { class: `field ${more}`, for: control.id }, make("span", {}, label), control);
}

export function choice(options, value, chosen) {
  const select = make("select", { onchange: () => chosen(select.value) });
  for (const [key, label] of options) select.append(make("option", { value: key, selected: key === value }, label));
  return select;
}

export function tick(label, value, changed) {
  const box = make("input", { type: "checkbox", checked: value, onchange: () => changed(box.checked) });
  return make("label", { class: "tick" }, box, ` ${label}`);
}

export function button(label, pressed, given = {}) {
  return make("button", { type: "button", onclick: pressed, ...given }, label);
}

// Title of a view: a statement, and one line of what to look at.
export function heading(title, lead, ...more) {
  return make("div", { class: "heading" }, make("h2", { class: "claim" }, title), lead ? make("p", { class: "lead" }, lead) : null, ...more);
}

// Evidence for a claim, collapsed.
export function evidence(summary, ...inside) {
  return make("details", { class: "evidence" }, make("summary", {}, summary), ...inside);
}

// Button of a unit: name or number, and address.
export function unitButton(view, unit, pressed, attributes = {}) {
  const made = button("", pressed ?? (() => view.set({ unit, screen: "cell" })), { class: "unit", ...attributes });
  put(made, view.called(unit), " ", make("small", { class: "address" }, addressOf(unit)));
  return made;
}

function addressOf(unit) {
  return unit.replace(/b$/, "←");
}

export function visible(symbol) {
  return { "\n": "↵", " ": "␣", "\t": "→" }[symbol] ?? symbol;
}

export function say(text) {
  const place = document.getElementById("said");
  place.textContent = text;
  place.classList.toggle("shown", Boolean(text));
  clearTimeout(say.timer);
  if (text) say.timer = setTimeout(() => say(""), 6000);
}

export function download(name, content, kind) {
  const link = make("a", { href: URL.createObjectURL(new Blob([content], { type: kind })), download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}

// Table; with `pressed`, column heads are buttons that sort.
export function grid(columns, rows, { caption, label, sort, pressed } = {}) {
  const head = columns.map((column, i) => {
    const sorted = sort === i ? "descending" : undefined;
    return make("th", { scope: "col", "aria-sort": sorted }, pressed && i ? button(column, () => pressed(i)) : column);
  });
  const body = rows.map((row) =>
    make("tr", {}, ...row.map((cell, i) => {
      if (cell instanceof Element && cell.tagName === "TD") return cell;
      return i ? make("td", {}, cell ?? "") : make("th", { scope: "row" }, cell);
    })),
  );
  const inside = make("table", {}, caption ? make("caption", {}, caption) : null,
    make("thead", {}, make("tr", {}, ...head)), make("tbody", {}, ...body));
  return make("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": label ?? caption ?? "table" }, inside);
}

// Button that runs a job, with progress and cancellation.
export function runner(label, start) {
  const go = button(label, run, { class: "go" });
  const bar = make("progress", { max: 1, value: 0, hidden: true, "aria-label": "progress" });
  const stop = button("Cancel", () => abort?.abort(), { hidden: true });
  const told = make("span", { class: "told", role: "status" });
  let abort = null;
  async function run() {
    abort?.abort();
    const own = (abort = new AbortController());
    bar.value = 0;
    bar.hidden = stop.hidden = false;
    told.textContent = "";
    if (document.activeElement === go) stop.focus(); // a disabled button loses the focus
    go.disabled = true;
    const begun = performance.now();
    try {
      await start((share) => { if (own === abort) bar.value = share; }, own.signal);
      if (own === abort) told.textContent = `done in ${((performance.now() - begun) / 1000).toFixed(1)} s`;
    } catch (error) {
      if (own === abort) told.textContent = own.signal.aborted && !box.isConnected ? "" : error.message;
    } finally {
      if (own === abort) { // else a newer run has begun
        go.disabled = false;
        if (document.activeElement === stop) go.focus();
        bar.hidden = stop.hidden = true;
      }
    }
  }
  const box = make("div", { class: "runner" }, go, bar, stop, told);
  box.run = run;
  box.stop = () => abort?.abort();
  return box;
}

export function signed(value, digits = 2) {
  if (value === null || value === undefined) return "";
  return (value > 0 ? "+" : "") + value.toFixed(digits);
}

export function fixed(value, digits = 2) {
  return value === null || value === undefined ? "" : value.toFixed(digits);
}
