// PyTorch's operators from C++, without Python. Outputs come from its own allocator, which the comparison keeps warm.
#include "peer.hpp"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/version.h>

#include <array>
#include <cstring>
#include <optional>
#include <vector>

namespace {

using namespace peers;

class Torch : public Peer {
 public:
  Torch() { at::set_num_threads(1); }
  std::string name() const override { return "PyTorch"; }
  std::string version() const override { return TORCH_VERSION; }

  Call prepare(const Operation& o, const Buffers& b) override {
    using Tensors = std::vector<at::Tensor>;
    const bool small = o.type == Type::bfloat16, forward = o.pass == Pass::forward;
    const auto values = at::TensorOptions().dtype(small ? at::kBFloat16 : at::kFloat);
    const std::vector<std::int64_t> shape =
        o.space == 1 ? std::vector<std::int64_t>{o.n, o.c} : std::vector<std::int64_t>{o.n, o.c, o.space};
    const auto data = [&](void* p) { return at::from_blob(p, shape, values); };
    const auto vector = [&](float* p) { return at::from_blob(p, {o.c}, at::kFloat); };
    const at::Tensor x = data(b.x), dy = data(b.dy), w = vector(b.weight), bias = vector(b.bias),
                     mean = vector(b.running_mean), var = vector(b.running_var);
    const auto out = std::make_shared<Tensors>();
    const auto call = [&](auto f) {
      return Call{[f, out] {
                    at::NoGradGuard no_gradient;
                    *out = f();
                  },
                  [=] {
                    if (forward) return copy(out->at(0), b.y);
                    copy(out->at(0), b.dx);
                    if (out->size() > 1) copy(out->at(1), b.dweight);
                    if (out->size() > 2) copy(out->at(2), b.dbias);
                  }};
    };
    const double eps = 1e-5;
    const std::array<bool, 3> all{true, true, true};
    at::NoGradGuard no_gradient;
    switch (o.norm) {
      case Norm::layer_norm: {
        const auto run = [=, c = o.c] { return at::native_layer_norm(x, {c}, w, bias, eps); };
        if (forward) return call([=] { return Tensors{std::get<0>(run())}; });
        const auto [y, m, r] = run();
        return call([=, m = m, r = r, c = o.c] {
          const auto [dx, dw, db] = at::native_layer_norm_backward(dy, x, {c}, m, r, w, bias, all);
          return Tensors{dx, dw, db};
        });
      }
      case Norm::rms_norm: {
        const at::Tensor same_type = small ? w.to(at::kBFloat16) : w;
        if (forward) return call([=, c = o.c] { return Tensors{at::rms_norm(x, {c}, same_type, eps)}; });
        const at::Tensor leaf = x.detach().requires_grad_(), weight = w.detach().requires_grad_();
        const at::AutoGradMode on(true);
        const at::Tensor y = at::rms_norm(leaf, {o.c}, weight, eps);
        Call result = call([] { return Tensors(); });
        result.run = [=] { *out = torch::autograd::grad({y}, {leaf, weight}, {dy}, true); };
        return result;
      }
      case Norm::batch_norm: {
        const std::optional<at::Tensor> none;
        const auto run = [=] { return at::native_batch_norm(x, w, bias, none, none, true, 0.1, eps); };
        if (forward) return call([=] { return Tensors{std::get<0>(run())}; });
        const auto [y, m, r] = run();
        return call([=, m = m, r = r] {
          const auto [dx, dw, db] = at::native_batch_norm_backward(dy, x, w, none, none, m, r, true, eps, all);
          return Tensors{dx, dw, db};
        });
      }
      case Norm::batch_norm_inference:
        return call(
            [=] { return Tensors{std::get<0>(at::native_batch_norm(x, w, bias, mean, var, false, 0.1, eps))}; });
      case Norm::group_norm: {
        const auto run = [=] { return at::native_group_norm(x, w, bias, o.n, o.c, o.space, o.groups, eps); };
        if (forward) return call([=] { return Tensors{std::get<0>(run())}; });
        const auto [y, m, r] = run();
        return call([=, m = m, r = r] {
          const auto [dx, dw, db] = at::native_group_norm_backward(dy, x, m, r, w, o.n, o.c, o.space, o.groups, all);
          return Tensors{dx, dw, db};
        });
      }
      case Norm::weight_norm: {
        const at::Tensor g = at::from_blob(b.weight, {o.n, 1}, at::kFloat);
        if (forward) return call([=] { return Tensors{std::get<0>(at::_weight_norm_interface(x, g, 0))}; });
        const auto norms = std::get<1>(at::_weight_norm_interface(x, g, 0));
        return call([=] {
          const auto [dv, dg] = at::_weight_norm_interface_backward(dy, x, g, norms, 0);
          return Tensors{dv, dg};
        });
      }
    }
    return {};
  }

 private:
  static void copy(const at::Tensor& from, void* to) {
    std::memcpy(to, from.contiguous().const_data_ptr(), from.nbytes());
  }
};

}  // namespace

extern "C" Peer* evenkeel_bench_peer() { return new Torch; }
