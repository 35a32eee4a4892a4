// Compare: two models on one text, and two samples, at first without names.

import { answers, bundle, isMade, jobKey, keep, ready, shownUnit, work } from "./data.js";
import { button, choice, evidence, fixed, grid, heading, labelled, make, put, runner, say, signed } from "./dom.js";
import { paint } from "./colour.js";
import { bars, lines } from "./charts.js";
import { saving } from "./picture.js";
import { capitalised } from "./equations.js";
import { ColouredText, snippet } from "./text.js";
import { classWords } from "./words.js";

export function showCompare(root, view) {
  const { about, state } = view;
  const filmKey = jobKey("emerge", state);
  const top = make("div", {}, heading("Two models, one text", "Orange: this model predicts better. Blue: the other one does."));
  let roll = null;
  const result = make("div", {});
  const others = [["n-gram", "n-gram model of the first half of this text"], ["untrained", "untrained network"],
    ...about.beside.map((name) => [name, name]),
    ...about.examples.filter((each) => each.name !== about.name && each.name !== "small" && each.text && !about.beside.includes(each.name)).map((each) => [each.name, `${each.name}: ${each.about}`])];
  const other = choice(others, state.other || about.compared, (name) => view.note({ other: name }));
  const order = make("input", { type: "number", min: 1, max: 20, value: state.order, onchange: () => view.note({ order: Number(order.value) }) });
  const prompt = make("input", { type: "text", maxlength: "500", value: state.prompt, onchange: () => view.note({ prompt: prompt.value }) });
  const seed = make("input", { type: "number", min: 0, value: state.seed, onchange: () => view.note({ seed: Number(seed.value) || 0 }) });
  const sources = [["", "none"], ...(about.train ? [["train", `${about.train}, the training text`]] : []), ...about.texts.map((each) => [each.name, each.title])];
  const train = choice(sources, state.train || (about.train ? "train" : ""), (name) => view.note({ train: name || "none" }));
  const go = runner("Compare again", async (tell, signal) => {
    const found = await work({ what: "compare", model: state.model, text: state.text, other: other.value, order: Number(order.value) || 6,
      prompt: prompt.value, seed: Number(seed.value) || 0, train: train.value }, tell, signal);
    keep("compare", state, found);
    draw(found);
  });
  const form = bundle ? "" : make("section", { class: "panel controls" }, make("h3", {}, "Comparison settings"),
    make("div", { class: "fields" }, labelled("Compare with", other), labelled("n-gram order", order), labelled("Prompt of the samples", prompt), labelled("Seed", seed), labelled("Search copies in", train)),
    about.train ? null : make("p", { class: "verdict" }, "Start with --train FILE to search copies in the training text."), go);
  put(root, top, result, bundle && !answers.has(filmKey) ? "" : filmPanel(), form);
  const changed = state.other || state.prompt || state.seed || state.train || state.order !== 6;
  ready("compare", state).then((found) => {
    if (found && (!changed || bundle || isMade("compare", state))) draw(found);
    else if (!bundle) go.run();
  }).catch((error) => say(error.message));

  function draw(found) {
    const [first, second] = found.models;
    const [gap, low, high] = found.classes[0].difference;
    const range = low === null ? "text too short for an interval" : `95 % interval ${signed(low, 2)} to ${signed(high, 2)}`;
    const counted = found.counted_on ? " Both are measured on its second half." : "";
    put(top, heading(comparison(found), `${first} needs ${fixed(Math.abs(gap), 2)} bits per ${view.symbol} ${gap > 0 ? "more" : "fewer"} than ${second} (${range}), over ${found.total.toLocaleString("en")} ${view.symbols}.${counted} Orange: ${first} predicts better there. Blue: ${second} did.`));
    const saved = found.symbols.map((_, i) => found.bits[1][i] - found.bits[0][i]);
    const text = new ColouredText(`bits saved by ${first}`, { focused: (i) => {
      at.textContent = `“${found.symbols[i]}”: ${fixed(found.bits[0][i])} bits for ${first}, ${fixed(found.bits[1][i])} for ${second}`;
    } });
    const at = make("p", { role: "status" }, `Point at a ${view.symbol}, or move with the arrow keys.`);
    text.set(found.symbols, found.words ? found.symbols.map((symbol, i) => (i && symbol !== "\n" ? " " : "")) : null);
    text.colour(saved, 6);
    const swatch = (value, label) => {
      const box = make("span", { class: "swatch" }, label);
      paint(box, value, 1);
      return box;
    };
    const rows = found.classes.map((each) => [classWords(view, each.class), each.count.toLocaleString("en"), fixed(each.bits[0], 3), fixed(each.bits[1], 3),
      each.difference[0] === null ? "" : `${signed(each.difference[0], 3)}${each.difference[1] === null ? "" : ` (${signed(each.difference[1], 3)} to ${signed(each.difference[2], 3)})`}`]);
    const picture = make("div", {}, make("p", { class: "scale" }, swatch(1, `${first} is better`), swatch(0, "equal"), swatch(-1, `${second} is better`), " up to 6 bits"), text.element);
    const ranked = found.ranking?.length > 2 ? bars(found.ranking.map(({ model, bits, difference: [more, least, most] }) => [model, bits, more === 0 ? "" : `${signed(more, 2)} (${signed(least, 2)} to ${signed(most, 2)})`]),
      { label: `bits per ${view.symbol} of ${found.ranking.length} networks trained on the same text; fewer are better (difference to the best, 95 % interval)` }) : "";
    put(result, ranked && make("section", { class: "panel" }, ranked), make("div", { class: "pair" }, make("section", { class: "panel" }, make("h3", {}, `Difference in bits by ${view.symbol} `, saving(picture, `${first} and ${second}`)), picture, at,
      evidence("By kind of symbol", grid(["symbols", "count", first, second, "difference (95 %)"], rows,
        { caption: `bits per ${view.symbol} over ${found.total.toLocaleString("en")} ${view.symbols}` }))),
    make("div", {}, blind(found), found.copies ? copiesOf(found.copies) : "")));
  }

  // The better model, if the interval of the paired differences excludes zero.
  function comparison({ models: [first, other], classes: [{ difference: [gap, low, high] }], ranking, counted_on: counted }) {
    const second = counted ? `${other} counted on ${counted}` : other;
    if (ranking?.length > 2) {
      const [best, ...others] = ranking;
      const level = others.filter(({ difference: [, least] }) => least === null || least <= 0).map(({ model }) => model);
      return level.length ? `No clear difference between ${[best.model, ...level].join(" and ")}` : `${best.model} predicts best of ${ranking.length} networks`;
    }
    if (low === null || (low <= 0 && high >= 0)) return `No clear difference between ${first} and ${second}`;
    return gap < 0 ? `${first} predicts better than ${second}` : `${capitalised(second)} predicts better than ${first}`;
  }

  function blind({ samples, copies }) {
    const names = samples.map((sample, i) => make("figcaption", {}, `text ${i + 1}`));
    const reveal = button("Show the names", () => samples.forEach((sample, i) => (names[i].textContent = sample.model)));
    const written = (sample) => (sample.parts ? sample.parts.map(([text, there]) => (there ? make("mark", {}, text) : text)) : [sample.text]);
    return make("section", { class: "panel" }, make("h3", {}, "Two samples: which model wrote which? "), reveal,
      copies ? make("p", { class: "verdict" }, `Marked: copies of at least ${copies.marked} ${view.symbols} from ${copies.of}.`) : null,
      make("div", { class: "halves" }, ...samples.map((sample, i) => make("figure", {}, names[i], make("pre", { tabindex: "0", "aria-label": `text ${i + 1}`, role: "group" }, ...written(sample))))));
  }

  function copiesOf(copies) {
    const rows = copies.rows.map((row) => [row.name, ...row.shares.map((share) => (share === null ? "" : `${fixed(share, 1)} %`)), row.symbols.toLocaleString("en")]);
    return make("section", { class: "panel" }, make("h3", {}, "Copies"),
      grid([`length in ${view.symbols}`, ...copies.lengths.map(String), "searched"], rows,
        { caption: `share that occurs in ${copies.of} (${copies.symbols.toLocaleString("en")} ${view.symbols})` }));
  }

  // The same cell in the untrained network, in every checkpoint, and in the final model.
  function filmPanel() {
    const place = make("div", {});
    const first = state.feature && state.feature !== "none" ? state.feature : view.named()?.feature ?? about.named[0]?.feature ?? about.usual[0] ?? "quotes";
    const feature = choice(about.features.map(({ name, words }) => [name, words]), first, (name) => { view.note({ feature: name }); which.value = unitOf(name); });
    const unitOf = (name) => about.named.find((each) => each.feature === name)?.unit ?? "";
    const units = [...new Set([state.unit, ...about.named.map((each) => each.unit)])].map((unit) => [unit, `${view.called(unit)} (${shownUnit(unit)})`]);
    const which = choice([["", "the best cell of the final model"], ...units], unitOf(first), () => {});
    roll = runner("Run again", async (tell, signal) => {
      const found = await work({ what: "emerge", model: state.model, text: state.text, feature: feature.value, unit: which.value }, tell, signal);
      keep("emerge", state, found);
      film(place, found);
    });
    ready("emerge", state).then((found) => {
      if (found && (bundle || isMade("emerge", state) || (!state.feature && !about.beside.length))) film(place, found);
      else if (!bundle) roll.run();
    }).catch((error) => say(error.message));
    const absent = about.beside.length ? null : make("p", { class: "verdict" },
      "Start with --beside DIR to include the checkpoints of a run; by default there are two states, untrained and trained.");
    return make("section", { class: "panel" }, make("h3", {}, "Emergence of a cell"), place,
      ...(bundle ? [] : [make("div", { class: "controls" }, make("div", { class: "fields" }, labelled("Feature", feature), labelled("Cell", which)), absent ?? "", roll)]));
  }

  function film(place, found) {
    const frames = found.frames.map((_, i) => i);
    const name = view.called(found.unit);
    const gaps = found.words ? found.stretch.map((symbol, i) => (i && symbol !== "\n" ? " " : "")) : null;
    const least = Math.min(...found.track);
    const middle = (least + Math.max(...found.track)) / 2;
    const frame = (title, values, scale) => make("li", {}, make("figure", {}, make("figcaption", {}, title), snippet(found.stretch, values, scale, gaps)));
    put(place, lines([{ name: `|r| of ${name}`, x: frames, y: found.frames.map((each) => Math.abs(each.r)) },
      { name: "|r| of the best cell of the checkpoint", x: frames, y: found.frames.map((each) => Math.abs(each.best_r)) }],
    { label: `correlation of ${name} with ${view.feature(found.feature)}, by checkpoint`, x: "", y: "|r|", width: 520, height: 260, zero: true, names: found.frames.map((each) => each.model) }),
    found.left_out.length ? make("p", { class: "verdict" }, `Omitted, as they have other cells: ${found.left_out.join(", ")}.`) : "",
    make("ol", { class: "film" }, frame(`truth: ${view.feature(found.feature)}`, found.track.map((value) => value - middle), middle - least || 1),
      ...found.frames.map((each) => frame(`${each.model}: r ${signed(each.r, 2)}; best cell: ${view.called(each.best_unit)} (${shownUnit(each.best_unit)}), ${signed(each.best_r, 2)}`, each.values, each.scale))));
  }

  return { close: () => { go.stop(); roll?.stop(); }, update: (changed) => (changed.some((name) => ["text", "model"].includes(name)) ? (go.stop(), roll?.stop(), showCompare(root, view)) : null) };
}
