"""Settings of the training loop."""

from dataclasses import dataclass
from typing import Annotated, Literal

from msgspec import Meta

from relmo.settings.arguments import MAX_SEED, MAX_THREADS
from relmo.settings.fields import Count, Only, Rate, SettingsSection, Size, Weight

Seed = Annotated[int, Meta(ge=0, le=MAX_SEED)]
Threads = Annotated[int, Meta(ge=1, le=MAX_THREADS)]
LearningRate = Annotated[float, Meta(ge=1e-12, le=1e6)]
Epochs = Annotated[float, Meta(ge=1e-9, le=1e9)]
Steps = Annotated[int, Meta(ge=0, le=1 << 40)]
DeviceName = Literal["auto", "cpu", "cuda"]


@dataclass(frozen=True, kw_only=True)
class TrainSettings(SettingsSection):
    """Settings of the training loop."""

    epochs: Epochs = 10.0
    """Number of passes over the training data; may be a fraction."""
    minutes: Annotated[float, Meta(ge=1e-3, le=1e7)] | None = None
    """Train for about this many minutes instead of a number of epochs. The number of steps follows from the speed of
    the first ones. Reading the text and validation are not included."""
    batch: Size = 32
    """Number of lanes or examples per batch; with several processes, in each of them."""
    unroll: Size = 128
    """Language models: steps of back-propagation through time per window. The state is carried to the next window."""
    accumulate: Size = 1
    """Number of batches whose gradients are added for one step of the optimiser."""
    optimizer: Literal["adamw", "adam", "muon", "sgd", "adagrad"] = "adamw"
    """Optimiser. muon (Jordan et al. 2024) updates the matrices of hidden layers, adam all other parameters."""
    lr: LearningRate = 0.002
    """Learning rate after warm-up."""
    weight_decay: Annotated[float, Meta(ge=0, le=1e6)] = 0.0
    """Weight decay: decoupled for adamw and the matrices of muon, an L2 penalty for the other optimisers."""
    momentum: Annotated[Rate, Only(optimizer="sgd")] = 0.0
    """SGD only: momentum."""
    initial_accumulator: Annotated[Weight, Only(optimizer="adagrad")] = 1.0
    """Adagrad only: initial value of the sums of squared gradients. Smaller values make the first steps larger."""
    warmup: Steps = 100
    """Steps over which the learning rate rises from zero; at most a tenth of the run."""
    decay: Literal["cosine", "linear", "constant"] = "cosine"
    """Decay of the learning rate after warm-up."""
    final_lr: Annotated[float, Meta(ge=0, le=1)] = 0.0
    """Final learning rate of the decay, as a fraction of lr."""
    clip_norm: Weight = 1.0
    """Largest global norm of the gradients; larger ones are scaled down to it. 0 turns clipping off."""
    average: Rate = 0.0
    """Decay of an exponential moving average of the weights, such as 0.999, which is validated and saved. 0 turns
    averaging off."""
    precision: Literal["float32", "bfloat16"] = "float32"
    """float32, or mixed precision with bfloat16."""
    validate_every: Count | None = None
    """Steps between validations. The default is one validation per epoch."""
    patience: Count | None = None
    """Early stopping: number of validations without improvement after which training stops."""
    checkpoint_every: Weight = 60.0
    """Seconds between checkpoints, from which an interrupted run can be resumed. They are less frequent if writing one
    takes long. 0 writes one at every step."""
    log_every: Count = 50
    """Steps between lines of metrics.jsonl."""
    tensorboard: bool = False
    """Also write TensorBoard event files (needs relmo[tensorboard])."""
    seed: Seed = 1
    """Random seed."""
    device: DeviceName = "auto"
    """Device; auto uses a GPU if there is one."""
    threads: Threads | None = None
    """Number of CPU threads. The default is that of PyTorch."""
