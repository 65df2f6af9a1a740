/* SPDX-License-Identifier: Apache-2.0 */
/* test_loader.c - bindings/c/zf_loader.[ch] against files that are no plugins, mock plugins that each break one rule of
 * the entry (mocks/), and fences. Each failure must carry its own status and a message that names file and cure. */
#define _GNU_SOURCE

#include <elf.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <time.h>
#include <unistd.h>

#include "suite.h"
#include "zf_loader.h"

static zf_error_t err;

static void setup(void) {
    unsetenv("ZF_MOCK");
    err = (zf_error_t){.struct_size = sizeof err};
}

static void contains(const char *text, const char *part) {
    ck_assert_msg(strstr(text, part) != NULL, "\"%s\" is not in \"%s\"", part, text);
}

/* Opening path fails with this status and with both words in the message; without an error record too. */
static void fails(const char *path, zf_status_t status, const char *word1, const char *word2) {
    zf_loader_t *loader = NULL;
    ck_assert_int_eq(zf_loader_open(path, &loader, &err), status);
    ck_assert_ptr_null(loader);
    ck_assert_int_eq(err.status, status);
    ck_assert_str_eq(err.origin, "zf_loader");
    contains(err.message, word1);
    contains(err.message, word2);
    ck_assert_int_eq(zf_loader_open(path, &loader, NULL), status);
    ck_assert_ptr_null(loader);
}

static zf_loader_t *opens(const char *path) {
    zf_loader_t *loader = NULL;
    ck_assert_msg(zf_loader_open(path, &loader, &err) == ZF_OK, "%s", err.message);
    ck_assert_ptr_nonnull(loader);
    return loader;
}

static int is_noexec; /* what the test makes of every mount */

int statvfs(const char *path, struct statvfs *out) {
    (void)path;
    *out = (struct statvfs){.f_flag = is_noexec ? ST_NOEXEC : 0};
    return 0;
}

/* ---- files that are no plugins ----------------------------------------------------------------------------------- */

/* A temporary file with these bytes; the caller unlinks it. */
static const char *write_file(const void *bytes, size_t nbytes) {
    static char path[32];
    strcpy(path, "/tmp/zf_test_loader_XXXXXX");
    int fd = mkstemp(path);
    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq((int)write(fd, bytes, nbytes), (int)nbytes);
    close(fd);
    return path;
}

static void fails_as_file(const void *bytes, size_t nbytes, const char *word) {
    const char *path = write_file(bytes, nbytes);
    fails(path, ZF_LOADER_ERR_FILE, path, word);
    unlink(path);
}

ZT_TEST(missing_file) {
    fails("/no/such/dir/libzfplugin.so", ZF_LOADER_ERR_FILE, "/no/such/dir/libzfplugin.so", "No such file");
    contains(err.message, "ZFPLUGIN_PATH");
    ck_assert_int_eq(err.native_code, 2);
    fails("libzf_found_nowhere.so.9", ZF_LOADER_ERR_FILE, "libzf_found_nowhere.so.9", "LD_LIBRARY_PATH");
}

/* The dynamic linker says the same of both. */
ZT_TEST(no_code_may_run_there) {
    is_noexec = 1;
    fails(MOCK_DIR "/mock_undefined.so", ZF_LOADER_ERR_FILE, "mock_undefined.so", "file system is mounted noexec");
    is_noexec = 0;
    fails(MOCK_DIR "/mock_undefined.so", ZF_LOADER_ERR_FILE, "mock_undefined.so", "missing or too old");
}

ZT_TEST(long_path_keeps_its_end) {
    char path[1500];
    memset(path, 'x', sizeof path);
    memcpy(path, "/no/", 4);
    strcpy(path + sizeof path - sizeof "/the_end.so", "/the_end.so");
    fails(path, ZF_LOADER_ERR_FILE, "/the_end.so", "...xxx");
}

/* Of 120 bytes, at whose begin the third byte of a character is for one of the lengths. */
ZT_TEST(long_paths_are_cut_between_characters) {
    for (int first = 0; first < 3; first++) {
        char path[700] = "/xxx", want[200] = "...";
        path[1 + first] = '\0';
        for (int i = 0; i < 200; i++)
            strcat(path, "\xe2\x82\xac");
        for (int i = 0; i < 39; i++)
            strcat(want, "\xe2\x82\xac");
        zf_loader_t *loader;
        strcat(path, first == 0 ? "a" : first == 1 ? "ab" : "abc");
        strcat(want, first == 0 ? "a: " : first == 1 ? "ab: " : "abc: ");
        ck_assert_int_eq(zf_loader_open(path, &loader, &err), ZF_LOADER_ERR_FILE);
        contains(err.message, want);
        ck_assert_int_eq(strncmp(err.message, want, 6), 0);
    }
}

ZT_TEST(no_library) {
    fails(MOCK_DIR, ZF_LOADER_ERR_FILE, &MOCK_DIR[sizeof MOCK_DIR - 7], "is a directory");
    fails_as_file("update_interval = 4\nmore text here\n", 35, "no ELF header");
    fails_as_file("", 0, "no ELF header");
}

/* The first bytes of a real library; the loader must judge them before the dynamic linker does. */
static void read_header(Elf64_Ehdr *out_header) {
    FILE *file = fopen(MOCK_DIR "/mock_good.so", "rb");
    ck_assert_ptr_nonnull(file);
    ck_assert_int_eq((int)fread(out_header, sizeof *out_header, 1, file), 1);
    fclose(file);
}

ZT_TEST(headers_of_other_files) {
    Elf64_Ehdr good, header;
    read_header(&good);
    header = good;
    header.e_machine = header.e_machine == EM_PPC64 ? EM_X86_64 : EM_PPC64;
    fails_as_file(&header, sizeof header, "another machine");
    header = good;
    header.e_ident[EI_CLASS] = header.e_ident[EI_CLASS] == ELFCLASS64 ? ELFCLASS32 : ELFCLASS64;
    fails_as_file(&header, sizeof header, "-bit library");
    header = good;
    header.e_type = ET_REL;
    fails_as_file(&header, sizeof header, "not a shared library");
    fails_as_file(&good, 30, "cut short");
    fails_as_file(&good, sizeof good, "cut short: it has 64 bytes"); /* nothing behind it */
}

/* All of a real library; the caller frees it. */
static unsigned char *read_library(size_t *out_nbytes) {
    struct stat st;
    ck_assert_int_eq(stat(MOCK_DIR "/mock_good.so", &st), 0);
    *out_nbytes = (size_t)st.st_size;
    unsigned char *bytes = malloc(*out_nbytes);
    FILE *file = fopen(MOCK_DIR "/mock_good.so", "rb");
    ck_assert_ptr_nonnull(bytes);
    ck_assert_ptr_nonnull(file);
    ck_assert_uint_eq(fread(bytes, 1, *out_nbytes, file), *out_nbytes);
    fclose(file);
    return bytes;
}

/* What the dynamic linker maps ends before the file does: the rest, sections and debug information, may be missing. */
static size_t end_of_segments(const unsigned char *bytes) {
    Elf64_Ehdr header;
    Elf64_Phdr segment;
    size_t end = 0;
    memcpy(&header, bytes, sizeof header);
    for (size_t i = 0; i < header.e_phnum; i++) {
        memcpy(&segment, bytes + header.e_phoff + i * sizeof segment, sizeof segment);
        if (segment.p_type == PT_LOAD && segment.p_offset + segment.p_filesz > end)
            end = (size_t)(segment.p_offset + segment.p_filesz);
    }
    return end;
}

/* dlopen maps such a file and dies of SIGBUS where it touches a page behind its end. */
ZT_TEST(cut_short_behind_the_header) {
    size_t nbytes;
    unsigned char *bytes = read_library(&nbytes);
    size_t end = end_of_segments(bytes);
    ck_assert_uint_gt(end, 4096);
    for (size_t cut = 64; cut < end; cut += end / 23)
        fails_as_file(bytes, cut, "cut short");
    fails_as_file(bytes, end - 1, "cut short");
    const char *path = write_file(bytes, end);
    zf_loader_close(opens(path));
    unlink(path);
    free(bytes);
}

/* Sizes that no sum may wrap around. */
ZT_TEST(impossible_segments) {
    size_t nbytes;
    unsigned char *bytes = read_library(&nbytes);
    Elf64_Ehdr header;
    Elf64_Phdr segment;
    memcpy(&header, bytes, sizeof header);
    memcpy(&segment, bytes + header.e_phoff, sizeof segment);
    segment.p_type = PT_LOAD;
    segment.p_offset = UINT64_MAX - 10;
    segment.p_filesz = 100;
    memcpy(bytes + header.e_phoff, &segment, sizeof segment);
    fails_as_file(bytes, nbytes, "cut short");
    const Elf64_Off offsets[] = {UINT64_MAX, UINT64_MAX - 8, INT64_MAX, (Elf64_Off)nbytes};
    Elf64_Ehdr spoilt = header;
    for (size_t i = 0; i < sizeof offsets / sizeof offsets[0]; i++) {
        spoilt.e_phoff = offsets[i];
        memcpy(bytes, &spoilt, sizeof spoilt);
        fails_as_file(bytes, nbytes, "cut short");
    }
    spoilt = header;
    spoilt.e_phentsize = 1;
    memcpy(bytes, &spoilt, sizeof spoilt);
    fails_as_file(bytes, nbytes, "damaged");
    free(bytes);
}

/* ---- plugins that break a rule ----------------------------------------------------------------------------------- */

/* mock_NAME.so, or mock_good.so with ZF_MOCK=KIND. */
static const struct {
    const char *name, *kind;
    zf_status_t status;
    const char *word1, *word2;
} mocks[] = {
    {"undefined", "", ZF_LOADER_ERR_FILE, "zf_mock_found_nowhere", "mock_undefined.so"},
    {"no_symbol", "", ZF_LOADER_ERR_SYMBOL, "mock_no_symbol.so", "zf_plugin_negotiate"},
    {"borrowed", "", ZF_LOADER_ERR_SYMBOL, "mock_borrowed.so", "mock_good.so"}, /* the symbol of a dependency */
    {"good", "other_abi", ZF_ERR_ABI, "serves 0.16", "mock_good.so"},
    {"good", "other_abi", ZF_ERR_ABI, "serves 0.16", "plugin knows 7.3"},
    {"good", "silent_abi", ZF_ERR_ABI, "serves 0.16", "nothing"},
    {"good", "unserved_abi", ZF_ERR_ABI, "chose ABI 5.2", "serves 0.16"},
    {"good", "refuses", ZF_ERR_MEMORY, "mock_good.so", "no memory for the mock"},
    {"good", "no_table", ZF_ERR_ABI, "mock_good.so", "no table"},
    {"good", "table_abi", ZF_ERR_ABI, "chose ABI 0.16", "says 3.1"},
    {"good", "null_slot", ZF_ERR_ABI, "no function step", "mock_good.so"},
    {"good", "short_table", ZF_ERR_ABI, "ends before poll", "mock_good.so"},
    {"good", "tiny_table", ZF_ERR_ABI, "ends before describe", "4 bytes"},
};

ZT_TEST(plugins_that_break_a_rule) {
    for (size_t i = 0; i < sizeof mocks / sizeof *mocks; i++) {
        char path[sizeof MOCK_DIR + 32];
        snprintf(path, sizeof path, "%s/mock_%s.so", MOCK_DIR, mocks[i].name);
        setenv("ZF_MOCK", mocks[i].kind, 1);
        fails(path, mocks[i].status, mocks[i].word1, mocks[i].word2);
    }
}

/* ---- plugins that work ------------------------------------------------------------------------------------------- */

ZT_TEST(good) {
    zf_loader_t *loader = opens(MOCK_DIR "/mock_good.so");
    const zf_plugin_t *plugin = zf_loader_plugin(loader);
    ck_assert_uint_eq(plugin->abi, ZF_ABI_0_16);
    contains(zf_loader_file(loader), "mock_good.so");
    zf_loader_close(loader);

    /* the library stays mapped, also one that was not linked with -z nodelete */
    zf_description_t is = {.struct_size = sizeof is};
    ck_assert_int_eq(plugin->describe(&is, NULL), ZF_OK);
    ck_assert_str_eq(is.name, "mock");
    zf_loader_close(NULL);
}

ZT_TEST(opened_twice) {
    zf_loader_t *first = opens(MOCK_DIR "/mock_good.so");
    zf_loader_t *second = opens(MOCK_DIR "/../mocks/mock_good.so");
    ck_assert_ptr_eq(zf_loader_plugin(first), zf_loader_plugin(second));
    zf_loader_close(first);
    zf_loader_close(second);
}

ZT_TEST(longer_table) {
    setenv("ZF_MOCK", "long_table", 1);
    zf_loader_close(opens(MOCK_DIR "/mock_good.so"));
}

ZT_TEST(path_from_the_environment) {
    setenv("ZFPLUGIN_PATH", MOCK_DIR "/mock_good.so", 1);
    zf_loader_close(opens(NULL));
    setenv("ZFPLUGIN_PATH", "/no/such/plugin.so", 1);
    fails(NULL, ZF_LOADER_ERR_FILE, "/no/such/plugin.so", "ZFPLUGIN_PATH");
    zf_loader_close(opens(MOCK_DIR "/mock_good.so")); /* an explicit path wins */
}

/* Without a path and a variable the plain soname is searched. */
ZT_TEST(soname_is_the_last_resort) {
    unsetenv("ZFPLUGIN_PATH");
    zf_loader_t *loader = NULL;
    if (zf_loader_open(NULL, &loader, &err) == ZF_OK) /* this machine has one installed */
        zf_loader_close(loader);
    else
        contains(err.message, "libzfplugin.so.0");
}

ZT_TEST(null_arguments) { ck_assert_int_eq(zf_loader_open(MOCK_DIR "/mock_good.so", NULL, &err), ZF_ERR_ARGUMENT); }

/* ---- what every C host fills in ---------------------------------------------------------------------------------- */

ZT_TEST(tensors_and_streams) {
    float data[24];
    int64_t shape[] = {2, 3, 4};
    zf_tensor_t tensor;
    zf_tensor_contiguous(data, zf_dtype_float32(), 3, shape, &tensor);
    ck_assert_uint_eq(tensor.struct_size, sizeof tensor);
    ck_assert_uint_eq(tensor.nbytes, sizeof data);
    ck_assert_ptr_eq(tensor.dl.data, data);
    ck_assert_ptr_eq(tensor.dl.shape, shape);
    ck_assert_ptr_null(tensor.dl.strides);
    ck_assert_int_eq(tensor.dl.ndim, 3);
    ck_assert_int_eq(tensor.dl.device_type, ZF_DEVICE_CPU);
    ck_assert_int_eq(tensor.dl.dtype.code, ZF_DTYPE_CODE_FLOAT);
    ck_assert_int_eq(tensor.dl.dtype.bits, 32);
    ck_assert_int_eq(tensor.dl.dtype.lanes, 1);
    zf_tensor_contiguous(data, zf_dtype_bfloat16(), 2, shape, &tensor);
    ck_assert_uint_eq(tensor.nbytes, 12);
    ck_assert_int_eq(tensor.dl.dtype.code, ZF_DTYPE_CODE_BFLOAT);
    zf_tensor_contiguous(data, zf_dtype_float32(), 0, NULL, &tensor);
    ck_assert_uint_eq(tensor.nbytes, 4);

    zf_stream_t stream;
    zf_stream_host_thread(&stream);
    ck_assert_uint_eq(stream.struct_size, sizeof stream);
    ck_assert_int_eq(stream.kind, ZF_STREAM_HOST_THREAD);
    ck_assert_int_eq(stream.device_type, ZF_DEVICE_CPU);
    ck_assert_uint_eq(stream.handle, 0);
}

ZT_TEST(log_to_stderr) {
    zf_host_t host;
    zf_host_stderr("test", "1.0", ZF_LOG_WARN, &host);
    ck_assert_uint_eq(host.struct_size, sizeof host);
    ck_assert_str_eq(host.name, "test");
    ck_assert_ptr_null(host.get_extension);

    int ends[2], saved = dup(STDERR_FILENO);
    ck_assert_int_eq(pipe(ends), 0);
    dup2(ends[1], STDERR_FILENO);
    host.log(host.ctx, ZF_LOG_WARN, "config", "config.c", 7, "told, cut here", 4);
    host.log(host.ctx, ZF_LOG_INFO, "config", "config.c", 8, "kept", 4);
    dup2(saved, STDERR_FILENO);
    close(ends[1]);
    char text[200] = "";
    ck_assert_int_gt((int)read(ends[0], text, sizeof text - 1), 0);
    ck_assert_str_eq(text, "zfplugin warning: config: told\n");
    close(ends[0]);
    close(saved);
}

/* ---- main -------------------------------------------------------------------------------------------------------- */

ZT_SUITE_WITH("loader", setup, NULL)
