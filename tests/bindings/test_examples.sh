# SPDX-License-Identifier: Apache-2.0
# test_examples.sh SOURCE_DIR BIN_DIR ZF PLUGIN - bindings/examples: how many lines a trainer changes for zf_trainer (20 at most, 25
# with overlap), how long the whole host and plugin are, and that it still trains. A line that was replaced counts once, one that was added or removed counts once.
set -eu
source=$1 bin=$2 zf=$3 plugin=$4

changed_lines() { # FILE FILE
    diff "$1" "$2" | awk '
        /^[0-9]/ { n += old > new ? old : new; old = new = 0 }
        /^</ { old++ }
        /^>/ { new++ }
        END { print n + (old > new ? old : new) }'
}

for name in train_zf:20 train_zf_overlap:25; do
    n=$(changed_lines "$source/train_before.c" "$source/${name%:*}.c")
    echo "${name%:*}: $n changed lines"
    [ "$n" -gt 5 ] && [ "$n" -le "${name#*:}" ] || { echo "need 6..${name#*:}" >&2; exit 1; }
done

# A whole host, and a whole plugin that conforms, comments counted.
for file in first.c:119 ../../abi/examples/plugin.c:165; do
    n=$(wc -l <"$source/${file%:*}")
    echo "${file%:*}: $n lines"
    [ "$n" -le "${file#*:}" ] || { echo "need ${file#*:} at most" >&2; exit 1; }
done

# By default the plugin is AdamW to the bit: the same losses, digit for digit.
printf '[zenflow]\nmode = exact\n' >exact.ini
"$bin/train_before" >before.txt
for name in train_zf train_zf_overlap; do
    "$bin/$name" exact.ini >after.txt
    cmp before.txt after.txt
    "$bin/$name" "$source/zf.ini" >default.txt
    paste before.txt default.txt | awk 'END {
        print "final loss: AdamW " $3 ", plugin " $6
        exit !($3 > 0.05 && $6 < $3 + 0.1) }'
done

# The formula of bindings/c/README.md holds within 3 %.
echo '24 * 512 x 512' >shapes
for s in 1 2 4 8; do
    "$zf" --plugin "$plugin" plan shapes --dtype f32 --device cpu --set zenflow.update_interval=$s --json >plan.json
    sed -n 's/^  "n_elems": \([0-9]*\),$/\1/p; s/^  "host_nbytes": \([0-9]*\),$/\1/p' plan.json | awk -v s=$s '
        { x[NR] = $1 }
        END { formula = 12 + 4 * ((s + 1) / 2 + 1) + 20 / s; planned = x[2] / x[1]
              print "S = " s ": formula " formula ", planned " planned
              exit !(NR == 2 && planned >= formula && planned <= 1.03 * formula) }'
done
