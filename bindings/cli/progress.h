/* SPDX-License-Identifier: Apache-2.0 */
/* bindings/cli/progress.h - one line on stderr that says what a command is doing, how far it is and for how long, where
 * stderr is a terminal; elsewhere nothing.
 *
 * There is one at a time. The line is written anew every half second by a thread of its own, so that it goes on while
 * the plugin works, and is taken away before anything else is printed: whoever prints ends it first, as
 * zf_cli_fail and zf_cli_complain do. Functions are called by the main thread only. */
#pragma once

#include <stdint.h>

/* What is done: "verifying"; of: what it is done to, or NULL. Ends the one before. */
void zf_cli_progress_begin(const char *what, const char *of);
/* So many of so many are done; total 0: unknown. */
void zf_cli_progress_count(uint64_t n_done, uint64_t n_all);
/* Takes the line away. Nothing where there is none. */
void zf_cli_progress_end(void);
