#!/bin/sh
# python.sh SCRIPT ARGUMENT... - runs a Python test, with $ZF_PYTHON if it is set; skips (exit status 77) where there is no python3.
python=${ZF_PYTHON:-python3}
command -v "$python" >/dev/null 2>&1 || {
    echo "skipped: no python3 on this machine"
    exit 77
}
exec "$python" "$@"
