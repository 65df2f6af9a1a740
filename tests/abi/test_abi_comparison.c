/* SPDX-License-Identifier: Apache-2.0 */
/* test_abi_comparison.c - what may differ between two layouts. */
#include <check.h>
#include <string.h>

#include "abi_layout.h"
#include "suite.h"

/* The comparison of layouts, on made-up ones: 1.0 may grow at the end of a struct and nowhere else. */
START_TEST(minors_grow_at_the_end_of_structs) {
    static const char golden[] = "const A 1\nstruct s input 8\n  0 4 uint32_t struct_size\n  4 4 uint32_t a\nstruct t "
                                 "input 8\n  0 4 uint32_t struct_size\n";
    static const struct {
        const char *now;
        int is_major0_ok, is_major1_ok;
    } tries[] = {
        {golden, 1, 1},
        {"const A 1\nconst B 2\nstruct s input 16\n  0 4 uint32_t struct_size\n  4 4 uint32_t a\n  8 8 double "
         "b\nstruct t input 8\n  0 4 uint32_t struct_size\n",
         0, 1},
        {"const A 1\nstruct s input 16\n  0 4 uint32_t struct_size\n  4 4 uint32_t b\n  8 4 uint32_t a\nstruct t input "
         "8\n  0 4 uint32_t struct_size\n",
         0, 0},
        {"const A 2\nstruct s input 8\n  0 4 uint32_t struct_size\n  4 4 uint32_t a\nstruct t input 8\n  0 4 uint32_t "
         "struct_size\n",
         0, 0},
        {"const A 1\nstruct s input 8\n  0 4 uint32_t struct_size\n  4 4 int32_t a\nstruct t input 8\n  0 4 uint32_t "
         "struct_size\n",
         0, 0},
        {"const A 1\nstruct s input 8\n  0 4 uint32_t struct_size\n  4 4 uint32_t a\n", 0, 0},
        {"const A 1\nstruct s input 8\n  0 4 uint32_t struct_size\nstruct t input 8\n  0 4 uint32_t struct_size\n", 0,
         0}};
    for (size_t i = 0; i < sizeof tries / sizeof tries[0]; i++) {
        static abi_report_t major0, major1;
        memset(&major0, 0, sizeof major0), memset(&major1, 0, sizeof major1);
        abi_layout_compare(&major0, golden, tries[i].now, 0);
        abi_layout_compare(&major1, golden, tries[i].now, 1);
        ck_assert_msg((major0.rules[ABI_RULE_LAYOUT].n_fail == 0) == tries[i].is_major0_ok, "try %zu, major 0", i);
        ck_assert_msg((major1.rules[ABI_RULE_LAYOUT].n_fail == 0) == tries[i].is_major1_ok, "try %zu, major 1", i);
    }
}
END_TEST

ZT_MAIN("abi_comparison", minors_grow_at_the_end_of_structs)
