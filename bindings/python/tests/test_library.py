# SPDX-License-Identifier: Apache-2.0
"""Finding and opening the library: each failure has a sentence that names the file or symbol and the way out."""
import os
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path
from unittest import mock

import support
import zfplugin
from zfplugin import library


class Opening(unittest.TestCase):
    def setUp(self):
        self.folder = Path(tempfile.mkdtemp())
        self.addCleanup(shutil.rmtree, self.folder)

    def refused(self, path, *words):
        with self.assertRaises(zfplugin.LoadError) as caught:
            zfplugin.Library(path)
        for word in words:
            self.assertIn(word, str(caught.exception))

    def write(self, name, content):
        path = self.folder / name
        path.write_bytes(content)
        return str(path)

    def test_the_plugin_opens_and_describes_itself(self):
        about = zfplugin.load().describe()
        self.assertEqual((about["name"], about["abi"]), ("libzfplugin", "0.16"))
        self.assertIn("zf.stats/1", about["provided_extensions"])
        self.assertEqual(about["required_extensions"], ())
        self.assertIn(zfplugin._abi.DEVICE_CPU, about["device_types"])

    def test_the_same_path_gives_the_same_object(self):
        self.assertIs(zfplugin.load(), zfplugin.load())

    def test_missing_file(self):
        self.refused(str(self.folder / "no.so"), "no.so", "No such file", "ZFPLUGIN_LIBRARY")

    def test_directory(self):
        self.refused(str(self.folder), "is a directory", "libzfplugin.so.0")

    def test_what_is_no_library(self):
        self.refused(self.write("text.so", b"hello"), "text.so", "no library of this machine", "ldd")

    def test_no_code_may_run_there(self):
        path = self.write("text.so", b"hello")
        with mock.patch("os.statvfs", return_value=mock.Mock(f_flag=os.ST_NOEXEC | os.ST_RDONLY)):
            self.refused(path, "text.so", "file system is mounted noexec")

    def test_cut_short(self):
        whole = Path(zfplugin.load().file).read_bytes()
        for n in (64, 4096, 65536):
            self.refused(self.write("short.so", whole[:n]), "cut short", "copy it again")

    def test_library_without_the_symbol(self):
        maths = next((str(p) for p in Path("/lib").glob("**/libm.so.6")), None)
        if maths is None:
            self.skipTest("no libm.so.6 under /lib")
        self.refused(maths, "no plugin", "zf_plugin_negotiate")

    def test_unknown_soname(self):
        self.refused("libno-such-zfplugin.so.9", "libno-such-zfplugin.so.9", "ZFPLUGIN_LIBRARY")

    def test_library_that_only_depends_on_the_plugin(self):
        compiler = shutil.which("cc")
        if compiler is None:
            self.skipTest("no C compiler")
        plugin = Path(zfplugin.load().file).resolve()
        source = self.write("empty.c", b"int zf_test_nothing(void);\nint zf_test_nothing(void) { return 0; }\n")
        outer = str(self.folder / "outer.so")
        subprocess.run([compiler, "-shared", "-fPIC", "-o", outer, source, "-Wl,--no-as-needed", str(plugin),
                        f"-Wl,-rpath,{plugin.parent}"], check=True)
        self.refused(outer, "outer.so", "depends on", plugin.name[:14])

    def test_order_of_places(self):
        with mock.patch.dict(os.environ, {"ZFPLUGIN_LIBRARY": "/a.so", "ZFPLUGIN_PATH": "/b.so"}):
            self.assertEqual(library.find("/given.so"), "/given.so")
            self.assertEqual(library.find(), "/a.so")
            del os.environ["ZFPLUGIN_LIBRARY"]
            self.assertEqual(library.find(), "/b.so")
            del os.environ["ZFPLUGIN_PATH"]
            with mock.patch.object(library, "_INSIDE", self.folder):
                self.assertEqual(library.find(), "libzfplugin.so.0")
                self.write("libzfplugin.so.0", b"")
                self.assertEqual(library.find(), str(self.folder / "libzfplugin.so.0"))

    def test_a_foreign_abi_is_named(self):
        own = library.SERVED_ABIS[0]
        with mock.patch.object(library, "SERVED_ABIS", (7 << 16 | 3,)), \
                self.assertRaisesRegex(zfplugin.AbiError, rf"7\.3.*{own >> 16}\.{own & 0xffff}"):
            zfplugin.Library()

    def test_import_needs_neither_torch_nor_numpy(self):
        code = ("import sys; sys.modules['torch'] = None; sys.modules['numpy'] = None; "
                f"sys.path.insert(0, {str(support.HERE.parent)!r}); import zfplugin; zfplugin.load()")
        subprocess.run([sys.executable, "-c", code], check=True)


class Configuration(unittest.TestCase):
    def test_keys_with_defaults_and_documents(self):
        keys = {f"{row['section']}.{row['key']}": row for row in zfplugin.load().config_keys()}
        self.assertEqual(keys["zenflow.mode"]["default"], "exact")
        self.assertTrue(all(row["doc"] and row["range"] for row in keys.values()))

    def test_all_problems_at_once(self):
        with self.assertRaises(zfplugin.ConfigError) as caught:
            zfplugin.Instance(["[zenflow]\ntopk=1\nupdate_interval = 0\n", "zenflow.predict=perhaps"])
        for word in ("topk_ratio", "1..64", "predict"):
            self.assertIn(word, str(caught.exception))
        self.assertIsInstance(caught.exception, ValueError)
