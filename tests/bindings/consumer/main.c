/* SPDX-License-Identifier: Apache-2.0 */
/* Opens the plugin named by the first argument and prints what it is; without one, only proves that it links. */
#include <stdio.h>
#include <zf/ext/cpu.h>
#include <zf_loader.h>

int main(int argc, char **argv) {
    zf_error_t err = {.struct_size = sizeof err};
    zf_loader_t *loader = NULL;
    if (zf_loader_open(argc > 1 ? argv[1] : "/no/such/plugin.so", &loader, &err) < 0) {
        printf("%s\n", err.message);
        return argc > 1;
    }
    zf_description_t is = {.struct_size = sizeof is};
    zf_loader_plugin(loader)->describe(&is, NULL);
    printf("%s %s: %s\n", is.name, is.version, is.build);
    zf_loader_close(loader);
    return 0;
}
