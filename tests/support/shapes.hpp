#pragma once

#include <cstddef>
#include <initializer_list>
#include <vector>

namespace support {

// For loops over a few sizes: `for (std::size_t n : Counts{1, 7})`.
using Counts = std::initializer_list<std::size_t>;

// One, small primes, every pack width and unrolled block plus and minus one, and primes that no width divides.
inline const std::vector<std::size_t>& awkward_lengths() {
  static const std::vector<std::size_t> lengths{1, 2, 3, 7, 15, 16, 17, 31, 33, 63, 64, 65, 127, 769, 1031};
  return lengths;
}

struct Shape {
  std::size_t rows, length;
};

// Every awkward number appears once as a row count and once as a length; the whole square would be 225 shapes, the
// largest of them a million elements, and would prove no more.
inline std::vector<Shape> awkward_shapes() {
  const auto& lengths = awkward_lengths();
  std::vector<Shape> shapes;
  for (std::size_t i = 0; i < lengths.size(); ++i) shapes.push_back({lengths[lengths.size() - 1 - i], lengths[i]});
  for (std::size_t length : lengths) shapes.push_back({3, length});
  return shapes;
}

}  // namespace support
