/* SPDX-License-Identifier: Apache-2.0 */
/* A shared library that needs a function which no one has. */
int zf_mock_found_nowhere(void);
int zf_mock_caller(void);
int zf_mock_caller(void) { return zf_mock_found_nowhere(); }
