/// Means over the rows of a batch, and their averages over batches: on the host, or in a device's memory, where batches
/// enter in the stream and the host waits only where it asks for a number.
#pragma once

#include "evenkeel/detail/row_means_math.hpp"
#include "evenkeel/device.hpp"
#include "evenkeel/storage.hpp"
#include "evenkeel/taper/ema.hpp"

#include <array>
#include <cstddef>
#include <utility>

namespace evenkeel::detail::inline EVENKEEL_ISA {

/// The means of all terms; 0 without rows.
template <class Terms>
std::array<double, Terms::count> means_of(const Terms& terms, Index rows) {
  std::array<double, Terms::count> means{};
  for (Index r = 0; r < rows; ++r) {
    const auto of_row = terms.of(r);
    for (int k = 0; k < Terms::count; ++k) means[static_cast<std::size_t>(k)] += of_row[k];
  }
  for (double& mean : means) mean = rows > 0 ? mean / static_cast<double>(rows) : 0;
  return means;
}

/// `Count` Emas of one rate.
template <int Count, class Storage>
class RowAverages {
  using Layout = AverageOver<Count>;

 public:
  using Emas = std::array<Ema, Count>;

  explicit RowAverages(double rate) : rate_(Ema::checked_rate("Ema::Ema", rate)) { state_.reserve(Layout::size); }

  /// A batch of `rows` rows; nothing without any. Numbers that are not finite throw StateError, here on the host, in
  /// get() where the averages are a device's.
  template <class Device, class Terms>
  void add(const Device& device, const Terms& terms, Index rows) {
    if (rows == 0) return;
    if constexpr (StreamDevice<Device>)
      put_means(device, terms, rows, Layout{rate_, state_.data()});
    else
      add(means_of(terms, rows));
  }
  void add(const std::array<double, Count>& means) {
    Emas all = get();
    for (std::size_t k = 0; k < means.size(); ++k) all[k].add(means[k]);
    set(all);
  }

  Emas get() const {
    std::array<double, Layout::size> state;
    Storage::read(state_.data(), state.data(), Layout::size);
    return emas(std::make_index_sequence<Count>{}, [&](std::size_t k) {
      return EmaState{state[Layout::sums + k], state[Layout::weight], static_cast<Index>(state[Layout::batches])};
    });
  }
  /// All or nothing: throws StateError for numbers that no stream leaves, or of unequal counts.
  void set(const std::array<EmaState, Count>& states) {
    set(emas(std::make_index_sequence<Count>{}, [&](std::size_t k) { return states[k]; }));
  }

 private:
  void set(const Emas& all) {
    std::array<double, Layout::size> state{static_cast<double>(all[0].count()), all[0].state().weight};
    for (std::size_t k = 0; k < Count; ++k) state[Layout::sums + k] = all[k].state().sum;
    Storage::write(state.data(), state_.data(), Layout::size);
  }
  template <std::size_t... K, class F>
  Emas emas(std::index_sequence<K...>, const F& state_of) const {
    Emas all{((void)K, Ema(rate_))...};
    (all[K].restore(state_of(K)), ...);
    return all;
  }

  double rate_;
  typename Storage::template Buffer<double> state_;  // see AverageOver
};

}  // namespace evenkeel::detail::inline EVENKEEL_ISA
