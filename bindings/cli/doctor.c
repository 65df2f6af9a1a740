/* SPDX-License-Identifier: Apache-2.0 */
/* bindings/cli/doctor.c - `zf doctor`: what this machine gives the plugin, what is missing and how to get it.
 *
 * Everything found goes into one JSON object, which --json prints as it is and from which the text is made. `zf plan
 * --machine FILE` reads such an object. Exit status 1 where something is missing that is needed: the plugin, what
 * --need names, or a measurement that failed. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "machine.h"
#include "progress.h"
#include "range.h"
#include "speed.h"

static const double MUCH_SPREAD = 1.5;
enum {
    IMAGE_NBYTES = 512,
    N_INTERVALS = 4,
    N_ROUNDS = 3,
    LARGEST_ELEMS = 8 << 20,
    SMALLEST_ELEMS = 1 << 20,
    BYTES_PER_ELEM = 48
};
static const uint32_t intervals[N_INTERVALS] = {1, 2, 4, 8};

typedef struct doctor {
    zf_cli_t *cli;
    int is_json, is_quick, needs_cuda, needs_mpi;
    int lacks_needed, lacks_speed;
    double spread; /* the largest of a measurement by its least */
    json_t *found, *missing;
} doctor_t;

/* ---- what is missing --------------------------------------------------------------------------------------------- */

static void miss(doctor_t *doctor, int is_needed, const char *what, const char *remedy) {
    json_array_append_new(doctor->missing,
                          json_pack("{s:s, s:b, s:s}", "what", what, "needed", is_needed, "remedy", remedy));
    doctor->lacks_needed |= is_needed;
}

static int flag(const json_t *object, const char *key) { return json_is_true(json_object_get(object, key)); }
static double number(const json_t *object, const char *key) { return json_number_value(json_object_get(object, key)); }
static const char *string(const json_t *object, const char *key) {
    const char *text = json_string_value(json_object_get(object, key));
    return text ? text : "";
}

static void judge(doctor_t *doctor) {
    const json_t *cuda = json_object_get(doctor->found, "cuda"), *mpi = json_object_get(doctor->found, "mpi");
    const json_t *memory = json_object_get(doctor->found, "memory"), *cpu = json_object_get(doctor->found, "cpu");
    if (!flag(cuda, "found"))
        miss(doctor, doctor->needs_cuda, "a CUDA device",
             "only for training on a GPU: install NVIDIA's driver (Debian nvidia-driver, Ubuntu "
             "nvidia-driver-580-server); in a container start it with the GPU (docker run --gpus all)");
    if (!flag(mpi, "found") || !flag(mpi, "mpirun"))
        miss(doctor, doctor->needs_mpi, "MPI",
             "only for several ranks of a C trainer: apt-get install libopenmpi-dev openmpi-bin; PyTorch needs none");
    if (flag(cuda, "found") && json_is_integer(json_object_get(memory, "memlock_nbytes")))
        miss(doctor, 0, "an unlimited locked-memory limit",
             "where page-locking is refused transfers are slower: ulimit -l unlimited, LimitMEMLOCK=infinity in a "
             "systemd unit, or docker run --ulimit memlock=-1");
    if (strcmp(string(memory, "transparent_huge_pages"), "never") == 0)
        miss(doctor, 0, "transparent huge pages",
             "fewer TLB misses over the state: echo madvise > /sys/kernel/mm/transparent_hugepage/enabled");
    if (zf_machine_n_threads(cpu) < 2)
        miss(doctor, 0, "a second core", "replays take the trainer's only core: give the process two or more");
}

/* ---- the plugin -------------------------------------------------------------------------------------------------- */

static void find_plugin(doctor_t *doctor) {
    zf_error_t err = {.struct_size = sizeof err};
    zf_description_t about = {.struct_size = sizeof about};
    char abi[16];
    if (!doctor->cli->loader && zf_loader_open(doctor->cli->plugin, &doctor->cli->loader, &err) < 0) {
        json_object_set_new(doctor->found, "plugin", json_pack("{s:b, s:s}", "found", 0, "why", err.message));
        miss(
            doctor, 1, "libzfplugin.so.1",
            "build and install it (README, \"Build and install\"), then run ldconfig, or name the file: --plugin FILE, "
            "ZFPLUGIN_PATH=FILE; where a library that it needs is missing: apt-get install libinih1 libjansson4");
        return;
    }
    zf_loader_plugin(doctor->cli->loader)->describe(&about, &err);
    snprintf(abi, sizeof abi, "%u.%u", zf_loader_plugin(doctor->cli->loader)->abi >> 16,
             zf_loader_plugin(doctor->cli->loader)->abi & 0xffff);
    json_object_set_new(doctor->found, "plugin",
                        json_pack("{s:b, s:s, s:s, s:s, s:s, s:s}", "found", 1, "file",
                                  zf_loader_file(doctor->cli->loader), "version", about.version ? about.version : "",
                                  "abi", abi, "build", about.build ? about.build : "", "extensions",
                                  about.provided_extensions ? about.provided_extensions : ""));
}

/* "kernels: ..." is in what create logs of a device. */
static void take_image(void *ctx, int32_t level, const char *component, const char *file, int32_t line,
                       const char *text, uint64_t nbytes) {
    char *out = ctx;
    const char *at = strstr(text, "kernels: ");
    (void)level, (void)component, (void)file, (void)line, (void)nbytes;
    if (at)
        snprintf(out, IMAGE_NBYTES, "%s", at + strlen("kernels: "));
}

/* Which of the plugin's images the driver took on each device, or why it took none. */
static void find_images(doctor_t *doctor) {
    json_t *device;
    size_t i;
    json_array_foreach(json_object_get(json_object_get(doctor->found, "cuda"), "devices"), i, device) {
        const zf_plugin_t *zf = zf_loader_plugin(doctor->cli->loader);
        char image[IMAGE_NBYTES] = "";
        zf_error_t err = {.struct_size = sizeof err};
        zf_host_t host = {.struct_size = sizeof host, .name = "zf", .version = "1", .ctx = image, .log = take_image};
        static const char config[] = "[log]\nlevel = info\n";
        zf_create_args_t args = {.struct_size = sizeof args,
                                 .host = &host,
                                 .config_text = config,
                                 .config_text_nbytes = sizeof config - 1,
                                 .device_type = ZF_DEVICE_CUDA,
                                 .device_id = (int32_t)i};
        zf_instance_t *inst = NULL;
        if (zf->create(&args, &inst, &err) >= 0)
            zf->destroy(inst, NULL);
        else
            doctor->lacks_needed |= doctor->needs_cuda;
        json_object_set_new(device, "kernels", json_string(inst ? image : err.message));
    }
}

/* ---- measurements ------------------------------------------------------------------------------------------------ */

/* Elements whose state and slots take at most an eighth of what is available. */
static uint64_t choose_elems(const json_t *memory) {
    double room = number(memory, "available_nbytes"), limit = number(memory, "cgroup_limit_nbytes");
    uint64_t n;
    if (limit > 0 && limit < room)
        room = limit;
    n = (uint64_t)(room / 8 / BYTES_PER_ELEM) / SMALLEST_ELEMS * SMALLEST_ELEMS;
    return n > LARGEST_ELEMS ? LARGEST_ELEMS : n < SMALLEST_ELEMS ? SMALLEST_ELEMS : n;
}

/* Everything is measured in turn, and again: what other work takes of a machine changes over seconds. */
typedef struct measured {
    zf_replay_speed_t speed;
    double read[N_ROUNDS], copy[N_ROUNDS], own[N_ROUNDS], elems[N_INTERVALS][N_ROUNDS];
} measured_t;

static int measure_round(doctor_t *doctor, uint64_t n_elems, int round, measured_t *out) {
    char what[64];
    zf_cli_progress_begin("measuring", "memory bandwidth");
    if (!zf_speed_bandwidth(zf_machine_n_threads(json_object_get(doctor->found, "cpu")), n_elems * 32,
                            &out->read[round], &out->copy[round]))
        return 0;
    for (int i = 0; i < N_INTERVALS && doctor->cli->loader; i++) {
        snprintf(what, sizeof what, "the replay of windows of %u step%s", intervals[i], intervals[i] > 1 ? "s" : "");
        zf_cli_progress_begin("measuring", what);
        if (!zf_speed_replay(doctor->cli, intervals[i], n_elems, &out->speed))
            return 0;
        out->elems[i][round] = out->speed.elems_per_s;
    }
    zf_cli_progress_begin("measuring", "the plugin's own passes");
    return !doctor->cli->loader || zf_speed_own(doctor->cli, n_elems, &out->own[round]);
}

/* KEY, least_KEY and most_KEY; returns the median. */
static double put_range(doctor_t *doctor, json_t *object, const char *key, double *values) {
    zf_cli_range_t range = zf_cli_range(values, N_ROUNDS);
    char name[64];
    json_object_set_new(object, key, json_real(range.median));
    snprintf(name, sizeof name, "least_%s", key);
    json_object_set_new(object, name, json_real(range.least));
    snprintf(name, sizeof name, "most_%s", key);
    json_object_set_new(object, name, json_real(range.most));
    doctor->spread = range.most / range.least > doctor->spread ? range.most / range.least : doctor->spread;
    return range.median;
}

static void put_replay(doctor_t *doctor, measured_t *measured) {
    json_t *rows = json_array();
    for (int i = 0; i < N_INTERVALS; i++) {
        json_t *row = json_pack("{s:i}", "update_interval", (int)intervals[i]);
        double elems_per_s = put_range(doctor, row, "elems_per_s", measured->elems[i]);
        json_object_set_new(row, "gb_per_s", json_real(elems_per_s / intervals[i] * (26 + 2.0 * intervals[i]) / 1e9));
        json_array_append_new(rows, row);
    }
    json_object_set_new(doctor->found, "replay",
                        json_pack("{s:i, s:s, s:o}", "workers", (int)measured->speed.n_workers, "kernels",
                                  measured->speed.kernels, "windows", rows));
}

static void measure_speed(doctor_t *doctor, uint64_t n_elems) {
    static measured_t measured;
    json_t *bandwidth = json_pack("{s:i}", "threads", (int)zf_machine_n_threads(json_object_get(doctor->found, "cpu")));
    json_t *own = json_object();
    for (int round = 0; round < N_ROUNDS && !doctor->lacks_speed; round++)
        doctor->lacks_speed = !measure_round(doctor, n_elems, round, &measured);
    if (!doctor->lacks_speed) {
        put_range(doctor, bandwidth, "read_gb_per_s", measured.read);
        put_range(doctor, bandwidth, "copy_gb_per_s", measured.copy);
        json_object_set(doctor->found, "bandwidth", bandwidth);
    }
    if (!doctor->lacks_speed && doctor->cli->loader) {
        put_replay(doctor, &measured);
        put_range(doctor, own, "ns_per_elem", measured.own);
        json_object_set(doctor->found, "own", own);
    }
    json_decref(bandwidth);
    json_decref(own);
    doctor->lacks_needed |= doctor->lacks_speed;
}

static void measure_links(doctor_t *doctor) {
    json_t *device;
    size_t i;
    json_array_foreach(json_object_get(json_object_get(doctor->found, "cuda"), "devices"), i, device) {
        zf_link_speed_t speed;
        const char *why;
        zf_cli_progress_begin("measuring", "the link to the device");
        why = zf_speed_link((int)i, &speed);
        json_object_set_new(device, "link",
                            why ? json_pack("{s:s}", "why", why)
                                : json_pack("{s:f, s:f, s:f}", "up_gb_per_s", speed.up, "down_gb_per_s", speed.down,
                                            "both_gb_per_s", speed.both));
    }
}

/* ---- text -------------------------------------------------------------------------------------------------------- */

static void print_nbytes(const json_t *object, const char *key, const char *unlimited) {
    const json_t *value = json_object_get(object, key);
    if (!json_is_integer(value))
        printf("%s", unlimited);
    else if (json_integer_value(value) >= 1 << 30)
        printf("%.1f GiB", (double)json_integer_value(value) / (1 << 30));
    else
        printf("%.1f MiB", (double)json_integer_value(value) / (1 << 20));
}

static void print_machine(const json_t *found) {
    const json_t *cpu = json_object_get(found, "cpu"), *memory = json_object_get(found, "memory");
    printf("cpu        ");
    zf_cli_print(stdout, string(cpu, "model"));
    printf("\ncores      %d physical, %d CPUs in the affinity mask; ", (int)number(cpu, "cores"),
           (int)number(cpu, "cpus"));
    if (json_is_real(json_object_get(cpu, "quota_cpus")))
        printf("cgroup quota %.2f CPUs", number(cpu, "quota_cpus"));
    else
        printf("no cgroup quota");
    printf("; NUMA nodes: %d\nmemory     ", (int)number(cpu, "numa_nodes"));
    print_nbytes(memory, "available_nbytes", "unknown");
    printf(" available of ");
    print_nbytes(memory, "total_nbytes", "unknown");
    printf("; cgroup limit ");
    print_nbytes(memory, "cgroup_limit_nbytes", "none");
    printf("; locked-memory limit ");
    print_nbytes(memory, "memlock_nbytes", "none");
    printf("\nhuge pages transparent: %s; reserved: %d\n",
           *string(memory, "transparent_huge_pages") ? string(memory, "transparent_huge_pages") : "unknown",
           (int)number(memory, "huge_pages"));
}

static void print_link(const json_t *link) {
    if (json_object_get(link, "why"))
        printf("           link: not measured, %s\n", string(link, "why"));
    else if (link)
        printf("           link, page-locked: up %.1f GB/s, down %.1f GB/s, both at once %.1f GB/s\n",
               number(link, "up_gb_per_s"), number(link, "down_gb_per_s"), number(link, "both_gb_per_s"));
}

static void print_drivers(const json_t *found) {
    const json_t *cuda = json_object_get(found, "cuda"), *mpi = json_object_get(found, "mpi"), *device;
    size_t i;
    if (flag(cuda, "found"))
        printf("cuda       driver for CUDA %s\n", string(cuda, "version"));
    else
        printf("cuda       none: %s\n", string(cuda, "why"));
    json_array_foreach(json_object_get(cuda, "devices"), i, device) {
        printf("           %zu: ", i);
        zf_cli_print(stdout, string(device, "name"));
        printf(", ");
        print_nbytes(device, "memory_nbytes", "?");
        printf(", compute capability %s\n", string(device, "compute_capability"));
        if (json_object_get(device, "kernels"))
            printf("           kernels: %s\n", string(device, "kernels"));
        print_link(json_object_get(device, "link"));
    }
    if (flag(mpi, "found")) {
        printf("mpi        ");
        zf_cli_print(stdout, string(mpi, "version"));
        printf(" (%s)%s\n", string(mpi, "library"), flag(mpi, "mpirun") ? "" : ", but no mpirun on the PATH");
    } else {
        printf("mpi        none\n");
    }
}

static void print_plugin(const json_t *found) {
    const json_t *plugin = json_object_get(found, "plugin");
    printf("plugin     ");
    zf_cli_print(stdout, flag(plugin, "found") ? string(plugin, "file") : string(plugin, "why"));
    if (flag(plugin, "found"))
        printf("\n           version %s, ABI %s, %s", string(plugin, "version"), string(plugin, "abi"),
               string(plugin, "build"));
    printf("\n");
}

/* "1.58 (1.50 to 2.11)" */
static void print_range(const json_t *object, const char *key, double unit) {
    char least[64], most[64];
    snprintf(least, sizeof least, "least_%s", key);
    snprintf(most, sizeof most, "most_%s", key);
    printf("%.2f (%.2f to %.2f)", number(object, key) / unit, number(object, least) / unit,
           number(object, most) / unit);
}

static void print_speed(const doctor_t *doctor) {
    const json_t *bandwidth = json_object_get(doctor->found, "bandwidth"), *row;
    const json_t *replay = json_object_get(doctor->found, "replay"), *own = json_object_get(doctor->found, "own");
    size_t i;
    if (bandwidth) {
        printf("measured   %d times, in turn: median (least to most)\nbandwidth  reading ", N_ROUNDS);
        print_range(bandwidth, "read_gb_per_s", 1);
        printf(", copying ");
        print_range(bandwidth, "copy_gb_per_s", 1);
        printf(" GB/s (read and written), %d thread(s)\n", (int)number(bandwidth, "threads"));
    }
    if (replay)
        printf("replay     kernels %s, %d worker(s), bfloat16\n", string(replay, "kernels"),
               (int)number(replay, "workers"));
    json_array_foreach(json_object_get(replay, "windows"), i, row) {
        printf("           S = %d: ", (int)number(row, "update_interval"));
        print_range(row, "elems_per_s", 1e9);
        printf(" G elements x steps per second, %.1f GB/s\n", number(row, "gb_per_s"));
    }
    if (own) {
        printf("own passes ");
        print_range(own, "ns_per_elem", 1);
        printf(" ns per parameter and step, where the CPU is the device\n");
    }
    if (doctor->spread > MUCH_SPREAD)
        printf("spread     equal measurements differ by a factor of %.1f: something else uses this machine; measure "
               "when it is quiet\n",
               doctor->spread);
}

static void print_text(const doctor_t *doctor) {
    const json_t *row;
    size_t i;
    print_machine(doctor->found);
    print_drivers(doctor->found);
    print_plugin(doctor->found);
    print_speed(doctor);
    json_array_foreach(doctor->missing, i, row) printf("missing    %s%s\n           %s\n", string(row, "what"),
                                                       flag(row, "needed") ? " (needed)" : "", string(row, "remedy"));
}

/* ---- the command ------------------------------------------------------------------------------------------------- */

static int read_options(doctor_t *doctor, int argc, char **argv) {
    for (int i = 0; i < argc; i++) {
        if (strcmp(argv[i], "--json") == 0)
            doctor->is_json = 1;
        else if (strcmp(argv[i], "--quick") == 0)
            doctor->is_quick = 1;
        else if (strcmp(argv[i], "--need") == 0 && i + 1 < argc && strcmp(argv[i + 1], "cuda") == 0)
            doctor->needs_cuda = 1, i++;
        else if (strcmp(argv[i], "--need") == 0 && i + 1 < argc && strcmp(argv[i + 1], "mpi") == 0)
            doctor->needs_mpi = 1, i++;
        else {
            zf_cli_misuse("doctor: \"%s\" is no option, or what follows it is none of its values", argv[i]);
            return 0;
        }
    }
    return 1;
}

int zf_cli_doctor(zf_cli_t *cli, int argc, char **argv) {
    doctor_t doctor = {.cli = cli, .found = json_object(), .missing = json_array()};
    uint64_t n_elems;
    if (!read_options(&doctor, argc, argv)) {
        json_decref(doctor.found);
        json_decref(doctor.missing);
        return 2;
    }
    json_object_set_new(doctor.found, "cpu", zf_machine_cpu());
    json_object_set_new(doctor.found, "memory", zf_machine_memory());
    json_object_set_new(doctor.found, "cuda", zf_machine_cuda());
    json_object_set_new(doctor.found, "mpi", zf_machine_mpi());
    find_plugin(&doctor);
    if (doctor.cli->loader)
        find_images(&doctor);
    judge(&doctor);
    n_elems = choose_elems(json_object_get(doctor.found, "memory"));
    if (!doctor.is_quick)
        measure_links(&doctor);
    if (!doctor.is_quick)
        measure_speed(&doctor, n_elems);
    zf_cli_progress_end();
    json_object_set(doctor.found, "missing", doctor.missing);
    if (doctor.is_json) {
        json_dumpf(doctor.found, stdout, JSON_INDENT(2) | JSON_REAL_PRECISION(6));
        printf("\n");
    } else {
        print_text(&doctor);
    }
    json_decref(doctor.found);
    json_decref(doctor.missing);
    return doctor.lacks_needed;
}
