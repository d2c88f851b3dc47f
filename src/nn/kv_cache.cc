#include "nn/kv_cache.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/check.h"
#include "base/memory.h"

namespace qkv::inline v0::nn {
namespace {

constexpr const char* kWhere = "kv_cache";
constexpr std::int64_t kLeastRows = 64;

Tensor grown(const Tensor& old, std::int64_t used, const Shape& shape, DType dtype) {
  const MemoryScope scope(MemoryKind::kActivations);
  Tensor bigger = Tensor::empty(shape, dtype);
  if (used > 0) bigger.narrow(0, 0, used).copy_from(old.narrow(0, 0, used));
  return bigger;
}

void move_to_front(const Tensor& rows, std::int64_t from, std::int64_t count) {
  const std::size_t row = static_cast<std::size_t>(rows.stride(0)) * dtype_size(rows.dtype());
  auto* bytes = static_cast<char*>(rows.raw());
  std::memmove(bytes, bytes + static_cast<std::size_t>(from) * row,
               static_cast<std::size_t>(count) * row);
}

}  // namespace

KvCache::KvCache(std::vector<Layer> layers, DType dtype)
    : layers_(std::move(layers)), dtype_(dtype) {
  for (const Layer& layer : layers_)
    require<ArgumentError>(layer.kv_heads >= 1 && layer.head_size >= 1 && layer.window >= 0, kWhere,
                           "expected heads and head sizes >= 1 and windows >= 0, got {}, {} and {}",
                           layer.kv_heads, layer.head_size, layer.window);
}

KvCache::Stream& KvCache::stream(std::int64_t number) {
  const auto it = streams_.find(number);
  require<ArgumentError>(it != streams_.end(), kWhere, "expected an open stream, got number {}",
                         number);
  return it->second;
}

std::int64_t KvCache::open() {
  streams_[next_].layers.resize(layers_.size());
  return next_++;
}

std::int64_t KvCache::fork(std::int64_t number) {
  const Stream& parent = stream(number);
  Stream copy;
  copy.length = parent.length;
  for (std::size_t i = 0; i < layers_.size(); ++i) {
    const Buffer& from = parent.layers[i];
    Buffer to;
    to.dropped = from.dropped;
    if (from.k.defined()) {
      const std::int64_t used = parent.length - from.dropped;
      to.k = grown(from.k, used, from.k.shape(), dtype_);
      to.v = grown(from.v, used, from.v.shape(), dtype_);
    }
    copy.layers.push_back(std::move(to));
  }
  streams_[next_] = std::move(copy);
  return next_++;
}

void KvCache::close(std::int64_t number) {
  stream(number);
  streams_.erase(number);
}

std::int64_t KvCache::length(std::int64_t number) const {
  const auto it = streams_.find(number);
  require<ArgumentError>(it != streams_.end(), kWhere, "expected an open stream, got number {}",
                         number);
  return it->second.length;
}

std::size_t KvCache::bytes() const {
  std::size_t total = 0;
  for (const auto& [number, s] : streams_)
    for (const Buffer& buffer : s.layers)
      if (buffer.k.defined()) total += buffer.k.nbytes() + buffer.v.nbytes();
  return total;
}

void KvCache::begin(std::vector<std::int64_t> streams) {
  for (const std::int64_t number : streams) {
    stream(number);
    require<ArgumentError>(std::count(streams.begin(), streams.end(), number) == 1, kWhere,
                           "expected every stream once in a pass, got number {} twice", number);
  }
  pass_ = std::move(streams);
}

void KvCache::grow(Buffer& buffer, const Layer& layer, std::int64_t used,
                   std::int64_t needed) const {
  const std::int64_t capacity = buffer.k.defined() ? buffer.k.dim(0) : 0;
  if (needed <= capacity) return;
  const Shape shape(
      {std::max({needed, 2 * capacity, kLeastRows}), layer.kv_heads, layer.head_size});
  buffer.k = grown(buffer.k, used, shape, dtype_);
  buffer.v = grown(buffer.v, used, shape, dtype_);
}

KvCache::Keys KvCache::append(std::int64_t layer, std::int64_t b, const Tensor& k,
                              const Tensor& v) {
  require<ArgumentError>(
      layer >= 0 && layer < num_layers() && b >= 0 && b < static_cast<std::int64_t>(pass_.size()),
      kWhere, "expected a layer below {} and a sequence below {}, got {} and {}", num_layers(),
      pass_.size(), layer, b);
  const Layer& sizes = layers_[static_cast<std::size_t>(layer)];
  require<ShapeError>(k.rank() == 3 && k.dim(1) == sizes.kv_heads && k.dim(2) == sizes.head_size &&
                          k.shape() == v.shape() && k.dtype() == dtype_ && v.dtype() == dtype_,
                      kWhere, "expected k and v {} [N, {}, {}], got {} {} and {}",
                      dtype_name(dtype_), sizes.kv_heads, sizes.head_size, dtype_name(k.dtype()),
                      k.shape().str(), v.shape().str());
  Stream& s = stream(pass_[static_cast<std::size_t>(b)]);
  Buffer& buffer = s.layers[static_cast<std::size_t>(layer)];
  const std::int64_t used = s.length - buffer.dropped, count = used + k.dim(0);
  grow(buffer, sizes, used, count);
  buffer.k.narrow(0, used, k.dim(0)).copy_from(k);
  buffer.v.narrow(0, used, v.dim(0)).copy_from(v);
  return {buffer.k.narrow(0, 0, count), buffer.v.narrow(0, 0, count)};
}

void KvCache::commit(std::span<const std::int64_t> lengths) {
  require<ArgumentError>(lengths.size() == pass_.size(), kWhere,
                         "expected the lengths of {} sequences, got {}", pass_.size(),
                         lengths.size());
  for (std::size_t b = 0; b < pass_.size(); ++b) {
    Stream& s = stream(pass_[b]);
    s.length += lengths[b];
    drop_unseen(s);
  }
  pass_.clear();
}

// The next query sees window - 1 keys before it. Rows move only once as many are dropped as stay,
// so that a token is moved about once.
void KvCache::drop_unseen(Stream& s) const {
  for (std::size_t i = 0; i < layers_.size(); ++i) {
    if (layers_[i].window == 0) continue;
    Buffer& buffer = s.layers[i];
    const std::int64_t keep = layers_[i].window - 1, used = s.length - buffer.dropped;
    const std::int64_t unseen = used - keep;
    if (unseen < std::max(keep, kLeastRows)) continue;
    move_to_front(buffer.k, unseen, keep);
    move_to_front(buffer.v, unseen, keep);
    buffer.dropped += unseen;
  }
}

}  // namespace qkv::inline v0::nn
