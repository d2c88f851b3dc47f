// Attention in double against PyTorch's (tools/make_goldens.py).
#include <filesystem>
#include <optional>

#include <gtest/gtest.h>

#include "qkv/attention.h"

#include "io/safetensors.h"
#include "support/tensors.h"

using namespace qkv;
using namespace qkv::testing;

namespace {

struct Case {
  const char* name;
  Mask mask;
  std::optional<double> scale;
};

void expect_golden(const Case& c, ops::AttentionBackend backend) {
  SCOPED_TRACE(c.name);
  const io::SafetensorsFile file = io::SafetensorsFile::open(std::filesystem::path(QKV_SOURCE_DIR) /
                                                             "tests/golden/attention.safetensors");
  const auto get = [&](const char* key) { return file.tensor(std::string(c.name) + "." + key); };
  const Tensor q = get("q"), k = get("k"), v = get("v");
  const std::vector<std::int64_t> n{q.dim(0)}, s{k.dim(0)};
  const RaggedLayout queries = RaggedLayout::from_lengths(n), keys = RaggedLayout::from_lengths(s);
  const ops::AttentionInput input{q, k, v, &queries, &keys, false};
  ops::AttentionOptions options;
  options.mask = c.mask;
  options.scale = c.scale;
  options.backend = backend;
  if (file.contains(std::string(c.name) + ".additive"))
    options.mask = options.mask & Mask::additive(get("additive"));
  const ops::AttentionResult result = ops::attention(input, options);
  const auto like = [](const Tensor& t) { return Tensor::empty(t.shape(), t.dtype()); };
  const ops::AttentionGradients d{like(q), like(k), like(v)};
  ops::attention_backward(get("dout"), input, result, options, d);
  constexpr double kTolerance = 2e-14;
  EXPECT_LE(relative_difference(result.out, get("out")), kTolerance);
  EXPECT_LE(relative_difference(result.lse, get("lse")), kTolerance);
  EXPECT_LE(relative_difference(d.dq, get("dq")), kTolerance);
  EXPECT_LE(relative_difference(d.dk, get("dk")), kTolerance);
  EXPECT_LE(relative_difference(d.dv, get("dv")), kTolerance);
}

}  // namespace

TEST(AttentionGolden, equals_pytorch_in_double) {
  for (const ops::AttentionBackend backend :
       {ops::AttentionBackend::kAuto, ops::AttentionBackend::kNaive}) {
    expect_golden({"plain", Mask(), {}}, backend);
    expect_golden({"causal", Mask::causal(), {}}, backend);
    expect_golden({"grouped", Mask(), 0.3}, backend);
    expect_golden({"window", Mask::window(3), {}}, backend);
    expect_golden({"bias", Mask(), {}}, backend);
  }
}
