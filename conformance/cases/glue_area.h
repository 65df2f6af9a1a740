/* SPDX-License-Identifier: Apache-2.0 */
/* glue_area.h - the areas "glue" and "curves" of zf-conform: accuracy parity through the reference host. */
#ifndef ZF_CONFORMANCE_CASES_GLUE_AREA_H
#define ZF_CONFORMANCE_CASES_GLUE_AREA_H

/* Entry points; argv[0] is the area's name. Return the exit status of zf-conform. */
int zg_glue_main(int argc, char **argv);
int zg_curves_main(int argc, char **argv);

#endif
