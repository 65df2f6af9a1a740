/* SPDX-License-Identifier: Apache-2.0 */
/* mock_which.c - the rule that a mock breaks, compiled once per mock with MOCK_WHICH=BREAK_<name>. */
enum {
#define MOCK(name, broken, what) BREAK_##name,
#include "mocks.def"
#undef MOCK
};

extern const int mock_breaks;
const int mock_breaks = MOCK_WHICH;
