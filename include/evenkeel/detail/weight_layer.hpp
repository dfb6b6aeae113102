/// The weight that a layer of a weight norm owns: the shape of the tensor it was built from, values and gradients.
#pragma once

#include "evenkeel/detail/weight_pass.hpp"
#include "evenkeel/parameter.hpp"

#include <string>
#include <tuple>
#include <utility>

namespace evenkeel::detail::inline EVENKEEL_ISA {

/// A tensor whose shape a layer can take over.
template <class X>
concept WeightTensor = EigenTensor<X> || EigenDense<X>;

/// f(data) sets `size` values in the host's memory; where the storage is a device's, they go to `values` afterwards.
template <class Storage, class T, class F>
void set_on_host(T* values, Index size, const F& f) {
  if constexpr (Storage::on_host) {
    f(values);
  } else {
    HostBuffer<T> staged;
    staged.reserve(size);
    f(staged.data());
    Storage::upload(staged.data(), values, size);
  }
}

/// T is the scalar; the values lie without gaps in the storage order of the tensor that the weight was built from.
template <class T, class Storage>
class StoredWeight {
 public:
  /// Zeros in the shape of `initial`. Throws ShapeError where `axes` do not fit.
  template <WeightTensor X>
  StoredWeight(const char* function, std::string name, const X& initial, const Axes& axes)
      : layout_(packed(layout_of(initial))),
        range_(resolve_axes(function, "weight", layout_, axes)),
        geometry_(geometry_along(function, "weight", layout_, range_)),
        parameter(std::move(name), layout_.size()) {}

  AxisView<const T> values() const { return view_as(geometry_, parameter.value()); }
  AxisView<T> values() { return view_as(geometry_, parameter.value()); }
  AxisView<T> gradients() { return view_as(geometry_, parameter.gradient()); }
  Index units() const { return geometry_.length; }
  Index count() const { return geometry_.rows(); }

  /// The view of a tensor that must have the weight's shape.
  template <WeightTensor X>
  AxisView<element_t<X>> like(const char* function, const char* name, X& x) const {
    const Layout layout = layout_of(x);
    if (!same_extents(layout, layout_))
      throw_shape_error(function, name, " is ", text(layout), ", the weight is ", text(layout_));
    const Geometry view = geometry_along(function, name, layout, range_);
    if (view.merged && geometry_.merged && view.merged != geometry_.merged)
      throw_shape_error(function, name,
                        " and the weight have different storage orders, expected the same for more than two "
                        "dimensions");
    return view_as(view, data_of(x));
  }

  /// f(view) sets the values in the host's memory; where the storage is a device's, they go there afterwards.
  template <class F>
  void set_on_host(const F& f) {
    detail::set_on_host<Storage>(parameter.value(), parameter.size(), [&](T* data) { f(view_as(geometry_, data)); });
  }
  /// Copies the values of a tensor of the weight's shape, in the host's memory.
  template <WeightTensor X>
  void assign(const char* function, const X& x) {
    set_on_host([&](auto view) {
      WeightArguments arguments(function);
      const auto from = arguments.reference("weight", like(function, "weight", x), {});
      const auto to = arguments.output("values", view);
      channel_write(
          serial,
          RowPass{WeightCopy{}, arguments.grid(), std::tuple(from), std::tuple(none), std::tuple(to), nothing_known},
          arguments.bytes(from));
    });
  }

 private:
  static Layout packed(Layout layout) {
    Index stride = 1;
    for (int k = 0; k < layout.rank; ++k) {
      const auto a = static_cast<std::size_t>(layout.row_major ? layout.rank - 1 - k : k);
      layout.stride[a] = stride;
      stride *= layout.extent[a];
    }
    return layout;
  }

  Layout layout_;
  AxisRange range_;
  Geometry geometry_;

 public:
  Parameter<T, Storage> parameter;
};

/// A parameter's values, or its gradient, as an argument of a free function.
template <class T>
auto map_of(T* data, Index size) {
  using Plain = Eigen::Array<std::remove_const_t<T>, Eigen::Dynamic, 1>;
  return Eigen::Map<std::conditional_t<std::is_const_v<T>, const Plain, Plain>>(data, size);
}

}  // namespace evenkeel::detail::inline EVENKEEL_ISA
