// Memory: gradient by lag, and loss by context length.

import { answers, bundle, isMade, jobKey, keep, ready, work } from "./data.js";
import { evidence, fixed, grid, heading, labelled, make, put, runner, say, tick } from "./dom.js";
import { lines } from "./charts.js";

const EXPLODES = 10; // times as large at the longest distance

export function showMemory(root, view) {
  const { about, state } = view;
  const flows = make("div", {});
  const fresh = make("div", {});
  const past = make("div", {});
  const top = make("div", {}, heading("How far back does the gradient reach?", "A line that falls fast means that the loss carries no learning signal over this distance."));

  const own = runner("Measure this model again", async (tell, signal) => {
    const found = await work({ what: "memory", model: state.model, text: state.text, jacobians: state.jacobians ? 4 : 0, beside: state.beside }, tell, signal);
    keep("memory", state, found);
    draw(flows, found.networks);
  });
  const cells = (what) => Object.keys(about.cells).filter((name) => about.cells[name] === what).map((name) => name.toUpperCase()).join(", ");
  const bias = slider(`Initial forget bias (${cells("forget_bias")}): +`, 0, 5, 0.5, state.bias, (value) => view.note({ bias: value }));
  const radius = slider(`Spectral radius of the recurrent weights (${cells("spectral_radius")}): `, 0.2, 3, 0.1, state.radius, (value) => view.note({ radius: value }));
  const turned = runner("Measure again", async (tell, signal) => {
    const values = { forget_bias: state.bias, spectral_radius: state.radius };
    const networks = Object.entries(about.cells).map(([cell, what]) => ({ cell, ...(what ? { [what]: values[what] } : {}) }));
    const found = await work({ what: "memory", model: state.model, text: state.text, networks, lags: 60, positions: 16, jacobians: 4 }, tell, signal);
    keep("fresh", state, found);
    draw(fresh, found.networks);
  });
  [bias, radius].forEach((each) => each.addEventListener("change", () => turned.run()));
  const cut = runner("Measure again", async (tell, signal) => {
    const found = await work({ what: "past", model: state.model, text: state.text }, tell, signal);
    keep("past", state, found);
    drawTruncation(found);
  });
  const parts = [["fresh", turned, (found) => draw(fresh, found.networks)], ["memory", own, (found) => draw(flows, found.networks)], ["past", cut, drawTruncation]];
  const panel = (what, ...inside) => (bundle && !answers.has(jobKey(what, state)) ? "" : make("section", { class: "panel" }, ...inside.filter(Boolean)));
  put(root, top, make("div", { class: "pair" },
    panel("fresh", make("h3", {}, "Before training"),
      make("p", {}, "Gradient norm by distance in three untrained networks of 64 cells on the same text. Vary the two parameters that determine it."),
      fresh, bundle ? null : make("div", { class: "fields controls" }, bias, radius), bundle ? null : turned),
    panel("memory", make("h3", {}, `After training: ${about.name}`),
      make("p", {}, `Gradient norm of this model's loss with respect to earlier ${view.symbols}. Median and quartiles over positions.`), flows,
      bundle ? null : make("div", { class: "ticking controls" }, tick(`singular values of the Jacobian${about.kind === "bilm" ? "; takes minutes in this model" : ""}`, state.jacobians, (on) => view.note({ jacobians: on })),
        about.beside.length ? tick(`companion models: ${about.beside.join(", ")}`, state.beside, (on) => view.note({ beside: on })) : null),
      bundle ? null : own),
    panel("past", make("h3", {}, "How much context does it use?"),
      make("p", {}, `Loss when only the last k ${view.symbols} are given. Where the line is flat, more context does not help.`), past, bundle ? null : cut)));
  begin().catch((error) => say(error.message));

  async function begin() {
    for (const [what, go, shown] of parts) {
      const found = await ready(what, state);
      const changed = what === "fresh" ? state.bias !== 1 || state.radius !== 1 : what === "memory" && (state.jacobians || state.beside);
      if (found && (!changed || isMade(what, state))) shown(found);
      else if (!bundle) go.run();
      else if (found) shown(found);
    }
  }

  function draw(place, networks) {
    const series = [];
    const rows = [];
    for (const network of networks) {
      const deep = network.spectral_radius.length > 1;
      for (const curve of network.curves) {
        const name = `${networkName(network.name)}${deep ? `, layer ${curve.layer + 1}` : ""}`;
        const way = curve.of === "path" ? `through the ${about.words[network.keeping_gate] ?? network.keeping_gate} only` : `gradient of ${curve.of}`;
        rows.push([`${name}: ${way}`, fixed(curve.factor, 3), curve.memory === null ? `> ${network.lags}` : String(curve.memory),
          ...[1, 10, 40].map((lag) => (lag < curve.median.length ? curve.median[lag].toPrecision(2) : ""))]);
        if (curve.of === network.memory_state && series.length < 6) {
          series.push({ name, x: curve.median.map((_, k) => k), y: curve.median, lower: curve.lower, upper: curve.upper });
        }
      }
    }
    const whole = (network) => (network.jacobians.some((each) => each.part === "state") ? "state" : network.memory_state);
    const stretched = networks.flatMap((network) => network.jacobians.filter((each) => each.part === whole(network)).map((each) => ({
      name: `${networkName(network.name)}${network.spectral_radius.length > 1 ? `, layer ${each.layer + 1}` : ""}`, x: each.lags, y: each.median, lower: each.lower, upper: each.upper }))).slice(0, 6);
    const size = { width: 480, height: 290, logY: true, x: `${view.symbols} back` };
    const gradients = lines(series, { ...size, label: "gradient norm by lag, logarithmic", y: "gradient norm (log)" });
    put(place, stretched.length ? make("div", { class: "halves" }, gradients, make("div", {},
      lines(stretched, { ...size, label: "largest singular value of the Jacobian by lag, logarithmic", y: "largest singular value" }),
      make("p", { class: "verdict" }, "Largest factor by which a perturbation of a layer's state is stretched: above 1 it grows, below 1 it decays."))) : gradients,
      describeReach(networks), evidence("The numbers", grid(["network", "factor per step", "1 % remains after", "remains at lag 1", "at 10", "at 40"], rows, { caption: place === fresh ? "untrained networks" : "this model" })));
    if (place === fresh) {
      put(top, heading(claimOfGradients(networks), `Each line shows the norm of the gradient by distance. A falling line is a vanishing gradient. A rising line is an exploding gradient: training diverges unless gradients are clipped. Within ${networks[0].lags} ${view.symbols}: less than 1 % left is called vanishing, more than ${EXPLODES} times as large exploding.`));
    }
  }

  function memoryCurve(network) {
    return network.curves.find((curve) => curve.of === network.memory_state);
  }

  function reach(network) {
    return memoryCurve(network).memory ?? Infinity;
  }

  // Growth of the gradient at the largest lag; below 1 it has shrunk.
  function growth(network) {
    const { median } = memoryCurve(network);
    return median.at(-1) / median[0];
  }

  function claimOfGradients(networks) {
    const names = (some) => some.map((network) => `the ${networkName(network.name).split(" (")[0]}`).join(" and ");
    const exploding = networks.filter((network) => growth(network) > EXPLODES);
    const lasting = networks.filter((network) => !exploding.includes(network) && reach(network) === Infinity);
    const vanishing = networks.filter((network) => !exploding.includes(network) && !lasting.includes(network));
    if (vanishing.length === networks.length) {
      const longest = Math.max(...networks.map(reach));
      const last = networks.filter((network) => reach(network) === longest);
      return last.length < networks.length ? `The gradient vanishes last in ${names(last)}` : `The gradient vanishes after ${longest} ${view.symbols} in all of them`;
    }
    if (lasting.length === networks.length) return "The gradient neither vanishes nor explodes in any of them";
    const rest = exploding.length && vanishing.length ? "does neither" : "not";
    const parts = [["explodes", exploding], ["vanishes", vanishing], [rest, lasting]].filter(([, some]) => some.length);
    return `The gradient ${parts.map(([verb, some]) => `${verb} in ${names(some)}`).join(", ")}`;
  }

  function describeReach(networks) {
    const told = networks.map((network) => `${networkName(network.name)}: ${growth(network) > EXPLODES ? `explodes, ${growth(network).toPrecision(2)} times as large after ${network.lags} ${view.symbols}`
      : reach(network) === Infinity ? `more than 1 % remains after ${network.lags} ${view.symbols}` : `less than 1 % remains after ${reach(network)} ${view.symbols}`}`);
    return make("p", { class: "verdict" }, `${told.join("; ")}.`);
  }

  function networkName(name) {
    const [, cell, rest] = /^(elman|gru|lstm), fresh(.*)$/.exec(name) ?? [];
    return cell ? `${{ elman: "Elman network", gru: "GRU", lstm: "LSTM" }[cell]}${rest.replace("spectral radius", "radius").replace(", ", " (")}${rest ? ")" : ""}` : name;
  }

  function drawTruncation(found) {
    const enough = found.context === null ? "No tested length is" : `${found.context} ${view.symbols} are`;
    put(past, lines([{ name: found.name, x: found.lengths, y: found.nats },
      { name: "full context", x: found.lengths, y: found.lengths.map(() => found.whole) }],
    { label: "loss by context length", x: `${view.symbols} of context`, y: `nats per ${view.symbol}`, logX: true }),
    make("p", {}, `${enough} enough to come within 1 % of the loss with full context (${fixed(found.whole, 3)} nats, ${found.positions} positions).`));
  }

  return { close: () => parts.forEach(([, go]) => go.stop()), update: (changed) => (changed.some((name) => ["text", "model"].includes(name)) ? (parts.forEach(([, go]) => go.stop()), showMemory(root, view)) : null) };
}

function slider(label, min, max, step, value, changed) {
  const input = make("input", { type: "range", min, max, step, value, oninput: () => {
    shown.textContent = input.value;
    changed(Number(input.value));
  } });
  const shown = make("output", {}, String(value));
  const field = labelled(label, input);
  field.append(shown);
  return field;
}
