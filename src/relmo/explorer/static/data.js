// Answers, from the bundle of an exported page or from the server; each is requested once and cached.

const KEPT = 400;
const element = document.getElementById("bundle");
export const bundle = element ? JSON.parse(element.textContent) : null;
export const answers = new Map();
if (bundle) for (const [key, value] of Object.entries(bundle.answers)) answers.set(canonical(key), value);

export function canonical(key) {
  const [what, query] = key.split("?");
  if (query === undefined) return key;
  const sorted = [...new URLSearchParams(query)].sort(([a], [b]) => (a < b ? -1 : 1));
  return `${what}?${new URLSearchParams(sorted)}`;
}

export class Mistake extends Error {}

async function request(path, options = {}) {
  if (bundle) throw new Mistake("This saved page has no model; start relmo explore.");
  let response;
  try {
    response = await fetch(path, options);
  } catch {
    throw new Mistake("The explorer does not respond; is relmo explore running?");
  }
  const answer = await response.json().catch(() => ({ error: `The explorer responded with status ${response.status}.` }));
  if (!response.ok) throw new Mistake(answer.error);
  return answer;
}

const asking = new Map();

export function known(what, asked) {
  return answers.get(canonical(`${what}?${new URLSearchParams(asked)}`));
}

export async function ask(what, asked) {
  const key = canonical(`${what}?${new URLSearchParams(asked)}`);
  if (answers.has(key)) return answers.get(key);
  const made = fromUnits(what, asked);
  if (made) return made;
  if (!asking.has(key)) {
    asking.set(key, request(`api/${key}`).finally(() => asking.delete(key)));
  }
  const answer = await asking.get(key);
  answers.set(key, answer);
  if (answers.size > KEPT) answers.delete([...answers.keys()].find((old) => !/^(about|job)/.test(old)));
  return answer;
}

// Values of a unit or of its gates, extracted from quantised answers in an exported page.
export function fromUnits(what, asked) {
  if (what !== "values" && what !== "strip") return null;
  const unit = parseUnit(asked.unit);
  const place = { model: asked.model, text: asked.text, page: asked.page };
  const row = (all, at) => {
    all.bytes ??= Int8Array.from(atob(all.data), (c) => (c.charCodeAt(0) << 24) >> 24);
    const steps = all.bytes.subarray(at * all.symbols, (at + 1) * all.symbols);
    return { values: Array.from(steps, (step) => (step / 127) * all.largest[at]), scale: all.scales[at] };
  };
  const of = (state) => {
    const all = known("units", { ...place, state, layer: unit.layer });
    const at = all && unit.number + (unit.backward ? all.largest.length / 2 : 0);
    return all && at < all.largest.length ? row(all, at) : null;
  };
  if (what === "strip") {
    const states = Object.keys(known("about", { model: asked.model })?.states ?? {}).map((state) => [state, of(state)?.values]);
    return states.length && states.every(([, values]) => values) ? { states: Object.fromEntries(states) } : null;
  }
  const some = bundle?.chosen && known("some", { ...place, units: bundle.chosen });
  return of(unit.state) ?? (some?.units.includes(asked.unit) ? row(some, some.units.indexOf(asked.unit)) : null);
}

export function send(path, given) {
  return request(path, { method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify(given) });
}

// Run a job; `tell` receives the completed share, `signal` cancels it.
export async function work(given, tell, signal) {
  let job = await send("api/jobs", given);
  while (job.state === "waiting" || job.state === "running") {
    tell(job.state === "waiting" ? 0 : job.share);
    await new Promise((done) => setTimeout(done, job.share > 0 ? 250 : 60));
    if (signal?.aborted) {
      await request(`api/jobs/${job.job}`, { method: "DELETE" });
      throw new Mistake("Cancelled.");
    }
    job = await request(`api/jobs/${job.job}`);
  }
  if (signal?.aborted) throw new Mistake("Cancelled.");
  if (job.state === "done") return job.result;
  throw new Mistake(job.error ?? "Cancelled.");
}

// Cache key of a job's result.
export function jobKey(what, state) {
  return `job:${what}:${state.model}:${state.text}`;
}

const made = new Set();

// Cache a result computed in this page.
export function keep(what, state, result) {
  answers.set(jobKey(what, state), result);
  made.add(jobKey(what, state));
}

// Whether a result was computed in this page; then it has the current parameters.
export function isMade(what, state) {
  return made.has(jobKey(what, state));
}

// A cached or precomputed result of a job; null if there is none.
export async function ready(what, state) {
  const key = jobKey(what, state);
  if (answers.has(key)) return answers.get(key);
  if (bundle) return null;
  const { result } = await ask("ready", { model: state.model, text: state.text, what });
  if (result) answers.set(key, result);
  return result;
}

export function parseUnit(name) {
  const found = /^([a-z])(\d+)\.(\d+)(b?)$/.exec(name);
  return { state: found[1], layer: Number(found[2]), number: Number(found[3]), backward: found[4] === "b" };
}

export function unitName({ state, layer, number, backward }) {
  return `${state}${layer}.${number}${backward ? "b" : ""}`;
}

// Label of a unit and its layer, counted from 1; addresses such as c1.190 count from 0.
export function spokenUnit(name, layers) {
  const { layer, number } = parseUnit(name);
  return `cell ${number + 1}${layers > 1 ? ` of layer ${layer + 1}` : ""}`;
}

// The address of a unit, after its label if the unit has a name.
export function addressed(view, unit) {
  return view.named(unit) ? `${spokenUnit(unit, view.about.layers)}, ${shownUnit(unit)}` : shownUnit(unit);
}

export function shownUnit(name) {
  return name.replace(/b$/, "←");
}
