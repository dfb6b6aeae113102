// No kernel may exist that the emulator has never run.
#include "cuda/row_norm_checks.hpp"
#include "support/cuda/launched.hpp"

#include <filesystem>
#include <set>
#include <string>

using namespace cuda_test;
using Names = std::set<std::string>;

TEST_CASE("kernels: all of row_kernels.cuh run", "[cuda]") {
  use_order(Order::random);
  for (const Placement& place :
       {packed(5, 96), packed(5, 768), packed(1, 8200), column_major(5, 96), column_major(40, 96)}) {
    check_case<PartialRmsNorm, float, float>(place);
    check_case<Dyt, float, float>(place);
  }
  CHECK(emulator::never_launched("detail/row_kernels.cuh") == Names{});
  Names scopes;
  for (const auto& [kernel, count] : emulator::record().kernels)
    if (const auto at = kernel.find("RowScope)"); at != std::string::npos) scopes.insert(kernel.substr(at, 10));
  CHECK(scopes == Names{"RowScope)0", "RowScope)1", "RowScope)2"});
}

// Each header that has kernels must be the argument of never_launched() in a test.
TEST_CASE("kernels: every header that has kernels is watched", "[cuda]") {
  namespace fs = std::filesystem;
  std::string tests;
  for (const auto& entry : fs::directory_iterator(fs::path(EVENKEEL_INCLUDE_DIR) / ".." / "tests" / "cuda"))
    if (entry.path().extension() == ".cpp") tests += emulator::text_of(entry.path());
  const fs::path headers = fs::path(EVENKEEL_INCLUDE_DIR) / "evenkeel";
  Names all;
  for (const auto& entry : fs::recursive_directory_iterator(headers)) {
    if (!entry.is_regular_file()) continue;
    const Names kernels = emulator::kernels_in(emulator::text_of(entry.path()));
    const std::string header = fs::relative(entry.path(), headers).string();
    if (kernels.empty()) continue;
    INFO(header);
    CHECK(tests.find("never_launched(\"" + header + "\")") != std::string::npos);
    for (const std::string& kernel : kernels) CHECK(all.insert(kernel).second);  // names tell kernels apart
  }
  CHECK(all.count("row_kernel") == 1);
  CHECK(all.count("random_kernel") == 1);
}

TEST_CASE("kernels: a header's kernels are found", "[cuda]") {
  CHECK(emulator::kernels_in(
            "template <class T>\n__global__ void __launch_bounds__(Bound)\n    a_kernel(T* x, int n) {}\n"
            "// __global__ void comment(int)\n__global__ void b_kernel(int n);") == Names{"a_kernel", "b_kernel"});
  CHECK(emulator::kernels_in("__device__ void f();").empty());
  CHECK(emulator::function_name("void evenkeel::detail::a_kernel<float, (a::B)2>(float*)") == "a_kernel");
  CHECK(emulator::function_name("evenkeel::detail::b_kernel(int)") == "b_kernel");
}
