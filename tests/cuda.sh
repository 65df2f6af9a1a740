#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# cuda.sh - everything that can be said of the CUDA code without a GPU. From any directory: sh tests/cuda.sh [--cases N]
#
#   gate      ptxas and cuobjdump on the kernels: registers, spills, contractions, loads of inner loops, generic accesses,
#             divisions; coalescing, blocks launched (tests/cuda/gate)
#   plain     opcode table, the double's own tests, zf-conform exact --device cuda: N cases (default 64) of each with queues dealt in
#             turn, by priority on the legacy default stream, and by chance, N/3 of each without stream memory operations and with
#             one hardware queue, seeds as the kit's session.sh has them, and N/8 of each with the host's streams waiting for
#             words, with long delays, and with queues of 1,000, 64 and 24 commands
#   trainer   what trainers do beside a step, under the strictest lock: 60, 291 and 400 parameters, all streams of a pool, 8, 2 and 1 queues
#   glue      tests/cuda/host: the reference host's curves beside the processor's, and the GLUE area in small
#   kit       the archive for a machine with a GPU is packed, and its session rehearsed
#   failures  calls of the driver that fail: an error each, no crash, no hang
#   asan, tsan  the double's own tests, N/8 cases, and ranks over the double of NCCL, under the sanitizers
#   ranks     law 4: zf-conform shard --device cuda on two to four ranks, each with a double of its own
#   nccl      the same over the double of NCCL, and what goes wrong there (tests/cuda/nccl.sh)
#   faults    each of tests/cuda/faults.txt is built and caught
#   waits     each wait that the plugin's programs enqueue is left out in turn, and that is caught
#
#   --only STAGE  one of them.   --match REGEX  faults and waits so named.   --seed S  of the cases (default 1).   ZF_JOBS=N  side by side
#
# Needs nvcc with cuda.h, cmake, ninja and python3; exit status 77 without nvcc. The last line is the verdict; exit status 0
# only if every stage passed. What the double models, and its environment variables: tests/cuda/README.md.
set -u

root=$(CDPATH='' cd -- "$(dirname -- "$0")/.." && pwd) || exit 2
cd "$root" || exit 2
cases=64
seed=1
only=
match=
while [ $# -gt 0 ]; do
    case $1 in
    --cases) cases=$2 ;;
    --seed) seed=$2 ;;
    --only) only=$2 ;;
    --match) match=$2 ;;
    *)
        sed -n '3,22p' "$0" >&2
        exit 2
        ;;
    esac
    shift 2
done
# Half of the time of most stages is waiting: the first and those beside them are at work at once, in trees of their own.
first="gate plain trainer glue kit failures"
beside="asan tsan ranks nccl"
last="faults waits"
stages="$first $beside $last"
case " $stages " in
*" ${only:-gate} "*) ;;
*)
    echo "cuda.sh: --only $only: the stages are $stages" >&2
    exit 2
    ;;
esac
jobs=${ZF_JOBS:-$(nproc 2>/dev/null || echo 2)}
few=$((cases / 8 > 0 ? cases / 8 : 1))
third=$((cases / 3 > 0 ? cases / 3 : 1))
nccl_seed=$((seed + 7)) # by default that of nccl.sh, whose cases are small
plugin_targets="zfplugin zf-conform zf_double trainer test_cuda_backend test_cuda_waits test_cuda_sizes"
targets="$plugin_targets zf-host zf_cublas_double test_cuda_host test_cuda_nccl test_cuda_nccl_discard opcodes test_driver test_driver_real probe"
has_mpi=
if command -v mpirun >/dev/null 2>&1 && command -v mpicc >/dev/null 2>&1; then
    has_mpi=1
    targets="$targets zf_mpi"
    plugin_targets="$plugin_targets zf_mpi"
fi
failed=
[ -n "$has_mpi" ] && left_out= || left_out=", but for what needs MPI"
tree=build/cuda-faults # of faults and waits

command -v nvcc >/dev/null 2>&1 || [ -x /usr/local/cuda/bin/nvcc ] || {
    echo "nvcc was not found: no CUDA code can be tested here"
    exit 77
}

# The host's streams wait for words: each has a queue of its own, and the driver no lock.
streams_wait="ZF_CUDA_MEMOPS=wait FAKECUDA_LOCKS=none CUDA_DEVICE_MAX_CONNECTIONS=0"

say() { printf '== %s\n' "$*"; }
fails() {
    say "FAIL: $*"
    failed="$failed $1"
}
is_matched() { printf '%s\n' "$1" | grep -qE -- "$match"; }

# build SOURCE FOLDER CMAKE-ARGUMENT...
build() {
    from=$1
    to=$2
    shift 2
    mkdir -p "$to"
    cmake -S "$from" -B "$to" -G Ninja -DZF_CUDA=ON ${ZF_CMAKE_ARGS:-} "$@" >"$to/cuda.log" 2>&1 &&
        cmake --build "$to" --parallel "$jobs" --target $targets >>"$to/cuda.log" 2>&1
}

# conform FOLDER CASES [NAME=VALUE...]: zf-conform on the double; its output goes to FOLDER/conform.out
conform() {
    folder=$1
    n=$2
    shift 2
    env LD_LIBRARY_PATH="$root/$folder/tests/cuda/double" "$@" "$folder/conformance/zf-conform" exact \
        --plugin "$folder/plugin/libzfplugin.so.0" --device cuda --cases "$n" --seed "$seed" --jobs "$jobs" \
        --deadline "${deadline:-300}" --max-failures "${most:-3}" >"$folder/conform.out" 2>&1
    judge_output "$folder/conform.out" $?
}

# shard FOLDER RANKS CASES [NAME=VALUE...]: law 4 on the double, as conform; its output goes to FOLDER/shard.out
shard() {
    folder=$1
    ranks=$2
    n=$3
    shift 3
    env LD_LIBRARY_PATH="$root/$folder/tests/cuda/double" "$@" timeout -k 5 1800 mpirun --allow-run-as-root --oversubscribe \
        --mca btl self,vader,tcp --mca btl_tcp_if_include lo --mca btl_vader_single_copy_mechanism none -n "$ranks" \
        "$folder/conformance/zf-conform" shard --plugin "$folder/plugin/libzfplugin.so.0" ${stage:+--stage $stage} \
        --mpi "$folder/bindings/mpi/libzf_mpi.so" --device cuda --cases "$n" --seed "$seed" --hold-us "${hold_us:-0}" \
        >"$folder/shard.out" 2>&1
    judge_output "$folder/shard.out" $?
}

# judge_output FILE STATUS
judge_output() {
    status=$2
    # What the double finds in a process that then ends in peace does not always show in its status.
    if [ "$status" -eq 0 ] && grep -q '^fakecuda: ' "$1"; then
        status=96
    fi
    return "$status"
}

# judge WHAT FOLDER CASES [NAME=VALUE...]
judge() {
    what=$1
    shift
    if conform "$@"; then
        say "$what: $(tail -n 1 "$1/conform.out")"
    else
        fails "${what%% *}" "$what"
        grep -vE '^  ' "$1/conform.out" | head -n 20
    fi
}

own_tests() { # NAME FOLDER
    if ctest --test-dir "$2" -j "$jobs" -R '^(cuda_|test_driver|test_cuda_)' -E '^cuda_(exact|ranks|nccl|kit|glue)' -LE "${3:-none}" --output-on-failure >"$2/own.out" 2>&1; then
        say "$1: $(grep 'tests passed' "$2/own.out")"
    else
        fails "$1" "the double's own tests"
        tail -n 40 "$2/own.out"
    fi
}

common="zenflow.full_warm_up_rounds=1 zenflow.update_interval=2 zenflow.publish_lag=0" # every kernel has work

# trainer.c in three modes, so that each kernel has work whose traffic can be counted, and on matrices of wide rows: to
# build/cuda/traffic.txt. Threads run in order (seed 0): lanes whose turns lie far apart would not be seen to be one request.
count_traffic() {
    for mode in "plain $common" "strided $common host.moments_dtype=bfloat16" "plain device.state_mib=all" \
        "13x5000 $common" "5x11008 $common" "4x16384 $common" "2x32000 $common"; do
        # shellcheck disable=SC2086 # words
        FAKECUDA_TRAFFIC=1 FAKECUDA_SEED=0 FAKECUDA_DELAY_US=0 LD_LIBRARY_PATH="$root/build/cuda/tests/cuda/double" \
            build/cuda/tests/cuda/trainer build/cuda/plugin/libzfplugin.so.0 $mode >build/cuda/run.txt 2>&1 || return 1
        case $mode in [0-9]*) sed 's/^traffic /wide /' ;; *) cat ;; esac <build/cuda/run.txt
    done >build/cuda/traffic.txt
}

# Blocks of each kernel's launches on as many processors as an H100 has.
count_blocks() {
    for mode in "strided $common host.moments_dtype=bfloat16" "plain device.state_mib=all"; do
        # shellcheck disable=SC2086 # words
        FAKECUDA_COUNTS=1 FAKECUDA_MULTIPROCESSORS=132 FAKECUDA_COMPUTE=90 FAKECUDA_SEED=0 FAKECUDA_DELAY_US=0 \
            LD_LIBRARY_PATH="$root/build/cuda/tests/cuda/double" build/cuda/tests/cuda/trainer \
            build/cuda/plugin/libzfplugin.so.0 $mode 2>&1 || return 1
    done >build/cuda/launched.txt
}

stage_gate() {
    count_traffic || fails gate "trainer.c: build/cuda/run.txt, build/cuda/cuda.log"
    count_blocks || fails gate "trainer.c on 132 processors: build/cuda/launched.txt"
    "${ZF_PYTHON:-python3}" tests/cuda/gate/gate.py build/cuda/kernels/cuda/zfi.ptx tests/cuda/gate/table.txt --traffic build/cuda/traffic.txt \
        --launched build/cuda/launched.txt || fails gate "see above"
    "${ZF_PYTHON:-python3}" tests/cuda/gate/test_gate.py || fails gate "its planted faults"
}

stage_plain() {
    own_tests plain build/cuda
    judge plain build/cuda "$cases"
    judge "plain, queues by priority, the legacy stream" build/cuda "$cases" FAKECUDA_DEAL=priority FAKECUDA_LEGACY=1
    judge "plain, queues by chance" build/cuda "$cases" FAKECUDA_DEAL=chance FAKECUDA_SEED=2
    given=$seed
    seed=$((given + 1))
    judge "plain, no stream memory operations" build/cuda "$third" ZF_CUDA_MEMOPS=0 FAKECUDA_SEED=4
    seed=$((given + 2))
    judge "plain, one hardware queue" build/cuda "$third" CUDA_DEVICE_MAX_CONNECTIONS=1 FAKECUDA_SEED=3
    seed=$given
    # shellcheck disable=SC2086 # words
    judge "plain, streams wait for words" build/cuda "$few" $streams_wait
    judge "plain, long delays" build/cuda "$few" FAKECUDA_DELAY_US=2000 FAKECUDA_SEED=6
    judge "plain, queues of 1,000 commands" build/cuda "$few" FAKECUDA_DEPTH=1000 FAKECUDA_SEED=7
    judge "plain, queues of 64 commands" build/cuda "$few" FAKECUDA_DEPTH=64 ZF_CUDA_IN_FLIGHT=64 FAKECUDA_SEED=8
    judge "plain, queues of 24 commands" build/cuda "$few" FAKECUDA_DEPTH=24 ZF_CUDA_IN_FLIGHT=24 FAKECUDA_SEED=9
}

# What trainers do beside a step.
stage_trainer() {
    for queues in 8 2 1; do
        for n in 60 291 400; do
            train free $n CUDA_DEVICE_MAX_CONNECTIONS=$queues
        done
        for place in $(seq 32); do
            train "pool=$place" 60 CUDA_DEVICE_MAX_CONNECTIONS=$queues
        done
        for n in 291 400; do
            train "pool=$queues" $n CUDA_DEVICE_MAX_CONNECTIONS=$queues
        done
        train beside 60 CUDA_DEVICE_MAX_CONNECTIONS=$queues
    done
    train "fresh steps=1000" 2 CUDA_DEVICE_MAX_CONNECTIONS=8
    train free 291 FAKECUDA_LEGACY=1
}

train() { # OPTION... PARAMETERS NAME=VALUE
    # shellcheck disable=SC2086 # words
    if env FAKECUDA_DELAY_US=0 LD_LIBRARY_PATH="$root/build/cuda/tests/cuda/double" "$3" timeout 120 \
        build/cuda/tests/cuda/trainer build/cuda/plugin/libzfplugin.so.0 "$2" $1 >build/cuda/run.txt 2>&1; then
        say "trainer: $1, $3: $(tail -n 1 build/cuda/run.txt)"
    else
        fails trainer "$1, $2 parameters, $3: $(tail -n 1 build/cuda/run.txt)"
    fi
}

stage_glue() {
    if sh tests/cuda/host/glue.sh build/cuda >build/cuda/glue.out 2>&1; then
        say "glue: $(grep -c 'largest gap' build/cuda/glue.out) curves are the processor's"
    else
        fails glue "$(grep -m 3 FAIL build/cuda/glue.out | cut -c1-300)"
    fi
}

stage_kit() {
    if cmake --build build/cuda --parallel "$jobs" --target gpu-kit >>build/cuda/cuda.log 2>&1 &&
        sh tests/cuda/kit/rehearse.sh build/cuda >build/cuda/kit.out 2>&1; then
        say "kit: $(grep -c ' PASS ' build/cuda/kit.out) rows passed"
    else
        fails kit "build/cuda/cuda.log, build/cuda/kit.out: $(grep -m 3 FAIL build/cuda/kit.out | cut -c1-300)"
    fi
}

# Functions that the plugin alone calls: zf-conform's own calls succeed. Any status of zf-conform is right but one of a
# crash (128 and more), of the double's findings, and of a case that hangs ("deadline").
stage_failures() {
    for fail in cuModuleLoadData:1 cuModuleGetFunction:2 cuEventCreate:1 cuEventCreate:40 cuStreamCreateWithPriority:1 cuStreamCreateWithPriority:3 \
        cuMemHostRegister:1 cuMemHostRegister:2 cuLaunchKernel:1 cuLaunchKernel:30 cuEventRecord:5 cuStreamWaitEvent:5 cuStreamWaitValue64:1 cuStreamWriteValue64:20; do
        conform build/cuda 2 FAKECUDA_FAIL=$fail
        if grep -qE 'signal|deadline of|did not end|leaks|illegal|^fakecuda: [0-9]* findings' build/cuda/conform.out; then
            fails failures "$fail"
            grep -vE '^  ' build/cuda/conform.out | cut -c1-300 | head -n 8
        else
            say "failures: $fail: $(grep -m 1 -oE '(create|bind|step|grads_ready|law [0-9]).{0,110}' build/cuda/conform.out)"
        fi
    done
    conform build/cuda 2 FAKECUDA_HOST_POINTER=0
    grep -q 'only at addresses of its own' build/cuda/conform.out || fails failures "registered memory at other addresses"
    # Where zf-conform's own memory is refused it ends at once, and what the plugin had is still there.
    for nbytes in 50000 100000 200000; do
        conform build/cuda 6 FAKECUDA_DEVICE_BYTES=$nbytes
        grep -q 'status -10: device memory for' build/cuda/conform.out &&
            { ! grep -q 'leaks' build/cuda/conform.out || grep -q '^zf-conform exact: cuMemAlloc' build/cuda/conform.out; } ||
            fails failures "$nbytes bytes of device memory"
    done
}

# Law 4 where the ranks compute on CUDA: exchanges go through page-locked memory.
stage_ranks() {
    [ -n "$has_mpi" ] || {
        say "ranks: MPI is missing (libopenmpi-dev openmpi-bin): left out"
        return
    }
    for how in "2 $few" "3 $few" "4 $few" "2 $few CUDA_DEVICE_MAX_CONNECTIONS=1" "2 $few FAKECUDA_MEMOPS=0"; do
        # shellcheck disable=SC2086 # words
        if shard build/cuda $how; then
            say "ranks: $(grep '^law 4' build/cuda/shard.out)${how##*[0-9] }"
        else
            fails ranks "$how"
            grep -v '^--' build/cuda/shard.out | cut -c1-600 | head -n 12
        fi
    done
}

stage_asan() { sanitized asan address; }
stage_tsan() { sanitized tsan thread; }
sanitized() { # NAME SANITIZER
    build . build/cuda-$1 -DZF_SANITIZE=$2 -DZF_CUDA_ARCHITECTURES= -DCMAKE_BUILD_TYPE=Debug || {
        fails "$1" "the build failed: build/cuda-$1/cuda.log"
        return
    }
    own_tests "$1" build/cuda-$1 '^nosan$'
    # The thread sanitizer takes a queue that two streams share for an order.
    own_queues=CUDA_DEVICE_MAX_CONNECTIONS=$([ "$2" = thread ] && echo 0 || echo 8)
    judge "$1" build/cuda-$1 "$few" "$own_queues"
    # shellcheck disable=SC2086 # words
    judge "$1, streams wait for words" build/cuda-$1 "$few" $streams_wait
    if [ -z "$has_mpi" ]; then
        say "$1: MPI is missing (libopenmpi-dev openmpi-bin): ranks over NCCL's double are left out"
    elif sh tests/cuda/nccl.sh --short --only conforms --cases 1 --limit 600 --seed "$nccl_seed" build/cuda-$1 >build/cuda-$1/nccl.out 2>&1; then
        say "$1: $(grep -c 'conforms$' build/cuda-$1/nccl.out) times law 4 conforms over NCCL's double"
    else
        fails "$1" "$(grep -m 3 FAIL build/cuda-$1/nccl.out | cut -c1-300)"
    fi
}

stage_nccl() {
    [ -n "$has_mpi" ] || {
        say "nccl: MPI is missing (libopenmpi-dev openmpi-bin): left out"
        return
    }
    if sh tests/cuda/nccl.sh --cases $(((few + 1) / 2)) --seed "$nccl_seed" build/cuda >build/cuda/nccl.out 2>&1; then
        say "nccl: $(grep -c 'conforms$' build/cuda/nccl.out) times law 4 conforms, $(grep -vc 'conforms$' build/cuda/nccl.out) faults are said in time"
    else
        fails nccl "$(grep -m 3 FAIL build/cuda/nccl.out | cut -c1-300)"
    fi
}

# copy_tree: the tree that faults are planted in. Files that are as they were keep their times, so that only what a patch touched
# is built again; what differs gets a new one, for an object may have been made of a patched file that was newer.
copy_tree() {
    src=$tree/src
    mkdir -p $src
    find . \( -path ./build -o -path ./.git \) -prune -o -type f -print | while read -r file; do
        cmp -s "$file" "$src/$file" || {
            mkdir -p "$(dirname "$src/$file")"
            cp -p "$file" "$src/$file"
            touch "$src/$file"
        }
    done
    (cd $src && find . -type f) | while read -r file; do
        [ -e "$file" ] || rm -f "$src/$file"
    done
}

# build_fault WAY: plain, or under the thread sanitizer; without machine code, which the double does not take.
build_fault() {
    sanitize=
    [ "$1" = plain ] || sanitize=thread
    build "$src" "$tree/$1" -DZF_SANITIZE=$sanitize -DZF_CUDA_ARCHITECTURES=
}

signs='law [0-9]: .{0,90}|fakecuda: .{0,100}|WARNING: ThreadSan.*|trainer: .{0,100}|[a-z_]*: status -.{0,80}|test_[a-z_]*\.c:[0-9]*:[EF]:.{0,200}'

# symptom FILE: by what a run shows a fault. That a case did not end in time is no sign: the machine may be slow.
symptom() { grep -oE "$signs" "$1" | grep -m 1 -vE 'no answer within|deadline of|timeout expired|as asked for'; }

# looks WAY CASES [NAME=VALUE...]: by one of the ways that faults.txt and watchers() name, with its output in $looked: exit status 0 where
# nothing shows. plain, waiting and tsan: zf-conform exact on the driver's double, waiting with streams that wait for words, tsan under the thread
# sanitizer, which is told of CUDA's orders only; trainer: trainer.c under the strictest lock; shuffle: on a CPU backend that delays and reorders (tests/device/shuffle.c), 180 cases of seconds; ranks0, ranks1,
# ranks3: law 4 on two ranks at that stage; another is a test of tests/cuda/backend.
looks() {
    way=$1
    n=$2
    shift 2
    looked=$tree/$way.out
    case $way in
    plain | tsan | waiting)
        looked=$tree/$([ "$way" = tsan ] && echo tsan || echo plain)
        own_queues=$([ "$way" = plain ] || echo CUDA_DEVICE_MAX_CONNECTIONS=0)
        # shellcheck disable=SC2046,SC2086 # words
        conform "$looked" "$n" FAKECUDA_DELAY_US=500 $own_queues $([ "$way" = waiting ] && echo $streams_wait) "$@"
        status=$?
        looked=$looked/conform.out
        ;;
    trainer)
        for option in "60 free" "2 fresh steps=80"; do
            # shellcheck disable=SC2086 # words
            env FAKECUDA_DELAY_US=0 LD_LIBRARY_PATH="$root/$tree/plain/tests/cuda/double" timeout 120 $tree/plain/tests/cuda/trainer \
                $tree/plain/plugin/libzfplugin.so.0 $option >"$looked" 2>&1
            status=$?
            [ $status -ne 124 ] || echo "trainer: stands still for 120 s" >>"$looked"
            [ $status -eq 0 ] || break
        done
        ;;
    shuffle)
        cmake --build $tree/plain --parallel "$jobs" --target zfplugin_shuffle >"$looked" 2>&1 || return 0
        for shuffle_seed in 1 2 3; do
            env ZF_SHUFFLE_SEED=$shuffle_seed "$@" $tree/plain/conformance/zf-conform exact \
                --plugin $tree/plain/tests/device/libzfplugin_shuffle.so --cases 60 --seed $shuffle_seed --jobs "$jobs" \
                --deadline "$deadline" --max-failures 1 >"$looked" 2>&1
            status=$?
            [ $status -eq 0 ] || break
        done
        ;;
    ranks[013])
        (stage=${way#ranks} seed=$stage && shard $tree/plain 2 "$n" FAKECUDA_DELAY_US=1000 "$@")
        status=$?
        looked=$tree/plain/shard.out
        ;;
    *)
        env CK_TIMEOUT_MULTIPLIER=0.4 "$@" ctest --test-dir $tree/plain -R "^test_cuda_$way\$" --output-on-failure >"$looked" 2>&1
        status=$?
        ;;
    esac
    [ $status -eq 0 ] || [ -z "$(symptom "$looked")" ]
}

# claim NAME: nobody has it in work.
claim() { mkdir "build/cuda-claims/$1" 2>/dev/null; }

# in_two_trees STAGE WORK: a compiler's thread takes half a minute for a fault of a kernel, which no other can shorten, and many a run
# waits: so two are in work at once, each in a tree of its own. WORK prints what is wrong; what goes well goes to stderr.
in_two_trees() {
    targets=$plugin_targets
    deadline=120
    most=1
    all=$jobs
    jobs=$(((all + 1) / 2))
    rm -rf build/cuda-claims
    mkdir -p build/cuda-claims
    (tree=$tree-2 && copy_tree && $2 >build/cuda-claims/second) &
    copy_tree && $2 >build/cuda-claims/first
    wait
    jobs=$all
    wrong=$(cat build/cuda-claims/first build/cuda-claims/second 2>&1)
    [ -z "$wrong" ] || fails "$1" "$wrong"
    [ -n "$match" ] && [ -z "$only" ] || ls -d build/cuda-claims/*/ >/dev/null 2>&1 || fails "$1" "none has that name"
}

# Each has to be caught by the way that faults.txt names.
plant() {
    sed -n 's/^== \([^ ]*\) [^ ]* \([^ ]*\)$/\1 \2/p' tests/cuda/faults.txt | while read -r name way; do
        is_matched "$name" && claim "$name" || continue
        python3 conformance/faults/faults.py tests/cuda/faults.txt plant "$name" "$src" || {
            echo "$name: cannot be planted"
            continue
        }
        if ! build_fault $([ "$way" = tsan ] && echo tsan || echo plain) </dev/null; then
            echo "$name: does not build: $tree/*/cuda.log"
        elif looks "$way" 18 </dev/null; then
            echo "$name: not caught by $way"
        else
            say "faults: $name: caught ($way): $(symptom "$looked")" >&2
        fi
        python3 conformance/faults/faults.py tests/cuda/faults.txt take "$name" "$src"
    done
}

# Every wait that the plugin's programs enqueue: "FILE LINE TIMELINE", the file in plugin/.
waits() {
    (cd plugin && grep -n 'zfi_op_wait(' ranks/*.c step/*.c hooks/*.c) |
        sed -n 's/^\([^:]*\):\([0-9]*\):.*lines\.\([a-z_]*\).*/\1 \2 \3/p'
}

# Who looks for a wait that is left out.
watchers() {
    case $1 in
    ranks/*) [ -z "$has_mpi" ] || echo ranks1 ranks3 ;;
    *) echo shuffle sizes plain tsan ;; # the cheapest first
    esac
}

# known FILE LINE: what waits.txt has of a wait.
known() {
    text=$(sed -n "$2p" "plugin/$1")
    while IFS='|' read -r its_file its_text its_reason; do
        [ "$its_file" != "$1" ] || case $text in *"$its_text"*) echo "$its_reason" ;; esac
    done <tests/cuda/waits.txt
}

# fails_without TEST: a test of the CPU's backend passes, and without the wait at $place it does not, in one of six runs: who comes first is
# left to chance.
fails_without() {
    cmake --build $tree/plain --parallel "$jobs" --target "$1" >>$tree/plain/cuda.log 2>&1 &&
        ctest --test-dir $tree/plain -R "^$1\$" >/dev/null 2>&1 &&
        ! ZF_DROP_WAIT="$place" ctest --test-dir $tree/plain -R "^$1\$" --repeat until-fail:6 >/dev/null 2>&1
}

# Each left out in turn. It has to be reached, for what else fails is no proof of it.
leave_out() {
    hold_us=60000
    patch -d $src -p1 -s -F0 <tests/cuda/waits.patch
    build_fault plain || echo "does not build: $tree/plain/cuda.log"
    has_tsan=
    waits | while read -r file line timeline; do
        place=$(basename "$file"):$line
        is_matched "$file:$timeline" && claim "$place" || continue
        caught=
        reason=$(known "$file" "$line")
        for way in $([ -n "$reason" ] || watchers "$file"); do
            if [ "$way" = tsan ] && [ -z "$has_tsan" ]; then
                build_fault tsan </dev/null || echo "does not build: $tree/tsan/cuda.log"
                has_tsan=1
            fi
            looks "$way" 12 ZF_DROP_WAIT="$place" </dev/null || ! grep -q '^left out: ' "$looked" || {
                caught="$way: $(symptom "$looked")"
                break
            }
        done
        if [ "${reason#test }" != "$reason" ] && fails_without "${reason#test }" </dev/null; then
            caught=$reason
        fi
        if [ -n "$caught" ]; then
            say "waits: $file:$line $timeline: caught by $caught" >&2
        elif [ -n "$reason" ] && [ "${reason#test }" = "$reason" ]; then
            say "waits: $file:$line $timeline: $reason" >&2
        else
            echo "$file:$line $timeline: every case conformed without it, or none reaches it"
        fi
    done
}

stage_faults() { in_two_trees faults plant; }
stage_waits() { in_two_trees waits leave_out; }

# Where a report ends a process the case fails.
export ASAN_OPTIONS="detect_leaks=0:exitcode=99${ASAN_OPTIONS:+:$ASAN_OPTIONS}"
export TSAN_OPTIONS="halt_on_error=1:exitcode=99:suppressions='$PWD/tests/tsan.supp'${TSAN_OPTIONS:+:$TSAN_OPTIONS}"
case $only in asan | tsan | faults | waits) ;; *) build . build/cuda ;; esac || {
    say "the build failed: build/cuda/cuda.log"
    tail -n 20 build/cuda/cuda.log
    exit 1
}
run() { # STAGE...
    for its in "$@"; do
        "stage_$its"
        times >"build/cuda-times-$1"
        say "$its has ended; processor time of all so far: $(tail -n 1 "build/cuda-times-$1")"
    done
}

if [ -n "$only" ]; then
    run "$only"
else
    rm -f build/cuda-beside
    (
        failed=
        run $beside
        echo "$failed" >build/cuda-beside
    ) &
    run $first
    wait
    failed="$failed$(cat build/cuda-beside 2>&1)"
    run $last
fi
if [ -n "$failed" ]; then
    echo "FAIL:$failed"
    exit 1
fi
echo "PASS: the CUDA code on the test double$left_out"
