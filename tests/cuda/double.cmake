# SPDX-License-Identifier: Apache-2.0
# The double of the driver, out of the kernels' PTX: target zf_double, and zf_cublas_double where the reference host is built.
set(flags --ptx -arch=compute_80 -fmad=false -ftz=false -prec-div=true -prec-sqrt=true -O3 -std=c++17)
file(GLOB translator CONFIGURE_DEPENDS ${here}/ptx2c/*.py)

# zf_ptx(NAME FILE.cu DEPENDS...): out/NAME.ptx
function(zf_ptx name source)
    add_custom_command(OUTPUT ${out}/${name}.ptx COMMAND ${ZF_NVCC} ${flags} -o ${out}/${name}.ptx ${source}
                       DEPENDS ${source} ${ARGN} COMMENT "PTX of ${name}")
endfunction()
# zf_translated(NAME FILE.ptx PARTS DEPENDS...): out/NAME_ptx.c and so many parts of it, appended to `translated`
function(zf_translated name ptx parts)
    set(files ${out}/${name}_ptx.c)
    foreach(part RANGE 1 ${parts})
        list(APPEND files ${out}/${name}_ptx_${part}.c)
    endforeach()
    add_custom_command(OUTPUT ${files} COMMAND ${ZF_PYTHON3} ${here}/ptx2c/ptx2c.py ${name} ${ptx} ${files}
                       DEPENDS ${ptx} ${translator} ${ARGN} COMMENT "${name}: PTX to C")
    set(translated ${translated} ${files} PARENT_SCOPE)
endfunction()

zf_ptx(opcodes ${here}/opcodes/opcodes.cu ${here}/opcodes/table.h ${here}/opcodes/types.h)
zf_ptx(driver ${here}/driver/kernels.cu)
zf_translated(opcodes ${out}/opcodes.ptx 1)
zf_translated(driver ${out}/driver.ptx 1)
if(ZF_HAS_CUDA)
    zf_translated(zfi ${ZF_PLUGIN_PTX} 13)
endif()
# The reference host's kernels.
if(ZF_HAS_CUDA AND TARGET zf_host)
    zf_translated(host ${PROJECT_BINARY_DIR}/conformance/host/host_cuda_ptx.ptx 1 zf_host)
endif()
# Registers that ptxas gives each kernel, from the gate's table: how many blocks a processor takes.
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${here}/gate/table.txt)
file(STRINGS ${here}/gate/table.txt rows REGEX "^zf_")
set(registers "")
foreach(row IN LISTS rows)
    string(REGEX REPLACE "^([a-z_]+) .* ([0-9]+) ([0-9]+) ([0-9]+) ([0-9]+)$"
           "{\"\\1\", {\\2, \\3, \\4, \\5}}," row "${row}")
    string(APPEND registers "${row}\n")
endforeach()
file(CONFIGURE OUTPUT ${out}/registers.inc @ONLY CONTENT "${registers}")

file(GLOB sources CONFIGURE_DEPENDS ${here}/emulator/*.c ${here}/fakecuda/*.c ${here}/fakenccl/*.c)
add_library(zf_double SHARED ${sources} ${translated})
set_target_properties(zf_double PROPERTIES OUTPUT_NAME cuda VERSION 1 SOVERSION 1 LIBRARY_OUTPUT_DIRECTORY ${out}/double
                                           C_VISIBILITY_PRESET hidden)
target_include_directories(zf_double PRIVATE ${here}/emulator ${here}/fakecuda ${out})
target_include_directories(zf_double SYSTEM PRIVATE ${ZF_CUDA_INCLUDE})
# Never sanitized: fakecuda/fake.h says why.
target_compile_options(zf_double PRIVATE -O2 -g -fno-sanitize=all)
target_link_options(zf_double PRIVATE -fno-sanitize=all -Wl,-z,nodelete)
set_source_files_properties(${here}/fakenccl/entries.c ${here}/fakenccl/work.c PROPERTIES COMPILE_OPTIONS -Wno-missing-prototypes)
target_link_libraries(zf_double PRIVATE Threads::Threads ${CMAKE_DL_LIBS} m)
if(ZF_HAS_CUDA)
    add_dependencies(zf_double zf_kernels) # makes the PTX
endif()
set_source_files_properties(${translated} PROPERTIES COMPILE_OPTIONS
                            "-O1;-g0;-w;-fwrapv;-fno-strict-aliasing;-ffp-contract=off")

# libnccl.so.2, beside it, is the same file: what moves between processes of one machine moves in its streams.
add_custom_command(TARGET zf_double POST_BUILD COMMAND ${CMAKE_COMMAND} -E create_symlink libcuda.so.1 ${out}/double/libnccl.so.2)

# libcublas.so.13, for the reference host on the double.
if(ZF_HAS_CUDA AND TARGET zf_host)
    add_library(zf_cublas_double SHARED fakecublas/cublas.c)
    set_target_properties(zf_cublas_double PROPERTIES OUTPUT_NAME cublas VERSION 13 SOVERSION 13 C_VISIBILITY_PRESET hidden
                                                      LIBRARY_OUTPUT_DIRECTORY ${out}/double)
    target_include_directories(zf_cublas_double SYSTEM PRIVATE ${ZF_CUDA_INCLUDE})
    target_link_libraries(zf_cublas_double PRIVATE zf_double PkgConfig::OPENBLAS)
    target_compile_options(zf_cublas_double PRIVATE -Wno-missing-prototypes -fno-sanitize=all) # never sanitized, as the double
    target_link_options(zf_cublas_double PRIVATE -fno-sanitize=all)
endif()
