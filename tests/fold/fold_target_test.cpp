#include "evenkeel/fold/fold_target.hpp"

#include "evenkeel/fold/fold_weight_norm.hpp"
#include "evenkeel/fold/largest_difference.hpp"
#include "fold/layers.hpp"
#include "support/catch.hpp"

#include <Eigen/Core>
#include <unsupported/Eigen/CXX11/Tensor>

#include <limits>
#include <string>

namespace {

using namespace fold_test;
using Matrix = Eigen::MatrixXd;
using Vector = Eigen::VectorXd;

const ek::FoldOptions out_in{.axes = {.input = {1}, .output = {0}}};
const ek::AffineMap map{{1, 2, 3}, {1, 1, 1}, false};

template <class Call>
void refused(const Call& call, const std::string& message) {
  CHECK_THROWS_AS(call(), ek::StateError);
  CHECK_THROWS_WITH(call(), message);
}

TEST_CASE("one norm folds into several layers, all or none of them", "[fold]") {
  Matrix wq = Matrix::Ones(2, 3), wk = Matrix::Ones(4, 3), wv = Matrix::Ones(4, 3);
  Vector bq = Vector::Ones(2), bk = Vector::Constant(4, NAN);
  Vector bv = bk;
  ek::FoldTarget q("q", wq, bq, out_in), k("k", wk, bk, out_in);
  ek::FoldTarget v("v", wv.topRows(3), bv.head(3), out_in);
  k.has_bias = v.has_bias = false;

  SECTION("all") {
    ek::fold_into_next(map, q, k, v);
    for (const Matrix* w : {&wq, &wk}) CHECK((w->rowwise() - Eigen::RowVector3d(1, 2, 3)).isZero(0));
    CHECK((wv.topRows(3).rowwise() - Eigen::RowVector3d(1, 2, 3)).isZero(0));
    CHECK((wv.row(3).array() == 1).all());
    CHECK((bq.array() == 4).all());
    CHECK((bk.array() == 3).all());
    CHECK((bv.head(3).array() == 3).all());
    CHECK(k.has_bias);
    CHECK(k.holds_norm_before());
    CHECK_FALSE(k.holds_norm_behind());

    SECTION("not twice, unless the weight was written anew") {
      Matrix other = Matrix::Ones(2, 3);
      ek::FoldTarget fresh("fresh", other, bq, out_in);
      refused([&] { ek::fold_into_next(map, fresh, k); },
              "fold_into_next: k holds a folded norm already, expected a weight without one");
      CHECK((other.array() == 1).all());
      CHECK_FALSE(fresh.holds_norm_before());
      k.reset();
      ek::fold_into_next(map, k);
      CHECK((wk.rowwise() - Eigen::RowVector3d(1, 4, 9)).isZero(0));
      CHECK((bk.array() == 9).all());
    }
    SECTION("a norm behind the layer is another fold") {
      const ek::AffineMap behind{{2, 2}, {}, false};
      ek::fold_into_previous(behind, q);
      CHECK((wq.rowwise() - Eigen::RowVector3d(2, 4, 6)).isZero(0));
      CHECK((bq.array() == 8).all());
      refused([&] { ek::fold_into_previous(behind, q); },
              "fold_into_previous: q holds a folded norm already, expected a weight without one");
    }
  }
  SECTION("none, where one has another shape") {
    Matrix wide = Matrix::Ones(2, 4);
    ek::FoldTarget last("last", wide, bq, out_in);
    CHECK_THROWS_AS(ek::fold_into_next(map, q, k, last), ek::ShapeError);
    CHECK((wq.array() == 1).all());
    CHECK((wk.array() == 1).all());
    CHECK_FALSE(q.holds_norm_before());
    CHECK_FALSE(k.has_bias);
  }
  SECTION("none, where two are the same weight") {
    ek::FoldTarget again("again", wq, bq, out_in);
    refused([&] { ek::fold_into_next(map, q, again); },
            "fold_into_next: again has the weight of q, expected one of its own");
    CHECK((wq.array() == 1).all());
  }
  SECTION("not where the weight is tied") {
    q.tied = true;
    refused([&] { ek::fold_into_next(map, k, q); },
            "fold_into_next: q is tied to another layer, which would read the folded weight, expected a weight of its "
            "own");
    CHECK((wk.array() == 1).all());
    q.tied = false;
    ek::fold_into_next(map, k, q);
    CHECK(wq(0, 2) == 3);
  }
}

TEST_CASE("a target without a bias takes maps without an offset", "[fold]") {
  Matrix w = Matrix::Ones(2, 3);
  ek::FoldTarget target("w", w, ek::none, out_in);
  CHECK_THROWS_WITH(
      ek::fold_into_next(map, target),
      "fold_into_next: the norm has an offset and folded_bias is none, expected 2 values (weight is 2x3)");
  ek::fold_into_next({map.scale, {}, false}, target);
  CHECK(w(1, 2) == 3);
  CHECK_FALSE(target.has_bias);
  CHECK_THROWS_WITH(ek::FoldTarget("w", w, Vector(3), out_in),
                    "FoldTarget: bias has 3 values, weight has 2 outputs (weight is 2x3)");
}

TEST_CASE("norms of weights fold into plain weights", "[fold]") {
  Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor> v(2, 2), w(2, 2);
  v << 3, 4, 6, 8;
  Eigen::VectorXf g(2);
  g << 10, 1;
  ek::fold_weight_norm(v, g, w);
  CHECK(ek::largest_difference(w, Eigen::Matrix2f{{6, 8}, {0.6f, 0.8f}}).absolute < 1e-6);
  ek::fold_weight_standardization(v, w, {.eps = 0});
  CHECK(ek::largest_difference(w, Eigen::Matrix2f{{-1, 1}, {-1, 1}}).absolute < 1e-6);
  ek::fold_scaled_weight_standardization(v, g, v, {.eps = 0});
  const float root = std::sqrt(0.5f);
  CHECK(ek::largest_difference(v, Eigen::Matrix2f{{-10 * root, 10 * root}, {-root, root}}).absolute < 1e-5);
}

TEST_CASE("largest_difference of tensors, expressions and functions", "[fold]") {
  Eigen::Tensor<double, 3, Eigen::RowMajor> y(2, 3, 4);
  Eigen::Tensor<float, 3> z(2, 3, 4);
  for (int i = 0; i < 2; ++i)
    for (int j = 0; j < 3; ++j)
      for (int k = 0; k < 4; ++k) y(i, j, k) = z(i, j, k) = float(i * 12 + j * 4 + k);
  CHECK(ek::largest_difference(y, z).absolute == 0);
  CHECK(ek::largest_difference(y, z).largest == 23);
  CHECK(ek::largest_difference(y, z).relative() == 0);
  y(1, 0, 2) += 0.5;
  y(0, 0, 1) -= 0.25;
  CHECK(ek::largest_difference(y, z).absolute == 0.5);
  CHECK(ek::largest_difference(y, z).relative() == 0.5 / 23);
  CHECK_THROWS_WITH(ek::largest_difference(y, Eigen::MatrixXd(2, 12)), "largest_difference: y is 2x3x4, z is 2x12");

  const Matrix x = Matrix::Ones(2, 2);
  const auto difference = ek::largest_difference([](const Matrix& m) { return Matrix(2 * m); },
                                                 [](const Matrix& m) { return Matrix(3 * m); }, x);
  CHECK(difference.absolute == 1);
  CHECK(difference.relative() == 0.5);
  CHECK(ek::largest_difference(x, 3 * x - x).absolute == 1);

  Matrix bad = x;
  const double infinity = std::numeric_limits<double>::infinity();
  for (const double value : {double(NAN), infinity, -infinity}) {
    bad(1, 0) = value;
    CHECK(ek::largest_difference(x, bad).absolute == infinity);
    CHECK(ek::largest_difference(bad, x).absolute == infinity);
    CHECK(ek::largest_difference(bad, bad).absolute == 0);
  }
}

}  // namespace
