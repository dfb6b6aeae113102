/// The kernels of a pass over rows. See launch_plan.hpp for which runs when.
#pragma once

#include "evenkeel/detail/launch_plan.hpp"
#include "evenkeel/detail/row_device.cuh"

namespace evenkeel::detail {

/// Sums over the threads that share a row, the same in each of them and in the same order whatever the schedule.
template <class A, int Count, RowScope Scope, int Bound>
class RowReduction {
 public:
  static constexpr int warps = Bound / 32;
  /// Values of shared memory: two buffers, so that one barrier a reduction is enough.
  static constexpr int scratch = Scope == RowScope::lanes || Count == 0 ? 1 : 2 * Count * warps;
  static constexpr int peers = Scope == RowScope::cluster && Count > 0 ? 2 * Count * 8 : 1;

  EVENKEEL_DEVICE RowReduction(int lanes, int threads, A* shared, A* shared_peers, int cluster)
      : width_(lanes), warps_(threads / 32), cluster_(cluster), shared_(shared), peers_(shared_peers) {}

  EVENKEEL_DEVICE void sum(Values<A, Count>& values) {
    if constexpr (Count > 0) {
      if constexpr (Scope == RowScope::lanes) {
        butterfly(values, width_);
      } else {
        across_block(values);
        if constexpr (Scope == RowScope::cluster) across_cluster(values);
        turn_ ^= 1;
      }
    }
  }

 private:
  static EVENKEEL_DEVICE void butterfly(Values<A, Count>& values, int width) {
#pragma unroll
    for (int offset = 16; offset > 0; offset /= 2)
      if (offset < width) each<Count>([&](auto k) { values[k] += __shfl_xor_sync(0xffffffffu, values[k], offset); });
  }
  EVENKEEL_DEVICE void across_block(Values<A, Count>& values) {
    const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
    A* const buffer = shared_ + turn_ * Count * warps;
    butterfly(values, 32);
    if (lane == 0) each<Count>([&](auto k) { buffer[k * warps + warp] = values[k]; });
    __syncthreads();
    each<Count>([&](auto k) { values[k] = lane < warps_ ? buffer[k * warps + lane] : A(0); });
    butterfly(values, 32);
  }
  EVENKEEL_DEVICE void across_cluster(Values<A, Count>& values) {
    A* const buffer = peers_ + turn_ * Count * 8;
    const auto thread = static_cast<int>(threadIdx.x);
    if (thread < cluster_)
      each<Count>(
          [&](auto k) { *cluster_map(buffer + k * 8 + cluster_rank(), static_cast<unsigned>(thread)) = values[k]; });
    cluster_sync();
    const int peer = thread % 8;
    each<Count>([&](auto k) { values[k] = peer < cluster_ ? buffer[k * 8 + peer] : A(0); });
    butterfly(values, 8);
  }

  int width_, warps_, cluster_, turn_ = 0;
  A *shared_, *peers_;
};

/// Whether a thread loads its parameters once, before the rows, and keeps them. More would cost too many registers.
template <class Pass, int V, int Packs>
inline constexpr bool holds_parameters = Packs <= 2 && Packs* V* RowSteps<Pass>::parameter_bytes <= 64;

/// A thread keeps `Packs` chunks of `V` elements of each input. `lanes_of_row` threads of a block share a row: a power of
/// two in the scope of lanes, where they times rows_per_block are Bound, else the whole block, which in a cluster of
/// `cluster` blocks has Bound threads. `Blocks` of them fit a multiprocessor.
template <class Pass, RowScope Scope, int V, int Packs, int Bound, int Blocks>
__global__ void __launch_bounds__(Bound, Blocks)
    row_kernel(Pass pass, int lanes_of_row, int rows_per_block, int cluster) {
  if (!has_turn(pass)) return;
  using Steps = RowSteps<Pass>;
  using Math = decltype(pass.math);
  using A = typename Steps::A;
  using Reduction = RowReduction<A, Math::sums, Scope, Bound>;
  constexpr int terms_count = Math::feature_sums;
  constexpr bool in_lanes = Scope == RowScope::lanes, in_cluster = Scope == RowScope::cluster;
  EVENKEEL_SHARED(A, partial, Reduction::scratch);
  EVENKEEL_SHARED(A, peers, Reduction::peers);
  const auto thread = static_cast<int>(threadIdx.x);
  const int threads = Scope == RowScope::block ? static_cast<int>(blockDim.x) : Bound;
  const int lanes = in_lanes ? lanes_of_row : threads;
  const int lane = in_lanes ? thread & (lanes - 1) : thread;
  const int group = in_lanes ? thread * rows_per_block / Bound : 0;
  // Rows are short enough for 32 bits. A block of a cluster has a contiguous part of the row.
  const auto length = static_cast<int>(pass.grid.length);
  int begin = 0, end = length;
  unsigned blocks = gridDim.x, block = blockIdx.x;
  if constexpr (in_cluster) {
    const int part = (length / V + cluster - 1) / cluster * V;
    begin = part * static_cast<int>(cluster_rank());
    end = begin + part < length ? begin + part : length;
    blocks /= static_cast<unsigned>(cluster);
    block /= static_cast<unsigned>(cluster);
    cluster_sync();  // every block runs before its shared memory is written from outside
  }
  const auto column = [&](int pack) { return begin + (pack * lanes + lane) * V; };
  Reduction reduction(lanes, threads, partial, peers, cluster);

  typename Steps::Terms over_rows[Packs][V];
  if constexpr (terms_count > 0)
    for (int l = 0; l < Packs; ++l)
      for (int i = 0; i < V; ++i) each<terms_count>([&](auto k) { over_rows[l][i][k] = A(0); });

  constexpr bool holds = holds_parameters<Pass, V, Packs>;
  typename Steps::template ParameterChunks<V> held[holds ? Packs : 1];
  if constexpr (holds)
#pragma unroll
    for (int l = 0; l < Packs; ++l)
      if (column(l) < end) held[l] = Steps::template load_parameters<V>(pass, column(l));
  const auto parameters = [&](int l) {
    if constexpr (holds)
      return held[l];
    else
      return Steps::template load_parameters<V>(pass, column(l));
  };

  // All threads of a warp, or of a block, make the same number of turns: there are shuffles and barriers inside.
  const std::int64_t step = static_cast<std::int64_t>(blocks) * rows_per_block;
  for (std::int64_t base = static_cast<std::int64_t>(block) * rows_per_block; base < pass.grid.rows; base += step) {
    const bool active = !in_lanes || base + group < pass.grid.rows;
    const std::int64_t r = active ? base + group : 0;
    const int limit = active ? end : 0;  // one comparison tells what a thread has
    const RowPlace place = pass.grid.place(r);
    const auto from = Steps::input_row(pass, place);
    typename Steps::template InputChunks<V> x[Packs];
#pragma unroll
    for (int l = 0; l < Packs; ++l)
      if (column(l) < limit) x[l] = Steps::template load_inputs<V>(pass, from, column(l));
    typename Steps::Start start;
    if constexpr (in_lanes) {
      start = Steps::template start_of<V>(pass, x[0], r);
      // From the lane that has the first chunk. No lane reads what another one may write.
      if constexpr (is_none_v<decltype(pass.known)>)
        for_each_field(start, [&](int, A& value) { value = __shfl_sync(0xffffffffu, value, 0, lanes); });
    } else {
      start = Steps::template start_of_row<V>(pass, from, r);
      if constexpr (Math::sums == 0 && !std::is_empty_v<typename Steps::Start>) {
        __syncthreads();  // before the row's first chunk is overwritten
        if constexpr (in_cluster) cluster_sync();
      }
    }

    typename Steps::Row row;
    bool starts_over = false;
#pragma unroll 1
    do {
      typename Steps::Sums sums;
      each<Math::sums>([&](auto k) { sums[k] = A(0); });
#pragma unroll
      for (int l = 0; l < Packs; ++l)
        if (column(l) < limit) {
          const auto p = parameters(l);
#pragma unroll
          for (int i = 0; i < V; ++i) {
            typename Steps::Terms terms;
            Steps::accumulate(pass, sums, terms, start, x[l], p, i);
            each<terms_count>([&](auto k) { over_rows[l][i][k] += terms[k]; });
          }
        }
      reduction.sum(sums);
      row = pass.math.finish(sums, start);
      // The values are in registers, so a second look from a better start costs no memory traffic.
      if constexpr (Steps::restarts) {
        static_assert(terms_count == 0, "terms would be counted twice");
        starts_over = !starts_over && Steps::template may_restart<in_lanes>(pass, start, row);
      }
    } while (starts_over);

    if (active && lane == 0 && (!in_cluster || cluster_rank() == 0)) Steps::keep(pass, row, r);
    const auto to = Steps::output_row(pass, place);
#pragma unroll
    for (int l = 0; l < Packs; ++l)
      if (column(l) < limit) Steps::template write<V>(pass, row, to, column(l), x[l], parameters(l));
  }

  if constexpr (terms_count > 0) {
    A* const sums = pass.sums + static_cast<std::int64_t>(block) * terms_count * pass.pitch;
    if constexpr (Scope == RowScope::lanes) {
      // Groups of a warp add up by shuffles, warps in their order through shared memory.
      EVENKEEL_DYNAMIC_SHARED(A, total);
      for (int offset = lanes; offset < 32; offset *= 2)
#pragma unroll
        for (int l = 0; l < Packs; ++l)
#pragma unroll
          for (int i = 0; i < V; ++i)
            each<terms_count>(
                [&](auto k) { over_rows[l][i][k] += __shfl_xor_sync(0xffffffffu, over_rows[l][i][k], offset); });
      for (int warp = 0; warp < threads / 32; ++warp) {
        if (thread / 32 == warp && thread % 32 < lanes)
#pragma unroll
          for (int l = 0; l < Packs; ++l)
            if (column(l) < end)
#pragma unroll
              for (int i = 0; i < V; ++i)
                each<terms_count>([&](auto k) {
                  A& sum = total[k * pass.pitch + column(l) + i];
                  sum = (warp > 0 ? sum : A(0)) + over_rows[l][i][k];
                });
        __syncthreads();
      }
      for (int i = thread; i < length; i += threads)
        each<terms_count>([&](auto k) { sums[k * pass.pitch + i] = total[k * pass.pitch + i]; });
    } else {
#pragma unroll
      for (int l = 0; l < Packs; ++l)
        if (column(l) < end)
          each<terms_count>([&](auto k) {
            A out[V];
#pragma unroll
            for (int i = 0; i < V; ++i) out[i] = over_rows[l][i][k];
            Packed<A, V>::of(out).store(sums + k * pass.pitch + column(l));
          });
    }
  }
}

/// A block reads the row again for each step. Rows of any length; with V = 1 of any stride.
template <class Pass, int V>
__global__ void __launch_bounds__(stream_bound) row_stream_kernel(Pass pass) {
  if (!has_turn(pass)) return;
  using Steps = RowSteps<Pass>;
  using Math = decltype(pass.math);
  using A = typename Steps::A;
  using Reduction = RowReduction<A, Math::sums, RowScope::block, stream_bound>;
  EVENKEEL_SHARED(A, partial, Reduction::scratch);
  const auto threads = static_cast<std::int64_t>(blockDim.x), first = static_cast<std::int64_t>(threadIdx.x) * V;
  const std::int64_t length = pass.grid.length;
  Reduction reduction(static_cast<int>(threads), static_cast<int>(threads), partial, partial, 1);
  for (std::int64_t r = blockIdx.x; r < pass.grid.rows; r += gridDim.x) {
    const RowPlace place = pass.grid.place(r);
    const auto from = Steps::input_row(pass, place);
    const auto to = Steps::output_row(pass, place);
    const typename Steps::Start start = Steps::template start_of_row<V>(pass, from, r);
    typename Steps::Row row;
    const auto row_from = [&](const typename Steps::Start& start_from) {
      typename Steps::Sums sums;
      each<Math::sums>([&](auto k) { sums[k] = A(0); });
      for (std::int64_t i = first; i < length; i += threads * V) {
        const auto x = Steps::template load_inputs<V, V == 1>(pass, from, i);
        const auto p = Steps::template load_parameters<V>(pass, i);
        for (int k = 0; k < V; ++k) {
          typename Steps::Terms terms;
          Steps::accumulate(pass, sums, terms, start_from, x, p, k);
        }
      }
      reduction.sum(sums);
      row = pass.math.finish(sums, start_from);
    };
    row_from(start);
    if constexpr (Steps::restarts) {
      typename Steps::Start better = start;
      if (Steps::template may_restart<false>(pass, better, row)) row_from(better);
    }
    if (threadIdx.x == 0) Steps::keep(pass, row, r);
    if constexpr (Math::sums == 0 && !std::is_empty_v<typename Steps::Start>)
      __syncthreads();  // before the row's first chunk is overwritten
    for (std::int64_t i = first; i < length; i += threads * V)
      Steps::template write<V, V == 1>(pass, row, to, i, Steps::template load_inputs<V, V == 1>(pass, from, i),
                                       Steps::template load_parameters<V>(pass, i));
  }
}

/// The sum over a warp of each of four values: of number lane / 8 in each lane. Six shuffles, not twenty: a lane passes on
/// the values that it need not add up.
template <class A>
EVENKEEL_DEVICE A sum_of_four(const A (&values)[4], int lane) {
  const bool upper = (lane & 16) != 0, odd = (lane & 8) != 0;
  const A first = upper ? values[0] : values[2], second = upper ? values[1] : values[3];
  const A low = (upper ? values[2] : values[0]) + __shfl_xor_sync(0xffffffffu, first, 16);
  const A high = (upper ? values[3] : values[1]) + __shfl_xor_sync(0xffffffffu, second, 16);
  A sum = (odd ? high : low) + __shfl_xor_sync(0xffffffffu, odd ? low : high, 8);
  for (int offset = 4; offset > 0; offset /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, offset);
  return sum;
}

/// Rows whose elements lie apart but which are neighbours: a block has 32 of them, one for each lane, and its warps take
/// turns with the elements, so that lanes read neighbours. Sums over the rows leave each warp element by element; a block
/// adds them up over its rows in its own part of pass.sums.
template <class Pass>
__global__ void __launch_bounds__(across_bound, 2) row_across_kernel(Pass pass) {
  using Steps = RowSteps<Pass>;
  using Math = decltype(pass.math);
  using A = typename Steps::A;
  constexpr int warps = across_bound / 32, count = Math::sums, terms_count = Math::feature_sums, in_flight = 4;
  EVENKEEL_SHARED(A, partial, count == 0 ? 1 : count * across_bound);
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const std::int64_t length = pass.grid.length, rows = pass.grid.rows;
  A* const own_sums = pass.sums + static_cast<std::int64_t>(blockIdx.x) * terms_count * pass.pitch;
  for (std::int64_t tile = blockIdx.x; tile * 32 < rows; tile += gridDim.x) {
    // Lanes past the last row repeat it and leave nothing.
    const bool active = tile * 32 + lane < rows;
    const std::int64_t r = active ? tile * 32 + lane : rows - 1;
    const RowPlace place = pass.grid.place(r);
    const auto from = Steps::input_row(pass, place);
    typename Steps::Start start = Steps::template start_of_row<1>(pass, from, r);
    typename Steps::Row row;
    bool starts_over = false;
#pragma unroll 1
    do {
      typename Steps::Sums sums, recent;
      each<count>([&](auto k) { sums[k] = A(0), recent[k] = A(0); });
      int since_flush = 0;
      if constexpr (count > 0 || terms_count > 0)
        for (std::int64_t first = warp; first < length; first += in_flight * warps) {
          typename Steps::template InputChunks<1> x[in_flight];
#pragma unroll
          for (int l = 0; l < in_flight; ++l)
            if (first + l * warps < length) x[l] = Steps::template load_inputs<1, true>(pass, from, first + l * warps);
          typename Steps::Terms terms[in_flight];
#pragma unroll
          for (int l = 0; l < in_flight; ++l) {
            each<terms_count>([&](auto k) { terms[l][k] = A(0); });
            const std::int64_t i = first + l * warps;
            if (i < length)
              Steps::accumulate(pass, recent, terms[l], start, x[l], Steps::template load_parameters<1>(pass, i), 0);
          }
          // Lanes 0, 8, 16 and 24 have the sums of the four elements.
          each<terms_count>([&](auto k) {
            A four[in_flight];
#pragma unroll
            for (int l = 0; l < in_flight; ++l) four[l] = active ? terms[l][k] : A(0);
            const A sum = sum_of_four(four, lane);
            const std::int64_t i = first + lane / 8 * warps;
            if (lane % 8 != 0 || i >= length) return;
            A& to = own_sums[k * pass.pitch + i];
            to = tile == blockIdx.x ? sum : to + sum;
          });
          if (++since_flush == 16) {  // longer chains of additions lose digits
            each<count>([&](auto k) { sums[k] += recent[k], recent[k] = A(0); });
            since_flush = 0;
          }
        }
      if constexpr (count > 0) {
        each<count>([&](auto k) { sums[k] += recent[k]; });
        __syncthreads();  // before what the last sum left is overwritten
        each<count>([&](auto k) { partial[(k * warps + warp) * 32 + lane] = sums[k]; });
        __syncthreads();
        each<count>([&](auto k) {
          sums[k] = partial[k * across_bound + lane];
          for (int w = 1; w < warps; ++w) sums[k] += partial[(k * warps + w) * 32 + lane];
        });
      }
      row = pass.math.finish(sums, start);
      // All warps have the same rows and so the same answer.
      if constexpr (Steps::restarts) {
        static_assert(terms_count == 0, "terms would be counted twice");
        starts_over = !starts_over && Steps::template may_restart<true>(pass, start, row);
      }
    } while (starts_over);
    if (active && warp == 0) Steps::keep(pass, row, r);
    if constexpr (count == 0 && !std::is_empty_v<typename Steps::Start>)
      __syncthreads();  // before the rows' first elements are overwritten
    const auto to = Steps::output_row(pass, place);
    if (active)
      for (std::int64_t first = warp; first < length; first += in_flight * warps) {
        typename Steps::template InputChunks<1> x[in_flight];
#pragma unroll
        for (int l = 0; l < in_flight; ++l)
          if (first + l * warps < length) x[l] = Steps::template load_inputs<1, true>(pass, from, first + l * warps);
#pragma unroll
        for (int l = 0; l < in_flight; ++l)
          if (first + l * warps < length)
            Steps::template write<1, true>(pass, row, to, first + l * warps, x[l],
                                           Steps::template load_parameters<1>(pass, first + l * warps));
      }
  }
}

/// The sums over rows of a pass whose rows stream: a thread has one feature, a block a part of the rows. Runs before
/// row_stream_kernel, whose outputs may be its inputs.
template <class Pass>
__global__ void __launch_bounds__(feature_bound) feature_kernel(Pass pass, int parts) {
  if (!has_turn(pass)) return;
  using Steps = RowSteps<Pass>;
  using Math = decltype(pass.math);
  using A = typename Steps::A;
  constexpr int count = Math::feature_sums;
  const std::int64_t part = blockIdx.x % static_cast<unsigned>(parts);
  const std::int64_t i =
      blockIdx.x / static_cast<unsigned>(parts) * static_cast<std::int64_t>(feature_bound) + threadIdx.x;
  const std::int64_t rows = (pass.grid.rows + parts - 1) / parts;
  const std::int64_t last = (part + 1) * rows < pass.grid.rows ? (part + 1) * rows : pass.grid.rows;
  if (i >= pass.grid.length) return;
  const auto p = Steps::template load_parameters<1>(pass, i);
  typename Steps::Terms total, recent;
  each<count>([&](auto k) { total[k] = recent[k] = A(0); });
  int since_flush = 0;
  for (std::int64_t r = part * rows; r < last; ++r) {
    const auto from = Steps::input_row(pass, pass.grid.place(r));
    const auto x = Steps::template load_inputs<1, true>(pass, from, i);
    typename Steps::Sums unused;
    each<Math::sums>([&](auto k) { unused[k] = A(0); });
    typename Steps::Terms terms;
    Steps::accumulate(pass, unused, terms, Steps::template start_of_row<1>(pass, from, r), x, p, 0);
    each<count>([&](auto k) { recent[k] += terms[k]; });
    if (++since_flush == 128) {  // longer chains of additions lose digits
      each<count>([&](auto k) { total[k] += recent[k], recent[k] = A(0); });
      since_flush = 0;
    }
  }
  each<count>([&](auto k) { total[k] += recent[k]; });
  each<count>([&](auto k) { pass.sums[(part * count + k) * pass.pitch + i] = total[k]; });
}

template <class A, class... G>
EVENKEEL_DEVICE void gradient_step(const A* sums, std::int64_t parts, int count, std::int64_t pitch,
                                   std::int64_t length, const List<G...>& gradients, bool accumulates, A* shared) {
  const int lane = static_cast<int>(threadIdx.x) % 32, slice = static_cast<int>(threadIdx.x) / 32;
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * 32 + lane;
  int term = 0;
  each<static_cast<int>(sizeof...(G))>([&](auto g) {
    auto gradient = at<g>(gradients);
    if constexpr (!is_none_v<decltype(gradient)>) {
      A sum = 0;
      if (i < length)
        for (std::int64_t part = slice; part < parts; part += 8) sum += sums[(part * count + term) * pitch + i];
      shared[slice * 32 + lane] = sum;
      __syncthreads();
      if (slice == 0 && i < length) {
        for (int k = 1; k < 8; ++k) sum += shared[k * 32 + lane];
        using T = std::remove_cvref_t<decltype(*gradient)>;
        gradient[i] = to<T>(accumulates ? to<A>(gradient[i]) + sum : sum);
      }
      __syncthreads();
      ++term;
    }
  });
}

/// Adds up partial sums over rows, in their order, to the gradients of parameters: a List of pointers or None, the k-th
/// of those that are there belongs to the k-th sum. 32 features by 8 slices of the parts a block.
template <class A, class Gradients>
__global__ void __launch_bounds__(256) gradient_kernel(const A* sums, std::int64_t parts, int count, std::int64_t pitch,
                                                       std::int64_t length, Gradients gradients, bool accumulates) {
  EVENKEEL_SHARED(A, shared, 256);
  gradient_step(sums, parts, count, pitch, length, gradients, accumulates, shared);
}

/// `ones` ones and zeros after them.
template <class A>
__global__ void __launch_bounds__(256) indicator_kernel(A* values, std::int64_t length, std::int64_t ones) {
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * 256 + threadIdx.x;
  if (i < length) values[i] = i < ones ? A(1) : A(0);
}

/// The sum of `rows` values in one block, added to a scalar or written there.
template <class A, class T>
__global__ void __launch_bounds__(256) total_kernel(const A* values, std::int64_t rows, T* total, bool accumulates) {
  using Reduction = RowReduction<A, 1, RowScope::block, 256>;
  EVENKEEL_SHARED(A, partial, Reduction::scratch);
  Reduction reduction(256, 256, partial, partial, 1);
  Values<A, 1> sum, recent;
  sum[0] = recent[0] = A(0);
  int since_flush = 0;
  for (std::int64_t r = threadIdx.x; r < rows; r += 256) {
    recent[0] += values[r];
    if (++since_flush == 128) {  // longer chains of additions lose digits
      sum[0] += recent[0];
      recent[0] = A(0);
      since_flush = 0;
    }
  }
  sum[0] += recent[0];
  reduction.sum(sum);
  if (threadIdx.x == 0) *total = to<T>(accumulates ? to<A>(*total) + sum[0] : sum[0]);
}

}  // namespace evenkeel::detail
