#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# probe.sh PROBE - probe.c tells what is planted in the driver's double: a lock, a queue that streams share, a line of copies. So the
# double does what it is told.
set -u
probe=$1
. "$(dirname -- "$0")/../../conformance/expect.sh"

# asked NAME=VALUE...: the answers, in $out/told
asked() { env FAKECUDA_DELAY_US=0 "$@" "$probe" "$hold" >"$out/told" 2>&1 || fail "$*: $(tail -n 1 "$out/told")"; }
tells() { grep -q "$1" "$out/told" || fail "$2, held for $hold ms: $(cat "$out/told")"; }

all="cuStreamQuery cuEventQuery cuEventRecord cuMemcpyAsync cuLaunchKernel"

# told HOLD_MS: whether it tells all of it
told() {
    hold=$1 failed=0
    asked CUDA_DEVICE_MAX_CONNECTIONS=8
    tells "^lock nothing: returned.*others went on" "by default, nothing"
    for call in "cuMemAlloc" "cuMemFree of 1 MiB" "cuMemHostRegister" "cuStreamCreate" "cuModuleLoadData" "first launch of a kernel"; do
        tells "^lock $call: WAITED.* STOOD: $all\$" "by default, $call"
    done
    tells "^lock launches that fill the waiting queue: WAITED.* STOOD: $all\$" "by default, room"
    tells "^queue pool0 waits: kernels of others: STOOD:.* pool8 pool16" "queues in turn"
    asked FAKECUDA_LOCKS=free:lq CUDA_DEVICE_MAX_CONNECTIONS=0
    tells "^lock cuMemFree of 1 MiB: WAITED.* STOOD: cuStreamQuery cuEventQuery cuLaunchKernel\$" "a planted lock"
    tells "^lock cuStreamCreate: returned.*others went on" "no lock"
    tells "^STOOD: others' calls behind 2 of [0-9]* calls, others' work behind 0 waits" "queues of their own"
    asked FAKECUDA_LOCKS=none FAKECUDA_DEAL=priority CUDA_DEVICE_MAX_CONNECTIONS=1 CUDA_DEVICE_MAX_COPY_CONNECTIONS=1
    tells "^queue priority-2 waits: kernels of others: none" "queues by priority"
    tells "^queue priority-2 waits: copies up of others: STOOD: pool0 " "a line of copies"
    [ "$failed" = 0 ]
}

# Other threads' calls stand if they do not return while a wait is held: on a machine whose cores are busy it has to be held for longer.
told 60 || told 300 || told 1500 || told 6000
exit "$failed"
