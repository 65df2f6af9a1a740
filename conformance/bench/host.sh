#!/bin/sh
# host.sh - builds (if needed) and runs the benchmarks of the host's kernels.
#
# usage: conformance/bench/host.sh [options of zf-bench-host, e.g. --json FILE --isa avx2 --repeat 21 --best]
#
# BUILD=DIR   build tree (default: build-bench beside the sources)
# PYTHON=...  interpreter for the peer, torch.optim.AdamW(fused=True); skipped where it has no torch
set -eu

bench=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$bench/../.." && pwd)
build=${BUILD:-$root/build-bench}
python=${PYTHON:-python3}

cmake -S "$root" -B "$build" -DCMAKE_BUILD_TYPE=Release -DZF_BENCH=ON >/dev/null
cmake --build "$build" --target zf-bench-host zf-bench-stats >/dev/null

"$build/conformance/bench/zf-bench-host" "$@"
echo
"$build/conformance/bench/zf-bench-stats"
echo
if "$python" -c 'import torch' 2>/dev/null; then
    "$python" "$bench/peer_adamw.py" "$build/conformance/bench/zf-bench-host"
else
    echo "peer: not run, $python has no torch. To compare with torch.optim.AdamW(fused=True):"
    echo "  python3 -m venv venv && venv/bin/pip install torch && PYTHON=venv/bin/python $0"
fi
