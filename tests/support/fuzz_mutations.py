"""Ways to damage a file: as bytes, as text, by what it holds (JSON, TOML, tensors, HDF5), or with something that is no
file in its place. Each is a pure function of the file and of random numbers.

A mutation returns words for what it did. One that leaves a file in good order, with a right checksum, says so by
beginning with SIGNED: then nothing can be known to be wrong.
"""

import json
import os
import random
import shutil
import string
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open

from relmo.disk.files import SEAL, fingerprint, seal
from relmo.store.folder import write_json, write_tensors

SIGNED = "signed: "
UNREAD = ("README.md", "settings.toml", "lock")  # what people read
NUMBERS = {"not a number": float("nan"), "infinite": float("inf"), "huge": 6e4}
TYPES = [torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.uint8, torch.bool]
DIGITS = "9" * 5000
RAW = {  # JSON that Python's own writer does not write, by what stands for it
    "@digits@": DIGITS,
    "@deep@": "[" * 20000 + "]" * 20000,
    "@deeper@": '{"a":' * 900 + "1" + "}" * 900,
    "@infinite@": "1e400",
    "@nan@": "NaN",
    "@half@": '"\\ud800"',
    "@small@": "1e-320",
}
ODD: list[Any] = [
    *RAW,
    *(None, True, False, 0, 1, -1, 2, 3.5, 2**31, 2**63, 2**64, 10**30, 10**400, 1e308, float("-inf")),
    *("", "x", "a" * 5000, "../..", "/dev/zero", "\0", "5", "\n", "[/b]", "é\u202e", [], {}, [[]], {"a": 1}),
    *([1] * 3000, ["1x1"] * 3000, [0] * 3, "1x9999999"),
]
TOKENS = ["0", "-1", "nan", "inf", "1e400", DIGITS, "²", "٣", "\\ud800", "\\", "\x00", "\ufeff", "\u2028", "x" * 3000]
TOML = [
    *("nan", "inf", "-inf", "1e400", DIGITS, "0x" + "f" * 5000, "[" * 3000 + "]" * 3000, "'", '""', '"\\ud800"'),
    *(
        "true",
        "0",
        "-1",
        "1e308",
        "[]",
        "{}",
        "[1, 'a']",
        "1979-05-27",
        "[" + "1," * 3000 + "]",
        '"' + "a" * 3000 + '"',
    ),
]
PIECES = [b"\x00" * 64, b"\xff" * 64, b"\n", b"\r", b"\t", b'"', b"{}", b"\xef\xbb\xbf", b"PK\x05\x06", b"\x89HDF"]
DONORS = [
    *(b"", b"\n", b"{}", b"[]", b"null", b"a b\n", b"\x00" * 5000, b"\x1f\x8b" + bytes(30), b"PK\x03\x04" + bytes(60)),
    *(b"\x89HDF\r\n\x1a\n" + b"\xff" * 600, b'\x08\x00\x00\x00\x00\x00\x00\x00{"a":{}}', b"\x80\x04\x95\n\x00."),
]


def mutate(draw: random.Random, folder: Path, targets: list[str], *, special: bool = True) -> tuple[str, set[str]]:
    """Damages one of the files. -> what was done, and the names of the files that are no longer as they were"""
    read = [each for each in targets if not each.endswith(UNREAD)]
    name = draw.choice(targets if draw.random() < 0.1 else read)
    path = folder / name
    ways = [damage_bytes] * 3 + [replace_file] * 2 + ([put_special] if special else [])
    ways += [STRUCTURED[path.suffix]] * 6 if path.suffix in STRUCTURED else []
    if is_text(path):
        ways += [damage_text] * 3
    if len(targets) > 1 and draw.random() < 0.04:
        other = draw.choice([each for each in targets if each != name])
        swap(path, folder / other)
        return f"swapped with {other}", {name, other}
    done = draw.choice(ways)(draw, path)
    if draw.random() < 0.5 and not done.startswith(SIGNED) and sign(path):
        done = SIGNED + done
    return done, {name}


def sign(path: Path) -> bool:
    """Puts a damaged file's checksum where the right one is kept, as one would who means harm. -> whether there is such
    a place"""
    if not path.is_file() or path.is_symlink():
        return False
    try:
        for name, key in (("config.json", "digests"), ("encoded.json", "files"), ("index.json", "files")):
            note = path.with_name(name)
            values = json.loads(note.read_bytes()) if note != path and note.is_file() else {}
            if path.name in values.get(key, {}):
                values[key][path.name] = fingerprint(path)
                write_json(note, reseal(values))
                return True
        values = json.loads(path.read_bytes()) if path.suffix == ".json" else None
        if isinstance(values, dict) and SEAL in values:
            write_json(path, reseal(values))
            return True
    except (ValueError, RecursionError):  # no JSON any more
        pass
    return False


def reseal(values: dict[str, Any]) -> dict[str, Any]:
    return seal({k: v for k, v in values.items() if k != SEAL}) if SEAL in values else values


def is_text(path: Path) -> bool:
    try:
        path.read_bytes().decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


def swap(first: Path, second: Path) -> None:
    kept = first.read_bytes()
    shutil.copyfile(second, first)
    second.write_bytes(kept)


def damage_bytes(draw: random.Random, path: Path) -> str:
    """Bits and pieces of any file."""
    data = bytearray(path.read_bytes())
    way = draw.choice(["flip", "flip", "cut", "extend", "insert", "remove", "repeat", "overwrite", "random"])
    at = draw.randrange(len(data) + 1)
    size = min(draw.choice([1, 2, 4, 8, 64, 1000]), len(data) - at)
    if way == "flip":
        for _ in range(draw.choice([1, 1, 1, 3, 20]) if data else 0):
            data[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
    elif way == "cut":
        del data[at:]
    elif way == "extend":
        data += draw.choice([draw.randbytes(draw.choice([1, 7, 300])), bytes(100), data[:1000], b"\n"])
    elif way == "insert":
        data[at:at] = draw.choice([*PIECES, draw.randbytes(5)])
    elif way == "remove":
        del data[at : at + size]
    elif way == "repeat":
        data[at:at] = data[at : at + size]
    elif way == "overwrite":
        data[at : at + size] = draw.choice([draw.randbytes(size), bytes(size), b"\xff" * size])
    else:
        data = bytearray(draw.randbytes(len(data)))
    path.write_bytes(data)
    return f"bytes: {way} at {at}"


def replace_file(draw: random.Random, path: Path) -> str:
    """Nothing, or something else."""
    if draw.random() < 0.3:
        path.unlink()
        return "deleted"
    others = sorted(each for each in path.parent.iterdir() if each.is_file() and each != path)
    if others and draw.random() < 0.4:
        other = draw.choice(others)
        shutil.copyfile(other, path)
        return f"replaced by {other.name}"
    path.write_bytes(donor := draw.choice(DONORS))
    return f"replaced by {donor[:12]!r}"


def put_special(draw: random.Random, path: Path) -> str:
    """What has the name of a file and is none."""
    path.unlink()
    way = draw.choice(["fifo", "zero", "folder", "dangling", "loop"])
    if way == "fifo":
        os.mkfifo(path)
    elif way == "folder":
        path.mkdir()
    else:
        path.symlink_to({"zero": "/dev/zero", "dangling": "nowhere", "loop": path.name}[way])
    return f"a {way} in its place"


def damage_text(draw: random.Random, path: Path) -> str:
    """Lines and words of a text."""
    text = path.read_bytes().decode("utf-8")
    lines = text.split("\n")
    at = draw.randrange(len(lines))
    way = draw.choice(["twice", "drop", "blank", "long", "token", "token", "token", "shuffle", "tabs", "character"])
    if way == "twice":
        lines.insert(at, lines[draw.randrange(len(lines))])
    elif way == "drop":
        del lines[at]
    elif way == "blank":
        lines.insert(at, draw.choice(["", " ", "\t"]))
    elif way == "long":
        lines[at] += draw.choice(string.ascii_lowercase + " \t(") * draw.choice([3000, 300_000])
    elif way == "token":
        lines[at] = replace_token(draw, lines[at])
    elif way == "shuffle":
        draw.shuffle(lines)
    elif way == "tabs":
        lines[at] = lines[at].replace("\t", " ") if draw.random() < 0.5 else lines[at].replace(" ", "\t")
    else:
        place = draw.randrange(len(lines[at]) + 1)
        lines[at] = lines[at][:place] + draw.choice(TOKENS[5:]) + lines[at][place + 1 :]
    path.write_bytes("\n".join(lines).encode("utf-8", "surrogatepass"))
    return f"text: {way} at line {at + 1}"


def replace_token(draw: random.Random, line: str) -> str:
    for separator in ("\t", " ", ","):
        parts = line.split(separator)
        if len(parts) > 1:
            break
    parts[draw.randrange(len(parts))] = draw.choice(TOKENS)
    return separator.join(parts)


def damage_json(draw: random.Random, path: Path) -> str:
    """A value inside JSON; or of a line of it, where each is a value."""
    if path.suffix != ".jsonl":
        value, said = change(draw, json.loads(path.read_bytes()))
        path.write_bytes(dump(value))
        return f"json: {said}"
    lines = path.read_bytes().split(b"\n")
    at = draw.randrange(max(len(lines) - 1, 1))
    value, said = change(draw, json.loads(lines[at] or b"{}"))
    lines[at] = dump(value)
    path.write_bytes(b"\n".join(lines))
    return f"json of line {at + 1}: {said}"


def change(draw: random.Random, value: Any, place: str = "") -> tuple[Any, str]:
    """The value with something else somewhere in it."""
    if not isinstance(value, dict | list) or not value or draw.random() < 0.08:
        return other(draw, value), f"{place or 'all of it'} changed"
    key = draw.choice(sorted(value)) if isinstance(value, dict) else draw.randrange(len(value))
    where = f"{place}.{key}"
    if isinstance(value[key], dict | list) and value[key] and draw.random() < 0.75:
        inner, said = change(draw, value[key], where)
        return replaced(value, key, inner), said
    way = draw.choice(["change", "change", "change", "drop", "add"])
    if way == "change":
        return replaced(value, key, other(draw, value[key])), f"{where} changed"
    if way == "drop":
        kept = (
            {k: v for k, v in value.items() if k != key} if isinstance(value, dict) else value[:key] + value[key + 1 :]
        )
        return kept, f"{where} dropped"
    odd = draw.choice(ODD)
    if isinstance(value, dict):
        return value | {draw.choice(["", "x" * 3000, "\ud800", "kind", f"{key}s"]): odd}, f"added beside {where}"
    return [*value, odd], f"added after {where}"


def replaced(value: Any, key: Any, inner: Any) -> Any:
    if isinstance(value, dict):
        return value | {key: inner}
    return [*value[:key], inner, *value[key + 1 :]]


def without(value: Any, key: Any) -> Any:
    if isinstance(value, dict):
        return {k: v for k, v in value.items() if k != key}
    return value[:key] + value[key + 1 :]


def other(draw: random.Random, value: Any) -> Any:
    """Something odd, or a near neighbour of a number or a string."""
    if type(value) in (int, float) and draw.random() < 0.4:
        return draw.choice([value + 1, value - 1, -value, value * 1000, float(value), str(value)])
    if isinstance(value, str) and draw.random() < 0.3:
        return draw.choice([value[:-1], value + "x", value.upper(), [value], value * 500])
    return draw.choice(ODD)


def dump(value: Any) -> bytes:
    text = json.dumps(value, indent=1 if isinstance(value, dict) and len(str(value)) > 1000 else None)
    for name, raw in RAW.items():
        text = text.replace(f'"{name}"', raw)
    return text.encode()


def damage_toml(draw: random.Random, path: Path) -> str:
    """A value of a settings file, or its shape."""
    lines = path.read_text(encoding="utf-8").split("\n")
    settings = [i for i, line in enumerate(lines) if "=" in line and not line.startswith("#")]
    at = draw.choice(settings) if settings else 0
    way = draw.choice(["value", "value", "value", "value", "key", "table", "dots", "twice"])
    key, _, value = lines[at].partition("=")
    if way == "value":
        lines[at] = f"{key}= {draw.choice(TOML)}"
    elif way == "key":
        lines[at] = draw.choice([key[:-2], key.upper(), "x" * 3000, '"\\ud800"', '""']) + f" ={value}"
    elif way == "table":
        lines.insert(at, draw.choice(["[[model]]", "[model]", "[x]", "[" * 50, "[model.hidden]"]))
    elif way == "dots":
        lines.insert(at, ".".join("a" * draw.choice([3, 900, 20_000])) + " = 1")
    else:
        lines.insert(at, lines[at])
    path.write_text("\n".join(lines), encoding="utf-8")
    return f"toml: {way} at line {at + 1}"


def damage_tensors(draw: random.Random, path: Path) -> str:
    """A safetensors file: its header as it stands, or another file of the kind with a right checksum."""
    if draw.random() < 0.4:
        data = path.read_bytes()
        size = int.from_bytes(data[:8], "little")
        header, said = change(draw, json.loads(data[8 : 8 + size]))
        text = dump(header)
        path.write_bytes(len(text).to_bytes(8, "little") + text + data[8 + size :])
        return f"header: {said}"
    with safe_open(path, framework="pt") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        values = json.loads((file.metadata() or {}).get("values", "null"))
    if values is not None and draw.random() < 0.6:
        values, said = change(draw, values)
    else:
        said = change_tensors(draw, tensors)
    write_tensors(path, tensors, values)
    return f"{SIGNED}{said}"


def change_tensors(draw: random.Random, tensors: dict[str, torch.Tensor]) -> str:
    if not tensors:
        tensors["x"] = torch.ones(2)
        return "a tensor added"
    name = draw.choice(sorted(tensors))
    tensor = tensors[name]
    way = draw.choice([*NUMBERS, "zero", "type", "row", "flat", "rename", "drop", "add", "random"])
    if way in NUMBERS:
        tensors[name] = torch.full_like(tensor, NUMBERS[way] if tensor.is_floating_point() else 127)
    elif way == "zero":
        tensors[name] = torch.zeros_like(tensor)
    elif way == "type":
        tensors[name] = tensor.to(draw.choice(TYPES))
    elif way == "row":
        tensors[name] = tensor[1:] if tensor.dim() and len(tensor) else tensor[None]
    elif way == "flat":
        tensors[name] = tensor.flatten()
    elif way == "rename":
        tensors[draw.choice(["", "x" * 300, f"{name}x"])] = tensors.pop(name)
    elif way == "drop":
        del tensors[name]
    elif way == "add":
        tensors["x"] = torch.ones(draw.choice([0, 1, 1000]))
    else:
        drawn = torch.Generator().manual_seed(draw.randrange(1000))
        number = torch.randint(-(2**40), 2**40, tensor.shape, generator=drawn)
        tensors[name] = number.to(tensor.dtype)
    return f"{name} {way}"


def damage_hdf5(draw: random.Random, path: Path) -> str:
    """An original's weights: another dataset in the place of one."""
    import h5py
    import numpy as np

    with h5py.File(path, "r+") as file:
        names: list[str] = []
        file.visititems(lambda name, found: names.append(name) if isinstance(found, h5py.Dataset) else None)
        name = draw.choice(sorted(names))
        values = file[name][()]
        del file[name]
        way = draw.choice(["drop", "nan", "type", "shape", "link", "chunks", "group", "empty", "huge", "text"])
        if way == "nan":
            file[name] = np.full_like(values, np.nan)
        elif way == "type":
            file[name] = values.astype(draw.choice(["f2", "f8", "i4", "u1"]))
        elif way == "shape":
            file[name] = values[:-1]
        elif way == "link":
            file[name] = draw.choice([h5py.SoftLink("/" + names[0]), h5py.ExternalLink("/dev/zero", "/x")])
        elif way == "chunks":
            chunks = tuple(20000 if i < 2 else 4 for i in range(values.ndim))
            shape, most = values.shape, (None,) * values.ndim
            file.create_dataset(name, shape, "f4", chunks=chunks, maxshape=most, compression="gzip")
        elif way == "group":
            file.create_group(name)
        elif way == "empty":
            file[name] = h5py.Empty("f4")
        elif way == "huge":
            file.create_dataset(name, (1 << 20, 1 << 20), "f4", chunks=(1, 1024), compression="gzip")
        elif way == "text":
            file[name] = "x" * 5000
    return f"hdf5: {name} {way}"


STRUCTURED: dict[str, Callable[[random.Random, Path], str]] = {
    ".json": damage_json,
    ".jsonl": damage_json,
    ".toml": damage_toml,
    ".safetensors": damage_tensors,
    ".hdf5": damage_hdf5,
}
