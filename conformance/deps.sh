#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# deps.sh - installs what building and testing libzfplugin needs on Debian and Ubuntu, and only what is missing.
#
#   sh conformance/deps.sh            check, and install with apt-get (as root, or through sudo)
#   sh conformance/deps.sh --tests    also what only tests/run.sh uses
#   sh conformance/deps.sh --library  only what `pip install .` builds the library with
#
# Looks for commands and pkg-config modules, not for packages: anything installed another way counts. Exit status: 0 all
# that is required is there; 1 something required is missing, with the packages and the command to install them. clang,
# clang-tidy and, with --tests, Python are wanted but not required: what needs them is left out.
set -u

missing_required=
missing_wanted=
for_tests=0 is_library=0
case ${1:-} in
--tests) for_tests=1 ;;
--library) is_library=1 ;;
esac

has_command() { command -v "$1" >/dev/null 2>&1; }
has_venv() { python3 -c 'import ensurepip, venv' 2>/dev/null; }
has_module() { has_command pkg-config && pkg-config --exists "$1" 2>/dev/null; }

# check
# Sets missing_required and missing_wanted.
check() {
    missing_required=
    missing_wanted=
    { has_command cc && has_command make; } || missing_required="$missing_required build-essential"
    has_command cmake || missing_required="$missing_required cmake"
    has_command ninja || missing_required="$missing_required ninja-build"
    has_command pkg-config || missing_required="$missing_required pkg-config"
    has_module inih || missing_required="$missing_required libinih-dev"
    has_module jansson || missing_required="$missing_required libjansson-dev"
    if [ "$is_library" -eq 1 ]; then
        has_venv || missing_required="$missing_required python3-venv"
        return
    fi
    has_module check || missing_required="$missing_required check"
    has_module libffi || missing_required="$missing_required libffi-dev"
    has_module openblas || missing_required="$missing_required libopenblas-dev"
    has_command clang || missing_wanted="$missing_wanted clang"
    check_python
    [ "$for_tests" -eq 0 ] || check_tests
}

# check_python: zf-conform glue judges and draws with it. The tests have an environment of their own (tests/python_env.sh).
check_python() {
    python_packages=
    has_command python3 || python_packages=" python3"
    if ! sh "$(dirname "$0")/python.sh" >/dev/null; then
        if [ -n "${ZF_PYTHON:-}" ] && [ "$for_tests" -eq 0 ]; then
            echo "deps.sh: $ZF_PYTHON lacks scipy or matplotlib: pip install them there, or unset ZF_PYTHON" >&2
            exit 1
        fi
        python_packages="$python_packages python3-scipy python3-matplotlib"
    fi
    if [ "$for_tests" -eq 0 ]; then
        missing_required=$missing_required$python_packages
    else
        missing_wanted=$missing_wanted$python_packages
    fi
}

# check_tests: any Vulkan driver will do, in software too. A tool of LLVM may be there under a name with its version only.
check_tests() {
    has_venv || missing_wanted="$missing_wanted python3-venv"
    { has_command mpirun && has_command mpicc; } || missing_wanted="$missing_wanted libopenmpi-dev openmpi-bin"
    [ -e /usr/share/i18n/locales/de_DE ] || missing_wanted="$missing_wanted locales"
    ls /usr/share/vulkan/icd.d/*.json >/dev/null 2>&1 || missing_wanted="$missing_wanted mesa-vulkan-drivers"
    has_command mandoc || has_command groff || missing_wanted="$missing_wanted mandoc"
    has_command clang-tidy || has_command clang-tidy-14 || missing_wanted="$missing_wanted clang-tidy"
}

# as_root COMMAND...
as_root() {
    if [ "$(id -u)" -eq 0 ]; then
        "$@"
    elif has_command sudo && { sudo -n true 2>/dev/null || [ -t 0 ]; }; then
        sudo "$@"
    else
        return 126
    fi
}

check
[ -n "$missing_required$missing_wanted" ] || exit 0
if has_command apt-get; then
    echo "deps: installing$missing_required$missing_wanted (apt-get)"
    log=$(mktemp) || exit 1
    trap 'rm -f "$log"' EXIT
    # The lists may be absent (fresh image) or partly out of reach; the installation decides.
    as_root apt-get -q update >"$log" 2>&1 || true
    # All at once, and where that fails what is only wanted by itself, so that it keeps nothing else from being installed.
    install() { as_root env DEBIAN_FRONTEND=noninteractive apt-get -q -y install --no-install-recommends "$@" >>"$log" 2>&1; }
    # shellcheck disable=SC2086 # lists of packages
    install $missing_required $missing_wanted || for packages in "$missing_required" $missing_wanted; do
        [ -z "$packages" ] || install $packages || tail -n 15 "$log"
    done
    check
    [ -n "$missing_required$missing_wanted" ] || echo "deps: installed"
fi

if [ -n "$missing_wanted" ]; then
    echo "deps: without$missing_wanted: what needs it is left out"
fi
if [ -n "$missing_required" ]; then
    echo "deps: missing, and cannot be installed here:$missing_required"
    echo "deps: those are Debian's package names; as root: apt-get install$missing_required"
    exit 1
fi
exit 0
