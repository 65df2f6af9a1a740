/* SPDX-License-Identifier: Apache-2.0 */
/* abi_headers_list.c - the public headers by name (abi_golden.h). */
#include "abi_golden.h"

#include <stddef.h>

const char *const abi_header_files[] = {"zf/bootstrap.h",
                                        "zf/types.h",
                                        "zf/host.h",
                                        "zf/plugin.h",
                                        "zf/ext/collectives.h",
                                        "zf/ext/config.h",
                                        "zf/ext/cpu.h",
                                        "zf/ext/state.h",
                                        "zf/ext/stats.h",
                                        "zf/ext/draft/digest.h",
                                        "zf/ext/draft/inspect.h",
                                        "zf/ext/draft/plan.h",
                                        "zf/ext/draft/shards.h",
                                        NULL};
