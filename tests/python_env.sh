#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# python_env.sh FOLDER [REQUIREMENTS] - makes a virtual environment with the packages of tests/requirements.txt.
#
# What the system's python3 has installed does not count: the tests run with the versions of the list. An environment that
# was made from the same list by the same Python is used as it is; any other is thrown away and made again. A line is
# printed before each part that takes long, because a first installation takes one to several minutes.
#
#   ZF_PIP_ARGS   arguments of pip install, for example another index; torch is then taken as that index has it
#
# The CPU build of torch is asked for first, because the default one may bring gigabytes of CUDA libraries: from where pip
# is configured to look, then from PyTorch's own index. The default build is installed if neither has it.
#
# Exit status: 0 if the environment is there, else 1, with the reason on the last line. All of pip's output is in FOLDER.log.
set -u

here=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd) || exit 1
venv=${1:?"usage: sh python_env.sh FOLDER [REQUIREMENTS]"}
requirements=${2:-$here/requirements.txt}
log=$venv.log
stamp=$venv/zf-requirements
torch_index=https://download.pytorch.org/whl/cpu

say() { printf '== python: %s\n' "$*"; }
fail() {
    say "$*"
    exit 1
}

# by_uv ARGUMENT...: uv installs in a fifth of pip's time. It is told what pip is configured with, but not where pip uses no index.
by_uv() {
    configured=$("$venv/bin/python" -m pip config list | sort -r) # the environment last, which goes before files
    ! echo "$configured" | grep -q '\.no-index=' || return
    [ -x "$venv/bin/uv" ] || "$venv/bin/python" -m pip install --disable-pip-version-check --no-input uv || return
    (
        eval "$(echo "$configured" | sed -n -e 's/^[^.]*\.index-url=/export UV_DEFAULT_INDEX=/p' \
            -e 's/^[^.]*\.extra-index-url=/export UV_INDEX=/p' -e 's/^[^.]*\.find-links=/export UV_FIND_LINKS=/p' \
            -e 's/^[^.]*\.constraint=/export UV_CONSTRAINT=/p' -e 's/^[^.]*\.cert=/export SSL_CERT_FILE=/p')"
        # shellcheck disable=SC2086 # ZF_PIP_ARGS is a list of arguments
        "$venv/bin/uv" pip install --python "$venv/bin/python" --no-progress --cache-dir "$venv/uv" --index-strategy unsafe-best-match ${ZF_PIP_ARGS:-} "$@"
    )
}

# install ARGUMENT...: into the environment; by pip where uv cannot. Nothing is compiled ahead: most of these modules are never imported.
install() {
    echo "-- install $*" >>"$log"
    # shellcheck disable=SC2086 # ZF_PIP_ARGS is a list of arguments
    by_uv "$@" >>"$log" 2>&1 || "$venv/bin/python" -m pip install --disable-pip-version-check --no-input --no-compile --prefer-binary \
        ${ZF_PIP_ARGS:-} "$@" >>"$log" 2>&1
}

# install_torch VERSION
install_torch() {
    say "installing torch $1"
    [ -z "${ZF_PIP_ARGS:-}" ] || return 0 # with the other packages
    install "torch==$1+cpu" && return 0
    say "no CPU build of torch $1 where pip looks; asking $torch_index"
    install --extra-index-url "$torch_index" "torch==$1+cpu" && return 0
    say "no CPU build there either: the default build is installed, which may bring the CUDA libraries"
}

# What the environment depends on: the interpreter and the list.
wanted() {
    python3 -c 'import sys; print(sys.version, sys.base_prefix)'
    cat "$requirements"
}

command -v python3 >/dev/null 2>&1 || fail "python3 is not installed"
[ -r "$requirements" ] || fail "there is no $requirements"

if [ -x "$venv/bin/python" ] && [ -f "$stamp" ] && wanted | cmp -s - "$stamp"; then
    exit 0
fi

started=$(date +%s)
say "making $venv from $requirements"
mkdir -p "$(dirname -- "$venv")" && rm -rf "$venv" && : >"$log" || fail "cannot write $venv"
python3 -m venv "$venv" >>"$log" 2>&1 || fail "python3 -m venv failed (Debian package python3-venv); see $log"

torch=$(sed -n 's/^torch==\([^ ]*\).*/\1/p' "$requirements")
[ -z "$torch" ] || install_torch "$torch"
say "installing the other packages of the list"
install -r "$requirements" || fail "pip could not install all of $requirements: $(grep '^ERROR' "$log" | tail -n 1); see $log"
rm -rf "$venv/uv"
wanted >"$stamp" || fail "cannot write $stamp"
say "ready after $(($(date +%s) - started)) s"
