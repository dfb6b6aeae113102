import os
import re

from conan import ConanFile
from conan.errors import ConanException
from conan.tools.build import check_min_cppstd
from conan.tools.cmake import CMake, CMakeToolchain
from conan.tools.files import load

required_conan_version = ">=2.0"


class Evenkeel(ConanFile):
    name = "evenkeel"
    description = "Normalization, residual and initialization primitives over Eigen tensors"
    license = "MIT"
    topics = ("normalization", "deep-learning", "eigen", "header-only")
    package_type = "header-library"
    settings = "os", "arch", "compiler", "build_type"
    exports_sources = "CMakeLists.txt", "LICENSE", "cmake/*", "include/*"
    test_package_folder = "tests/package/conan"
    generators = "CMakeDeps"
    no_copy_source = True

    def set_version(self):
        config = load(self, os.path.join(self.recipe_folder, "include", "evenkeel", "config.hpp"))
        parts = re.findall(r"#define EVENKEEL_VERSION_(?:MAJOR|MINOR|PATCH) +(\d+)", config)
        if len(parts) != 3:
            raise ConanException("include/evenkeel/config.hpp does not define the version")
        self.version = ".".join(parts)

    def requirements(self):
        self.requires("eigen/[>=3.4.0 <6]", transitive_headers=True)

    def validate(self):
        check_min_cppstd(self, 20)

    def package_id(self):
        self.info.clear()

    def generate(self):
        toolchain = CMakeToolchain(self)
        for part in ("TESTS", "EXAMPLES", "BENCHMARKS"):
            toolchain.cache_variables[f"EVENKEEL_BUILD_{part}"] = False
        toolchain.cache_variables["EVENKEEL_CUDA"] = False
        toolchain.generate()

    def package(self):
        cmake = CMake(self)
        cmake.configure()
        cmake.install()

    def package_info(self):
        # The package's own evenkeelConfig.cmake, which knows evenkeel::cuda, and not one that Conan would write.
        self.cpp_info.set_property("cmake_find_mode", "none")
        self.cpp_info.builddirs = ["share/cmake/evenkeel"]
        self.cpp_info.bindirs = []
        self.cpp_info.libdirs = []
        self.cpp_info.requires = ["eigen::eigen"]
