# An overlay port of the tree that it lies in:
#
#   vcpkg install evenkeel --overlay-ports=<evenkeel>/cmake/vcpkg
set(VCPKG_BUILD_TYPE release)  # headers alone
cmake_path(SET SOURCE_PATH NORMALIZE "${CMAKE_CURRENT_LIST_DIR}/../../..")

vcpkg_cmake_configure(SOURCE_PATH "${SOURCE_PATH}" OPTIONS
  -DEVENKEEL_BUILD_TESTS=OFF -DEVENKEEL_BUILD_EXAMPLES=OFF -DEVENKEEL_BUILD_BENCHMARKS=OFF -DEVENKEEL_CUDA=OFF)
vcpkg_cmake_install()
vcpkg_cmake_config_fixup(CONFIG_PATH share/cmake/evenkeel)
vcpkg_fixup_pkgconfig()
file(REMOVE_RECURSE "${CURRENT_PACKAGES_DIR}/share/doc")
vcpkg_install_copyright(FILE_LIST "${SOURCE_PATH}/LICENSE")
