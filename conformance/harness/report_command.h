/* SPDX-License-Identifier: Apache-2.0 */
/* harness/report_command.h - "zf-conform --report FILE.html": areas run one after the other, and one page drawn of
 * their results. */
#ifndef ZF_CONFORMANCE_REPORT_COMMAND_H
#define ZF_CONFORMANCE_REPORT_COMMAND_H

/* argv[0] is "--report". Exit status: that of the areas run (1 before 2 before 3), whether the page could be drawn or
 * not; 2 where no area was to be run and the page could not be drawn. */
int zr_report_main(int argc, char **argv);

#endif
