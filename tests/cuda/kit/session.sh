#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# session.sh [carried|laws|steps|rehearsal] [OPTION...] - the first hour of libzfplugin on a GPU. It lies in the unpacked kit.
#
#   carried    first of all, within nine minutes: what stands behind what in the driver, then training that PyTorch carries, beside torch's
#              AdamW and FSDP2's offload (arms.py; OPTION... is its own)
#   laws       (default) within nine minutes: instruction forms, the driver's behaviour, the laws bit for bit, also without
#              stream memory operations, with streams that wait for words and with one hardware queue, the device pass and the link, a small model, PyTorch
#   steps      within nine minutes: training steps of 1.2 billion parameters with the state on the device, offloaded exactly
#              and in windows, beside torch's AdamW and DeepSpeed's offload where Python has them. OPTION...: other shapes, of
#              conformance/bench/gpu_step.py
#   rehearsal  the rows of laws, small, for the driver's double
#
# results/table.txt grows by a row as a row ends; each row's output is a file beside it, and results.tar is all of it so far. What stands still writes the stacks
# of its threads there before it is ended. Exit status 0: every row passed or was left out.
#
# Needs an NVIDIA GPU of compute capability 8.0 or newer, a driver (580 or newer for images of toolkit 13), a C library as new
# as the build's, sh, timeout, tail and date. With python3 steps of a model are measured, and with PyTorch on CUDA its binding
# is tried: PYTHON names the interpreter. EXTRA_LIB: a folder of more libraries.
set -u
case $0 in */*) kit=${0%/*} ;; *) kit=. ;; esac
kit=$(CDPATH='' cd -- "$kit" && pwd) || exit 2
what=${1:-laws} slow=1
[ $# -eq 0 ] || shift
case $what in
laws) cases=96 few=32 jobs=12 device=cuda pass="" shape="--layers 12 --hidden 768 --heads 12" ;;
carried | steps) device=cuda ;;
rehearsal)
    cases=1 few=2 jobs=2 device=cpu slow=4 # the double computes, perhaps beside other work; `ctest -R cuda_exact` has more of seed 1
    pass="--rows 64 --cols 512 --repeats 1"
    shape="--layers 1 --hidden 16 --heads 2 --batch 2 --steps 4 --max-tokens 8 --dtype fp32"
    ;;
*)
    echo "usage: session.sh [carried|laws|steps|rehearsal] [OPTION...]" >&2
    exit 2
    ;;
esac
out=$kit/results
plugin=$kit/plugin/libzfplugin.so.0
conform=$kit/bin/zf-conform
steps=$kit/conformance/bench/gpu_step.py
python=${PYTHON:-python3}
has_tar=$(command -v tar)
has_python=
command -v "$python" >/dev/null && has_python=1
more=${EXTRA_LIB:+:$EXTRA_LIB}${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
export ZT_PTX="$kit/ptx/driver.ptx" PYTHONPATH="$kit/python" ZFPLUGIN_LIBRARY="$plugin" PYTHONDONTWRITEBYTECODE=1 ZF_PYTHON="$python"
began=$(date +%s)
failed=0
: >"$out/table.txt"

say() {
    printf '%s\n' "$1"
    printf '%s\n' "$1" >>"$out/table.txt"
}

# row SECONDS NAME LOG COMMAND... - with at most so many seconds, and no more than are left of nine minutes. Status 77: left out.
row() {
    limit=$(($1 * slow)) name=$2 log=$out/$3
    shift 3
    left=$((began + 530 - $(date +%s)))
    [ "$limit" -le "$left" ] || limit=$left
    if [ "$limit" -lt 5 ]; then
        rc=124
        echo "no time was left" >"$log"
    else
        LD_LIBRARY_PATH=$kit/plugin:$libraries LD_PRELOAD=$kit/stacks/libzf_stacks.so \
            timeout -s USR2 -k 4 "$limit" "$@" >"$log" 2>&1 </dev/null
        rc=$?
    fi
    last=$(tail -n 1 "$log")
    case $rc in
    0) verdict=PASS ;;
    77) verdict="----" ;;
    *) verdict=FAIL failed=1 ;;
    esac
    [ $rc -ne 137 ] || last="stood still for $limit s: stacks in ${log##*/}"
    say "$(printf '%4ds %-34s %s rc %-3d %s' $(($(date +%s) - began)) "$name" "$verdict" $rc "$last")"
    [ -z "$has_tar" ] || tar -C "$kit" -cf "$kit/results.tar" results
}

# laws SECONDS NAME LOG CASES SEED
laws() {
    row "$1" "$2" "$3" "$conform" exact --plugin "$plugin" --device cuda --cases "$4" --seed "$5" --jobs $jobs \
        --deadline $(($1 * slow * 2 / 5)) --max-failures 4
}

# cuBLAS comes with PyTorch, where no folder of the system has it.
cublas=$("$python" -c 'import glob, os, nvidia; print(os.path.dirname(glob.glob(nvidia.__path__[0] + "/*/lib/libcublas.so.1?")[0]))' 2>/dev/null)
libraries=$kit/lib$more${cublas:+:$cublas}
if command -v nvidia-smi >/dev/null; then
    say "$(nvidia-smi --query-gpu=name,driver_version,compute_cap --format=csv,noheader)"
fi
# shellcheck disable=SC2086 # lists of words
if [ "$what" = carried ]; then
    row 20 "what stands behind what" probe.txt "$kit/bin/probe"
    libraries=${more#:}
    row 450 "PyTorch carries" arms.txt "$python" "$kit/arms.py" "$out" --seconds 440 "$@"
    while read -r line; do say "      $line"; done <"$out/arms.txt"
    exit $failed
fi
if [ "$what" = steps ]; then
    row 40 "device pass" pass.txt "$kit/bin/zf-bench-gpu"
    "$python" -c 'import torch; torch.cuda.init()' 2>/dev/null && set -- --peers "$python" "$@"
    row 480 "training steps" steps.txt "$python" "$steps" "$kit" --link --json "$out/steps.json" "$@"
    exit $failed
fi
[ -z "$has_python" ] || row 10 "this machine" doctor.txt "$kit/bin/zf" --plugin "$plugin" doctor --quick --need cuda
row 20 "instruction forms, plain C" opcodes.txt "$kit/bin/opcodes" "$kit/ptx/opcodes.ptx"
row 30 "driver as the double models it" driver.txt "$kit/bin/test_driver_real"
row 20 "what stands behind what" probe.txt "$kit/bin/probe"
laws 130 "laws, bit for bit" laws.txt $cases 1
if [ "$what" = laws ]; then
    export ZF_CUDA_MEMOPS=wait # hooks wait by default, until a driver was seen to let the host's streams wait
    laws 50 "laws, streams that wait for words" streams_wait.txt $few 4
fi
export ZF_CUDA_MEMOPS=0
laws 50 "laws, no stream memory operations" no_memops.txt $few 2
unset ZF_CUDA_MEMOPS
export CUDA_DEVICE_MAX_CONNECTIONS=1
laws 50 "laws, one hardware queue" one_queue.txt $few 3
unset CUDA_DEVICE_MAX_CONNECTIONS
if command -v compute-sanitizer >/dev/null; then
    row 60 "laws, compute-sanitizer" sanitizer.txt compute-sanitizer --target-processes all --error-exitcode 9 "$conform" exact \
        --plugin "$plugin" --device cuda --cases 2 --jobs 2
fi
row 50 "device pass" pass.txt "$kit/bin/zf-bench-gpu" $pass
[ "$what" = rehearsal ] || row 20 "link, page-locked" link.txt sh -c \
    'rates=$("$0" ask link 0); echo "$rates"; case $rates in *both*) ;; *) exit 1 ;; esac' "$kit/bin/zf"
row 20 "reference host's layers" host.txt "$kit/bin/test_cuda_host"
if [ -n "$has_python" ]; then
    row 60 "steps of a small model" steps.txt "$python" "$steps" "$kit" $shape --json "$out/steps.json"
    libraries=${more#:}
    row 45 "PyTorch beside its AdamW" torch.txt "$python" "$kit/smoke.py" --device $device
fi
exit $failed
