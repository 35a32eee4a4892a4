// Write: distribution of the next symbol, sampling step by step, the tree of a beam search, and samples of n-gram models.

import { ask, bundle, getCached } from "./data.js";
import { button, dropdown, field, heading, make, makePressable, notify, put, showWhitespace, svg } from "./dom.js";
import { saveButtons } from "./picture.js";

const DECODING_METHODS = [["draw", "sampling"], ["greedy", "greedy decoding"], ["beam", "beam search"]];
const PLAY_INTERVAL = 260; // milliseconds between symbols during playback
const MIN_STEP_WIDTH = 58; // pixels per step of the tree

export function showWrite(root, view) {
  const { about, state } = view;
  const head = make("div", {});
  const text = make("p", { class: "writing", "aria-live": "polite", "aria-label": "the text so far" });
  const bars = make("div", {});
  const steps = make("div", { class: "stepper" });
  const controls = make("div", { class: "fields tight" });
  const samples = make("section", { class: "panel" });
  put(root, head, text, steps, make("div", { class: "writeboth" }, bars, make("section", { class: "panel" }, controls)), samples);
  let prediction = null;
  let bestSymbol = null;
  let isPlaying = false;
  let timer = 0;
  let latestRequest = 0; // number of the newest request; earlier answers are dropped
  let isDrawing = false;
  let numPending = 0; // steps that wait for the previous answer
  if (state.prompt === "" && !state.started) view.saveState({ prompt: about.prompt, started: true });

  const parseIds = (taken = state.taken) => (taken ? taken.split(",").map(Number) : []);
  const samplingParams = () => ({ temperature: state.how === "greedy" ? 0 : state.temperature, top_k: state.how === "draw" ? state.topk : 0, top_p: state.how === "draw" ? state.topp : 0 });

  function draw() {
    isDrawing = true;
    const request = ++latestRequest;
    return redraw(request).catch((error) => {
      if (request !== latestRequest) return;
      [isDrawing, numPending] = [false, 0];
      halt();
      throw error;
    });
  }

  async function redraw(request) {
    const isBeam = state.how === "beam";
    const source = { model: state.model, prompt: state.prompt, taken: state.taken };
    const [next, tree] = await Promise.all([ask("next", { ...source, ...samplingParams(), seed: state.seed }), isBeam ? ask("beam", { ...source, beams: state.width, deep: state.deep }) : null]);
    if (request !== latestRequest) return;
    prediction = { ...next, source };
    bestSymbol = tree?.texts.length && tree.nodes.length ? tree.nodes[tree.texts[0].path[0]]?.symbol ?? "</s>" : null;
    drawTitle(tree);
    drawText();
    drawButtons();
    put(bars, isBeam ? drawTree(tree) : drawBars());
    isDrawing = false;
    if (prediction.ended) numPending = 0;
    clearTimeout(timer);
    if (numPending) advance();
    else if (isPlaying && prediction.ended) play();
    else if (isPlaying) timer = setTimeout(step, PLAY_INTERVAL);
  }

  const quoteSymbol = (symbol) => (symbol === "</s>" || symbol === null ? "the end" : `“${showWhitespace(symbol)}”`);

  // Return the next symbol: the sampled one, or the first of the best hypothesis.
  function getNextId() {
    if (!bestSymbol) return prediction.drawn;
    return prediction.bars.find(([, symbol]) => symbol === bestSymbol)?.[0] ?? prediction.drawn;
  }

  function drawTitle(tree) {
    if (prediction.ended) return put(head, heading("The model has ended the text", "Undo a step, or start again."));
    const [, symbol, p] = prediction.bars[0];
    const context = (prediction.prompt + prediction.pieces.join("")).slice(-14).replaceAll("\n", "↵");
    if (tree) return put(head, heading(`Beam search keeps the ${tree.beams} most probable texts at each step`, "Each column is one step; a branch that ends was pruned. The thick path is the best text. Select a symbol to take the path to it."));
    put(head, heading(context ? make("span", {}, "After ", make("code", {}, context.replace(/ $/, "␣")), ` the model predicts ${quoteSymbol(symbol)} (${Math.round(100 * p)} %)`) : `The model begins with ${quoteSymbol(symbol)} (${Math.round(100 * p)} %)`,
      "Each bar is the probability of a next symbol. Select one to append it; Enter appends the sampled symbol, Backspace removes the last one, Space plays."));
  }

  function drawText() {
    put(text, make("span", { class: "rest" }, prediction.prompt), ...prediction.pieces.map((piece, n) => button(piece.replaceAll("\n", "↵\n"), () => jump(parseIds(prediction.source.taken).slice(0, n + 1)), { class: "plain piece", "aria-label": `back to ${showWhitespace(piece.trim() || piece)}` })),
      make("span", { class: "cursor", "aria-hidden": "true" }, prediction.ended ? "■" : "▏"));
  }

  function drawButtons() {
    const nextBar = prediction.bars.find(([id]) => id === getNextId());
    put(steps, button("◀ Undo", undo, { disabled: !state.taken }),
      button(nextBar ? `Take ${quoteSymbol(nextBar[1])}` : "Step", step, { class: "go", disabled: prediction.ended }),
      button(isPlaying ? "❚❚ Pause" : "▶ Play", play, { disabled: prediction.ended }), button("Start again", () => { halt(); jump([]); }, { disabled: !state.taken }),
      make("small", {}, prediction.ended ? "ended" : `perplexity ${Math.max(1, 2 ** prediction.bits).toFixed(1)} (entropy ${prediction.bits.toFixed(1)} bits)`));
  }

  function drawBars() {
    if (prediction.ended) return make("p", {}, "Nothing comes after the end.");
    const maxProbability = Math.max(...prediction.bars.map(([, , p, q]) => Math.max(p, q)), 0.01);
    const rows = prediction.bars.map(([id, symbol, p, q]) => {
      const [modelBar, samplingBar] = [make("span", { class: "bar grey" }), make("span", { class: "bar plus" })];
      modelBar.style.width = `${(100 * p) / maxProbability}%`;
      samplingBar.style.width = `${(100 * q) / maxProbability}%`;
      const row = button("", () => jump([...parseIds(prediction.source.taken), id]), { class: `next${q === 0 ? " out" : ""}${id === prediction.drawn ? " drawn" : ""}`, "aria-label": `take ${quoteSymbol(symbol)}: ${formatProbability(p)} in the model, ${formatProbability(q)} when sampling` });
      row.append(make("b", {}, symbol === "</s>" ? "(end)" : showWhitespace(symbol)), make("span", { class: "twobars" }, modelBar, samplingBar), make("span", { class: "number" }, q === 0 ? "excluded" : formatProbability(q)));
      return make("li", {}, row);
    });
    const figure = make("figure", { class: "nextbars" }, make("ul", { class: "legend" }, make("li", {}, make("span", { class: "swatch grey" }, " "), " model probability"),
      make("li", {}, make("span", { class: "swatch plus" }, " "), " sampling probability"), make("li", {}, make("span", { class: "swatch framed" }, " "), " sampled symbol")), make("ol", {}, ...rows),
    prediction.rest > 0.0005 ? make("p", { class: "verdict" }, `${(prediction.of - prediction.bars.length).toLocaleString("en")} other symbols: ${formatProbability(prediction.rest)}`) : "");
    figure.append(saveButtons(figure, "next symbol"));
    return figure;
  }

  function drawTree(tree) {
    if (!tree.nodes.length) return make("p", {}, "Nothing comes after the end.");
    const figure = make("figure", { class: "beamtree" }, drawBeamTree(tree, (path) => takePath(tree, path)),
      make("ol", { class: "texts" }, ...tree.texts.map((hypothesis) => make("li", {}, make("b", {}, `${(100 * Math.exp(hypothesis.log_prob)).toPrecision(2)} % `), hypothesis.text.slice(tree.prompt.length).replaceAll("\n", "↵"), hypothesis.ended ? " (end)" : " …"))));
    figure.append(saveButtons(figure, "beam search"));
    return figure;
  }

  // Take the path to a node of the tree, symbol by symbol.
  async function takePath(tree, path) {
    const newIds = parseIds(prediction.source.taken);
    const request = latestRequest;
    for (const node of path) {
      const expected = tree.nodes[node].symbol ?? "</s>";
      const next = await ask("next", { model: state.model, prompt: state.prompt, taken: newIds.join(","), temperature: 1, top_k: 0, top_p: 0, seed: 0 });
      const bar = next.bars.find(([, symbol]) => symbol === expected);
      if (!bar) break;
      newIds.push(bar[0]);
    }
    if (request === latestRequest) jump(newIds);
  }

  // Continue from the displayed text with other symbols; pending steps are dropped.
  function jump(newIds) {
    numPending = 0;
    if (prediction.source.prompt === state.prompt) take(newIds);
  }

  function take(newIds) {
    if (bundle && !getCached("next", { model: state.model, prompt: state.prompt, taken: newIds.join(","), ...samplingParams(), seed: state.seed })) return halt(), drawButtons(), notify("This saved page has only one text; select Take.");
    view.set({ taken: newIds.join(",") });
  }

  function step() {
    numPending++;
    if (!isDrawing) advance();
  }

  // Append the symbol computed for the displayed text.
  function advance() {
    numPending--;
    if (prediction && !prediction.ended) take([...parseIds(), getNextId()]);
  }

  function undo() {
    halt();
    if (numPending) numPending--;
    else take(parseIds().slice(0, -1));
  }

  function halt() {
    isPlaying = false;
    clearTimeout(timer);
  }

  function play() {
    if (isPlaying) halt();
    else isPlaying = true;
    if (isPlaying && prediction && !isDrawing) step();
    if (prediction) drawButtons();
  }

  function setControls() {
    const prompt = make("input", { type: "text", value: state.prompt, maxlength: "2000", spellcheck: "false", onchange: () => { halt(); numPending = 0; view.set({ prompt: prompt.value, taken: "", started: true }); } });
    const createRange = (name, min, max, increment, format) => {
      const value = make("output", {}, format(state[name]));
      const range = make("input", { type: "range", min, max, step: increment, value: state[name], oninput: () => { value.textContent = format(Number(range.value)); view.set({ [name]: Number(range.value) }); } });
      return [range, value];
    };
    const sliderField = (label, [range, value]) => field(label, range).appendChild(value).parentElement;
    const fields = [field("Prompt", prompt), field("Decoding", dropdown(DECODING_METHODS, state.how, (method) => { view.set({ how: method }); setControls(); }))];
    if (state.how === "draw") {
      fields.push(sliderField("Temperature", createRange("temperature", 0.1, 2, 0.1, (v) => v.toFixed(1))),
        sliderField("Top-k", createRange("topk", 0, 20, 1, (v) => (v ? String(v) : "all"))),
        sliderField("Top-p", createRange("topp", 0, 1, 0.05, (v) => (v ? v.toFixed(2) : "all"))));
      const seed = make("input", { type: "number", min: 0, max: 1e6, value: state.seed, onchange: () => view.set({ seed: Math.max(0, Math.round(Number(seed.value) || 0)) }) });
      fields.push(field("Seed", seed));
    }
    if (state.how === "beam") {
      fields.push(sliderField("Beams", createRange("width", 1, 6, 1, String)), sliderField("Depth", createRange("deep", 2, 20, 1, String)));
    }
    put(controls, ...(bundle ? [make("p", { class: "verdict" }, "This saved page has one sampled text and the tree of one beam search."), fields[1]] : fields));
  }

  async function drawNgrams() {
    if (bundle) return put(samples, make("p", { class: "verdict" }, "Start relmo explore for other prompts and samples."));
    put(samples, make("h3", {}, "Samples of n-gram models"), make("p", { class: "loading" }, "counting…"));
    const params = { model: state.model, text: state.text || about.first, prompt: state.prompt, temperature: state.temperature, top_k: 0, top_p: 0, seed: state.seed };
    const response = await ask("ngrams", params);
    const parts = response.samples.map((sample) => make("figure", {}, make("figcaption", {}, sample.order ? `${sample.order}-gram: ${describeContext(sample.order)}` : sample.name), make("pre", { tabindex: "0" }, sample.text)));
    put(samples, make("h3", {}, "Samples of n-gram models with the same prompt"),
      make("p", { class: "verdict" }, `The n-grams are counted on “${response.title}” (${response.symbols.toLocaleString("en")} symbols), not on the training text of the network: compare the spelling and the coherence, not the words.`),
      make("div", { class: "cards" }, ...parts));
  }

  const describeContext = (order) => (order === 1 ? "no context" : order === 2 ? "context of 1 symbol" : `context of ${order - 1} symbols`);
  setControls();
  draw().catch((error) => { notify(error.message); put(head, heading("This view needs a running explorer", error.message)); });
  if (!/^(hello|counting|thousand)$/.test(about.first)) drawNgrams().catch((error) => put(samples, make("p", {}, error.message)));
  else samples.remove();
  return {
    update: (changedNames) => {
      if (changedNames.includes("text") || changedNames.includes("prompt")) { setControls(); if (samples.isConnected) drawNgrams().catch(() => {}); }
      return draw().catch((error) => notify(error.message));
    },
    close: halt,
    key(event) {
      const action = { Enter: step, Backspace: undo, " ": play }[event.key];
      if (!action || (event.target.closest("a, button, summary") && event.key !== "Backspace")) return false;
      action();
      return true;
    },
  };
}

function formatProbability(p) {
  return p >= 0.0995 ? `${Math.round(100 * p)} %` : p >= 0.0005 ? `${(100 * p).toFixed(1)} %` : "0 %";
}

// Draw the nodes of a beam search in columns, more probable ones higher.
function drawBeamTree(tree, onSelect) {
  const nodes = tree.nodes.map((node, n) => ({ ...node, n, depth: 0, children: [] }));
  const root = { n: -1, depth: 0, children: [] };
  for (const node of nodes) {
    const parent = node.parent < 0 ? root : nodes[node.parent];
    node.depth = parent.depth + 1;
    parent.children.push(node);
  }
  let rows = 0;
  const placeRows = (node) => {
    node.children.sort((a, b) => b.log_prob - a.log_prob);
    node.children.forEach(placeRows);
    node.y = node.children.length ? node.children[0].y : rows++;
  };
  placeRows(root);
  const bestPath = new Set(tree.texts[0]?.path ?? []);
  const surviving = new Set(tree.texts.flatMap((hypothesis) => hypothesis.path));
  const [maxDepth, rowHeight] = [Math.max(...nodes.map((node) => node.depth)), 30];
  const columnWidth = Math.max(MIN_STEP_WIDTH, 44 + 8 * Math.max(...nodes.map((node) => node.symbol?.length ?? 3)));
  const [width, height] = [maxDepth * columnWidth + 70, rows * rowHeight + 16];
  const x = (node) => 24 + node.depth * columnWidth;
  const y = (node) => 18 + node.y * rowHeight;
  const chart = svg("svg", { width, height, viewBox: `0 0 ${width} ${height}`, class: "chart tree", role: "group", "aria-label": `tree of a beam search: ${tree.texts.map((hypothesis) => hypothesis.text.slice(tree.prompt.length)).join("; ")}` });
  for (const node of [...nodes].sort((a, b) => bestPath.has(a.n) - bestPath.has(b.n))) {
    const parent = node.parent < 0 ? root : nodes[node.parent];
    const kind = bestPath.has(node.n) ? "best" : surviving.has(node.n) ? "live" : "given";
    chart.append(svg("path", { d: `M${x(parent) + (parent.n < 0 ? 4 : 14)} ${y(parent)} C${x(node) - 30} ${y(parent)} ${x(node) - 30} ${y(node)} ${x(node) - 14} ${y(node)}`, class: `branch ${kind}` }));
  }
  chart.append(svg("text", { x: 8, y: 22 }, "…"));
  for (const node of nodes) {
    const kind = bestPath.has(node.n) ? "best" : surviving.has(node.n) ? "live" : "given";
    const path = [];
    for (let ancestor = node; ancestor.n >= 0; ancestor = ancestor.parent < 0 ? root : nodes[ancestor.parent]) path.unshift(ancestor.n);
    const parentLogProb = node.parent < 0 ? 0 : nodes[node.parent].log_prob;
    const label = node.symbol === null ? "end" : showWhitespace(node.symbol);
    const part = svg("g", { class: `twig ${kind}` }, svg("rect", { x: x(node) - 14, y: y(node) - 12, width: Math.max(28, label.length * 8 + 12), height: 24, rx: 5 }),
      svg("text", { x: x(node) - 14 + Math.max(28, label.length * 8 + 12) / 2, y: y(node) + 5, "text-anchor": "middle" }, label));
    const chance = `${formatProbability(Math.exp(node.log_prob - parentLogProb))} here, ${(100 * Math.exp(node.log_prob)).toPrecision(2)} % for the whole text`;
    chart.append(makePressable(part, () => onSelect(path), chance, `${label}: ${chance}`));
  }
  return make("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "the tree of the search" }, chart);
}
