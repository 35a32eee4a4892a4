"""Quality of word vectors on gensim's word lists.

    python -m experiments.skipgram_quality VECTORS.txt …

Spearman correlation with human judgements (WordSim-353, SimLex-999) and accuracy on analogies among the 30,000 most
frequent words, for files in word2vec's text format. Needs `pip install gensim`. To make files to compare:

    relmo train skipgram tokens.txt --tokenizer whitespace --out out/vectors
    python -c "from gensim.models import Word2Vec as W; W(corpus_file='tokens.txt', vector_size=100, window=5, sg=1,
      negative=5, min_count=5, epochs=5, workers=2, sample=1e-3, seed=1).wv.save_word2vec_format('gensim.txt')"
"""

import sys

from gensim.models import KeyedVectors
from gensim.test.utils import datapath

print(f"{'file':40} {'words':>8} {'WordSim':>8} {'SimLex':>8} {'analogies':>10}")
for path in sys.argv[1:]:
    vectors = KeyedVectors.load_word2vec_format(path)
    wordsim, simlex = (
        vectors.evaluate_word_pairs(datapath(name), restrict_vocab=None)[1].statistic
        for name in ("wordsim353.tsv", "simlex999.txt")
    )
    analogies, _ = vectors.evaluate_word_analogies(datapath("questions-words.txt"), restrict_vocab=30_000)
    print(f"{path:40} {len(vectors):8,} {wordsim:8.3f} {simlex:8.3f} {analogies:10.3f}")
