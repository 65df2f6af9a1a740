/* SPDX-License-Identifier: Apache-2.0 */
/* tests/plugin/wrap.h - ZT_WRAP(int, close, int fd) { ... } stands in the place of close() where the linker is given
 * -Wl,--wrap=close; __real_close() is the one that it replaces. */
#pragma once

#define ZT_WRAP(type, name, ...)                                                                                       \
    type __real_##name(__VA_ARGS__);                                                                                   \
    type __wrap_##name(__VA_ARGS__);                                                                                   \
    type __wrap_##name(__VA_ARGS__)
