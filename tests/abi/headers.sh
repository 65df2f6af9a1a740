#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# headers.sh INCLUDE - every public header compiles by itself, in C99, C11, C17 and C++17, pedantic and padded, by the compilers that are
# here. With -fsyntax-only each header is a translation unit of its own, so a missing include in one of them is seen.
set -u
include=$1
failed=0 n=0

# compiles COMPILER LANGUAGE STANDARD OPTION...
compiles() {
    compiler=$1 language=$2 standard=$3
    shift 3
    # shellcheck disable=SC2046 # a list of files
    said=$("$compiler" -x "$language" -std="$standard" -I"$include" -fsyntax-only -Wall -Wextra -Wpedantic -Wpadded -Wshadow -Wconversion \
        -Wundef -fshort-enums -Werror "$@" $(find "$include" -name '*.h') 2>&1) || {
        echo "FAIL: $compiler -std=$standard: $(echo "$said" | head -n 1)"
        failed=1
    }
    n=$((n + 1))
}

for pair in 'gcc g++' 'clang clang++ -Wno-pragma-once-outside-header'; do
    # shellcheck disable=SC2086 # words
    set -- $pair
    c=$1 cxx=$2
    shift 2
    if command -v "$c" >/dev/null; then
        for standard in c99 c11 c17; do compiles "$c" c "$standard" -Wc++-compat -Wstrict-prototypes "$@"; done
    fi
    ! command -v "$cxx" >/dev/null || compiles "$cxx" c++ c++17 "$@"
done
echo "$n modes"
[ "$n" -gt 0 ] || exit 77
exit $failed
