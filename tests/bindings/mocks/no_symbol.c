/* SPDX-License-Identifier: Apache-2.0 */
/* A shared library that is no plugin; also linked against one, to be a library whose dependency has the symbol. */
int zf_mock_nothing(void);
int zf_mock_nothing(void) { return 0; }
