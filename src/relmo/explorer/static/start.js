// Start: cards with a picture and a sentence; below, the user's own text and model.

import { ask } from "./data.js";
import { button, choice, heading, labelled, make, put, say, svg } from "./dom.js";
import { paint } from "./colour.js";
import { conditionWords } from "./words.js";

const CARD = { wide: 300, tall: 120, dashes: ["", "6 3", "2 3", "8 3 2 3"] };

export function showStart(root, view) {
  const place = make("div", { class: "starting" }, make("p", { class: "loading" }, "Loading…"));
  put(root, heading("What goes on inside a recurrent network?",
    "Each card shows one phenomenon in a trained network. Select a card to see it in a text."), place, ownThings(view));
  ask("start", { model: view.state.model }).then(({ cards }) => {
    const offered = cards.filter((card) => view.offers(card.link.screen));
    put(place, ...offered.map(cardOf));
  }).catch((error) => say(error.message));
  return { update: () => showStart(root, view) };
}

function cardOf(card) {
  const link = `#${new URLSearchParams(card.link)}`;
  return make("a", { class: "startcard", href: link, "data-card": card.kind },
    make("div", { class: "cardpicture", "aria-hidden": "true" }, cardPicture(card.picture)),
    make("h3", {}, card.title), make("p", {}, card.sentence));
}

function cardPicture(given) {
  const drawn = { text: cardText, lines: cardLines, bars: cardBars, pairs: cardPairs, prose: cardProse, map: cardMap }[given.kind];
  return drawn ? drawn(given) : "";
}

// A window of text coloured by a cell, with the truth below.
function cardText({ symbols, values, scale, truth, turned }) {
  const box = make("div", { class: "snippet bare" });
  symbols.forEach((symbol, i) => {
    const span = make("span", { class: symbol === "\n" ? "nl" : "" }, symbol);
    paint(span, (turned ? -1 : 1) * values[i], scale);
    span.style.boxShadow = `inset 0 -${Math.round(4 * truth[i])}px var(--truth)`;
    box.append(span);
  });
  return box;
}

function cardLines({ series, log }) {
  const level = (v) => (log ? Math.log10(Math.max(v, 1e-6)) : v);
  const all = series.flatMap(({ y }) => y.map(level));
  const [low, high] = [Math.min(...all), Math.max(...all)];
  const chart = svg("svg", { viewBox: `0 0 ${CARD.wide} ${CARD.tall}`, class: "chart", preserveAspectRatio: "none" });
  series.forEach(({ y }, n) => chart.append(svg("polyline", { class: `line line${n}`, "stroke-dasharray": CARD.dashes[n],
    points: y.map((v, i) => `${(i / (y.length - 1)) * CARD.wide},${6 + (1 - (level(v) - low) / (high - low || 1)) * (CARD.tall - 12)}`).join(" ") })));
  const names = series.length > 1 ? make("p", { class: "keys" }, ...series.map(({ name }, n) => make("span", { class: `key${n}` }, name.split(",")[0].toUpperCase()))) : "";
  return make("div", {}, chart, names);
}

function cardBars({ rows, limit }) {
  return make("table", { class: "barchart small" }, make("tbody", {}, ...rows.map(([name, value]) => {
    const bar = make("span", { class: "bar plus" });
    bar.style.width = `${(100 * value) / limit}%`;
    return make("tr", {}, make("th", {}, conditionWords(name).replace(/ subject| noun/g, "")), make("td", { class: "bars" }, bar), make("td", {}, `${Math.round(value)} %`));
  })));
}

function cardPairs({ pairs: some }) {
  const said = ([before, word, after]) => [before, " ", make("mark", {}, word), " ", after];
  return make("div", { class: "pairs" }, ...some.map(([asked, nearest]) => make("p", {}, ...said(asked), make("br"), "≈ ", ...said(nearest))));
}

function cardProse({ text: written }) {
  return make("p", { class: "written" }, written);
}

// Attention map.
function cardMap({ rows, columns, weights }) {
  const bare = (unit) => unit.replace(/^▁/, "");
  return make("table", { class: "cardmap" }, make("tbody", {}, ...rows.map((row, n) => make("tr", {}, make("th", {}, bare(row)), ...columns.map((_, i) => {
    const cell = make("td", {});
    paint(cell, weights[n][i], 1);
    return cell;
  }))), make("tr", {}, make("th", {}, ""), ...columns.map((column) => make("td", { class: "name" }, bare(column))))));
}

// Forms for the user's own text and model.
function ownThings(view) {
  const { about } = view;
  const area = make("textarea", { rows: "5", maxlength: String(about.limit?.characters ?? 400000), spellcheck: "false", placeholder: "“Well,” she said, “and now?”" });
  const language = choice([["", "prose"], ["python", "Python"], ["c", "C"]], "", () => {});
  const most = about.limit ? `At most ${about.limit.characters.toLocaleString("en")} characters; this model reads the first ${about.limit.symbols.toLocaleString("en")} ${view.symbols}.` : "";
  return make("div", { class: "halves ownthings" },
    about.kind === "seq2seq" ? null : make("section", { class: "panel" }, make("h3", {}, "Your own text"),
      make("p", {}, `Show the cells of ${about.name} over your text. ${most}`),
      labelled("Text", area), labelled("Language", language), button("Open", () => view.own(area.value, language.value || null), { class: "go" })),
    make("section", { class: "panel" }, make("h3", {}, "Your own model"),
      make("p", {}, "Train a model on any text, name its cells, and open it:"),
      make("pre", { tabindex: "0" }, "relmo train lm book.txt --preset char --out mine\nrelmo analyse cells mine held-out.txt --ablate zero --name-cells\nrelmo explore mine held-out.txt")));
}
