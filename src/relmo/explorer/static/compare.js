// Compare: two models on one text, and two samples, first without their names.

import { answers, bundle, shownUnit, work } from "./data.js";
import { button, choice, fixed, grid, labelled, make, put, runner, signed } from "./dom.js";
import { colour } from "./colour.js";
import { lines } from "./charts.js";
import { ColouredText, snippet } from "./text.js";

export function showCompare(root, view) {
  const { about, state } = view;
  const key = `job:compare:${state.model}:${state.text}`;
  const filmKey = `job:emerge:${state.model}:${state.text}`;
  const result = make("div", {});
  const others = [["untrained", "the same network untrained"], ["n-gram", "an n-gram model, counted on the first half of this text"],
    ...about.beside.map((name) => [name, name]),
    ...about.examples.filter((each) => each.name !== about.name && each.name !== "small" && !about.beside.includes(each.name)).map((each) => [each.name, each.name])];
  const other = choice(others, state.other || others[0][0], (name) => view.note({ other: name }));
  const order = make("input", { type: "number", min: 1, max: 20, value: state.order, onchange: () => view.note({ order: Number(order.value) }) });
  const prompt = make("input", { type: "text", maxlength: "500", value: state.prompt, onchange: () => view.note({ prompt: prompt.value }) });
  const seed = make("input", { type: "number", min: 0, value: state.seed, onchange: () => view.note({ seed: Number(seed.value) || 0 }) });
  const sources = [["", "look for no copies"], ...(about.train ? [["train", `${about.train}, the training text`]] : []), ...about.texts.map((each) => [each.name, each.title])];
  const train = choice(sources, state.train || (about.train ? "train" : ""), (name) => view.note({ train: name || "none" }));
  const go = runner("Compare", async (tell, signal) => {
    const found = await work({ what: "compare", model: state.model, text: state.text, other: other.value, order: Number(order.value) || 6,
      prompt: prompt.value, seed: Number(seed.value) || 0, train: train.value }, tell, signal);
    answers.set(key, found);
    draw(found);
  });
  put(root, make("section", { class: "panel" }, make("h2", {}, "Beside another model"),
    bundle ? null : make("div", { class: "fields" }, labelled("Compare with", other), labelled("n of the n-gram", order), labelled("Prompt of the samples", prompt), labelled("Seed", seed), labelled("Copied from", train)),
    bundle || about.train ? null : make("p", { class: "verdict" }, "--train FILE names the text the model was trained on, in which copies are looked for."),
    bundle ? null : go), result, bundle && !answers.has(filmKey) ? "" : filmPanel());
  if (answers.has(key)) draw(answers.get(key));

  function draw(found) {
    const [first, second] = found.models;
    const saved = found.symbols.map((_, i) => found.bits[1][i] - found.bits[0][i]);
    const text = new ColouredText(`bits saved by ${first}`, { focused: (i) => {
      at.textContent = `“${found.symbols[i]}”: ${fixed(found.bits[0][i])} bits for ${first}, ${fixed(found.bits[1][i])} for ${second}`;
    } });
    const at = make("p", { role: "status" }, "Point at a symbol, or move with the arrow keys.");
    text.set(found.symbols, found.words ? found.symbols.map((symbol, i) => (i && symbol !== "\n" ? " " : "")) : null);
    text.colour(saved, 6);
    const swatch = (value, label) => {
      const box = make("span", { class: "swatch" }, label);
      box.style.backgroundColor = colour(value, 1);
      return box;
    };
    const rows = found.classes.map((each) => [each.class, each.count.toLocaleString("en"), fixed(each.bits[0], 3), fixed(each.bits[1], 3),
      each.difference[0] === null ? "" : `${signed(each.difference[0], 3)}${each.difference[1] === null ? "" : ` (${signed(each.difference[1], 3)} to ${signed(each.difference[2], 3)})`}`]);
    put(result, blind(found), found.copies ? copiesOf(found.copies) : "",
      make("section", { class: "panel" }, make("h2", {}, "What each symbol costs"),
        make("p", { class: "scale" }, swatch(1, `${first} is better`), swatch(0, "alike"), swatch(-1, `${second} is better`), " up to 6 bits"), text.element, at),
      make("section", { class: "panel" }, grid(["symbols", "count", first, second, "difference (95 %)"], rows,
        { caption: `bits a symbol over ${found.total.toLocaleString("en")} symbols` })));
  }

  function blind({ samples, copies }) {
    const names = samples.map((sample, i) => make("figcaption", {}, `text ${i + 1}`));
    const reveal = button("Which is which?", () => samples.forEach((sample, i) => (names[i].textContent = sample.model)));
    const written = (sample) => (sample.parts ? sample.parts.map(([text, there]) => (there ? make("mark", {}, text) : text)) : [sample.text]);
    return make("section", { class: "panel" }, make("h2", {}, "Two samples, the same seed"), reveal,
      copies ? make("p", { class: "verdict" }, `Marked: stretches of ${copies.marked} symbols or more that stand in ${copies.of} as they are.`) : null,
      make("div", { class: "halves" }, ...samples.map((sample, i) => make("figure", {}, names[i], make("pre", { tabindex: "0", "aria-label": `text ${i + 1}`, role: "group" }, ...written(sample))))));
  }

  function copiesOf(copies) {
    const rows = copies.rows.map((row) => [row.name, ...row.shares.map((share) => (share === null ? "" : `${fixed(share, 1)} %`)), row.symbols.toLocaleString("en")]);
    return make("section", { class: "panel" }, make("h2", {}, "How much is copied?"),
      grid(["stretches of so many symbols", ...copies.lengths.map(String), "looked at"], rows,
        { caption: `share that stands in ${copies.of} (${copies.symbols.toLocaleString("en")} symbols) as it is` }));
  }

  // The same unit in the network untrained, in every checkpoint, and now.
  function filmPanel() {
    const place = make("div", {});
    const feature = choice(about.features.map(({ name }) => [name, name.replaceAll("_", " ")]), state.feature || "quotes", (name) => view.note({ feature: name }));
    const which = choice([["", "the one that goes with it best in the end"], [state.unit, `unit ${shownUnit(state.unit)}, the one you look at`]], "", () => {});
    const roll = runner("Show the film", async (tell, signal) => {
      const found = await work({ what: "emerge", model: state.model, text: state.text, feature: feature.value, unit: which.value }, tell, signal);
      answers.set(filmKey, found);
      film(place, found);
    });
    if (answers.has(filmKey)) film(place, answers.get(filmKey));
    const absent = about.beside.length ? null : make("p", { class: "verdict" },
      "With --beside DIR, the checkpoints of a run, the film has a picture of each; without, it has two: the network untrained, and as it is.");
    return make("section", { class: "panel" }, make("h2", {}, "When did this cell appear?"),
      ...(bundle ? [] : [make("div", { class: "fields" }, labelled("Feature", feature), labelled("Unit", which)), absent, roll]), place);
  }

  function film(place, found) {
    const frames = found.frames.map((_, i) => i);
    const name = shownUnit(found.unit);
    const gaps = found.words ? found.stretch.map((symbol, i) => (i && symbol !== "\n" ? " " : "")) : null;
    const least = Math.min(...found.track);
    const middle = (least + Math.max(...found.track)) / 2;
    const frame = (title, values, scale) => make("li", {}, make("figure", {}, make("figcaption", {}, title), snippet(found.stretch, values, scale, gaps)));
    put(place, lines([{ name: `|r| of ${name}`, x: frames, y: found.frames.map((each) => Math.abs(each.r)) },
      { name: "|r| of the best unit then", x: frames, y: found.frames.map((each) => Math.abs(each.best_r)) }],
    { label: `how well ${name} goes with ${found.feature}, by checkpoint`, x: "", y: `|r| with ${found.feature}`, width: 520, height: 260, zero: true, names: found.frames.map((each) => each.model) }),
    found.left_out.length ? make("p", { class: "verdict" }, `Left out, as they have other units: ${found.left_out.join(", ")}.`) : "",
    make("ol", { class: "film" }, frame(`${found.feature}, what is looked for`, found.track.map((value) => value - middle), middle - least || 1),
      ...found.frames.map((each) => frame(`${each.model}: r of ${name} is ${signed(each.r, 2)}; the best then is ${shownUnit(each.best_unit)}, ${signed(each.best_r, 2)}`, each.values, each.scale))));
  }

  return { update: (changed) => (changed.some((name) => ["text", "model"].includes(name)) ? showCompare(root, view) : null) };
}
