# Installs headers, both libraries and the CMake package `qkv`, with the targets qkv::qkv (shared) and
# qkv::qkv_static. The shared one needs nothing of the third-party packages to compile or link against.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/qkv)
install(DIRECTORY ${PROJECT_SOURCE_DIR}/include/qkv DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} FILES_MATCHING PATTERN "*.h")
install(TARGETS qkv EXPORT qkv-targets LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(TARGETS qkv_static EXPORT qkv-static-targets ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(EXPORT qkv-targets NAMESPACE qkv:: DESTINATION ${package_dir})
install(EXPORT qkv-static-targets NAMESPACE qkv:: DESTINATION ${package_dir})

configure_package_config_file(${PROJECT_SOURCE_DIR}/cmake/qkv-config.cmake.in ${PROJECT_BINARY_DIR}/qkv-config.cmake
                              INSTALL_DESTINATION ${package_dir})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/qkv-config-version.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/qkv-config.cmake ${PROJECT_BINARY_DIR}/qkv-config-version.cmake
              ${PROJECT_SOURCE_DIR}/cmake/QkvDependencies.cmake DESTINATION ${package_dir})
