#include "qkv/encoder_block.h"

#include <optional>
#include <utility>

#include "autograd/context.h"
#include "autograd/var.h"
#include "base/check.h"
#include "models/config.h"
#include "nn/block.h"
#include "nn/module.h"
#include "nn/norm.h"
#include "ops/activation.h"
#include "tensor/layout_check.h"

namespace qkv::inline v0 {
namespace {

nn::BlockConfig block_config(const EncoderBlockOptions& options) {
  EncoderConfig config;  // knows which choices fit together
  config.num_layers = 1;
  config.vocab_size = 1;
  config.labels = {"a", "b"};
  config.d_model = options.d_model;
  config.num_heads = options.num_heads;
  config.num_kv_heads = options.num_kv_heads;
  config.d_ff = options.d_ff;
  config.norm = parse_norm_choice(options.norm);
  config.norm_placement = parse_norm_placement(options.norm_placement);
  config.activation = ops::parse_activation(options.activation);
  config.attention = parse_attention_kind(options.attention);
  config.window = options.window;
  config.positions = options.rope ? PositionKind::kRope : PositionKind::kNone;
  std::string faults;
  for (const std::string& fault : config.faults()) faults += (faults.empty() ? "" : "; ") + fault;
  require<ConfigError>(faults.empty(), "encoder_block", "{}", faults);

  nn::BlockConfig block;
  block.attention.d_model = config.d_model;
  block.attention.heads = config.num_heads;
  block.attention.kv_heads = config.kv_heads();
  block.attention.kind = config.attention;
  block.attention.window = config.window;
  if (options.rope) block.attention.rope = ops::RopeOptions{};
  block.attention.bias = block.attention.out_bias = block.feed_forward.bias = options.bias;
  block.feed_forward.d_model = config.d_model;
  block.feed_forward.d_ff = config.d_ff;
  block.feed_forward.activation = config.activation;
  block.norm.choice = config.norm;
  block.placement = config.norm_placement;
  return block;
}

}  // namespace

struct EncoderBlock::Impl {
  explicit Impl(DType dtype) : module(dtype) {}

  const nn::Parameter& find(const std::string& name) const {
    const nn::Parameter* parameter = module.find(name);
    if (parameter == nullptr)
      fail<ArgumentError>("encoder_block", "no parameter is named '{}'; see parameter_names()",
                          name);
    return *parameter;
  }

  std::int64_t width = 0;
  nn::Module module;
  std::optional<nn::Block> block;
  RaggedLayout layout;  // of the last forward()
  Tape tape;
  Var input, output;
};

EncoderBlock::EncoderBlock(const EncoderBlockOptions& options, std::uint64_t seed, DType dtype)
    : impl_(std::make_unique<Impl>(dtype)) {
  require<ConfigError>(dtype == DType::kFloat32 || dtype == DType::kFloat64, "encoder_block",
                       "expected float32 or float64, got {}", dtype_name(dtype));
  const nn::BlockConfig config = block_config(options);
  impl_->width = options.d_model;
  impl_->module.begin_group("block");
  impl_->block.emplace(nn::Builder(impl_->module, ""), "", config);
  impl_->module.finish();
  impl_->module.initialise(seed);
  impl_->module.enable_gradients();
}

EncoderBlock::~EncoderBlock() = default;
EncoderBlock::EncoderBlock(EncoderBlock&&) noexcept = default;
EncoderBlock& EncoderBlock::operator=(EncoderBlock&&) noexcept = default;

Tensor EncoderBlock::forward(const Tensor& x, const RaggedLayout& layout) {
  check_layout(layout, "encoder_block");
  require<ShapeError>(
      x.defined() && x.dtype() == impl_->module.dtype() &&
          x.shape() == Shape({layout.tokens(), impl_->width}),
      "encoder_block", "expected x to be {} {}, got {} {}", dtype_name(impl_->module.dtype()),
      Shape({layout.tokens(), impl_->width}).str(), x.defined() ? dtype_name(x.dtype()) : "",
      x.defined() ? x.shape().str() : "none");
  impl_->tape.clear();
  impl_->module.bump_version();  // the caller may have written to parameters
  impl_->layout = layout;
  impl_->input = Var(x.clone(), /*requires_grad=*/true);
  Context context;
  context.tape = &impl_->tape;
  context.layout = &impl_->layout;
  nn::ResidualStream stream(impl_->input);
  (*impl_->block)(context, stream);
  impl_->output = stream.value(context);
  return impl_->output.value().clone();
}

Tensor EncoderBlock::backward(const Tensor& dy) {
  require<ArgumentError>(impl_->output.defined(), "encoder_block",
                         "backward() needs a forward() before it, one for each");
  const Tensor& y = impl_->output.value();
  require<ShapeError>(dy.defined() && dy.dtype() == y.dtype() && dy.shape() == y.shape(),
                      "encoder_block", "expected dy to be {} {}, got {} {}", dtype_name(y.dtype()),
                      y.shape().str(), dy.defined() ? dtype_name(dy.dtype()) : "",
                      dy.defined() ? dy.shape().str() : "none");
  impl_->module.clear_gradients();
  const Var output = std::exchange(impl_->output, Var());
  impl_->tape.backward(output, dy.clone());
  impl_->module.settle_gradients();
  return impl_->input.grad().clone();
}

std::vector<std::string> EncoderBlock::parameter_names() const {
  std::vector<std::string> names;
  std::as_const(impl_->module).for_each([&](const nn::Parameter& p) { names.push_back(p.name); });
  return names;
}

Tensor EncoderBlock::parameter(const std::string& name) const {
  return impl_->find(name).var.value();
}

Tensor EncoderBlock::gradient(const std::string& name) const {
  const Var& var = impl_->find(name).var;
  require<ArgumentError>(var.grad().defined() && impl_->input.defined() && impl_->input.has_grad(),
                         "encoder_block", "the gradient of {} needs a backward() first", name);
  return var.grad();
}

}  // namespace qkv::inline v0
