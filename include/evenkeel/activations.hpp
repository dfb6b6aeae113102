/// Activations that a norm can apply in the pass that writes its output: `ek::batch_norm<ek::Relu>(...)`.
#pragma once

#include "evenkeel/detail/vocabulary.hpp"

namespace evenkeel {

/// No activation.
struct Identity {
  EVENKEEL_MATH template <class V>
  EVENKEEL_HD static V value(const V& u) {
    return u;
  }
  EVENKEEL_MATH template <class V>
  EVENKEEL_HD static V pull(const V& dy, const V&) {
    return dy;
  }
};

/// max(u, 0); its derivative at 0 is 0.
struct Relu {
  EVENKEEL_MATH template <class V>
  EVENKEEL_HD static V value(const V& u) {
    return detail::max(u, detail::splat<V>(0));
  }
  EVENKEEL_MATH template <class V>
  EVENKEEL_HD static V pull(const V& dy, const V& u) {
    return detail::select_less(detail::splat<V>(0), u, dy, detail::splat<V>(0));
  }
};

/// SiLU, also called swish: u / (1 + exp(-u)). S. Elfwing, E. Uchibe, K. Doya, "Sigmoid-Weighted Linear Units", 2017,
/// equation 7.
struct Silu {
  EVENKEEL_MATH template <class V>
  EVENKEEL_HD static V value(const V& u) {
    return u * sigmoid(u);
  }
  EVENKEEL_MATH template <class V>
  EVENKEEL_HD static V pull(const V& dy, const V& u) {
    const V s = sigmoid(u);
    const V rest = detail::splat<V>(1) - s;
    const V slope = u * rest + detail::splat<V>(1);
    return dy * s * slope;
  }

 private:
  EVENKEEL_MATH template <class V>
  EVENKEEL_HD static V sigmoid(const V& u) {
    const V power = detail::exp(V(-u));
    return detail::splat<V>(1) / (power + detail::splat<V>(1));
  }
};

namespace detail {

template <class T>
concept ActivationFunction = requires(T a) {
  T::template value<float>(0.0f);
  T::template pull<float>(0.0f, 0.0f);
};

}  // namespace detail
}  // namespace evenkeel
