/* SPDX-License-Identifier: Apache-2.0 */
/* abi_elf.c - proof 3: what the dynamic linker sees of the file. Reads 64-bit ELF itself; runs no code of the plugin.
 *
 * Model: the file is mapped; the dynamic section gives names, flags and string table (addresses are turned into file
 * offsets through the load segments), the section headers give the number of dynamic symbols. Every offset is checked
 * against the file's size before it is used. */
#define _GNU_SOURCE /* DF_1_NODELETE and others */
#include <elf.h>
#include <fcntl.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "abi_probes.h"

typedef struct elf_file {
    const unsigned char *data;
    size_t nbytes;
    const Elf64_Ehdr *header;
    const Elf64_Phdr *segments;
    const Elf64_Dyn *dynamic;
    size_t n_dynamic;
    const char *strings;
    size_t strings_nbytes;
    const Elf64_Sym *symbols;
    size_t n_symbols;
    const Elf64_Half *versions; /* [n_symbols], or NULL */
} elf_file_t;

static const void *at(const elf_file_t *f, uint64_t offset, uint64_t nbytes) {
    return offset <= f->nbytes && nbytes <= f->nbytes - offset ? f->data + offset : NULL;
}

static const void *at_address(const elf_file_t *f, uint64_t address, uint64_t nbytes) {
    for (int i = 0; i < f->header->e_phnum; i++) {
        const Elf64_Phdr *p = &f->segments[i];
        if (p->p_type == PT_LOAD && address >= p->p_vaddr && address - p->p_vaddr < p->p_filesz)
            return at(f, p->p_offset + (address - p->p_vaddr), nbytes);
    }
    return NULL;
}

static const char *string_at(const elf_file_t *f, uint64_t offset) {
    if (offset >= f->strings_nbytes || !memchr(f->strings + offset, 0, f->strings_nbytes - offset))
        return "";
    return f->strings + offset;
}

static uint64_t dynamic_value(const elf_file_t *f, int64_t tag) {
    for (size_t i = 0; i < f->n_dynamic && f->dynamic[i].d_tag != DT_NULL; i++)
        if (f->dynamic[i].d_tag == tag)
            return f->dynamic[i].d_un.d_val;
    return 0;
}

static const Elf64_Shdr *section_of_type(const elf_file_t *f, uint32_t type) {
    const Elf64_Shdr *sections = at(f, f->header->e_shoff, (uint64_t)f->header->e_shnum * sizeof *sections);
    for (int i = 0; sections && i < f->header->e_shnum; i++)
        if (sections[i].sh_type == type)
            return &sections[i];
    return NULL;
}

static const char *parse(elf_file_t *f) {
    const Elf64_Phdr *dynamic = NULL;
    f->header = at(f, 0, sizeof *f->header);
    if (!f->header || memcmp(f->header->e_ident, ELFMAG, SELFMAG) != 0)
        return "not an ELF file";
    if (f->header->e_ident[EI_CLASS] != ELFCLASS64 || f->header->e_type != ET_DYN)
        return "not a 64-bit shared library";
    f->segments = at(f, f->header->e_phoff, (uint64_t)f->header->e_phnum * sizeof *f->segments);
    if (!f->segments || f->header->e_phentsize != sizeof *f->segments)
        return "program headers are broken";
    for (int i = 0; i < f->header->e_phnum; i++)
        if (f->segments[i].p_type == PT_DYNAMIC)
            dynamic = &f->segments[i];
    if (!dynamic || !(f->dynamic = at(f, dynamic->p_offset, dynamic->p_filesz)))
        return "no dynamic section";
    f->n_dynamic = dynamic->p_filesz / sizeof *f->dynamic;
    f->strings_nbytes = dynamic_value(f, DT_STRSZ);
    f->strings = at_address(f, dynamic_value(f, DT_STRTAB), f->strings_nbytes);
    if (!f->strings)
        return "no dynamic string table";
    const Elf64_Shdr *s = section_of_type(f, SHT_DYNSYM);
    if (!s || !(f->symbols = at(f, s->sh_offset, s->sh_size)))
        return "no dynamic symbol table";
    f->n_symbols = s->sh_size / sizeof *f->symbols;
    s = section_of_type(f, SHT_GNU_versym);
    f->versions = s && s->sh_size / sizeof(Elf64_Half) >= f->n_symbols ? at(f, s->sh_offset, s->sh_size) : NULL;
    return NULL;
}

/* ---- symbols ----------------------------------------------------------------------------------------------------- */

/* Name of a version that the file defines; "" = none. */
static const char *version_name(const elf_file_t *f, size_t symbol) {
    uint64_t address = dynamic_value(f, DT_VERDEF), left = dynamic_value(f, DT_VERDEFNUM);
    if (!f->versions || !address)
        return "";
    for (; left; left--) {
        const Elf64_Verdef *d = at_address(f, address, sizeof *d);
        const Elf64_Verdaux *name = d ? at_address(f, address + d->vd_aux, sizeof *name) : NULL;
        if (!name)
            return "";
        if (d->vd_ndx == (f->versions[symbol] & 0x7FFF))
            return string_at(f, name->vda_name);
        address += d->vd_next;
    }
    return "";
}

static int is_exported(const Elf64_Sym *symbol) {
    return symbol->st_shndx != SHN_UNDEF && ELF64_ST_BIND(symbol->st_info) != STB_LOCAL &&
           ELF64_ST_VISIBILITY(symbol->st_other) != STV_HIDDEN;
}

static void check_exports(abi_probe_t *p, const elf_file_t *f) {
    const char *wanted = p->is_core ? ZF_PLUGIN_NEGOTIATE_SYMBOL : ZF_PLUGIN_NEGOTIATE_SYMBOL "@ZFPLUGIN_1";
    int is_there = 0;
    char found[256];
    for (size_t i = 1; i < f->n_symbols; i++) {
        const char *name = string_at(f, f->symbols[i].st_name), *version = version_name(f, i);
        if (!is_exported(&f->symbols[i]))
            continue;
        if (f->symbols[i].st_shndx == SHN_ABS && strcmp(name, version) == 0)
            continue;   /* the version's own name */
        if (p->is_core) /* a vendor's own */
            version = "";
        snprintf(found, sizeof found, "%s%s%s", name, *version ? "@" : "", version);
        is_there |=
            abi_check(p, ABI_RULE_EXPORTS, strcmp(found, wanted) == 0, "exports %s, not %s alone", found, wanted);
    }
    abi_check(p, ABI_RULE_EXPORTS, is_there, "does not export %s", wanted);
}

/* What no plugin may do, seen in what it imports. (Floating-point modes are watched at run time: threads of its own may
 * set theirs.) */
static int is_forbidden(const char *name) {
    static const char *const forbidden[] = {
        "setenv",    "unsetenv", "putenv",       "clearenv",      "signal",     "sigaction", "sigvec", "bsd_signal",
        "setlocale", "exit",     "_exit",        "_Exit",         "quick_exit", "abort",     "printf", "puts",
        "putchar",   "vprintf",  "__printf_chk", "__vprintf_chk", "perror",     "psignal",   "stdout", "stderr",
        "fork",      "vfork",    "system",       "popen",         "daemon",     "chdir",     "umask",  "atexit"};
    for (size_t i = 0; i < sizeof forbidden / sizeof forbidden[0]; i++)
        if (strcmp(name, forbidden[i]) == 0)
            return 1;
    return 0;
}

static void check_imports(abi_probe_t *p, const elf_file_t *f) {
    for (size_t i = 1; i < f->n_symbols; i++) {
        const char *name = string_at(f, f->symbols[i].st_name);
        if (f->symbols[i].st_shndx == SHN_UNDEF)
            abi_check(p, ABI_RULE_IMPORTS, !is_forbidden(name), "imports %s", name);
    }
}

/* ---- dynamic section --------------------------------------------------------------------------------------------- */

/* The C library in its parts and names, and inih; the hyphen is of the name that a copy has inside a wheel
 * (libinih-0123abcd.so.1). */
static int may_be_needed(const char *name) {
    static const char *const allowed[] = {"libc.so",       "libm.so",  "libinih.so", "ld-linux",
                                          "libpthread.so", "libdl.so", "librt.so",   "libc.musl-",
                                          "ld-musl-",      "ld64.so",  "libinih-"};
    for (size_t i = 0; i < sizeof allowed / sizeof allowed[0]; i++)
        if (strncmp(name, allowed[i], strlen(allowed[i])) == 0)
            return 1;
    return 0;
}

static void check_needed(abi_probe_t *p, const elf_file_t *f) {
    for (size_t i = 0; i < f->n_dynamic && f->dynamic[i].d_tag != DT_NULL; i++) {
        const char *name = string_at(f, f->dynamic[i].d_un.d_val);
        if (f->dynamic[i].d_tag == DT_NEEDED)
            abi_check(p, ABI_RULE_NEEDED, may_be_needed(name), "needs %s", name);
    }
}

static void check_flags(abi_probe_t *p, const elf_file_t *f) {
    const char *soname = dynamic_value(f, DT_SONAME) ? string_at(f, dynamic_value(f, DT_SONAME)) : "";
    int is_textrel = (dynamic_value(f, DT_FLAGS) & DF_TEXTREL) != 0, has_stack = 0, is_exec = 0;
    for (size_t i = 0; i < f->n_dynamic && f->dynamic[i].d_tag != DT_NULL; i++)
        is_textrel |= f->dynamic[i].d_tag == DT_TEXTREL;
    for (int i = 0; i < f->header->e_phnum; i++)
        if (f->segments[i].p_type == PT_GNU_STACK)
            has_stack = 1, is_exec = (f->segments[i].p_flags & PF_X) != 0;
    if (!p->is_core)
        abi_check(p, ABI_RULE_SONAME, strcmp(soname, "libzfplugin.so.0") == 0, "SONAME is \"%s\", not libzfplugin.so.0",
                  soname);
    abi_check(p, ABI_RULE_NODELETE, (dynamic_value(f, DT_FLAGS_1) & DF_1_NODELETE) != 0,
              "flag NODELETE is not set: link with -z nodelete");
    abi_check(p, ABI_RULE_STACK, has_stack && !is_exec, "%s",
              has_stack ? "asks for an executable stack" : "says nothing about its stack (no PT_GNU_STACK)");
    abi_check(p, ABI_RULE_TEXTREL, !is_textrel, "has relocations in its code: compile with -fPIC");
}

int abi_elf_check(abi_probe_t *p, const char **why) {
    elf_file_t f = {0};
    struct stat info;
    void *map = MAP_FAILED;
    int fd = open(p->plugin, O_RDONLY | O_CLOEXEC);
    *why = "cannot be read";
    if (fd < 0)
        return -1;
    if (fstat(fd, &info) == 0 && S_ISREG(info.st_mode) && info.st_size > 0)
        map = mmap(NULL, (size_t)info.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
    close(fd);
    if (map == MAP_FAILED)
        return -1;
    f.data = map;
    f.nbytes = (size_t)info.st_size;
    *why = parse(&f);
    if (!*why) {
        check_exports(p, &f);
        check_imports(p, &f);
        if (!p->is_core)
            check_needed(p, &f);
        check_flags(p, &f);
    }
    munmap(map, f.nbytes);
    return *why ? -1 : 0;
}
