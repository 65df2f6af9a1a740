# SPDX-License-Identifier: Apache-2.0
"""zf doctor: what this machine gives the plugin, what is missing and how to get it.

Everything found goes into one object, which --json prints as it is and from which the text is made. `zf plan --machine FILE`
reads such an object. Exit status 1 where something is missing that is needed: the plugin, what --need names, or a
measurement that failed.

Called by `zf doctor` with that program's path in ZF_COMMAND. Python's own library is enough.
"""
import json
import statistics
import sys

import machine
from terminal import Failed, Parser, Progress, ask_zf, command, printable, say

INTERVALS = (1, 2, 4, 8)
N_ROUNDS = 3
MUCH_SPREAD = 1.5
SMALLEST_ELEMS, LARGEST_ELEMS, BYTES_PER_ELEM = 1 << 20, 8 << 20, 48


def ask(*words):
    return json.loads(ask_zf("ask", *map(str, words)))


def remedy_of(why):
    """For a plugin that does not open, from what the dynamic linker says."""
    if "GLIBC_" in why:
        return 'it was built with a newer C library than this system has: build it here (README, "Install"), or where that is as old'
    if any(name in why for name in ("libinih", "libjansson")):
        return "apt-get install libinih1 libjansson4"
    return 'build and install it (README, "Install"), then run ldconfig, or name the file: --plugin FILE, ZFPLUGIN_PATH=FILE'


class Doctor:
    def __init__(self, options):
        self.options, self.missing, self.lacks_needed, self.spread = options, [], False, 1
        limits = ask("limits", "")
        self.found = {"cpu": machine.cpu(limits), "memory": machine.memory(limits), "cuda": ask("cuda")}
        self.find_plugin()
        self.find_images()
        self.judge()
        if not options.quick:
            self.measure_links()
            self.measure_speed()
        self.found["missing"] = self.missing

    # ---- what is missing ----

    def miss(self, is_needed, what, remedy):
        self.missing.append({"what": what, "needed": is_needed, "remedy": remedy})
        self.lacks_needed |= is_needed

    def judge(self):
        cpu, memory, has_cuda = self.found["cpu"], self.found["memory"], self.found["cuda"]["found"]
        if not has_cuda:
            self.miss(self.options.need == "cuda", "a CUDA device",
                      "only for training on a GPU: install NVIDIA's driver (Debian nvidia-driver, Ubuntu nvidia-driver-580-server); "
                      "in a container start it with the GPU (docker run --gpus all)")
        if has_cuda and memory["memlock_nbytes"] is not None:
            self.miss(False, "an unlimited locked-memory limit",
                      "where page-locking is refused transfers are slower: ulimit -l unlimited, LimitMEMLOCK=infinity in a systemd "
                      "unit, or docker run --ulimit memlock=-1")
        if memory["transparent_huge_pages"] == "never":
            self.miss(False, "transparent huge pages",
                      "fewer TLB misses over the state: echo madvise > /sys/kernel/mm/transparent_hugepage/enabled")
        if min(cpu["cores"], cpu["quota_cpus"] or cpu["cores"]) < 2:
            self.miss(False, "a second core", "replays take the trainer's only core: give the process two or more")

    # ---- the plugin ----

    def find_plugin(self):
        try:
            self.found["plugin"] = {"found": True, **ask("plugin")}
        except Failed as failure:
            self.found["plugin"] = {"found": False, "why": str(failure)}
            self.miss(True, "libzfplugin.so.0", remedy_of(str(failure)))

    def devices(self):
        return enumerate(self.found["cuda"].get("devices", ()))

    def find_images(self):
        """Which of the plugin's images the driver takes on each device, or why it takes none."""
        for i, device in self.devices() if self.found["plugin"]["found"] else ():
            image = ask("image", i)
            device["kernels"] = image["kernels"]
            self.lacks_needed |= self.options.need == "cuda" and not image["is_taken"]

    # ---- measurements ----

    def measure_links(self):
        for i, device in self.devices():
            with Progress("measuring the link to the device"):
                device["link"] = ask("link", i)

    def n_elems(self):
        """Elements whose state and slots take at most an eighth of what is available."""
        room = self.found["memory"]["available_nbytes"] or 0
        n = int(room / 8 / BYTES_PER_ELEM) // SMALLEST_ELEMS * SMALLEST_ELEMS
        return min(max(n, SMALLEST_ELEMS), LARGEST_ELEMS)

    def measure_speed(self):
        """In turn, and again: what other work takes of a machine changes over seconds."""
        rounds, n = [], self.n_elems()
        try:
            for _ in range(N_ROUNDS if self.found["plugin"]["found"] else 0):
                replays = []
                for interval in INTERVALS:
                    with Progress(f"measuring the replay of windows of {interval} step{'s'[:interval > 1]}"):
                        replays.append(ask("replay", interval, n))
                with Progress("measuring the plugin's own passes"):
                    rounds.append((replays, ask("own", n)))
        except Failed as failure:
            say(str(failure))
            self.lacks_needed = True
            return
        if rounds:
            windows = [{"update_interval": interval, **self.range_of("elems_per_s", [replays[i] for replays, _ in rounds])}
                       for i, interval in enumerate(INTERVALS)]
            for row in windows:
                row["gb_per_s"] = row["elems_per_s"] / row["update_interval"] * (26 + 2 * row["update_interval"]) / 1e9
            newest = rounds[-1][0][-1]
            self.found["replay"] = {"workers": newest["workers"], "kernels": newest["kernels"], "windows": windows}
            self.found["own"] = self.range_of("ns_per_elem", [own for _, own in rounds])

    def range_of(self, key, answers):
        """The median of a member, its least and its most."""
        values = [answer[key] for answer in answers]
        self.spread = max(self.spread, max(values) / min(values))
        return {key: statistics.median(values), f"least_{key}": min(values), f"most_{key}": max(values)}


# ---- text -----------------------------------------------------------------------------------------------------------


def size(nbytes, unlimited):
    if nbytes is None:
        return unlimited
    return f"{nbytes / 2**30:.1f} GiB" if nbytes >= 1 << 30 else f"{nbytes / 2**20:.1f} MiB"


def of_machine(found):
    cpu, memory = found["cpu"], found["memory"]
    quota = f"cgroup quota {cpu['quota_cpus']:.2f} CPUs" if cpu["quota_cpus"] else "no cgroup quota"
    yield f"cpu        {cpu['model']}"
    yield (f"cores      {cpu['cores']} physical, {cpu['cpus']} CPUs in the affinity mask; {quota}; "
           f"NUMA nodes: {cpu['numa_nodes']}")
    yield (f"memory     {size(memory['available_nbytes'], 'unknown')} available of {size(memory['total_nbytes'], 'unknown')}; "
           f"cgroup limit {size(memory['cgroup_limit_nbytes'], 'none')}; "
           f"locked-memory limit {size(memory['memlock_nbytes'], 'none')}")
    yield (f"huge pages transparent: {memory['transparent_huge_pages'] or 'unknown'}; "
           f"reserved: {memory['huge_pages'] or 0}")


def of_cuda(cuda):
    yield f"cuda       driver for CUDA {cuda['version']}" if cuda["found"] else f"cuda       none: {cuda['why']}"
    for i, device in enumerate(cuda.get("devices", ())):
        link = device.get("link")
        yield (f"           {i}: {device['name']}, {size(device['memory_nbytes'], '?')}, "
               f"compute capability {device['compute_capability']}")
        if device["is_integrated"]:
            yield f"           {machine.ONE_MEMORY}"
        if "kernels" in device:
            yield f"           kernels: {device['kernels']}"
        if link and "why" in link:
            yield f"           link: not measured, {link['why']}"
        elif link:
            yield (f"           link, page-locked: up {link['up_gb_per_s']:.1f} GB/s, down {link['down_gb_per_s']:.1f} GB/s, "
                   f"both at once {link['both_gb_per_s']:.1f} GB/s")


def of_plugin(plugin):
    yield f"plugin     {plugin['file'] if plugin['found'] else plugin['why']}"
    if plugin["found"]:
        yield f"           version {plugin['version']}, ABI {plugin['abi']}, {plugin['build']}"


def of_speed(doctor):
    def shown(row, key, unit=1):
        """1.58 (1.50 to 2.11)"""
        return "{:.2f} ({:.2f} to {:.2f})".format(*(row[f"{end}{key}"] / unit for end in ("", "least_", "most_")))
    replay = doctor.found.get("replay")
    if replay:
        yield f"measured   {N_ROUNDS} times, in turn: median (least to most)"
        yield f"replay     kernels {replay['kernels']}, {replay['workers']} worker(s), bfloat16"
        for row in replay["windows"]:
            yield (f"           S = {row['update_interval']}: {shown(row, 'elems_per_s', 1e9)} G elements x steps per second, "
                   f"{row['gb_per_s']:.1f} GB/s")
        yield (f"own passes {shown(doctor.found['own'], 'ns_per_elem')} ns per parameter and step, where the CPU is the "
               "device")
    if doctor.spread > MUCH_SPREAD:
        yield (f"spread     equal measurements differ by a factor of {doctor.spread:.1f}: something else uses this machine; "
               "measure when it is quiet")


def text_of(doctor):
    yield from of_machine(doctor.found)
    yield from of_cuda(doctor.found["cuda"])
    yield from of_plugin(doctor.found["plugin"])
    yield from of_speed(doctor)
    for row in doctor.missing:
        yield f"missing    {row['what']}{' (needed)' if row['needed'] else ''}"
        yield f"           {row['remedy']}"


@command()
def main():
    parser = Parser("doctor", "[--json] [--quick] [--need cuda]")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--need", choices=("cuda",))
    options = parser.parse_args()
    doctor = Doctor(options)
    if options.json:
        print(json.dumps(doctor.found, indent=2))
    else:
        print(*map(printable, text_of(doctor)), sep="\n")
    return int(doctor.lacks_needed)


if __name__ == "__main__":
    sys.exit(main())
