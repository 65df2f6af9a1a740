#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# judge.sh ZF_CONFORM PLUGIN EXAMPLE WRONG - zf-conform judge: its first lines, its profiles, its last word. EXAMPLE is abi/examples/plugin.c, a
# vendor's plugin with AdamW rounded otherwise and a SONAME of its own; WRONG is the true plugin with a habit of wrong.def.
set -u
conform=$1 plugin=$2 example=$3 wrong=$4
. "$(dirname "$0")/expect.sh"

# says TEXT WHERE SAID
says() { echo "$3" | grep -q -e "$1" || fail "$2: no \"$1\" in: $3"; }

readelf -d "$example" | grep -q 'soname: \[libexample.so.7\]' || fail "the example has another SONAME than a vendor's own"
said=$("$conform" judge --plugin "$example") || fail "the example: exit status $?: $said"
says '^profile   near' "the example" "$said"
says '^core      pass: .* 0 broken' "the example" "$said"
says '^near      pass: .*conforms to a tolerance' "the example" "$said"
says '^memory    pass' "the example" "$said"
says '^CONFORMS$' "the example" "$said"
says "sha256 $(sha256sum "$example" | cut -d' ' -f1)" "the example" "$said"

said=$("$conform" judge --plugin "$plugin" --profile near) || fail "the plugin: exit status $?: $said"
says '^plugin    libzfplugin .*; git [0-9a-f]' "the plugin" "$said"
says '^runs      instruction set [a-z0-9]*, [0-9]* threads' "the plugin" "$said"
says '^speed     pass' "the plugin" "$said"
says '^memory    pass' "the plugin" "$said"
says '^not judged: several ranks' "the plugin" "$said"
# README shows what it printed once: the words are today's, numbers aside.
words() { grep -E '^(near|speed|memory) ' | sed 's/[0-9][0-9.]*/N/g'; }
[ "$(echo "$said" | words)" = "$(words <"$(dirname "$0")/../../conformance/results/run.txt")" ] ||
    fail "judge prints other words than conformance/results/run.txt has: write its output there, and docs.py says what README shows"
says '^CONFORMS$' "the plugin" "$said"

said=$(ZF_WRONG_OF=$plugin ZF_WRONG=clip_lost "$conform" judge --plugin "$wrong" --profile near)
[ $? -eq 1 ] || fail "a plugin that does not clip: $said"
says '^near      FAIL' "a plugin that does not clip" "$said"
says '^FAILS$' "a plugin that does not clip" "$said"

"$conform" judge --plugin /no/such/file.so >/dev/null 2>&1
[ $? -eq 2 ] || fail "a file that is not there: exit status is not 2"
exit "$failed"
