// Write: distribution of the next symbol, sampling step by step, the tree of a beam search, and samples of n-gram models.

import { ask, bundle, known } from "./data.js";
import { button, choice, heading, labelled, make, pressable, put, say, svg, visible } from "./dom.js";
import { saving } from "./picture.js";

const WAYS = [["draw", "sampling"], ["greedy", "greedy decoding"], ["beam", "beam search"]];
const PAUSE = 260; // milliseconds between symbols that are played
const STEP_WIDE = 58; // of a tree, at the least

export function showWrite(root, view) {
  const { about, state } = view;
  const head = make("div", {});
  const text = make("p", { class: "writing", "aria-live": "polite", "aria-label": "the text so far" });
  const bars = make("div", {});
  const steps = make("div", { class: "stepper" });
  const controls = make("div", { class: "fields tight" });
  const samples = make("section", { class: "panel" });
  put(root, head, text, steps, make("div", { class: "writeboth" }, bars, make("section", { class: "panel" }, controls)), samples);
  let found = null;
  let best = null;
  let isPlaying = false;
  let timer = 0;
  let latest = 0; // the number of the newest request; answers to earlier ones are dropped
  let isDrawing = false;
  let waiting = 0; // steps that wait for the answer to the one before
  if (state.prompt === "" && !state.started) view.note({ prompt: about.prompt, started: true });

  const ids = (taken = state.taken) => (taken ? taken.split(",").map(Number) : []);
  const drawing = () => ({ temperature: state.how === "greedy" ? 0 : state.temperature, top_k: state.how === "draw" ? state.topk : 0, top_p: state.how === "draw" ? state.topp : 0 });

  function draw() {
    isDrawing = true;
    const own = ++latest;
    return redraw(own).catch((error) => {
      if (own !== latest) return;
      [isDrawing, waiting] = [false, 0];
      halt();
      throw error;
    });
  }

  async function redraw(own) {
    const beam = state.how === "beam";
    const written = { model: state.model, prompt: state.prompt, taken: state.taken };
    const [next, tree] = await Promise.all([ask("next", { ...written, ...drawing(), seed: state.seed }), beam ? ask("beam", { ...written, beams: state.width, deep: state.deep }) : null]);
    if (own !== latest) return;
    found = { ...next, written };
    best = tree?.texts.length && tree.nodes.length ? tree.nodes[tree.texts[0].path[0]]?.symbol ?? "</s>" : null;
    title(tree);
    drawText();
    buttons();
    put(bars, beam ? treeOf(tree) : barsOf());
    isDrawing = false;
    if (found.ended) waiting = 0;
    clearTimeout(timer);
    if (waiting) advance();
    else if (isPlaying && found.ended) play();
    else if (isPlaying) timer = setTimeout(step, PAUSE);
  }

  const quoteSymbol = (symbol) => (symbol === "</s>" || symbol === null ? "the end" : `“${visible(symbol)}”`);

  // The next symbol: the sampled one, or the first of the best hypothesis.
  function chosen() {
    if (!best) return found.drawn;
    return found.bars.find(([, symbol]) => symbol === best)?.[0] ?? found.drawn;
  }

  function title(tree) {
    if (found.ended) return put(head, heading("The model has ended the text", "Undo a step, or start again."));
    const [, symbol, p] = found.bars[0];
    const after = (found.prompt + found.pieces.join("")).slice(-14).replaceAll("\n", "↵");
    if (tree) return put(head, heading(`Beam search keeps the ${tree.beams} most probable texts at each step`, "Each column is one step; a branch that ends was pruned. The thick path is the best text. Select a symbol to take the path to it."));
    put(head, heading(after ? make("span", {}, "After ", make("code", {}, after.replace(/ $/, "␣")), ` the model predicts ${quoteSymbol(symbol)} (${Math.round(100 * p)} %)`) : `The model begins with ${quoteSymbol(symbol)} (${Math.round(100 * p)} %)`,
      "Each bar is the probability of a next symbol. Select one to append it; Enter appends the sampled symbol, Backspace removes the last one, Space plays."));
  }

  function drawText() {
    put(text, make("span", { class: "rest" }, found.prompt), ...found.pieces.map((piece, n) => button(piece.replaceAll("\n", "↵\n"), () => jump(ids(found.written.taken).slice(0, n + 1)), { class: "plain piece", "aria-label": `back to ${visible(piece.trim() || piece)}` })),
      make("span", { class: "cursor", "aria-hidden": "true" }, found.ended ? "■" : "▏"));
  }

  function buttons() {
    const drawn = found.bars.find(([id]) => id === chosen());
    put(steps, button("◀ Undo", undo, { disabled: !state.taken }),
      button(drawn ? `Take ${quoteSymbol(drawn[1])}` : "Step", step, { class: "go", disabled: found.ended }),
      button(isPlaying ? "❚❚ Pause" : "▶ Play", play, { disabled: found.ended }), button("Start again", () => { halt(); jump([]); }, { disabled: !state.taken }),
      make("small", {}, found.ended ? "ended" : `perplexity ${Math.max(1, 2 ** found.bits).toFixed(1)} (entropy ${found.bits.toFixed(1)} bits)`));
  }

  function barsOf() {
    if (found.ended) return make("p", {}, "Nothing comes after the end.");
    const most = Math.max(...found.bars.map(([, , p, q]) => Math.max(p, q)), 0.01);
    const rows = found.bars.map(([id, symbol, p, q]) => {
      const [model, own] = [make("span", { class: "bar grey" }), make("span", { class: "bar plus" })];
      model.style.width = `${(100 * p) / most}%`;
      own.style.width = `${(100 * q) / most}%`;
      const row = button("", () => jump([...ids(found.written.taken), id]), { class: `next${q === 0 ? " out" : ""}${id === found.drawn ? " drawn" : ""}`, "aria-label": `take ${quoteSymbol(symbol)}: ${percentOf(p)} in the model, ${percentOf(q)} when sampling` });
      row.append(make("b", {}, symbol === "</s>" ? "(end)" : visible(symbol)), make("span", { class: "twobars" }, model, own), make("span", { class: "number" }, q === 0 ? "excluded" : percentOf(q)));
      return make("li", {}, row);
    });
    const figure = make("figure", { class: "nextbars" }, make("ul", { class: "legend" }, make("li", {}, make("span", { class: "swatch grey" }, " "), " model probability"),
      make("li", {}, make("span", { class: "swatch plus" }, " "), " sampling probability"), make("li", {}, make("span", { class: "swatch framed" }, " "), " sampled symbol")), make("ol", {}, ...rows),
    found.rest > 0.0005 ? make("p", { class: "verdict" }, `${(found.of - found.bars.length).toLocaleString("en")} other symbols: ${percentOf(found.rest)}`) : "");
    figure.append(saving(figure, "next symbol"));
    return figure;
  }

  function treeOf(tree) {
    if (!tree.nodes.length) return make("p", {}, "Nothing comes after the end.");
    const figure = make("figure", { class: "beamtree" }, beamTree(tree, (path) => takePath(tree, path)),
      make("ol", { class: "texts" }, ...tree.texts.map((each) => make("li", {}, make("b", {}, `${(100 * Math.exp(each.log_prob)).toPrecision(2)} % `), each.text.slice(tree.prompt.length).replaceAll("\n", "↵"), each.ended ? " (end)" : " …"))));
    figure.append(saving(figure, "beam search"));
    return figure;
  }

  // Take the path to a node of the tree, symbol by symbol.
  async function takePath(tree, path) {
    const way = ids(found.written.taken);
    const own = latest;
    for (const node of path) {
      const wanted = tree.nodes[node].symbol ?? "</s>";
      const next = await ask("next", { model: state.model, prompt: state.prompt, taken: way.join(","), temperature: 1, top_k: 0, top_p: 0, seed: 0 });
      const bar = next.bars.find(([, symbol]) => symbol === wanted);
      if (!bar) break;
      way.push(bar[0]);
    }
    if (own === latest) jump(way);
  }

  // Continue from the displayed text with other symbols; pending steps are dropped.
  function jump(way) {
    waiting = 0;
    if (found.written.prompt === state.prompt) take(way);
  }

  function take(way) {
    if (bundle && !known("next", { model: state.model, prompt: state.prompt, taken: way.join(","), ...drawing(), seed: state.seed })) return halt(), buttons(), say("This saved page has only one text; select Take.");
    view.set({ taken: way.join(",") });
  }

  function step() {
    waiting++;
    if (!isDrawing) advance();
  }

  // Append the symbol computed for the displayed text.
  function advance() {
    waiting--;
    if (found && !found.ended) take([...ids(), chosen()]);
  }

  function undo() {
    halt();
    if (waiting) waiting--;
    else take(ids().slice(0, -1));
  }

  function halt() {
    isPlaying = false;
    clearTimeout(timer);
  }

  function play() {
    if (isPlaying) halt();
    else isPlaying = true;
    if (isPlaying && found && !isDrawing) step();
    if (found) buttons();
  }

  function setControls() {
    const prompt = make("input", { type: "text", value: state.prompt, maxlength: "2000", spellcheck: "false", onchange: () => { halt(); waiting = 0; view.set({ prompt: prompt.value, taken: "", started: true }); } });
    const slide = (name, min, max, by, shown) => {
      const value = make("output", {}, shown(state[name]));
      const range = make("input", { type: "range", min, max, step: by, value: state[name], oninput: () => { value.textContent = shown(Number(range.value)); view.set({ [name]: Number(range.value) }); } });
      return [range, value];
    };
    const row = (label, [range, value]) => labelled(label, range).appendChild(value).parentElement;
    const all = [labelled("Prompt", prompt), labelled("Decoding", choice(WAYS, state.how, (how) => { view.set({ how }); setControls(); }))];
    if (state.how === "draw") {
      all.push(row("Temperature", slide("temperature", 0.1, 2, 0.1, (v) => v.toFixed(1))),
        row("Top-k", slide("topk", 0, 20, 1, (v) => (v ? String(v) : "all"))),
        row("Top-p", slide("topp", 0, 1, 0.05, (v) => (v ? v.toFixed(2) : "all"))));
      const seed = make("input", { type: "number", min: 0, max: 1e6, value: state.seed, onchange: () => view.set({ seed: Math.max(0, Math.round(Number(seed.value) || 0)) }) });
      all.push(labelled("Seed", seed));
    }
    if (state.how === "beam") {
      all.push(row("Beams", slide("width", 1, 6, 1, String)), row("Depth", slide("deep", 2, 20, 1, String)));
    }
    put(controls, ...(bundle ? [make("p", { class: "verdict" }, "This saved page has one sampled text and the tree of one beam search."), all[1]] : all));
  }

  async function drawNgrams() {
    if (bundle) return put(samples, make("p", { class: "verdict" }, "Start relmo explore for other prompts and samples."));
    put(samples, make("h3", {}, "Samples of n-gram models"), make("p", { class: "loading" }, "counting…"));
    const asked = { model: state.model, text: state.text || about.first, prompt: state.prompt, temperature: state.temperature, top_k: 0, top_p: 0, seed: state.seed };
    const got = await ask("ngrams", asked);
    const parts = got.samples.map((each) => make("figure", {}, make("figcaption", {}, each.order ? `${each.order}-gram: ${contextWords(each.order)}` : each.name), make("pre", { tabindex: "0" }, each.text)));
    put(samples, make("h3", {}, "Samples of n-gram models with the same prompt"),
      make("p", { class: "verdict" }, `The n-grams are counted on “${got.title}” (${got.symbols.toLocaleString("en")} symbols), not on the training text of the network: compare the spelling and the coherence, not the words.`),
      make("div", { class: "cards" }, ...parts));
  }

  const contextWords = (order) => (order === 1 ? "no context" : order === 2 ? "context of 1 symbol" : `context of ${order - 1} symbols`);
  setControls();
  draw().catch((error) => { say(error.message); put(head, heading("This view needs a running explorer", error.message)); });
  if (!/^(hello|counting|thousand)$/.test(about.first)) drawNgrams().catch((error) => put(samples, make("p", {}, error.message)));
  else samples.remove();
  return {
    update: (changed) => {
      if (changed.includes("text") || changed.includes("prompt")) { setControls(); if (samples.isConnected) drawNgrams().catch(() => {}); }
      return draw().catch((error) => say(error.message));
    },
    close: halt,
    key(event) {
      const does = { Enter: step, Backspace: undo, " ": play }[event.key];
      if (!does || (event.target.closest("a, button, summary") && event.key !== "Backspace")) return false;
      does();
      return true;
    },
  };
}

function percentOf(p) {
  return p >= 0.0995 ? `${Math.round(100 * p)} %` : p >= 0.0005 ? `${(100 * p).toFixed(1)} %` : "0 %";
}

// Nodes of a beam search in columns, more probable ones higher.
function beamTree(tree, pressed) {
  const nodes = tree.nodes.map((node, n) => ({ ...node, n, depth: 0, children: [] }));
  const root = { n: -1, depth: 0, children: [] };
  for (const node of nodes) {
    const above = node.parent < 0 ? root : nodes[node.parent];
    node.depth = above.depth + 1;
    above.children.push(node);
  }
  let rows = 0;
  const place = (node) => {
    node.children.sort((a, b) => b.log_prob - a.log_prob);
    node.children.forEach(place);
    node.y = node.children.length ? node.children[0].y : rows++;
  };
  place(root);
  const best = new Set(tree.texts[0]?.path ?? []);
  const live = new Set(tree.texts.flatMap((each) => each.path));
  const [deep, tall] = [Math.max(...nodes.map((node) => node.depth)), 30];
  const wide = Math.max(STEP_WIDE, 44 + 8 * Math.max(...nodes.map((node) => node.symbol?.length ?? 3)));
  const [width, height] = [deep * wide + 70, rows * tall + 16];
  const x = (node) => 24 + node.depth * wide;
  const y = (node) => 18 + node.y * tall;
  const chart = svg("svg", { width, height, viewBox: `0 0 ${width} ${height}`, class: "chart tree", role: "group", "aria-label": `tree of a beam search: ${tree.texts.map((each) => each.text.slice(tree.prompt.length)).join("; ")}` });
  for (const node of [...nodes].sort((a, b) => best.has(a.n) - best.has(b.n))) {
    const above = node.parent < 0 ? root : nodes[node.parent];
    const kind = best.has(node.n) ? "best" : live.has(node.n) ? "live" : "given";
    chart.append(svg("path", { d: `M${x(above) + (above.n < 0 ? 4 : 14)} ${y(above)} C${x(node) - 30} ${y(above)} ${x(node) - 30} ${y(node)} ${x(node) - 14} ${y(node)}`, class: `branch ${kind}` }));
  }
  chart.append(svg("text", { x: 8, y: 22 }, "…"));
  for (const node of nodes) {
    const kind = best.has(node.n) ? "best" : live.has(node.n) ? "live" : "given";
    const path = [];
    for (let at = node; at.n >= 0; at = at.parent < 0 ? root : nodes[at.parent]) path.unshift(at.n);
    const before = node.parent < 0 ? 0 : nodes[node.parent].log_prob;
    const label = node.symbol === null ? "end" : visible(node.symbol);
    const part = svg("g", { class: `twig ${kind}` }, svg("rect", { x: x(node) - 14, y: y(node) - 12, width: Math.max(28, label.length * 8 + 12), height: 24, rx: 5 }),
      svg("text", { x: x(node) - 14 + Math.max(28, label.length * 8 + 12) / 2, y: y(node) + 5, "text-anchor": "middle" }, label));
    const chance = `${percentOf(Math.exp(node.log_prob - before))} here, ${(100 * Math.exp(node.log_prob)).toPrecision(2)} % for the whole text`;
    chart.append(pressable(part, () => pressed(path), chance, `${label}: ${chance}`));
  }
  return make("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "the tree of the search" }, chart);
}
