/* SPDX-License-Identifier: Apache-2.0 */
/* abi_main.h - zf-conform abi. */
#ifndef ZFC_ABI_MAIN_H
#define ZFC_ABI_MAIN_H

/* The subcommand; argv[0] is its name. Exit status: 0 conforms, 1 does not, 2 could not run, 77 skipped. */
int zfc_abi_main(int argc, char **argv);

#endif
