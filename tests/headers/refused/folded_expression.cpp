// refused: a weight and its bias must be Eigen tensors, matrices, arrays, maps, refs or blocks with

#include "evenkeel/fold/fold.hpp"

#include <Eigen/Core>

int main() {
  Eigen::MatrixXf w(2, 2), folded(2, 2);
  evenkeel::fold_into_next({{1, 1}, {}, false}, 2 * w, evenkeel::none, folded, evenkeel::none, {});
}
