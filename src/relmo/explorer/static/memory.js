// Memory: how far back a loss reaches, and how much of the past is used.

import { answers, bundle, work } from "./data.js";
import { fixed, grid, labelled, make, put, runner, tick } from "./dom.js";
import { lines } from "./charts.js";

export function showMemory(root, view) {
  const { about, state } = view;
  const flows = make("div", {});
  const fresh = make("div", {});
  const past = make("div", {});
  const key = (what) => `job:${what}:${state.model}:${state.text}`;

  const own = runner("Measure this model", async (tell, signal) => {
    const found = await work({ what: "memory", model: state.model, text: state.text, jacobians: state.jacobians ? 4 : 0, beside: state.beside }, tell, signal);
    answers.set(key("memory"), found);
    draw(flows, found.networks);
  });
  const cells = (what) => Object.keys(about.cells).filter((name) => about.cells[name] === what).join(", ");
  const bias = slider(`Forget gate's bias (${cells("forget_bias")}): +`, 0, 5, 0.5, state.bias, (value) => view.note({ bias: value }));
  const radius = slider(`Spectral radius of W (${cells("spectral_radius")}): `, 0.2, 3, 0.1, state.radius, (value) => view.note({ radius: value }));
  const turned = runner("Measure fresh networks", async (tell, signal) => {
    const values = { forget_bias: state.bias, spectral_radius: state.radius };
    const networks = Object.entries(about.cells).map(([cell, what]) => ({ cell, ...(what ? { [what]: values[what] } : {}) }));
    const found = await work({ what: "memory", model: state.model, text: state.text, networks, lags: 60, positions: 16, jacobians: 4 }, tell, signal);
    answers.set(key("fresh"), found);
    draw(fresh, found.networks);
  });
  [bias, radius].forEach((each) => each.addEventListener("change", () => turned.run()));
  const cut = runner("Cut the past short", async (tell, signal) => {
    const found = await work({ what: "past", model: state.model, text: state.text }, tell, signal);
    answers.set(key("past"), found);
    shorten(found);
  });

  put(root, 
    make("section", { class: "panel" }, make("h2", {}, "How far back does the loss reach?"),
      make("p", {}, "The norm of the loss's gradient by the states k symbols before, relative to that at k = 0: median and quartiles over places of the text."),
      bundle ? null : make("div", { class: "ticking" }, tick(`the Jacobian's largest singular value too${about.kind === "bilm" ? " (takes minutes in this model)" : ""}`, state.jacobians, (on) => view.note({ jacobians: on })),
        about.beside.length ? tick(`the models beside it too: ${about.beside.join(", ")}`, state.beside, (on) => view.note({ beside: on })) : null),
      bundle ? null : own, flows),
    bundle && !answers.has(key("fresh")) ? "" : make("section", { class: "panel" }, make("h2", {}, "Before any training"),
      make("p", {}, "Fresh networks of 64 units over the same text. Turn the two things that decide at first whether gradients vanish or explode."),
      bundle ? null : make("div", { class: "fields" }, bias, radius), bundle ? null : turned, fresh),
    bundle && !answers.has(key("past")) ? "" : make("section", { class: "panel" }, make("h2", {}, "How much of the past does it use?"),
      make("p", {}, "The loss when only the last k symbols are given."), bundle ? null : cut, past));
  const known = answers.get(key("memory")) ?? answers.get("job:memory");
  if (known) draw(flows, known.networks);
  if (answers.has(key("fresh"))) draw(fresh, answers.get(key("fresh")).networks);
  if (answers.has(key("past"))) shorten(answers.get(key("past")));

  function draw(place, networks) {
    const series = [];
    const rows = [];
    for (const network of networks) {
      const deep = network.spectral_radius.length > 1;
      for (const curve of network.curves) {
        const name = `${network.name}${deep ? `, layer ${curve.layer}` : ""}: ${curve.of === "path" ? `through ${network.keeping_gate} alone` : `d${curve.of}`}`;
        rows.push([name, fixed(curve.factor, 3), curve.memory === null ? `> ${network.lags}` : String(curve.memory),
          ...[1, 10, 40].map((lag) => (lag < curve.median.length ? curve.median[lag].toPrecision(2) : ""))]);
        if (curve.of === network.memory_state && series.length < 6) {
          series.push({ name, x: curve.median.map((_, k) => k), y: curve.median, lower: curve.lower, upper: curve.upper });
        }
      }
    }
    const whole = (network) => (network.jacobians.some((each) => each.part === "state") ? "state" : network.memory_state);
    const stretched = networks.flatMap((network) => network.jacobians.filter((each) => each.part === whole(network)).map((each) => ({
      name: `${network.name}${network.spectral_radius.length > 1 ? `, layer ${each.layer}` : ""}`, x: each.lags, y: each.median, lower: each.lower, upper: each.upper }))).slice(0, 6);
    const size = { width: 480, height: 290, logY: true, x: "symbols back" };
    const gradients = lines(series, { ...size, label: "gradient norm by lag, logarithmic", y: "relative gradient" });
    put(place, stretched.length ? make("div", { class: "halves" }, gradients, make("div", {},
      lines(stretched, { ...size, label: "largest singular value of the Jacobian by lag, logarithmic", y: "largest singular value" }),
      make("p", { class: "verdict" }, "The most that a disturbance of a layer's whole state is stretched by on its way: above 1 it grows, below 1 it fades."))) : gradients,
      grid(["network", "factor a step", "memory", "at 1", "at 10", "at 40"], rows, { caption: `${place === fresh ? "fresh networks" : "gradients"}; factor: what a step back multiplies by; memory: where less than 1 % is left` }));
  }

  function shorten(found) {
    const enough = found.context === null ? "No number that was tried is" : `${found.context} symbols are`;
    put(past, lines([{ name: found.name, x: found.lengths, y: found.nats },
      { name: "with all that stands before", x: found.lengths, y: found.lengths.map(() => found.whole) }],
    { label: "loss by how many symbols are given", x: "symbols given", y: "nats a symbol", logX: true }),
    make("p", {}, `${enough} enough to come within 1 % of the loss with everything (${fixed(found.whole, 3)} nats, ${found.positions} places).`));
  }

  return { update: (changed) => (changed.some((name) => ["text", "model"].includes(name)) ? showMemory(root, view) : null) };
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
