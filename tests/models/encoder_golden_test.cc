// Encoders against PyTorch's block outputs, logits, gradients and ten training losses
// (tools/make_goldens.py).
#include <filesystem>
#include <map>

#include <gtest/gtest.h>

#include "autograd/functions.h"
#include "io/safetensors.h"
#include "models/encoder_support.h"
#include "ops/optimizer.h"
#include "support/tensors.h"

using namespace qkv;
using namespace qkv::testing;

namespace {

class BlockSink : public CaptureSink {
 public:
  void activation(const std::string& module, const Tensor& value) override {
    values[module] = value.clone();
  }
  std::map<std::string, Tensor> values;
};

struct Golden {
  io::SafetensorsFile file;
  EncoderClassifier model;
  TinyBatch batch;

  Golden(const std::string& name, const EncoderConfig& config, DType dtype)
      : file(io::SafetensorsFile::open(std::filesystem::path(QKV_SOURCE_DIR) /
                                       ("tests/golden/encoder_" + name + ".safetensors"))),
        model(config, 1, dtype) {
    const Tensor lengths = file.tensor("lengths"), ids = file.tensor("ids"),
                 labels = file.tensor("labels");
    batch.layout = RaggedLayout::from_lengths(
        {lengths.data<std::int64_t>(), static_cast<std::size_t>(lengths.numel())});
    batch.ids.assign(ids.data<std::int32_t>(), ids.data<std::int32_t>() + ids.numel());
    batch.labels.assign(labels.data<std::int32_t>(), labels.data<std::int32_t>() + labels.numel());
    model.module().for_each(
        [&](nn::Parameter& p) { p.var.value().copy_from(file.tensor("weight." + p.name)); });
    model.module().enable_gradients();
  }
  // Mean loss of a step, gradients of the sum left in the module.
  double step(CaptureSink* sink = nullptr) {
    model.module().clear_gradients();
    Tape tape;
    Context context;
    context.tape = &tape;
    context.training = true;
    context.layout = &batch.layout;
    context.capture = sink;
    const autograd::Loss loss = autograd::cross_entropy(context, model.forward(context, batch.ids),
                                                        batch.labels, {0.1, -100});
    const Tensor one = Tensor::empty({1}, loss.sum.value().dtype());
    one.fill(1);
    tape.backward(loss.sum, one);
    return loss.value / static_cast<double>(loss.counted);
  }
};

}  // namespace

class EncoderGolden : public ::testing::TestWithParam<Form> {};

TEST_P(EncoderGolden, outputs_and_gradients) {
  for (const DType dtype : {DType::kFloat32, DType::kFloat64}) {
    Golden golden(GetParam().name, GetParam().config, dtype);
    BlockSink sink;
    golden.step(&sink);
    for (int i = 0; i < 2; ++i) {
      const Tensor& block = sink.values.at("encoder.layers." + std::to_string(i));
      EXPECT_LE(relative_difference(block, golden.file.tensor("block." + std::to_string(i))), 2e-5)
          << i;
    }
    EXPECT_LE(relative_difference(sink.values.at("logits"), golden.file.tensor("logits")), 2e-5);
    golden.model.module().for_each([&](nn::Parameter& p) {
      Tensor mean =
          p.var.grad().to(DType::kFloat64).clone();  // PyTorch's loss is the mean of four texts
      for (std::int64_t i = 0; i < mean.numel(); ++i) mean.data<double>()[i] /= 4;
      EXPECT_LE(relative_difference(mean, golden.file.tensor("gradient." + p.name)), 1e-4)
          << p.name;
    });
  }
}

TEST_P(EncoderGolden, ten_training_losses) {
  Golden golden(GetParam().name, GetParam().config, DType::kFloat32);
  std::map<std::string, std::pair<Tensor, Tensor>> moments;
  const std::vector<double> expected = values_of(golden.file.tensor("losses"));
  ASSERT_EQ(expected.size(), 10U);
  for (std::size_t step = 0; step < expected.size(); ++step) {
    EXPECT_NEAR(golden.step(), expected[step], 1e-4 * expected[step]) << "step " << step;
    golden.model.module().for_each([&](nn::Parameter& p) {
      auto [it, fresh] = moments.try_emplace(p.name);
      if (fresh)
        it->second = {Tensor::zeros(p.var.value().shape()), Tensor::zeros(p.var.value().shape())};
      ops::AdamWStep update;
      update.learning_rate = 5e-3;
      update.weight_decay = p.decay ? 0.05 : 0;
      update.gradient_scale = 1.0 / 4;
      update.t = static_cast<std::int64_t>(step) + 1;
      ops::adamw(p.var.value(), p.var.grad(), it->second.first, it->second.second, update, false);
    });
    golden.model.module().bump_version();
  }
}

INSTANTIATE_TEST_SUITE_P(Forms, EncoderGolden,
                         ::testing::Values(Form{"pre", tiny_config()}, Form{"post", tiny_bert()},
                                           Form{"modern", tiny_modern()}),
                         [](const auto& param_info) { return param_info.param.name; });
