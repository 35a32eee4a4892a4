"""AllenNLP's API for ELMo: old scripts run with only their imports changed.

    from relmo.compat.allennlp import Elmo, batch_to_ids                   # was: allennlp.modules.elmo
    from relmo.compat.allennlp import ElmoTokenEmbedder                    # was: allennlp.modules.token_embedders
    from relmo.compat.allennlp import ElmoEmbedder                         # was: allennlp.commands.elmo
    from relmo.compat.allennlp import ScalarMix                            # was: allennlp.modules.scalar_mix
    from relmo.compat.allennlp import remove_sentence_boundaries           # was: allennlp.nn.util

As in AllenNLP: signatures, shapes, numbers, and state dicts with names such as
`_elmo_lstm._token_embedder.char_conv_0.weight` and `scalar_mix_0.scalar_parameters.0`. LSTM states of each row are
carried from batch to batch until `reset_states` (`relmo.Elmo` starts each batch from zero), or until
`elmo._elmo_lstm._elmo_lstm.stateful = False`. Layer norm includes the sentence boundaries.

In addition: options with 261 characters, with widths other than 50, without skip connections or without highway layers
are supported; a cached vocabulary follows changes of the weights; nothing is downloaded. `Elmo.from_archive` extracts
the ELMo from a `model.tar.gz`.
"""

from relmo.compat.allennlp.bilm import _ElmoBiLm as _ElmoBiLm
from relmo.compat.allennlp.bilm import _ElmoCharacterEncoder as _ElmoCharacterEncoder
from relmo.compat.allennlp.bilm import batch_to_ids as batch_to_ids
from relmo.compat.allennlp.bilm import remove_sentence_boundaries as remove_sentence_boundaries
from relmo.compat.allennlp.elmo import Elmo as Elmo
from relmo.compat.allennlp.elmo import ElmoTokenEmbedder as ElmoTokenEmbedder
from relmo.compat.allennlp.elmo import ScalarMix as ScalarMix
from relmo.compat.allennlp.embedder import ElmoEmbedder as ElmoEmbedder
