# SPDX-License-Identifier: Apache-2.0
# Run by cpack for each package between installing and packing: copyright and changelog, pages compressed, what Debian has
# elsewhere taken out.
find_program(ZF_GZIP gzip REQUIRED)

# Without a date, so that the same files make the same package.
function(zf_compress file)
    execute_process(COMMAND ${ZF_GZIP} -9nf ${file} COMMAND_ERROR_IS_FATAL ANY)
endfunction()

if(NOT CPACK_ZF_DATE)
    string(TIMESTAMP CPACK_ZF_DATE "%a, %d %b %Y %H:%M:%S +0000" UTC)
endif()
set(version ${CPACK_PACKAGE_VERSION}-${CPACK_DEBIAN_PACKAGE_RELEASE})

foreach(component IN LISTS CPACK_COMPONENTS_ALL)
    string(TOUPPER ${component} upper)
    set(root ${CPACK_TEMPORARY_DIRECTORY}/${component}/usr)
    set(doc ${root}/share/doc/${CPACK_DEBIAN_${upper}_PACKAGE_NAME})
    file(COPY ${CPACK_ZF_SOURCE_DIR}/cmake/debian/copyright DESTINATION ${doc} FILE_PERMISSIONS OWNER_READ OWNER_WRITE GROUP_READ WORLD_READ)
    file(WRITE ${doc}/changelog.Debian "${CPACK_DEBIAN_PACKAGE_SOURCE} (${version}) unstable; urgency=medium\n\n"
         "  * The changes of the ABI are in abi/CHANGELOG.md of libzfplugin-dev.\n\n -- ${CPACK_PACKAGE_CONTACT}  ${CPACK_ZF_DATE}\n")
    zf_compress(${doc}/changelog.Debian)
    file(GLOB pages ${root}/share/man/*/*)
    foreach(page IN LISTS pages)
        zf_compress(${page})
    endforeach()
endforeach()
file(REMOVE ${CPACK_TEMPORARY_DIRECTORY}/dev/usr/share/doc/zfplugin/LICENSE) # copyright has it
