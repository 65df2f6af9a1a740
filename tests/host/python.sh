#!/bin/sh
# python.sh SCRIPT ARGUMENT... - runs a Python test; skips (exit status 77) where there is no python3.
command -v python3 >/dev/null 2>&1 || {
    echo "skipped: no python3 on this machine"
    exit 77
}
exec python3 "$@"
