# SPDX-License-Identifier: Apache-2.0
"""The ctypes structs are the golden layout's, member by member, as the compiler laid them out."""
import ctypes
import unittest

import support  # noqa: F401, puts the package on the path
from zfplugin import _abi, errors


class Layout(unittest.TestCase):
    def test_every_struct_has_the_golden_sizes_and_offsets(self):
        self.assertGreaterEqual(len(_abi.LAYOUT), 25)
        for name, (size, members) in _abi.LAYOUT.items():
            struct = getattr(_abi, name)
            self.assertEqual(ctypes.sizeof(struct), size, name)
            self.assertEqual([m for m, _, _ in members], [m for m, *_ in struct._fields_], name)
            for member, offset, nbytes in members:
                field = getattr(struct, member)
                self.assertEqual((field.offset, field.size), (offset, nbytes), f"{name}.{member}")

    def test_every_error_status_has_its_own_class(self):
        statuses = {value for name, value in vars(_abi).items() if name.startswith("ERR_")}
        self.assertEqual(statuses, set(errors.CLASSES))
        self.assertTrue(all(issubclass(cls, errors.ZfError) for cls in errors.CLASSES.values()))
