/* SPDX-License-Identifier: Apache-2.0 */
/* abi_environment.c - the program's own getenv, which stands before the C library's for the plugin, too: it notes what
 * is asked for (abi_probes.h). The C library's own questions do not come here. */
#define _GNU_SOURCE
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <unistd.h>

#include "abi_probes.h"

enum { MOST_NAMES = 64, NAME_NBYTES = 64 };

static _Atomic uint32_t n_read;
static _Atomic int is_noting;
static char names[MOST_NAMES][NAME_NBYTES];

static char *find(const char *name) {
    size_t n = strlen(name);
    for (char **e = environ; e && *e; e++)
        if (strncmp(*e, name, n) == 0 && (*e)[n] == '=')
            return *e + n + 1;
    return NULL;
}

char *getenv(const char *name) {
    uint32_t at = atomic_load(&is_noting) ? atomic_fetch_add(&n_read, 1) : MOST_NAMES;
    if (at < MOST_NAMES)
        snprintf(names[at], NAME_NBYTES, "%s", name);
    return find(name);
}

char *secure_getenv(const char *name) { return getauxval(AT_SECURE) ? NULL : getenv(name); }

void abi_environment_begin(void) { atomic_store(&is_noting, 1); }

const char *abi_environment_read(uint32_t i) {
    atomic_store(&is_noting, 0);
    return i < MOST_NAMES && i < atomic_load(&n_read) ? names[i] : NULL;
}
