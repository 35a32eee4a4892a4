"""The settings of the training loop, the same for every kind of model."""

from dataclasses import dataclass
from typing import Literal

from relmo.settings.bounds import refuse


@dataclass(frozen=True, kw_only=True)
class TrainSettings:
    """The training loop, the same for every kind of model."""

    epochs: float = 10.0
    """How often to go through the training data; may be a fraction."""
    minutes: float | None = None
    """Train for about this long, in place of epochs: as many steps as fit, by the pace of the first ones. Reading the
    text and validation come on top."""
    batch: int = 32
    """How many streams or examples are read side by side; with several processes, by each of them."""
    unroll: int = 128
    """Language models: steps of back-propagation through time in one window; the state is carried to the next."""
    accumulate: int = 1
    """Add up the gradients of this many batches for one step of the optimiser."""
    optimizer: Literal["adamw", "adam", "muon", "sgd", "adagrad"] = "adamw"
    """The optimiser. muon (Jordan et al. 2024) moves the matrices of hidden layers, adam all else."""
    lr: float = 0.002
    """The learning rate after warm-up."""
    weight_decay: float = 0.0
    """Weight decay: decoupled in adamw and, for the matrices that it moves, in muon; an L2 penalty in the others."""
    momentum: float = 0.0
    """SGD only: the momentum."""
    initial_accumulator: float = 1.0
    """Adagrad only: where the sums of squared gradients start. Smaller values make the first steps larger."""
    warmup: int = 100
    """Steps over which the learning rate rises from zero; at most a tenth of the run."""
    decay: Literal["cosine", "linear", "constant"] = "cosine"
    """How the learning rate falls after warm-up."""
    final_lr: float = 0.0
    """Where the decay ends, as a fraction of lr."""
    clip_norm: float = 1.0
    """Gradients whose global norm is above this are scaled down to it; 0 turns clipping off."""
    average: float = 0.0
    """Decay of an exponential moving average of the weights, such as 0.999, which is validated and saved; 0 turns this
    off."""
    precision: Literal["float32", "bfloat16"] = "float32"
    """Compute in float32, or in mixed precision with bfloat16."""
    validate_every: int | None = None
    """Steps between validations. By default there is one at the end of every epoch."""
    patience: int | None = None
    """Stop after this many validations without a new best."""
    checkpoint_every: float = 60.0
    """Seconds between checkpoints, from which a killed run goes on. If writing one takes long, there are fewer. 0
    writes one at every step."""
    log_every: int = 50
    """Steps between lines of metrics.jsonl."""
    tensorboard: bool = False
    """Write TensorBoard event files too (needs relmo[tensorboard])."""
    seed: int = 1
    """Seed of every random choice."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where to compute; auto takes a GPU if there is one."""
    threads: int | None = None
    """CPU threads. By default torch chooses."""


def check_optimizer(settings: TrainSettings) -> None:
    """What belongs to one optimiser only is refused for the others."""
    if settings.optimizer != "sgd":
        refuse(settings, ["momentum"], f"optimizer {settings.optimizer}")
    if settings.optimizer != "adagrad":
        refuse(settings, ["initial_accumulator"], f"optimizer {settings.optimizer}")
