#include "ops/op_list.h"

#include <string_view>

#include "base/check.h"

namespace qkv::inline v0::ops {
namespace {

constexpr OpInfo kOps[] = {
    {"linear", "linear.h", "gemm.cc", "linear_backward", "", "y = activation(x w^T + b)"},
    {"quantized_linear", "quantized.h", "quantized.cc", "", "a quantised weight is not trained",
     "y = activation(x w^T + b) with w in blocks, bf16 or fp16"},
    {"quantized_embedding", "quantized.h", "quantized.cc", "", "a quantised table is not trained",
     "rows of a quantised table by id"},
    {"dequantize", "quantized.h", "quantized.cc", "", "a change of the stored type alone",
     "blocks as fp32"},
    {"activate", "activation.h", "activation.cc", "activate_backward", "",
     "elementwise activations and gated pairs"},
    {"norm", "norm.h", "norm.cc", "norm_backward", "", "LayerNorm and RMSNorm over rows"},
    {"add_norm", "norm.h", "norm.cc", "norm_backward", "",
     "residual + dropout(x), and the norm of that sum, in one pass"},
    {"dropout", "norm.h", "norm.cc", "dropout", "",
     "zeroes elements by counter-based random numbers, scales the rest"},
    {"add_dropout", "norm.h", "norm.cc", "dropout", "", "residual + dropout(x)"},
    {"add", "norm.h", "vector.cc", "add", "", "sum of two tensors"},
    {"add_inplace", "norm.h", "vector.cc", "",
     "writes into its argument: used on gradients, never recorded", "a += b"},
    {"embedding", "embedding.h", "vector.cc", "embedding_backward", "", "rows of a table by id"},
    {"sinusoidal_table", "embedding.h", "vector.cc", "", "the table is fixed, it has no inputs",
     "sinusoidal position codes"},
    {"rope_inplace", "rope.h", "vector.cc", "rope_inplace", "",
     "rotary positions, in place; backward turns the other way"},
    {"softmax", "softmax.h", "softmax.cc", "softmax_backward", "",
     "softmax over the last dimension"},
    {"cross_entropy", "softmax.h", "softmax.cc", "cross_entropy", "",
     "loss over classes with smoothing and ignored rows"},
    {"pool", "pooling.h", "vector.cc", "pool_backward", "",
     "one vector per sequence: first, mean, max, last"},
    {"attention", "qkv/attention.h", "attention.cc", "attention_backward", "",
     "scaled dot-product attention"},
    {"merge_attention", "attention_merge.h", "attention_merge.cc", "merge_attention_backward", "",
     "two partial results of attention put together by their log-sum-exp"},
    {"linear_attention", "qkv/attention.h", "attention_linear.cc", "linear_attention_backward", "",
     "attention in linear time by elu + 1"},
    {"random_features", "random_features.h", "random_features.cc", "",
     "the projection is fixed, it has no inputs", "orthogonal projection of random features"},
    {"random_feature_attention", "random_features.h", "attention_linear.cc",
     "random_feature_attention_backward", "", "softmax attention in linear time, with noise"},
    {"sum_of_squares", "optimizer.h", "vector.cc", "",
     "reads gradients; the gradient of a gradient is not offered", "sum of squares in double"},
    {"find_non_finite", "optimizer.h", "vector.cc", "", "a search, not a function of real numbers",
     "index of the first NaN or infinity"},
    {"adamw", "optimizer.h", "vector.cc", "", "an update of parameters, not part of the model",
     "AdamW's update in one pass"},
    {"sgd", "optimizer.h", "vector.cc", "", "an update of parameters, not part of the model",
     "SGD's update with momentum"},
};

}  // namespace

std::span<const OpInfo> op_list() { return kOps; }

const OpInfo& find_op(const char* name) {
  for (const OpInfo& op : kOps)
    if (std::string_view(op.name) == name) return op;
  fail<ArgumentError>("op_list", "expected an op of the list, got '{}'", name);
}

}  // namespace qkv::inline v0::ops
