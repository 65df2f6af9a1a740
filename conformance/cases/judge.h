/* SPDX-License-Identifier: Apache-2.0 */
/* judge.h - zf-conform judge: may this library be deployed on this machine? */
#pragma once

/* The subcommand; argv[0] is its name. Exit status: 0 conforms, 1 does not, 2 could not run, 3 inconclusive. */
int zj_judge_main(int argc, char **argv);
