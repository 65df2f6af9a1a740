/* SPDX-License-Identifier: Apache-2.0 */
/* cost.h - zf-conform cost: what a step takes beside AdamW's. */
#pragma once

/* The subcommand; argv[0] is its name. Exit status: 0 within the bars, 1 not, 2 could not run. */
int zk_cost_main(int argc, char **argv);
