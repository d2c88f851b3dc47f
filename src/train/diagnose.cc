#include "train/diagnose.h"

#include <cmath>

#include <fmt/format.h>

#include "ops/optimizer.h"

namespace qkv::inline v0::train {
namespace {

class FirstNonFinite : public CaptureSink {
 public:
  void activation(const std::string& module, const Tensor& value) override {
    if (module_.empty() && ops::find_non_finite(value.contiguous()) >= 0)
      module_ = module.empty() ? "model" : module;
  }
  const std::string& module() const { return module_; }

 private:
  std::string module_;
};

void clear_gradients(const nn::Module& module) {
  module.for_each([](const nn::Parameter& parameter) { parameter.var.clear_grad(); });
}

std::optional<NonFinite> look_at_sample(const EncoderClassifier& model, Context context,
                                        const Sample& sample,
                                        const ops::CrossEntropyOptions& options) {
  const TokenBatch batch = make_batch({&sample});
  FirstNonFinite sink;
  Tape tape;
  context.layout = &batch.layout;
  context.capture = &sink;
  context.tape = &tape;
  const Var logits = model.forward(context, batch.ids);
  if (!sink.module().empty()) return NonFinite{sink.module(), "forward", sample.index};
  if (ops::find_non_finite(logits.value()) >= 0)
    return NonFinite{"classifier", "forward", sample.index};
  const ops::CrossEntropyResult loss =
      ops::cross_entropy(logits.value(), batch.labels, options, true);
  if (!std::isfinite(loss.loss_sum)) return NonFinite{"cross_entropy", "loss", sample.index};
  std::string place;
  tape.set_watch([&](const char* op, const std::string& module, const Tensor& gradient) {
    if (place.empty() && ops::find_non_finite(gradient.contiguous()) >= 0)
      place = module + " (" + op + ")";
  });
  tape.backward(logits, loss.dlogits);
  if (place.empty()) {
    model.module().for_each([&](const nn::Parameter& parameter) {
      const bool bad = parameter.var.has_grad() && ops::find_non_finite(parameter.var.grad()) >= 0;
      if (place.empty() && bad) place = parameter.name;
    });
  }
  clear_gradients(model.module());
  if (place.empty()) return std::nullopt;
  return NonFinite{place, "backward", sample.index};
}

}  // namespace

std::string NonFinite::str() const {
  if (pass == "weights") return fmt::format("in the weights of {}", module);
  if (pass == "loss") return fmt::format("in the loss of sample {}", sample);
  return fmt::format("in the {} pass of {}, sample {}", pass, module, sample);
}

std::optional<NonFinite> find_non_finite_step(const EncoderClassifier& model,
                                              const Context& context,
                                              const std::vector<const Sample*>& samples,
                                              const ops::CrossEntropyOptions& loss) {
  clear_gradients(model.module());
  std::string damaged;
  model.module().for_each([&](const nn::Parameter& parameter) {
    if (damaged.empty() && ops::find_non_finite(parameter.var.value()) >= 0)
      damaged = parameter.name;
  });
  if (!damaged.empty()) return NonFinite{damaged, "weights", -1};
  for (const Sample* sample : samples) {
    if (auto found = look_at_sample(model, context, *sample, loss)) return found;
  }
  return std::nullopt;
}

}  // namespace qkv::inline v0::train
