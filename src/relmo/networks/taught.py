"""A bidirectional language model taught by a larger one: it learns the text, and what the other makes of it.

Both read the same windows; the teacher's state is carried beside the student's. The teacher's weights stay as they are.
"""

import torch
from torch import nn

from relmo.networks.bilm import BiLMNetwork, BiWindow
from relmo.networks.language_model import Loss
from relmo.nn.cells import State
from relmo.nn.distillation import LayerMaps
from relmo.nn.dropout import drop
from relmo.nn.elmo_lstm import ElmoLSTM
from relmo.nn.softmax import Lesson


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
        assert student.softmax is not None
        assert teacher.softmax is not None
        carry, cut = student.forget_some(carry), 2 * len(student.lstm.layers)
        own, others = (None, None) if carry is None else (carry[:cut], carry[cut:])
        with torch.no_grad():
            says = teacher.read(window, others)
        run = student.read(window, own)
        top = drop(run.layers[-1], student.dropout, self.training)
        lesson = Lesson(says.layers[-1].flatten(0, 2), teacher.softmax, self.share) if self.share else None
        mean = student.softmax.loss(top.flatten(0, 2), window.targets.flatten(), lesson)
        if self.maps is not None:
            count = len(self.maps.weight)  # from the top down
            mean = mean + self.layers * self.maps.distance(run.layers[-count:], says.layers[-count:])
        state = tuple(tensor.detach() for tensor in (*run.state, *says.state))
        return Loss(mean, window.targets[0].numel(), state)
