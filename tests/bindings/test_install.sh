# SPDX-License-Identifier: Apache-2.0
# test_install.sh CMAKE BUILD_DIR CONSUMER_DIR WORK_DIR CC - installs the build into WORK_DIR, moves the tree, and builds
# and runs CONSUMER_DIR against it, once with find_package and once with pkg-config. Then the README's options of CMake, the
# installed documents, and the installed example built as the README says and run from the installed tree alone.
set -eu
cmake=$1 build=$2 consumer=$3 work=$4 cc=$5

rm -rf "$work"
mkdir -p "$work"
"$cmake" --install "$build" --prefix "$work/first" >"$work/install.log"
mv "$work/first" "$work/prefix" # an installed tree may be moved
prefix=$work/prefix

echo "-- the README's way to configure"
source=$(dirname "$0")/../..
options=$(sed -n 's|^    cmake -S \. -B build/install ||p' "$source/README.md")
[ -n "$options" ]
# shellcheck disable=SC2086 # options are words
"$cmake" -S "$source" -B "$work/readme" $options >"$work/readme.log" 2>&1
if grep 'not used by the project' "$work/readme.log"; then exit 1; fi

echo "-- documents"
doc=$(dirname "$(find "$prefix" -name CONTRIBUTING.md)")
for file in README.md LICENSE CONTRIBUTING.md abi/README.md abi/CHANGELOG.md plugin/README.md plugin/SCHEDULE.md kernels/README.md \
    bindings/examples/first.c bindings/examples/mlp.c bindings/examples/mlp.h \
    bindings/examples/zf.ini; do
    [ -s "$doc/$file" ] || { echo "not installed: $file" && exit 1; }
done

echo "-- the command's page"
grep -q '^.B zf ckpt verify DIR$' "$prefix/share/man/man1/zf.1"

echo "-- find_package"
"$cmake" -S "$consumer" -B "$work/consumer" -DCMAKE_PREFIX_PATH="$prefix" -DCMAKE_C_COMPILER="$cc" \
    -DCMAKE_BUILD_TYPE=Release >"$work/configure.log"
"$cmake" --build "$work/consumer" >"$work/build.log"
"$work/consumer/consumer"

echo "-- pkg-config"
pc=$(find "$prefix" -name zfplugin.pc)
PKG_CONFIG_PATH=$(dirname "$pc")
export PKG_CONFIG_PATH
# shellcheck disable=SC2046 # flags are words
"$cc" -std=c99 -Wall -Werror "$consumer/main.c" -o "$work/by_pkg_config" $(pkg-config --cflags --libs zfplugin)
"$work/by_pkg_config"

echo "-- an installed example"
example=$prefix/share/doc/zfplugin/bindings/examples
[ -f "$example/../c/README.md" ] && [ -f "$example/../../abi/README.md" ]
# shellcheck disable=SC2046
"$cc" -std=c99 -Wall -Werror "$example/train_zf.c" "$example/mlp.c" -o "$work/train_zf" \
    $(pkg-config --cflags --libs zfplugin) -lm

module=$(pkg-config --variable=module zfplugin)
if [ -f "$work/consumer/module_path" ]; then
    echo "-- the installed module"
    "$work/consumer/consumer" "$(cat "$work/consumer/module_path")"
    "$work/by_pkg_config" "$module"
    echo "-- the installed example"
    example=$doc/bindings/examples/first.c
    # shellcheck disable=SC2046
    "$cc" -std=c99 -Wall -Werror "$example" -o "$work/first" $(pkg-config --cflags --libs zfplugin) \
        -Wl,-rpath,"$(pkg-config --variable=libdir zfplugin)"
    env -u ZFPLUGIN_PATH "$work/first" | tail -n 1 | grep 'at the end loss 0\.00'
    ZFPLUGIN_PATH=$module "$work/train_zf" "$example/zf.ini" | tail -n 1
fi
