# libsmddp.so: the core behind its C API and nothing else visible, with headers and a package for find_package(smddp).
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

add_library(smddp_shared SHARED src/c_api.cpp)
set_target_properties(smddp_shared PROPERTIES OUTPUT_NAME smddp EXPORT_NAME smddp VERSION ${PROJECT_VERSION}
                      SOVERSION ${PROJECT_VERSION_MAJOR} INSTALL_RPATH "$ORIGIN")
target_include_directories(smddp_shared INTERFACE $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
target_link_libraries(smddp_shared PRIVATE smddp smddp_options)
# The static core's symbols are hidden already; those of the C++ library's templates are not.
target_link_options(smddp_shared PRIVATE -Wl,--exclude-libs,ALL -Wl,--no-undefined
                    -Wl,--version-script=${CMAKE_CURRENT_LIST_DIR}/exports.map)

install(TARGETS smddp_shared EXPORT smddpTargets LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(FILES include/smddp/smddp.h DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/smddp)
install(EXPORT smddpTargets NAMESPACE smddp:: DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/smddp)
configure_package_config_file(cmake/smddpConfig.cmake.in smddpConfig.cmake
                              INSTALL_DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/smddp)
write_basic_package_version_file(smddpConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/smddpConfig.cmake ${CMAKE_CURRENT_BINARY_DIR}/smddpConfigVersion.cmake
        DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/smddp)
