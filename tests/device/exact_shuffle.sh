#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# usage: exact_shuffle.sh <zf-conform> <libzfplugin_shuffle.so>
# The laws of the engine hold whatever order of the device's work two seeds of the scheduler choose. The cases of seed 5
# take gradients' sums on the device, which those of seed 17 do not.
ZF_SHUFFLE_SEED=1 "$1" exact --plugin "$2" --cases 25 --seed 17 --max-failures 5 || exit 1
ZF_SHUFFLE_SEED=2 "$1" exact --plugin "$2" --cases 25 --seed 5 --max-failures 5
