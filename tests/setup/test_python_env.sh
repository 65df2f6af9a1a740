#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# test_python_env.sh SOURCE_DIR WORK_DIR - the Python environment of the tests, made from small packages that this script
# writes itself: what is installed, what is used again, what fails. Then the tests that lack a package: they skip, and fail
# where CI is set. Nothing is fetched from a network.
set -u
source=$1
work=$2
failed=0

rm -rf "$work"
mkdir -p "$work/wheels" "$work/bin" || exit 1
was_ci=${CI:-}
unset CI ZF_PYTHON ZF_PIP_ARGS
PIP_CONFIG_FILE=/dev/null PIP_NO_INDEX=1 PIP_FIND_LINKS=$work/wheels
export PIP_CONFIG_FILE PIP_NO_INDEX PIP_FIND_LINKS

python3 -c 'import ensurepip, venv' 2>/dev/null || {
    echo "python3 has no venv (Debian package python3-venv)"
    [ -z "$was_ci" ] || exit 1
    exit 77
}

# expect STATUS TEXT COMMAND...: the exit status, and a text in what is printed; TEXT empty: nothing is printed
expect() {
    want=$1
    text=$2
    shift 2
    out=$("$@" 2>&1)
    status=$?
    if [ "$status" -ne "$want" ] || { [ -n "$text" ] && ! echo "$out" | grep -q -e "$text"; } ||
        { [ -z "$text" ] && [ -n "$out" ]; }; then
        echo "FAIL: $*: exit status $status, want $want with \"$text\"; it printed: $out"
        failed=1
    fi
}

# wheel NAME VERSION: a package that holds one module, which knows its version
wheel() {
    python3 - "$work/wheels" "$1" "$2" <<'PY'
import sys, zipfile
folder, name, version = sys.argv[1:]
info = f"{name}-{version}.dist-info"
files = {
    f"{name}.py": f"version = '{version}'\n",
    f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
    f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
}
with zipfile.ZipFile(f"{folder}/{name}-{version}-py3-none-any.whl", "w") as z:
    for path, text in files.items():
        z.writestr(path, text)
    z.writestr(f"{info}/RECORD", "".join(f"{p},,\n" for p in [*files, f"{info}/RECORD"]))
PY
}

# version_is MODULE VERSION
version_is() {
    expect 0 "^$2\$" "$work/venv/bin/python" -c "import $1; print($1.version)"
}

make_env() { sh "$source/tests/python_env.sh" "$work/venv" "$work/list"; }

wheel zfa 1.0
wheel zfa 2.0
wheel torch 9.9.9
printf 'zfa==1.0\ntorch==9.9.9\n' >"$work/list"
expect 0 'the default build is installed' make_env
version_is zfa 1.0
version_is torch 9.9.9
expect 0 '' make_env # the same list: nothing is done
echo 'zfa==3.0' >"$work/list"
expect 1 'could not install.*zfa==3.0' make_env
[ ! -e "$work/venv/zf-requirements" ] || { echo "FAIL: half an environment would be used"; failed=1; }
expect 1 'there is no' sh "$source/tests/python_env.sh" "$work/venv" "$work/no-list"
wheel torch 9.9.9+cpu
printf 'zfa==2.0\ntorch==9.9.9\n' >"$work/list"
expect 0 'ready after' make_env
! echo "$out" | grep 'no CPU build' || { echo "FAIL: the CPU build was not taken at once"; failed=1; }
version_is zfa 2.0
version_is torch '9.9.9+cpu'

# A test without its package, and one of two tests that skips.
cat >"$work/test_zf_lacks.py" <<'PY'
import unittest
class Lacks(unittest.TestCase):
    def test_runs(self):
        pass
    def test_skips(self):
        self.skipTest("no zfb")
PY
echo 'raise SystemExit(77)' >"$work/lacks.py"
run_tests() { PYTHONPATH=$work python3 "$source/bindings/python/tests/run_tests.py" "$@"; }
in_ci() { CI=true && export CI && "$@"; }
venv_test() { ZF_PYTHON=$work/venv/bin/python run_tests test_zf_lacks.py --needs-torch; }
expect 0 'skipped: .*no zfb' run_tests test_zf_lacks.py
expect 1 '1 tests were skipped, and CI is set' in_ci run_tests test_zf_lacks.py
expect 0 OK venv_test
"$work/venv/bin/python" -m pip uninstall -q -y torch >/dev/null 2>&1
expect 77 'torch is not installed' venv_test
expect 1 'torch is not installed' in_ci venv_test
expect 77 '' sh "$source/tests/host/python.sh" "$work/lacks.py"
expect 1 'CI is set' in_ci sh "$source/tests/host/python.sh" "$work/lacks.py"

# tests/run.sh in a copy of the few files it needs, with commands that do nothing: without Python the run is green where CI
# is not set.
mkdir -p "$work/tree/conformance" "$work/tree/tests"
cp "$source/tests/run.sh" "$source/tests/python_env.sh" "$work/tree/tests"
cp "$source/conformance/deps.sh" "$work/tree/conformance"
cp "$work/list" "$work/tree/tests/requirements.txt"
for command in apt-get cmake sudo; do
    printf '#!/bin/sh\nexit 0\n' >"$work/bin/$command"
done
printf '#!/bin/sh\nexit 1\n' >"$work/bin/python3"
printf '#!/bin/sh\necho "1/1 Test #1: a .....   Passed    0.01 sec"\n' >"$work/bin/ctest"
chmod +x "$work/bin"/*
quick_run() { PATH=$work/bin:$PATH sh "$work/tree/tests/run.sh" --quick; }
expect 0 '^1 passed, 0 failed, 0 skipped$' quick_run
expect 1 '^1 passed, 1 failed, 0 skipped$' in_ci quick_run

exit "$failed"
