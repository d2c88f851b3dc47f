// Keys and values of tokens that have been through a model: what decoding attends to.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include "qkv/tensor.h"

namespace qkv::inline v0::nn {

// Streams of tokens, each with its own keys and values per layer, contiguous and growable. A layer
// with a window keeps the keys that a later query can still see, and now and then drops the others.
//
// A forward pass over a batch whose sequences extend streams: begin(), one append() for each layer
// and sequence, commit(). Without commit() - an error on the way - the streams stay as they were.
// Not thread-safe.
class KvCache {
 public:
  struct Layer {
    std::int64_t kv_heads = 1, head_size = 1;
    std::int64_t window = 0;  // keys at distances < window are seen; 0: all
  };
  // dtype: of the keys and values that append() takes.
  explicit KvCache(std::vector<Layer> layers, DType dtype = DType::kFloat32);

  std::int64_t open();                             // a new stream without tokens; its number
  std::int64_t fork(std::int64_t stream);          // a copy that goes on by itself
  void close(std::int64_t stream);                 // gives the memory back
  std::int64_t length(std::int64_t stream) const;  // tokens, dropped ones too
  std::int64_t num_layers() const { return static_cast<std::int64_t>(layers_.size()); }
  std::size_t bytes() const;  // of all streams' buffers

  // The next pass: its sequence b extends streams[b], every stream at most once. ArgumentError for
  // a stream that is not open.
  void begin(std::vector<std::int64_t> streams);
  struct Keys {
    Tensor k, v;  // [S, Hkv, D], the last rows are the new ones
  };
  // Keys and values k, v: [N, Hkv, D] (any strides over tokens and heads) of sequence b in `layer`.
  // The result is valid until the next call for that stream and layer.
  Keys append(std::int64_t layer, std::int64_t b, const Tensor& k, const Tensor& v);
  // Takes the pass over: sequence b had lengths[b] tokens.
  void commit(std::span<const std::int64_t> lengths);

 private:
  struct Buffer {
    Tensor k, v;               // [capacity, Hkv, D]
    std::int64_t dropped = 0;  // tokens in front of row 0
  };
  struct Stream {
    std::vector<Buffer> layers;
    std::int64_t length = 0;
  };
  Stream& stream(std::int64_t number);
  void grow(Buffer& buffer, const Layer& layer, std::int64_t used, std::int64_t needed) const;
  void drop_unseen(Stream& stream) const;

  std::vector<Layer> layers_;
  DType dtype_;
  std::map<std::int64_t, Stream> streams_;
  std::int64_t next_ = 0;
  std::vector<std::int64_t> pass_;
};

}  // namespace qkv::inline v0::nn
