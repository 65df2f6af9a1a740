/* SPDX-License-Identifier: Apache-2.0 */
/* print_layout.c - prints the layout of the headers that it is compiled with: zf-conform abi --print-layout, alone. */
#include "abi_layout.h"

int main(void) {
    abi_layout_dump(stdout);
    return 0;
}
