/* SPDX-License-Identifier: Apache-2.0 */
/* other.c - a library without a purpose: one wrong plugin is linked to it, another opens it. */
int mock_other(void);
int mock_other(void) { return 1; }
