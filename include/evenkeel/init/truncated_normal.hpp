/// Normal distributions without their tails, in two kinds that are easily taken for each other:
///
///   truncated_normal          bounds are values of the tensor, as in torch.nn.init.trunc_normal_. N(0, 0.02) cut at -2
///                             and 2 is cut at 100 standard deviations, which is not at all.
///   sigma_truncated_normal    bounds are multiples of the standard deviation, as in JAX, Keras and timm
///
///   value = mean + std * Phi^-1(Phi(a) + u * (Phi(b) - Phi(a))), a and b being the bounds in standard deviations, u in
///   (0, 1)
///
/// Phi is taken from whichever tail is nearer, so that both tails are as exact as the middle. All is computed in double
/// and rounded once; a value lies within the bounds as its type rounds them. It is a function of (seed, stream, index);
/// there is no such distribution from a TorchRandom, because torch itself has drawn it in more than one way.
///
/// Example, vision transformers: `ek::sigma_truncated_normal(w, ek::RandomStream(42, "patch.weight"), {.std = 0.02});`
#pragma once

#include "evenkeel/init/distributions.hpp"

#include <cmath>
#include <limits>
#include <type_traits>

namespace evenkeel {

/// A generator that draws from any distribution: RandomStream, CudaRandom.
template <class S>
concept QuantileSource = RandomSource<S> && requires(S& source, float* data, Index count, double (*quantile)(double)) {
  source.fill_by_quantile(data, count, quantile);
};

/// Options of truncated_normal: bounds in values of the tensor.
struct TruncatedNormalOptions {
  double mean = 0;
  double std = 1;  ///< before truncation
  double lower = -2;
  double upper = 2;
};

/// Options of sigma_truncated_normal: bounds in standard deviations from the mean.
struct SigmaTruncatedNormalOptions {
  double mean = 0;
  double std = 1;  ///< before truncation, or after it where correct_std says so
  double lower = -2;
  double upper = 2;
  bool correct_std = false;  ///< std is divided by truncated_normal_std(lower, upper), so that the values have it
};

namespace detail::inline EVENKEEL_ISA {

EVENKEEL_HD double normal_cdf(double x) { return 0.5 * std::erfc(-0.70710678118654752440 * x); }

EVENKEEL_HD double normal_density(double x) { return 0.39894228040143267794 * std::exp(-0.5 * x * x); }

/// x with normal_cdf(x) = p, for p in (0, 0.5] down to 1e-300, within a few units in the last place. The start is M.
/// Abramowitz, I. Stegun, Handbook of Mathematical Functions, 26.2.23, whose error is under 4.5e-4; each of Halley's
/// steps triples the digits.
EVENKEEL_HD double lower_normal_quantile(double p) {
  const double t = std::sqrt(-2 * std::log(p));
  double x = (2.515517 + t * (0.802853 + t * 0.010328)) / (1 + t * (1.432788 + t * (0.189269 + t * 0.001308))) - t;
  for (int step = 0; step < 2; ++step) {
    const double error = (normal_cdf(x) - p) / normal_density(x);
    x -= error / (1 + 0.5 * x * error);
  }
  return x;
}

/// Bounds beyond which doubles cannot hold the probabilities.
inline constexpr double farthest_tail = 37;

/// The quantile function of a truncated normal distribution.
class TruncatedNormal {
 public:
  /// Bounds in values.
  TruncatedNormal(double mean, double std, double lower, double upper)
      : mean_(mean), std_(std), lower_(lower), upper_(upper) {
    double a = (lower - mean) / std, b = (upper - mean) / std;
    mirrored_ = a + b > 0;
    if (mirrored_) {
      const double left = -b;
      b = -a;
      a = left;
    }
    below_ = normal_cdf(a);
    above_ = normal_cdf(-b);
    mass_ = b < 0 ? normal_cdf(b) - below_ : 1 - below_ - above_;
  }

  EVENKEEL_HD double operator()(double u) const {
    const double from_left = mirrored_ ? 1 - u : u;
    const double p = below_ + from_left * mass_;
    const double z = p <= 0.5 ? lower_normal_quantile(p) : -lower_normal_quantile(above_ + (1 - from_left) * mass_);
    const double value = mean_ + std_ * (mirrored_ ? -z : z);
    return value < lower_ ? lower_ : value > upper_ ? upper_ : value;
  }

 private:
  double mean_, std_, lower_, upper_;
  double below_ = 0, above_ = 0, mass_ = 1;  // probabilities outside and inside, of the mirrored distribution if so
  bool mirrored_ = false;  // so that the interval lies left of the mean, where probabilities are exact
};

inline void require_truncation(const char* function, double mean, double std, double lower, double upper) {
  require(std::isfinite(mean), function, "mean", mean, "a finite number");
  require(std::isfinite(std) && std > 0, function, "std", std, "a finite number above 0");
  if (!(lower < upper))
    throw_shape_error(function, "lower is ", value_text(lower), " and upper is ", value_text(upper),
                      ", expected lower < upper");
}

/// `a` and `b` are the bounds in standard deviations.
template <class T, class Source>
void fill_truncated_normal(const char* function, T* data, Index size, double mean, double std, double a, double b,
                           double lower, double upper, Source& source) {
  static_assert(
      QuantileSource<Source>,
      "evenkeel: truncated normal numbers come from a RandomStream or a CudaRandom, there are none of a TorchRandom");
  require(size >= 0, function, "size", static_cast<double>(size), "at least 0");
  if (a > farthest_tail || b < -farthest_tail)
    throw_shape_error(function, "the bounds lie ", value_text(a > 0 ? a : -b),
                      " standard deviations from the mean, expected at most ", value_text(farthest_tail));
  source.fill_by_quantile(data, size, TruncatedNormal(mean, std, lower, upper));
}

}  // namespace detail::inline EVENKEEL_ISA

inline namespace EVENKEEL_ISA {

/// The standard deviation of N(0, 1) cut at `lower` and `upper`: 0.87962566103423978 for -2 and 2. Throws ShapeError
/// unless lower < upper. Bounds far out in one tail lose digits. Source: N. Johnson, S. Kotz, N. Balakrishnan, Continuous
/// Univariate Distributions, volume 1, 1994, equation 13.135.
inline double truncated_normal_std(double lower = -2, double upper = 2) {
  detail::require_truncation("truncated_normal_std", 0, 1, lower, upper);
  if (lower == -2 && upper == 2) return 0.87962566103423978;
  const auto edge = [](double x) { return std::isfinite(x) ? x * detail::normal_density(x) : 0; };
  const double mass = lower > 0 ? detail::normal_cdf(-lower) - detail::normal_cdf(-upper)
                                : detail::normal_cdf(upper) - detail::normal_cdf(lower);
  const double mean = (detail::normal_density(lower) - detail::normal_density(upper)) / mass;
  return std::sqrt(1 + (edge(lower) - edge(upper)) / mass - mean * mean);
}

/// N(mean, std) cut at the values options.lower and options.upper, either of which may be infinite. Writes the tensor.
/// Throws ShapeError: a size under 0, std not above 0, lower not under upper, bounds of which even the nearer one lies
/// more than 37 standard deviations from the mean. Example:
///
///   ek::truncated_normal(weight, ek::RandomStream(42, "weight"), {.std = 0.02, .lower = -0.04, .upper = 0.04});
template <RandomScalar T, RandomSource Source>
void truncated_normal(T* data, Index size, Source&& source, const TruncatedNormalOptions& options = {}) {
  const auto [mean, std, lower, upper] = options;
  detail::require_truncation("truncated_normal", mean, std, lower, upper);
  detail::fill_truncated_normal("truncated_normal", data, size, mean, std, (lower - mean) / std, (upper - mean) / std,
                                lower, upper, source);
}

/// The same for a tensor that lies in one piece.
template <Fillable Tensor, RandomSource Source>
void truncated_normal(Tensor&& tensor, Source&& source, const TruncatedNormalOptions& options = {}) {
  truncated_normal(tensor.data(), detail::contiguous_size("truncated_normal", tensor), source, options);
}

/// N(mean, std) cut at mean + options.lower * std and mean + options.upper * std. With options.correct_std the values
/// have the standard deviation std, and the bounds are multiples of the larger one before truncation, as in JAX and
/// Keras. Writes the tensor, throws as truncated_normal does. Example:
///
///   ek::sigma_truncated_normal(weight, ek::RandomStream(42, "weight"), {.std = 0.02, .correct_std = true});
template <RandomScalar T, RandomSource Source>
void sigma_truncated_normal(T* data, Index size, Source&& source, const SigmaTruncatedNormalOptions& options = {}) {
  const char* const function = "sigma_truncated_normal";
  detail::require_truncation(function, options.mean, options.std, options.lower, options.upper);
  const double std =
      options.correct_std ? options.std / truncated_normal_std(options.lower, options.upper) : options.std;
  detail::fill_truncated_normal(function, data, size, options.mean, std, options.lower, options.upper,
                                options.mean + options.lower * std, options.mean + options.upper * std, source);
}

/// The same for a tensor that lies in one piece.
template <Fillable Tensor, RandomSource Source>
void sigma_truncated_normal(Tensor&& tensor, Source&& source, const SigmaTruncatedNormalOptions& options = {}) {
  sigma_truncated_normal(tensor.data(), detail::contiguous_size("sigma_truncated_normal", tensor), source, options);
}

}  // namespace EVENKEEL_ISA
}  // namespace evenkeel
