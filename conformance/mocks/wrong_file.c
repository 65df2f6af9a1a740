/* SPDX-License-Identifier: Apache-2.0 */
/* wrong_file.c - what is wrong with the file itself. Each such library is linked from the same objects and from this
 * file, compiled with IN_<its name> (CMakeLists.txt). */
#include <stdlib.h>

#include "wrong.h"

/* Exported where the library's version script lists them. */
int wrong_second_symbol(void);
float wrong_helper(void);

__attribute__((visibility("default"))) int wrong_second_symbol(void) { return 1; }
__attribute__((visibility("default"), noinline)) float wrong_helper(void) { return 1.0f; }

#ifdef IN_imports_exit
void wrong_end(void);
void wrong_end(void) { exit(1); }
#endif

#ifdef IN_text_relocations
__asm__(".text\n.quad zf_plugin_negotiate\n");
#endif

#ifdef IN_shared_copies
__asm__(".section .data\n.globl wrong_shared\n.type wrong_shared, %gnu_unique_object\n.size wrong_shared, 4\n"
        ".p2align 2\nwrong_shared: .long 0\n.previous\n");
extern float wrong_shared __attribute__((visibility("default")));
#else
static float wrong_shared;
#endif

float wrong_rate(void) {
#ifdef IN_interposable
    return wrong_helper();
#endif
    return IS(shared_state) || IS(shared_copies) ? wrong_shared += 1.0f : 1.0f;
}
