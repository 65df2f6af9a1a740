#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# tidy.sh [--analyze] [FILE...] - clang-tidy over kernels/, plugin/, bindings/ and conformance/, or over FILEs.
#
#   --analyze   also the path-sensitive checks (clang-analyzer-*), which take minutes for the whole tree
#
#   ZF_JOBS=N   files side by side (default: the processors of this machine)
#
# .clang-tidy says which checks and why. Exit status: 0 nothing found; 1 findings, which are printed; 2 could not run;
# 77 clang or clang-tidy is not installed.
set -u
root=$(CDPATH='' cd -- "$(dirname -- "$0")/.." && pwd) || exit 2
cd "$root" || exit 2

checks=
while [ $# -gt 0 ]; do
    case $1 in
    --analyze)
        checks='--checks=clang-analyzer-*,-clang-analyzer-optin.performance.Padding'
        # Version 14 does not know the C library's va_start; memcpy_s is not in the GNU C library.
        checks=$checks,-clang-analyzer-valist.Uninitialized
        checks=$checks,-clang-analyzer-security.insecureAPI.DeprecatedOrUnsafeBufferHandling
        ;;
    --*)
        sed -n '3,8s/^# \{0,1\}//p' "$0" >&2
        exit 2
        ;;
    *) break ;;
    esac
    shift
done

tidy=
for name in clang-tidy-14 clang-tidy; do
    [ -n "$tidy" ] || tidy=$(command -v "$name")
done
[ -n "$tidy" ] && command -v clang >/dev/null 2>&1 || {
    echo "tidy: clang and clang-tidy are not both installed (Debian packages clang, clang-tidy)"
    exit 77
}

# The commands of a build by clang, which is only configured: gcc's commands name options and headers that clang lacks.
build=build/tidy
mkdir -p "$build"
cmake -S . -B "$build" -G Ninja -DCMAKE_C_COMPILER=clang -DZF_BENCH=ON >"$build/configure.log" 2>&1 || {
    tail -n 20 "$build/configure.log"
    exit 2
}

# Files of the compile database, relative to the root; headers are looked at through the sources that include them.
list() {
    sed -n 's/^ *"file": "\(.*\)",\{0,1\}$/\1/p' "$build/compile_commands.json" | sed -n "s|^$root/||p" | sort -u |
        grep -E '^(kernels|plugin|bindings|conformance)/'
}

if [ $# -gt 0 ]; then
    printf '%s\n' "$@" >"$build/files"
else
    list >"$build/files"
fi

n=$(wc -l <"$build/files")
started=$(date +%s)
# shellcheck disable=SC2086 # no word, or one
xargs -P "${ZF_JOBS:-$(nproc 2>/dev/null || echo 2)}" -n 4 "$tidy" -p "$build" --quiet $checks <"$build/files" \
    >"$build/findings" 2>"$build/errors"
status=$?
if [ "$status" -ne 0 ] || grep -qE ' (warning|error): ' "$build/findings"; then
    cat "$build/findings"
    grep -v ' warnings\{0,1\} \(generated\|treated\)' "$build/errors" | head -n 20
    echo "tidy: findings in $n files, see .clang-tidy"
    exit 1
fi
echo "tidy: nothing found in $n files, $(($(date +%s) - started)) s"
