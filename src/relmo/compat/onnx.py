"""ONNX: a biLM's `embed` as one graph, for programs that have no torch.

    export_onnx(relmo.load(), "small.onnx")
    vectors = OnnxEmbedder("small.onnx").embed(["A bank lends money."])

The graph has one input and two outputs. Batch and length are free.

    ids      int64 (batch, tokens, max_characters): `relmo.text.characters`; all zero where there is no word
    vectors  float32 (batch, layers, tokens, dim), zero where there is no word
    mask     bool (batch, tokens)

Choices:
- The graph is written node by node rather than traced. ONNX's own LSTM has no projection and clips elsewhere; ELMo's
  step is the body of a `Scan`, both directions side by side.
- Each distinct word of a batch is encoded once (`Unique`), and the first layer's gates are made of distinct words too.
- A sentence starts from zero. So the state after its first boundary is a constant of the graph, and no boundary is run.
- Nothing in a step depends on the lengths: the backward direction reads each sentence reversed (`ReverseSequence`), so
  that what lies past its end comes last in both directions. It is set to zero in the end.
"""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from relmo.disk.outputs import atomic, refuse_existing
from relmo.errors import ModelError, SettingError
from relmo.settings.arguments import check_sentences
from relmo.settings.embedding import EmbedOptions, Layers
from relmo.text.characters import Spellings
from relmo.text.encode import TOKENIZERS

if TYPE_CHECKING:
    from relmo.models.bilm import BiLM

OPSET, IR_VERSION = 18, 9  # onnxruntime 1.16 and later
LARGEST = 2_000_000_000  # bytes; a file in this format cannot be larger
NOTE = "relmo"  # the key of what the embedder needs to know


def export_onnx(model: "BiLM", path: str | Path, *, overwrite: bool = False) -> None:
    """Writes the graph of a bidirectional model that reads characters, with its weights in float32."""
    try:
        import onnx
    except ImportError as error:
        raise SettingError("writing ONNX needs the package onnx; try: pip install 'relmo[onnx]'") from error
    settings = model.settings.model
    if settings.input != "char":
        raise ModelError(f"a model with {settings.input} input is not written as ONNX; give one that reads characters")
    if 4 * sum(tensor.numel() for tensor in model.tensors().values()) > LARGEST:
        raise ModelError("the model is too large for ONNX, whose files have at most 2 GB")
    refuse_existing(Path(path), overwrite=overwrite)
    made = _model_graph(model)
    made.model_version = 1
    entry = made.metadata_props.add()
    entry.key, entry.value = NOTE, json.dumps(_note(model))
    onnx.checker.check_model(made, full_check=True)
    with atomic(Path(path)) as temporary:
        temporary.write_bytes(made.SerializeToString())


def _note(model: "BiLM") -> dict[str, Any]:
    text = model.settings.text
    return {
        "max_characters": model.settings.model.max_characters,
        "layers": model.network.layer_count,
        "tokenizer": text.tokenizer,
        "lowercase": text.lowercase,
    }


class _Graph:
    """Nodes and constants of a graph, as they are added; each gets a name of its own, behind the graph's."""

    def __init__(self, name: str = "") -> None:
        self.name = name
        self.nodes: list[Any] = []
        self.constants: list[Any] = []

    def constant(self, value: Any, dtype: Any = np.float32) -> str:
        """A constant; -> its name."""
        from onnx import numpy_helper

        name = f"{self.name}constant_{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.array(value, dtype=dtype, order="C"), name))
        return name

    def numbers(self, *values: int) -> str:
        """Whole numbers, such as a shape; -> their name."""
        return self.constant(values, np.int64)

    def add(self, operation: str, *inputs: str, outputs: int = 1, **attributes: Any) -> Any:
        """A node; -> the name of its output, or the names of several."""
        from onnx import helper

        names = [f"{self.name}{operation}_{len(self.nodes)}_{i}" for i in range(outputs)]
        self.nodes.append(helper.make_node(operation, list(inputs), names, **attributes))
        return names[0] if outputs == 1 else names


def _model_graph(model: "BiLM") -> Any:
    from onnx import TensorProto, helper

    graph, network = _Graph(), model.network
    columns = model.settings.model.max_characters
    mask = graph.add("Greater", graph.add("ReduceMax", "ids", graph.numbers(2), keepdims=0), graph.numbers(0))
    real = graph.add("Cast", mask, to=TensorProto.INT64)
    lengths = graph.add("ReduceSum", real, graph.numbers(1), keepdims=0)  # (B,)
    flat = graph.add("Reshape", "ids", graph.numbers(-1, columns))
    distinct, _, which, _ = graph.add("Unique", flat, outputs=4, axis=0, sorted=0)
    words = _encoder(graph, network.encoder, distinct)  # (U, P)
    which = graph.add("Transpose", graph.add("Reshape", which, graph.add("Shape", mask)), perm=[1, 0])  # (T, B)
    tokens = graph.add("Gather", words, which)
    layers = [graph.add("Concat", tokens, tokens, axis=2), *_lstm(graph, model, words, which, lengths)]
    stacked = [graph.add("Unsqueeze", layer, graph.numbers(0)) for layer in layers]
    all_layers = graph.add("Concat", *stacked, axis=0) if len(stacked) > 1 else stacked[0]  # (K, T, B, 2P)
    all_layers = graph.add("Transpose", all_layers, perm=[2, 0, 1, 3])
    there = graph.add("Unsqueeze", graph.add("Cast", mask, to=TensorProto.FLOAT), graph.numbers(1, 3))
    ends = {"vectors": graph.add("Mul", all_layers, there), "mask": mask}
    graph.nodes += [helper.make_node("Identity", [name], [end]) for end, name in ends.items()]
    sizes: list[str | int | None] = ["batch", network.layer_count, "tokens", network.size]
    made = helper.make_graph(
        graph.nodes,
        "relmo biLM",
        [helper.make_tensor_value_info("ids", TensorProto.INT64, ["batch", "tokens", columns])],
        [
            helper.make_tensor_value_info("vectors", TensorProto.FLOAT, sizes),
            helper.make_tensor_value_info("mask", TensorProto.BOOL, ["batch", "tokens"]),
        ],
        graph.constants,
    )
    return helper.make_model(made, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR_VERSION)


def _encoder(graph: _Graph, encoder: Any, ids: str) -> str:
    """Character ids (U, C) -> word vectors (U, P). An id of 0 takes the last character, padding."""
    cnn = encoder.cnn
    x = graph.add("Gather", graph.constant(_array(cnn.embedding)), graph.add("Sub", ids, graph.numbers(1)))
    x = graph.add("Transpose", x, perm=[0, 2, 1])  # (U, E, C)
    activation = {"relu": "Relu", "tanh": "Tanh"}[cnn.activation]
    parts = []
    for weight, bias in zip(cnn.weights, cnn.biases, strict=True):
        y = graph.add("Conv", x, graph.constant(_array(weight)), graph.constant(_array(bias)))
        parts.append(graph.add(activation, graph.add("ReduceMax", y, graph.numbers(2), keepdims=0)))
    x = graph.add("Concat", *parts, axis=1)
    for highway in encoder.highways:
        gate = graph.add("Sigmoid", _linear(graph, x, highway.carry))
        made = graph.add("Relu", _linear(graph, x, highway.transform))
        x = graph.add("Add", x, graph.add("Mul", gate, graph.add("Sub", made, x)))
    return x if encoder.projection is None else _linear(graph, x, encoder.projection)


def _linear(graph: _Graph, x: str, linear: Any) -> str:
    return graph.add("Gemm", x, graph.constant(_array(linear.weight)), graph.constant(_array(linear.bias)), transB=1)


def _lstm(graph: _Graph, model: "BiLM", words: str, which: str, lengths: str) -> list[str]:
    """Every LSTM layer (T, B, 2P), from distinct word vectors (U, P) and which of them stands where (T, B)."""
    lstm, first = model.network.lstm, model.embedder.first_state()
    shape = graph.add("Shape", which)
    batch = graph.add("Gather", shape, graph.numbers(1), axis=0)
    backward = graph.add("ReverseSequence", which, lengths, time_axis=0, batch_axis=1)
    outputs: list[str] = []
    found: list[str] = []
    for depth, layer in enumerate(lstm.stack):
        into, bias = _array(layer.weight_ih), _array(layer.full_bias())  # (2, 4H, I), (2, 4H)
        if depth:
            flat = graph.add("Reshape", outputs[-1], graph.numbers(2, -1, into.shape[2]))  # (2, T B, P)
            products = graph.add("MatMul", flat, graph.constant(into.transpose(0, 2, 1)))
            gates = graph.add("Add", products, graph.constant(bias[:, None]))
            sizes = graph.add("Concat", graph.numbers(2), shape, graph.numbers(into.shape[1]), axis=0)
            gates = graph.add("Reshape", gates, sizes)
        else:
            sides = []
            for d, places in enumerate((which, backward)):
                own = graph.add("Gemm", words, graph.constant(into[d]), graph.constant(bias[d]), transB=1)
                sides.append(graph.add("Unsqueeze", graph.add("Gather", own, places), graph.numbers(0)))
            gates = graph.add("Concat", *sides, axis=0)  # (2, T, B, 4H)
        state = []
        for part in first[2 * depth : 2 * depth + 2]:
            start = _array(part).transpose(1, 0, 2)  # (2, 1, P or H)
            sizes = graph.add("Concat", graph.numbers(2), batch, graph.numbers(start.shape[2]), axis=0)
            state.append(graph.add("Expand", graph.constant(start), sizes))
        y = _scan(graph, layer, state, gates, lstm.clips)
        outputs.append(graph.add("Add", outputs[-1], y) if depth and lstm.skip_connections else y)
        ahead, behind = (graph.add("Gather", outputs[-1], graph.constant(d, np.int64), axis=0) for d in range(2))
        behind = graph.add("ReverseSequence", behind, lengths, time_axis=0, batch_axis=1)
        found.append(graph.add("Concat", ahead, behind, axis=2))
    return found


def _scan(graph: _Graph, layer: Any, state: Sequence[str], gates: str, clips: Any) -> str:
    """One layer over all steps: h (2, B, P), c (2, B, H), gates (2, T, B, 4H) -> y (2, T, B, P).

    i, f, g, o = gates_t + W_hh h;   c' = clip(σ(f) c + σ(i) tanh(g));   h' = clip(W_hr (σ(o) tanh(c')))
    """
    from onnx import TensorProto, helper

    body = _Graph(f"step_{len(graph.nodes)}_")
    recurrent = graph.constant(_array(layer.weight_hh).transpose(0, 2, 1))
    z = body.add("Add", "gates", body.add("MatMul", "h", recurrent))
    i, f, g, o = body.add("Split", z, outputs=4, axis=2, num_outputs=4)
    kept = body.add("Mul", body.add("Sigmoid", f), "c")
    written = body.add("Mul", body.add("Sigmoid", i), body.add("Tanh", g))
    c = _clip(graph, body, body.add("Add", kept, written), clips.cell)
    h = body.add("Mul", body.add("Sigmoid", o), body.add("Tanh", c))
    if layer.weight_hr is not None:
        h = body.add("MatMul", h, graph.constant(_array(layer.weight_hr).transpose(0, 2, 1)))
        h = _clip(graph, body, h, clips.projection)
    ends = {"h_after": h, "c_after": c, "y": h}
    body.nodes += [helper.make_node("Identity", [name], [end]) for end, name in ends.items()]
    given = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2, None, None]) for name in ("h", "c", "gates")]
    made = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2, None, None]) for name in ends]
    _, _, y = graph.add(
        "Scan",
        *(*state, gates),
        outputs=3,
        body=helper.make_graph(body.nodes, "step", given, made),
        num_scan_inputs=1,
        scan_input_axes=[1],
        scan_output_axes=[1],
    )
    return y


def _clip(graph: _Graph, body: _Graph, x: str, most: float | None) -> str:
    return x if most is None else body.add("Clip", x, graph.constant(-most), graph.constant(most))


def _array(tensor: Any) -> np.ndarray:
    return tensor.detach().cpu().float().numpy()


class OnnxEmbedder:
    """A graph that `export_onnx` wrote, run by onnxruntime; text goes in as to `BiLM.embed`, and torch is not imported.

    `threads` are those of onnxruntime's; `providers` are where it runs, a CPU unless told otherwise.
    """

    def __init__(
        self, path: str | Path, *, threads: int | None = None, providers: Sequence[str] = ("CPUExecutionProvider",)
    ):
        try:
            import onnxruntime
        except ImportError as error:
            raise SettingError("running ONNX needs the package onnxruntime; try: pip install 'relmo[onnx]'") from error
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads or 0
        try:
            self.session = onnxruntime.InferenceSession(str(path), options, providers=list(providers))
        except Exception as error:  # onnxruntime's errors have no base class but this
            raise ModelError(f"{path}: cannot be read as an ONNX file ({error})") from error
        note = self.session.get_modelmeta().custom_metadata_map.get(NOTE)
        if note is None:
            raise ModelError(f"{path}: is an ONNX file that relmo has not written; its words cannot be spelled")
        self.note: dict[str, Any] = json.loads(note)

    def tokens(self, text: str) -> list[str]:
        """Splits raw text into words."""
        return TOKENIZERS[self.note["tokenizer"]](text.lower() if self.note["lowercase"] else text)

    def embed(
        self, sentences: Iterable[str | Sequence[str]], *, layers: Layers = "all", batch_size: int = 64
    ) -> list[np.ndarray]:
        """Vectors of sentences, float32 (layers, tokens, dim), or (tokens, dim) of one layer. Sentences of about the
        same length are computed together."""
        options = EmbedOptions(layers=layers, batch_size=batch_size)
        options.check(self.note["layers"])
        tokens = [self.tokens(s) if isinstance(s, str) else list(s) for s in check_sentences(sentences, "embed")]
        order = sorted(range(len(tokens)), key=lambda i: len(tokens[i]))
        found: list[np.ndarray] = [np.empty(0)] * len(tokens)
        for start in range(0, len(order), batch_size):
            places = order[start : start + batch_size]
            for place, array in zip(places, self._run([tokens[i] for i in places], options), strict=True):
                found[place] = array
        return found

    def _run(self, batch: Sequence[Sequence[str]], options: EmbedOptions) -> Iterable[np.ndarray]:
        columns, lengths = self.note["max_characters"], [len(words) for words in batch]
        ids = np.zeros((len(batch), max(1, *lengths, 1), columns), dtype=np.int64)
        spelled = Spellings([word for words in batch for word in words], columns).ids()
        ids[np.arange(ids.shape[1]) < np.array(lengths)[:, None]] = spelled
        (vectors,) = self.session.run(["vectors"], {"ids": ids})
        chosen = options.chosen(self.note["layers"])
        for array, length in zip(vectors, lengths, strict=True):
            kept = array[chosen, :length]
            yield kept.copy() if options.layers == "all" else kept.mean(axis=0)
