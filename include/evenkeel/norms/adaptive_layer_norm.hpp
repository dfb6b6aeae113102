/// Adaptive LayerNorm: a norm whose scale and shift come from outside, one pair for each sample, as a diffusion model's
/// timestep gives them. W. Peebles, S. Xie, "Scalable Diffusion Models with Transformers", 2023, section 3.2 (adaLN).
///
///     y = xhat * (1 + scale[sample]) + shift[sample],  xhat that of layer_norm or rms_norm without parameters
///     dx as theirs with weight 1 + scale,  dscale[sample] = sum over the sample's rows of dy * xhat
///     dshift[sample] = sum over the sample's rows of dy
///
/// No math of its own: it is the norm with unit offset, whose weight and bias change from one sample to the next.
#pragma once

#include "evenkeel/norms/layer_norm.hpp"
#include "evenkeel/norms/rms_norm.hpp"

#include <algorithm>
#include <array>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>

namespace evenkeel {
namespace detail {

inline namespace EVENKEEL_ISA {

/// Samples of equally many rows, and how to get from one to the next.
struct SampleGrid {
  Index samples = 0;
  RowGrid grid;                                         // of one sample
  std::array<Index, 3> step{0, 0, 0}, spread{1, 1, 1};  // factors of the strides: to the next sample, between its rows

  template <class T>
  Rows<T> rows(const Rows<T>& all, Index sample) const {
    Rows<T> r = all;
    for (std::size_t a = 0; a < 3; ++a) {
      r.data += sample * step[a] * all.stride[a];
      r.stride[a] = spread[a] * all.stride[a];
    }
    return r;
  }
};

/// How the rows of x fall to the samples. Rows are counted as in AxisView and a sample has neighbouring ones; but where
/// leading axes of a column-major tensor were merged, whose first one is the fastest, rows take turns.
inline SampleGrid sample_grid(const char* function, const std::string& shape, const RowGrid& all, Index samples,
                              bool first_fastest) {
  SampleGrid s{samples, all};
  if (samples == 0 && all.rows() == 0) return s;
  for (std::size_t a = 0; samples > 0 && a < 3; ++a) {
    if (all.extent[a] == 1 && samples > 1) continue;
    if (all.extent[a] % samples != 0) break;
    s.grid.extent[a] /= samples;
    s.step[a] = first_fastest && a == 1 ? 1 : s.grid.extent[a];
    s.spread[a] = first_fastest && a == 1 ? samples : 1;
    return s;
  }
  throw_shape_error(function, "scale has ", samples, " samples, which the ", all.rows(),
                    " rows of x do not fall into (", shape, ")");
}

/// Whether the rows of x are merged axes of which the first one is the fastest.
template <class X>
bool first_axis_fastest(const char* function, const X& x, const Axes& axes) {
  if constexpr (is_axis_view<X>) {
    return false;
  } else {
    const Layout layout = layout_of(x);
    const AxisRange range = resolve_axes(function, "x", layout, axes);
    return merge_axes(layout, 0, range.first).order == 2;
  }
}

/// One value per sample and feature.
template <class T>
struct SampleRows {
  T* data = nullptr;
  Index stride = 0;
  T* of(Index sample) const { return data + sample * stride; }
};
inline None of_sample(None, Index) { return none; }
template <class T>
T* of_sample(const SampleRows<T>& rows, Index sample) {
  return rows.of(sample);
}

template <class P>
Index samples_of(const P& p) {
  const Layout layout = layout_of(p);
  return layout.rank == 2 ? layout.extent[0] : 1;
}

/// scale, shift and their gradients: (samples, features), features contiguous; a slice of a wider matrix will do.
template <class P>
auto sample_rows(const char* function, const char* name, P& p, Index samples, Index features) {
  if constexpr (is_none_v<P>) {
    return none;
  } else {
    const Layout layout = layout_of(p);
    const auto last = static_cast<std::size_t>(std::max(layout.rank, 1) - 1);
    if (layout.rank < 1 || layout.rank > 2 || layout.extent[last] != features || samples_of(p) != samples)
      throw_shape_error(function, name, " is ", text(layout), ", expected ", samples, "x", features);
    if (features > 1 && layout.stride[last] != 1)
      throw_shape_error(function, name, " (", text(layout), ") is strided, expected contiguous features");
    return SampleRows<element_t<P>>{data_of(p), layout.rank == 2 ? layout.stride[0] : 0};
  }
}

/// Calls body(device, sample) for each sample: from 8 samples on the threads share these, below they share the rows of
/// one. Results are the same, since a pass gives the same on every device. A CUDA stream takes one after the other.
template <class Device, class Body>
void for_each_sample(const Device& device, Index samples, double bytes, const Body& body) {
  if constexpr (CpuDevice<Device>)
    if (samples >= 8) return for_each_block(device, samples, bytes, [&](Index sample) { body(serial, sample); });
  for (Index sample = 0; sample < samples; ++sample) body(device, sample);
}

template <class Norm, class Device, class X, class Scale, class Shift, class Y, class Saved, class Options>
void adaptive_norm(const char* function, const Device& device, const X& x, const Scale& scale, const Shift& shift, Y& y,
                   Saved& saved, const Options& options) {
  require_device<Device>();
  using T = scalar_t<const X>;
  using A = accumulator_t<T>;
  RowArguments arguments(function);
  const auto rows = arguments.reference("x", x, options.axis);
  const RowGrid grid = arguments.grid();
  const Index samples = samples_of(scale);
  const auto scales = sample_rows(function, "scale", scale, samples, grid.length);
  const auto shifts = sample_rows(function, "shift", shift, samples, grid.length);
  const SampleGrid parts =
      sample_grid(function, arguments.shape(), grid, samples, first_axis_fastest(function, x, options.axis));
  const A eps = resolved_eps<A>(function, options.eps);
  const auto out = arguments.output("y", y);
  A* kept = nullptr;
  if constexpr (!is_none_v<Saved>) {
    kept = saved.begin({grid.rows(), grid.length, scalar_name<T>(), options.axis, true, true,
                        static_cast<const void*>(out.data) == rows.data});
    saved.samples = samples;
  }
  const typename Norm::template Forward<A, AffineMath<true, None>> math{A(1) / static_cast<A>(grid.length), eps};
  const double bytes = 2.0 * sizeof(T) * static_cast<double>(grid.rows()) * static_cast<double>(grid.length);
  for_each_sample(device, samples, bytes, [&](const auto& on, Index sample) {
    const auto pass = [&](auto kept_rows) {
      row_pass(on, RowPass{math, parts.grid, std::tuple(parts.rows(rows, sample)),
                           std::tuple(of_sample(scales, sample), of_sample(shifts, sample)),
                           std::tuple(parts.rows(out, sample)), none, kept_rows});
    };
    if constexpr (is_none_v<Saved>)
      pass(none);
    else
      pass(kept + sample * Saved::fields * parts.grid.rows());
  });
}

template <class Norm, class Device, class Dy, class X, class Scale, class Saved, class Dx, class Dscale, class Dshift>
void adaptive_norm_backward(const char* function, const Device& device, const Dy& dy, const X& x, const Scale& scale,
                            Saved& saved, Dx& dx, Dscale& dscale, Dshift& dshift) {
  require_device<Device>();
  using T = scalar_t<const X>;
  using A = accumulator_t<T>;
  static_assert(std::is_same_v<A, typename Saved::Scalar>,
                "evenkeel: saved must be of the accumulator type of the data: double for double, float for the rest");
  using Terms = ParameterTerms<!is_none_v<Dscale>, !is_none_v<Dshift>>;
  saved.check_filled(function);
  RowArguments arguments(function);
  const auto rows = arguments.reference("x", x, saved.call.axis);
  const RowGrid grid = arguments.grid();
  saved.check(function, "x", grid.rows(), grid.length, scalar_name<T>(), true);
  const Index samples = saved.samples, length = grid.length;
  const auto scales = sample_rows(function, "scale", scale, samples, length);
  const auto dscales = sample_rows(function, "dscale", dscale, samples, length);
  const auto dshifts = sample_rows(function, "dshift", dshift, samples, length);
  const SampleGrid parts =
      sample_grid(function, arguments.shape(), grid, samples, first_axis_fastest(function, x, saved.call.axis));
  const auto dy_rows = arguments.input("dy", dy);
  const auto dx_rows = arguments.output("dx", dx);
  const Index sample_scratch = feature_scratch<A, Terms::count>(device, parts.grid.rows(), length);
  saved.scratch.ensure(samples * sample_scratch);
  const typename Norm::template Backward<A, AffineMath<true, None>, Terms> math{A(1) / static_cast<A>(length)};
  const double bytes = 3.0 * sizeof(T) * static_cast<double>(grid.rows()) * static_cast<double>(length);
  for_each_sample(device, samples, bytes, [&](const auto& on, Index sample) {
    A* const scratch = saved.scratch.data() + sample * sample_scratch;
    const A* const known = saved.statistics.data() + sample * Saved::fields * parts.grid.rows();
    const FeatureParts sums =
        row_pass(on,
                 RowPass{math, parts.grid, std::tuple(parts.rows(dy_rows, sample), parts.rows(rows, sample), none),
                         std::tuple(of_sample(scales, sample)), std::tuple(parts.rows(dx_rows, sample)), known},
                 scratch);
    put_gradients(on, scratch, sums, length, GradientMode::overwrite, of_sample(dscales, sample),
                  of_sample(dshifts, sample));
  });
}

}  // namespace EVENKEEL_ISA

/// Statistics of rows, sample after sample.
template <class A, int Fields, class Storage>
class AdaptiveSaved : public SavedRows<A, Fields, Storage> {
 public:
  static constexpr int fields = Fields;
  Index samples = 0;

  /// Makes room for a forward and a backward over x, so that neither allocates.
  template <class Device, class X>
  void reserve(const Device& device, const X& x, Index sample_count, const Axes& axis = {}) {
    RowArguments arguments("reserve");
    arguments.reference("x", x, axis);
    const RowGrid grid = arguments.grid();
    this->statistics.reserve(Fields * grid.rows());
    this->scratch.reserve(sample_count *
                          feature_scratch<A, 2>(device, grid.rows() / std::max<Index>(sample_count, 1), grid.length));
  }

  /// 1/sqrt(var + eps), or of the mean square, of one row of one sample.
  A rstd(Index sample, Index row) const { return field_of(Fields - 1, sample, row); }

 protected:
  A field_of(int k, Index sample, Index row) const {
    const Index rows = this->call.rows / samples;
    return this->statistics.data()[(sample * Fields + k) * rows + row];
  }
};

}  // namespace detail

/// Options of adaptive_layer_norm.
struct AdaptiveLayerNormOptions {
  double eps = 1e-6;  ///< added to the variance, inside the root; at least 0, or ek::machine_epsilon
  Axes axis = {};     ///< the normalized axis or neighbouring axes
};

/// Options of adaptive_rms_norm.
struct AdaptiveRmsNormOptions {
  double eps = 1e-6;  ///< added to the mean square, inside the root; at least 0, or ek::machine_epsilon
  Axes axis = {};     ///< the normalized axis or neighbouring axes
};

/// Statistics that adaptive_layer_norm leaves for its backward, and scratch. A is the accumulator type of the data.
template <class A, class Storage = HostStorage>
class AdaptiveLayerNormSaved : public detail::AdaptiveSaved<A, 3, Storage> {
 public:
  A mean(Index sample, Index row) const { return this->field_of(0, sample, row); }
};

/// Statistics that adaptive_rms_norm leaves for its backward, and scratch. A is the accumulator type of the data.
template <class A, class Storage = HostStorage>
class AdaptiveRmsNormSaved : public detail::AdaptiveSaved<A, 1, Storage> {};

inline namespace EVENKEEL_ISA {

/// y = (x - mean) * rstd * (1 + scale[sample]) + shift[sample].
///
/// x, y           (samples, ..., features) in any layout, the same for both: the rows of x, counted in order, fall into
///                samples of equally many. y may be x itself, then no backward is possible
/// scale, shift   (samples, features) of any scalar type, features contiguous: a block of columns of the matrix that
///                holds all modulations will do. shift may be ek::none. A vector is one sample
/// saved          receives mean and rstd per row, or ek::none for inference
/// Writes y and saved. Throws ShapeError before any work. The eps stands inside the root.
/// Allocates nothing but what saved lacks. Example: tests/norms/adaptive_layer_norm_test.cpp.
template <class Device, class X, class Scale, class Shift, class Y, class Saved>
  requires detail::SavedOrNone<Saved, AdaptiveLayerNormSaved, X>
void adaptive_layer_norm(const Device& device, const X& x, const Scale& scale, const Shift& shift, Y&& y, Saved&& saved,
                         const AdaptiveLayerNormOptions& options = {}) {
  detail::adaptive_norm<detail::Standardize>("adaptive_layer_norm", device, x, scale, shift, y, saved, options);
}

/// The gradients of adaptive_layer_norm.
///
/// dy, x, dx        the shape of the forward's x; dx may be dy itself
/// scale            the forward's
/// saved            filled by the forward
/// dscale, dshift   (samples, features), or ek::none where they are not wanted
/// Writes all of them: scale and shift are activations. Throws ShapeError before any work.
template <class Device, class Dy, class X, class Scale, class A, class Storage, class Dx, class Dscale, class Dshift>
void adaptive_layer_norm_backward(const Device& device, const Dy& dy, const X& x, const Scale& scale,
                                  AdaptiveLayerNormSaved<A, Storage>& saved, Dx&& dx, Dscale&& dscale,
                                  Dshift&& dshift) {
  detail::adaptive_norm_backward<detail::Standardize>("adaptive_layer_norm_backward", device, dy, x, scale, saved, dx,
                                                      dscale, dshift);
}

/// y = x * rstd * (1 + scale[sample]) + shift[sample], rstd that of rms_norm; otherwise as adaptive_layer_norm.
template <class Device, class X, class Scale, class Shift, class Y, class Saved>
  requires detail::SavedOrNone<Saved, AdaptiveRmsNormSaved, X>
void adaptive_rms_norm(const Device& device, const X& x, const Scale& scale, const Shift& shift, Y&& y, Saved&& saved,
                       const AdaptiveRmsNormOptions& options = {}) {
  detail::adaptive_norm<detail::Rms>("adaptive_rms_norm", device, x, scale, shift, y, saved, options);
}

/// The gradients of adaptive_rms_norm; arguments as those of adaptive_layer_norm_backward.
template <class Device, class Dy, class X, class Scale, class A, class Storage, class Dx, class Dscale, class Dshift>
void adaptive_rms_norm_backward(const Device& device, const Dy& dy, const X& x, const Scale& scale,
                                AdaptiveRmsNormSaved<A, Storage>& saved, Dx&& dx, Dscale&& dscale, Dshift&& dshift) {
  detail::adaptive_norm_backward<detail::Rms>("adaptive_rms_norm_backward", device, dy, x, scale, saved, dx, dscale,
                                              dshift);
}

}  // namespace EVENKEEL_ISA
}  // namespace evenkeel
