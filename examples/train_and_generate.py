"""Train a small character LSTM on the text that ships with relmo, score a sentence, and let it write."""

import tempfile
from importlib import resources
from pathlib import Path

import relmo
from relmo.runs.train_lm import train_lm
from relmo.settings.lm import LanguageModelSettings, LMSettings
from relmo.settings.training import TrainSettings

text = resources.files("relmo") / "data" / "alice.txt"
settings = LMSettings(model=LanguageModelSettings(hidden=128), train=TrainSettings(epochs=3, unroll=64))

with tempfile.TemporaryDirectory() as folder:
    out = Path(folder) / "alice"
    results = train_lm([str(text)], settings, out)
    print(f"validation: {results['valid_nll_per_symbol']:.3f} nats per character")
    model = relmo.load(out)
    for sentence in ("Alice was very tired.", "Ecila saw yrev derit."):
        print(f"{model.perplexity(sentence):6.2f}  {sentence}")
    print(model.generate("Alice ", limit=200, temperature=0.6, seed=1))
