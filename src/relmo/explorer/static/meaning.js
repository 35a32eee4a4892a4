// Meaning: nearest occurrences of a word in context, a projection of all occurrences, and probes by layer.

import { ask, bundle, cachedAnswers, getResult, isComputedHere, jobKey, runJob, storeResult } from "./data.js";
import { button, checkbox, field, formatFixed, heading, make, notify, put, runner } from "./dom.js";
import { bars } from "./charts.js";
import { saveButtons } from "./picture.js";
import { drawPlanes } from "./planes.js";

export function showMeaning(root, view) {
  const { about, state } = view;
  const tagsKey = jobKey("tags", state);
  const top = make("div", {}, heading("One word, several senses", "Its nearest neighbours, without and with context."));
  const result = make("div", {});
  const layerPanels = make("div", {});
  const wordButtons = make("div", { class: "row", role: "group", "aria-label": "the word" });
  const sentence = make("input", { type: "text", maxlength: "2000", value: state.sentence, oninput: () => {
    view.saveState({ sentence: sentence.value, position: 0 });
    searchRunner.stop();
    isChanged = true;
    clear();
    drawWordButtons();
  } });
  let isChanged = false; // whether the query changed since the view was opened
  const searchRunner = runner("Search", async (onProgress, signal) => {
    isChanged = true;
    clear();
    const occurrences = await runJob({ what: "mean", model: state.model, text: state.text, sentence: state.sentence,
      position: state.position, same_word: state.same }, onProgress, signal);
    storeResult("meaning", state, occurrences);
    draw(occurrences);
  });

  // Remove the results for the previous sentence or word.
  function clear() {
    put(top, heading(`“${state.sentence}”`, "Select a word to see its nearest occurrences."));
    put(result);
  }

  // Draw the words of the sentence as buttons.
  function drawWordButtons() {
    const words = state.sentence.split(/\s+/).filter(Boolean);
    put(wordButtons, ...words.map((word, i) => button(word, () => {
      view.saveState({ position: i });
      drawWordButtons();
      wordButtons.children[i].focus();
      searchRunner.run();
    }, { "aria-pressed": String(i === state.position) })));
  }

  const examples = [["The children play in the garden .", 2], ["The play was praised by the critics .", 1], ["They sat on the bank of the river .", 4], ["The bank lends money .", 1]];
  const exampleButtons = examples.map(([words, position]) => button(words, () => {
    sentence.value = words;
    view.saveState({ sentence: words, position });
    drawWordButtons();
    searchRunner.run();
  }));
  put(root, top, bundle ? "" : make("section", { class: "panel controls" }, make("div", { class: "chips" }, make("span", {}, "Try: "), ...exampleButtons),
    field("Or type a sentence, with spaces around punctuation, and select a word", sentence), wordButtons,
    checkbox("only occurrences of the same word", state.same, (on) => { view.saveState({ same: on }); searchRunner.run(); }), searchRunner), result, layerPanels);
  drawWordButtons();
  const hasSettings = state.sentence !== "The children play in the garden ." || state.position !== 2 || state.same;
  getResult("meaning", state).then((occurrences) => {
    if (isChanged) return;
    if (occurrences && (!hasSettings || bundle || isComputedHere("meaning", state))) draw(occurrences);
    else if (!bundle) searchRunner.run();
  }).catch((error) => notify(error.message));
  drawLayers();

  function layerNames(count) {
    return Array.from({ length: count }, (_, i) => (i ? `Layer ${i}, in its sentence` : "Without context"));
  }

  function draw(occurrences) {
    const titles = layerNames(occurrences.layers.length);
    const lists = occurrences.layers.map((layer, i) => make("section", { class: "panel" }, make("h3", {}, titles[i]),
      make("ol", { class: "occurrences" }, ...layer.map((occurrence) => make("li", {}, make("b", {}, formatFixed(occurrence.cosine, 3)), " ",
        occurrence.words.slice(Math.max(0, occurrence.position - 6), occurrence.position).join(" "), " ", make("mark", {}, occurrence.words[occurrence.position]), " ",
        occurrence.words.slice(occurrence.position + 1, occurrence.position + 7).join(" "))))));
    const neighbours = make("section", { class: "panel" }, make("h3", {}, "Static word vectors"),
      occurrences.static.length ? make("ol", { class: "occurrences" }, ...occurrences.static.map(([word, cosine]) => make("li", {}, make("b", {}, formatFixed(cosine, 3)), ` ${word}`)))
        : make("p", {}, "the word is not in the vocabulary of the static vectors"));
    const word = occurrences.words[occurrences.position];
    const nearest = occurrences.layers.at(-1);
    const numSameWord = nearest.filter((occurrence) => occurrence.words[occurrence.position].toLowerCase() === word.toLowerCase()).length;
    put(top, heading(`Of the ${nearest.length} nearest to “${word}” in “${occurrences.words.join(" ")}”, ${numSameWord} ${numSameWord === 1 ? "is" : "are"} “${word}”`,
      `In the top layer, among ${occurrences.symbols.toLocaleString("en")} words. Read their sentences: do they use the word in the same sense? This text has no sense labels. “Without context” mixes all senses.`));
    const box = make("div", { class: "cards layers" }, ...lists.reverse(), neighbours);
    put(result, make("h3", {}, "Nearest occurrences ", saveButtons(box, `nearest to ${word}`)), box, drawScatter(occurrences));
  }

  function drawScatter(occurrences) {
    const { plane } = occurrences;
    const head = make("h3", {}, `Occurrences of “${plane.word}”`);
    if (plane.count < 3) {
      const times = ["does not occur", "occurs once", "occurs twice"][plane.count];
      return make("section", { class: "panel" }, head, make("p", {}, `The word ${times} in this text; a projection needs at least three occurrences. Select another word, or open a longer text.`));
    }
    const sampleNote = plane.points.length < plane.count ? `${plane.points.length} of ${plane.count.toLocaleString("en")} occurrences, sampled` : `All ${plane.count} occurrences`;
    return make("section", { class: "panel" }, head,
      make("p", {}, `${sampleNote}, projected on their first two principal components, by layer. ${plane.points.some(({ tag }) => tag) ? "Shapes are parts of speech." : "Senses are not labelled in this text; point at an occurrence to read it."}`),
      drawPlanes(plane, layerNames(plane.layers.length)));
  }

  // Draw measurements by layer: precomputed, learned by tasks, or computed on a tagged text.
  function drawLayers() {
    const parts = about.figures.map((figure) => make("section", { class: "panel" },
      make("h3", {}, figure.name === "wsd" ? "Word senses by layer" : "Parts of speech by layer"),
      bars(figure.rows.map((row) => [row.name, row.value]), { label: `${figure.title}: accuracy in percent, ${figure.column}`, digits: 1 })));
    const isTagged = about.texts.find((passage) => passage.name === state.text)?.tagged;
    if (isTagged && !(bundle && !cachedAnswers.has(tagsKey))) parts.push(createTagPanel());
    const mixContainer = make("div", {});
    put(layerPanels, ...parts, mixContainer);
    if (about.mixes) ask("mixes", { model: state.model }).then(({ tasks }) => put(mixContainer, createMixPanel(tasks)), (error) => notify(error.message));
    else if (!parts.length && !bundle) {
      put(mixContainer, make("p", { class: "verdict" }, "Open a .conllu text to train part-of-speech probes on each layer; --figures FILE shows earlier measurements, --beside TASK the layer weights of a trained task."));
    }
  }

  function createTagPanel() {
    const container = make("div", {});
    const measure = runner("Measure again", async (onProgress, signal) => {
      const accuracies = await runJob({ what: "tags", model: state.model, text: state.text }, onProgress, signal);
      cachedAnswers.set(tagsKey, accuracies);
      put(container, drawTagBars(accuracies));
    });
    if (cachedAnswers.has(tagsKey)) put(container, drawTagBars(cachedAnswers.get(tagsKey)));
    else if (!bundle) measure.run();
    return make("section", { class: "panel" }, make("h3", {}, "Part-of-speech probes by layer"),
      make("p", {}, "A linear probe on each layer is trained on the universal tags of four fifths of the sentences and tested on the others."), container, bundle ? null : measure);
  }

  function drawTagBars(accuracies) {
    const formatInterval = (accuracy) => `${formatFixed(accuracy.low, 1)} to ${formatFixed(accuracy.high, 1)}`;
    const rows = accuracies.rows.map((row) => [`${row.name ? `${row.name}, ` : ""}${row.layer ? `layer ${row.layer}` : "without context"}`, row.value, formatInterval(row)]);
    rows.push(["the word's most frequent tag", accuracies.most_frequent.value, formatInterval(accuracies.most_frequent)]);
    return bars(rows, { label: `accuracy in percent on ${accuracies.asked.toLocaleString("en")} words, with 95 % intervals; trained on ${accuracies.words.toLocaleString("en")}`, digits: 1 });
  }

  function createMixPanel(tasks) {
    const charts = tasks.map(({ task, mixes }) => (mixes.length ? make("div", {}, ...mixes.map((mix) =>
      bars(mix.shares.map((share, i) => [i ? `layer ${i}` : "without context", share]), { label: `${task}, ELMo at the ${mix.name}: γ = ${formatFixed(mix.gamma, 3)}` })))
      : make("p", {}, `${task} was trained without ELMo.`)));
    return make("section", { class: "panel" }, make("h3", {}, "Layer weights of tasks"),
      make("p", {}, "Learned layer weights, which sum to one, and the scale γ."), ...charts);
  }

  return { close: () => searchRunner.stop(), update: (changedNames) => (changedNames.some((name) => ["text", "model"].includes(name)) ? (searchRunner.stop(), showMeaning(root, view)) : null) };
}
