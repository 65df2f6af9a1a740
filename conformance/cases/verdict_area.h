/* SPDX-License-Identifier: Apache-2.0 */
/* verdict_area.h - the area "verdict" of zf-conform: judges scores that another host has made. */
#ifndef ZF_CONFORMANCE_CASES_VERDICT_AREA_H
#define ZF_CONFORMANCE_CASES_VERDICT_AREA_H

/* Entry point; argv[0] is the area's name. Returns the exit status of zf-conform. */
int zv_verdict_main(int argc, char **argv);

#endif
