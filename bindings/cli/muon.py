# SPDX-License-Identifier: Apache-2.0
"""Muon in `zf plan`: the tensors that it trains as matrices, and what torch carries of them."""
from models import EMBEDDING, HEAD, WIDTH

SMALL_NBYTES, MOST_ITERATED = 1 << 15, 1 << 25  # bytes of a tensor that travels with others; elements that are iterated together


def is_whole(name, n_batch, shape):
    """Whether it is a matrix of a hidden layer, or one for each expert."""
    return len(shape) - n_batch == 2 and not EMBEDDING.search(name) and not HEAD.search(name)


def carried(held):
    """Bytes down and up, and copies, of a step in which torch carries a model's tensors to and from a device. Gradients go down and values
    up; what the iterations begin with goes up, and what they give down, in ns_dtype = bfloat16. Small tensors travel together."""
    down = up = n_copies = 0
    for (name, dtype, _, n_batch, shape), n in zip(held.tensors, held.sizes):
        iterated = 2 * n * is_whole(name, n_batch, shape)
        down, up = down + n * WIDTH[dtype] + iterated, up + n * WIDTH[dtype] + iterated
        n_copies += 2 * (n * WIDTH[dtype] > SMALL_NBYTES) + 2 * bool(iterated) * -(-n // MOST_ITERATED)
    return {"down_nbytes": down, "up_nbytes": up, "copies": n_copies}
