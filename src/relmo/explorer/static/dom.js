// DOM elements, created from text and never from markup.

import { render } from "./focus.js";

export function make(name, attributes = {}, ...children) {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
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

export function svg(name, attributes = {}, ...children) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  element.append(...children);
  return element;
}

// Make a part of a drawing act as a button, for pointer and keyboard.
export function makePressable(element, onPress, title, label = title) {
  for (const [name, value] of Object.entries({ tabindex: 0, role: "button", "aria-label": label })) element.setAttribute(name, value);
  element.append(svg("title", {}, title));
  element.addEventListener("click", onPress);
  element.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" && event.key !== " ") return;
    event.preventDefault();
    event.stopPropagation();
    onPress();
  });
  return element;
}

let numControls = 0;

export function field(label, control, className = "") {
  control.id ||= `control-${++numControls}`;
  return make("label", { class: `field ${className}`, for: control.id }, make("span", {}, label), control);
}

export function dropdown(options, value, onChange) {
  const select = make("select", { onchange: () => onChange(select.value) });
  for (const [key, label] of options) select.append(make("option", { value: key, selected: key === value }, label));
  return select;
}

export function checkbox(label, value, onChange) {
  const box = make("input", { type: "checkbox", checked: value, onchange: () => onChange(box.checked) });
  return make("label", { class: "tick" }, box, ` ${label}`);
}

export function button(label, onPress, attributes = {}) {
  return make("button", { type: "button", onclick: onPress, ...attributes }, label);
}

// Title of a view: a statement, and one line of explanation.
export function heading(title, lead, ...children) {
  return make("div", { class: "heading" }, make("h2", { class: "claim" }, title), lead ? make("p", { class: "lead" }, lead) : null, ...children);
}

// Evidence for a claim, collapsed.
export function evidence(summary, ...children) {
  return make("details", { class: "evidence" }, make("summary", {}, summary), ...children);
}

// Button of a unit: name or number, and address.
export function unitButton(view, unit, onPress, attributes = {}) {
  const element = button("", onPress ?? (() => view.set({ unit, screen: "cell" })), { class: "unit", ...attributes });
  put(element, view.getUnitLabel(unit), " ", make("small", { class: "address" }, addressOf(unit)));
  return element;
}

function addressOf(unit) {
  return unit.replace(/b$/, "←");
}

export function showWhitespace(symbol) {
  return { "\n": "↵", " ": "␣", "\t": "→" }[symbol] ?? symbol;
}

export function notify(text) {
  const messageBox = document.getElementById("said");
  messageBox.textContent = text;
  messageBox.classList.toggle("shown", Boolean(text));
  clearTimeout(notify.timer);
  if (text) notify.timer = setTimeout(() => notify(""), 6000);
}

export function download(name, content, kind) {
  const link = make("a", { href: URL.createObjectURL(new Blob([content], { type: kind })), download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}

// Table; with `onSort`, column heads are buttons that sort.
export function grid(columns, rows, { caption, label, sort, onSort } = {}) {
  const head = columns.map((column, i) => {
    const sorted = sort === i ? "descending" : undefined;
    return make("th", { scope: "col", "aria-sort": sorted }, onSort && i ? button(column, () => onSort(i)) : column);
  });
  const body = rows.map((row) =>
    make("tr", {}, ...row.map((cell, i) => {
      if (cell instanceof Element && cell.tagName === "TD") return cell;
      return i ? make("td", {}, cell ?? "") : make("th", { scope: "row" }, cell);
    })),
  );
  const table = make("table", {}, caption ? make("caption", {}, caption) : null,
    make("thead", {}, make("tr", {}, ...head)), make("tbody", {}, ...body));
  return make("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": label ?? caption ?? "table" }, table);
}

// Button that runs a job, with progress and cancellation.
export function runner(label, job) {
  const runButton = button(label, run, { class: "go" });
  const bar = make("progress", { max: 1, value: 0, hidden: true, "aria-label": "progress" });
  const cancelButton = button("Cancel", () => abortController?.abort(), { hidden: true });
  const status = make("span", { class: "told", role: "status" });
  let abortController = null;
  async function run() {
    abortController?.abort();
    const controller = (abortController = new AbortController());
    bar.value = 0;
    bar.hidden = cancelButton.hidden = false;
    status.textContent = "";
    if (document.activeElement === runButton) cancelButton.focus(); // a disabled button loses the focus
    runButton.disabled = true;
    const startTime = performance.now();
    try {
      await job((share) => { if (controller === abortController) bar.value = share; }, controller.signal);
      if (controller === abortController) status.textContent = `done in ${((performance.now() - startTime) / 1000).toFixed(1)} s`;
    } catch (error) {
      if (controller === abortController) status.textContent = controller.signal.aborted && !box.isConnected ? "" : error.message;
    } finally {
      if (controller === abortController) { // otherwise a newer run has started
        runButton.disabled = false;
        if (document.activeElement === cancelButton) runButton.focus();
        bar.hidden = cancelButton.hidden = true;
      }
    }
  }
  const box = make("div", { class: "runner" }, runButton, bar, cancelButton, status);
  box.run = run;
  box.stop = () => abortController?.abort();
  return box;
}

export function formatSigned(value, digits = 2) {
  if (value === null || value === undefined) return "";
  return (value > 0 ? "+" : "") + formatFixed(value, digits);
}

export function formatFixed(value, digits = 2) {
  return value === null || value === undefined ? "" : value.toFixed(digits).replace(/^-(?=[0.]+$)/, "");
}
