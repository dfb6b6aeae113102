// Random streams that fill device memory against the host's.
#include "cuda/row_norm_checks.hpp"
#include "evenkeel/init/initializers.hpp"
#include "evenkeel/init/truncated_normal.hpp"
#include "evenkeel/init/variance_scaling.hpp"
#include "support/cuda/launched.hpp"

#include <cstdint>

using namespace cuda_test;

namespace {

// How many numbers of T lie between two.
template <class T>
std::int64_t steps_between(T a, T b) {
  using Bits =
      std::conditional_t<sizeof(T) == 8, std::int64_t, std::conditional_t<sizeof(T) == 4, std::int32_t, std::int16_t>>;
  const auto place = [](T value) {
    Bits bits;
    std::memcpy(&bits, &value, sizeof bits);
    return bits < 0 ? std::int64_t(std::numeric_limits<Bits>::min()) - bits : std::int64_t(bits);
  };
  return std::abs(place(a) - place(b));
}

template <class T>
std::int64_t most_steps(const std::vector<T>& a, const std::vector<T>& b) {
  REQUIRE(a.size() == b.size());
  std::int64_t most = 0;
  for (std::size_t i = 0; i < a.size(); ++i) most = std::max(most, steps_between(a[i], b[i]));
  return most;
}

template <class T>
using Vector = Eigen::Map<Eigen::Array<T, Eigen::Dynamic, 1>>;

}  // namespace

TEMPLATE_TEST_CASE("CudaRandom fills memory as the host does", "[cuda]", float, Eigen::half, Eigen::bfloat16, double) {
  using T = TestType;
  const ek::CudaStream device(nullptr, small);
  const ek::RandomStream whole(42, "layer.0.weight");
  for (const Order order : {Order::forward, Order::random})
    for (const Index count : {0, 1, 3, 1001}) {
      use_order(order);
      for (const std::uint64_t first : {0, 1, 3, 5}) {
        INFO(count << " values from " << first << ", of " << sizeof(T) << " bytes");
        const ek::RandomStream stream = whole.from(first);
        const ek::CudaRandom random(device, stream);
        std::vector<T> host(static_cast<std::size_t>(count));
        Vector<T> on_host(host.data(), count);
        const DeviceArray<T> memory(count), normals(count), initialized(count);

        ek::uniform(on_host, -0.5, 2, stream);
        ek::uniform(memory.map(), -0.5, 2, random);
        CHECK(most_steps(host, memory.get()) == 0);
        ek::normal(on_host, 0.25, 3, stream);
        ek::normal(normals.map(), 0.25, 3, random);
        CHECK(most_steps(host, normals.get()) <= 2);
        const ek::Fans fans = ek::fans_of_linear(64, 32);
        ek::kaiming_normal(on_host, fans, stream);
        ek::kaiming_normal(initialized.map(), fans, random);
        CHECK(most_steps(host, initialized.get()) <= 2);
        if (count > 3) CHECK(host[2] != host[3]);
        // In the middle, and in the upper tail alone.
        for (const double lower : {-2.0, 3.0}) {
          const ek::TruncatedNormalOptions options{.mean = 0.1, .std = 1.5, .lower = lower, .upper = 4};
          ek::truncated_normal(on_host, stream, options);
          ek::truncated_normal(initialized.map(), random, options);
          // The emulator's library is the host's; only what a compiler contracts differs.
          CHECK(most_steps(host, initialized.get()) <= (sizeof(T) == 8 ? 64 : 1));
        }
        for (const double scale : {0.0, 2.0}) {
          ek::variance_scaling(on_host, fans, stream, {.scale = scale});
          ek::variance_scaling(initialized.map(), fans, random, {.scale = scale});
          CHECK(most_steps(host, initialized.get()) <= (sizeof(T) == 8 ? 64 : 1));
        }
      }
    }
}

TEST_CASE("CudaRandom runs all kernels of its header", "[cuda]") {
  const DeviceArray<float> memory(5);
  ek::uniform(memory.map(), 0, 1, ek::CudaRandom(ek::CudaStream(nullptr, small), ek::RandomStream(1, 2)));
  ek::sigma_truncated_normal(memory.map(), ek::CudaRandom(ek::CudaStream(nullptr, small), ek::RandomStream(1, 2)));
  CHECK(emulator::never_launched("init/cuda_random.cuh") == std::set<std::string>{});
}
