// What each rank of a communicator checks of SyncBatchNorm: its part of what one process makes of the joined data. The
// same for threads and for processes, so nothing here asserts: what is wrong is returned in words.
#pragma once

#include "evenkeel/norms/batch_norm.hpp"
#include "support/data.hpp"

#include <unsupported/Eigen/CXX11/Tensor>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <numeric>
#include <sstream>
#include <string>
#include <type_traits>
#include <vector>

namespace distributed_test {

namespace ek = evenkeel;
using ek::Index;

struct Shards {
  std::vector<Index> samples;  // of each rank
  bool masked = false;
  double mean = 0.5, spread = 2;

  Index total() const { return std::accumulate(samples.begin(), samples.end(), Index(0)); }
  Index first(int rank) const { return std::accumulate(samples.begin(), samples.begin() + rank, Index(0)); }
};

inline std::vector<Shards> all_shards(int ranks) {
  std::vector<std::vector<Index>> samples;
  if (ranks == 1) samples = {{5}};
  if (ranks == 2) samples = {{4, 4}, {1, 3}, {3, 0}};
  if (ranks == 3) samples = {{3, 3, 3}, {2, 1, 4}, {0, 5, 2}};
  if (ranks == 4) samples = {{2, 2, 2, 2}, {2, 1, 4, 3}, {0, 7, 0, 1}, {0, 0, 0, 4}};
  std::vector<Shards> all;
  for (const auto& s : samples)
    for (const bool masked : {false, true}) all.push_back({s, masked});
  all.push_back({samples.back(), false, 1e4, 1e-2});
  return all;
}

// The largest errors that any rank saw, relative to numbers of at least 1.
struct Errors {
  double y = 0, dx = 0, dweight = 0, dbias = 0, running = 0;
  void take(const Errors& other) {
    y = std::max(y, other.y), dx = std::max(dx, other.dx), dweight = std::max(dweight, other.dweight);
    dbias = std::max(dbias, other.dbias), running = std::max(running, other.running);
  }
};

constexpr Index channels = 5, positions = 6;

template <class T>
using Data = Eigen::Tensor<T, 3, Eigen::RowMajor>;  // (samples, channels, positions)
using Mask = Eigen::Tensor<bool, 2, Eigen::RowMajor>;

template <class T>
Data<T> normal_data(Index samples, std::uint64_t seed, double mean, double spread) {
  Data<T> t(samples, channels, positions);
  const auto values = support::normal<T>(std::size_t(t.size()), seed, mean, spread);
  for (Index i = 0; i < t.size(); ++i) t.data()[i] = T(values[std::size_t(i)]);
  return t;
}
template <class Tensor>
Tensor part(const Tensor& all, Index first, Index count) {
  auto extents = all.dimensions();
  const Index pitch = extents[0] == 0 ? 0 : all.size() / extents[0];
  extents[0] = count;
  Tensor own(extents);
  std::copy_n(all.data() + first * pitch, own.size(), own.data());
  return own;
}

// Relative to numbers of at least 1. What is not a number is as wrong as can be.
inline double error(double got, double expected, double magnitude = 0) {
  const double apart = std::abs(got - expected) / std::max({1.0, std::abs(expected), magnitude});
  return apart < INFINITY ? apart : INFINITY;
}

template <class T>
using Vector = Eigen::Array<T, Eigen::Dynamic, 1>;

// Three batches, one after the other. The second one's calls are made in halves, with another exchange in flight.
template <class T, class C>
std::string check_shards(C communicator, const Shards& shards, Errors& worst) {
  std::ostringstream wrong;
  const int rank = communicator.rank(), ranks = communicator.size();
  const Vector<T> weight = Vector<T>::LinSpaced(channels, T(-1.5), T(2.5)), bias = weight * T(0.25);
  const Index total = shards.total(), own = shards.samples[std::size_t(rank)], first = shards.first(rank);
  constexpr auto mode = ek::GradientMode::overwrite;
  ek::BatchNormSaved<T> saved, own_saved;
  ek::RunningStatistics<T> running(channels), own_running(channels);
  Errors errors;
  for (std::uint64_t batch = 0; batch < 3; ++batch) {
    const Data<T> x = normal_data<T>(total, 10 * batch + 5, shards.mean, shards.spread);
    const Data<T> dy = normal_data<T>(total, 10 * batch + 6, 0, 1);
    Mask mask(total, positions);
    for (Index i = 0; i < mask.size(); ++i) mask.data()[i] = (i * 7 + Index(batch)) % 5 != 0;
    if (ranks > 1)  // of one rank nothing counts
      for (Index i = 0; i < shards.samples[0] * positions; ++i) mask.data()[i] = false;
    Data<T> y(total, channels, positions), dx = y;
    const Data<T> own_x = part(x, first, own), own_dy = part(dy, first, own);
    const Mask own_mask = part(mask, first, own);
    Data<T> own_y(own, channels, positions), own_dx = own_y;
    Vector<T> dweight = weight, dbias = weight, own_dweight = weight, own_dbias = weight;
    if (shards.masked) {
      ek::masked_batch_norm(ek::serial, x, mask, weight, bias, y, saved);
      ek::masked_batch_norm_backward(ek::serial, dy, x, mask, weight, bias, saved, dx, dweight, dbias, mode);
      ek::masked_batch_norm(ek::serial, own_x, own_mask, weight, bias, own_y, own_saved, {}, communicator);
      ek::masked_batch_norm_backward(ek::serial, own_dy, own_x, own_mask, weight, bias, own_saved, own_dx, own_dweight,
                                     own_dbias, mode, communicator);
    } else {
      ek::batch_norm(ek::serial, x, weight, bias, y, saved);
      ek::batch_norm_backward(ek::serial, dy, x, weight, bias, saved, dx, dweight, dbias, mode);
      if (batch == 1) {
        ek::Pending pending = ek::start_batch_norm(ek::serial, own_x, weight, bias, own_y, own_saved, {}, communicator);
        double ones = 1;
        communicator.all_reduce_sum(&ones, 1);
        if (ones != ranks) wrong << "another exchange within one gives " << ones << "; ";
        pending.finish();
        pending = ek::start_batch_norm_backward(ek::serial, own_dy, own_x, weight, bias, own_saved, own_dx, own_dweight,
                                                own_dbias, mode, communicator);
        pending.finish();
      } else {
        ek::batch_norm(ek::serial, own_x, weight, bias, own_y, own_saved, {}, communicator);
        ek::batch_norm_backward(ek::serial, own_dy, own_x, weight, bias, own_saved, own_dx, own_dweight, own_dbias,
                                mode, communicator);
      }
    }
    running.update(saved), own_running.update(own_saved);
    const Index offset = first * channels * positions;
    for (Index i = 0; i < own_y.size(); ++i) {
      const double rstd = double(saved.rstd(i / positions % channels));  // dx is this times numbers near 1
      errors.y = std::max(errors.y, error(double(own_y.data()[i]), double(y.data()[offset + i])));
      errors.dx = std::max(errors.dx, error(double(own_dx.data()[i]), double(dx.data()[offset + i]), rstd));
    }
    // Each rank's part of a parameter's gradient is rounded, however small their sum.
    std::vector<double> sums;
    for (const Vector<T>* gradient : {&own_dweight, &own_dbias})
      for (Index c = 0; c < channels; ++c)
        sums.push_back(double((*gradient)(c))), sums.push_back(std::abs(double((*gradient)(c))));
    communicator.all_reduce_sum(sums.data(), Index(sums.size()));
    for (Index c = 0; c < channels; ++c) {
      const double *const dw = sums.data() + 2 * c, *const db = dw + 2 * channels;
      errors.dweight = std::max(errors.dweight, error(dw[0], double(dweight(c)), dw[1]));
      errors.dbias = std::max(errors.dbias, error(db[0], double(dbias(c)), db[1]));
    }
  }
  std::vector<double> kept;
  for (Index c = 0; c < channels; ++c) {
    kept.insert(kept.end(), {double(own_running.mean()[c]), double(own_running.var()[c]), double(own_saved.mean(c)),
                             double(own_saved.rstd(c)), own_saved.wide_moments(c).M2});
    errors.running = std::max({errors.running, error(double(own_running.mean()[c]), double(running.mean()[c])),
                               error(double(own_running.var()[c]), double(running.var()[c]))});
  }
  std::vector<double> gathered(std::size_t(ranks) * kept.size());
  communicator.all_gather(kept.data(), gathered.data(), Index(kept.size()));
  for (int r = 0; r < ranks; ++r)
    if (std::memcmp(gathered.data() + std::size_t(r) * kept.size(), kept.data(), kept.size() * sizeof(double)) != 0)
      wrong << "statistics of rank " << r << " have other bits than those of rank " << rank << "; ";
  if (own_running.num_batches_tracked != running.num_batches_tracked)
    wrong << own_running.num_batches_tracked << " batches tracked; ";

  const double near = sizeof(T) == 4 ? 1e-6 : 1e-13;
  for (const auto& [name, value] :
       {std::pair("y", errors.y), std::pair("dx", errors.dx), std::pair("dweight", errors.dweight),
        std::pair("dbias", errors.dbias), std::pair("running", errors.running)})
    if (!(value <= near)) wrong << name << " is off by " << value << "; ";
  worst.take(errors);
  std::string text = wrong.str();
  if (!text.empty()) {
    std::ostringstream where;
    where << "rank " << rank << " of " << ranks << ", " << (sizeof(T) == 4 ? "float" : "double") << ", samples";
    for (const Index n : shards.samples) where << ' ' << n;
    text = where.str() + (shards.masked ? ", masked: " : ": ") + text;
  }
  return text;
}

// What a layer may not change in a call that throws.
template <class Layer>
std::vector<double> state_of(Layer& norm) {
  std::vector<double> state{double(norm.running.num_batches_tracked)};
  for (Index c = 0; c < channels; ++c)
    state.insert(state.end(), {double(norm.running.mean()[c]), double(norm.running.var()[c]),
                               double(norm.weight.gradient()[c]), double(norm.bias.gradient()[c])});
  return state;
}

// One rank's call fails, in one way after the other: all throw, and nothing has changed.
template <class C>
std::string check_failures(C communicator) {
  std::ostringstream wrong;
  const int rank = communicator.rank(), ranks = communicator.size();
  ek::SyncBatchNorm<float, C> norm(communicator, channels);
  Data<float> x = normal_data<float>(3, std::uint64_t(rank), 0, 1), dy = normal_data<float>(3, 2, 0, 1), y = x, dx = x;
  const Data<float> narrow(3, channels - 1, positions), shorter(2, channels, positions);
  norm.forward(ek::serial, x, y);
  norm.backward(ek::serial, dy, x, dx);
  const std::vector<double> before = state_of(norm);
  const auto expect_thrown = [&](const char* what, int culprit, const auto& call) {
    std::string got = "nothing";
    y.setConstant(77), dx.setConstant(77);
    try {
      call(rank == culprit);
    } catch (const ek::ShapeError&) {
      got = "ShapeError";
    } catch (const ek::RankError& e) {
      got = std::string(e.what()).find("fail") == std::string::npos ? e.what() : "RankError";
    }
    const bool refuses = std::string(what).find("refuses") != std::string::npos;
    const std::string expected = rank != culprit ? "RankError" : refuses ? "nothing" : "ShapeError";
    if (got != expected) wrong << what << ": rank " << rank << " throws " << got << ", not " << expected << "; ";
    bool touched = state_of(norm) != before;
    for (Index i = 0; i < x.size(); ++i) touched = touched || y.data()[i] != 77 || dx.data()[i] != 77;
    if (touched) wrong << what << ": rank " << rank << " has changed something; ";
  };
  for (int culprit = 0; culprit < ranks; ++culprit) {
    expect_thrown("x of other channels", culprit, [&](bool mine) {
      if (mine)
        norm.forward(ek::serial, narrow, y);
      else
        norm.forward(ek::serial, x, y);
    });
    expect_thrown("y of another shape", culprit, [&](bool mine) {
      Data<float> other = shorter;
      if (mine)
        norm.forward(ek::serial, x, other);
      else
        norm.forward(ek::serial, x, y);
    });
    expect_thrown("a start that fails", culprit, [&](bool mine) {
      ek::Pending pending = mine ? norm.start_forward(ek::serial, narrow, y) : norm.start_forward(ek::serial, x, y);
      pending.finish();
    });
    expect_thrown("dy of another shape", culprit, [&](bool mine) {
      if (mine)
        norm.backward(ek::serial, shorter, x, dx);
      else
        norm.backward(ek::serial, dy, x, dx);
    });
    expect_thrown("one refuses its forward", culprit, [&](bool mine) {
      if (mine)
        norm.refuse_forward();
      else
        norm.forward(ek::serial, x, y);
    });
    expect_thrown("one refuses its backward", culprit, [&](bool mine) {
      if (mine)
        norm.refuse_backward();
      else
        norm.backward(ek::serial, dy, x, dx);
    });
  }
  // And after all that the ranks still understand each other, and the layer does what the functions do.
  norm.forward(ek::serial, x, y);
  norm.backward(ek::serial, dy, x, dx, ek::GradientMode::overwrite);
  const Vector<float> weight = Vector<float>::Ones(channels), bias = weight * 0;
  Vector<float> dweight = weight, dbias = weight;
  ek::BatchNormSaved<float> saved;
  Data<float> expected_y = x, expected_dx = x;
  ek::batch_norm(ek::serial, x, weight, bias, expected_y, saved, {}, communicator);
  ek::batch_norm_backward(ek::serial, dy, x, weight, bias, saved, expected_dx, dweight, dbias,
                          ek::GradientMode::overwrite, communicator);
  const auto same = [](const float* a, const float* b, Index size) { return std::equal(a, a + size, b); };
  if (!same(y.data(), expected_y.data(), y.size()) || !same(dx.data(), expected_dx.data(), dx.size()) ||
      !same(norm.weight.gradient(), dweight.data(), channels) || !same(norm.bias.gradient(), dbias.data(), channels))
    wrong << "the layer of rank " << rank << " does not do what the functions do; ";
  return wrong.str();
}

// Enough values are a matter of all ranks: one is an error on each of them, none is not.
template <class C>
std::string check_counts(C communicator) {
  std::ostringstream wrong;
  for (const Index samples : {0, 1}) {
    ek::SyncBatchNorm<float, C> norm(communicator, channels);
    Data<float> x(communicator.rank() == 0 ? samples : 0, channels, 1);
    x.setConstant(1.0f);
    Data<float> y = x;
    bool thrown = false;
    try {
      norm.forward(ek::serial, x, y);
    } catch (const ek::ShapeError&) {
      thrown = true;
    }
    if (thrown != (samples == 1)) wrong << "rank " << communicator.rank() << " thrown " << thrown << "; ";
    if (norm.running.num_batches_tracked != 0) wrong << "a batch was counted; ";
    if (thrown) continue;
    norm.backward(ek::serial, y, x, y);
    for (Index c = 0; c < channels; ++c)
      if (norm.weight.gradient()[c] != 0 || norm.running.mean()[c] != 0) wrong << "nothing has left something; ";
  }
  return wrong.str();
}

}  // namespace distributed_test
