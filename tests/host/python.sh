#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# python.sh SCRIPT ARGUMENT... - runs a Python test, with $ZF_PYTHON if it is set. Where there is no python3, or the test
# lacks a package, it skips (exit status 77); with CI set it fails instead.
python=${ZF_PYTHON:-python3}
command -v "$python" >/dev/null 2>&1 || {
    echo "skipped: no python3 on this machine"
    [ -z "${CI:-}" ] || exit 1
    exit 77
}
"$python" "$@"
status=$?
if [ "$status" -eq 77 ] && [ -n "${CI:-}" ]; then
    echo "CI is set, so that nothing may be missing"
    exit 1
fi
exit "$status"
