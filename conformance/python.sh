#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# python.sh - prints the Python that judges and draws: ZF_PYTHON if it is set, else the first of python3 and /usr/bin/python3
# that has scipy and matplotlib. They differ where another python3 comes first in PATH than the one that Debian's
# packages are for. Exit status 1 where none has it; the name printed is then ZF_PYTHON's or python3.
if [ -n "${ZF_PYTHON:-}" ]; then
    set -- "$ZF_PYTHON"
else
    set -- python3 /usr/bin/python3
fi
for python in "$@"; do
    "$python" -c 'import matplotlib, scipy' 2>/dev/null || continue
    echo "$python"
    exit 0
done
echo "$1"
exit 1
