// Products against the definition, for shapes, strides and lengths of every kind.
#include <cmath>
#include <cstring>
#include <limits>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "qkv/threads.h"

#include "base/random.h"
#include "kernels/packed_matrix.h"
#include "kernels/registry.h"

using namespace qkv;
using kernels::PackedMatrix;

namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

// A matrix with `stride` elements between rows; the gaps are NaN.
struct Matrix {
  std::int64_t rows, columns, stride;
  std::vector<float> data;
  Matrix(std::int64_t r, std::int64_t c, std::int64_t gap, std::uint64_t seed)
      : rows(r), columns(c), stride(c + gap), data(static_cast<std::size_t>(r * stride), kNan) {
    Random random(seed);
    for (std::int64_t i = 0; i < rows; ++i)
      for (std::int64_t j = 0; j < columns; ++j) at(i, j) = static_cast<float>(random.normal());
  }
  float& at(std::int64_t i, std::int64_t j) {
    return data[static_cast<std::size_t>(i * stride + j)];
  }
  float at(std::int64_t i, std::int64_t j) const {
    return data[static_cast<std::size_t>(i * stride + j)];
  }
};

struct Shape3 {
  std::int64_t m, n, k;
};

// |error| <= k 2^-24 sum |a||b|, with the sum in double beside it.
void expect_product(float got, double right, double magnitude, std::int64_t k) {
  ASSERT_LE(std::fabs(static_cast<double>(got) - right),
            (static_cast<double>(k) + 2) * 0x1p-24 * magnitude + 1e-30);
}

}  // namespace

TEST(PackedMatrix, products_agree_with_the_definition) {
  for (const Shape3 s : {Shape3{1, 1, 1},
                         {3, 5, 7},
                         {60, 77, 256},
                         {257, 300, 33},
                         {511, 256, 64},
                         {5, 513, 100},
                         {13, 1100, 700}}) {
    for (const bool transpose : {false, true}) {
      const Matrix a(s.m, s.k, 3, 1), b(transpose ? s.n : s.k, transpose ? s.k : s.n, 2, 2);
      const Matrix bias(1, s.n, 0, 4);
      Matrix c(s.m, s.n, 0, 3);
      const PackedMatrix<float> packed(b.data.data(), b.stride, transpose, s.k, s.n);
      packed.multiply(s.m, a.data.data(), a.stride, bias.data.data(), c.data.data());
      for (std::int64_t i = 0; i < s.m; ++i) {
        for (std::int64_t j = 0; j < s.n; ++j) {
          double right = static_cast<double>(bias.at(0, j)), magnitude = std::fabs(right);
          for (std::int64_t k = 0; k < s.k; ++k) {
            const double term = static_cast<double>(a.at(i, k)) *
                                static_cast<double>(transpose ? b.at(j, k) : b.at(k, j));
            right += term;
            magnitude += std::fabs(term);
          }
          expect_product(c.at(i, j), right, magnitude, s.k);
        }
      }
    }
  }
}

// A row's bits must not depend on the rows beside it: then neither do a text's on its batch.
TEST(PackedMatrix, rows_do_not_depend_on_each_other) {
  for (const Shape3 s : {Shape3{256, 256, 256}, {256, 300, 1024}, {256, 77, 40}}) {
    const Matrix a(s.m, s.k, 0, 1), b(s.n, s.k, 0, 2);
    const PackedMatrix<float> packed(b.data.data(), s.k, true, s.k, s.n);
    Matrix whole(s.m, s.n, 0, 3), part(s.m, s.n, 0, 3);
    packed.multiply(s.m, a.data.data(), s.k, nullptr, whole.data.data());
    for (const std::int64_t rows : {1, 2, 3, 5, 31, 64, 100, 255}) {
      packed.multiply(rows, a.data.data(), s.k, nullptr, part.data.data());
      EXPECT_EQ(std::memcmp(part.data.data(), whole.data.data(),
                            static_cast<std::size_t>(rows * s.n) * sizeof(float)),
                0)
          << rows << " rows";
    }
  }
}

TEST(WeightGradient, agrees_with_the_definition) {
  for (const Shape3 s : {Shape3{1, 1, 1},
                         {31, 7, 5},
                         {32, 130, 20},
                         {33, 64, 600},
                         {513, 77, 64},
                         {1000, 260, 40},
                         {2077, 33, 17}}) {
    const Matrix dy(s.m, s.n, 4, 1), x(s.m, s.k, 1, 2);
    for (const bool accumulate : {false, true}) {
      Matrix dw(s.n, s.k, 0, 3);
      const Matrix before = dw;
      kernels::weight_gradient({.t = s.m,
                                .n = s.n,
                                .k = s.k,
                                .dy = dy.data.data(),
                                .ldy = dy.stride,
                                .x = x.data.data(),
                                .ldx = x.stride,
                                .dw = dw.data.data(),
                                .accumulate = accumulate});
      for (std::int64_t i = 0; i < s.n; ++i) {
        for (std::int64_t j = 0; j < s.k; ++j) {
          double right = accumulate ? static_cast<double>(before.at(i, j)) : 0.0,
                 magnitude = std::fabs(right);
          for (std::int64_t t = 0; t < s.m; ++t) {
            const double term = static_cast<double>(dy.at(t, i)) * static_cast<double>(x.at(t, j));
            right += term;
            magnitude += std::fabs(term);
          }
          expect_product(dw.at(i, j), right, magnitude, s.m);
        }
      }
    }
  }
}

TEST(WeightGradient, no_tokens_give_zeros) {
  std::vector<float> dw(6, 5.0f);
  kernels::weight_gradient(kernels::WeightGradient<float>{.t = 0,
                                                          .n = 2,
                                                          .k = 3,
                                                          .dy = nullptr,
                                                          .ldy = 2,
                                                          .x = nullptr,
                                                          .ldx = 3,
                                                          .dw = dw.data(),
                                                          .accumulate = false});
  for (const float v : dw) EXPECT_EQ(v, 0.0f);
}

TEST(WeightGradient, bits_do_not_depend_on_threads) {
  const Matrix dy(1500, 300, 0, 1), x(1500, 200, 0, 2);
  const auto run = [&](int threads) {
    set_num_threads(threads);
    std::vector<float> dw(300 * 200);
    kernels::weight_gradient({.t = 1500,
                              .n = 300,
                              .k = 200,
                              .dy = dy.data.data(),
                              .ldy = 300,
                              .x = x.data.data(),
                              .ldx = 200,
                              .dw = dw.data(),
                              .accumulate = false});
    return dw;
  };
  const int before = num_threads();
  const std::vector<float> one = run(1);
  EXPECT_EQ(one, run(2));
  EXPECT_EQ(one, run(4));
  set_num_threads(before);
}

// Several callers at once, each with its own shapes, as several contexts on one model do.
TEST(PackedMatrix, takes_concurrent_callers) {
  const Matrix b(64, 48, 0, 2);
  const PackedMatrix<float> packed(b.data.data(), 48, true, 48, 64);
  std::vector<std::vector<float>> results(4);
  std::vector<std::thread> threads;
  for (std::size_t t = 0; t < results.size(); ++t) {
    threads.emplace_back([&, t] {
      const Matrix a(40, 48, 0, 1);
      results[t].resize(40 * 64);
      for (int repeat = 0; repeat < 20; ++repeat)
        packed.multiply(40 - repeat, a.data.data(), 48, nullptr, results[t].data());
      packed.multiply(40, a.data.data(), 48, nullptr, results[t].data());
    });
  }
  for (std::thread& t : threads) t.join();
  for (std::size_t t = 1; t < results.size(); ++t) EXPECT_EQ(results[t], results[0]);
}
