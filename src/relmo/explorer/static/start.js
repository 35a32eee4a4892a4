// Start: cards with a picture and a sentence; below, the user's own text and model.

import { ask } from "./data.js";
import { button, dropdown, field, heading, make, notify, put, svg } from "./dom.js";
import { paint } from "./colour.js";
import { describeCondition } from "./words.js";

const CARD = { wide: 300, tall: 120, dashes: ["", "6 3", "2 3", "8 3 2 3"] };

export function showStart(root, view) {
  const container = make("div", { class: "starting" }, make("p", { class: "loading" }, "Loading…"));
  put(root, heading("What goes on inside a recurrent network?",
    "Each card shows one phenomenon in a trained network. Select a card to see it in a text."), container, createUserForms(view));
  ask("start", { model: view.state.model }).then(({ cards }) => {
    const offeredCards = cards.filter((card) => view.hasScreen(card.link.screen));
    put(container, ...offeredCards.map(createStartCard));
  }).catch((error) => notify(error.message));
  return { update: () => showStart(root, view) };
}

function createStartCard(card) {
  const link = `#${new URLSearchParams(card.link)}`;
  return make("a", { class: "startcard", href: link, "data-card": card.kind },
    make("div", { class: "cardpicture", "aria-hidden": "true" }, drawCardPicture(card.picture)),
    make("h3", {}, card.title), make("p", {}, card.sentence));
}

function drawCardPicture(picture) {
  const drawPicture = { text: drawCardText, lines: drawCardLines, bars: drawCardBars, pairs: drawCardPairs, prose: drawCardProse, map: drawCardMap }[picture.kind];
  return drawPicture ? drawPicture(picture) : "";
}

// Draw a window of text coloured by a cell, with the truth below.
function drawCardText({ symbols, values, scale, truth, turned: isInverted }) {
  const box = make("div", { class: "snippet bare" });
  symbols.forEach((symbol, i) => {
    const span = make("span", { class: symbol === "\n" ? "nl" : "" }, symbol);
    paint(span, (isInverted ? -1 : 1) * values[i], scale);
    span.style.boxShadow = `inset 0 -${Math.round(4 * truth[i])}px var(--truth)`;
    box.append(span);
  });
  return box;
}

function drawCardLines({ series, log: isLog }) {
  const level = (v) => (isLog ? Math.log10(Math.max(v, 1e-6)) : v);
  const levels = series.flatMap(({ y }) => y.map(level));
  const [low, high] = [Math.min(...levels), Math.max(...levels)];
  const chart = svg("svg", { viewBox: `0 0 ${CARD.wide} ${CARD.tall}`, class: "chart", preserveAspectRatio: "none" });
  series.forEach(({ y }, n) => chart.append(svg("polyline", { class: `line line${n}`, "stroke-dasharray": CARD.dashes[n],
    points: y.map((v, i) => `${(i / (y.length - 1)) * CARD.wide},${6 + (1 - (level(v) - low) / (high - low || 1)) * (CARD.tall - 12)}`).join(" ") })));
  const names = series.length > 1 ? make("p", { class: "keys" }, ...series.map(({ name }, n) => make("span", { class: `key${n}` }, name.split(",")[0].toUpperCase()))) : "";
  return make("div", {}, chart, names);
}

function drawCardBars({ rows, limit }) {
  return make("table", { class: "barchart small" }, make("tbody", {}, ...rows.map(([name, value]) => {
    const bar = make("span", { class: "bar plus" });
    bar.style.width = `${(100 * value) / limit}%`;
    return make("tr", {}, make("th", {}, describeCondition(name).replace(/ subject| noun/g, "")), make("td", { class: "bars" }, bar), make("td", {}, `${Math.round(value)} %`));
  })));
}

function drawCardPairs({ pairs }) {
  const markWord = ([before, word, after]) => [before, " ", make("mark", {}, word), " ", after];
  return make("div", { class: "pairs" }, ...pairs.map(([occurrence, nearest]) => make("p", {}, ...markWord(occurrence), make("br"), "≈ ", ...markWord(nearest))));
}

function drawCardProse({ text }) {
  return make("p", { class: "written" }, text);
}

// Draw an attention map.
function drawCardMap({ rows, columns, weights }) {
  const stripBoundary = (unit) => unit.replace(/^▁/, "");
  return make("table", { class: "cardmap" }, make("tbody", {}, ...rows.map((row, n) => make("tr", {}, make("th", {}, stripBoundary(row)), ...columns.map((_, i) => {
    const cell = make("td", {});
    paint(cell, weights[n][i], 1);
    return cell;
  }))), make("tr", {}, make("th", {}, ""), ...columns.map((column) => make("td", { class: "name" }, stripBoundary(column))))));
}

// Create forms for the user's own text and model.
function createUserForms(view) {
  const { about } = view;
  const area = make("textarea", { rows: "5", maxlength: String(about.limit?.characters ?? 400000), spellcheck: "false", placeholder: "“Well,” she said, “and now?”" });
  const language = dropdown([["", "prose"], ["python", "Python"], ["c", "C"]], "", () => {});
  const limitNote = about.limit ? `At most ${about.limit.characters.toLocaleString("en")} characters; this model reads the first ${about.limit.symbols.toLocaleString("en")} ${view.symbols}.` : "";
  return make("div", { class: "halves ownthings" },
    about.kind === "seq2seq" ? null : make("section", { class: "panel" }, make("h3", {}, "Your own text"),
      make("p", {}, `Show the cells of ${about.name} over your text. ${limitNote}`),
      field("Text", area), field("Language", language), button("Open", () => view.openText(area.value, language.value || null), { class: "go" })),
    make("section", { class: "panel" }, make("h3", {}, "Your own model"),
      make("p", {}, "Train a model on any text, name its cells, and open it:"),
      make("pre", { tabindex: "0" }, "relmo train lm book.txt --preset char --out mine\nrelmo analyse cells mine held-out.txt --ablate zero --name-cells\nrelmo explore mine held-out.txt")));
}
