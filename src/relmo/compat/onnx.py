"""ONNX: a biLM's `embed` as one graph, for programs without torch.

    export_onnx(relmo.load(), "small.onnx")
    vectors = OnnxEmbedder("small.onnx").embed(["A bank lends money."])

The graph has one input and two outputs. Batch size and length are free.

    ids      int64 (batch, tokens, max_characters): `relmo.text.characters`; all zero for padding
    vectors  float32 (batch, layers, tokens, dim), zero for padding
    mask     bool (batch, tokens)

The graph is written node by node, not traced: ONNX's LSTM has no projection and clips elsewhere, so ELMo's step is the
body of a `Scan`, with both directions side by side. Each distinct word of a batch is encoded once (`Unique`). The state
after the first boundary is a constant of the graph. The backward direction reads each sentence reversed
(`ReverseSequence`), so that padding comes last in both directions; it is set to zero at the end.
"""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from relmo.disk.outputs import atomic, refuse_existing
from relmo.errors import ModelError, optional_import
from relmo.nn.recurrence.elmo_lstm import ElmoLSTM
from relmo.settings.fields import check_sentences
from relmo.settings.options import EmbedOptions, Layers
from relmo.text.characters import Spellings
from relmo.text.encode import TOKENIZERS

if TYPE_CHECKING:
    from relmo.models.bilm import BiLM

OPSET, IR_VERSION = 18, 9  # onnxruntime 1.16 and later
MAX_BYTES = 2_000_000_000  # limit of the file format
METADATA_KEY = "relmo"


def export_onnx(model: "BiLM", path: str | Path, *, overwrite: bool = False) -> None:
    """Write the graph of a character-based bidirectional model, with its weights in float32."""
    with optional_import("writing ONNX needs the package onnx", "onnx"):
        import onnx
        from onnx import TensorProto, helper
    settings, text = model.settings.model, model.settings.text
    if settings.input != "char":
        raise ModelError(f"a model with {settings.input} input cannot be exported to ONNX; it must read characters")
    if not isinstance(model.network.lstm, ElmoLSTM):
        raise ModelError(f"only ELMo's LSTM can be exported to ONNX, not {model.network.lstm.describe()}")
    if 4 * sum(tensor.numel() for tensor in model.tensors().values()) > MAX_BYTES:
        raise ModelError("the model is too large for ONNX, whose files have at most 2 GB")
    refuse_existing(Path(path), overwrite=overwrite)
    metadata = {
        "max_characters": settings.max_characters,
        "layers": model.network.layer_count,
        "tokenizer": text.tokenizer,
        "lowercase": text.lowercase,
    }
    graph, network = _Graph(), model.network
    columns = settings.max_characters
    mask = graph.add("Greater", graph.add("ReduceMax", "ids", graph.integers(2), keepdims=0), graph.integers(0))
    is_word = graph.add("Cast", mask, to=TensorProto.INT64)
    lengths = graph.add("ReduceSum", is_word, graph.integers(1), keepdims=0)  # (B,)
    rows = graph.add("Reshape", "ids", graph.integers(-1, columns))
    distinct, _, indices, _ = graph.add("Unique", rows, outputs=4, axis=0, sorted=0)
    words = _add_encoder(graph, network.encoder, distinct)  # (U, P)
    indices = graph.add("Transpose", graph.add("Reshape", indices, graph.add("Shape", mask)), perm=[1, 0])  # (T, B)
    tokens = graph.add("Gather", words, indices)
    layers = [graph.add("Concat", tokens, tokens, axis=2), *_add_lstm(graph, model, words, indices, lengths)]
    stacked = [graph.add("Unsqueeze", layer, graph.integers(0)) for layer in layers]
    all_layers = graph.add("Concat", *stacked, axis=0) if len(stacked) > 1 else stacked[0]  # (K, T, B, 2P)
    all_layers = graph.add("Transpose", all_layers, perm=[2, 0, 1, 3])
    factor = graph.add("Unsqueeze", graph.add("Cast", mask, to=TensorProto.FLOAT), graph.integers(1, 3))
    graph.label_outputs({"vectors": graph.add("Mul", all_layers, factor), "mask": mask})
    shape: list[str | int | None] = ["batch", network.layer_count, "tokens", network.size]
    proto = helper.make_graph(
        graph.nodes,
        "relmo biLM",
        [helper.make_tensor_value_info("ids", TensorProto.INT64, ["batch", "tokens", columns])],
        [
            helper.make_tensor_value_info("vectors", TensorProto.FLOAT, shape),
            helper.make_tensor_value_info("mask", TensorProto.BOOL, ["batch", "tokens"]),
        ],
        graph.constants,
    )
    onnx_model = helper.make_model(proto, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR_VERSION)
    onnx_model.model_version = 1
    entry = onnx_model.metadata_props.add()
    entry.key, entry.value = METADATA_KEY, json.dumps(metadata)
    onnx.checker.check_model(onnx_model, full_check=True)
    with atomic(Path(path)) as temporary:
        temporary.write_bytes(onnx_model.SerializeToString())


class _Graph:
    """Nodes and constants of a graph under construction; their names begin with the graph's name."""

    def __init__(self, name: str = "") -> None:
        self.name = name
        self.nodes: list[Any] = []
        self.constants: list[Any] = []

    def constant(self, value: Any, dtype: Any = np.float32) -> str:
        """Add a constant, such as a weight, and return its name."""
        from onnx import numpy_helper

        array = value.detach().cpu().float().numpy() if hasattr(value, "detach") else value
        name = f"{self.name}constant_{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.array(array, dtype=dtype, order="C"), name))
        return name

    def integers(self, *values: int) -> str:
        """Add an integer constant, such as a shape, and return its name."""
        return self.constant(values, np.int64)

    def add(self, operation: str, *inputs: str, outputs: int = 1, **attributes: Any) -> Any:
        """Add a node and return the name of its output, or a list of names for several `outputs`."""
        from onnx import helper

        names = [f"{self.name}{operation}_{len(self.nodes)}_{i}" for i in range(outputs)]
        self.nodes.append(helper.make_node(operation, list(inputs), names, **attributes))
        return names[0] if outputs == 1 else names

    def linear(self, x: str, weight: Any, bias: Any) -> str:
        """Add x W' + b and return the name of its output."""
        return self.add("Gemm", x, self.constant(weight), self.constant(bias), transB=1)

    def label_outputs(self, names: dict[str, str]) -> None:
        """Name the outputs of the graph."""
        from onnx import helper

        self.nodes += [helper.make_node("Identity", [name], [label]) for label, name in names.items()]


def _add_encoder(graph: _Graph, encoder: Any, ids: str) -> str:
    """Add the encoder from character ids (U, C) to word vectors (U, P). Id 0 becomes the last character, padding."""
    cnn = encoder.cnn
    x = graph.add("Gather", graph.constant(cnn.embedding), graph.add("Sub", ids, graph.integers(1)))
    x = graph.add("Transpose", x, perm=[0, 2, 1])  # (U, E, C)
    activation = {"relu": "Relu", "tanh": "Tanh"}[cnn.activation]
    parts = []
    for weight, bias in zip(cnn.weights, cnn.biases, strict=True):
        y = graph.add("Conv", x, graph.constant(weight), graph.constant(bias))
        parts.append(graph.add(activation, graph.add("ReduceMax", y, graph.integers(2), keepdims=0)))
    x = graph.add("Concat", *parts, axis=1)
    for highway in encoder.highways:
        gate = graph.add("Sigmoid", graph.linear(x, highway.carry.weight, highway.carry.bias))
        y = graph.add("Relu", graph.linear(x, highway.transform.weight, highway.transform.bias))
        x = graph.add("Add", x, graph.add("Mul", gate, graph.add("Sub", y, x)))
    projection = encoder.projection
    return x if projection is None else graph.linear(x, projection.weight, projection.bias)


def _add_lstm(graph: _Graph, model: "BiLM", words: str, indices: str, lengths: str) -> list[str]:
    """Add every LSTM layer (T, B, 2P), from distinct word vectors (U, P) and their indices in the batch (T, B)."""
    lstm, initial_state = model.network.lstm, model.embedder.after_boundary()[0]
    assert isinstance(lstm, ElmoLSTM)
    shape = graph.add("Shape", indices)
    batch = graph.add("Gather", shape, graph.integers(1), axis=0)
    backward = graph.add("ReverseSequence", indices, lengths, time_axis=0, batch_axis=1)
    outputs: list[str] = []
    layers: list[str] = []
    for depth, layer in enumerate(lstm.stack):
        weight, bias = layer.weight_ih, layer.full_bias()  # (2, 4H, I), (2, 4H)
        if depth:
            x = graph.add("Reshape", outputs[-1], graph.integers(2, -1, weight.shape[2]))  # (2, T B, P)
            products = graph.add("MatMul", x, graph.constant(weight.transpose(1, 2)))
            gates = graph.add("Add", products, graph.constant(bias[:, None]))
            sizes = graph.add("Concat", graph.integers(2), shape, graph.integers(weight.shape[1]), axis=0)
            gates = graph.add("Reshape", gates, sizes)
        else:
            sides = []
            for d, direction_indices in enumerate((indices, backward)):
                word_gates = graph.linear(words, weight[d], bias[d])
                token_gates = graph.add("Gather", word_gates, direction_indices)
                sides.append(graph.add("Unsqueeze", token_gates, graph.integers(0)))
            gates = graph.add("Concat", *sides, axis=0)  # (2, T, B, 4H)
        state = []
        for tensor in initial_state[2 * depth : 2 * depth + 2]:
            start = tensor.transpose(0, 1)  # (2, 1, P or H)
            sizes = graph.add("Concat", graph.integers(2), batch, graph.integers(start.shape[2]), axis=0)
            state.append(graph.add("Expand", graph.constant(start), sizes))
        y = _add_scan(graph, layer, state, gates, lstm.clips)
        outputs.append(graph.add("Add", outputs[-1], y) if depth and lstm.skip_connections else y)
        ahead, behind = (graph.add("Gather", outputs[-1], graph.constant(d, np.int64), axis=0) for d in range(2))
        behind = graph.add("ReverseSequence", behind, lengths, time_axis=0, batch_axis=1)
        layers.append(graph.add("Concat", ahead, behind, axis=2))
    return layers


def _add_scan(graph: _Graph, layer: Any, state: Sequence[str], gates: str, clips: Any) -> str:
    """Add one layer over all steps: h (2, B, P), c (2, B, H), gates (2, T, B, 4H) -> y (2, T, B, P).

    i, f, g, o = gates_t + W_hh h;   c' = clip(σ(f) c + σ(i) tanh(g));   h' = clip(W_hr (σ(o) tanh(c')))
    """
    from onnx import TensorProto, helper

    body = _Graph(f"step_{len(graph.nodes)}_")

    def clip(x: str, limit: float | None) -> str:
        return x if limit is None else body.add("Clip", x, graph.constant(-limit), graph.constant(limit))

    recurrent = graph.constant(layer.weight_hh.transpose(1, 2))
    z = body.add("Add", "gates", body.add("MatMul", "h", recurrent))
    i, f, g, o = body.add("Split", z, outputs=4, axis=2, num_outputs=4)
    retained = body.add("Mul", body.add("Sigmoid", f), "c")
    update = body.add("Mul", body.add("Sigmoid", i), body.add("Tanh", g))
    c = clip(body.add("Add", retained, update), clips.cell)
    h = body.add("Mul", body.add("Sigmoid", o), body.add("Tanh", c))
    if layer.weight_hr is not None:
        h = clip(body.add("MatMul", h, graph.constant(layer.weight_hr.transpose(1, 2))), clips.projection)
    body.label_outputs({"h_after": h, "c_after": c, "y": h})
    inputs, outputs = (
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2, None, None]) for name in names]
        for names in (("h", "c", "gates"), ("h_after", "c_after", "y"))
    )
    _, _, y = graph.add(
        "Scan",
        *(*state, gates),
        outputs=3,
        body=helper.make_graph(body.nodes, "step", inputs, outputs),
        num_scan_inputs=1,
        scan_input_axes=[1],
        scan_output_axes=[1],
    )
    return y


class OnnxEmbedder:
    """A graph written by `export_onnx`, run by onnxruntime without torch; takes text as `BiLM.embed` does.

    threads      number of threads of onnxruntime
    providers    execution providers of onnxruntime
    """

    def __init__(
        self, path: str | Path, *, threads: int | None = None, providers: Sequence[str] = ("CPUExecutionProvider",)
    ):
        with optional_import("running ONNX needs the package onnxruntime", "onnx"):
            import onnxruntime
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads or 0
        try:
            self.session = onnxruntime.InferenceSession(str(path), options, providers=list(providers))
        except Exception as error:  # the errors of onnxruntime have no other base class
            raise ModelError(f"{path}: cannot be read as an ONNX file ({error})") from error
        metadata = self.session.get_modelmeta().custom_metadata_map.get(METADATA_KEY)
        if metadata is None:
            raise ModelError(f"{path}: is not an ONNX file written by relmo")
        self.metadata: dict[str, Any] = json.loads(metadata)

    def tokens(self, text: str) -> list[str]:
        """Tokenise raw text."""
        return TOKENIZERS[self.metadata["tokenizer"]](text.lower() if self.metadata["lowercase"] else text)

    def embed(
        self, sentences: Iterable[str | Sequence[str]], *, layers: Layers = "all", batch_size: int = 64
    ) -> list[np.ndarray]:
        """Return the vectors of sentences, float32 (layers, tokens, dim), or (tokens, dim) for one layer. Sentences of
        similar length are computed together."""
        options = EmbedOptions(layers=layers, batch_size=batch_size)
        options.check_for(self.metadata["layers"])
        tokens = [self.tokens(s) if isinstance(s, str) else list(s) for s in check_sentences(sentences, "embed")]
        order = sorted(range(len(tokens)), key=lambda i: len(tokens[i]))
        vectors: list[np.ndarray] = [np.empty(0)] * len(tokens)
        num_layers, columns = self.metadata["layers"], self.metadata["max_characters"]
        for start in range(0, len(order), batch_size):
            indices = order[start : start + batch_size]
            lengths = [len(tokens[i]) for i in indices]
            ids = np.zeros((len(indices), max(1, *lengths, 1), columns), dtype=np.int64)
            spellings = Spellings([word for i in indices for word in tokens[i]], columns).ids()
            ids[np.arange(ids.shape[1]) < np.array(lengths)[:, None]] = spellings
            (batch,) = self.session.run(["vectors"], {"ids": ids})
            for index, array, length in zip(indices, batch, lengths, strict=True):
                selected = array[options.select_layers(num_layers), :length]
                vectors[index] = selected.copy() if options.layers == "all" else selected.mean(axis=0)
        return vectors
