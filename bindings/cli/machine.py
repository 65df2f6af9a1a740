# SPDX-License-Identifier: Apache-2.0
"""CPU, memory and limits of this process, from the kernel's own files. None where the system does not say."""
import glob
import os
import re
import resource

ONE_MEMORY = "its memory is the host's: to offload saves nothing there; [device] state_mib = all does without"  # of a GPU


def read_text(path):
    """The text of a small file; nothing where it cannot be read."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return ""


def number_in(path, key=""):
    """The number at the begin of a line, behind a key and its colon."""
    found = re.search(rf"^{key}:?\s*(-?\d+)", read_text(path), re.MULTILINE)
    return int(found[1]) if found else None


def cpu(limits):
    """CPUs and cores inside of the affinity mask, and the cgroups' quota in CPUs. limits: of `zf ask limits`."""
    mask, found = os.sched_getaffinity(0), read_text("/proc/cpuinfo")
    model = re.search(r"^(?:model name|CPU part)\s*:\s*(.*)", found, re.MULTILINE)
    siblings = "/sys/devices/system/cpu/cpu{}/topology/thread_siblings_list"
    return {"model": model[1][:120] if model else "unknown", "cpus": len(mask),
            "cores": len({read_text(siblings.format(n)) or n for n in mask}), "quota_cpus": limits["quota_cpus"],
            "numa_nodes": len(glob.glob("/sys/devices/system/node/node[0-9]*")) or 1}


def memory(limits):
    def of(key):
        kib = number_in("/proc/meminfo", key)
        return kib and kib * 1024
    rest = [nbytes for nbytes in (of("MemAvailable"), limits["memory_left_nbytes"]) if nbytes is not None]
    lock = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
    pages = re.search(r"\[(\w+)\]", read_text("/sys/kernel/mm/transparent_hugepage/enabled"))
    return {"total_nbytes": of("MemTotal"), "available_nbytes": min(rest, default=None),
            "cgroup_limit_nbytes": limits["memory_nbytes"],
            "memlock_nbytes": None if lock == resource.RLIM_INFINITY else lock,
            "transparent_huge_pages": pages and pages[1], "huge_pages": number_in("/proc/meminfo", "HugePages_Total")}
