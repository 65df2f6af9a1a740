# SPDX-License-Identifier: Apache-2.0
"""zf ckpt inspect | verify | consolidate: a checkpoint without a trainer. The index and what it names are files that anybody may
have made: no link is followed, nothing waits for a file that is none, and what comes out of them is shown, never obeyed.

consolidate writes the weights that FLUSH would leave, as one safetensors file; the plugin replays what is open. It takes the memory
of one parameter. A checkpoint that a trainer replaces meanwhile is noticed by its index: weights of two steps are never mixed.

Called by `zf ckpt` with that program's path in ZF_COMMAND. Python's own library is enough.
"""
import json
import math
import os
import sys

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
    """What the plugin says of all of it; also: what the index says may be trusted from here on."""
    with Progress(f"verifying {folder}"):
        return json.loads(ask_zf("ask", "verify", folder))


def verify(folder):
    found = verified(folder)
    yield (f"{folder}: sound; {'exact' if found['is_exact'] else 'compact'}, step {found['step']}, {found['n_params']} parameters, "
           f"{found['nbytes']} bytes read")


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
    yield f"{index['kind']} checkpoint, version {index['version']}, written by {index['plugin']}"
    if "part" in index:  # several instances train a model
        yield f"part {index['part'][0]} of {index['part'][1]} of a model, from 0"
    yield f"clocks:{shown(index['clocks'])}"
    yield f"configuration:{shown(index['config'])}"
    if index.get("note"):
        yield f"note: {index['note']}"
    for file in index["files"]:
        yield f"file: {file['name']}, {file['nbytes']} bytes"
    yield f"{len(index['params'])} parameters:"
    for param in index["params"]:
        yield f"  {param['name']} {param['shape']} {param['dtype']}, gradient {param['grad_dtype']}: {' '.join(param['tensors'])}"


# ---- consolidate ----------------------------------------------------------------------------------------------------


def header_of(params):
    """Of a safetensors file: length, JSON, blanks to a multiple of eight bytes."""
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


def consolidate(folder, path):
    verified(folder)
    index = read_index(folder)
    asked = json.dumps([[param["name"], math.prod(param["shape"])] for param in index["params"]])
    with replacing(path) as file, Progress(f"writing weights of {folder}"):
        file.write(header_of(index["params"]))
        file.flush()
        ask_zf("ask", "weights", folder, input=asked, stdout=file)
        if read_index(folder) != index:
            raise Failed(f"{folder} was replaced while it was read: run it again")
    yield f"{path}: {len(index['params'])} weights, float32"


COMMANDS = {"inspect": (inspect, "DIR"), "verify": (verify, "DIR"), "consolidate": (consolidate, "DIR FILE")}


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
