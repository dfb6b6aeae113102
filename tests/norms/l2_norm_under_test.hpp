#pragma once

#include "evenkeel/norms/l2_norm.hpp"
#include "norms/row_norm_checks.hpp"
#include "support/row_reference.hpp"

namespace norms_test {

struct L2NormUnderTest {
  using Options = ek::L2NormOptions;
  template <class A>
  using Saved = ek::L2NormSaved<A>;
  template <class A>
  using Layer = ek::L2Norm<A>;
  static constexpr bool centred = false;
  static constexpr const char* name = "l2_norm";

  template <class Device, class X, class W, class B, class Y, class S>
  static void forward(const Device& device, const X& x, const W& weight, const B& bias, Y&& y, S&& saved,
                      const Options& options) {
    if constexpr (is_none<B>) {
      ek::l2_norm(device, x, weight, y, saved, options);
    } else {
      ek::l2_norm(device, x, weight, bias, y, saved, options);
    }
  }
  template <class Device, class DY, class X, class W, class S, class DX, class DW, class DB>
  static void backward(const Device& device, const DY& dy, const X& x, const W& weight, S& saved, DX&& dx, DW&& dweight,
                       DB&& dbias, ek::GradientMode mode = ek::GradientMode::accumulate) {
    if constexpr (is_none<DB>) {
      ek::l2_norm_backward(device, dy, x, weight, saved, dx, dweight, mode);
    } else {
      ek::l2_norm_backward(device, dy, x, weight, saved, dx, dweight, dbias, mode);
    }
  }
  static auto reference(const Slab& s, const Values& x, const Values& w, const Values& b, const reference::Options& o) {
    return reference::l2_norm(s, x, w, b, o);
  }
  static auto reference_backward(const Slab& s, const Values& dy, const Values& x, const Values& w,
                                 const reference::Options& o) {
    return reference::l2_norm_backward(s, dy, x, w, o);
  }
};

}  // namespace norms_test
