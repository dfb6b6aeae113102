// One set of kernels: see ../kernels_cpu.hpp, which says for what.
// clang-format off: each needs those before it
#include "evenkeel/detail/kernels/half_pack.ipp"
#include "evenkeel/detail/kernels/pack.ipp"
#include "evenkeel/detail/kernels/row_kernel.ipp"
#include "evenkeel/detail/kernels/row_careful.ipp"
#include "evenkeel/detail/kernels/row_along.ipp"
#include "evenkeel/detail/kernels/row_across.ipp"
#include "evenkeel/detail/kernels/channel_careful.ipp"
#include "evenkeel/detail/kernels/channels.ipp"
// clang-format on

namespace evenkeel::detail::kernels::EVENKEEL_KERNELS {

/// By these names the drivers know a set.
struct Kernels {
  template <class A>
  static constexpr int lanes = pack_size<A>;
  template <class Pass>
  using Along = RowsAlong<Pass>;
  template <class Pass>
  using Across = RowsAcross<Pass>;
  template <class Pass>
  using Cells = Channels<Pass>;
};

}  // namespace evenkeel::detail::kernels::EVENKEEL_KERNELS
