/* SPDX-License-Identifier: Apache-2.0 */
/* tests/plugin/test_state_dir.c - where a checkpoint may be saved and from where it is loaded. */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "state_rig.h"
#include "suite.h"

static zt_rig_t rig;
static zt_memory_store_t store;

/* A directory with anything else in it is not replaced, a checkpoint is. */
START_TEST(directories) {
    char path[128], file[160], command[600];
    FILE *f;
    zt_state_open(&rig, zt_state_configs[0]);
    snprintf(path, sizeof path, "%s/mine", zt_state_dir());
    snprintf(command, sizeof command, "mkdir -p %s", path);
    ck_assert_int_eq(system(command), 0);
    ZT_OK(&rig, zt_save(&rig, NULL, path, 0, NULL));
    snprintf(command, sizeof command, "test -e %s/zf_state.json", path);
    ck_assert_int_eq(system(command), 0);
    snprintf(file, sizeof file, "%s/thesis.tex", path);
    f = fopen(file, "w");
    fclose(f);
    ck_assert_int_eq(zt_save(&rig, NULL, path, 0, NULL), ZF_ERR_STORAGE);
    ck_assert_ptr_nonnull(strstr(rig.err.message, "thesis.tex"));
    f = fopen(file, "r");
    ck_assert_ptr_nonnull(f);
    fclose(f);
    for (int i = 0; i < 3; i++) { /* names like a checkpoint's do not make it one's */
        static const char *const make[] = {"touch %s/zf_state_notes.txt", "mkdir %s/zf_state-00001.safetensors",
                                           "touch %s/zf_state-1.safetensors"};
        snprintf(path, sizeof path, "%s/like%d", zt_state_dir(), i);
        snprintf(file, sizeof file, make[i], path);
        snprintf(command, sizeof command, "mkdir %s && %s", path, file);
        ck_assert_int_eq(system(command), 0);
        ck_assert_int_eq(zt_save(&rig, NULL, path, 0, NULL), ZF_ERR_STORAGE);
        ck_assert_ptr_nonnull(strstr(rig.err.message, "not of a checkpoint"));
        snprintf(command, sizeof command, "test -n \"$(ls %s)\" && test ! -e %s.zf-save-*", path, path);
        ck_assert_int_eq(system(command), 0);
    }
    snprintf(path, sizeof path, "%s/link", zt_state_dir());
    snprintf(command, sizeof command, "ln -s nowhere %s", path);
    ck_assert_int_eq(system(command), 0);
    ck_assert_int_eq(zt_save(&rig, NULL, path, 0, NULL), ZF_ERR_STORAGE); /* and it stays a link */
    ck_assert_ptr_nonnull(strstr(rig.err.message, "leads nowhere"));
    snprintf(command, sizeof command, "mkdir %s/nowhere && test -L %s", zt_state_dir(), path);
    ck_assert_int_eq(system(command), 0);
    ZT_OK(&rig, zt_save(&rig, NULL, path, 0, NULL));
    snprintf(command, sizeof command, "test -L %s && test -e %s/nowhere/zf_state.json", path, zt_state_dir());
    ck_assert_int_eq(system(command), 0);
    ck_assert_int_eq(zt_save(&rig, NULL, "/proc/no/such", 0, NULL), ZF_ERR_STORAGE);
    ck_assert_int_eq(zt_save(&rig, NULL, "", 0, NULL), ZF_ERR_ARGUMENT);
    ck_assert_int_eq(zt_save(&rig, NULL, NULL, 0, NULL), ZF_ERR_ARGUMENT);
    ck_assert_int_eq(zt_save(&rig, &store.table, path, 0, NULL), ZF_ERR_ARGUMENT);
    ck_assert_int_eq(zt_load(&rig, NULL, "/no/such", 0, NULL), ZF_ERR_STORAGE);
    ck_assert_int_eq(zt_load(&rig, NULL, path, ZF_STATE_COMPACT, NULL), ZF_ERR_UNSUPPORTED_FIELD);
    zt_rig_end(&rig);
}
END_TEST

/* A bare name in the working directory, and so small files that each parameter has its own; synced and not. */
START_TEST(several_files_and_a_bare_name) {
    zt_rig_t copy;
    const char *dir = zt_state_dir();
    zf_state_args_t args = {.struct_size = sizeof args, .path = "bare"};
    zt_state_open(&rig, zt_state_configs[0]);
    zt_state_open(&copy, zt_state_configs[0]);
    setenv("ZF_STATE_FILE_NBYTES", "1000", 1);
    ck_assert_int_eq(chdir(dir), 0);
    for (int k = 0; k < 4; k++) {
        zt_state_steps(&rig, 2);
        args.flags = k % 2 ? ZF_STATE_NO_SYNC : 0;
        ZT_OK(&rig, zt_state(&rig)->save(rig.inst, &args, NULL, &rig.err));
        ck_assert_int_eq(system("test $(ls bare | grep -c 'zf_state-0000[1-6].safetensors') = 6"), 0);
        ck_assert_int_eq(system("test \"$(ls -A)\" = bare"), 0);
        ZT_OK(&copy, zt_load(&copy, NULL, k < 2 ? "bare" : "./bare//", ZF_STATE_EXACT, NULL));
        zt_state_check_equal(&rig, &copy, "several files");
        if (k == 1)
            setenv("ZF_STATE_FILE_NBYTES", "1", 1);
    }
    unsetenv("ZF_STATE_FILE_NBYTES");
    args.flags = 0;
    ZT_OK(&rig, zt_state(&rig)->save(rig.inst, &args, NULL, &rig.err)); /* of one file again: the others go */
    ck_assert_int_eq(system("test $(ls bare | wc -l) = 2"), 0);
    ck_assert_int_eq(chdir(".."), 0);
    zt_rig_end(&copy);
    zt_rig_end(&rig);
}
END_TEST

ZT_MAIN("state_dir", directories, several_files_and_a_bare_name)
