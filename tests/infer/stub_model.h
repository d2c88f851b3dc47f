// A model whose logits a test writes down.
#pragma once

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/check.h"
#include "infer/language_model.h"

namespace qkv::testing {

// Logits of what follows a stream's tokens.
using Script = std::function<std::vector<float>(const std::vector<std::int32_t>& tokens)>;

class StubModel : public infer::LanguageModel {
 public:
  StubModel(Facts facts, Script script) : facts_(std::move(facts)), script_(std::move(script)) {}
  const Facts& facts() const override { return facts_; }
  std::unique_ptr<infer::DecodingSession> start() const override;

  struct Counts {
    std::int64_t tokens = 0, open = 0, most_open = 0, calls = 0;
  };
  mutable Counts counts;

 private:
  friend class StubSession;
  Facts facts_;
  Script script_;
};

class StubSession : public infer::DecodingSession {
 public:
  explicit StubSession(const StubModel& model) : model_(model) {}
  ~StubSession() override { model_.counts.open -= static_cast<std::int64_t>(streams_.size()); }
  std::int64_t open() override { return add({}); }
  std::int64_t fork(std::int64_t stream) override { return add(streams_.at(stream)); }
  void close(std::int64_t stream) override {
    streams_.erase(stream);
    --model_.counts.open;
  }
  std::int64_t length(std::int64_t stream) const override {
    return static_cast<std::int64_t>(streams_.at(stream).size());
  }
  Tensor append(std::span<const infer::StreamTokens> parts, infer::LogitsOf which) override {
    ++model_.counts.calls;
    std::vector<float> rows;
    std::int64_t count = 0;
    for (const infer::StreamTokens& part : parts) {
      std::vector<std::int32_t>& stream = streams_.at(part.stream);
      for (std::size_t i = 0; i < part.ids.size(); ++i) {
        stream.push_back(part.ids[i]);
        ++model_.counts.tokens;
        if (which == infer::LogitsOf::kLastTokens && i + 1 < part.ids.size()) continue;
        const std::vector<float> row = model_.script_(stream);
        rows.insert(rows.end(), row.begin(), row.end());
        ++count;
      }
      require<InternalError>(
          !model_.facts_.context || length(part.stream) <= *model_.facts_.context, "stub",
          "a stream is longer than the context");
    }
    return Tensor::from<float>(rows, {count, static_cast<std::int64_t>(rows.size()) / count});
  }

 private:
  std::int64_t add(std::vector<std::int32_t> tokens) {
    streams_[next_] = std::move(tokens);
    ++model_.counts.open;
    model_.counts.most_open = std::max(model_.counts.most_open, model_.counts.open);
    return next_++;
  }
  const StubModel& model_;
  std::map<std::int64_t, std::vector<std::int32_t>> streams_;
  std::int64_t next_ = 0;
};

inline std::unique_ptr<infer::DecodingSession> StubModel::start() const {
  return std::make_unique<StubSession>(*this);
}

// Logits that are 0 for `id` and -9 elsewhere.
inline std::vector<float> pointing_at(std::int32_t id, std::size_t width) {
  std::vector<float> logits(width, -9);
  logits[static_cast<std::size_t>(id)] = 0;
  return logits;
}

}  // namespace qkv::testing
