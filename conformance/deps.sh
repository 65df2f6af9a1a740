#!/bin/sh
# deps.sh - installs what building and testing libzfplugin needs on Debian and Ubuntu, and only what is missing.
#
#   sh conformance/deps.sh            check, and install with apt-get (as root, or through sudo)
#   sh conformance/deps.sh --check    check only
#
# Looks for commands and pkg-config modules, not for packages: anything installed another way counts. Exit status: 0 all
# that is required is there; 1 something required is missing, with the packages and the command to install them. oneDNN,
# clang and python3 are wanted but not required: what needs them is left out.
set -u

missing_required=
missing_wanted=

has_command() { command -v "$1" >/dev/null 2>&1; }
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
    has_module check || missing_required="$missing_required check"
    has_module libffi || missing_required="$missing_required libffi-dev"
    has_module openblas || missing_required="$missing_required libopenblas-dev"
    [ -n "$(printf '#include <oneapi/dnnl/dnnl.h>\n' | cc -E -P - 2>/dev/null)" ] || missing_wanted="$missing_wanted libdnnl-dev"
    has_command clang || missing_wanted="$missing_wanted clang"
    has_command python3 || missing_wanted="$missing_wanted python3"
    python3 -c 'import ensurepip, venv' 2>/dev/null || missing_wanted="$missing_wanted python3-venv"
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
[ "${1:-}" != --check ] || {
    echo "deps: missing:$missing_required$missing_wanted"
    [ -z "$missing_required" ]
    exit
}

packages="$missing_required$missing_wanted"
if has_command apt-get; then
    echo "deps: installing$packages (apt-get)"
    log=$(mktemp) || exit 1
    trap 'rm -f "$log"' EXIT
    # The lists may be absent (fresh image) or partly out of reach; the installation decides.
    as_root apt-get -q update >"$log" 2>&1 || true
    # shellcheck disable=SC2086 # a list of packages
    if as_root env DEBIAN_FRONTEND=noninteractive apt-get -q -y install --no-install-recommends $packages >>"$log" 2>&1; then
        echo "deps: installed"
    else
        tail -n 15 "$log"
    fi
    check
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
