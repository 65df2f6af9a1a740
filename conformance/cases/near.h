/* SPDX-License-Identifier: Apache-2.0 */
/* near.h - zf-conform near: AdamW of any rounding. */
#pragma once

/* The subcommand; argv[0] is its name. Exit status: 0 conforms, 1 does not, 2 could not run. */
int zn_near_main(int argc, char **argv);
