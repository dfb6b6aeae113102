include(CMakePackageConfigHelpers)
include(GNUInstallDirs)

set(package_dir "${CMAKE_INSTALL_DATADIR}/cmake/evenkeel")
install(TARGETS evenkeel EXPORT evenkeelTargets)
install(EXPORT evenkeelTargets NAMESPACE evenkeel:: DESTINATION "${package_dir}")
install(DIRECTORY "${PROJECT_SOURCE_DIR}/include/" DESTINATION include)

# Before 1.0 a minor version may break source code.
write_basic_package_version_file("${PROJECT_BINARY_DIR}/evenkeelConfigVersion.cmake"
  COMPATIBILITY SameMinorVersion ARCH_INDEPENDENT)
install(FILES "${PROJECT_SOURCE_DIR}/cmake/evenkeelConfig.cmake" "${PROJECT_BINARY_DIR}/evenkeelConfigVersion.cmake"
        DESTINATION "${package_dir}")
