// Labels for names used in the analyses.

const NUMBERS = { S: "singular", P: "plural" };

// Describe a condition of agreement: "nounpp SP" is a singular subject with a plural noun between it and the verb.
export function describeCondition(name) {
  const [, kind, numbers] = /^(simple|nounpp) ([SP]{1,2})$/.exec(name) ?? [];
  if (!kind) return name;
  const [subject, between] = [...numbers].map((letter) => NUMBERS[letter]);
  return between ? `${subject} subject, ${between} noun between` : `${subject} subject`;
}

// Return an example of a condition.
export function conditionExample(name) {
  return { "simple S": "The key is", "simple P": "The keys are", "nounpp SS": "The key to the cabinet is", "nounpp SP": "The key to the cabinets is",
    "nounpp PS": "The keys to the cabinet are", "nounpp PP": "The keys to the cabinets are" }[name] ?? "";
}

// Describe a class of symbols: "quotes rises" is where a quotation begins.
export function describeClass(view, name) {
  const [, feature, direction] = /^(.*) (rises|falls)$/.exec(name) ?? [];
  if (feature) return `where “${view.getFeatureLabel(feature)}” ${direction === "rises" ? "begins or increases" : "ends or decreases"}`;
  return name === "all" ? `all ${view.symbols}` : { letter: "letters", word: "words", digit: "digits", space: "spaces", newline: "line ends", quote: "quotation marks" }[name] ?? `${name}s`;
}

// Describe a class with a preposition: "at spaces".
export function describeClassPosition(view, name) {
  const words = describeClass(view, name);
  return words.startsWith("where") ? words : `at ${words}`;
}

const MIN_SYMBOLS = 1000; // correlations over fewer symbols are weak evidence

export function isLittleEvidence(symbols) {
  return symbols < MIN_SYMBOLS;
}

// Return a label for the strength of a correlation; over few symbols it is uncertain.
export function correlationStrength(r, symbols = Infinity) {
  const size = Math.abs(r);
  return isLittleEvidence(symbols) ? "uncertain" : size >= 0.8 ? "strong" : size >= 0.5 ? "moderate" : "weak";
}

// Return a statement about a named cell, or that no interpretation is known.
export function describeCell(cell, label) {
  if (!cell) return `No interpretation is known for ${label}`;
  if (cell.binary) return `This cell is ${{ clear: "", fair: "mostly ", weak: "slightly more " }[cell.strength]}on ${cell.words}`;
  const direction = cell.r > 0 ? "rises" : "falls";
  return `This cell ${{ clear: "", fair: "mostly ", weak: "weakly " }[cell.strength]}${direction} with ${cell.words}`;
}
