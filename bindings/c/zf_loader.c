/* SPDX-License-Identifier: Apache-2.0 */
/* zf_loader.c - see zf_loader.h.
 *
 * Order of the checks in zf_loader_open(), each with a sentence of its own, since the dynamic linker's words for the
 * same cases mislead (a library of another machine is "No such file or directory" to it):
 *   1. a path with a slash: the file is there, readable, a shared ELF library of this machine, and as long as its
 *      segments say: mapping a shorter one would end the process with SIGBUS
 *   2. dlopen: what it needs is there too
 *   3. dlsym: the entry exists, and lies in the opened file (dlsym also searches the file's dependencies)
 *   4. negotiation: a common ABI
 *   5. the table: long enough for that ABI, no slot NULL
 */
#define _GNU_SOURCE /* dladdr, dlinfo, ST_NOEXEC */

#include "zf_loader.h"

#include <dlfcn.h>
#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <link.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "zf/ext/stats.h"

#define PATH_VARIABLE "ZFPLUGIN_PATH"
#define SONAME "libzfplugin.so.0"

struct zf_loader {
    void *library;
    const zf_plugin_t *plugin;
    char *file;
};

static const uint32_t served_abis[] = {ZF_ABI_0_16}; /* one per major, newest first */
#define N_SERVED_ABIS ((uint32_t)(sizeof served_abis / sizeof served_abis[0]))

/* ---- messages ---------------------------------------------------------------------------------------------------- */

/* Takes the rests of characters of UTF-8 out of a message, in which a path or another message was cut. */
static void take_out_rests(char *message) {
    char *to = message;
    for (const char *at = message; *at;) {
        unsigned char first = (unsigned char)*at;
        size_t n = first < 0x80 ? 1 : first < 0xC0 ? 0 : first < 0xE0 ? 2 : first < 0xF0 ? 3 : 4, n_have = 1;
        while (n_have < n && ((unsigned char)at[n_have] & 0xC0) == 0x80)
            ++n_have;
        if (n_have == n)
            memmove(to, at, n), to += n;
        at += n_have;
    }
    *to = '\0';
}

/* Fills *err (may be NULL) and returns status. */
__attribute__((format(printf, 4, 5))) static zf_status_t fail(zf_error_t *err, zf_status_t status, int64_t native_code,
                                                              const char *format, ...) {
    if (err == NULL)
        return status;
    va_list args;
    va_start(args, format);
    vsnprintf(err->message, sizeof err->message, format, args);
    va_end(args);
    take_out_rests(err->message);
    snprintf(err->origin, sizeof err->origin, "zf_loader");
    err->status = status;
    err->scope = ZF_SCOPE_CALL;
    err->retryable = status == ZF_ERR_TIMEOUT; /* of a fence, which may come later */
    err->param = err->rank = ZF_NO_ID;
    err->native_code = native_code;
    return status;
}

/* A path in a message: long ones keep their end, which names the file. */
#define SHOWN_MAX 120
typedef struct shown {
    char text[SHOWN_MAX + 4];
} shown_t;

static const char *show(const char *path, shown_t *out) {
    size_t len = strlen(path);
    if (len <= SHOWN_MAX)
        snprintf(out->text, sizeof out->text, "%s", path);
    else
        snprintf(out->text, sizeof out->text, "...%s", path + len - SHOWN_MAX);
    return out->text;
}

/* "0.1, 1.3" */
static void show_abis(const uint32_t *abis, uint32_t n, char *buf, size_t nbytes) {
    size_t used = 0;
    buf[0] = '\0';
    for (uint32_t i = 0; i < n && used < nbytes; ++i) {
        int len = snprintf(buf + used, nbytes - used, "%s%u.%u", i == 0 ? "" : ", ", ZF_ABI_MAJOR(abis[i]),
                           ZF_ABI_MINOR(abis[i]));
        used += len > 0 ? (size_t)len : 0;
    }
}

/* ---- 1. the file ------------------------------------------------------------------------------------------------- */

/* ELF's number of the machine that this program is built for; EM_NONE where nobody says. */
static unsigned own_machine(void) {
    ElfW(Ehdr) header = {.e_machine = EM_NONE};
    int fd = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
    if (fd >= 0 && read(fd, &header, sizeof header) != (ssize_t)sizeof header)
        header.e_machine = EM_NONE;
    if (fd >= 0)
        close(fd);
    return header.e_machine;
}

static zf_status_t check_elf(const char *file, const ElfW(Ehdr) * header, size_t nbytes, zf_error_t *err) {
    const unsigned char *id = header->e_ident;
    if (nbytes < EI_NIDENT || memcmp(id, ELFMAG, SELFMAG) != 0)
        return fail(err, ZF_LOADER_ERR_FILE, 0,
                    "%s is not a shared library (it has no ELF header); give the path of libzfplugin.so", file);
    if (id[EI_CLASS] != (sizeof(void *) == 8 ? ELFCLASS64 : ELFCLASS32))
        return fail(err, ZF_LOADER_ERR_FILE, 0,
                    "%s is a %s-bit library, this program is %d-bit; install the matching one", file,
                    id[EI_CLASS] == ELFCLASS64 ? "64" : "32", (int)(8 * sizeof(void *)));
    if (nbytes < sizeof *header)
        return fail(err, ZF_LOADER_ERR_FILE, 0, "%s is cut short: %zu bytes; copy it again", file, nbytes);
    if (own_machine() != EM_NONE && header->e_machine != own_machine())
        return fail(err, ZF_LOADER_ERR_FILE, 0,
                    "%s is built for another machine (ELF's number %u), this program for %u; install the matching one",
                    file, (unsigned)header->e_machine, own_machine());
    if (header->e_type != ET_DYN)
        return fail(err, ZF_LOADER_ERR_FILE, 0, "%s is an ELF file but not a shared library (type %u)", file,
                    (unsigned)header->e_type);
    return ZF_OK;
}

/* Reads nbytes at this offset; 0 where the file ends before. */
static int read_at(int fd, void *to, size_t nbytes, uint64_t offset) {
    return offset <= INT64_MAX && pread(fd, to, nbytes, (off_t)offset) == (ssize_t)nbytes;
}

static uint64_t end_of(uint64_t offset, uint64_t nbytes) {
    return offset > UINT64_MAX - nbytes ? UINT64_MAX : offset + nbytes;
}

/* Every loadable segment lies in the file. */
static zf_status_t check_extent(const char *file, int fd, const ElfW(Ehdr) * header, uint64_t nbytes, zf_error_t *err) {
    uint64_t table_nbytes = (uint64_t)header->e_phnum * sizeof(ElfW(Phdr));
    uint64_t need = end_of(header->e_phoff, table_nbytes);
    if (header->e_phnum == 0 || header->e_phentsize != sizeof(ElfW(Phdr)))
        return fail(err, ZF_LOADER_ERR_FILE, 0, "%s is damaged: %u segments of %u bytes each, need at least 1 of %zu",
                    file, (unsigned)header->e_phnum, (unsigned)header->e_phentsize, sizeof(ElfW(Phdr)));
    for (uint64_t i = 0; i < header->e_phnum; i++) {
        ElfW(Phdr) segment;
        if (!read_at(fd, &segment, sizeof segment, end_of(header->e_phoff, i * sizeof segment)))
            break; /* need is beyond the end */
        if (segment.p_type == PT_LOAD && end_of(segment.p_offset, segment.p_filesz) > need)
            need = end_of(segment.p_offset, segment.p_filesz);
    }
    if (nbytes < need)
        return fail(err, ZF_LOADER_ERR_FILE, 0,
                    "%s is cut short: it has %llu bytes, its segments end at %llu; copy it again", file,
                    (unsigned long long)nbytes, (unsigned long long)need);
    return ZF_OK;
}

/* path has a slash. */
static zf_status_t check_file(const char *path, zf_error_t *err) {
    shown_t shown;
    const char *file = show(path, &shown);
    struct stat st;
    if (stat(path, &st) != 0)
        return fail(err, ZF_LOADER_ERR_FILE, errno,
                    "%s: %s; give the path of libzfplugin.so to the host or in %s, or install it", file,
                    strerror(errno), PATH_VARIABLE);
    if (!S_ISREG(st.st_mode))
        return fail(err, ZF_LOADER_ERR_FILE, 0, "%s is %s; name the library itself, e.g. .../%s", file,
                    S_ISDIR(st.st_mode) ? "a directory" : "not a regular file", SONAME);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return fail(err, ZF_LOADER_ERR_FILE, errno, "%s cannot be read: %s", file, strerror(errno));
    ElfW(Ehdr) header;
    memset(&header, 0, sizeof header);
    ssize_t nbytes = read(fd, &header, sizeof header);
    int read_errno = errno;
    zf_status_t status;
    if (nbytes < 0)
        status = fail(err, ZF_LOADER_ERR_FILE, read_errno, "%s cannot be read: %s", file, strerror(read_errno));
    else
        status = check_elf(file, &header, (size_t)nbytes, err);
    if (status == ZF_OK)
        status = check_extent(file, fd, &header, (uint64_t)st.st_size, err);
    close(fd);
    return status;
}

/* ---- 2. and 3. the library and its entry ------------------------------------------------------------------------- */

/* No code of a file there may run. The dynamic linker says "failed to map segment" then. */
static int is_on_noexec_mount(const char *path) {
    struct statvfs mount;
    return statvfs(path, &mount) == 0 && (mount.f_flag & ST_NOEXEC) != 0;
}

static zf_status_t open_library(const char *path, void **out_library, zf_error_t *err) {
    int has_slash = strchr(path, '/') != NULL;
    if (has_slash) {
        zf_status_t st = check_file(path, err);
        if (st < 0)
            return st;
    }
    dlerror(); /* forget older errors */
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (library == NULL) {
        const char *why = dlerror();
        const char *hint = "set " PATH_VARIABLE " to the full path of libzfplugin.so, or put its directory into "
                           "LD_LIBRARY_PATH or /etc/ld.so.conf.d (a file of the current directory needs \"./\")";
        if (has_slash)
            hint = is_on_noexec_mount(path)
                       ? "its file system is mounted noexec: copy it to another one, or mount that without noexec"
                       : "something that it needs is missing or too old: `ldd` on it lists what";
        shown_t shown;
        return fail(err, ZF_LOADER_ERR_FILE, 0, "cannot open %s: %.180s; %s", show(path, &shown),
                    why == NULL ? "unknown reason" : why, hint);
    }
    *out_library = library;
    return ZF_OK;
}

static int is_same_file(const char *a, const char *b) {
    struct stat st_a, st_b;
    if (strcmp(a, b) == 0)
        return 1;
    return stat(a, &st_a) == 0 && stat(b, &st_b) == 0 && st_a.st_dev == st_b.st_dev && st_a.st_ino == st_b.st_ino;
}

/* Finds the entry; *out_file is the library's name in the dynamic linker, valid while it is open. */
static zf_status_t find_entry(void *library, const char *path, zf_plugin_negotiate_fn *out_entry, const char **out_file,
                              zf_error_t *err) {
    shown_t shown, shown_other;
    struct link_map *map = NULL;
    const char *file = path;
    if (dlinfo(library, RTLD_DI_LINKMAP, &map) == 0 && map != NULL && map->l_name != NULL && map->l_name[0] != '\0')
        file = map->l_name;
    dlerror();
    void *symbol = dlsym(library, ZF_PLUGIN_NEGOTIATE_SYMBOL);
    if (symbol == NULL) {
        const char *why = dlerror();
        return fail(err, ZF_LOADER_ERR_SYMBOL, 0,
                    "%s is a library but no plugin: it has no symbol %s (%.150s); give the path of libzfplugin.so",
                    show(file, &shown), ZF_PLUGIN_NEGOTIATE_SYMBOL, why == NULL ? "the symbol is NULL" : why);
    }
    Dl_info info;
    if (dladdr(symbol, &info) == 0 || info.dli_fname == NULL)
        return fail(err, ZF_LOADER_ERR_SYMBOL, 0, "%s: its symbol %s lies in no loaded file", show(file, &shown),
                    ZF_PLUGIN_NEGOTIATE_SYMBOL);
    if (!is_same_file(file, info.dli_fname))
        return fail(err, ZF_LOADER_ERR_SYMBOL, 0,
                    "%s is no plugin: its symbol %s comes from %s, which it depends on; open that file instead",
                    show(file, &shown), ZF_PLUGIN_NEGOTIATE_SYMBOL, show(info.dli_fname, &shown_other));
    memcpy(out_entry, &symbol, sizeof symbol); /* ISO C has no cast from object to function pointers */
    *out_file = file;
    return ZF_OK;
}

/* ---- 4. negotiation ---------------------------------------------------------------------------------------------- */

static int is_served(uint32_t abi) {
    for (uint32_t i = 0; i < N_SERVED_ABIS; ++i) {
        uint32_t minor = ZF_ABI_MINOR(served_abis[i]);
        if (ZF_ABI_MAJOR(abi) != ZF_ABI_MAJOR(served_abis[i]))
            continue;
        return ZF_ABI_MAJOR(abi) == 0 ? ZF_ABI_MINOR(abi) == minor : ZF_ABI_MINOR(abi) <= minor;
    }
    return 0;
}

static zf_status_t negotiate(zf_plugin_negotiate_fn entry, const char *file, const zf_plugin_t **out_plugin,
                             zf_error_t *err) {
    shown_t shown;
    char served[64];
    zf_error_t reason = {.struct_size = sizeof reason};
    zf_bootstrap_t bootstrap = {.struct_size = sizeof bootstrap,
                                .magic = ZF_BOOTSTRAP_MAGIC,
                                .abis = served_abis,
                                .n_abis = N_SERVED_ABIS,
                                .error = &reason};

    show_abis(served_abis, N_SERVED_ABIS, served, sizeof served);
    show(file, &shown);
    zf_status_t st = entry(&bootstrap);
    reason.message[sizeof reason.message - 1] = '\0';
    if (st == ZF_ERR_ABI)
        return fail(
            err, st, reason.native_code,
            "%s shares no ABI with this host, which serves %s. The plugin says: %.200s. Use a plugin and a host "
            "of matching versions",
            shown.text, served, reason.message[0] == '\0' ? "nothing" : reason.message);
    if (st < 0)
        return fail(err, st, reason.native_code, "%s refused to start with status %d: %.250s", shown.text, (int)st,
                    reason.message[0] == '\0' ? "it gave no reason" : reason.message);
    if (!is_served(bootstrap.chosen_abi))
        return fail(err, ZF_ERR_ABI, 0, "%s chose ABI %u.%u, but this host serves %s; the plugin is faulty", shown.text,
                    ZF_ABI_MAJOR(bootstrap.chosen_abi), ZF_ABI_MINOR(bootstrap.chosen_abi), served);
    const zf_plugin_t *plugin = bootstrap.plugin;
    if (plugin == NULL)
        return fail(err, ZF_ERR_ABI, 0, "%s agreed to ABI %u.%u but gave no table of functions; the plugin is faulty",
                    shown.text, ZF_ABI_MAJOR(bootstrap.chosen_abi), ZF_ABI_MINOR(bootstrap.chosen_abi));
    if (plugin->struct_size >= offsetof(zf_plugin_t, abi) + sizeof plugin->abi && plugin->abi != bootstrap.chosen_abi)
        return fail(err, ZF_ERR_ABI, 0, "%s chose ABI %u.%u, but its table says %u.%u; the plugin is faulty",
                    shown.text, ZF_ABI_MAJOR(bootstrap.chosen_abi), ZF_ABI_MINOR(bootstrap.chosen_abi),
                    ZF_ABI_MAJOR(plugin->abi), ZF_ABI_MINOR(plugin->abi));
    *out_plugin = plugin;
    return ZF_OK;
}

/* ---- 5. the table ------------------------------------------------------------------------------------------------ */

typedef struct slot {
    const char *name;
    size_t offset;
} slot_t;

typedef void (*any_function_fn)(void);

/* Every slot of ABI 0.16. Slots of later minors are optional for a host that serves 0.16 and are not listed. */
#define SLOT(member)                                                                                                   \
    { #member, offsetof(zf_plugin_t, member) }
static const slot_t required_slots[] = {
    SLOT(describe),      SLOT(create), SLOT(destroy),       SLOT(bind_params), SLOT(params_changed),
    SLOT(grads_ready),   SLOT(step),   SLOT(param_fetch),   SLOT(fence_wait),  SLOT(quiesce),
    SLOT(export_params), SLOT(poll),   SLOT(get_extension),
};
#undef SLOT

static int has_slot(const zf_plugin_t *plugin, size_t offset) {
    any_function_fn function;
    if (offset > plugin->struct_size || plugin->struct_size - offset < sizeof function)
        return 0;
    memcpy(&function, (const char *)plugin + offset, sizeof function);
    return function != NULL;
}

static zf_status_t check_table(const zf_plugin_t *plugin, const char *file, zf_error_t *err) {
    shown_t shown;
    for (size_t i = 0; i < sizeof required_slots / sizeof required_slots[0]; ++i) {
        const slot_t *slot = &required_slots[i];
        if (has_slot(plugin, slot->offset))
            continue;
        if (slot->offset + sizeof(any_function_fn) > plugin->struct_size)
            return fail(err, ZF_ERR_ABI, 0,
                        "%s: its table has %u bytes and ends before %s, ABI 0.16 needs %zu; the plugin is faulty or "
                        "older than it says",
                        show(file, &shown), plugin->struct_size, slot->name, sizeof(zf_plugin_t));
        return fail(err, ZF_ERR_ABI, 0,
                    "%s: its table has no function %s (NULL), which ABI 0.16 requires; the plugin is faulty",
                    show(file, &shown), slot->name);
    }
    return ZF_OK;
}

/* ---- public ------------------------------------------------------------------------------------------------------ */

/* Everything is checked: keeps the library mapped for the rest of the process (also one linked without -z nodelete,
 * since tables, strings and threads may outlive the handle) and makes the handle. */
static zf_status_t make_loader(void *library, const char *file, const zf_plugin_t *plugin, zf_loader_t **out_loader,
                               zf_error_t *err) {
    zf_loader_t *loader = malloc(sizeof *loader);
    char *copy = strdup(file);
    if (loader == NULL || copy == NULL) {
        free(loader);
        free(copy);
        return fail(err, ZF_ERR_MEMORY, ENOMEM, "no memory for the loader's handle");
    }
    if (dlopen(file, RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD | RTLD_NODELETE) != NULL)
        dlclose(library); /* the second reference */
    loader->library = library;
    loader->plugin = plugin;
    loader->file = copy;
    *out_loader = loader;
    return ZF_OK;
}

zf_status_t zf_loader_open(const char *path, zf_loader_t **out_loader, zf_error_t *err) {
    void *library = NULL;
    const char *file = NULL;
    const zf_plugin_t *plugin = NULL;
    zf_plugin_negotiate_fn entry = NULL;
    if (out_loader == NULL)
        return fail(err, ZF_ERR_ARGUMENT, 0, "zf_loader_open: out_loader is NULL");
    if (path == NULL)
        path = getenv(PATH_VARIABLE);
    if (path == NULL || path[0] == '\0')
        path = SONAME;

    zf_status_t st = open_library(path, &library, err);
    if (st < 0)
        return st;
    st = find_entry(library, path, &entry, &file, err);
    if (st < 0)
        goto err_close;
    st = negotiate(entry, file, &plugin, err);
    if (st < 0)
        goto err_close;
    st = check_table(plugin, file, err);
    if (st < 0)
        goto err_close;
    st = make_loader(library, file, plugin, out_loader, err);
    if (st < 0)
        goto err_close;
    return ZF_OK;

err_close:
    dlclose(library);
    return st;
}

void zf_loader_close(zf_loader_t *loader) {
    if (loader == NULL)
        return;
    dlclose(loader->library);
    free(loader->file);
    free(loader);
}

const zf_plugin_t *zf_loader_plugin(const zf_loader_t *loader) { return loader->plugin; }

const char *zf_loader_file(const zf_loader_t *loader) { return loader->file; }

/* ---- counters ---------------------------------------------------------------------------------------------------- */

zf_status_t zf_counter_value(const zf_plugin_t *plugin, zf_instance_t *instance, const char *name, uint64_t *out_value,
                             zf_error_t *err) {
    const zf_stats_ext_t *stats = plugin->get_extension(ZF_EXT_STATS);
    for (uint32_t i = 0, n = stats == NULL ? 0 : stats->n_counters(); i < n; ++i) {
        zf_counter_t counter = {.struct_size = sizeof counter};
        zf_status_t st = stats->counter(instance, i, &counter, err);
        if (st < 0)
            return st;
        if (strcmp(counter.name, name) == 0) {
            *out_value = counter.value;
            return ZF_OK;
        }
    }
    return fail(err, ZF_ERR_ARGUMENT, 0, "the plugin has no counter \"%s\" in " ZF_EXT_STATS, name);
}

/* ---- what every C host fills in ---------------------------------------------------------------------------------- */

static zf_dtype_t make_dtype(uint8_t code, uint8_t bits) {
    return (zf_dtype_t){.code = code, .bits = bits, .lanes = 1};
}

zf_dtype_t zf_dtype_float32(void) { return make_dtype(ZF_DTYPE_CODE_FLOAT, 32); }

zf_dtype_t zf_dtype_bfloat16(void) { return make_dtype(ZF_DTYPE_CODE_BFLOAT, 16); }

zf_dtype_t zf_dtype_float16(void) { return make_dtype(ZF_DTYPE_CODE_FLOAT, 16); }

void zf_tensor_contiguous(void *data, zf_dtype_t dtype, int32_t ndim, const int64_t *shape, zf_tensor_t *out_tensor) {
    uint64_t n_elems = 1;
    for (int32_t i = 0; i < ndim; ++i)
        n_elems *= (uint64_t)shape[i];
    *out_tensor =
        (zf_tensor_t){.struct_size = sizeof *out_tensor,
                      .dl = {.data = data, .device_type = ZF_DEVICE_CPU, .ndim = ndim, .dtype = dtype, .shape = shape},
                      .nbytes = n_elems * (uint64_t)dtype.lanes * ((uint64_t)dtype.bits / 8u)};
}

void zf_stream_host_thread(zf_stream_t *out_stream) {
    *out_stream =
        (zf_stream_t){.struct_size = sizeof *out_stream, .kind = ZF_STREAM_HOST_THREAD, .device_type = ZF_DEVICE_CPU};
}

/* ctx carries the level itself: nothing to allocate, nothing to free. */
static void log_to_stderr(void *ctx, int32_t level, const char *component, const char *file, int32_t line,
                          const char *msg, uint64_t len) {
    static const char *const names[] = {"?", "error", "warning", "info", "debug"};
    if (level > (int32_t)(intptr_t)ctx)
        return;
    (void)file;
    (void)line;
    fprintf(stderr, "zfplugin %s: %s: %.*s\n", level >= ZF_LOG_ERROR && level <= ZF_LOG_DEBUG ? names[level] : names[0],
            component == NULL ? "?" : component, (int)(len > 4096 ? 4096 : len), msg);
}

void zf_host_stderr(const char *name, const char *version, int32_t max_level, zf_host_t *out_host) {
    *out_host = (zf_host_t){.struct_size = sizeof *out_host,
                            .ctx = (void *)(intptr_t)max_level,
                            .name = name,
                            .version = version,
                            .log = log_to_stderr};
}
