#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# test_cli_tune.sh ZF PLUGIN TRAINER - `zf tune`: what it chooses from figures that are given to it, what it writes, and
# that no trainer - failing, silent, endless - keeps it. TRAINER: a program that takes a configuration file.
set -u
zf=$1
export ZFPLUGIN_PATH="$2"
trainer=$3
. "$(dirname "$0")/cli.sh"
cd "$dir" || exit 1
export TMPDIR="$dir"

# tune STATUS TEXT ARGUMENTS...: expect of zf tune with these arguments
tune() {
    want_status=$1
    want_text=$2
    shift 2
    expect "$want_status" "$want_text" timeout 60 "$zf" tune "$@"
}
# holds FILE TEXT: a line of the file is this text
holds() {
    grep -qx -- "$2" "$1" || { echo "FAIL: $1 has no line \"$2\": $(cat "$1")"; failed=1; }
}
# lacks WHAT COMMAND...: the command must fail
lacks() {
    what=$1
    shift
    if "$@" >/dev/null 2>&1; then
        echo "FAIL: $what"
        failed=1
    fi
}

# lives PID: it is there seconds after it was killed, and not only waits for being reaped by whoever does that here
lives() {
    for _ in $(seq 100); do
        kill -0 "$1" 2>/dev/null && ! grep -q ') [ZX] ' "/proc/$1/stat" 2>/dev/null || return 1
        sleep 0.1
    done
}

# ---- a trainer: all settings run, and the plugin takes what is written ----
printf '\357\273\277[zenflow]\nfull_warm_up_rounds = 5\n  update_interval : auto\npublish_lag=1\n[trace]\nfile = own.json steps 3\n' >own.ini
tune 0 '^S = [12], lag [01]: .*; written to zf-tuned.ini' --config own.ini --settings 1:0,2:1 --command "$trainer {config}"
holds zf-tuned.ini 'file = own.json steps 3'
holds zf-tuned.ini 'full_warm_up_rounds = 5'
grep -q '^# S = [12], lag [01]  *300  *[0-9.]* ([0-9.]* to [0-9.]*)  *[0-9.]* ([0-9. to]*)  *-  chosen$' zf-tuned.ini || { echo "FAIL: $(cat zf-tuned.ini)"; failed=1; }
expect 0 '^update_interval = [12]' "$zf" config zf-tuned.ini
[ -z "$(find . -name 'zf-tune-*')" ] || { echo "FAIL: files of the runs are left: $(find .)"; failed=1; }
tune 1 'zf-tuned.ini: is there already: --force' --config own.ini --command "$trainer {config}"

# ---- the choice: a trainer whose figures are known: S, lag, seconds of 100 steps, stall, loss ----
cat >figures.sh <<'SH'
key() { sed -n "s/^$1 = //p" "$2" | tail -n 1; }
s=$(key update_interval "$1") lag=$(key publish_lag "$1") file=$(key file "$1")
[ "$(key mode "$1")" != exact ] || s=1 lag=0
[ "${file#* steps }" = 59..358 ] || exit 9
file=${file% steps *}
[ -z "${RANKS:-}" ] || file=${file%.json}.rank0.json # as several ranks write it
while read -r of_s of_lag seconds stall loss; do
    [ "$of_s:$of_lag" = "$s:$lag" ] || continue
    n=100
    echo "step 149: loss 9.5, eval loss = $loss"
    [ "$stall" = few ] && n=3 stall=0
    [ "$stall" = other ] && s=7 stall=0
    cat >"$file" <<JSON
{"otherData": {"counted": {"submitted": 150, "update_interval": $s, "publish_lag": $lag, "steps": $n, "seconds": $seconds,
"stall_seconds": $stall}}, "traceEvents": []}
JSON
done <"$2"
SH
printf '1 0 2.0 0.50 0.40\n2 0 1.2 0.02 0.43\n4 0 1.0 0.01 0.44\n1 1 1.1 0.00 0.42\n2 1 1.1 0.00 0.44\n' >figures
chooses() { # WANT ARGUMENTS...
    want=$1
    shift
    tune 0 "$want" --force --loss 'eval loss' --command "sh figures.sh {config} figures" "$@"
}
chooses '^S = 1, lag 1: the least loss'
holds zf-tuned.ini 'update_interval = 1'
holds zf-tuned.ini 'publish_lag = 1'
holds zf-tuned.ini '# exact           100  20.000 (20.000 to 20.000)  25.0 (25.0 to 25.0)  0.4 (0.4 to 0.4)  stalls too long'
holds zf-tuned.ini '# S = 2, lag 0    100  12.000 (12.000 to 12.000)  1.7 (1.7 to 1.7)  0.43 (0.43 to 0.43)  a larger loss, or slower'
chooses '^exact: the least loss' --max-stall 0.3
holds zf-tuned.ini 'mode = exact'
chooses '^S = 2, lag 0: the least loss' --settings 4:0,2:0
chooses '^S = 4, lag 0 takes 17 % less time per step' --settings 4:0,2:0
chooses '^S = 4, lag 0: the least loss' --settings 2:1,4:0 # as late, and quicker
chooses '^S = 4, lag 0: no setting stalls as little as asked: this one stalls least' --settings 1:0,2:0,4:0 --max-stall 0.001
# no loss is asked for: by age, then by time
tune 0 '^S = 1, lag 1: the youngest values' --force --settings 2:0,4:0,2:1,1:1 --command 'sh figures.sh {config} figures'
tune 1 'its output has no number behind what --loss says' --force --loss perplexity --settings 2:0 --command 'sh figures.sh {config} figures'
tune 1 'its output has no number behind what --loss says' --force --loss at --settings 2:0 --command 'echo loss at nan; sh figures.sh {config} figures'
expect 2 'no regular expression' "$zf" tune --loss '(' --command 'true {config}'
tune 0 'written to of.ini' --force --output of.ini --settings 4:0,2:0 --command 'sh figures.sh $ZF_TUNE_CONFIG figures'
holds of.ini 'update_interval = 2'
"$zf" tune --force --settings 1:0,2:0 --command 'sh figures.sh {config} figures' 2>progress >/dev/null
[ "$(grep -c 'round [123] of 3, setting [12] of 2' progress)" -eq 12 ] || { echo "FAIL: no word of progress: $(cat progress)"; failed=1; }

# ---- what differs by less than the runs of one setting is no difference: each run takes the next line of its setting ----
cat >varied.sh <<'SH'
ran=ran.$(basename "$1")
echo >>"$ran"
awk -v n="$(wc -l <"$ran")" '{ at = $1 ":" $2; if (++seen[at] == n) print }' varied >figures.now
exec sh figures.sh "$1" figures.now
SH
varies() { # WANT LINES ARGUMENTS...
    want=$1
    printf "$2" >varied
    shift 2
    rm -f ran.*
    tune 0 "$want" --force --loss 'eval loss' --command 'sh varied.sh {config}' "$@"
}
printf '[zenflow]\nupdate_interval = 4\npublish_lag : 0\n' >four.ini
near='2 0 1.0 0 0.30\n2 0 1.0 0 0.50\n2 0 1.0 0 0.31\n4 0 1.0 0 0.40\n4 0 1.0 0 0.45\n4 0 1.0 0 0.41\n'
varies '^S = 4, lag 0: it stays: to the best of the others there is no difference' "$near" --settings 2:0,4:0 --config four.ini
holds zf-tuned.ini '# S = 2, lag 0    100  10.000 (10.000 to 10.000)  0.0 (0.0 to 0.0)  0.31 (0.3 to 0.5)  no difference'
varies '^S = 4, lag 0: the first of the settings: to the best of them there is no difference' "$near" --settings 4:0,2:0
varies '^S = 2, lag 0: the least loss' "$near" --settings 4:0,2:0 --rounds 1
far='2 0 1.0 0 0.30\n2 0 1.0 0 0.39\n2 0 1.0 0 0.31\n4 0 1.0 0 0.40\n4 0 1.0 0 0.45\n4 0 1.0 0 0.41\n'
varies '^S = 2, lag 0: the least loss' "$far" --settings 2:0,4:0 --config four.ini
short='2 0 1.0 0.02 0.3\n2 0 1.0 0.04 0.3\n2 0 1.0 0.02 0.3\n4 0 1.0 0 0.4\n4 0 1.0 0 0.4\n4 0 1.0 0 0.4\n'
varies '^S = 4, lag 0: it stays' "$short" --settings 2:0,4:0 --config four.ini # in one run S = 2 stalls too long
# the present setting is what holds: without its mode named, in another form, and by default
printf '[zenflow]\nupdate_interval = 4\ntopk_ratio = 0.10\n[device]\nstate_mib=3\n' >form.ini
varies '^S = 4, lag 0, zenflow.topk_ratio = 0.1: it stays' "$near" --settings 2:0,4:0+zenflow.topk_ratio=0.1 --config form.ini
exact='1 0 1.0 0 0.40\n1 0 1.0 0 0.45\n1 0 1.0 0 0.41\n2 0 1.0 0 0.30\n2 0 1.0 0 0.50\n2 0 1.0 0 0.31\n'
varies '^exact: it stays' "$exact" --settings 2:0,exact
printf '[device]\nstate_mib = 0\n' >silent.ini
varies '^exact: it stays' "$exact" --settings 2:0,exact --config silent.ini
printf '1 0 2.0 0.50 0.1\n2 0 1.2 0.02 0.3\n' >figures
printf '[zenflow]\nupdate_interval = 4\n[device]\nstate_mib = 1\n' >exact.ini
chooses '^exact, device.state_mib = 3: the least loss' --max-stall 0.6 --config exact.ini --settings exact+device.state_mib=3,exact
grep -v '^#' zf-tuned.ini | tr -d '\n' | grep -qx '\[zenflow\]\[device\]\[zenflow\]mode = exact\[device\]state_mib = 3' || { echo "FAIL: $(cat zf-tuned.ini)"; failed=1; }

# ---- what is no measurement says why ----
rm zf-tuned.ini
tune 0 '^S = 2, lag 0: ' --settings 1:0,2:0 --command 'RANKS=1 sh figures.sh {config} figures'
rm zf-tuned.ini
tune 1 'exit status 3; its output: .*S-1-lag-0.log' --folder kept --settings 1:0 --command 'echo went wrong; exit 3; {config}'
holds kept/1-S-1-lag-0.log 'went wrong'
tune 1 'it was ended by signal 9' --settings 1:0 --command 'kill -9 $$; {config}'
tune 1 'it left no complete trace: the trainer has to train with the file' --folder kept --settings 1:0 --command "$trainer # {config}"
printf '1 0 1 few 0\n2 0 1 other 0\n4 0 1 0 0\n' >figures
tune 1 '3 of its 150 steps are behind warm-up' --settings 1:0 --command 'sh figures.sh {config} figures'
tune 1 'it trained with S = 7, lag 0' --settings 2:0 --command 'sh figures.sh {config} figures'
tune 0 '^S = 4, lag 0' --settings 1:0,4:0,2:0 --command 'sh figures.sh {config} figures' # one that runs is enough
rm -f zf-tuned.ini
printf '[zenflow]\ntopk_rato = 1\n' >typo.ini
tune 1 'typo.ini:2: .*nearest: topk_ratio' --config typo.ini --command "$trainer {config}"
lacks "something was written without a choice" test -e zf-tuned.ini

# ---- nothing is written through a link, and nothing but a regular file is replaced ----
printf kept >precious
mkdir planted
for name in 1-S-1-lag-0.ini 1-S-1-lag-0.log; do
    ln -s ../precious "planted/$name"
    tune 1 "$name: is not a regular file" --folder planted --settings 1:0 --command "$trainer {config}"
    rm "planted/$name"
done
ln -s precious link.ini
tune 1 'link.ini: is there already' --output link.ini --settings 4:0 --command 'sh figures.sh {config} figures'
tune 1 'link.ini: is not a regular file' --force --output link.ini --settings 4:0 --command 'sh figures.sh {config} figures'
holds precious kept

# ---- an endless trainer, and what it has started, end ----
endless='sleep 300 & echo $! >child; echo $$ >parent; wait; {config}'
tune 1 'it was ended after 0.5 s (--timeout)' --timeout 0.5 --settings 2:0 --command "$endless"
lacks "the trainer lives after --timeout" lives "$(cat parent)"
lacks "what the trainer started lives after --timeout" lives "$(cat child)"
tune 1 'exit status 1' --settings 2:0 --command 'sleep 300 & echo $! >child; exit 1; {config}'
lacks "what the trainer started lives after its end" lives "$(cat child)"
rm child parent
"$zf" tune --command "$endless" >out 2>&1 &
tuning=$!
while [ ! -s parent ]; do sleep 0.05; done
kill -INT "$tuning"
wait "$tuning"
{ [ $? -eq 1 ] && grep -q 'zf: interrupted; ' out; } || { echo "FAIL: SIGINT: $(cat out)"; failed=1; }
lacks "the trainer lives after SIGINT" lives "$(cat parent)"
lacks "what the trainer started lives after SIGINT" lives "$(cat child)"
lacks "something was written without a choice" test -e zf-tuned.ini

# ---- called wrongly ----
tune 2 'write {config} where your trainer takes the path' --command "$trainer"
tune 2 usage
tune 2 'need a list' --settings 1:2 --command '{config}'
tune 2 'need a list' --settings 1:0, --command '{config}'
tune 2 'need a list' --settings exact+state_mib=3 --command '{config}'
tune 1 'nearest: state_mib' --settings exact+device.state_mb=3 --command '{config}'
tune 2 'need a number' --max-stall 0 --command '{config}'
tune 2 'need a whole number' --rounds 10 --command '{config}'
tune 2 usage --command '{config}' --outputs x
tune 1 'give another --folder' --folder 'a b' --command '{config}'
tune 0 '--max-stall SHARE' --help

[ "$failed" -eq 0 ]
