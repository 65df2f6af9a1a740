#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# glue_ranks.sh ZF_CONFORM PLUGIN ZF_MPI - "zf-conform glue --ranks 2" in small: both arms of the plugin run on two ranks and
# follow AdamW of one process, what is printed and written says so, kept runs are told apart by their ranks, and what cannot
# run is said in one line. Needs mpirun: without it exit status 77, and 1 where CI is set.
set -u
. "$(dirname "$0")/../conformance/expect.sh"
needs_scipy
conform=$1
plugin=$2
mpi=${3:-}
if ! command -v mpirun >/dev/null 2>&1 || [ ! -e "$mpi" ]; then
    echo "glue_ranks: MPI is missing: install libopenmpi-dev openmpi-bin, then build again"
    [ -z "${CI:-}" ] || exit 1
    exit 77
fi
unset ZF_MPI_PATH

# glue NAME ARGUMENT... - 40 steps of one seed, which learn nothing; standard output in $out/NAME, standard error in $out/NAME.err
glue() {
    name=$1
    shift
    timeout -k 5 100 "$conform" glue --plugin "$plugin" --seeds 1 --steps 40 --jobs 1 --out "$out/kept" "$@" \
        >"$out/$name" 2>"$out/$name.err"
}

glue ranks --ranks 2 --mpi "$mpi" --set shard.stage=1
[ $? -eq 3 ] || fail "two ranks: no exit status 3: $(cat "$out/ranks.err")"
has "$out/ranks" 'on 2 ranks of this machine, which share each batch, at \[shard\] stage 1' 'INCONCLUSIVE on 2 ranks'
[ "$(grep -c 'start         PASS: .*largest relative difference' "$out/ranks")" -eq 2 ] ||
    fail "two arms should follow AdamW to rounding, and not to every digit: $(grep start "$out/ranks")"
has "$out/kept/glue.json" '"ranks": 2' '"shard_stage": 1'
[ "$(grep -l '"ranks": 2' "$out"/kept/runs/*.json | wc -l)" -eq 2 ] || fail "two runs of two ranks should be kept"

# The same again is kept; one process, and one rank, are other runs, with AdamW's own digits.
glue again --ranks 2 --mpi "$mpi" --set shard.stage=1
has "$out/again.err" '3 of 3 runs are kept'
glue one --set shard.stage=1
has "$out/one.err" '1 of 3 runs are kept'
grep -q rank "$out/one" && fail "one process: speaks of ranks"
[ "$(grep -c 'equal in every digit' "$out/one")" -eq 2 ] || fail "one process: not equal in every digit"

# refused NAME STATUS TEXT ARGUMENT... - that exit status, and TEXT in the last line
refused() {
    name=$1
    status=$2
    text=$3
    shift 3
    glue "$name" "$@"
    [ $? -eq "$status" ] || fail "$name: exit status is not $status: $(cat "$out/$name.err")"
    tail -n 1 "$out/$name.err" | grep -q -- "$text" || fail "$name: no \"$text\": $(cat "$out/$name.err")"
}

refused unnamed 2 '--mpi FILE is needed' --ranks 2
refused missing 2 'none.so: cannot read' --ranks 2 --mpi "$out/none.so"
refused batch 1 'batch 1 on 2 ranks' --ranks 2 --mpi "$mpi" --batch 1
(
    python=$(command -v "${ZF_PYTHON:-python3}")
    PATH=/nowhere
    ZF_PYTHON=$python "$conform" glue --plugin "$plugin" --seeds 1 --steps 40 --jobs 1 --out "$out/kept" --ranks 2 --mpi "$mpi" --set shard.stage=2
) >"$out/mpirun" 2>"$out/mpirun.err"
[ $? -eq 2 ] || fail "no mpirun in PATH: exit status is not 2: $(cat "$out/mpirun.err")"
has "$out/mpirun.err" 'mpirun.*No such file'
exit $failed
