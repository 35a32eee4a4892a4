"""AllenNLP's names for ELMo: an old script runs with its import changed.

    from relmo.compat.allennlp import Elmo, batch_to_ids                   # was: allennlp.modules.elmo
    from relmo.compat.allennlp import ElmoTokenEmbedder                    # was: allennlp.modules.token_embedders
    from relmo.compat.allennlp import ElmoEmbedder                         # was: allennlp.commands.elmo
    from relmo.compat.allennlp import ScalarMix                            # was: allennlp.modules.scalar_mix
    from relmo.compat.allennlp import remove_sentence_boundaries           # was: allennlp.nn.util

The same as there: signatures, shapes, the numbers, and what a state dict may hold: names such as
`_elmo_lstm._token_embedder.char_conv_0.weight` and `scalar_mix_0.scalar_parameters.0` load. So each row's LSTM states
go on from batch to batch until `reset_states` (`relmo.Elmo` starts each batch from zero), or until
`elmo._elmo_lstm._elmo_lstm.stateful = False`. The layer norm includes the sentence boundaries.

Better than there: options with 261 characters, with other widths than 50, without skip connections or without highway
layers are read; a cached vocabulary follows weights that change; nothing is downloaded. `Elmo.from_archive` takes the
ELMo out of a `model.tar.gz`.
"""

from relmo.compat.allennlp.bilm import _ElmoBiLm as _ElmoBiLm
from relmo.compat.allennlp.bilm import _ElmoCharacterEncoder as _ElmoCharacterEncoder
from relmo.compat.allennlp.bilm import batch_to_ids as batch_to_ids
from relmo.compat.allennlp.bilm import remove_sentence_boundaries as remove_sentence_boundaries
from relmo.compat.allennlp.elmo import Elmo as Elmo
from relmo.compat.allennlp.elmo import ElmoTokenEmbedder as ElmoTokenEmbedder
from relmo.compat.allennlp.elmo import ScalarMix as ScalarMix
from relmo.compat.allennlp.embedder import ElmoEmbedder as ElmoEmbedder
