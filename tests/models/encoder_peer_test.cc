// The C++ half of tests/peers/test_transformers_bert.py, which runs it with QKV_PEER_FOLDER set.
#include <cstdlib>
#include <filesystem>

#include <gtest/gtest.h>

#include "io/safetensors.h"
#include "models/encoder_support.h"
#include "ops/norm.h"
#include "support/files.h"
#include "support/tensors.h"

using namespace qkv;
using namespace qkv::testing;

namespace {

// Runs texts of several lengths through the model and writes ids, lengths and logits beside it.
Tensor write_outputs(const EncoderClassifier& model, const std::filesystem::path& folder) {
  const std::vector<std::int64_t> lengths{5, 1, 12, 3};
  const TinyBatch batch =
      tiny_batch(lengths, model.config().vocab_size, model.config().num_labels());
  Context context;
  context.layout = &batch.layout;
  Tensor logits = model.forward(context, batch.ids).value();
  io::save_safetensors(folder / "outputs.safetensors",
                       {{"ids", Tensor::from<std::int32_t>(batch.ids, {batch.layout.tokens()})},
                        {"lengths", Tensor::from<std::int64_t>(
                                        lengths, {static_cast<std::int64_t>(lengths.size())})},
                        {"logits", logits}});
  return logits;
}

}  // namespace

TEST(EncoderPeer, writes_berts_for_transformers) {
  const TempFolder temporary;
  const char* given = std::getenv("QKV_PEER_FOLDER");
  const std::filesystem::path folder = given != nullptr ? given : temporary.path();
  for (const ops::Activation activation : {ops::Activation::kGelu, ops::Activation::kGeluTanh,
                                           ops::Activation::kRelu, ops::Activation::kSilu}) {
    EncoderConfig config = tiny_bert();
    config.activation = activation;
    EncoderClassifier model(config, 3);
    model.module().for_each([](nn::Parameter& p) {  // biases and gains away from 0 and 1
      p.var.value().copy_from(ops::add(
          p.var.value(), random_tensor(p.var.value().shape(), hash_text(p.name), DType::kFloat32)));
    });
    const std::filesystem::path out =
        folder / (std::string("ours_") + ops::activation_name(activation));
    model.save(out);
    const Tensor logits = write_outputs(model, out);
    EXPECT_TRUE(same_bits(write_outputs(EncoderClassifier::load(out), out), logits));
  }
}

TEST(EncoderPeer, reads_berts_of_transformers) {
  const char* given = std::getenv("QKV_PEER_FOLDER");
  if (given == nullptr)
    GTEST_SKIP()
        << "needs a model that tests/peers/test_transformers_bert.py writes (QKV_PEER_FOLDER)";
  const std::filesystem::path folder = std::filesystem::path(given) / "theirs";
  const EncoderClassifier model = EncoderClassifier::load(folder);
  EXPECT_EQ(write_outputs(model, folder).dim(1), model.config().num_labels());
}
