// oneDNN's primitives. Images are laid out as its own batch normalization prefers, which is not timed.
#include "peer.hpp"

#include <oneapi/dnnl/dnnl.hpp>

#include <unordered_map>
#include <vector>

namespace {

using namespace peers;
using dnnl::memory;

class OneDnn : public Peer {
 public:
  std::string name() const override { return "oneDNN"; }
  std::string version() const override {
    const dnnl_version_t* const v = dnnl_version();
    return std::to_string(v->major) + "." + std::to_string(v->minor) + "." + std::to_string(v->patch);
  }
  Call prepare(const Operation& o, const Buffers& b) override {
    try {
      switch (o.norm) {
        case Norm::layer_norm:
        case Norm::rms_norm:
          return rows(o, b);
        case Norm::batch_norm:
        case Norm::batch_norm_inference:
        case Norm::group_norm:
          return channels(o, b);
        case Norm::weight_norm:
          return {};
      }
    } catch (const dnnl::error&) {  // this operation, type or layout is not one of this version's
    }
    return {};
  }

 private:
  using Arguments = std::unordered_map<int, memory>;
  static constexpr float eps = 1e-5f;

  static memory::data_type type_of(const Operation& o) {
    return o.type == Type::float32 ? memory::data_type::f32 : memory::data_type::bf16;
  }
  memory vector(float* p, long n) const {
    return memory({{n}, memory::data_type::f32, memory::format_tag::a}, engine_, p);
  }
  void execute(const dnnl::primitive& primitive, const Arguments& arguments) {
    primitive.execute(stream_, arguments);
    stream_.wait();
  }

  Call rows(const Operation& o, const Buffers& b) {
    using dnnl::normalization_flags;
    const memory::desc md({o.n, o.c}, type_of(o), memory::format_tag::ab);
    const auto data = [&](void* p) { return memory(md, engine_, p); };
    const bool rms = o.norm == Norm::rms_norm;
    const auto flags = rms ? normalization_flags::use_scale | normalization_flags::rms_norm
                           : normalization_flags::use_scale | normalization_flags::use_shift;
    const dnnl::layer_normalization_forward::primitive_desc forward(engine_, dnnl::prop_kind::forward_training, md, md,
                                                                    eps, flags);
    const memory mean(forward.mean_desc(), engine_), variance(forward.variance_desc(), engine_);
    Arguments arguments{{DNNL_ARG_SRC, data(b.x)},
                        {DNNL_ARG_DST, data(b.y)},
                        {DNNL_ARG_SCALE, vector(b.weight, o.c)},
                        {DNNL_ARG_SHIFT, vector(b.bias, o.c)},
                        {DNNL_ARG_VARIANCE, variance}};
    if (!rms) arguments.insert({DNNL_ARG_MEAN, mean});
    const dnnl::layer_normalization_forward primitive(forward);
    execute(primitive, arguments);
    if (o.pass == Pass::forward) return {[=, this] { execute(primitive, arguments); }};
    const dnnl::layer_normalization_backward::primitive_desc backward(engine_, dnnl::prop_kind::backward, md, md, md,
                                                                      eps, flags, forward);
    arguments.erase(DNNL_ARG_DST);
    arguments.insert({{DNNL_ARG_DIFF_DST, data(b.dy)},
                      {DNNL_ARG_DIFF_SRC, data(b.dx)},
                      {DNNL_ARG_DIFF_SCALE, vector(b.dweight, o.c)},
                      {DNNL_ARG_DIFF_SHIFT, vector(b.dbias, o.c)}});
    const dnnl::layer_normalization_backward pull(backward);
    return {[=, this] { execute(pull, arguments); }};
  }

  Call channels(const Operation& o, const Buffers& b) {
    using dnnl::normalization_flags;
    const auto flags = normalization_flags::use_scale | normalization_flags::use_shift;
    const bool inference = o.norm == Norm::batch_norm_inference, group = o.norm == Norm::group_norm;
    const memory::dims dims = o.space == 1 ? memory::dims{o.n, o.c} : memory::dims{o.n, o.c, o.space, 1};
    const memory::desc plain(dims, memory::data_type::f32,
                             o.space == 1 ? memory::format_tag::ab : memory::format_tag::abcd);
    const memory::desc inner =
        o.space == 1 || group ? plain
                              : memory::desc(dims, memory::data_type::f32,
                                             o.c % 16 == 0 ? memory::format_tag::aBcd16b : memory::format_tag::acdb);
    const auto own = [&](void* p) {
      memory m(inner, engine_);
      reorder(memory(plain, engine_, p), m);
      return m;
    };
    const memory x = own(b.x), y = own(b.y);
    const auto kind = inference ? dnnl::prop_kind::forward_inference : dnnl::prop_kind::forward_training;
    const auto set_up = [&](const auto& forward, const dnnl::primitive& primitive, const auto& backward_of) -> Call {
      const memory mean = inference ? vector(b.running_mean, o.c) : memory(forward.mean_desc(), engine_);
      const memory variance = inference ? vector(b.running_var, o.c) : memory(forward.variance_desc(), engine_);
      Arguments arguments{{DNNL_ARG_SRC, x},
                          {DNNL_ARG_DST, y},
                          {DNNL_ARG_SCALE, vector(b.weight, o.c)},
                          {DNNL_ARG_SHIFT, vector(b.bias, o.c)},
                          {DNNL_ARG_MEAN, mean},
                          {DNNL_ARG_VARIANCE, variance}};
      execute(primitive, arguments);
      if (o.pass == Pass::forward)
        return {[=, this] { execute(primitive, arguments); }, [=, this] { reorder(y, memory(plain, engine_, b.y)); }};
      const memory dy = own(b.dy), dx = own(b.dx);
      arguments.erase(DNNL_ARG_DST);
      arguments.insert({{DNNL_ARG_DIFF_DST, dy},
                        {DNNL_ARG_DIFF_SRC, dx},
                        {DNNL_ARG_DIFF_SCALE, vector(b.dweight, o.c)},
                        {DNNL_ARG_DIFF_SHIFT, vector(b.dbias, o.c)}});
      const dnnl::primitive pull = backward_of();
      return {[=, this] { execute(pull, arguments); }, [=, this] { reorder(dx, memory(plain, engine_, b.dx)); }};
    };
    if (group) {
      const dnnl::group_normalization_forward::primitive_desc forward(engine_, kind, inner, inner, o.groups, eps,
                                                                      flags);
      return set_up(forward, dnnl::group_normalization_forward(forward), [&] {
        return dnnl::group_normalization_backward(
            {engine_, dnnl::prop_kind::backward, inner, inner, inner, o.groups, eps, flags, forward});
      });
    }
    const auto bn_flags = inference ? flags | normalization_flags::use_global_stats : flags;
    const dnnl::batch_normalization_forward::primitive_desc forward(engine_, kind, inner, inner, eps, bn_flags);
    return set_up(forward, dnnl::batch_normalization_forward(forward), [&] {
      return dnnl::batch_normalization_backward(
          {engine_, dnnl::prop_kind::backward, inner, inner, inner, eps, flags, forward});
    });
  }

  void reorder(memory from, memory to) {
    dnnl::reorder(from, to).execute(stream_, from, to);
    stream_.wait();
  }

  dnnl::engine engine_{dnnl::engine::kind::cpu, 0};
  dnnl::stream stream_{engine_};
};

}  // namespace

extern "C" Peer* evenkeel_bench_peer() { return new OneDnn; }
