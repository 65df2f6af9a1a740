#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# host.sh - builds (if needed) and runs the benchmarks of the host's side: kernels, and what hooks cost.
#
# usage: conformance/bench/host.sh [--repeat N] [--isa NAME] [--full]
#
#   --repeat N    repetitions per figure (default 5 for kernels, 15 for hooks); figures are medians over all of them
#   --isa NAME    kernels of one instruction set: generic, neon, avx2, avx512 (default: the best of this machine)
#   --full        kernels of every instruction set
#
# Without --full it takes less than 3 minutes.
#
# BUILD=DIR   build tree (default: build-bench beside the sources)
set -eu

bench=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$bench/../.." && pwd)
build=${BUILD:-$root/build-bench}
command="conformance/bench/host.sh $*"

repeat= isa= full=
while [ $# -gt 0 ]; do
    case $1 in
    --repeat) repeat=${2:?--repeat needs a number} && shift 2 ;;
    --isa) isa=${2:?--isa needs a name} && shift 2 ;;
    --full) full=1 && shift ;;
    *) sed -n 's/^# usage: /usage: /p' "$0" >&2 && exit 2 ;;
    esac
done

best_isa() {
    case " $(grep -m 1 '^flags' /proc/cpuinfo 2>/dev/null || true) " in
    *" avx512f "*) echo avx512 ;;
    *" avx2 "*) echo avx2 ;;
    *) echo generic ;;
    esac
}

machine() {
    model=$(sed -n 's/^model name[^:]*: *//p' /proc/cpuinfo | head -n 1)
    printf '%s, %s CPUs, load %s' "${model:-$(uname -m)}" "$(getconf _NPROCESSORS_ONLN)" \
        "$(cut -d ' ' -f 1-3 /proc/loadavg)"
}

cmake -S "$root" -B "$build" -DCMAKE_BUILD_TYPE=Release -DZF_BENCH=ON >/dev/null
cmake --build "$build" --target zf-bench-host zf-bench-hooks zfplugin >/dev/null
programs=$build/conformance/bench

printf '%s\n%s\n%s\n\n== kernels ==\n' "$(date +%Y-%m-%d)" "$(machine)" "$command"
elems=16
[ -n "$full" ] || { isa=${isa:-$(best_isa)} elems=8; }
"$programs/zf-bench-host" --repeat "${repeat:-5}" --elems "$elems" ${isa:+--isa "$isa"}
printf '\n== hooks ==\n'
"$programs/zf-bench-hooks" --plugin "$build/plugin/libzfplugin.so" --repeat "${repeat:-15}"
printf 'at the end: %s\n' "$(machine)"
