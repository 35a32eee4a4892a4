// Colour map from blue (off) over the background to orange (on). Text has a contrast of 7:1 on all of it, in the light and in the dark. In the
// dark the strong half of each side is bright, with black letters on it: what is on must be seen from the last row.

const ENDS = {
  light: { low: [[255, 255, 255], [86, 160, 230]], high: [[255, 255, 255], [230, 126, 34]] },
  dark: { low: [[23, 25, 29], [20, 84, 170]], high: [[23, 25, 29], [150, 62, 0]] },
};
const BRIGHT_ENDS = { low: [[110, 165, 235], [150, 200, 255]], high: [[232, 140, 50], [255, 180, 95]] }; // dark theme, stronger half
export const STEPS = 32;

export function theme() {
  const selectedTheme = document.documentElement.dataset.theme;
  if (selectedTheme) return selectedTheme;
  return matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
}

const tables = {};

export function colourTable(name = theme()) {
  if (tables[name]) return tables[name];
  const colours = [];
  for (let colourIndex = -STEPS; colourIndex <= STEPS; colourIndex++) {
    const side = colourIndex < 0 ? "low" : "high";
    const share = Math.abs(colourIndex) / STEPS;
    const isBright = name === "dark" && share > 0.5;
    const [startColour, endColour] = isBright ? BRIGHT_ENDS[side] : ENDS[name][side];
    const fraction = name === "light" ? share : isBright ? 2 * share - 1 : 2 * share;
    colours.push(`rgb(${startColour.map((f, i) => Math.round(f + fraction * (endColour[i] - f))).join(", ")})`);
  }
  return (tables[name] = colours);
}

// Return the index of a value's colour, 0 to 2 * STEPS.
export function colourIndex(value, scale) {
  if (!Number.isFinite(value)) return STEPS;
  return Math.round(Math.max(-1, Math.min(1, value / scale)) * STEPS) + STEPS;
}

export function colour(value, scale) {
  return colourTable()[colourIndex(value, scale)];
}

// Return the text colour on a colour of the table: black on the bright colours of the dark theme.
export function textColour(index) {
  return theme() === "dark" && Math.abs(index - STEPS) > STEPS / 2 ? "#000000" : "";
}

// Set the background of an element to the colour of a value, and a readable text colour.
export function paint(element, value, scale) {
  const index = colourIndex(value, scale);
  element.style.backgroundColor = colourTable()[index];
  element.style.color = textColour(index);
}
