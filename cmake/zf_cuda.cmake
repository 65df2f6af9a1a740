# SPDX-License-Identifier: Apache-2.0
# The CUDA backend: nvcc compiles kernels/cuda/all.cu to PTX once, ptxas assembles machine code from that same PTX, both
# are embedded. Sets ZF_HAS_CUDA, ZF_NVCC, ZF_PTXAS and ZF_CUDA_INCLUDE. The library that is made links nothing of CUDA.
#   ZF_CUDA = AUTO (built where nvcc is found), ON (nvcc must be found), OFF
set(ZF_CUDA_ARCHITECTURES 80 90a 100 120 CACHE STRING "Architectures whose machine code is embedded beside the PTX")
set(ZF_HAS_CUDA OFF)
if(NOT ZF_CUDA MATCHES "^(OFF|ON|AUTO|auto|on|off)$")
    message(FATAL_ERROR "ZF_CUDA is \"${ZF_CUDA}\": OFF, ON or AUTO")
endif()
if(NOT ZF_CUDA MATCHES "^(OFF|off)$")
    find_program(ZF_NVCC nvcc HINTS /usr/local/cuda/bin ENV CUDA_HOME PATH_SUFFIXES bin)
    if(ZF_NVCC)
        get_filename_component(zf_nvcc_real "${ZF_NVCC}" REALPATH)
        get_filename_component(zf_cuda_home "${zf_nvcc_real}/../.." ABSOLUTE)
        find_path(ZF_CUDA_INCLUDE cuda.h NO_DEFAULT_PATH HINTS "${zf_cuda_home}/include" "${zf_cuda_home}/targets/x86_64-linux/include"
                  /usr/local/cuda/include)
        find_program(ZF_PTXAS ptxas HINTS "${zf_cuda_home}/bin" /usr/local/cuda/bin)
    endif()
    if(ZF_NVCC AND ZF_PTXAS AND ZF_CUDA_INCLUDE)
        set(ZF_HAS_CUDA ON)
        message(STATUS "CUDA backend: ${ZF_NVCC}, ${ZF_CUDA_INCLUDE}")
    elseif(ZF_CUDA MATCHES "^(ON|on)$")
        message(FATAL_ERROR "ZF_CUDA=ON: nvcc, ptxas and cuda.h of CUDA 12 or newer are needed (package cuda-toolkit, or cuda-nvcc)")
    else()
        message(STATUS "CUDA backend: not built, nvcc was not found")
    endif()
endif()

# zf_cuda_images(TARGET): PTX and machine code, and the C file that embeds them, into the target.
function(zf_cuda_images target)
    set(dir ${CMAKE_CURRENT_SOURCE_DIR}/cuda)
    set(out ${CMAKE_CURRENT_BINARY_DIR}/cuda)
    file(MAKE_DIRECTORY ${out})
    file(GLOB sources CONFIGURE_DEPENDS ${dir}/*.cu ${dir}/*.cuh ${dir}/params.h)
    list(APPEND sources ${CMAKE_CURRENT_SOURCE_DIR}/launch.h ${CMAKE_CURRENT_SOURCE_DIR}/kernels.h)
    set(ptx ${out}/zfi.ptx)
    if(ZF_CUDA_DOUBLE) # what it translated
        set(ptx ${ZF_CUDA_DOUBLE}/../../kernels/cuda/zfi.ptx)
    else()
        add_custom_command(OUTPUT ${ptx} DEPENDS ${sources} COMMENT "PTX of the CUDA kernels"
            COMMAND ${ZF_NVCC} --ptx -arch=compute_80 -fmad=false -ftz=false -prec-div=true -prec-sqrt=true -O3 -std=c++17
                    -o ${ptx} ${dir}/all.cu)
    endif()
    set(files ${ptx})
    set(text "/* Written by cmake/zf_cuda.cmake. */\n#include \"${dir}/images.h\"\n")
    string(APPEND text "#define EMBED(name, path, end) __asm__(\".section .rodata\\n.balign 64\\n.global \" #name \"\\n.hidden \" #name \"\\n.type \" #name \", @object\\n\" #name \":\\n.incbin \\\"\" path \"\\\"\\n\" end \".size \" #name \", . - \" #name \"\\n.text\\n\")\n")
    string(APPEND text "EMBED(zfi_cuda_ptx, \"${ptx}\", \".byte 0\\n\");\n")
    set(rows "")
    foreach(arch IN LISTS ZF_CUDA_ARCHITECTURES)
        # an assembler that does not know an architecture leaves it out: its devices take the PTX
        execute_process(COMMAND ${ZF_PTXAS} --help OUTPUT_VARIABLE help ERROR_QUIET)
        if(NOT help MATCHES "sm_${arch}'")
            continue()
        endif()
        set(cubin ${out}/zfi.sm_${arch}.cubin)
        add_custom_command(OUTPUT ${cubin} DEPENDS ${ptx} COMMENT "CUDA kernels for sm_${arch}"
            COMMAND ${ZF_PTXAS} -arch=sm_${arch} -O3 -o ${cubin} ${ptx})
        list(APPEND files ${cubin})
        string(REGEX REPLACE "^([0-9]+)[0-9][a-z]*$" "\\1" major ${arch})
        string(APPEND text "extern const char zfi_cuda_sm_${arch}[];\nEMBED(zfi_cuda_sm_${arch}, \"${cubin}\", \"\");\n")
        string(APPEND rows "    {${major}, zfi_cuda_sm_${arch}},\n")
    endforeach()
    string(APPEND text "const zfi_cuda_image_t zfi_cuda_images[] = {\n${rows}    {0, 0},\n};\n")
    string(APPEND text "const uint32_t zfi_cuda_n_images = sizeof zfi_cuda_images / sizeof *zfi_cuda_images - 1;\n")
    file(CONFIGURE OUTPUT ${out}/images.c @ONLY CONTENT "${text}")
    set_source_files_properties(${out}/images.c PROPERTIES OBJECT_DEPENDS "${files}")
    target_sources(${target} PRIVATE ${out}/images.c)
endfunction()

# zf_cuda_ptx(TARGET SYMBOL SOURCE HEADERS...): PTX of one more source, which the driver assembles, into the target as
# `extern const char SYMBOL[]`, with a zero byte at its end. The file is CMAKE_CURRENT_BINARY_DIR/SYMBOL.ptx.
function(zf_cuda_ptx target symbol source)
    set(ptx ${CMAKE_CURRENT_BINARY_DIR}/${symbol}.ptx)
    add_custom_command(OUTPUT ${ptx} DEPENDS ${source} ${ARGN} COMMENT "PTX of ${target}"
        COMMAND ${ZF_NVCC} --ptx -arch=compute_80 -fmad=false -ftz=false -prec-div=true -prec-sqrt=true -O3 -std=c++17
                -o ${ptx} ${source})
    file(CONFIGURE OUTPUT ${CMAKE_CURRENT_BINARY_DIR}/${symbol}.c @ONLY CONTENT
         "/* Written by cmake/zf_cuda.cmake. */\n__asm__(\".section .rodata\\n.global ${symbol}\\n.hidden ${symbol}\\n.type ${symbol}, @object\\n${symbol}:\\n.incbin \\\"${ptx}\\\"\\n.byte 0\\n.size ${symbol}, . - ${symbol}\\n.text\\n\");\n")
    set_source_files_properties(${CMAKE_CURRENT_BINARY_DIR}/${symbol}.c PROPERTIES OBJECT_DEPENDS ${ptx})
    target_sources(${target} PRIVATE ${CMAKE_CURRENT_BINARY_DIR}/${symbol}.c)
endfunction()
