/// What a forward leaves for its backward.
#pragma once

#include "evenkeel/detail/arguments.hpp"
#include "evenkeel/detail/row_pass_cpu.hpp"
#include "evenkeel/storage.hpp"

#include <string>
#include <string_view>

namespace evenkeel::detail::inline EVENKEEL_ISA {

/// The options and shape of the call that filled a `saved`; a backward reads them from here and takes none of its own.
struct SavedCall {
  Index rows = -1;  // -1: nothing saved yet
  Index length = 0;
  const char* scalar = "";
  Axes axis;
  bool unit_offset = false;
  bool has_weight = false;
  bool in_place = false;
  bool has_bias = false;
  bool for_output = false;  // a backward from y may follow
  double scale = 1;         // of the output
};

/// Statistics of rows, `Fields` numbers a row, and scratch, in one storage. Grows and never shrinks.
template <class A, int Fields, class Storage>
class SavedRows {
 public:
  using Scalar = A;
  static constexpr int fields = Fields;
  Index rows() const { return call.rows < 0 ? 0 : call.rows; }

  SavedCall call;
  typename Storage::template Buffer<A> statistics;  // (Fields, rows)
  typename Storage::template Buffer<A> scratch;

  /// Makes room for a forward and a backward over x, so that neither allocates.
  template <class Device, class X>
  void reserve(const Device& device, const X& x, const Axes& axis = {}) {
    RowArguments arguments("reserve");
    arguments.reference("x", x, axis);
    const RowGrid grid = arguments.grid();
    statistics.reserve(Fields * grid.rows());
    scratch.reserve(feature_scratch<A, 2>(device, grid.rows(), grid.length));
  }

  /// A number of each row, in the storage's memory.
  const A* field_values(int k) const { return statistics.data() + k * rows(); }  // (rows)
  /// Where the storage is the host's.
  A field(int k, Index row) const requires(Storage::on_host) { return statistics.data()[k * call.rows + row]; }

  /// Room for the statistics of `rows` rows, returned for writing.
  A* begin(const SavedCall& now) {
    statistics.ensure(Fields * now.rows);
    call = now;
    return statistics.data();
  }
  /// Throws unless a forward has run, and then unless one over rows of this number and length, with or without a
  /// weight, can be followed by a backward.
  void check_filled(const char* function) const {
    if (call.rows < 0) throw_shape_error(function, "saved is empty, expected the one that the forward filled");
  }
  void check(const char* function, const char* x, Index rows, Index length, const char* scalar, bool has_weight,
             bool from_x = true) const {
    if (call.rows != rows || call.length != length)
      throw_shape_error(function, "saved holds ", call.rows, " rows of ", call.length, ", ", x, " has ", rows,
                        " rows of ", length);
    if (std::string_view(call.scalar) != scalar)
      throw_shape_error(function, "saved comes from ", call.scalar, " data, ", x, " is ", scalar);
    if (call.has_weight != has_weight)
      throw_shape_error(function, call.has_weight ? "weight is none, the forward had one"
                                                  : "there is a weight, the forward had none");
    if (from_x && call.in_place && rows > 0)  // tensors without rows may have no memory to tell them apart
      throw_shape_error(function, "saved comes from an in-place forward, which has overwritten ", x,
                        "; expected a forward whose y is not its x");
  }
  /// The same for a backward from y.
  void check_output(const char* function, Index rows, Index length, const char* scalar, bool has_weight,
                    bool has_bias) const {
    if (!call.for_output)
      throw_shape_error(function, "saved comes from a forward without the option backward_from_output");
    check(function, "y", rows, length, scalar, has_weight, false);
    if (call.has_bias != has_bias)
      throw_shape_error(function,
                        call.has_bias ? "bias is none, the forward had one" : "there is a bias, the forward had none");
  }

  /// The same for a forward with the option backward_from_output and the backward from y. On CUDA devices, where the host
  /// does not learn how many features are kept, there is room for `features` of them.
  template <class Device, class X>
  void reserve_from_output(const Device& device, const X& x, Index features, const Axes& axis = {}) {
    reserve(device, x, axis);
    RowArguments arguments("reserve_from_output");
    arguments.reference("x", x, axis);
    const RowGrid grid = arguments.grid();
    if (features < 0 || features > grid.length)
      throw_shape_error("reserve_from_output", "features is ", features, ", expected 0 to ", grid.length);
    kept_features = features;
    kept_index.reserve(features + 1);
    kept_xhat.reserve(features * grid.rows());
    scratch.reserve(feature_scratch<A, 2>(device, grid.rows(), grid.length) +
                    output_room(grid.rows(), grid.length, features));
  }
  /// Scratch of a backward from y, its sums over the rows aside.
  static Index output_room(Index rows, Index length, Index kept) { return length + 5 * rows + kept * (rows + 1); }

  /// For a backward from y: the features whose xhat y does not tell, and their xhat. On a CUDA device there is room for
  /// kept_features of them.
  Index kept_features = 0;
  typename Storage::template Buffer<Index> kept_index;  // (kept), on a CUDA device one more
  typename Storage::template Buffer<A> kept_xhat;       // (kept, rows)
};

}  // namespace evenkeel::detail::inline EVENKEEL_ISA
