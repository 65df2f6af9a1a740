#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# patches.sh - every planted fault still applies to the sources as they are, every line of context included.
cd "$(dirname "$0")/../.." || exit 2
failed=0
for patch in conformance/faults/*.patch conformance/faults/ranks/*.patch tests/cuda/waits.patch; do
    [ -e "$patch" ] || continue
    patch --dry-run -p1 -s -F0 <"$patch" >/dev/null || {
        echo "FAIL: $patch does not apply"
        failed=1
    }
done
python3 tests/cuda/faults.py check || failed=1
exit $failed
