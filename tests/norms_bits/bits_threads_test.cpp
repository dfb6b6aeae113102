// A row's results must not depend on the number of threads.
#include "norms_bits/bits.hpp"
#include "support/devices.hpp"

using namespace bits_test;

namespace {

template <class Norm, class T>
void check_threads(std::size_t features, ek::Index rows) {
  const auto length = ek::Index(features);
  const Matrix<T> x = random_matrix<T>(rows, length, features), dy = random_matrix<T>(rows, length, 2 * features);
  const Vector<T> weight = random_matrix<T>(length, 1, 3).array(), bias = random_matrix<T>(length, 1, 4).array();
  const Results<T> expected = Norm::run(ek::serial, x, dy, weight, bias);
  for (int threads : support::thread_counts) {
    const support::ThreadPool pool(threads);
    const Results<T> got = Norm::run(pool.device(), x, dy, weight, bias);
    int changed = 0;
    for (ek::Index row = 0; row < rows; ++row) changed += !same_row(got, row, expected, row);
    INFO(Norm::name << " of " << rows << " x " << features << " on " << threads << " threads");
    CHECK(changed == 0);
  }
}

}  // namespace

TEMPLATE_TEST_CASE("a row has the same bits on every thread count", "[norms][bits]", Rms, Layer, AddRms, AddLayer) {
  for (std::size_t length : Counts{1, 7, 31, 64, 77, 768}) check_threads<TestType, float>(length, 129);
}
