# SPDX-License-Identifier: Apache-2.0
# Area "perf" of zf-conform: bytes moved and occupied. Included by conformance/CMakeLists.txt.
target_sources(zf-conform PRIVATE cases/perf_child.c cases/perf_main.c cases/perf_model.c)
target_link_libraries(zf-conform PRIVATE ${CMAKE_DL_LIBS})

# zf_count_alloc.so: preloaded by "perf" and "abi" to count allocations; sanitizers have their own allocator.
if(NOT ZF_SANITIZE)
    add_library(zf_count_alloc MODULE cases/count_alloc.c)
    target_compile_options(zf_count_alloc PRIVATE -fno-builtin -Wno-reserved-identifier)
    set_target_properties(zf_count_alloc PROPERTIES PREFIX "" SUFFIX ".so" OUTPUT_NAME zf_count_alloc
                                                    LIBRARY_OUTPUT_DIRECTORY "${CMAKE_CURRENT_BINARY_DIR}")
    add_dependencies(zf-conform zf_count_alloc)
endif()
