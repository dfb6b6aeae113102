include(CMakePackageConfigHelpers)
include(GNUInstallDirs)

set(package_dir "${CMAKE_INSTALL_DATADIR}/cmake/evenkeel")
install(TARGETS evenkeel EXPORT evenkeelTargets INCLUDES DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}")
install(EXPORT evenkeelTargets NAMESPACE evenkeel:: DESTINATION "${package_dir}")
install(DIRECTORY "${PROJECT_SOURCE_DIR}/include/" DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}")
install(FILES "${PROJECT_SOURCE_DIR}/LICENSE" DESTINATION "${CMAKE_INSTALL_DOCDIR}")

# Before 1.0 a minor version may break source code.
write_basic_package_version_file("${PROJECT_BINARY_DIR}/evenkeelConfigVersion.cmake"
  COMPATIBILITY SameMinorVersion ARCH_INDEPENDENT)
install(FILES "${PROJECT_SOURCE_DIR}/cmake/evenkeelConfig.cmake" "${PROJECT_SOURCE_DIR}/cmake/evenkeelCuda.cmake"
              "${PROJECT_SOURCE_DIR}/cmake/evenkeelEigen.cmake" "${PROJECT_BINARY_DIR}/evenkeelConfigVersion.cmake"
        DESTINATION "${package_dir}")

# Named from where the file itself lies, so that it can be moved with what it names.
file(RELATIVE_PATH prefix_from_pkgconfig "${CMAKE_INSTALL_FULL_DATADIR}/pkgconfig" "${CMAKE_INSTALL_PREFIX}")
file(RELATIVE_PATH include_from_prefix "${CMAKE_INSTALL_PREFIX}" "${CMAKE_INSTALL_FULL_INCLUDEDIR}")
configure_file(cmake/evenkeel.pc.in "${PROJECT_BINARY_DIR}/evenkeel.pc" @ONLY)
install(FILES "${PROJECT_BINARY_DIR}/evenkeel.pc" DESTINATION "${CMAKE_INSTALL_DATADIR}/pkgconfig")
