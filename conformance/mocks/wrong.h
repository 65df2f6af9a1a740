/* SPDX-License-Identifier: Apache-2.0 */
/* wrong.h - what the files of the wrong plugin share (wrong_plugin.c has its model). */
#pragma once

#include "zf/plugin.h"

enum {
#define WRONG(name, kind, part, what) WRONG_##name,
#include "wrong.def"
#undef WRONG
    N_WRONG
};

extern int wrong_habit;
#define IS(name) (wrong_habit == WRONG_##name)

/* What the host is told of a call of `slot` that the true plugin answered with st: its refusal may be kept back, and
 * the record spoiled. Returns what the slot returns. */
zf_status_t wrong_told(const char *slot, zf_status_t st, zf_error_t *err);
/* Refuses what is right. */
zf_status_t wrong_refuse(zf_error_t *err, zf_status_t st);

/* What is done to the process beside the call (wrong_manners.c). n: of the step, from 1. */
void wrong_in_negotiate(void);
void wrong_in_create(const zf_host_t *host);
void wrong_in_bind(void);
void wrong_in_step(uint64_t n);
/* Behind a step: nine times the processor time since the step before. */
void wrong_burn(void);
/* Memory is taken and forgotten, where is_lost; of a call that was refused. */
void wrong_lose(int is_lost);
void wrong_lose_refused(int habit, zf_status_t st);
/* The habit of a thread that can be cancelled in this call. */
void wrong_end_cancelled(int habit);

/* The true plugin's extensions and what is handed out in their place (wrong_extensions.c). */
void wrong_wrap_extensions(const zf_plugin_t *real);
const void *wrong_extension(const char *id);

/* What follows the writing of a checkpoint beside its path, where a habit has an order of its own, else NULL; and doing
 * it (wrong_save.c). */
const char *wrong_save_order(void);
void wrong_save_finish(const char *path, const char *beside);

/* wrong_outside.c: arguments on their way in, and what comes back. */
void wrong_out_create(zf_create_args_t *args);
void wrong_out_hyper(zf_group_hyper_t *h, uint64_t n);
void wrong_out_loaded(uint64_t step);
void wrong_out_step(zf_step_args_t *a);
zf_status_t wrong_out_stepped(zf_status_t st, zf_step_report_t *r);
void wrong_out_values(float *x, size_t n, size_t n_columns);
void wrong_out_item(zf_grad_item_t *item);
void wrong_out_error(zf_error_t *err);

/* wrong_late.c: numbers that few runs come to, memory that instances claim, what steps say of levels. */
void wrong_late_create(zf_create_args_t *args, const char **keys);
void wrong_late_announced(const zf_step_args_t *args);
void wrong_late_step(zf_step_args_t *args, zf_group_hyper_t *groups);
zf_status_t wrong_claim(const zf_instance_t *x, const zf_bind_args_t *args, zf_status_t st, zf_error_t *err);
void wrong_claims_end(const zf_instance_t *x);
void wrong_late_error(zf_error_t *err);
const void *wrong_break_table_late(const char *id, const void *table);

/* wrong_sentences.c, wrong_tables.c: functions of a habit in place of the table's, and of an extension's (id). */
void wrong_break_sentence(zf_plugin_t *table);
const void *wrong_break_table(const char *id, const void *table);
void wrong_break_again(zf_plugin_t *table);
const void *wrong_break_table_again(const char *id, const void *table);
void wrong_break_third(zf_plugin_t *table);
void wrong_break_lists(zf_plugin_t *table);
void wrong_break_drawn(zf_plugin_t *table);
const void *wrong_break_table_drawn(const char *id, const void *table);
const void *wrong_break_table_lists(const char *id, const void *table);

/* What a learning rate is multiplied with: 1, but where the file itself is wrong (wrong_file.c). */
float wrong_rate(void);
