#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# debian.sh - Debian packages: library, headers and loader, command line, conformance suite, ranks over MPI.
#
#   sh cmake/debian.sh [DIRECTORY]      default: build/debian/packages
#
# Needs what conformance/deps.sh installs, and dpkg-dev. The build lies in build/debian: as Debian installs (/usr), without tests.
# CMAKE_ARGS adds options, for example -DZF_MAINTAINER="Name <address>"; with nvcc found the CUDA backend is inside. Prints the
# packages' paths.
set -eu
cd "$(dirname -- "$0")/.."
out=${1:-build/debian/packages}
mkdir -p build/debian "$out"
out=$(CDPATH='' cd -- "$out" && pwd)
command -v dpkg-shlibdeps >/dev/null || { echo "cmake/debian.sh: dpkg-shlibdeps is missing: apt-get install dpkg-dev" >&2; exit 1; }
log=build/debian/log
# shellcheck disable=SC2086 # options are words
{ cmake -S . -B build/debian -G Ninja -DCMAKE_INSTALL_PREFIX=/usr -DCMAKE_BUILD_TYPE=Release -DZF_TESTS=OFF -DZF_CONFORMANCE=ON \
    ${CMAKE_ARGS:-} && cmake --build build/debian --parallel && rm -rf build/debian/_CPack_Packages &&
    cpack --config build/debian/CPackConfig.cmake -B "$out"; } >"$log" 2>&1 || {
    tail -n 30 "$log" >&2
    echo "cmake/debian.sh: failed; all of it is in $log" >&2
    exit 1
}
rm -rf "$out/_CPack_Packages"
sed -n 's/^CPack: - package: \(.*\) generated\.$/\1/p' "$log"
