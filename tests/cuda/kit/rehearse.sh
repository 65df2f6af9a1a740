#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# rehearse.sh BUILD - packs the kit, unpacks it elsewhere and runs its session on the driver's double: with an empty environment and
# a PATH of what session.sh asks for. What stands still has to write stacks.
set -u
build=$(CDPATH='' cd -- "$1" && pwd)
here=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd)
. "$here/../../conformance/expect.sh"
double=$build/tests/cuda/double
ZF_KIT_LEVEL=1 sh "$here/pack.sh" "$build" "$out/kit.tar.gz" || fail "packing"
tar -C "$out" -xzf "$out/kit.tar.gz" || fail "unpacking"
kit=$out/zf-kit
mkdir "$out/bin"
for tool in sh timeout tail date; do ln -s "$(command -v $tool)" "$out/bin/$tool"; done
python=$("${ZF_PYTHON:-python3}" -c 'import sys; print(sys.executable)')  # no script that starts it

bare() { env -i PATH="$out/bin" EXTRA_LIB="$double" "$@"; }

bare FAKECUDA_DELAY_US=20 PYTHON="$python" ${PYTHONPYCACHEPREFIX:+PYTHONPYCACHEPREFIX="$PYTHONPYCACHEPREFIX"} sh "$kit/session.sh" rehearsal >"$out/table" 2>&1
status=$?
cat "$out/table"
[ $status -eq 0 ] || fail "session.sh: exit status $status"
cmp -s "$out/table" "$kit/results/table.txt" || fail "results/table.txt is not what was printed"
[ "$(grep -c ' PASS ' "$out/table")" -ge 9 ] || fail "fewer than nine rows passed"
# A finding of the double's in a process that ends in peace.
! grep -l '^fakecuda: ' "$kit"/results/*.txt || fail "the double found something"

# A case that stands still, and a program.
bare LD_LIBRARY_PATH="$kit/plugin:$kit/lib:$double" LD_PRELOAD="$kit/stacks/libzf_stacks.so" FAKECUDA_DELAY_US=9000000 \
    "$kit/bin/zf-conform" exact --plugin "$kit/plugin/libzfplugin.so.0" --device cuda --cases 1 --deadline 1 >"$out/still" 2>&1
grep -q 'no answer within 1 s' "$out/still" && grep -q '^end of stacks' "$out/still" && grep -q 'plugin/libzfplugin.so.0(' "$out/still" ||
    fail "a case stands still: no stacks"
exit "$failed"
