// Read: a text coloured by one unit, page by page.

import { ask, bundle, fromUnits, known, parseUnit, shownUnit, unitName } from "./data.js";
import { button, choice, fixed, grid, labelled, make, put, say, signed, tick, visible } from "./dom.js";
import { histogram, map } from "./charts.js";
import { saving } from "./picture.js";
import { ColouredText } from "./text.js";
import { colour } from "./colour.js";

const MODES = [["value", "value"], ["centred", "value above or below its mean"], ["change", "change since the symbol before"], ["on", "on or off, by a threshold"],
  ["surprisal", "surprisal (bits)"], ["gradient", "gradient: what a prediction hangs on"]];

export function showRead(root, view) {
  const { about, state } = view;
  const text = new ColouredText("the text; arrow keys move, [ and ] change the unit", { focused, pressed });
  const side = make("aside", { class: "side", "aria-label": "unit" });
  const right = make("aside", { class: "side", "aria-label": "what the unit does" });
  const legend = make("div", { class: "scale" });
  const pager = make("nav", { class: "pager", "aria-label": "pages" });
  const focus = make("div", { class: "focus", "aria-live": "polite" });
  const strips = make("div", { class: "strips" });
  const title = make("h2", {});
  const picture = make("div", {}, title, legend, text.element);
  put(root, make("div", { class: "columns" }, side,
    make("section", { class: "middle", "aria-label": "text" }, picture, pager, strips),
    make("div", { class: "rightside" }, focus, right)));
  let page = null;
  let shown = { values: [], scale: 1 };
  let expected = null;
  let strip = null;
  let hovered = -1;

  const asked = (more) => ({ model: state.model, text: state.text, page: state.page, ...more });

  async function open() {
    const [got, values] = await Promise.all([ask("page", asked()), ofUnit()]);
    if (page !== got) {
      page = got;
      text.set(page.symbols, page.gaps);
    }
    title.textContent = page.title;
    await paint(values);
    controls();
    pages();
    expected = await ask("expected", asked()).catch(() => null);
    if (state.mode === "surprisal") await paint(values);
    if (state.at >= page.first && state.at < page.first + page.symbols.length) text.focus(state.at - page.first);
    await aside();
    prefetch();
  }

  // The unit's values; none, and why, where they cannot be had.
  function ofUnit() {
    return ask("values", asked({ unit: state.unit })).catch((error) => (say(error.message), { values: [], scale: 1 }));
  }

  // The values that the mode asks for, drawn.
  async function paint(values) {
    shown = { ...values, name: shownUnit(state.unit) };
    if (!values.values.length) shown = { values: new Array(page.symbols.length).fill(0), scale: 1, name: `${shownUnit(state.unit)} is not in this saved page, here` };
    else if (state.mode === "centred") {
      const mean = values.values.reduce((sum, v) => sum + v, 0) / values.values.length;
      shown.values = values.values.map((v) => v - mean);
      shown.scale = quantile(shown.values.map(Math.abs), 0.99) || 1;
      shown.name += ` less its mean on this page, ${fixed(mean)}`;
    } else if (state.mode === "change") {
      shown.values = values.values.map((v, i) => (i ? v - values.values[i - 1] : 0));
      shown.scale = quantile(shown.values.map(Math.abs), 0.99) || 1;
    } else if (state.mode === "on") {
      shown.values = values.values.map((v) => (v >= state.threshold ? 1 : 0));
      shown.scale = 1;
    } else if (state.mode === "surprisal" && expected?.bits.length) {
      shown = { values: expected.bits, scale: 8, name: "bits" };
    } else if (state.mode === "gradient") {
      shown = { values: new Array(page.symbols.length).fill(0), scale: 1, name: "gradient" };
      if (state.at >= 0) await hang();
    }
    text.colour(shown.values, shown.scale, { marks: state.marks });
    scale();
  }

  async function hang() {
    const found = await ask("gradient", { model: state.model, text: state.text, at: state.at });
    found.values.forEach((value, i) => {
      const place = found.first + i - page.first;
      if (place >= 0 && place < shown.values.length) shown.values[place] = value;
    });
    shown.scale = quantile(found.values, 0.98) || 1;
    shown.name = `gradient of the score of “${visible(found.symbol)}” after symbol ${state.at}; half of it from the last ${found.half}`;
  }

  function scale() {
    const ends = state.mode === "surprisal" || state.mode === "gradient" || state.mode === "on"
      ? [0, shown.scale] : [-shown.scale, 0, shown.scale];
    put(legend, ...ends.map((value) => {
      const box = make("span", { class: "swatch" }, state.mode === "on" ? (value ? "on" : "off") : fixed(value, 2));
      box.style.backgroundColor = colour(value, shown.scale);
      return box;
    }), ` ${shown.name}`);
  }

  function controls() {
    const unit = parseUnit(state.unit);
    const size = about.states[unit.state] / about.directions;
    const turn = (more) => view.set({ unit: unitName({ ...unit, ...more }) });
    const slider = make("input", { type: "range", min: 0, max: size - 1, value: unit.number,
      oninput: () => turn({ number: Number(slider.value) }) });
    const number = make("input", { type: "number", min: 0, max: size - 1, value: unit.number, onchange: () =>
      turn({ number: Math.max(0, Math.min(size - 1, Math.round(Number(number.value) || 0))) }) });
    const pins = state.pins ? state.pins.split(",") : [];
    const pinned = pins.includes(state.unit);
    const states = Object.keys(about.states).map((name) => [name, `${name}, ${about.words[name]}`]);
    put(side, 
      make("h2", {}, `Unit ${shownUnit(state.unit)}`),
      labelled("State or gate", choice(states, unit.state, (name) =>
        turn({ state: name, number: Math.min(unit.number, about.states[name] / about.directions - 1) }))),
      about.layers > 1 ? labelled("Layer", choice(Array.from({ length: about.layers }, (_, i) => [String(i), String(i)]),
        String(unit.layer), (layer) => turn({ layer: Number(layer) }))) : null,
      about.directions > 1 ? labelled("Reads", choice([["", "forwards"], ["b", "backwards"]], unit.backward ? "b" : "",
        (way) => turn({ backward: way === "b" }))) : null,
      labelled("Number", number), labelled("Slide", slider),
      make("div", { class: "row" }, button("◀ [", () => view.turn(-1), { "aria-label": "previous unit" }),
        button("] ▶", () => view.turn(1), { "aria-label": "next unit" }),
        button(pinned ? "Unpin" : "Pin", () => {
          const kept = pinned ? pins.filter((pin) => pin !== state.unit) : [...pins, state.unit];
          view.set({ pins: kept.join(",") });
        }),
        button("Cell →", () => view.set({ screen: "cell" }))),
      pins.length ? make("div", { class: "row pins" }, "Pinned ", ...pins.map((pin) =>
        button(shownUnit(pin), () => view.set({ unit: pin }), { "aria-pressed": String(pin === state.unit) }))) : null,
      labelled("Colour shows", choice(MODES.filter(([mode]) => !bundle || mode !== "gradient"), state.mode, (mode) => view.set({ mode }))),
      tick("Signs too: + solid line, − dotted", state.marks, (marks) => view.set({ marks })),
      tick("What the model expects", state.likely, (likely) => view.set({ likely })),
      tick("Gates", state.gates, (gates) => view.set({ gates })),
      ...(bundle ? [] : ownText(view)),
    );
  }

  function pages() {
    const turn = (label, to) => button(label, () => view.set({ page: to, at: -1 }), { disabled: !there(to) });
    put(pager, ...(page.pages > 1 ? [turn("◀ Page", state.page - 1), ` ${state.page + 1} of ${page.pages} `, turn("Page ▶", state.page + 1)] : []),
      ` ${page.total.toLocaleString("en")} symbols${page.left_out ? `; ${page.left_out.toLocaleString("en")} more are left out` : ""}`,
      saving(picture, `${state.model} ${state.unit} page ${state.page + 1}`), button("CSV", csv, { title: "the page's symbols with this unit's values" }),
      bundle?.note ? make("small", {}, `Saved: ${bundle.note}.`) : null);
  }

  // Whether a page can be turned to: a saved page has some of them, perhaps all.
  function there(number) {
    return number >= 0 && number < page.pages && (!bundle || Boolean(known("page", asked({ page: number }))));
  }

  function csv() {
    const quoted = (value) => `"${String(value).replaceAll('"', '""')}"`;
    const rows = page.symbols.map((symbol, i) => [page.first + i, quoted(symbol), shown.values[i]].join(","));
    view.download(`${state.unit}.csv`, ["position,symbol,value", ...rows].join("\n"), "text/csv");
  }

  function focused(place, how) {
    if (!page || (how === "hover" && hovered === place)) return;
    hovered = place;
    if (how === "focus" && state.at !== page.first + place) view.note({ at: page.first + place });
    inform(place);
    if (how === "focus") strip_(place);
  }

  function pressed(place) {
    if (state.mode === "gradient") view.set({ at: page.first + place });
  }

  function inform(place) {
    const rows = [["value", signed(shown.values[place], 3)]];
    if (strip) for (const [name, values] of Object.entries(strip.states)) rows.push([name, signed(values[place], 3)]);
    if (expected?.bits.length) {
      rows.push(["p", (2 ** -expected.bits[place]).toPrecision(2)], ["bits", fixed(expected.bits[place], 2)]);
    }
    const after = expected?.likely[place]?.map(([symbol, p]) => `${visible(symbol)}\u00a0${p.toFixed(2)}`).join("  ");
    put(focus, 
      make("h3", {}, `“${visible(page.symbols[place])}” `, make("small", {}, `symbol ${page.first + place}`)),
      make("dl", {}, ...rows.flatMap(([name, value]) => [make("dt", {}, name), make("dd", {}, value)])),
      after ? make("p", { class: "after" }, make("b", {}, "expected next: "), after) : "");
  }

  // Around the focused symbol: what was expected after each, and every gate.
  async function strip_(place) {
    if (!state.likely && !state.gates) return put(strips);
    const first = Math.max(0, Math.min(place - 15, page.symbols.length - 30));
    const some = page.symbols.slice(first, first + 30);
    const head = ["after", ...some.map(visible)];
    const parts = [];
    if (state.likely && expected?.likely.length) {
      const rows = [0, 1, 2, 3, 4].map((n) => [`${n + 1}.`, ...some.map((_, i) => {
        const [symbol, p] = expected.likely[first + i][n] ?? ["", 0];
        const cell = make("td", { title: p.toFixed(3) }, visible(symbol));
        cell.style.backgroundColor = colour(p, 1);
        if (symbol === page.symbols[first + i + 1]) cell.classList.add("right");
        return cell;
      })]);
      parts.push(grid(head, rows, { caption: "expected next, after each symbol (underlined: it came)" }));
    }
    if (state.gates) {
      strip ??= await ask("strip", asked({ unit: state.unit })).catch((error) => (say(error.message), null));
      if (!strip) return;
      const rows = Object.entries(strip.states).map(([name, values]) => [name, ...some.map((_, i) => {
        const cell = make("td", { title: values[first + i] }, fixed(values[first + i], 1));
        cell.style.backgroundColor = colour(values[first + i], about.gates.includes(name) ? 1 : quantile(values.map(Math.abs), 0.99) || 1);
        return cell;
      })]);
      parts.push(grid(head, rows, { caption: `states and gates of unit ${parseUnit(state.unit).number}` }));
    }
    put(strips, ...parts);
    strips.querySelectorAll("th[scope=col]")[place - first + 1]?.classList.add("here");
  }

  async function aside() {
    if (!about.carried.includes(parseUnit(state.unit).state)) {
      put(right, make("p", {}, "Over the whole text there are maps of ", about.carried.join(" and "), "."));
      return;
    }
    const wanted = { model: state.model, text: state.text, unit: state.unit };
    if (!known("overview", wanted)) put(right, make("p", { class: "loading" }, "reading the whole text…"));
    const found = await ask("overview", wanted).catch((error) => ({ error: error.message }));
    if (found.error) return put(right, make("p", {}, bundle ? "" : found.error));
    const { low, high } = found.histogram;
    const slide = make("input", { type: "range", min: low, max: high, step: (high - low) / 100, value: state.threshold,
      oninput: () => view.set({ mode: "on", threshold: Number(slide.value) }) });
    const here = [page.first / found.total, (page.first + page.symbols.length - 1) / found.total];
    const jump = (at) => turnTo(view, found, at);
    put(right, 
      make("h3", {}, "All of the text"),
      make("p", {}, `mean ${fixed(found.mean)}, standard deviation ${fixed(found.sd)}`),
      histogram(found.histogram, state.mode === "on" ? state.threshold : null), labelled("On from", slide),
      map(found.map, found.scale, here, (share) => jump(Math.floor(share * found.total))),
      make("h3", {}, "Where it is highest"),
      make("ol", { class: "contexts" }, ...found.high.slice(0, 8).map((place) => context(place, jump))),
      make("h3", {}, "Where it is lowest"),
      make("ol", { class: "contexts" }, ...found.low.slice(0, 5).map((place) => context({ ...place, value: -place.value }, jump))));
  }

  function prefetch() {
    for (const by of [1, -1]) {
      const next = view.neighbour(by);
      if (!bundle) ask("values", asked({ unit: next })).catch(() => {});
    }
    strip = null;
    if (!bundle || fromUnits("strip", asked({ unit: state.unit }))) {
      ask("strip", asked({ unit: state.unit })).then((got) => { strip = got; if (text.at >= 0) inform(text.at); }).catch(() => {});
    }
  }

  open().catch((error) => { say(error.message); text.element.textContent = error.message; });
  return {
    text,
    // Another unit of the same page: only colours change.
    async update(changed) {
      if (changed.some((name) => ["text", "page", "model"].includes(name))) return open();
      if (changed.every((name) => name === "at") && state.mode !== "gradient") return;
      await paint(await ofUnit());
      strip = null;
      controls();
      if (text.at >= 0) { inform(text.at); strip_(text.at); }
      aside();
      prefetch();
    },
  };
}

// The text at a symbol, on whichever page of it that is.
export function turnTo(view, overview, at) {
  const { model, text } = view.state;
  const page = overview.bounds.findLastIndex((first) => first <= at);
  if (bundle && !known("page", { model, text, page })) return say("This page of the text was not saved.");
  view.set({ screen: "read", page, at });
}

export function context(place, jump, before = 19, after = 10) {
  const tag = make("button", { type: "button", class: "plain", onclick: () => jump(place.at) });
  tag.append(make("b", {}, signed(place.value)), " ", flat(place.before.slice(-before)), make("mark", {}, visible(place.symbol)),
    flat(place.after.slice(0, after)));
  return make("li", {}, tag);
}

export function flat(text) {
  return text.replaceAll("\n", "↵");
}

export function quantile(values, q) {
  const sorted = [...values].sort((a, b) => a - b);
  return sorted[Math.floor(q * (sorted.length - 1))] ?? 0;
}

function ownText(view) {
  const area = make("textarea", { rows: "4", maxlength: "400000", spellcheck: "false" });
  const language = choice([["", "prose"], ["python", "Python"], ["c", "C"]], "", () => {});
  return [make("details", {}, make("summary", {}, "Your own text"), labelled("Text", area), labelled("It is", language),
    button("Read it", () => view.own(area.value, language.value || null)))];
}
