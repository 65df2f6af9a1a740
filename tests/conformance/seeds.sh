#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# seeds.sh ZF_CONFORM PLUGIN [CASES] - cases that once failed, each by itself, and CASES (default 60) of a seed that nobody chose:
# it is printed, and a failure is run again with it. A case that fails there gets a line here. (What a case draws changes with the
# draws of zf-conform: a line is a case that was worth keeping, not the failure itself.)
set -u
conform=$1 plugin=$2 cases=${3:-60}
failed=0
while read -r drawn why; do
    # shellcheck disable=SC2086
    if "$conform" exact --plugin "$plugin" $(echo "$drawn" | tr , ' ') --quiet; then
        echo "ok      $(echo "$drawn" | tr , ' '): $why"
    else
        echo "FAILED  $(echo "$drawn" | tr , ' '): $why"
        failed=1
    fi
done <<END
--seed,211240817,--law,4,--only,308,--isa,generic,--threads,3,--times,5 an edit right behind a question that accepts
--seed,73000236,--law,2,--only,598,--isa,generic a host that rests for an export of nothing
--seed,1345926032,--law,3,--only,93 an edit in a block that is not due, seen by FLUSH
--seed,770003,--law,4,--only,68,--isa,generic,--threads,2 adopted by element before a save that a new process goes on from
--seed,990001,--law,4,--only,36,--isa,generic,--threads,3 destroyed while released, and two processes go on from two saves
--seed,3882164193,--law,4,--only,28,--isa,generic,--threads,3,--times,5 a close that waits for the one before while early replays exchange places
--seed,6202,--law,3,--only,1333 an accepted edit, saved with no window open and loaded in a new process
--seed,6201,--law,3,--only,1589 an accepted edit, saved where all is resident
--seed,1,--law,5,--only,186 a question about what is held, while the memory is released
--seed,11002,--law,3,--only,213,--isa,generic an accepted edit, saved where a cohort's publication is due and the device keeps all of it
--seed,404,--law,3,--only,125,--isa,avx512 a late checkpoint, loaded again into a longer warm-up
END
seed=$(od -An -N4 -tu4 /dev/urandom | tr -d ' ')
echo "seed $seed, $cases cases"
"$conform" exact --plugin "$plugin" --cases "$cases" --seed "$seed" --quiet || failed=1
exit $failed
