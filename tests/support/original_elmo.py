"""The original ELMo in numpy, float64, written from its description alone: what the network is compared with.

Nothing of relmo is used. Weights are a dictionary by the names of the original hdf5 file, options that of its
options.json.
"""

import numpy as np

Weights = dict[str, np.ndarray]
State = dict[tuple[int, int], tuple[np.ndarray, np.ndarray]]  # (direction, layer) -> c, h


def spell(word: str, room: int) -> list[int]:
    """A row of ids, before one is added."""
    if word in ("<S>", "</S>"):
        inner = [256 if word == "<S>" else 257]
    else:
        inner = list(word.encode("utf-8", "ignore")[: room - 2])
    row = [258, *inner, 259]
    return row + [260] * (room - len(row))


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


def token(row: list[int], options: dict, weights: Weights) -> np.ndarray:
    """The context-independent vector of one word."""
    x = weights["char_embed"].astype(np.float64)[row]
    parts = []
    for i, (width, _) in enumerate(options["char_cnn"]["filters"]):
        w, b = weights[f"CNN/W_cnn_{i}"].astype(np.float64)[0], weights[f"CNN/b_cnn_{i}"].astype(np.float64)
        windows = [sum(x[t + k] @ w[k] for k in range(width)) + b for t in range(len(row) - width + 1)]
        y = np.max(windows, axis=0)
        parts.append(np.maximum(y, 0) if options["char_cnn"]["activation"] == "relu" else np.tanh(y))
    x = np.concatenate(parts)
    for k in range(options["char_cnn"].get("n_highway") or 0):
        at = {name: weights[f"CNN_high_{k}/{name}"].astype(np.float64) for name in ("W_carry", "W_transform")}
        gate = sigmoid(x @ at["W_carry"] + weights[f"CNN_high_{k}/b_carry"])
        made = np.maximum(x @ at["W_transform"] + weights[f"CNN_high_{k}/b_transform"], 0)
        x = gate * made + (1 - gate) * x
    if len(x) != options["lstm"]["projection_dim"]:
        x = x @ weights["CNN_proj/W_proj"].astype(np.float64) + weights["CNN_proj/b_proj"]
    return x


def lstm(
    inputs: np.ndarray, options: dict, weights: Weights, cell: str, c: np.ndarray, h: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """One LSTM over one sequence (T, P)."""
    size = options["lstm"]["dim"]
    w, b = weights[f"{cell}/W_0"].astype(np.float64), weights[f"{cell}/B"].astype(np.float64)
    project = weights.get(f"{cell}/W_P_0")
    cell_clip, proj_clip = options["lstm"].get("cell_clip"), options["lstm"].get("proj_clip")
    outputs = []
    for x in inputs:
        z = np.concatenate([x, h]) @ w + b
        i, j, f, o = (z[n * size : (n + 1) * size] for n in range(4))
        c = sigmoid(f + 1) * c + sigmoid(i) * np.tanh(j)
        c = c if cell_clip is None else np.clip(c, -cell_clip, cell_clip)
        h = sigmoid(o) * np.tanh(c)
        if project is not None:
            h = h @ project.astype(np.float64)
            h = h if proj_clip is None else np.clip(h, -proj_clip, proj_clip)
        outputs.append(h)
    return np.array(outputs), c, h


def layers(words: list[str], options: dict, weights: Weights, state: State | None = None) -> np.ndarray:
    """Every layer (K, T, 2P) of one sentence of words, <S> and </S> added and dropped again. `state` is changed."""
    return with_boundaries(words, options, weights, state)[:, 1:-1]


def with_boundaries(words: list[str], options: dict, weights: Weights, state: State | None = None) -> np.ndarray:
    """As `layers`, with the positions of <S> and </S>."""
    state = {} if state is None else state
    size, depth = options["lstm"]["projection_dim"], options["lstm"].get("n_layers", 1)
    room = options["char_cnn"]["max_characters_per_token"]
    tokens = np.array([token(spell(word, room), options, weights) for word in ["<S>", *words, "</S>"]])
    both = []
    for d in range(2):
        x = tokens[:: -1 if d else 1]
        outputs = []
        for layer in range(depth):
            c, h = state.get((d, layer), (np.zeros(options["lstm"]["dim"]), np.zeros(size)))
            cell = f"RNN_{d}/RNN/MultiRNNCell/Cell{layer}/LSTMCell"
            cell = cell if f"{cell}/B" in weights else f"RNN_{d}/RNN/LSTMCell"
            y, c, h = lstm(x, options, weights, cell, c, h)
            state[d, layer] = (c, h)
            x = y + x if layer and options["lstm"].get("use_skip_connections") else y
            outputs.append(x[:: -1 if d else 1])
        both.append(outputs)
    pairs = [np.concatenate([forward, backward], axis=1) for forward, backward in zip(*both, strict=True)]
    return np.array([np.concatenate([tokens, tokens], axis=1), *pairs])


def options_of(**changes: object) -> dict:
    """A small geometry; keys of either section may be changed, those that are None are left out."""
    lstm = {
        "use_skip_connections": True,
        "projection_dim": 6,
        "cell_clip": 3,
        "proj_clip": 3,
        "dim": 10,
        "n_layers": 2,
    }
    char_cnn = {
        "activation": "relu",
        "filters": [[1, 3], [2, 4], [3, 5]],
        "max_characters_per_token": 12,
        "embedding": {"dim": 4},
        "n_characters": 262,
        "n_highway": 1,
    }
    for key, value in changes.items():
        section = lstm if key in lstm else char_cnn
        section[key] = value
    return {
        "lstm": {key: value for key, value in lstm.items() if value is not None},
        "char_cnn": {key: value for key, value in char_cnn.items() if value is not None},
    }


def random_weights(options: dict, seed: int = 0, scale: float = 1.0) -> Weights:
    """Weights of an original file of these options, large enough that the clips and every gate matter."""
    rng = np.random.default_rng(seed)
    lstm, cnn = options["lstm"], options["char_cnn"]
    size, hidden, dim = lstm["projection_dim"], lstm["dim"], cnn["embedding"]["dim"]
    features = sum(count for _, count in cnn["filters"])
    shapes: dict[str, tuple[int, ...]] = {"char_embed": (261, dim)}
    for i, (width, count) in enumerate(cnn["filters"]):
        shapes |= {f"CNN/W_cnn_{i}": (1, width, dim, count), f"CNN/b_cnn_{i}": (count,)}
    for k in range(cnn.get("n_highway") or 0):
        for name in ("carry", "transform"):
            shapes |= {f"CNN_high_{k}/W_{name}": (features, features), f"CNN_high_{k}/b_{name}": (features,)}
    if features != size:
        shapes |= {"CNN_proj/W_proj": (features, size), "CNN_proj/b_proj": (size,)}
    for d in range(2):
        for layer in range(lstm.get("n_layers", 1)):
            cell = f"RNN_{d}/RNN/MultiRNNCell/Cell{layer}/LSTMCell"
            shapes |= {f"{cell}/W_0": (2 * size, 4 * hidden), f"{cell}/B": (4 * hidden,)}
            if size < hidden:
                shapes[f"{cell}/W_P_0"] = (hidden, size)
    return {name: (scale * rng.normal(size=shape)).astype(np.float32) for name, shape in shapes.items()}
