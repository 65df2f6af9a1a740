# test_install.sh CMAKE BUILD_DIR CONSUMER_DIR WORK_DIR CC - installs the build into WORK_DIR, moves the tree, and builds
# and runs CONSUMER_DIR against it, once with find_package and once with pkg-config.
set -eu
cmake=$1 build=$2 consumer=$3 work=$4 cc=$5

rm -rf "$work"
mkdir -p "$work"
"$cmake" --install "$build" --prefix "$work/first" >"$work/install.log"
mv "$work/first" "$work/prefix" # an installed tree may be moved
prefix=$work/prefix

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

module=$(pkg-config --variable=module zfplugin)
if [ -f "$work/consumer/module_path" ]; then
    echo "-- the installed module"
    "$work/consumer/consumer" "$(cat "$work/consumer/module_path")"
    "$work/by_pkg_config" "$module"
fi
