#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# command_line.sh ZF_CONFORM - the command line of every area in C (tests/accuracy has those in Python): its help lists its options, and an unknown option, a value
# that is missing or out of range and an option given twice end with exit status 2 and one line that names them.
set -u
conform=$1
. "$(dirname "$0")/expect.sh"

# refused TEXT AREA ARGUMENT...
refused() {
    text=$1
    shift
    out=$("$conform" "$@" 2>&1)
    status=$?
    [ "$status" -eq 2 ] || fail "$*: exit status $status, need 2: $out"
    [ "$out" = "zf-conform $1: $text" ] || fail "$*: found \"$out\", need \"zf-conform $1: $text\""
}

# lists AREA OPTION... - the help has a line for each, and for no other
lists() {
    area=$1
    shift
    out=$("$conform" "$area" --help 2>&1) || fail "$area --help: exit status $?"
    for option in "$@" --help; do
        echo "$out" | grep -q -e "^  $option  *[^ ]" || fail "$area --help: no line for $option"
    done
    n=$(echo "$out" | grep -c '^  [^ ]')
    [ "$n" -eq $(($# + 1)) ] || fail "$area --help: $n options, need $(($# + 1)): $out"
    echo "$out" | head -n 1 | grep -q "^zf-conform $area - " || fail "$area --help does not say what the area is"
    echo "$out" | tail -n 1 | grep -q '^exit status: 0 ' || fail "$area --help does not say what it ends with"
}

lists shard --plugin --mpi --device --transport --cases --seed --only --stage --groups --split --save --load --deadline-ms --hold-us --fault --at-rank --overlap
lists abi --plugin --mocks --print-layout --only --profile
lists judge --plugin --profile
lists near --plugin --cases --seed --only
lists cost --plugin --times
lists exact --plugin --cases --seed --law --only --times --device --plain --threads --isa --jobs --deadline --max-failures --quiet

for area in abi exact judge near cost; do
    refused 'found "--nonsense"; an option is needed, --help lists them' $area --nonsense 1
    refused '--help: given twice; once is needed' $area --help --help
done
for area in abi exact judge near cost; do
    refused 'found "nonsense"; an option is needed, --help lists them' $area nonsense
    refused '--plugin: nothing follows; FILE is needed' $area --plugin
    refused '--plugin: given twice; once is needed' $area --plugin a.so --plugin b.so
done
refused '--only: nothing follows; NAME is needed' abi --print-layout --only
refused '--cases: found "0"; a whole number from 1 to 99999999 is needed' exact --cases 0
refused '--law: found "7"; a whole number from 1 to 6 is needed' exact --law 7
refused '--isa: found "sse"; all or generic or avx2 or avx512 or plugin is needed' exact --isa sse
refused '--seed: found "-1"; a whole number below 2^63 is needed' exact --seed -1

# shows TEXT AREA ARGUMENT...: what it does is said on a terminal, and not in a pipe
shows() {
    text=$1
    shift
    script -qec "'$conform' $*" /dev/null </dev/null | grep -q "$text" || fail "$*: no \"$text\" on a terminal"
    "$conform" "$@" </dev/null 2>&1 | grep -q "$text" && fail "$*: \"$text\" in a pipe"
}
shows 'abi: file \.\.\. 0 s' abi --plugin "$conform"

"$conform" nonsense >/dev/null 2>&1
[ $? -eq 2 ] || fail "an unknown area: exit status is not 2"
exit $failed
