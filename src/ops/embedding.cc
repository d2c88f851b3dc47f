#include "ops/embedding.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "kernels/vector.h"
#include "ops/common.h"

namespace qkv::inline v0::ops {
namespace {

// Rows of a table that one work item of the gradient touches.
constexpr std::int64_t kRowsPerItem = 64;

void check_ids(std::span<const std::int32_t> ids, std::int64_t count, const char* where) {
  for (std::size_t t = 0; t < ids.size(); ++t) {
    if (ids[t] < 0 || ids[t] >= count)
      fail<ArgumentError>(where, "expected ids in [0, {}), got {} at position {}", count, ids[t],
                          t);
  }
}

}  // namespace

Tensor embedding(std::span<const std::int32_t> ids, const Tensor& table, double scale,
                 const char* where) {
  check_matrix(table, where, "table");
  check_ids(ids, table.dim(0), where);
  const std::int64_t rows = static_cast<std::int64_t>(ids.size()), width = table.dim(1);
  Tensor y = Tensor::empty({rows, width}, table.dtype());
  dispatch_floating(table.dtype(), where, [&]<class T>(T) {
    const auto& kernels = kernels::vector_kernels<T>();
    parallel_chunks(rows, kChunkRows, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t t = begin; t < end; ++t) {
        const std::int64_t id = ids[static_cast<std::size_t>(t)];
        kernels.scale(table.data<T>() + id * width, y.data<T>() + t * width, width, scale);
      }
    });
  });
  return y;
}

void embedding_backward(const Tensor& dy, std::span<const std::int32_t> ids, const Tensor& dtable,
                        double scale, Into into) {
  const char* where = "embedding_backward";
  check_matrix(dtable, where, "dtable");
  check_ids(ids, dtable.dim(0), where);
  const std::int64_t rows = static_cast<std::int64_t>(ids.size()), width = dtable.dim(1);
  check_like(dy, {rows, width}, dtable.dtype(), where, "dy");
  if (into == Into::kOverwrite) dtable.fill(0);
  // Tokens by id, those of one id in their order: a work item owns all tokens of its rows of the
  // table.
  std::vector<std::int32_t> order(ids.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](std::int32_t a, std::int32_t b) {
    return ids[static_cast<std::size_t>(a)] < ids[static_cast<std::size_t>(b)];
  });
  std::vector<std::size_t> firsts;  // where each distinct id starts in `order`
  for (std::size_t i = 0; i < order.size(); ++i) {
    if (i == 0 ||
        ids[static_cast<std::size_t>(order[i])] != ids[static_cast<std::size_t>(order[i - 1])])
      firsts.push_back(i);
  }
  const auto distinct = static_cast<std::int64_t>(firsts.size());
  firsts.push_back(order.size());
  dispatch_floating(dtable.dtype(), where, [&]<class T>(T) {
    const auto& kernels = kernels::vector_kernels<T>();
    parallel_chunks(distinct, kRowsPerItem, [&](std::int64_t begin, std::int64_t end) {
      for (std::size_t i = firsts[static_cast<std::size_t>(begin)];
           i < firsts[static_cast<std::size_t>(end)]; ++i) {
        const std::int64_t token = order[i], id = ids[static_cast<std::size_t>(order[i])];
        kernels.add_scaled(dy.data<T>() + token * width, dtable.data<T>() + id * width, width,
                           scale);
      }
    });
  });
}

Tensor sinusoidal_table(std::int64_t count, std::int64_t width, DType dtype) {
  require<ArgumentError>(count >= 0 && width >= 1, "sinusoidal_table",
                         "expected count >= 0 and width >= 1, got {} and {}", count, width);
  Tensor table = Tensor::empty({count, width}, dtype);
  dispatch_floating(dtype, "sinusoidal_table", [&]<class T>(T) {
    T* out = table.data<T>();
    for (std::int64_t p = 0; p < count; ++p) {
      for (std::int64_t j = 0; j < width; ++j) {
        const double frequency =
            std::pow(10000.0, -static_cast<double>(j - j % 2) / static_cast<double>(width));
        const double angle = static_cast<double>(p) * frequency;
        out[p * width + j] = static_cast<T>(j % 2 == 0 ? std::sin(angle) : std::cos(angle));
      }
    }
  });
  return table;
}

}  // namespace qkv::inline v0::ops
