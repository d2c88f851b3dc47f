#include "train/step.h"

namespace qkv::inline v0::train {

namespace {

// Work of the forward pass.
struct Flops {
  double products = 0, attention = 0;
};

Flops forward_flops(const EncoderConfig& config, const RaggedLayout& layout) {
  const auto c = static_cast<double>(config.d_model), f = static_cast<double>(config.d_ff);
  const double q = static_cast<double>(config.head_size() * config.num_heads);
  const double kv = static_cast<double>(config.head_size() * config.kv_heads());
  const double ffn = (ops::is_gated(config.activation) ? 3 : 2) * c * f;
  double squares = 0;
  for (std::int64_t b = 0; b < layout.batch(); ++b) {
    squares += static_cast<double>(layout.length(b)) * static_cast<double>(layout.length(b));
  }
  const auto layers = static_cast<double>(config.num_layers);
  return {layers * 2 * (2 * c * q + 2 * c * kv + ffn) * static_cast<double>(layout.tokens()),
          layers * 2 * 2 * q * squares};
}

}  // namespace

double encoding_flops(const EncoderConfig& config, const RaggedLayout& layout) {
  const Flops forward = forward_flops(config, layout);
  return forward.products + forward.attention;
}

double training_flops(const EncoderConfig& config, const RaggedLayout& layout) {
  const Flops forward = forward_flops(config, layout);
  return 3 * forward.products + 3.5 * forward.attention;
}

StepSums accumulate_gradients(const EncoderClassifier& model,
                              const std::vector<const Sample*>& members,
                              const ops::CrossEntropyOptions& loss, std::uint64_t seed,
                              std::int64_t step) {
  const TokenBatch batch = make_batch(members);
  Tape tape;
  Context context;
  context.tape = &tape;
  context.training = true;
  context.seed = seed;
  context.step = static_cast<std::uint32_t>(step);
  context.layout = &batch.layout;
  const Var logits = model.forward(context, batch.ids);
  const ops::CrossEntropyResult result =
      ops::cross_entropy(logits.value(), batch.labels, loss, true);
  tape.backward(logits, result.dlogits);
  return {result.loss_sum, result.counted, result.correct, batch.layout.tokens(),
          training_flops(model.config(), batch.layout)};
}

}  // namespace qkv::inline v0::train
