# SPDX-License-Identifier: Apache-2.0
"""CPU, memory and limits of this process, from the kernel's own files. None where the system does not say."""
import glob
import os
import re
import resource


def read_text(path):
    """What is in a small file; nothing where it cannot be read."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return ""


def number_in(path, key=""):
    """The number at the begin of a line, behind a key and its colon."""
    found = re.search(rf"^{key}:?\s*(-?\d+)", read_text(path), re.MULTILINE)
    return int(found[1]) if found else None


# ---- cgroups --------------------------------------------------------------------------------------------------------


def cgroups():
    """The folder of this process's cgroup (version 2), and each one above it."""
    own = re.search("^0::(.*)", read_text("/proc/self/cgroup"), re.MULTILINE)
    path = own[1].rstrip("/") if own else ""
    while path:
        yield "/sys/fs/cgroup" + path
        path = path.rpartition("/")[0]
    yield "/sys/fs/cgroup"


def memory_limit():
    limits = [number_in(f"{folder}/memory.max") for folder in cgroups()]  # "max" where there is none
    limits.append(number_in("/sys/fs/cgroup/memory/memory.limit_in_bytes"))
    return min((limit for limit in limits if limit is not None and limit < 1 << 60), default=None)


def quota_cpus():
    pairs = [read_text(f"{folder}/cpu.max").split() for folder in cgroups()]
    pairs.append([str(number_in(f"/sys/fs/cgroup/cpu/cpu.cfs_{what}_us")) for what in ("quota", "period")])
    return min((int(pair[0]) / int(pair[1]) for pair in pairs if len(pair) == 2 and all(n.isdigit() and int(n) for n in pair)),
               default=None)


# ---- what there is --------------------------------------------------------------------------------------------------


def cpu():
    """CPUs and cores inside of the affinity mask, and the cgroup's quota in CPUs."""
    mask, found = os.sched_getaffinity(0), read_text("/proc/cpuinfo")
    model = re.search(r"^(?:model name|CPU part)\s*:\s*(.*)", found, re.MULTILINE)
    siblings = "/sys/devices/system/cpu/cpu{}/topology/thread_siblings_list"
    return {"model": model[1][:120] if model else "unknown", "cpus": len(mask),
            "cores": len({read_text(siblings.format(n)) or n for n in mask}), "quota_cpus": quota_cpus(),
            "numa_nodes": len(glob.glob("/sys/devices/system/node/node[0-9]*")) or 1}


def memory():
    def of(key):
        kib = number_in("/proc/meminfo", key)
        return kib and kib * 1024
    lock = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
    pages = re.search(r"\[(\w+)\]", read_text("/sys/kernel/mm/transparent_hugepage/enabled"))
    return {"total_nbytes": of("MemTotal"), "available_nbytes": of("MemAvailable"), "cgroup_limit_nbytes": memory_limit(),
            "memlock_nbytes": None if lock == resource.RLIM_INFINITY else lock,
            "transparent_huge_pages": pages and pages[1], "huge_pages": number_in("/proc/meminfo", "HugePages_Total")}
