// The cases of all ops but attention.
#include <cmath>
#include <cstring>
#include <numeric>

#include "base/convert.h"
#include "ops/activation.h"
#include "ops/embedding.h"
#include "ops/linear.h"
#include "ops/norm.h"
#include "ops/optimizer.h"
#include "ops/pooling.h"
#include "ops/quantized.h"
#include "ops/rope.h"
#include "ops/softmax.h"
#include "support/op_case.h"

namespace qkv::testing {
namespace {

using ops::Activation;
using ops::Into;
using ops::NormKind;

// Rows below, at and above a chunk; widths below, at and above a vector of every instruction set.
const std::vector<OpShape> kShapes = {{1, 1, 1},    {3, 7, 2},     {2, 16, 3},   {5, 33, 4},
                                      {257, 64, 5}, {300, 100, 3}, {17, 257, 2}, {513, 31, 2}};

double elements(OpShape s) { return static_cast<double>(s.rows * s.width); }
std::function<double(OpShape)> bytes_per_element(double bytes) {
  return [bytes](OpShape s) { return bytes * elements(s); };
}

ops::DropoutOptions dropout_of(const RaggedLayout& layout) {
  return {.p = 0.3, .key = {.key = 0x123456789ABCDEFull, .step = 5}, .layout = &layout};
}

std::vector<std::int32_t> some_ids(std::int64_t count, std::int64_t below) {
  std::vector<std::int32_t> ids(static_cast<std::size_t>(count));
  for (std::size_t i = 0; i < ids.size(); ++i)
    ids[i] = static_cast<std::int32_t>((i * i * 7 + 3 * i) % static_cast<std::size_t>(below));
  return ids;
}

// x [rows, extra], w [width, extra], b [width].
OpCase linear_case(Activation activation) {
  const bool gated = ops::is_gated(activation), identity = activation == Activation::kNone;
  OpCase c;
  c.op = "linear";
  c.variant = ops::activation_name(activation);
  c.parity = {{1, 2, 1},      {3, 8, 5},      {5, 34, 70},   {257, 64, 33},
              {300, 100, 65}, {60, 768, 256}, {600, 48, 300}};
  c.tolerance = 5e-6;
  c.speed = {2048, 1024, 256};
  c.flops = [](OpShape s) { return 2.0 * static_cast<double>(s.rows * s.width * s.extra); };
  c.bytes = [](OpShape s) {
    return 4.0 * static_cast<double>(s.rows * s.width + s.rows * s.extra + s.width * s.extra);
  };
  c.backward_bytes = c.bytes;
  c.inputs = [](OpShape s, DType dtype, Random& r) {
    return Tensors{
        random_normal({s.rows, s.extra}, dtype, r),
        random_normal({s.width, s.extra}, dtype, r, 1 / std::sqrt(static_cast<double>(s.extra))),
        random_normal({s.width}, dtype, r)};
  };
  c.forward = [=](OpShape, const Tensors& in) {
    const ops::LinearResult y = ops::linear(in[0], in[1], in[2], activation);
    return identity ? Tensors{y.y} : Tensors{y.y, y.pre};
  };
  c.backward = [=](OpShape, const Tensors& in, const Tensors& out, const Tensors& upstream) {
    Tensor dw = Tensor::empty(in[1].shape(), in[1].dtype()),
           db = Tensor::empty(in[2].shape(), in[2].dtype());
    const Tensor dx =
        ops::linear_backward(upstream[0], in[0], in[1], activation, identity ? Tensor() : out[1],
                             true, {dw, db, Into::kOverwrite})
            .dx;
    return Tensors{dx, dw, db};
  };
  if (gated) c.gradient.width = 6;
  return c;
}

OpCase activation_case(Activation activation) {
  OpCase c;
  c.op = "activate";
  c.variant = ops::activation_name(activation);
  c.parity = kShapes;
  c.tolerance = 5e-7;
  c.speed = {2048, 1024, 1};
  const std::int64_t halves = ops::is_gated(activation) ? 2 : 1;
  c.bytes = bytes_per_element(4.0 * (halves + 1));
  c.backward_bytes = bytes_per_element(4.0 * (2 * halves + 1));
  c.inputs = [=](OpShape s, DType dtype, Random& r) {
    return Tensors{random_normal({s.rows, s.width * halves}, dtype, r, 2)};
  };
  c.forward = [=](OpShape, const Tensors& in) { return Tensors{ops::activate(in[0], activation)}; };
  c.backward = [=](OpShape, const Tensors& in, const Tensors&, const Tensors& upstream) {
    return Tensors{ops::activate_backward(upstream[0], in[0], activation)};
  };
  return c;
}

OpCase norm_case(NormKind kind, bool with_beta) {
  OpCase c;
  c.op = "norm";
  c.variant = kind == NormKind::kRms ? "rms" : with_beta ? "layer with beta" : "layer";
  c.parity = kShapes;
  // The gradient of x / |x| is rounding alone: a single element has no direction.
  if (kind == NormKind::kRms) c.parity[0].width = 3;
  c.tolerance = 2e-6;
  c.bytes = bytes_per_element(8);
  c.backward_bytes = bytes_per_element(12);
  c.inputs = [=](OpShape s, DType dtype, Random& r) {
    return Tensors{random_normal({s.rows, s.width}, dtype, r), random_normal({s.width}, dtype, r),
                   with_beta ? random_normal({s.width}, dtype, r) : Tensor()};
  };
  c.forward = [=](OpShape, const Tensors& in) {
    const ops::NormResult n = ops::norm(in[0], kind, in[1], in[2], 1e-3);
    return Tensors{n.y, n.rstd, n.mean};
  };
  c.backward = [=](OpShape, const Tensors& in, const Tensors& out, const Tensors& upstream) {
    Tensor dgamma = Tensor::empty(in[1].shape(), in[1].dtype()),
           dbeta = with_beta ? Tensor::empty(in[1].shape(), in[1].dtype()) : Tensor();
    const Tensor dx =
        ops::norm_backward(upstream[0], in[0], {kind, in[1], out[2], out[1]}, {dgamma, dbeta});
    return Tensors{dx, dgamma, dbeta};
  };
  return c;
}

OpCase add_norm_case(NormKind kind) {
  OpCase c;
  c.op = "add_norm";
  c.variant = kind == NormKind::kRms ? "rms" : "layer";
  c.parity = kShapes;
  c.bytes = bytes_per_element(16);
  c.backward_bytes = bytes_per_element(24);
  c.differentiable = 2;
  const bool layer = kind == NormKind::kLayer;
  c.inputs = [=](OpShape s, DType dtype, Random& r) {
    return Tensors{random_normal({s.rows, s.width}, dtype, r),
                   random_normal({s.rows, s.width}, dtype, r), random_normal({s.width}, dtype, r),
                   layer ? random_normal({s.width}, dtype, r) : Tensor()};
  };
  c.forward = [=](OpShape s, const Tensors& in) {
    const RaggedLayout layout = ragged_rows(s.rows);
    const ops::AddNormResult n =
        ops::add_norm(in[0], in[1], dropout_of(layout), kind, in[2], in[3], 1e-3);
    return Tensors{n.sum, n.norm.y, n.norm.rstd, n.norm.mean};
  };
  c.backward = [=](OpShape s, const Tensors& in, const Tensors& out, const Tensors& upstream) {
    const RaggedLayout layout = ragged_rows(s.rows);
    Tensor dgamma = Tensor::empty(in[2].shape(), in[2].dtype()),
           dbeta = layer ? Tensor::empty(in[2].shape(), in[2].dtype()) : Tensor();
    const Tensor dsum = ops::norm_backward(upstream[1], out[0], {kind, in[2], out[3], out[2]},
                                           {dgamma, dbeta}, upstream[0]);
    return Tensors{ops::dropout(dsum, dropout_of(layout)), dsum, dgamma, dbeta};
  };
  return c;
}

OpCase dropout_case() {
  OpCase c;
  c.op = "dropout";
  c.parity = kShapes;
  c.tolerance = 3e-7;
  c.bytes = bytes_per_element(8);
  c.backward_bytes = bytes_per_element(8);
  c.inputs = [](OpShape s, DType dtype, Random& r) {
    return Tensors{random_normal({s.rows, s.width}, dtype, r)};
  };
  c.forward = [](OpShape s, const Tensors& in) {
    const RaggedLayout layout = ragged_rows(s.rows);
    return Tensors{ops::dropout(in[0], dropout_of(layout))};
  };
  c.backward = [](OpShape s, const Tensors&, const Tensors&, const Tensors& upstream) {
    const RaggedLayout layout = ragged_rows(s.rows);
    return Tensors{ops::dropout(upstream[0], dropout_of(layout))};
  };
  return c;
}

OpCase add_dropout_case() {
  OpCase c = dropout_case();
  c.op = "add_dropout";
  c.bytes = bytes_per_element(12);
  c.inputs = [](OpShape s, DType dtype, Random& r) {
    return Tensors{random_normal({s.rows, s.width}, dtype, r),
                   random_normal({s.rows, s.width}, dtype, r)};
  };
  c.forward = [](OpShape s, const Tensors& in) {
    const RaggedLayout layout = ragged_rows(s.rows);
    return Tensors{ops::add_dropout(in[0], in[1], dropout_of(layout))};
  };
  c.backward = [](OpShape s, const Tensors&, const Tensors&, const Tensors& upstream) {
    const RaggedLayout layout = ragged_rows(s.rows);
    return Tensors{ops::dropout(upstream[0], dropout_of(layout)), upstream[0]};
  };
  return c;
}

OpCase add_case(bool in_place) {
  OpCase c;
  c.op = in_place ? "add_inplace" : "add";
  c.parity = kShapes;
  c.tolerance = 0;
  c.bytes = bytes_per_element(12);
  c.inputs = [](OpShape s, DType dtype, Random& r) {
    return Tensors{random_normal({s.rows, s.width}, dtype, r),
                   random_normal({s.rows, s.width}, dtype, r)};
  };
  if (in_place) {
    c.no_gradient = "writes into its argument";
    c.forward = [](OpShape, const Tensors& in) {
      const Tensor sum = in[0].clone();
      ops::add_inplace(sum, in[1]);
      return Tensors{sum};
    };
  } else {
    c.forward = [](OpShape, const Tensors& in) { return Tensors{ops::add(in[0], in[1])}; };
    c.backward = [](OpShape, const Tensors&, const Tensors&, const Tensors& upstream) {
      return Tensors{upstream[0], upstream[0]};
    };
  }
  return c;
}

// table [extra + 3, width], ids by a fixed rule with repetitions.
OpCase embedding_case() {
  OpCase c;
  c.op = "embedding";
  c.parity = kShapes;
  c.speed = {2048, 256, 3000};
  c.bytes = bytes_per_element(8);
  c.backward_bytes = bytes_per_element(12);
  c.inputs = [](OpShape s, DType dtype, Random& r) {
    return Tensors{random_normal({s.extra + 3, s.width}, dtype, r)};
  };
  c.forward = [](OpShape s, const Tensors& in) {
    return Tensors{ops::embedding(some_ids(s.rows, s.extra + 3), in[0], 1.5)};
  };
  c.backward = [](OpShape s, const Tensors& in, const Tensors&, const Tensors& upstream) {
    const Tensor d = Tensor::empty(in[0].shape(), in[0].dtype());
    ops::embedding_backward(upstream[0], some_ids(s.rows, s.extra + 3), d, 1.5, Into::kOverwrite);
    return Tensors{d};
  };
  return c;
}

OpCase sinusoid_case() {
  OpCase c;
  c.op = "sinusoidal_table";
  c.parity = kShapes;
  c.no_gradient = "the table is fixed";
  c.inputs = [](OpShape, DType dtype, Random&) { return Tensors{Tensor::zeros({1}, dtype)}; };
  c.forward = [](OpShape s, const Tensors& in) {
    return Tensors{ops::sinusoidal_table(s.rows, s.width, in[0].dtype())};
  };
  return c;
}

// x [rows, extra, 2 width].
OpCase rope_case(ops::RopePairing pairing) {
  OpCase c;
  c.op = "rope_inplace";
  c.variant = pairing == ops::RopePairing::kInterleaved ? "interleaved" : "half split";
  c.parity = kShapes;
  c.tolerance = 5e-7;
  c.speed = {2048, 16, 8};
  c.bytes = [](OpShape s) { return 16.0 * elements(s) * static_cast<double>(s.extra); };
  c.backward_bytes = c.bytes;
  const auto turn = [pairing](const Tensor& x, bool inverse) {
    const Tensor y = x.clone();
    const std::vector<std::int32_t> positions = some_ids(x.dim(0), 1000);
    ops::rope_inplace(y, positions, {.pairing = pairing}, inverse);
    return Tensors{y};
  };
  c.inputs = [](OpShape s, DType dtype, Random& r) {
    return Tensors{random_normal({s.rows, s.extra, 2 * s.width}, dtype, r)};
  };
  c.forward = [=](OpShape, const Tensors& in) { return turn(in[0], false); };
  c.backward = [=](OpShape, const Tensors&, const Tensors&, const Tensors& upstream) {
    return turn(upstream[0], true);
  };
  return c;
}

OpCase softmax_case() {
  OpCase c;
  c.op = "softmax";
  c.parity = kShapes;
  c.bytes = bytes_per_element(8);
  c.backward_bytes = bytes_per_element(12);
  c.inputs = [](OpShape s, DType dtype, Random& r) {
    return Tensors{random_normal({s.rows, s.width}, dtype, r, 3)};
  };
  c.forward = [](OpShape, const Tensors& in) { return Tensors{ops::softmax(in[0])}; };
  c.backward = [](OpShape, const Tensors&, const Tensors& out, const Tensors& upstream) {
    return Tensors{ops::softmax_backward(upstream[0], out[0])};
  };
  return c;
}

OpCase cross_entropy_case(double smoothing) {
  OpCase c;
  c.op = "cross_entropy";
  c.variant = smoothing > 0 ? "smoothed" : "";
  c.parity = kShapes;
  c.speed = {256, 3000, 1};
  c.bytes = bytes_per_element(8);
  c.inputs = [](OpShape s, DType dtype, Random& r) {
    return Tensors{random_normal({s.rows, s.width}, dtype, r, 3)};
  };
  // The loss and, for the backward, its gradient; the number of right rows is compared as well.
  c.forward = [=](OpShape s, const Tensors& in) {
    std::vector<std::int32_t> targets = some_ids(s.rows, s.width);
    for (std::size_t t = 2; t < targets.size(); t += 3) targets[t] = -100;
    const auto r = ops::cross_entropy(in[0], targets, {.label_smoothing = smoothing}, true);
    return Tensors{Tensor::from<double>({r.loss_sum}, {1}), r.dlogits,
                   Tensor::from<double>({static_cast<double>(r.correct)}, {1})};
  };
  c.backward = [](OpShape, const Tensors&, const Tensors& out, const Tensors& upstream) {
    Tensor d = out[1].to(DType::kFloat64);
    for (std::int64_t i = 0; i < d.numel(); ++i)
      d.data<double>()[i] *= upstream[0].to(DType::kFloat64).data<double>()[0];
    return Tensors{d.to(out[1].dtype())};
  };
  return c;
}

OpCase pool_case(ops::Pooling pooling) {
  OpCase c;
  c.op = "pool";
  c.variant = ops::pooling_name(pooling);
  c.parity = kShapes;
  c.bytes = bytes_per_element(4);
  c.backward_bytes = bytes_per_element(4);
  c.inputs = [](OpShape s, DType dtype, Random& r) {
    return Tensors{random_normal({s.rows, s.width}, dtype, r)};
  };
  c.forward = [=](OpShape s, const Tensors& in) {
    return Tensors{ops::pool(in[0], ragged_rows(s.rows), pooling)};
  };
  c.backward = [=](OpShape s, const Tensors& in, const Tensors&, const Tensors& upstream) {
    return Tensors{ops::pool_backward(upstream[0], in[0], ragged_rows(s.rows), pooling)};
  };
  return c;
}

OpCase sum_of_squares_case() {
  OpCase c;
  c.op = "sum_of_squares";
  c.parity = kShapes;
  c.parity.push_back({300, 257, 1});
  c.speed = {4096, 256, 1};
  c.tolerance = 1e-12;
  c.bytes = bytes_per_element(4);
  c.no_gradient = "reads gradients";
  c.inputs = [](OpShape s, DType dtype, Random& r) {
    return Tensors{random_normal({s.rows, s.width}, dtype, r)};
  };
  c.forward = [](OpShape, const Tensors& in) {
    return Tensors{Tensor::from<double>({ops::sum_of_squares(in[0])}, {1})};
  };
  return c;
}

OpCase find_non_finite_case() {
  OpCase c = sum_of_squares_case();
  c.op = "find_non_finite";
  c.no_gradient = "a search";
  c.tolerance = 0;
  c.inputs = [](OpShape s, DType dtype, Random& r) {
    Tensor x = random_normal({s.rows, s.width}, DType::kFloat64, r);
    if (x.numel() > 20) x.data<double>()[x.numel() * 3 / 4] = NAN;
    return Tensors{x.to(dtype)};
  };
  c.forward = [](OpShape, const Tensors& in) {
    return Tensors{Tensor::from<double>({static_cast<double>(ops::find_non_finite(in[0]))}, {1})};
  };
  return c;
}

// theta, g, m, v and what becomes of them.
OpCase adamw_case() {
  OpCase c;
  c.op = "adamw";
  c.parity = kShapes;
  c.parity.push_back({300, 257, 1});
  c.speed = {4096, 256, 1};
  c.tolerance = 1e-6;
  c.bytes = bytes_per_element(32);
  c.no_gradient = "an update of parameters";
  c.inputs = [](OpShape s, DType dtype, Random& r) {
    Tensors in;
    for (int i = 0; i < 4; ++i) in.push_back(random_normal({s.rows, s.width}, DType::kFloat64, r));
    for (std::int64_t i = 0; i < in[3].numel(); ++i)
      in[3].data<double>()[i] = std::fabs(in[3].data<double>()[i]);
    for (Tensor& x : in) x = x.to(dtype);
    return in;
  };
  c.forward = [](OpShape, const Tensors& in) {
    Tensors state = {in[0].clone(), in[1].clone(), in[2].clone(), in[3].clone()};
    ops::adamw(state[0], state[1], state[2], state[3],
               {.learning_rate = 0.01, .weight_decay = 0.1, .gradient_scale = 0.7, .t = 3}, true);
    return state;
  };
  return c;
}

OpCase sgd_case() {
  OpCase c = adamw_case();
  c.op = "sgd";
  c.bytes = bytes_per_element(20);
  c.forward = [](OpShape, const Tensors& in) {
    Tensors state = {in[0].clone(), in[1].clone(), in[2].clone()};
    ops::sgd(state[0], state[1], state[2], 0.01, 0.9, 0.1, 0.7);
    return state;
  };
  return c;
}

// Random blocks [rows, columns] with scales that are finite: their bytes, as a tensor of bytes.
constexpr BlockType kAllBlocks[] = {BlockType::kQ40, BlockType::kQ41, BlockType::kQ50,
                                    BlockType::kQ51, BlockType::kQ80, BlockType::kQ4K,
                                    BlockType::kQ5K, BlockType::kQ6K};
BlockTensor random_blocks(BlockType type, std::int64_t rows, std::int64_t blocks, Random& r) {
  const BlockLayout layout = block_layout(type);
  BlockTensor w{type,
                {rows, blocks * layout.elements},
                Tensor::empty({rows, blocks * layout.bytes}, DType::kUInt8)};
  auto* bytes = w.bytes.data<std::uint8_t>();
  for (std::int64_t i = 0; i < w.bytes.numel(); ++i)
    bytes[i] = static_cast<std::uint8_t>(r.below(256));
  const bool two = type == BlockType::kQ41 || type == BlockType::kQ51 || type == BlockType::kQ4K ||
                   type == BlockType::kQ5K;
  for (std::int64_t b = 0; b < rows * blocks; ++b) {
    std::uint8_t* block = bytes + b * layout.bytes + (type == BlockType::kQ6K ? 208 : 0);
    for (int i = 0; i < (two ? 2 : 1); ++i) {
      const Float16 scale = to_float16(static_cast<float>(r.normal()) / 64);
      std::memcpy(block + 2 * i, &scale, sizeof(scale));
    }
  }
  return w;
}

// x [rows, K], w [width, K] in the type, K: `extra` blocks. x is what the dtype of the case is.
OpCase quantized_case(BlockType type) {
  OpCase c;
  c.op = "quantized_linear";
  c.variant = block_layout(type).name;
  c.parity = {{1, 2, 1},  {2, 7, 1}, {3, 8, 2},  {4, 33, 3},
              {7, 66, 1}, {8, 5, 2}, {9, 70, 1}, {150, 66, 2}};
  c.gradient = {5, 6, 1};
  c.speed = {1, 4096, 4096 / block_layout(type).elements};
  c.tolerance = 5e-6;
  c.no_gradient = "a quantised weight is not trained";
  const auto depth = [type](OpShape s) { return s.extra * block_layout(type).elements; };
  c.flops = [=](OpShape s) { return 2.0 * static_cast<double>(s.rows * s.width * depth(s)); };
  c.bytes = [=](OpShape s) {
    return static_cast<double>(s.width * s.extra * block_layout(type).bytes);
  };
  c.inputs = [=](OpShape s, DType dtype, Random& r) {
    return Tensors{random_normal({s.rows, depth(s)}, DType::kFloat32, r).to(dtype),
                   random_blocks(type, s.width, s.extra, r).bytes,
                   random_normal({s.width}, DType::kFloat32, r)};
  };
  c.forward = [=](OpShape s, const Tensors& in) {
    const ops::QuantizedWeight w(BlockTensor{type, {s.width, depth(s)}, in[1]});
    return Tensors{ops::quantized_linear(in[0].to(DType::kFloat32), w, in[2])};
  };
  return c;
}

// The same with plain numbers; K is `extra`.
OpCase stored_case(DType stored) {
  OpCase c = quantized_case(BlockType::kQ80);
  c.variant = dtype_name(stored);
  c.parity = {{1, 2, 1},    {1, 33, 16}, {2, 7, 31},  {3, 8, 33},
              {4, 33, 100}, {8, 5, 64},  {9, 70, 65}, {150, 66, 40}};
  c.gradient = {5, 6, 40};
  c.speed = {1, 4096, 4096};
  c.flops = [](OpShape s) { return 2.0 * static_cast<double>(s.rows * s.width * s.extra); };
  c.bytes = [=](OpShape s) { return static_cast<double>(s.width * s.extra * 2); };
  c.inputs = [=](OpShape s, DType dtype, Random& r) {
    return Tensors{random_normal({s.rows, s.extra}, DType::kFloat32, r).to(dtype),
                   random_normal({s.width, s.extra}, DType::kFloat32, r).to(stored),
                   random_normal({s.width}, DType::kFloat32, r)};
  };
  c.forward = [](OpShape, const Tensors& in) {
    return Tensors{
        ops::quantized_linear(in[0].to(DType::kFloat32), ops::QuantizedWeight(in[1]), in[2])};
  };
  return c;
}

OpCase quantized_embedding_case() {
  OpCase c = quantized_case(BlockType::kQ41);
  c.op = "quantized_embedding";
  c.no_gradient = "a quantised table is not trained";
  c.tolerance = 1e-6;
  c.forward = [](OpShape s, const Tensors& in) {
    const ops::QuantizedWeight w(BlockTensor{BlockType::kQ41, {s.width, s.extra * 32}, in[1]});
    return Tensors{ops::quantized_embedding(w, some_ids(s.rows, s.width))};
  };
  return c;
}

OpCase dequantize_case(BlockType type) {
  OpCase c = quantized_case(type);
  c.op = "dequantize";
  c.no_gradient = "a change of the stored type alone";
  c.tolerance = 1e-6;
  c.forward = [=](OpShape s, const Tensors& in) {
    return Tensors{ops::dequantize(
        BlockTensor{type, {s.width, s.extra * block_layout(type).elements}, in[1]})};
  };
  return c;
}

}  // namespace

const std::vector<OpCase>& op_cases() {
  static const std::vector<OpCase> cases = [] {
    std::vector<OpCase> all;
    for (const Activation a : {Activation::kNone, Activation::kRelu, Activation::kGelu,
                               Activation::kGeluTanh, Activation::kSilu, Activation::kSwiglu,
                               Activation::kGeglu, Activation::kTanh, Activation::kGegluTanh}) {
      all.push_back(linear_case(a));
      all.push_back(activation_case(a));
    }
    all.push_back(norm_case(NormKind::kLayer, true));
    all.push_back(norm_case(NormKind::kLayer, false));
    all.push_back(norm_case(NormKind::kRms, false));
    all.push_back(add_norm_case(NormKind::kLayer));
    all.push_back(add_norm_case(NormKind::kRms));
    all.push_back(dropout_case());
    all.push_back(add_dropout_case());
    all.push_back(add_case(false));
    all.push_back(add_case(true));
    all.push_back(embedding_case());
    all.push_back(sinusoid_case());
    all.push_back(rope_case(ops::RopePairing::kHalfSplit));
    all.push_back(rope_case(ops::RopePairing::kInterleaved));
    all.push_back(softmax_case());
    all.push_back(cross_entropy_case(0));
    all.push_back(cross_entropy_case(0.1));
    for (const ops::Pooling p :
         {ops::Pooling::kFirst, ops::Pooling::kMean, ops::Pooling::kMax, ops::Pooling::kLast})
      all.push_back(pool_case(p));
    all.push_back(sum_of_squares_case());
    all.push_back(find_non_finite_case());
    all.push_back(adamw_case());
    all.push_back(sgd_case());
    for (const BlockType type : kAllBlocks) {
      all.push_back(quantized_case(type));
      all.push_back(dequantize_case(type));
    }
    for (const DType dtype : {DType::kFloat32, DType::kBFloat16, DType::kFloat16})
      all.push_back(stored_case(dtype));
    all.push_back(quantized_embedding_case());
    for (OpCase& c : attention_op_cases()) all.push_back(std::move(c));
    return all;
  }();
  return cases;
}

}  // namespace qkv::testing
