// Colour map from blue (off) over the background to orange (on). Text has a contrast of 7:1 on all of it, in the light and in the dark. In the
// dark the strong half of each side is bright, with black letters on it: what is on must be seen from the last row.

const ENDS = {
  light: { low: [[255, 255, 255], [86, 160, 230]], high: [[255, 255, 255], [230, 126, 34]] },
  dark: { low: [[23, 25, 29], [20, 84, 170]], high: [[23, 25, 29], [150, 62, 0]] },
};
const BRIGHT = { low: [[110, 165, 235], [150, 200, 255]], high: [[232, 140, 50], [255, 180, 95]] }; // in the dark, from half on
export const STEPS = 32;

export function theme() {
  const chosen = document.documentElement.dataset.theme;
  if (chosen) return chosen;
  return matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
}

const tables = {};

export function table(name = theme()) {
  if (tables[name]) return tables[name];
  const colours = [];
  for (let step = -STEPS; step <= STEPS; step++) {
    const side = step < 0 ? "low" : "high";
    const share = Math.abs(step) / STEPS;
    const bright = name === "dark" && share > 0.5;
    const [from, to] = bright ? BRIGHT[side] : ENDS[name][side];
    const along = name === "light" ? share : bright ? 2 * share - 1 : 2 * share;
    colours.push(`rgb(${from.map((f, i) => Math.round(f + along * (to[i] - f))).join(", ")})`);
  }
  return (tables[name] = colours);
}

// Which of the colours, 0 to 2 * STEPS.
export function step(value, scale) {
  if (!Number.isFinite(value)) return STEPS;
  return Math.round(Math.max(-1, Math.min(1, value / scale)) * STEPS) + STEPS;
}

export function colour(value, scale) {
  return table()[step(value, scale)];
}

// The colour of letters on a step: black where the dark is bright.
export function ink(wanted) {
  return theme() === "dark" && Math.abs(wanted - STEPS) > STEPS / 2 ? "#000000" : "";
}

// An element on the colour of a value, its letters readable.
export function paint(element, value, scale) {
  const wanted = step(value, scale);
  element.style.backgroundColor = table()[wanted];
  element.style.color = ink(wanted);
}
