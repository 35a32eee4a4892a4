// Answers, from the bundle of an exported page or from the server; each is requested once and cached.

const MAX_CACHED = 400;
const element = document.getElementById("bundle");
export const bundle = element ? JSON.parse(element.textContent) : null;
export const cachedAnswers = new Map();
if (bundle) for (const [key, value] of Object.entries(bundle.answers)) cachedAnswers.set(canonicalKey(key), value);

export function canonicalKey(key) {
  const [endpoint, query] = key.split("?");
  if (query === undefined) return key;
  const sorted = [...new URLSearchParams(query)].sort(([a], [b]) => (a < b ? -1 : 1));
  return `${endpoint}?${new URLSearchParams(sorted)}`;
}

export class RequestError extends Error {}

async function request(path, options = {}) {
  if (bundle) throw new RequestError("This saved page has no model; start relmo explore.");
  let response;
  try {
    response = await fetch(path, options);
  } catch {
    throw new RequestError("The explorer does not respond; is relmo explore running?");
  }
  const answer = await response.json().catch(() => ({ error: `The explorer responded with status ${response.status}.` }));
  if (!response.ok) throw new RequestError(answer.error);
  return answer;
}

const pendingRequests = new Map();

export function getCached(endpoint, params) {
  return cachedAnswers.get(canonicalKey(`${endpoint}?${new URLSearchParams(params)}`));
}

export async function ask(endpoint, params) {
  const key = canonicalKey(`${endpoint}?${new URLSearchParams(params)}`);
  if (cachedAnswers.has(key)) return cachedAnswers.get(key);
  const extracted = extractValues(endpoint, params);
  if (extracted) return extracted;
  if (!pendingRequests.has(key)) {
    pendingRequests.set(key, request(`api/${key}`).finally(() => pendingRequests.delete(key)));
  }
  const answer = await pendingRequests.get(key);
  cachedAnswers.set(key, answer);
  if (cachedAnswers.size > MAX_CACHED) cachedAnswers.delete([...cachedAnswers.keys()].find((cachedKey) => !/^(about|job)/.test(cachedKey)));
  return answer;
}

// Return values of a unit or of its gates, extracted from quantised answers in an exported page.
export function extractValues(endpoint, params) {
  if (endpoint !== "values" && endpoint !== "strip") return null;
  const unit = parseUnit(params.unit);
  const pageParams = { model: params.model, text: params.text, page: params.page };
  const getRow = (block, rowIndex) => {
    block.bytes ??= Int8Array.from(atob(block.data), (c) => (c.charCodeAt(0) << 24) >> 24);
    const steps = block.bytes.subarray(rowIndex * block.symbols, (rowIndex + 1) * block.symbols);
    return { values: Array.from(steps, (step) => (step / 127) * block.largest[rowIndex]), scale: block.scales[rowIndex] };
  };
  const getUnitRow = ({ state, layer, number, backward }) => {
    const block = getCached("units", { ...pageParams, state, layer });
    const rowIndex = block && number + (backward ? block.largest.length / 2 : 0);
    return block && rowIndex < block.largest.length ? getRow(block, rowIndex) : null;
  };
  if (endpoint === "strip") {
    const about = getCached("about", { model: params.model });
    const units = Object.keys(about?.states ?? {}).map((state) => correspondingUnit(about, unit, state)).filter(Boolean);
    const states = units.map((stateUnit) => [stateUnit.state, getUnitRow(stateUnit)?.values]);
    return states.length && states.every(([, values]) => values) ? { states: Object.fromEntries(states) } : null;
  }
  const selectedUnits = bundle?.chosen && getCached("some", { ...pageParams, units: bundle.chosen });
  return getUnitRow(unit) ?? (selectedUnits?.units.includes(params.unit) ? getRow(selectedUnits, selectedUnits.units.indexOf(params.unit)) : null);
}

export function postJson(path, body) {
  return request(path, { method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify(body) });
}

// Run a job; `onProgress` receives the completed share, `signal` cancels it.
export async function runJob(body, onProgress, signal) {
  let job = await postJson("api/jobs", body);
  while (job.state === "waiting" || job.state === "running") {
    onProgress(job.state === "waiting" ? 0 : job.share);
    await new Promise((resolve) => setTimeout(resolve, job.share > 0 ? 250 : 60));
    if (signal?.aborted) {
      await request(`api/jobs/${job.job}`, { method: "DELETE" });
      throw new RequestError("Cancelled.");
    }
    job = await request(`api/jobs/${job.job}`);
  }
  if (signal?.aborted) throw new RequestError("Cancelled.");
  if (job.state === "done") return job.result;
  throw new RequestError(job.error ?? "Cancelled.");
}

// Return the cache key of a job's result.
export function jobKey(job, state) {
  return `job:${job}:${state.model}:${state.text}`;
}

const computedKeys = new Set();

// Cache a result computed in this page.
export function storeResult(job, state, result) {
  cachedAnswers.set(jobKey(job, state), result);
  computedKeys.add(jobKey(job, state));
}

// Return whether a result was computed in this page, that is, with the current parameters.
export function isComputedHere(job, state) {
  return computedKeys.has(jobKey(job, state));
}

// Return a cached or precomputed result of a job; null if there is none.
export async function getResult(job, state) {
  const key = jobKey(job, state);
  if (cachedAnswers.has(key)) return cachedAnswers.get(key);
  if (bundle) return null;
  const { result } = await ask("ready", { model: state.model, text: state.text, what: job });
  if (result) cachedAnswers.set(key, result);
  return result;
}

export function parseUnit(name) {
  const match = /^([a-z])(\d+)\.(\d+)(b?)$/.exec(name);
  return { state: match[1], layer: Number(match[2]), number: Number(match[3]), backward: match[4] === "b" };
}

export function unitName({ state, layer, number, backward }) {
  return `${state}${layer}.${number}${backward ? "b" : ""}`;
}

// Return the unit of a quantity that belongs with a unit, such as the gate of its head; null if there is none.
export function correspondingUnit(about, unit, state) {
  if (unit.state === state) return unit;
  if (about.separate.includes(unit.state) || about.separate.includes(state)) return null;
  return { ...unit, state, number: Math.floor((unit.number * about.states[state]) / about.states[unit.state]) };
}

// Return the label of a unit and its layer, counted from 1; addresses such as c1.190 count from 0.
export function unitLabel(name, layers) {
  const { layer, number } = parseUnit(name);
  return `cell ${number + 1}${layers > 1 ? ` of layer ${layer + 1}` : ""}`;
}

// Return the address of a unit, after its label if the unit has a name.
export function describeAddress(view, unit) {
  return view.getNamedCell(unit) ? `${unitLabel(unit, view.about.layers)}, ${formatAddress(unit)}` : formatAddress(unit);
}

export function formatAddress(name) {
  return name.replace(/b$/, "←");
}
