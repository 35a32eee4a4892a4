// Labels for names used in the analyses.

const NUMBERS = { S: "singular", P: "plural" };

// A condition of agreement: "nounpp SP" is a singular subject with a plural noun between it and the verb.
export function conditionWords(name) {
  const [, kind, numbers] = /^(simple|nounpp) ([SP]{1,2})$/.exec(name) ?? [];
  if (!kind) return name;
  const [subject, between] = [...numbers].map((letter) => NUMBERS[letter]);
  return between ? `${subject} subject, ${between} noun between` : `${subject} subject`;
}

// Example of a condition.
export function conditionExample(name) {
  return { "simple S": "The key is", "simple P": "The keys are", "nounpp SS": "The key to the cabinet is", "nounpp SP": "The key to the cabinets is",
    "nounpp PS": "The keys to the cabinet are", "nounpp PP": "The keys to the cabinets are" }[name] ?? "";
}

// A class of symbols: "quotes rises" is where it begins.
export function classWords(view, name) {
  const [, feature, way] = /^(.*) (rises|falls)$/.exec(name) ?? [];
  if (feature) return `where “${view.feature(feature)}” ${way === "rises" ? "begins or increases" : "ends or decreases"}`;
  return name === "all" ? `all ${view.symbols}` : { letter: "letters", word: "words", digit: "digits", space: "spaces", newline: "line ends", quote: "quotation marks" }[name] ?? `${name}s`;
}

// The same with a preposition: "at spaces".
export function atClass(view, name) {
  const words = classWords(view, name);
  return words.startsWith("where") ? words : `at ${words}`;
}

const MIN_SYMBOLS = 1000; // below which a correlation is no more than a hint

export function isLittleEvidence(symbols) {
  return symbols < MIN_SYMBOLS;
}

// Label for the strength of a correlation; over few symbols it is uncertain.
export function strength(r, symbols = Infinity) {
  const size = Math.abs(r);
  return isLittleEvidence(symbols) ? "uncertain" : size >= 0.8 ? "strong" : size >= 0.5 ? "moderate" : "weak";
}

// Statement about a named cell, or that no interpretation is known.
export function claimOf(cell, called) {
  if (!cell) return `No interpretation is known for ${called}`;
  if (cell.binary) return `This cell is ${{ clear: "", fair: "mostly ", weak: "slightly more " }[cell.strength]}on ${cell.words}`;
  const way = cell.r > 0 ? "rises" : "falls";
  return `This cell ${{ clear: "", fair: "mostly ", weak: "weakly " }[cell.strength]}${way} with ${cell.words}`;
}
