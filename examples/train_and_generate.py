"""Train a small character LSTM on the bundled text, compute perplexities, and generate text."""

import tempfile
from pathlib import Path

import relmo

text = Path(relmo.__file__).parent / "data" / "alice.txt"

with tempfile.TemporaryDirectory() as folder:
    model = relmo.train("lm", text, hidden=128, unroll=64, epochs=3, out=Path(folder) / "alice")
print(model)
print(f"validation: {model.results['valid_nll_per_symbol']:.3f} nats per character")
for sentence in ("Alice was very tired.", "Ecila saw yrev derit."):
    print(f"{model.perplexity(sentence):6.2f}  {sentence}")
print(model.generate("Alice ", limit=200, temperature=0.6, seed=1))
