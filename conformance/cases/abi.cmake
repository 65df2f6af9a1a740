# SPDX-License-Identifier: Apache-2.0
# Area "abi" of zf-conform: the library zf_conform_abi (zfc_abi_main of abi_probes.h) and the mocks. Included by
# conformance/CMakeLists.txt, which links zf_conform_abi into zf-conform.
set(abi_dir "${CMAKE_CURRENT_LIST_DIR}")
include("${abi_dir}/abi_signatures.cmake")
add_library(zf_conform_abi STATIC
            ${abi_dir}/abi_args.c ${abi_dir}/abi_books.c ${abi_dir}/abi_call.c ${abi_dir}/abi_cases.c ${abi_dir}/abi_drawn.c ${abi_dir}/abi_elf.c ${abi_dir}/abi_entry.c
            ${abi_dir}/abi_extent.c ${abi_dir}/abi_growth.c ${abi_dir}/abi_hosts.c ${abi_dir}/abi_isolation.c ${abi_dir}/abi_keys.c ${abi_dir}/abi_life.c ${abi_dir}/abi_main.c ${abi_dir}/abi_manners.c ${abi_dir}/abi_matrix.c
            ${abi_dir}/abi_order.c ${abi_dir}/abi_probe.c ${abi_dir}/abi_report.c ${abi_dir}/abi_rig.c
            ${abi_dir}/abi_slots.c ${abi_dir}/abi_storage.c ${abi_dir}/abi_table.c ${abi_dir}/abi_told.c
            ${abi_dir}/abi_traced.c ${abi_dir}/abi_training.c ${abi_dir}/abi_waits.c ${abi_dir}/abi_written.c ${abi_dir}/abi_watch.c)
target_include_directories(zf_conform_abi PUBLIC ${abi_dir} PRIVATE ${zf_signatures_dir})
target_link_libraries(zf_conform_abi PUBLIC zf_abi zf_glue zf_loader zf_oracle PkgConfig::FFI Threads::Threads m ${CMAKE_DL_LIBS})
if(ZF_TESTS)
    target_compile_definitions(zf_conform_abi PRIVATE ZFC_MOCKS_DIR="${CMAKE_CURRENT_BINARY_DIR}/mocks")
    add_subdirectory(mocks)
endif()
