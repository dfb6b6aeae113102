/// A call that has sent what the other ranks need of it and waits for theirs.
#pragma once

#include <memory>
#include <type_traits>
#include <utility>

namespace evenkeel {

namespace detail {

/// An exchange under way, or such a step, and what is to be done after it.
template <class Request, class Conclusion>
class ExchangeStep {
 public:
  ExchangeStep(Request request, Conclusion conclusion)
      : request_(std::move(request)), conclusion_(std::move(conclusion)) {}
  void finish() {
    if constexpr (requires { request_.finish(); })
      request_.finish();
    else
      request_.wait();
    conclusion_();
  }

 private:
  Request request_;
  Conclusion conclusion_;
};

}  // namespace detail

/// The second half of a norm over ranks, of which start_batch_norm and its like have done the first. Between the two the
/// trainer does other work, but neither touches the call's arguments nor destroys them.
///
///     ek::Pending norm = ek::start_batch_norm(device, x, weight, bias, y, saved, options, communicator);
///     shortcut.forward(device, h, s);
///     norm.finish();  // y is written
///
/// Several may be under way; all ranks start them in the same order.
class Pending {
 public:
  /// Nothing to finish.
  Pending() = default;
  template <class Step>
    requires(!std::is_same_v<std::remove_cvref_t<Step>, Pending>)
  explicit Pending(Step step) : step_(std::make_unique<Model<Step>>(std::move(step))) {}  ///< a started call
  // Ends the exchange without its second half where finish() was not called: the outputs are then as they were.

  /// Waits for the other ranks, and writes what the call has to write. Throws what the call throws. The second time it
  /// does nothing.
  void finish() {
    if (const std::unique_ptr<Concept> step = std::move(step_)) step->finish();
  }
  bool finished() const { return !step_; }  ///< whether finish() has been called

 private:
  struct Concept {
    virtual ~Concept() = default;
    virtual void finish() = 0;
  };
  template <class Step>
  struct Model final : Concept {
    explicit Model(Step s) : step(std::move(s)) {}
    void finish() override { step.finish(); }
    Step step;
  };
  std::unique_ptr<Concept> step_;
};

}  // namespace evenkeel
