"""A bidirectional language model taught by a larger one: it learns the text, and what the other makes of it.

Both read the same windows; the teacher's state is carried beside the student's. The teacher's weights stay as they are.
"""

import torch
from torch import Tensor, nn

from relmo.networks.bilm import BiLMNetwork, BiWindow
from relmo.networks.language_model import Loss
from relmo.nn.cells import State
from relmo.nn.distillation import LayerMaps, Logits, taught_loss
from relmo.nn.dropout import drop
from relmo.nn.elmo_lstm import ElmoLSTM, ElmoLSTMOutput
from relmo.nn.softmax import SampledSoftmax, autocast


class TaughtBiLM(nn.Module):
    """`student` with a loss that is the teacher's by a share; with `layers` its outputs are drawn to the teacher's too,
    with this weight. The vocabularies are the same."""

    graphs = True

    def __init__(self, student: BiLMNetwork, teacher: BiLMNetwork, *, share: float, layers: float = 0.0):
        super().__init__()
        self.student = student
        self.share, self.layers = share, layers
        self.others = (teacher,)  # in a tuple: no part of what is trained or saved
        for module in teacher.modules():
            if isinstance(module, BiLMNetwork | ElmoLSTM):
                module.dropout = 0.0
        teacher.train()
        teacher.requires_grad_(False)
        self.maps = None
        if layers:
            sizes = student.lstm.output_size, teacher.lstm.output_size
            self.maps = LayerMaps(min(len(student.lstm.layers), len(teacher.lstm.layers)), *sizes)

    def loss(self, window: BiWindow, carry: State | None) -> Loss:
        """As `BiLMNetwork.loss`; the state is the student's and then the teacher's."""
        student, (teacher,) = self.student, self.others
        cut = 2 * len(student.lstm.layers)
        own, others = (None, None) if carry is None else (carry[:cut], carry[cut:])
        if own is not None and others is not None and self.training and student.state_dropout:
            kept = torch.rand(len(own[0]), 1, 1, device=own[0].device) >= student.state_dropout  # (B, 1, 1)
            own, others = (tuple(tensor * kept for tensor in state) for state in (own, others))
        with torch.no_grad():
            says = teacher.read(window, others)
        run = student.read(window, own)
        mean = self._predictions(run, says, window.targets.flatten())
        if self.maps is not None:
            count = len(self.maps.weight)  # from the top down
            mean = mean + self.layers * self.maps.distance(run.layers[-count:], says.layers[-count:])
        state = tuple(tensor.detach() for tensor in (*run.state, *says.state))
        return Loss(mean, window.targets[0].numel(), state)

    def _predictions(self, run: ElmoLSTMOutput, says: ElmoLSTMOutput, targets: Tensor) -> Tensor:
        student, (teacher,) = self.student, self.others
        assert student.softmax is not None
        assert teacher.softmax is not None
        x = autocast(drop(run.layers[-1], student.dropout, self.training).flatten(0, 2))
        if not self.share:
            return student.softmax.loss(x, targets)
        y = autocast(says.layers[-1].flatten(0, 2))
        if isinstance(student.softmax, SampledSoftmax):
            symbols, place = student.softmax.draw(targets)
            own = Logits(x, *student.softmax.rows(symbols, targets))
            weight, bias = autocast(teacher.softmax.weight), teacher.softmax.bias - student.softmax.log_count
            other = Logits(y, weight[symbols], bias[symbols], weight[targets], bias[targets])
            return taught_loss(own, other, place, self.share)
        own = Logits(x, student.softmax.weight, student.softmax.bias, None, None)
        other = Logits(y, autocast(teacher.softmax.weight), teacher.softmax.bias, None, None)
        return taught_loss(own, other, targets, self.share)
