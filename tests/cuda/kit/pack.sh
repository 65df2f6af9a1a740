#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# pack.sh BUILD FILE.tar.gz - what session.sh needs on a machine with a GPU, as one archive. `cmake --build BUILD --target gpu-kit`
# builds the parts first.
#
#   zf-kit/session.sh, stacks/libzf_stacks.so, ptx/
#   zf-kit/plugin/    libzfplugin.so.0 and the libraries that it needs
#   zf-kit/bin/       zf, zf-conform, zf-bench-gpu, test_driver_real, probe, opcodes, test_cuda_host, zf-host
#   zf-kit/lib/       what these need: of the C library nothing, so the machine's is to be as new as this one's
#   zf-kit/python/    zfplugin, pure Python;   smoke.py, arms.py;   conformance/: steps of a model, also of others
#   zf-kit/results/   empty
set -eu
build=$1
archive=$2
here=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd)
root=$here/../../..
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
kit=$work/zf-kit
mkdir "$kit" "$kit/plugin" "$kit/bin" "$kit/lib" "$kit/ptx" "$kit/stacks" "$kit/python" "$kit/results"
mkdir -p "$kit/conformance/bench"

# needs FILE: the libraries that it is linked with, without the C library's and the driver's
needs() {
    ldd "$1" | sed -n 's/.* => \(\/[^ ]*\) .*/\1/p' | grep -vE '/(libcuda|libc|libm|libdl|librt|libpthread|libresolv)\.so\.'
}

cp -L "$build/plugin/libzfplugin.so.0" "$kit/plugin"
for library in $(needs "$kit/plugin/libzfplugin.so.0"); do cp -L "$library" "$kit/plugin"; done
cp "$build/bindings/cli/zf" "$build"/bindings/cli/*.py "$build/conformance/zf-conform" "$build/conformance/host/zf-host" "$build/conformance/bench/zf-bench-gpu" \
    "$build/tests/cuda/test_driver_real" "$build/tests/cuda/probe" "$build/tests/cuda/opcodes" "$build/tests/cuda/test_cuda_host" "$kit/bin"
for program in $(find "$kit/bin" -type f ! -name '*.py'); do
    for library in $(needs "$program"); do cp -L "$library" "$kit/lib"; done
done
cp "$build/tests/cuda/libzf_stacks.so" "$kit/stacks"
cp "$build/tests/cuda/opcodes.ptx" "$build/tests/cuda/driver.ptx" "$kit/ptx"
cp "$here/session.sh" "$here/smoke.py" "$here/arms.py" "$here/arms_torch.py" "$kit"
cp "$root/conformance/bench/gpu_step.py" "$kit/conformance/bench"
(cd "$root/bindings/python" && tar -chf - --exclude=__pycache__ --exclude=zfplugin/lib zfplugin) | tar -xf - -C "$kit/python"
(cd "$root/conformance" && tar -cf - --exclude=__pycache__ accuracy) | tar -xf - -C "$kit/python/zfplugin"
# Names of functions stay, and offsets: the build's own files tell the line of a frame.
strip -g "$kit"/bin/* "$kit"/lib/* "$kit"/plugin/* 2>/dev/null || true
tar -C "$work" -cf - zf-kit | gzip -"${ZF_KIT_LEVEL:-6}" >"$archive"
nbytes=$(wc -c <"$archive")
echo "$archive: $((nbytes / 1048576)) MiB"
[ "$nbytes" -lt 62914560 ] || { echo "pack.sh: more than 60 MiB" >&2; exit 1; }
