#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# test_cli_tools.sh ZF PLUGIN DRIVER_DIR TRAINER - the tools of the command line: what a machine has, what holds with a
# configuration file, where the time of a training step went. TRAINER: a program that takes a configuration file.
set -u
zf=$1
plugin=$2
driver=$3 # folder of the double of CUDA's driver; empty where no CUDA code is built
trainer=$4
. "$(dirname "$0")/cli.sh"

# says STATUS TEXT ARGUMENTS...: expect of zf with these arguments
says() {
    want_status=$1
    want_text=$2
    shift 2
    expect "$want_status" "$want_text" timeout 30 "$zf" --plugin "$plugin" "$@"
}

# ---- zf config FILE: every key, and its value ----
printf '\357\273\277\n[zenflow]\n  update_interval = 4 ; of a window\nselect_strategy=epoch\nselect_interval=8\n[host]\nthreads : 3\n' >"$dir/some.ini"
says 0 '^update_interval = 4 ; default 1$' config "$dir/some.ini"
says 0 '^select_interval = 8 ; default ' config "$dir/some.ini"
says 0 '^threads = 3 ; default ' config "$dir/some.ini"
says 0 '^topk_ratio = 0.1$' config "$dir/some.ini"
says 0 '^publish_lag = 0 ; default auto$' config "$dir/some.ini"
says 0 '^publish_lag = 1 ; default auto$' config "$dir/some.ini" 'zenflow.publish_lag = 1'
says 0 'select_interval has no effect without select_strategy = step or auto' config "$dir/some.ini"
"$zf" --plugin "$plugin" config "$dir/some.ini" >"$dir/whole.ini"
[ "$(grep -c '^[a-z_]* = ' "$dir/whole.ini")" -eq "$("$zf" --plugin "$plugin" config | grep -c '^[a-z_]* = ')" ] ||
    { echo "FAIL: not every key is shown"; failed=1; }
says 0 '^update_interval = 4 ; default 1$' config "$dir/whole.ini"
# long values are whole, and the output is read again; what a file cannot say is refused
long=$dir/$(printf '%0*d' $((190 - ${#dir})) 0)
"$zf" --plugin "$plugin" config "$dir/some.ini" "trace.file=$long" >"$dir/long.ini"
says 0 "^file = $long\$" config "$dir/long.ini"
says 1 'file: no file can say ".*/a ;b"' config "$dir/some.ini" "trace.file=$dir/a ;b"
echo kept >"$dir/a;b"
says 0 '^file = .*/a;b ; default none$' config "$dir/some.ini" "trace.file=$dir/a;b"
[ "$(cat "$dir/a;b")" = kept ] || { echo "FAIL: zf config writes over a trace"; failed=1; }
printf '[zenflow]\nupdate_intervall = 4\n[hst]\n' >"$dir/typo.ini"
says 1 "$dir/typo.ini:2: \[zenflow\] has no key \"update_intervall\"; nearest: update_interval" config "$dir/typo.ini"
says 1 "$dir/typo.ini:3: no section \[hst\]; nearest: \[host\]" config "$dir/typo.ini"
says 1 'nearest: topk_ratio' config "$dir/some.ini" zenflow.topk_rato=1
: >"$dir/empty.ini"
says 0 '^update_interval = 1$' config "$dir/empty.ini"
mkfifo "$dir/fifo"
says 1 'not a regular file' config "$dir/fifo"
says 1 'not a regular file' config "$dir"
printf 'a\000b\n' >"$dir/binary.ini"
says 1 'byte 0x00' config "$dir/binary.ini"

# ---- zf doctor: what is there, what is missing, and an exit status for what is needed ----
says 0 'plugin .*libzfplugin' doctor --quick
says 0 'cores .* in the affinity mask' doctor --quick
# limits of control groups, on a system that is made up: one level above its own
job=$dir/system/sys/fs/cgroup/job
mkdir -p "$dir/system/proc/self" "$job/step"
printf '30 23 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n' >"$dir/system/proc/self/mountinfo"
echo 0::/job/step >"$dir/system/proc/self/cgroup"
echo 314572800 >"$job/memory.max"
echo 104857600 >"$job/memory.current"
echo 50000 100000 >"$job/cpu.max"
says 0 '^{"memory_nbytes":314572800,"memory_left_nbytes":209715200,"quota_cpus":0.5}$' ask limits "$dir/system"
says 0 '^{"memory_nbytes":null,"memory_left_nbytes":null,"quota_cpus":null}$' ask limits "$dir/none"
says 0 '--need cuda  *exit status 1' doctor --help
says 0 'usage: zf .* config .FILE' config --help
says 0 'usage: zf .* ckpt verify DIR' ckpt verify --help
says 0 '--efficiency  *N  *of that peak (0.4)' plan --help
says 2 usage doctor --need everything
says 2 usage doctor --need
out=$("$zf" --plugin "$dir/none.so" doctor --quick 2>&1)
{ [ $? -eq 1 ] && echo "$out" | grep -q 'libzfplugin.so.0 (needed)' && echo "$out" | grep -q 'README, "Install".*or name the file'; } ||
    { echo "FAIL: a missing plugin: $out"; failed=1; }
# what the dynamic linker says decides the remedy: a zf that answers for a plugin that does not open
cat >"$dir/zf" <<'SH'
#!/bin/sh
[ "$2" != plugin ] || { echo "zf: cannot open libzfplugin.so.0: $WHY" >&2; exit 1; }
exec "$REAL_ZF" "$@"
SH
chmod +x "$dir/zf"
remedy() { # WHY REMEDY
    expect 1 "^ *$2" env ZF_COMMAND="$dir/zf" REAL_ZF="$zf" WHY="$1" "${ZF_PYTHON:-python3}" "$(dirname "$zf")/doctor.py" --quick
}
remedy "/lib/libc.so.6: version \`GLIBC_2.38' not found (required by libzfplugin.so.0)" 'it was built with a newer C library'
remedy 'libinih.so.1: cannot open shared object file: No such file or directory' 'apt-get install libinih1 libjansson4$'
remedy 'libzfplugin.so.0: cannot open shared object file: No such file or directory' 'build and install it (README, "Install"), then'
if ! "$zf" --plugin "$plugin" doctor --quick | grep -q '^cuda  *driver'; then
    says 1 'a CUDA device (needed)' doctor --quick --need cuda
fi
# a driver that is there: its devices, and whether it takes an image of the kernels, which is lacking where CUDA is needed; one
# without devices: what it says
if [ -e "$driver/libcuda.so.1" ]; then
    LD_LIBRARY_PATH=$driver FAKECUDA_DEVICES=2 FAKECUDA_NAME=$(printf 'Two\033[31m alike')
    export LD_LIBRARY_PATH FAKECUDA_DEVICES FAKECUDA_NAME
    case $("$zf" --plugin "$plugin" doctor --quick) in
    *'built without its CUDA backend'*) says 1 'configure with -DZF_CUDA=ON' doctor --quick --need cuda ;;
    *) says 0 '^ *kernels: PTX, assembled by the driver' doctor --quick --need cuda ;;
    esac
    says 0 '^cuda  *driver for CUDA 13.0$' doctor --quick
    says 0 '^ *1: Two\\x1b\[31m alike, 1.0 GiB, compute capability 99.0$' doctor --quick
    out=$(FAKECUDA_INTEGRATED=1 "$zf" --plugin "$plugin" doctor --quick)
    echo "$out" | grep -q "its memory is the host's" || { echo "FAIL: an integrated device: $out"; failed=1; }
    out=$(FAKECUDA_DRIVER_VERSION=12000 "$zf" --plugin "$plugin" doctor --quick --need cuda)
    [ $? -eq 1 ] || { echo "FAIL: no device that takes the kernels is enough where CUDA is needed: $out"; failed=1; }
    out=$(ulimit -l 64 && "$zf" --plugin "$plugin" doctor --quick)
    echo "$out" | grep -q 'missing  *an unlimited locked-memory limit' || { echo "FAIL: locked memory: $out"; failed=1; }
    out=$(FAKECUDA_FAIL=cuInit:1:100 "$zf" --plugin "$plugin" doctor --quick --need cuda)
    { [ $? -eq 1 ] && echo "$out" | grep -q '^cuda  *none: cuInit returned 100: there is no CUDA device'; } ||
        { echo "FAIL: a driver without devices: $out"; failed=1; }
    FAKECUDA_FAIL=cuMemHostAlloc:1 "$zf" ask link 0 >"$dir/link"
    grep -q 'no page-locked memory' "$dir/link" || { echo "FAIL: no page-locked memory: $(cat "$dir/link")"; failed=1; }
    unset LD_LIBRARY_PATH FAKECUDA_DEVICES FAKECUDA_NAME
fi
# one CPU in the mask is one CPU found, and said
cpu=$(taskset -pc $$ 2>/dev/null | sed 's/.*: *\([0-9]*\).*/\1/')
if [ -n "$cpu" ]; then
    out=$(taskset -c "$cpu" "$zf" --plugin "$plugin" doctor --quick)
    { echo "$out" | grep -q '^cores  *1 physical, 1 CPUs' && echo "$out" | grep -q 'missing  *a second core'; } ||
        { echo "FAIL: pinned to CPU $cpu: $out"; failed=1; }
fi
out=$(ulimit -l 64 && "$zf" --plugin "$plugin" doctor --quick)
echo "$out" | grep -q 'locked-memory limit 0.1 MiB' || { echo "FAIL: ulimit -l 64: $out"; failed=1; }
"$zf" --plugin "$plugin" doctor --json >"$dir/machine.json" 2>"$dir/progress"
[ -s "$dir/progress" ] && { echo "FAIL: in a pipe doctor says: $(cat "$dir/progress")"; failed=1; }
LD_LIBRARY_PATH=$driver script -qec "'$zf' --plugin '$plugin' doctor" /dev/null </dev/null | tr '\r' '\n' >"$dir/terminal"
[ "$(grep -c 'measuring .* \.\.\. 0 s' "$dir/terminal")" -ge 5 ] ||
    { echo "FAIL: no word while it measures: $(cat -v "$dir/terminal")"; failed=1; }
grep -q 'measuring .* \.\.\. [1-9][0-9]* s' "$dir/terminal" || { echo "FAIL: no time while it measures"; failed=1; }
python3 - "$dir/machine.json" <<'PY' || { echo "FAIL: doctor --json"; failed=1; }
import json, sys
found = json.load(open(sys.argv[1]))
rows = found["replay"]["windows"]
assert [row["update_interval"] for row in rows] == [1, 2, 4, 8], rows
for of, key, least, most in [(row, "elems_per_s", 1e6, 1e12) for row in rows] + [(found["own"], "ns_per_elem", 0.01, 1000)]:
    assert least < of["least_" + key] <= of[key] <= of["most_" + key] < most, of
    assert of["least_" + key] < of["most_" + key], of  # three times, not one figure thrice
assert found["replay"]["workers"] >= 1 and found["replay"]["kernels"] in ("generic", "avx2", "avx512"), found["replay"]
assert found["plugin"]["version"] and found["memory"]["total_nbytes"] > 1 << 20
PY

# The link of each device. zf plan takes the first one's, unless --link says another.
[ ! -e "$driver/libcuda.so.1" ] || grep -qE '^ +link, page-locked: up [0-9.]+ GB/s, down [0-9.]+ GB/s, both at once [0-9.]+ GB/s.?$' "$dir/terminal" ||
    { echo "FAIL: link: $(cat -v "$dir/terminal")"; failed=1; }
grep -qE '^ +S = 2: [0-9.]+ \([0-9.]+ to [0-9.]+\) G elements' "$dir/terminal" || { echo "FAIL: spread: $(cat -v "$dir/terminal")"; failed=1; }
# ---- nobody reads on: no word of it, from commands in Python and in C ----
printf '4096x4096\n' >"$dir/model.txt"
for words in "plan $dir/model.txt" 'doctor --quick' config; do
    "$zf" --plugin "$plugin" $words 2>"$dir/said" | true
    [ ! -s "$dir/said" ] || { echo "FAIL: zf $words into a closed pipe says: $(cat "$dir/said")"; failed=1; }
done

# ---- zf audit: parameters that were bound anew, and what only one run has ----
python3 - "$dir" <<'PY'
import json, sys
def write(name, *sections, settings="exact", own=False):
    """sections: steps, {parameter: digest less the step}"""
    with open(f"{sys.argv[1]}/{name}", "w") as file:
        for steps, values in sections:
            params = [{"name": of, "shape": [4], "dtype": 0, "grad_dtype": 0, "rule": 0, "owned": [], "sharded": False, "own": own} for of in values]
            print(json.dumps({"zf_audit": 1, "part": 0, "process": 0, "n_processes": 1, "parts": False, "settings": {"mode": settings}, "params": params}), file=file)
            for step in steps:
                digests = "".join("%016x" % (value + step) for value in values.values())
                print(json.dumps({"step": step, "ms": step, **dict.fromkeys(("visible", "w", "m", "v"), digests)}), file=file)
            settings = "exact"
first, last = range(1, 11), range(11, 16)
write("sound", (first, {"lora": 7, "base": 5}), (last, {"base": 5}))
write("bad", (first, {"lora": 8, "base": 5}), (last, {"base": 5}))
write("early", (range(1, 5), {"lora": 7, "base": 5}), (range(5, 16), {"base": 5}))
write("other", (first, {"lora": 7, "base": 5}), (last, {"base": 5}), settings="mean")
write("empty", (first, {}))
PY
audits() { # STATUS TEXT A B
    expect "$1" "$2" timeout 30 "$zf" audit "$dir/$3" "$dir/$4"
}
audits 0 '^15 steps are the same' sound sound
audits 1 '^they part at step 1: m of "lora"' sound bad
audits 1 '^they part at step 5: "lora" is trained in A alone' sound early
audits 1 '^setting mode: "exact" in A, "mean", "exact" in B' sound other
audits 2 '^no parameter can be compared' empty empty
audits 1 '^no parameter can be compared' sound empty

# ---- a trace of a training program ----
printf '[zenflow]\nmode = windows\nfull_warm_up_rounds = 4\n[trace]\nfile = %s/t.json steps 20..29\n' "$dir" >"$dir/trace.ini"
ZFPLUGIN_PATH=$plugin timeout 100 "$trainer" "$dir/trace.ini" >"$dir/trained" || { echo "FAIL: $(cat "$dir/trained")"; failed=1; }
python3 - "$dir/t.json" <<'PY' || { echo "FAIL: the trace breaks the format's rules"; failed=1; }
import json, sys
events = json.load(open(sys.argv[1]))["traceEvents"]
lanes = {e["tid"]: e["args"]["name"] for e in events if e["name"] == "thread_name"}
assert {"host", "device", "down", "up", "control", "worker"} <= set(lanes.values()), lanes
for lane in lanes:  # what lies in a lane lies inside one another, or apart: else a viewer shows nonsense
    open_ends = []
    for e in sorted((e for e in events if e["ph"] == "X" and e["tid"] == lane), key=lambda e: (e["ts"], -e["dur"])):
        end = e["ts"] + e["dur"]
        while open_ends and open_ends[-1] <= e["ts"]:
            open_ends.pop()
        assert not open_ends or end <= open_ends[-1] + 1e-3, (lanes[lane], e)
        open_ends.append(end)
PY

[ "$failed" -eq 0 ]
