#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# patches.sh - every planted fault still fits the sources as they are.
cd "$(dirname "$0")/../.." || exit 2
failed=0
for table in conformance/faults/exact.txt conformance/faults/ranks.txt tests/cuda/faults.txt; do
    python3 conformance/faults/faults.py $table check || failed=1
done
patch --dry-run -p1 -s -F0 <tests/cuda/waits.patch >/dev/null || {
    echo "FAIL: tests/cuda/waits.patch does not apply"
    failed=1
}
exit $failed
