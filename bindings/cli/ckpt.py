# SPDX-License-Identifier: Apache-2.0
"""zf ckpt inspect | verify | consolidate | export: a checkpoint without a trainer. The index and what it names are files that anybody
may have made: no link is followed, nothing waits for a file that is none, and what comes out of them is shown, never obeyed.

consolidate writes the weights as one safetensors file, export the state of torch's AdamW; both read each tensor once. A checkpoint
that a trainer replaces meanwhile is noticed by its index: values of two steps are never mixed.

Called by `zf ckpt` with that program's path in ZF_COMMAND. Python's own library is enough.
"""
import contextlib
import json
import math
import os
import sys
import zlib

from terminal import Failed, Parser, Progress, ask_zf, command, printable, read_file, replacing

INDEX = "zf_state.json"
MOST_NBYTES = 1 << 30


def read_index(folder):
    path = os.path.join(folder, INDEX)
    try:
        return json.loads(read_file(path, MOST_NBYTES, flags=os.O_NOFOLLOW))
    except (ValueError, RecursionError) as error:
        raise Failed(f"{path}: {error}") from None


def verified(folder):
    """Verifies all of it by the plugin; also: what the index says may be trusted from here on."""
    with Progress(f"verifying {folder}"):
        return json.loads(ask_zf("ask", "verify", folder))


def verify(folder):
    found = verified(folder)
    yield f"{folder}: sound; step {found['step']}, {found['n_params']} parameters, {found['nbytes']} bytes read"


# ---- inspect --------------------------------------------------------------------------------------------------------


def shown(values):
    return "".join(f" {name}={value if isinstance(value, str) else json.dumps(value)}" for name, value in values.items())


def inspect(folder):
    if not os.path.exists(folder):
        verified(folder)  # a save was killed between two renames, perhaps: the plugin puts it back
    index = read_index(folder)
    if not isinstance(index, dict) or index.get("format") != "zf.state":
        raise Failed(f"{folder} is not a zf.state checkpoint")
    try:
        return list(lines_of(index))
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise Failed(f"{os.path.join(folder, INDEX)}: makes no sense: {error!r}") from None


def lines_of(index):
    yield f"checkpoint, version {index['version']}, written by {index['plugin']}"
    if "part" in index:  # several instances train a model
        yield f"part {index['part'][0]} of {index['part'][1]} of a model, from 0"
    yield f"steps:{shown({name: index[name] for name in ('submitted', 'applied', 'skipped')})}"
    yield f"schedule:{shown({name: index[name] for name in ('step', 'epoch_end', 'last_choice')})}"
    yield f"configuration:{shown(index['config'])}"
    if index.get("note"):
        yield f"note: {index['note']}"
    for file in index["files"]:
        yield f"file: {file['name']}, {file['nbytes']} bytes"
    yield f"{len(index['params'])} parameters:"
    for param in index["params"]:
        yield f"  {param['name']} {param['shape']} {param['dtype']}, {index['rules'][param['group']]['name']}: {' '.join(param['tensors'])}"


# ---- consolidate ----------------------------------------------------------------------------------------------------


def header_of(params):
    """The head of a safetensors file: length, JSON, blanks to a multiple of eight bytes."""
    header, at = {"__metadata__": {"format": "pt"}}, 0
    for param in params:
        if param["name"] in header:
            raise Failed(f"a parameter is named {param['name']}, which a safetensors file has for itself: rename it in the trainer")
        end = at + 4 * math.prod(param["shape"])
        header[param["name"]] = {"dtype": "F32", "shape": param["shape"], "data_offsets": [at, end]}
        at = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


class Tensors:
    """Reads tensors of a checkpoint that was verified; each one's bytes are checked once more."""

    def __init__(self, folder, index):
        self._folder, self._index, self._name, self._file = folder, index, None, None

    def read(self, param, array):
        """Piece by piece."""
        name, (at, left, crc) = self._index["files"][param["file"]]["name"], param["tensors"][array]
        if name != self._name:
            self._name = name
            self._file = open(os.open(os.path.join(self._folder, name), os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW), "rb")
        found = 0
        while left:
            piece = os.pread(self._file.fileno(), min(left, 1 << 24), at)
            if not piece:
                raise Failed(f"{name} of {self._folder} ends before byte {at + left}: it was changed while it was read")
            found, at, left = zlib.crc32(piece, found), at + len(piece), left - len(piece)
            yield piece
        if found != crc:
            raise Failed(f"{array} of {param['name']} in {self._folder} was changed while it was read: run it again")


@contextlib.contextmanager
def read_verified(folder, doing):
    """Index and tensors."""
    index = read_index(folder) if os.path.exists(folder) else None
    verified(folder)
    index = index or read_index(folder)  # a save was killed between two renames: verifying put it back
    with Progress(doing):
        yield index, Tensors(folder, index)
        if read_index(folder) != index:
            raise Failed(f"{folder} was replaced while it was read: run it again")


def consolidate(folder, path):
    with replacing(path) as file, read_verified(folder, f"writing weights of {folder}") as (index, tensors):
        file.write(header_of(index["params"]))
        for param in index["params"]:
            for piece in tensors.read(param, "w"):
                file.write(piece)
    yield f"{path}: {len(index['params'])} weights, float32"


# ---- export ---------------------------------------------------------------------------------------------------------


def export(folder, path):
    """The dict that torch.optim.AdamW(...).load_state_dict() takes, for torch.load(): of parameters in the order in which they were bound, those
    that were ever updated. Its groups have AdamW's defaults: a checkpoint knows which group a parameter is in, its trainer the rates."""
    try:
        import torch
    except ImportError:
        raise Failed("export: it needs PyTorch: pip install torch, or read the tensors m, v and n by themselves (abi/CHECKPOINT.md)") from None
    with replacing(path) as file, read_verified(folder, f"writing moments of {folder}") as (index, tensors):
        torch.save(adamw_state(torch, folder, index, tensors), file)
    yield f"{path}: moments of {len(index['params'])} parameters, for torch.load() and AdamW.load_state_dict()"


def adamw_state(torch, folder, index, tensors):
    def array(param, name, dtype):
        data = bytearray(b"".join(tensors.read(param, name)))
        return torch.frombuffer(data, dtype=dtype)

    other = sorted({rule["name"] for rule in (index["rules"][param["group"]] for param in index["params"]) if rule["rule"] not in (0, 1)})
    if other:
        raise Failed(f"{folder} was trained with {', '.join(other)}, whose moments are not AdamW's")
    state, groups = {}, {}
    for number, param in enumerate(sorted(index["params"], key=lambda param: (param["group"], param["id"]))):
        groups.setdefault(param["group"], []).append(number)
        n_updates = int(array(param, "n", torch.int32).max())
        if n_updates:
            state[number] = {"step": torch.tensor(float(n_updates)), **{
                member: array(param, name, torch.float32).reshape(param["shape"]) for name, member in (("m", "exp_avg"), ("v", "exp_avg_sq"))}}
    with_defaults = torch.optim.AdamW([torch.empty(0)]).state_dict()["param_groups"][0]
    return {"state": state, "param_groups": [{**with_defaults, "params": numbers} for numbers in groups.values()]}


COMMANDS = {"inspect": (inspect, "DIR"), "verify": (verify, "DIR"), "consolidate": (consolidate, "DIR FILE"), "export": (export, "DIR FILE")}


@command()
def main():
    name = sys.argv[1]
    run, arguments = COMMANDS[name]
    parser = Parser(f"ckpt {name}", arguments)
    for argument in arguments.split():
        parser.add_argument(argument)
    for line in run(*vars(parser.parse_args(sys.argv[2:])).values()):
        print(printable(line))
    return 0


if __name__ == "__main__":
    sys.exit(main())
