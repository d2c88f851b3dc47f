#include "ops/rope.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <mutex>
#include <tuple>

#include "kernels/vector.h"
#include "ops/common.h"

namespace qkv::inline v0::ops {
namespace {

// Positions below this are looked up in a table that is kept; others are computed where they are
// used.
constexpr std::int64_t kTablePositions = 32768;

// Elements of a row of angles: cosines, then sines, as kernels::Rotation wants them.
std::int64_t row_width(std::int64_t half, RopePairing pairing) {
  return pairing == RopePairing::kInterleaved ? 4 * half : 2 * half;
}

// The angles position * base^(-2 i / (2 half)) for i < half, formed in double: exact enough for any
// position.
template <class T>
void fill_angles(T* row, std::int64_t position, std::int64_t half, const RopeOptions& options) {
  T* sines = row + row_width(half, options.pairing) / 2;
  for (std::int64_t i = 0; i < half; ++i) {
    const double frequency =
        std::pow(options.base, -static_cast<double>(i) / static_cast<double>(half));
    const double angle = static_cast<double>(position) * frequency;
    const T c = static_cast<T>(std::cos(angle)), s = static_cast<T>(std::sin(angle));
    if (options.pairing == RopePairing::kInterleaved) {
      row[2 * i] = row[2 * i + 1] = c;
      sines[2 * i] = -s;
      sines[2 * i + 1] = s;
    } else {
      row[i] = c;
      sines[i] = s;
    }
  }
}

// The rows 0 .. count - 1 of the angles, kept for the process and grown by doubling. Thread-safe.
template <class T>
std::shared_ptr<const std::vector<T>> angle_table(std::int64_t count, std::int64_t half,
                                                  const RopeOptions& options) {
  static std::mutex mutex;
  static std::map<std::tuple<std::int64_t, double, RopePairing>,
                  std::shared_ptr<const std::vector<T>>>
      tables;
  const std::lock_guard lock(mutex);
  auto& table = tables[{half, options.base, options.pairing}];
  const auto width = static_cast<std::size_t>(row_width(half, options.pairing));
  if (table != nullptr && table->size() >= static_cast<std::size_t>(count) * width) return table;
  const std::size_t known = table != nullptr ? table->size() / width : 0;
  const auto rows =
      std::min(std::max<std::size_t>({static_cast<std::size_t>(count), 2 * known, 64}),
               static_cast<std::size_t>(kTablePositions));
  auto grown = std::make_shared<std::vector<T>>(rows * width);
  if (table != nullptr) std::copy(table->begin(), table->end(), grown->begin());
  for (std::size_t p = known; p < rows; ++p)
    fill_angles(grown->data() + p * width, static_cast<std::int64_t>(p), half, options);
  table = std::move(grown);
  return table;
}

}  // namespace

void rope_inplace(const Tensor& x, std::span<const std::int32_t> positions,
                  const RopeOptions& options, bool inverse) {
  const char* where = "rope";
  require<ShapeError>(x.defined() && x.rank() == 3 && (x.dim(2) <= 1 || x.stride(2) == 1), where,
                      "expected x [T, H, D] with contiguous channels, got shape {}",
                      x.defined() ? x.shape().str() : "none");
  require<ShapeError>(x.dim(2) % 2 == 0, where, "expected an even head size, got {}", x.dim(2));
  require<ShapeError>(static_cast<std::int64_t>(positions.size()) == x.dim(0), where,
                      "expected {} positions, got {}", x.dim(0), positions.size());
  require<ArgumentError>(options.base > 0, where, "expected a base above 0, got {}", options.base);
  const std::int64_t half = x.dim(2) / 2;
  std::int64_t highest = -1;
  for (std::size_t t = 0; t < positions.size(); ++t) {
    require<ArgumentError>(positions[t] >= 0, where,
                           "expected positions of at least 0, got {} at token {}", positions[t], t);
    if (positions[t] < kTablePositions) highest = std::max<std::int64_t>(highest, positions[t]);
  }
  dispatch_floating(x.dtype(), where, [&]<class T>(T) {
    const auto& kernels = kernels::vector_kernels<T>();
    const auto table = angle_table<T>(highest + 1, half, options);
    const std::int64_t width = row_width(half, options.pairing);
    parallel_chunks(x.dim(0), kChunkRows, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t t = begin; t < end; ++t) {
        const std::int64_t position = positions[static_cast<std::size_t>(t)];
        const T* angles = table->data() + position * width;
        if (position >= kTablePositions) {
          T* row = thread_scratch_of<T>(static_cast<std::size_t>(width), kScratchSlot);
          fill_angles(row, position, half, options);
          angles = row;
        }
        kernels.rotate(x.data<T>() + t * x.stride(0),
                       {.cosines = angles,
                        .sines = angles + width / 2,
                        .half = half,
                        .heads = x.dim(1),
                        .head_stride = x.stride(1),
                        .interleaved = options.pairing == RopePairing::kInterleaved,
                        .sign = inverse ? -1.0 : 1.0});
      }
    });
  });
}

}  // namespace qkv::inline v0::ops
