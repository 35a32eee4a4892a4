// From blue over the ground to orange; the ends leave the text a contrast of 7:1, in the light and in the dark.

const ENDS = {
  light: { low: [86, 160, 230], middle: [255, 255, 255], high: [230, 126, 34] },
  dark: { low: [24, 78, 138], middle: [23, 25, 29], high: [128, 62, 4] },
};
export const STEPS = 32;

export function theme() {
  const chosen = document.documentElement.dataset.theme;
  if (chosen) return chosen;
  return matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
}

const tables = {};

export function table(name = theme()) {
  if (tables[name]) return tables[name];
  const { low, middle, high } = ENDS[name];
  const colours = [];
  for (let step = -STEPS; step <= STEPS; step++) {
    const end = step < 0 ? low : high;
    const share = Math.abs(step) / STEPS;
    colours.push(`rgb(${middle.map((m, i) => Math.round(m + share * (end[i] - m))).join(", ")})`);
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
