/// One cell in double, element by element: what the loops over channels do with a cell whose squares, sums or
/// differences leave the range of the accumulator type. Double data are scaled by a power of two as well.

namespace evenkeel::detail::kernels::EVENKEEL_KERNELS {

template <class Pass>
class CarefulCell;

template <class Math, class... X, class... P, class... Y, class KnownCells, class KeptCells>
class CarefulCell<ChannelPass<Math, std::tuple<X...>, std::tuple<P...>, std::tuple<Y...>, KnownCells, KeptCells>> {
  using Pass = ChannelPass<Math, std::tuple<X...>, std::tuple<P...>, std::tuple<Y...>, KnownCells, KeptCells>;
  using Wide = decltype(std::declval<const Math&>().wide());

 public:
  CarefulCell(const Pass& pass, Index sample, Index channel)
      : pass_(pass), math_(pass.math.wide()), sample_(sample), channel_(channel) {}

  /// The largest absolute value of what the norm scales.
  double largest() const {
    double value = 0;
    for_each([&](const auto& at) {
      value = std::fmax(value, std::abs(load(std::get<Math::scaled_input>(pass_.inputs), at)));
    });
    return value;
  }

  /// What finish makes of the cell, its scaled input times `scale`.
  auto sums(double scale) const {
    typename Wide::template Known<double> known{};
    if constexpr (!is_none_v<KnownCells>) {
      for_each_field(known, [&](int k, double& value) { value = known_value(k); });
      known = Wide::rescaled(known, scale);
    }
    auto start = at_inputs({0, 0, 0, 0}, scale, [&](const auto&... x) { return math_.start(known, x...); });
    auto row = math_.finish(total(start, scale), start);
    if constexpr (requires { math_.restart(start, row); }) {
      const auto better = math_.restart(start, row);
      if (!same_fields(better, start)) row = math_.finish(total(better, scale), better);
    }
    return row;
  }

  void write(double scale) const {
    const auto row = Wide::rescaled(known_row(), scale);
    for_each([&](const auto& at) {
      Values<double, Math::outputs> out;
      at_inputs(at, scale, [&](const auto&... x) {
        spread([&](const auto&... p) { math_.write(out, row, x..., parameter(p)...); }, pass_.parameters);
      });
      if constexpr (Math::scaled_output) out[0] *= scale;
      [&]<std::size_t... K>(std::index_sequence<K...>) { (store(std::get<K>(pass_.outputs), at, out[K]), ...); }
      (std::index_sequence_for<Y...>{});
    });
  }

 private:
  using At = std::array<Index, 4>;

  typename Wide::template Row<double> known_row() const {
    const auto read = [&]<class R>(R row) {
      for_each_field(row, [&](int k, double& value) { value = known_value(k); });
      return row;
    };
    if constexpr (requires { typename Wide::template Stored<double>; })
      return math_.prepared(read(typename Wide::template Stored<double>{}));
    else
      return read(typename Wide::template Row<double>{});
  }
  template <class Start>
  auto total(const Start& start, double scale) const {
    Values<double, Math::sums> sums;
    set_zero(sums);
    for_each([&](const auto& at) {
      Values<double, 0> terms;
      at_inputs(at, scale, [&](const auto&... x) {
        spread([&](const auto&... p) { math_.accumulate(sums, terms, start, x..., parameter(p)...); },
               pass_.parameters);
      });
    });
    return sums;
  }
  template <class F>
  void for_each(const F& f) const {
    const auto& extent = pass_.grid.extent;
    for (Index i = 0; i < extent[0]; ++i)
      for (Index j = 0; j < extent[1]; ++j)
        for (Index k = 0; k < extent[2]; ++k)
          for (Index l = 0; l < extent[3]; ++l) f(At{i, j, k, l});
  }
  template <class F>
  auto at_inputs(const At& at, double scale, const F& f) const {
    return [&]<std::size_t... I>(std::index_sequence<I...>) {
      return f(scaled<I == Math::scaled_input>(load(std::get<I>(pass_.inputs), at), scale)...);
    }
    (std::index_sequence_for<X...>{});
  }
  template <bool Scaled, class S>
  static S scaled(S value, double scale) {
    if constexpr (Scaled)
      return value * scale;
    else
      return value;
  }
  template <class T>
  T* place(const Cells<T>& t, const At& at) const {
    T* p = t.data + sample_ * t.sample_stride + channel_ * t.channel_stride;
    for (std::size_t a = 0; a < 4; ++a) p += at[a] * t.stride[a];
    return p;
  }
  template <class T>
  double load(const Cells<T>& t, const At& at) const {
    return static_cast<double>(*place(t, at));
  }
  static None load(None, const At&) { return none; }
  template <class T>
  void store(const Cells<T>& t, const At& at, double value) const {
    *place(t, at) = static_cast<T>(value);
  }
  template <class T>
  double parameter(const T* p) const {
    return static_cast<double>(p[channel_]);
  }
  None parameter(None) const { return none; }
  double known_value(int k) const {
    return static_cast<double>(pass_.known[k * pass_.grid.cells() + sample_ * pass_.grid.channels + channel_]);
  }

  const Pass& pass_;
  const Wide math_;
  const Index sample_, channel_;
};

}  // namespace evenkeel::detail::kernels::EVENKEEL_KERNELS
