// Memory: gradient by lag, and loss by context length.

import { bundle, cachedAnswers, getResult, isComputedHere, jobKey, runJob, storeResult } from "./data.js";
import { checkbox, evidence, field, formatFixed, grid, heading, make, notify, put, runner } from "./dom.js";
import { lines } from "./charts.js";
import { cellName } from "./equations.js";

const MIN_EXPLODING_GROWTH = 10; // growth of the gradient at the largest lag

export function showMemory(root, view) {
  const { about, state } = view;
  const trainedCurves = make("div", {});
  const untrainedCurves = make("div", {});
  const contextCurve = make("div", {});
  const top = make("div", {}, heading("How far back does the gradient reach?", "A line that falls fast means that the loss carries no learning signal over this distance."));

  const trainedRunner = runner("Measure this model again", async (onProgress, signal) => {
    const memory = await runJob({ what: "memory", model: state.model, text: state.text, jacobians: state.jacobians ? 4 : 0, beside: state.beside }, onProgress, signal);
    storeResult("memory", state, memory);
    draw(trainedCurves, memory.networks);
  });
  const cellNames = (parameter) => Object.keys(about.cells).filter((name) => about.cells[name] === parameter).map((cell) => cellName({ cell })).join(", ");
  const bias = createSlider(`Initial forget bias (${cellNames("forget_bias")}): +`, 0, 5, 0.5, state.bias, (value) => view.saveState({ bias: value }));
  const radius = createSlider(`Spectral radius of the recurrent weights (${cellNames("spectral_radius")}): `, 0.2, 3, 0.1, state.radius, (value) => view.saveState({ radius: value }));
  const untrainedRunner = runner("Measure again", async (onProgress, signal) => {
    const values = { forget_bias: state.bias, spectral_radius: state.radius };
    const networks = Object.entries(about.cells).map(([cell, parameter]) => ({ cell, ...(parameter ? { [parameter]: values[parameter] } : {}) }));
    const memory = await runJob({ what: "memory", model: state.model, text: state.text, networks, lags: 60, positions: 16, jacobians: 4 }, onProgress, signal);
    storeResult("fresh", state, memory);
    draw(untrainedCurves, memory.networks);
  });
  [bias, radius].forEach((slider) => slider.addEventListener("change", () => untrainedRunner.run()));
  const contextRunner = runner("Measure again", async (onProgress, signal) => {
    const truncation = await runJob({ what: "past", model: state.model, text: state.text }, onProgress, signal);
    storeResult("past", state, truncation);
    drawTruncation(truncation);
  });
  const panels = [["fresh", untrainedRunner, (memory) => draw(untrainedCurves, memory.networks)], ["memory", trainedRunner, (memory) => draw(trainedCurves, memory.networks)], ["past", contextRunner, drawTruncation]];
  const panel = (job, ...children) => (bundle && !cachedAnswers.has(jobKey(job, state)) ? "" : make("section", { class: "panel" }, ...children.filter(Boolean)));
  put(root, top, make("div", { class: "pair" },
    panel("fresh", make("h3", {}, "Before training"),
      make("p", {}, "Gradient norm by distance in untrained networks of 64 cells on the same text. Vary the two parameters that determine it."),
      untrainedCurves, bundle ? null : make("div", { class: "fields controls" }, bias, radius), bundle ? null : untrainedRunner),
    panel("memory", make("h3", {}, `After training: ${about.name}`),
      make("p", {}, `Gradient norm of this model's loss with respect to earlier ${view.symbols}. Median and quartiles over positions.`), trainedCurves,
      bundle ? null : make("div", { class: "ticking controls" }, checkbox(`singular values of the Jacobian${about.kind === "bilm" ? "; takes minutes in this model" : ""}`, state.jacobians, (on) => view.saveState({ jacobians: on })),
        about.beside.length ? checkbox(`companion models: ${about.beside.join(", ")}`, state.beside, (on) => view.saveState({ beside: on })) : null),
      bundle ? null : trainedRunner),
    panel("past", make("h3", {}, "How much context does it use?"),
      make("p", {}, `Loss when only the last k ${view.symbols} are given. Where the line is flat, more context does not help.`), contextCurve, bundle ? null : contextRunner)));
  load().catch((error) => notify(error.message));

  async function load() {
    for (const [job, jobRunner, drawResult] of panels) {
      const result = await getResult(job, state);
      const hasSettings = job === "fresh" ? state.bias !== 1 || state.radius !== 1 : job === "memory" && (state.jacobians || state.beside);
      if (result && (!hasSettings || isComputedHere(job, state))) drawResult(result);
      else if (!bundle) jobRunner.run();
      else if (result) drawResult(result);
    }
  }

  function draw(container, networks) {
    const series = [];
    const rows = [];
    for (const network of networks) {
      const hasLayers = network.spectral_radius.length > 1;
      for (const curve of network.curves) {
        const name = `${networkName(network.name)}${hasLayers ? `, layer ${curve.layer + 1}` : ""}`;
        const quantity = curve.of === "path" ? `through the ${about.words[network.keeping_gate] ?? network.keeping_gate} only` : `gradient of ${curve.of}`;
        rows.push([`${name}: ${quantity}`, formatFixed(curve.factor, 3), curve.memory === null ? `> ${network.lags}` : String(curve.memory),
          ...[1, 10, 40].map((lag) => (lag < curve.median.length ? curve.median[lag].toPrecision(2) : ""))]);
        if (curve.of === network.memory_state && series.length < 6) {
          series.push({ name, x: curve.median.map((_, k) => k), y: curve.median, lower: curve.lower, upper: curve.upper });
        }
      }
    }
    const getPart = (network) => (network.jacobians.some((jacobian) => jacobian.part === "state") ? "state" : network.memory_state);
    const jacobianSeries = networks.flatMap((network) => network.jacobians.filter((jacobian) => jacobian.part === getPart(network)).map((jacobian) => ({
      name: `${networkName(network.name)}${network.spectral_radius.length > 1 ? `, layer ${jacobian.layer + 1}` : ""}`, x: jacobian.lags, y: jacobian.median, lower: jacobian.lower, upper: jacobian.upper }))).slice(0, 6);
    const size = { width: 480, height: 290, logY: true, x: `${view.symbols} back` };
    const gradients = lines(series, { ...size, label: "gradient norm by lag, logarithmic", y: "gradient norm (log)" });
    put(container, jacobianSeries.length ? make("div", { class: "halves" }, gradients, make("div", {},
      lines(jacobianSeries, { ...size, label: "largest singular value of the Jacobian by lag, logarithmic", y: "largest singular value" }),
      make("p", { class: "verdict" }, "Largest factor by which a perturbation of a layer's state is stretched: above 1 it grows, below 1 it decays."))) : gradients,
      describeReach(networks), evidence("The numbers", grid(["network", "factor per step", "1 % remains after", "remains at lag 1", "at 10", "at 40"], rows, { caption: container === untrainedCurves ? "untrained networks" : "this model" })));
    if (container === untrainedCurves) {
      put(top, heading(describeGradients(networks), `Each line shows the norm of the gradient by distance. A falling line is a vanishing gradient. A rising line is an exploding gradient: training diverges unless gradients are clipped. Within ${networks[0].lags} ${view.symbols}: less than 1 % left is called vanishing, more than ${MIN_EXPLODING_GROWTH} times as large exploding.`));
    }
  }

  function memoryCurve(network) {
    return network.curves.find((curve) => curve.of === network.memory_state);
  }

  function getReach(network) {
    return memoryCurve(network).memory ?? Infinity;
  }

  // Return the growth of the gradient at the largest lag; below 1 it has shrunk.
  function getGrowth(network) {
    const { median } = memoryCurve(network);
    return median.at(-1) / median[0];
  }

  function describeGradients(networks) {
    const joinNames = (group) => group.map((network) => `the ${networkName(network.name).split(" (")[0]}`).join(" and ");
    const exploding = networks.filter((network) => getGrowth(network) > MIN_EXPLODING_GROWTH);
    const lasting = networks.filter((network) => !exploding.includes(network) && getReach(network) === Infinity);
    const vanishing = networks.filter((network) => !exploding.includes(network) && !lasting.includes(network));
    if (vanishing.length === networks.length) {
      const maxReach = Math.max(...networks.map(getReach));
      const longestNetworks = networks.filter((network) => getReach(network) === maxReach);
      return longestNetworks.length < networks.length ? `The gradient vanishes last in ${joinNames(longestNetworks)}` : `The gradient vanishes after ${maxReach} ${view.symbols} in all of them`;
    }
    if (lasting.length === networks.length) return "The gradient neither vanishes nor explodes in any of them";
    const verbOfLasting = exploding.length && vanishing.length ? "does neither" : "not";
    const parts = [["explodes", exploding], ["vanishes", vanishing], [verbOfLasting, lasting]].filter(([, group]) => group.length);
    return `The gradient ${parts.map(([verb, group]) => `${verb} in ${joinNames(group)}`).join(", ")}`;
  }

  function describeReach(networks) {
    const summaries = networks.map((network) => `${networkName(network.name)}: ${getGrowth(network) > MIN_EXPLODING_GROWTH ? `explodes, ${getGrowth(network).toPrecision(2)} times as large after ${network.lags} ${view.symbols}`
      : getReach(network) === Infinity ? `more than 1 % remains after ${network.lags} ${view.symbols}` : `less than 1 % remains after ${getReach(network)} ${view.symbols}`}`);
    return make("p", { class: "verdict" }, `${summaries.join("; ")}.`);
  }

  function networkName(name) {
    const [, cell, settings] = /^(\w+), fresh(.*)$/.exec(name) ?? [];
    return cell ? `${cellName({ cell })}${settings.replace("spectral radius", "radius").replace(", ", " (")}${settings ? ")" : ""}` : name;
  }

  function drawTruncation(truncation) {
    const sufficientContext = truncation.context === null ? "No tested length is" : `${truncation.context} ${view.symbols} are`;
    put(contextCurve, lines([{ name: truncation.name, x: truncation.lengths, y: truncation.nats },
      { name: "full context", x: truncation.lengths, y: truncation.lengths.map(() => truncation.whole) }],
    { label: "loss by context length", x: `${view.symbols} of context`, y: `nats per ${view.symbol}`, logX: true }),
    make("p", {}, `${sufficientContext} enough to come within 1 % of the loss with full context (${formatFixed(truncation.whole, 3)} nats, ${truncation.positions} positions).`));
  }

  return { close: () => panels.forEach(([, jobRunner]) => jobRunner.stop()), update: (changedNames) => (changedNames.some((name) => ["text", "model"].includes(name)) ? (panels.forEach(([, jobRunner]) => jobRunner.stop()), showMemory(root, view)) : null) };
}

function createSlider(label, min, max, step, value, onChange) {
  const input = make("input", { type: "range", min, max, step, value, oninput: () => {
    output.textContent = input.value;
    onChange(Number(input.value));
  } });
  const output = make("output", {}, String(value));
  const labelledInput = field(label, input);
  labelledInput.append(output);
  return labelledInput;
}
