# SPDX-License-Identifier: Apache-2.0
"""Finds, opens and negotiates with libzfplugin.so, in pure Python.

Order of the checks, each with a sentence that names the file or symbol and the way out: the file is there and whole; dlopen,
in the dynamic linker's words; the entry exists and lies in the opened file (dlsym also searches what the file depends on); a common
ABI; a table with every slot of it.

Where the library is looked for: the path given; $ZFPLUGIN_LIBRARY; $ZFPLUGIN_PATH (what C hosts use); the file inside
this package; the dynamic linker's own places. A path that is given but wrong is an error, never passed over.
"""
import ctypes
import os
import struct
from pathlib import Path

from . import _abi, errors

SONAME = "libzfplugin.so.0"
_INSIDE = Path(__file__).resolve().parent / "lib"
VARIABLES = ("ZFPLUGIN_LIBRARY", "ZFPLUGIN_PATH")
SERVED_ABIS = (_abi.ABI_0_16,)  # one per major, newest first

_HINT = (f"set {VARIABLES[0]} to the full path of libzfplugin.so, or install this package with the library inside "
         "(pip install . in a checkout)")


class _DlInfo(ctypes.Structure):
    _fields_ = [("fname", ctypes.c_char_p), ("fbase", ctypes.c_void_p), ("sname", ctypes.c_char_p),
                ("saddr", ctypes.c_void_p)]


def abi_text(abi):
    return f"{abi >> 16}.{abi & 0xFFFF}"


def find(path=None):
    """The file to open: a path, or SONAME to leave it to the dynamic linker. Does not look whether it exists."""
    if path is not None:
        return os.fspath(path)
    for variable in VARIABLES:
        if os.environ.get(variable):
            return os.environ[variable]
    inside = _INSIDE / SONAME
    return str(inside) if inside.exists() else SONAME


def _check_whole(path):
    """A file that ends before its segments do would end the process with SIGBUS in dlopen. Any other fault is told there."""
    with open(path, "rb") as file:
        header = file.read(64)
        if len(header) < 64 or header[:6] != b"\x7fELF\x02\x01":  # 64-bit, little-endian: what the plugin is built for
            return
        table, entry_nbytes, n_entries = (*struct.unpack_from("<Q", header, 32), *struct.unpack_from("<HH", header, 54))
        file.seek(table)
        segments = file.read(entry_nbytes * n_entries)
        have = file.seek(0, os.SEEK_END)
    entries = [struct.unpack_from("<IIQQQQ", segments, at) for at in range(0, len(segments) - 55, max(entry_nbytes, 56))]
    need = max([table + entry_nbytes * n_entries, *(offset + nbytes for kind, _, offset, _, _, nbytes in entries if kind == 1)])
    if have < need:
        raise errors.LoadError(f"{path} is cut short: it has {have} bytes and needs {need}; copy it again")


def _open(path):
    if os.path.isdir(path):
        raise errors.LoadError(f"{path} is a directory; name the library itself, e.g. {path}/{SONAME}")
    if "/" in path:
        try:
            _check_whole(path)
        except OSError as problem:
            raise errors.LoadError(f"{path}: {problem.strerror}; {_HINT}", native_code=problem.errno or 0) from None
    try:
        return ctypes.CDLL(path, mode=os.RTLD_NOW | os.RTLD_LOCAL)
    except OSError as problem:
        hint = _HINT if "/" not in path else \
            "its file system is mounted noexec: copy it to another one, or mount that without noexec" \
            if os.statvfs(path).f_flag & os.ST_NOEXEC else \
            f"it is no library of this machine, or something that it needs is missing or too old: `ldd {path}` lists what"
        raise errors.LoadError(f"cannot open {path}: {problem}; {hint}") from None


def _same_file(a, b):
    try:
        return a == b or os.path.samefile(a, b)
    except OSError:
        return False


def _find_entry(library, path):
    """The entry and the file it lies in."""
    name = _abi.PLUGIN_NEGOTIATE_SYMBOL
    try:
        entry = library[name]
    except AttributeError:
        raise errors.LoadError(f"{path} is a library but no plugin: it has no symbol {name}; give the path of "
                               "libzfplugin.so") from None
    info = _DlInfo()
    dladdr = ctypes.CDLL(None).dladdr
    dladdr.argtypes = [ctypes.c_void_p, ctypes.c_void_p]
    if not dladdr(ctypes.cast(entry, ctypes.c_void_p), ctypes.byref(info)) or not info.fname:
        raise errors.LoadError(f"{path}: its symbol {name} lies in no loaded file")
    file = os.fsdecode(info.fname)
    if "/" in path and not _same_file(path, file):
        raise errors.LoadError(f"{path} is no plugin: its symbol {name} comes from {file}, which it depends on; open "
                               "that file instead")
    entry.restype = ctypes.c_int32
    entry.argtypes = [ctypes.c_void_p]
    return entry, file


def _is_served(abi):
    for served in SERVED_ABIS:
        if abi >> 16 == served >> 16:
            return abi == served if abi >> 16 == 0 else abi <= served
    return False


def _negotiate(entry, file):
    served = ", ".join(abi_text(abi) for abi in SERVED_ABIS)
    abis = (ctypes.c_uint32 * len(SERVED_ABIS))(*SERVED_ABIS)
    record = errors.new_record()
    boot = _abi.Bootstrap(struct_size=ctypes.sizeof(_abi.Bootstrap), magic=_abi.BOOTSTRAP_MAGIC,
                          abis=ctypes.addressof(abis), n_abis=len(SERVED_ABIS), error=ctypes.addressof(record))
    status = entry(ctypes.byref(boot))
    if status < 0:
        reason = record.message.decode("utf-8", "replace") or "it gave no reason"
        if status == _abi.ERR_ABI:
            raise errors.AbiError(f"{file} shares no ABI with this package, which serves {served}. The plugin says: "
                                  f"{reason}. Use a plugin and a package of matching versions")
        raise errors.LoadError(f"{file} refused to start with status {status}: {reason}", status=status)
    if not _is_served(boot.chosen_abi):
        raise errors.AbiError(f"{file} chose ABI {abi_text(boot.chosen_abi)}, but this package serves {served}; the "
                              "plugin is faulty")
    if not boot.plugin:
        raise errors.AbiError(f"{file} agreed to ABI {abi_text(boot.chosen_abi)} but gave no table; the plugin is "
                              "faulty")
    return boot.plugin


def _check_table(address, file):
    table = _abi.Plugin.from_address(address)
    for name, _ in _abi.Plugin._fields_[2:]:
        member = getattr(_abi.Plugin, name)
        if member.offset + member.size > table.struct_size:
            raise errors.AbiError(f"{file}: its table has {table.struct_size} bytes and ends before {name}; the plugin "
                                  "is faulty or older than it says")
        if not getattr(table, name):
            raise errors.AbiError(f"{file}: its table has no function {name} (NULL); the plugin is faulty")
    return table


class Library:
    """An opened libzfplugin: the negotiated table, its description and its configuration keys.

    It stays mapped for the rest of the process; opening the same file again costs little and gives the same table.
    """

    def __init__(self, path=None):
        self.path = find(path)
        self._library = _open(self.path)
        entry, self.file = _find_entry(self._library, self.path)
        self.table = _check_table(_negotiate(entry, self.file), self.file)

    def __repr__(self):
        return f"<zfplugin.Library {self.file}>"

    @staticmethod
    def check(status, record, doing):
        """Raises for a negative status; else gives it back."""
        if status < 0:
            raise errors.from_record(status, record, doing)
        return status

    def describe(self):
        """dict: name, version, build, abi; required_extensions, optional_extensions, provided_extensions, device_types (tuples)."""
        out, record = _abi.Description(), errors.new_record()
        out.struct_size = ctypes.sizeof(out)
        self.check(self.table.describe(ctypes.byref(out), ctypes.byref(record)), record, "describe")
        text = {name: (getattr(out, name) or b"").decode() for name, kind in _abi.Description._fields_ if kind is ctypes.c_char_p}
        lists = {name: tuple(value.split()) for name, value in text.items() if name.endswith("_extensions")}
        types = tuple(t for t in range(64) if out.device_types >> t & 1)
        return {**text, **lists, "abi": abi_text(out.abi), "device_types": types}

    def extension(self, name, struct):
        """The plugin's table of an extension as the given ctypes struct, or None."""
        address = self.table.get_extension(name.encode())
        return struct.from_address(address) if address else None

    def config_keys(self):
        """Every configuration key: list of dicts section, key, type, range, default, doc."""
        ext = self.extension(_abi.EXT_CONFIG, _abi.ConfigExt)
        keys = []
        for i in range(ext.n_keys() if ext else 0):
            out, record = _abi.ConfigKey(), errors.new_record()
            out.struct_size = ctypes.sizeof(out)
            self.check(ext.key(i, ctypes.byref(out), ctypes.byref(record)), record, "config key")
            row = {name: (getattr(out, name) or b"").decode() for name, _ in _abi.ConfigKey._fields_[2:]}
            row["default"] = row.pop("default_value")
            keys.append(row)
        return keys


def string_array(strings):
    """const char *const * of text; None for none."""
    return (ctypes.c_char_p * len(strings))(*[s.encode() for s in strings]) if strings else None


_opened = {}


def load(path=None):
    """The Library of a path (default: see the head of this file). One object per file."""
    name = find(path)
    if name not in _opened:
        _opened[name] = Library(name)
    return _opened[name]
