// Meaning: nearest occurrences of a word in context, a projection of all occurrences, and probes by layer.

import { answers, ask, bundle, isMade, jobKey, keep, ready, work } from "./data.js";
import { button, fixed, heading, labelled, make, put, runner, say, tick } from "./dom.js";
import { bars } from "./charts.js";
import { saving } from "./picture.js";
import { planesOf } from "./planes.js";

export function showMeaning(root, view) {
  const { about, state } = view;
  const tagsKey = jobKey("tags", state);
  const top = make("div", {}, heading("One word, several senses", "Its nearest neighbours, without and with context."));
  const result = make("div", {});
  const layered = make("div", {});
  const chosen = make("div", { class: "row", role: "group", "aria-label": "the word" });
  const sentence = make("input", { type: "text", maxlength: "2000", value: state.sentence, oninput: () => {
    view.note({ sentence: sentence.value, position: 0 });
    go.stop();
    isChanged = true;
    clear();
    offer();
  } });
  let isChanged = false; // whether something else was asked for since the screen opened
  const go = runner("Search", async (tell, signal) => {
    isChanged = true;
    clear();
    const found = await work({ what: "mean", model: state.model, text: state.text, sentence: state.sentence,
      position: state.position, same_word: state.same }, tell, signal);
    keep("meaning", state, found);
    draw(found);
  });

  // Remove the answer about another sentence or word.
  function clear() {
    put(top, heading(`“${state.sentence}”`, "Select a word to see its nearest occurrences."));
    put(result);
  }

  // Words separated by spaces, as buttons.
  function offer() {
    const words = state.sentence.split(/\s+/).filter(Boolean);
    put(chosen, ...words.map((word, i) => button(word, () => {
      view.note({ position: i });
      offer();
      chosen.children[i].focus();
      go.run();
    }, { "aria-pressed": String(i === state.position) })));
  }

  const other = [["The children play in the garden .", 2], ["The play was praised by the critics .", 1], ["They sat on the bank of the river .", 4], ["The bank lends money .", 1]];
  const tries = other.map(([words, position]) => button(words, () => {
    sentence.value = words;
    view.note({ sentence: words, position });
    offer();
    go.run();
  }));
  put(root, top, bundle ? "" : make("section", { class: "panel controls" }, make("div", { class: "chips" }, make("span", {}, "Try: "), ...tries),
    labelled("Or type a sentence, with spaces around punctuation, and select a word", sentence), chosen,
    tick("only occurrences of the same word", state.same, (on) => { view.note({ same: on }); go.run(); }), go), result, layered);
  offer();
  const asked = state.sentence !== "The children play in the garden ." || state.position !== 2 || state.same;
  ready("meaning", state).then((found) => {
    if (isChanged) return;
    if (found && (!asked || bundle || isMade("meaning", state))) draw(found);
    else if (!bundle) go.run();
  }).catch((error) => say(error.message));
  layers();

  function names(count) {
    return Array.from({ length: count }, (_, i) => (i ? `Layer ${i}, in its sentence` : "Without context"));
  }

  function draw(found) {
    const called = names(found.layers.length);
    const lists = found.layers.map((layer, i) => make("section", { class: "panel" }, make("h3", {}, called[i]),
      make("ol", { class: "occurrences" }, ...layer.map((each) => make("li", {}, make("b", {}, fixed(each.cosine, 3)), " ",
        each.words.slice(Math.max(0, each.position - 6), each.position).join(" "), " ", make("mark", {}, each.words[each.position]), " ",
        each.words.slice(each.position + 1, each.position + 7).join(" "))))));
    const neighbours = make("section", { class: "panel" }, make("h3", {}, "Static word vectors"),
      found.static.length ? make("ol", { class: "occurrences" }, ...found.static.map(([word, cosine]) => make("li", {}, make("b", {}, fixed(cosine, 3)), ` ${word}`)))
        : make("p", {}, "the word is not in the vocabulary of the static vectors"));
    const word = found.words[found.position];
    const nearest = found.layers.at(-1);
    const same = nearest.filter((each) => each.words[each.position].toLowerCase() === word.toLowerCase()).length;
    put(top, heading(`Of the ${nearest.length} nearest to “${word}” in “${found.words.join(" ")}”, ${same} ${same === 1 ? "is" : "are"} “${word}”`,
      `In the top layer, among ${found.symbols.toLocaleString("en")} words. Read their sentences: do they use the word in the same sense? This text has no sense labels. “Without context” mixes all senses.`));
    const box = make("div", { class: "cards layers" }, ...lists.reverse(), neighbours);
    put(result, make("h3", {}, "Nearest occurrences ", saving(box, `nearest to ${word}`)), box, scatter(found));
  }

  function scatter(found) {
    const { plane } = found;
    const head = make("h3", {}, `Occurrences of “${plane.word}”`);
    if (plane.count < 3) {
      const times = ["does not occur", "occurs once", "occurs twice"][plane.count];
      return make("section", { class: "panel" }, head, make("p", {}, `The word ${times} in this text; a projection needs at least three occurrences. Select another word, or open a longer text.`));
    }
    const some = plane.points.length < plane.count ? `${plane.points.length} of ${plane.count.toLocaleString("en")} occurrences, sampled` : `All ${plane.count} occurrences`;
    return make("section", { class: "panel" }, head,
      make("p", {}, `${some}, projected on their first two principal components, by layer. ${plane.points.some(({ tag }) => tag) ? "Shapes are parts of speech." : "Senses are not labelled in this text; point at an occurrence to read it."}`),
      planesOf(plane, names(plane.layers.length)));
  }

  // Measurements by layer: given, learned by tasks, or computed on a tagged text.
  function layers() {
    const parts = about.figures.map((figure) => make("section", { class: "panel" },
      make("h3", {}, figure.name === "wsd" ? "Word senses by layer" : "Parts of speech by layer"),
      bars(figure.rows.map((row) => [row.name, row.value]), { label: `${figure.title}: accuracy in percent, ${figure.column}`, digits: 1 })));
    const tagged = about.texts.find((each) => each.name === state.text)?.tagged;
    if (tagged && !(bundle && !answers.has(tagsKey))) parts.push(tagPanel());
    const mixed = make("div", {});
    put(layered, ...parts, mixed);
    if (about.mixes) ask("mixes", { model: state.model }).then(({ tasks }) => put(mixed, mixPanel(tasks)), (error) => say(error.message));
    else if (!parts.length && !bundle) {
      put(mixed, make("p", { class: "verdict" }, "Open a .conllu text to train part-of-speech probes on each layer; --figures FILE shows earlier measurements, --beside TASK the layer weights of a trained task."));
    }
  }

  function tagPanel() {
    const place = make("div", {});
    const measure = runner("Measure again", async (tell, signal) => {
      const found = await work({ what: "tags", model: state.model, text: state.text }, tell, signal);
      answers.set(tagsKey, found);
      put(place, tagBars(found));
    });
    if (answers.has(tagsKey)) put(place, tagBars(answers.get(tagsKey)));
    else if (!bundle) measure.run();
    return make("section", { class: "panel" }, make("h3", {}, "Part-of-speech probes by layer"),
      make("p", {}, "A linear probe on each layer is trained on the universal tags of four fifths of the sentences and tested on the others."), place, bundle ? null : measure);
  }

  function tagBars(found) {
    const within = (each) => `${fixed(each.low, 1)} to ${fixed(each.high, 1)}`;
    const rows = found.rows.map((row) => [`${row.name ? `${row.name}, ` : ""}${row.layer ? `layer ${row.layer}` : "without context"}`, row.value, within(row)]);
    rows.push(["the word's most frequent tag", found.most_frequent.value, within(found.most_frequent)]);
    return bars(rows, { label: `accuracy in percent on ${found.asked.toLocaleString("en")} words, with 95 % intervals; trained on ${found.words.toLocaleString("en")}`, digits: 1 });
  }

  function mixPanel(tasks) {
    const drawn = tasks.map(({ task, mixes }) => (mixes.length ? make("div", {}, ...mixes.map((mix) =>
      bars(mix.shares.map((share, i) => [i ? `layer ${i}` : "without context", share]), { label: `${task}, ELMo at the ${mix.name}: γ = ${fixed(mix.gamma, 3)}` })))
      : make("p", {}, `${task} was trained without ELMo.`)));
    return make("section", { class: "panel" }, make("h3", {}, "Layer weights of tasks"),
      make("p", {}, "Learned layer weights, which sum to one, and the scale γ."), ...drawn);
  }

  return { close: () => go.stop(), update: (changed) => (changed.some((name) => ["text", "model"].includes(name)) ? (go.stop(), showMeaning(root, view)) : null) };
}
