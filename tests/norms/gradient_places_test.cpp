// Overwritten gradients of few rows are the memory that the rows are added up in: the same numbers as anywhere else,
// whatever the memory held, and nothing beside it is touched.
#include "norms/norm_under_test.hpp"

using namespace norms_test;

namespace {

constexpr auto overwrite = ek::GradientMode::overwrite, accumulate = ek::GradientMode::accumulate;

/// A gradient between guards, which starts as `value`.
template <class T>
struct Guarded {
  Guarded(std::size_t size, T value) : memory(size + 32, T(77)), length(ek::Index(size)) { map().setConstant(value); }
  Eigen::Map<Vector<T>> map() { return {memory.data() + 16, length}; }
  bool guards_hold() const {
    return std::all_of(memory.begin(), memory.begin() + 16, [](T v) { return v == T(77); }) &&
           std::all_of(memory.end() - 16, memory.end(), [](T v) { return v == T(77); });
  }
  std::vector<T> memory;
  ek::Index length;
};

template <class Map>
bool same(const Map& a, const Map& b) {
  return ((a == b) || (a.isNaN() && b.isNaN())).all();
}

template <class Norm, class T, class G>
void check_gradients(const RowMatrix<T>& dy, const RowMatrix<T>& x, const Vector<G>& weight) {
  const auto features = std::size_t(x.cols());
  INFO(Norm::name << " of " << x.rows() << " x " << x.cols());
  const G none_yet = std::numeric_limits<G>::quiet_NaN();
  using A = ek::accumulator_t<T>;
  typename Norm::template Saved<A> saved;
  RowMatrix<T> y(x.rows(), x.cols()), dx(x.rows(), x.cols()), dx_again = dx;
  Norm::forward(ek::serial, x, weight, weight, y, saved, {.eps = 1e-5});

  Guarded<G> dweight(features, none_yet), dbias(features, none_yet), added(features, G(0)), bias_added(features, G(0));
  Norm::backward(ek::serial, dy, x, weight, saved, dx, dweight.map(), dbias.map(), overwrite);
  Norm::backward(ek::serial, dy, x, weight, saved, dx_again, added.map(), bias_added.map(), accumulate);
  CHECK(same(dweight.map(), added.map()));
  CHECK(same(dbias.map(), bias_added.map()));
  CHECK(same(Eigen::Map<Vector<T>>(dx.data(), dx.size()), Eigen::Map<Vector<T>>(dx_again.data(), dx.size())));
  CHECK((dweight.guards_hold() && dbias.guards_hold()));
  if (!x.array().isNaN().any()) {
    const auto expected = Norm::reference_backward({std::size_t(x.rows()), features, 1}, values_of(dy), values_of(x),
                                                   values_of(weight), {.eps = 1e-5});
    const auto near = [&](auto got, const Values& exact, const Values& magnitude) {
      return worst_error(values_of(got), exact, magnitude, std::size_t(x.rows()), epsilon_of<G>());
    };
    CHECK(near(dweight.map(), expected.dweight, expected.dweight_magnitude) <= 1);
    CHECK(near(dbias.map(), expected.dbias, expected.dbias_magnitude) <= 1);
  }

  Guarded<G> bias_alone(features, none_yet);
  Norm::backward(ek::serial, dy, x, weight, saved, dx, ek::none, bias_alone.map(), overwrite);
  CHECK(same(bias_alone.map(), bias_added.map()));
}

template <class Norm, class T, class G = T>
void check_sizes() {
  for (const std::size_t rows : Counts{1, 2, 9, 128, 129, 300})
    for (const std::size_t features : Counts{5, 16, 17, 47, 64, 100, 333}) {
      const Data data = make_data<T>({rows, features, 1}, rows + features);
      check_gradients<Norm, T, G>(matrix_of<RowMatrix<T>>(rows, features, data.dy),
                                  matrix_of<RowMatrix<T>>(rows, features, data.x), vector_of<G>(data.weight));
    }
}

}  // namespace

TEMPLATE_TEST_CASE("overwritten gradients of few rows are those that are added up elsewhere", "[norms][gradients]",
                   RmsNormUnderTest, LayerNormUnderTest) {
  check_sizes<TestType, float>();
  check_sizes<TestType, double>();
  check_sizes<TestType, Eigen::bfloat16, float>();
}

TEMPLATE_TEST_CASE("gradients of few rows, of which some are done with care", "[norms][gradients]", RmsNormUnderTest,
                   LayerNormUnderTest) {
  const float most = std::numeric_limits<float>::max() / 8, nan = std::numeric_limits<float>::quiet_NaN();
  for (const ek::Index features : {20, 64, 100}) {
    const Data data = make_data<float>({5, std::size_t(features), 1}, 3);
    const auto dy = matrix_of<RowMatrix<float>>(5, std::size_t(features), data.dy);
    const auto usual = matrix_of<RowMatrix<float>>(5, std::size_t(features), data.x);
    const auto weight = vector_of<float>(data.weight);
    for (const ek::Index special : {0, 1, 4})
      for (const float value : {most, nan, 1e-40f}) {
        INFO("row " << special << " near " << value);
        RowMatrix<float> x = usual;
        x.row(special) *= value;
        check_gradients<TestType, float, float>(dy, x, weight);
        RowMatrix<float> steep = dy;
        steep.row(special).setConstant(most);  // sums that leave the range, from statistics that are in it
        check_gradients<TestType, float, float>(steep, usual, weight);
      }
    check_gradients<TestType, float, float>(dy, RowMatrix<float>(usual * most), weight);
  }
}

TEMPLATE_TEST_CASE("gradients inside an argument are refused", "[norms][gradients][errors]", RmsNormUnderTest,
                   LayerNormUnderTest) {
  std::vector<float> memory(400);
  for (std::size_t i = 0; i < memory.size(); ++i) memory[i] = float(i % 13);
  const std::vector<float> before = memory;
  const auto rows_at = [&](std::size_t offset, ek::Index rows) {
    return Eigen::Map<RowMatrix<float>>(memory.data() + offset, rows, 20);
  };
  const auto vector_at = [&](std::size_t offset) { return Eigen::Map<Vector<float>>(memory.data() + offset, 20); };
  for (const ek::Index rows : {1, 6}) {
    typename TestType::template Saved<float> saved;
    RowMatrix<float> y(rows, 20), dx(rows, 20);
    Vector<float> apart(20);
    const Vector<float> weight = Vector<float>::Ones(20);
    TestType::forward(ek::serial, rows_at(0, rows), weight, ek::none, y, saved, {});
    const auto backward = [&](auto dweight, auto dbias) {
      TestType::backward(ek::serial, rows_at(120, rows), rows_at(0, rows), weight, saved, dx, dweight, dbias);
    };
    // Not even where it is all of the argument: it is written before the last row is read.
    CHECK_THROWS_AS(backward(vector_at(0), vector_at(300)), ek::ShapeError);
    CHECK_THROWS_AS(backward(vector_at(120), vector_at(300)), ek::ShapeError);
    CHECK_THROWS_AS(backward(vector_at(300), vector_at(130)), ek::ShapeError);
    CHECK_THROWS_AS(backward(vector_at(300), vector_at(310)), ek::ShapeError);
    CHECK((memory == before));
    CHECK_NOTHROW(backward(Eigen::Map<Vector<float>>(apart.data(), 20), vector_at(300)));
    memory = before;
  }
}
