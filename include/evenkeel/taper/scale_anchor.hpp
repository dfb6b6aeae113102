/// The scale anchor: a loss that holds the scale of the pre-logit stream where the final norm held it. arXiv
/// 2602.10408, section 3.5 and appendix A.4. All-Taper needs it; the paper's Internal-Taper has it too.
///
///     s(h) = sqrt(mean(h^2) + eps), or sqrt(var(h) + eps)
///     L = lambda * mean over rows of (s - target)^2
///     dL/dh = (2 lambda / rows) * (s - target) * h/(d * s)   [h - mean in place of h for sigma]
///
/// The target is the average of s over the warmup, fixed after it.
#pragma once

#include "evenkeel/detail/anchor_math.hpp"
#include "evenkeel/detail/row_averages.hpp"
#include "evenkeel/distributed/averages.hpp"
#include "evenkeel/norms/layer_norm.hpp"
#include "evenkeel/norms/rms_norm.hpp"
#include "evenkeel/taper/taper.hpp"

#include <array>
#include <cmath>
#include <tuple>

namespace evenkeel {

/// Which scale of a row: match the final norm.
enum class ScaleKind {
  rms,   ///< sqrt(mean(h^2) + eps), of RMSNorm
  sigma  ///< sqrt(var(h) + eps), of LayerNorm
};

/// Options of scale_anchor_loss and scale_mean.
struct ScaleAnchorOptions {
  double lambda = 0.1;  ///< the loss's weight; 0.01 for the paper's largest model
  double target = 1;    ///< s_target
  ScaleKind kind = ScaleKind::rms;
  double eps = 1e-6;  ///< inside the root; the final norm's
  Axes axis = {};     ///< the features' axis or neighbouring axes
};

/// Statistics of rows, which are the scratch of scale_anchor_loss. A is the accumulator type of the data.
template <class A, class Storage = HostStorage>
class ScaleAnchorSaved : public detail::SavedRows<A, 3, Storage> {
 public:
  ScaleKind kind = ScaleKind::rms;
  /// What the last call on a CUDA device computed: a loss or a mean.
  typename Storage::template Buffer<double> result;  // (1)

  /// Makes room for a call over h, so that it does not allocate.
  template <class Device, class H>
  void reserve(const Device& device, const H& h, const Axes& axis = {}) {
    detail::SavedRows<A, 3, Storage>::reserve(device, h, axis);
    result.reserve(1);
  }

  /// s of all rows of the last call, as terms of a mean.
  detail::ScaleTerms<A> scales() const { return {this->field_values(kind == ScaleKind::rms ? 0 : 2)}; }
  /// s of a row of the last call, where the storage is the host's.
  double scale(Index row) const requires(Storage::on_host) { return scales().of(row)[0]; }
};

namespace detail::inline EVENKEEL_ISA {

/// factor times the mean over `rows` rows of saved, 0 without any: a double on the CPU; on a CUDA device a pointer to it, in saved.result.
template <class Device, class Saved, class Terms>
auto scaled_mean(const Device& device, Saved& saved, const Terms& terms, Index rows, double factor) {
  if constexpr (StreamDevice<Device>) {
    put_means(device, terms, rows, ScaledTo{factor, saved.result.data()});
    return static_cast<const double*>(saved.result.data());
  } else {
    return factor * means_of(terms, rows)[0];
  }
}

inline void check_anchor(const char* function, const ScaleAnchorOptions& options) {
  if (!(options.lambda >= 0) || std::isinf(options.lambda))
    throw_shape_error(function, "lambda is ", options.lambda, ", expected a finite number of at least 0");
  if (!(options.target >= 0) || std::isinf(options.target))
    throw_shape_error(function, "target is ", options.target, ", expected a finite number of at least 0");
}

/// Calls pass(norm) with the forward whose statistics the scale is.
template <class A, class F>
void with_scale_norm(ScaleKind kind, Index length, A eps, const F& pass) {
  const A inv_n = A(1) / static_cast<A>(length);
  if (kind == ScaleKind::rms)
    pass(RmsForward<A, AffineMath<false, None>>{inv_n, eps});
  else
    pass(StandardizeForward<A, AffineMath<false, None>>{inv_n, eps});
}

/// The statistics of all rows of h, to saved.
template <class Device, class H, class A, class Storage>
void keep_scales(const char* function, const Device& device, const H& h, ScaleAnchorSaved<A, Storage>& saved,
                 const ScaleAnchorOptions& options) {
  require_device<Device>();
  using T = scalar_t<const H>;
  static_assert(std::is_same_v<A, accumulator_t<T>>,
                "evenkeel: saved must be of the accumulator type of the data: double for double, float for the rest");
  RowArguments arguments(function);
  const auto rows = arguments.reference("h", h, options.axis);
  const A eps = resolved_eps<A>(function, options.eps);
  const RowGrid grid = arguments.grid();
  A* const kept = saved.begin({grid.rows(), grid.length, scalar_name<T>(), options.axis});
  saved.kind = options.kind;
  with_scale_norm(options.kind, grid.length, eps, [&](const auto& norm) {
    const StatisticsMath<std::remove_cvref_t<decltype(norm)>> math{{norm}};
    row_pass(device, RowPass{math, grid, std::tuple(rows), std::tuple<>(), std::tuple<>(), none, kept});
  });
}

}  // namespace detail::inline EVENKEEL_ISA

inline namespace EVENKEEL_ISA {

/// Adds dL/dh to dh and returns L.
///
/// h, dh   any shape, the same for both, in memory apart from each other; dh is the gradient that the rest of the loss
///         has left for h
/// saved   scratch, from which saved.scale(row) can be read afterwards
/// One pass, and a sum over rows in double. Throws ShapeError before any work. Without rows L is 0. On a CUDA device,
/// after saved.reserve(device, h), it is put into the stream, and what is returned is a pointer to L, a double in the
/// device's memory that saved owns and the next call overwrites.
/// Example: tests/taper/scale_anchor_test.cpp.
template <class Device, class H, class Dh, class A, class Storage>
auto scale_anchor_loss(const Device& device, const H& h, Dh&& dh, ScaleAnchorSaved<A, Storage>& saved,
                       const ScaleAnchorOptions& options = {}) {
  detail::require_device<Device>();
  constexpr const char* function = "scale_anchor_loss";
  using T = detail::scalar_t<const H>;
  static_assert(std::is_same_v<A, accumulator_t<T>>,
                "evenkeel: saved must be of the accumulator type of the data: double for double, float for the rest");
  detail::check_anchor(function, options);
  detail::RowArguments arguments(function);
  const auto rows = arguments.reference("h", h, options.axis);
  const auto dh_rows = arguments.input("dh", dh);
  const A eps = detail::resolved_eps<A>(function, options.eps);
  const auto out = arguments.output("dh", dh);
  const detail::RowGrid grid = arguments.grid();
  const Index count = grid.rows();
  if (count > 0 && static_cast<const void*>(out.data) == rows.data)
    detail::throw_shape_error(function, "dh is h, expected memory apart from it");
  saved.result.ensure(1);
  A* const kept = saved.begin({count, grid.length, scalar_name<T>(), options.axis});
  saved.kind = options.kind;
  const double elements = static_cast<double>(count) * static_cast<double>(grid.length);
  detail::with_scale_norm(options.kind, grid.length, eps, [&](const auto& norm) {
    using Norm = std::remove_cvref_t<decltype(norm)>;
    const detail::AnchorMath<Norm> math{
        {norm}, static_cast<A>(2 * options.lambda / elements), static_cast<A>(options.target), A(1)};
    detail::row_pass(
        device, detail::RowPass{math, grid, std::tuple(rows, dh_rows), std::tuple<>(), std::tuple(out), none, kept});
  });
  return detail::scaled_mean(device, saved, detail::AnchorTerms<A>{saved.scales(), options.target}, count,
                             options.lambda);
}

/// The mean of s over the rows, without a gradient: what the target is averaged from. 0 without rows. saved is scratch.
/// On a CUDA device a pointer to the mean, as scale_anchor_loss has it.
template <class Device, class H, class A, class Storage>
auto scale_mean(const Device& device, const H& h, ScaleAnchorSaved<A, Storage>& saved,
                const ScaleAnchorOptions& options = {}) {
  saved.result.ensure(1);
  detail::keep_scales("scale_mean", device, h, saved, options);
  return detail::scaled_mean(device, saved, saved.scales(), saved.rows(), 1);
}

/// A ScaleAnchor as plain numbers, to be saved with a model and restored.
struct ScaleAnchorState {
  EmaState scale;
  double target = 0;
  bool frozen = false;
};

/// The scale anchor of a network, bound to the Taper of its layers. T is the scalar of their parameters.
///
///     ek::ScaleAnchor<float> anchor(taper);
///     head.backward(device, dlogits, h, dh);
///     loss += anchor.add(device, h, dh);
///
/// options.target is without effect: the anchor finds its own.
///
/// With CudaStorage, and after reserve(), add() puts its work into the stream and returns a pointer to the loss, a double
/// in the device's memory. The host waits for the device, and so may not while a stream is captured, in freeze(), hence
/// in the first add() after the warmup unless that came before it, and in scale(), state() and restore(). The target is
/// then a number of the host's.
template <class T, class Storage = HostStorage>
class ScaleAnchor {
 public:
  explicit ScaleAnchor(const Taper& taper, const ScaleAnchorOptions& options = {})
      : taper_(&taper), options_(options), scale_(taper.rate()) {
    detail::check_anchor("ScaleAnchor::ScaleAnchor", options_);
  }
  explicit ScaleAnchor(const Taper&&, const ScaleAnchorOptions& = {}) = delete;

  /// Makes room for add(), so that it does not allocate. On a CUDA device it comes first.
  template <class Device, class H>
  void reserve(const Device& device, const H& h) {
    saved_.reserve(device, h, options_.axis);
  }

  /// In a training step, after dh has the gradient of the rest of the loss. In the warmup: the batch enters the average
  /// of the scale, 0 is returned. After it: adds dL/dh to dh and returns L. The first call after the warmup fixes the
  /// target, see freeze(). Do not call it for a validation.
  template <class Device, class H, class Dh>
  auto add(const Device& device, const H& h, Dh&& dh) {
    if (!frozen_ && taper_->phase() == TaperPhase::warmup) {
      saved_.result.ensure(1);
      detail::keep_scales("ScaleAnchor::add", device, h, saved_, options_);
      scale_.add(device, saved_.scales(), saved_.rows());
      return detail::scaled_mean(device, saved_, saved_.scales(), 0, 0);
    }
    if (!frozen_) freeze();
    return scale_anchor_loss(device, h, dh, saved_, options_);
  }

  /// Fixes the target from the average. Throws StateError if it is fixed already, or if there was no batch.
  void freeze() {
    require_free("ScaleAnchor::freeze");
    const Ema average = scale();
    if (average.empty())
      detail::throw_state_error("ScaleAnchor::freeze",
                                "got no batches in the warmup, expected 1 or more, or freeze(target)");
    freeze(average.value());
  }
  /// The same from the averages of all ranks, so that the target is the same on each of them. Each batch of each rank
  /// counts alike. One message of 3 doubles. Where it is an error on one rank, all ranks throw.
  template <Communicator C>
  void freeze(C&& communicator) {
    const auto [mean] = detail::averages_over_ranks<1>("ScaleAnchor::freeze", communicator, [&] {
      require_free("ScaleAnchor::freeze");
      return std::array{scale().state()};
    });
    freeze(mean);
  }
  /// The same with a given target.
  void freeze(double target) {
    require_free("ScaleAnchor::freeze");
    if (!(target >= 0) || std::isinf(target))
      detail::throw_state_error("ScaleAnchor::freeze", "got the target ", target,
                                ", expected a finite number of at least 0");
    options_.target = target;
    frozen_ = true;
  }

  bool frozen() const { return frozen_; }
  /// s_target, 0 before it is fixed.
  double target() const { return frozen_ ? options_.target : 0; }
  /// The average of the batch means of s.
  Ema scale() const { return scale_.get()[0]; }
  const ScaleAnchorOptions& options() const { return options_; }

  ScaleAnchorState state() const { return {scale().state(), target(), frozen_}; }
  /// Throws StateError for numbers that no run leaves.
  void restore(const ScaleAnchorState& state) {
    if (!(state.target >= 0) || std::isinf(state.target) || (!state.frozen && state.target != 0))
      detail::throw_state_error("ScaleAnchor::restore", "got target ", state.target, ", frozen ", int(state.frozen),
                                ", expected a finite target of at least 0, 0 where not frozen");
    scale_.set({state.scale});
    options_.target = state.target;
    frozen_ = state.frozen;
  }

 private:
  void require_free(const char* function) const {
    if (frozen_)
      detail::throw_state_error(function, "got an anchor whose target is ", options_.target,
                                " already, expected one that is not frozen yet");
  }

  const Taper* taper_;
  ScaleAnchorOptions options_;
  detail::RowAverages<1, Storage> scale_;
  bool frozen_ = false;
  ScaleAnchorSaved<accumulator_t<T>, Storage> saved_;
};

}  // namespace EVENKEEL_ISA
}  // namespace evenkeel
