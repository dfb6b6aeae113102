/// One row in double, element by element: what the loops over rows do with a row that their math does not trust. Rare,
/// so its speed does not matter; never inlined.

namespace evenkeel::detail::kernels::EVENKEEL_KERNELS {

template <class Pass>
class CarefulRow;

template <class Math, class... X, class... P, class... Y, class KnownRows, class KeptRows>
class CarefulRow<RowPass<Math, std::tuple<X...>, std::tuple<P...>, std::tuple<Y...>, KnownRows, KeptRows>> {
  using Pass = RowPass<Math, std::tuple<X...>, std::tuple<P...>, std::tuple<Y...>, KnownRows, KeptRows>;
  using A = typename Math::Scalar;
  using Features = FeatureSums<A, Math::feature_sums>;

 public:
  /// Writes row r's outputs and keeps its values. `features` is null where its terms are already counted.
  EVENKEEL_COLD static void run(const Pass& pass, Index r, Features* features) { CarefulRow(pass, r).run(features); }

 private:
  CarefulRow(const Pass& pass, Index r) : pass_(pass), r_(r), n_(pass.grid.length) {}

  void run(Features* features) {
    double largest = 0;
    for (Index i = 0; i < n_; ++i)
      with_inputs(i, [&](const auto&... x) {
        spread(
            [&](const auto&... p) {
              largest = std::fmax(largest, std::abs(pass_.math.magnitude(x..., load_double(p, i)...)));
            },
            pass_.parameters);
      });
    const auto math = pass_.math.careful(largest, n_);
    using Careful = std::remove_const_t<decltype(math)>;
    typename Careful::template Known<double> known{};
    if constexpr (!is_none_v<KnownRows>) {
      for_each_field(known, [&](int k, double& value) { value = pass_.known[k * pass_.grid.rows() + r_]; });
      known = math.rescaled(known);
    }
    typename Careful::template Start<double> start{};
    with_inputs(0, [&](const auto&... x) { start = math.start(known, x...); });
    auto row = math.finish(sums(math, start, features), start);
    if constexpr (CanRestart<Careful, double>) {
      const auto better = math.restart(start, row);
      if (!same_fields(better, start)) row = math.finish(sums(math, better, features), better);
    }
    if constexpr (!is_none_v<KeptRows>) {
      auto unscaled = math.unscaled(row);
      for_each_field(unscaled,
                     [&](int k, double value) { pass_.kept[k * pass_.grid.rows() + r_] = static_cast<A>(value); });
    }
    for (Index i = 0; i < n_; ++i) {
      Values<double, Math::outputs> out;
      with_inputs(i, [&](const auto&... x) {
        spread([&](const auto&... p) { math.write(out, row, x..., load_double(p, i)...); }, pass_.parameters);
      });
      [&]<std::size_t... K>(std::index_sequence<K...>) { (store_double(std::get<K>(pass_.outputs), i, out[K]), ...); }
      (std::index_sequence_for<Y...>{});
    }
  }

  template <class Careful, class Start>
  auto sums(const Careful& math, const Start& start, Features* features) const {
    Values<double, Math::sums> total;
    set_zero(total);
    for (Index begin = 0; begin < n_; begin += chain) {
      Values<double, Math::sums> link;
      set_zero(link);
      for (Index i = begin; i < std::min(n_, begin + chain); ++i) {
        Values<double, Math::feature_sums> terms;
        with_inputs(i, [&](const auto&... x) {
          spread([&](const auto&... p) { math.accumulate(link, terms, start, x..., load_double(p, i)...); },
                 pass_.parameters);
        });
        if (features) unroll<Math::feature_sums>([&](auto k) { features->recent[k][i] += static_cast<A>(terms[k]); });
      }
      add(total, link);
    }
    return total;
  }

  template <class F>
  void with_inputs(Index i, const F& f) const {
    spread([&](const auto&... rows) { f(load_double(rows, i)...); }, pass_.inputs);
  }
  template <class T>
  T* at(const Rows<T>& rows, Index i) const {
    return element_at(rows, pass_.grid, r_, i);
  }
  template <class T>
  double load_double(const Rows<T>& rows, Index i) const {
    return static_cast<double>(*at(rows, i));
  }
  template <class T>
  double load_double(const T* p, Index i) const {
    return static_cast<double>(p[i]);
  }
  None load_double(None, Index) const { return none; }
  template <class T>
  void store_double(const Rows<T>& rows, Index i, double value) const {
    *at(rows, i) = static_cast<T>(value);
  }

  const Pass& pass_;
  const Index r_, n_;
};

}  // namespace evenkeel::detail::kernels::EVENKEEL_KERNELS
