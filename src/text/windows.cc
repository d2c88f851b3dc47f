// Truncation and padding: settings of a file, windows, and what padding puts in.
#include <algorithm>

#include "base/check.h"
#include "text/json_fields.h"
#include "text/pipeline.h"

namespace qkv::inline v0::text {
namespace {

bool is_left(const Json& json) {
  const std::string direction = string_or(json, "direction", "Right");
  require<UnsupportedError>(direction == "Left" || direction == "Right", "tokenizer",
                            "expected the direction Left or Right, got '{}'", direction);
  return direction == "Left";
}

std::int32_t small_id(const Json& json, std::string_view key) {
  const std::int64_t id = int_or(json, key, 0);
  require<ModelError>(id >= 0 && id < (std::int64_t{1} << 31), "tokenizer",
                      "expected {} from 0, got {}", key, id);
  return static_cast<std::int32_t>(id);
}

}  // namespace

std::optional<Truncation> parse_truncation(const Json& json) {
  if (json.is_null()) return std::nullopt;
  Truncation setting;
  setting.max_length = json.at("max_length").as_int();
  setting.stride = int_or(json, "stride", 0);
  setting.left = is_left(json);
  const std::string strategy = string_or(json, "strategy", "LongestFirst");
  if (strategy == "OnlyFirst") {
    setting.strategy = TruncationStrategy::kOnlyFirst;
  } else if (strategy == "OnlySecond") {
    setting.strategy = TruncationStrategy::kOnlySecond;
  } else {
    require<UnsupportedError>(
        strategy == "LongestFirst", "tokenizer",
        "expected the strategy LongestFirst, OnlyFirst or OnlySecond, got '{}'", strategy);
  }
  return setting;
}

std::optional<Padding> parse_padding(const Json& json) {
  if (json.is_null()) return std::nullopt;
  Padding setting;
  const Json& strategy = json.at("strategy");
  if (const Json* fixed = strategy.find("Fixed")) {
    setting.length = fixed->as_int();
    require<ModelError>(setting.length >= 0, "tokenizer", "expected a length from 0, got {}",
                        setting.length);
  } else {
    require<UnsupportedError>(strategy.as_string() == "BatchLongest", "tokenizer",
                              "expected padding of strategy Fixed or BatchLongest, got {}",
                              strategy.dump());
  }
  setting.multiple_of = int_or(json, "pad_to_multiple_of", 0);
  setting.left = is_left(json);
  setting.id = small_id(json, "pad_id");
  setting.type_id = small_id(json, "pad_type_id");
  setting.token = string_or(json, "pad_token", "[PAD]");
  return setting;
}

std::vector<std::pair<std::size_t, std::size_t>> windows_of(std::size_t count, std::size_t room,
                                                            std::size_t stride, bool left) {
  if (count <= room) return {{0, count}};
  if (room == 0) return {{0, 0}};
  require<ArgumentError>(stride < room, "tokenizer",
                         "expected a stride below the {} tokens that are kept, got {}", room,
                         stride);
  std::vector<std::pair<std::size_t, std::size_t>> windows;
  const std::size_t step = room - stride;
  for (std::size_t at = 0;; at += step) {
    const std::size_t end = std::min(at + room, count);
    windows.emplace_back(left ? count - end : at, left ? count - at : end);
    if (end == count) return windows;
  }
}

std::size_t padded_length(std::size_t length, const Padding& padding) {
  constexpr std::int64_t kMost = std::int64_t{1} << 31;
  const bool sound = padding.length >= 0 && padding.length <= kMost && padding.multiple_of >= 0 &&
                     padding.multiple_of <= kMost;
  require<ArgumentError>(sound, "tokenizer",
                         "expected a padding length and multiple from 0 to {}, got {} and {}",
                         kMost, padding.length, padding.multiple_of);
  const auto fixed = static_cast<std::size_t>(padding.length);
  const auto multiple = static_cast<std::size_t>(padding.multiple_of);
  if (fixed > 0) length = fixed;
  if (multiple > 0) length = (length + multiple - 1) / multiple * multiple;
  return length;
}

void pad_to(Encoding& encoding, std::size_t length, const Padding& padding, bool with_pieces) {
  if (encoding.ids.size() >= length) return;
  const std::size_t count = length - encoding.ids.size();
  const auto pad = [&](auto& list, const auto& value) {
    list.insert(padding.left ? list.begin() : list.end(), count, value);
  };
  pad(encoding.ids, padding.id);
  pad(encoding.type_ids, padding.type_id);
  pad(encoding.sequence_ids, std::int32_t{-1});
  pad(encoding.attention_mask, std::int32_t{0});
  if (!with_pieces) return;
  pad(encoding.tokens, padding.token);
  pad(encoding.offsets, std::pair<std::int64_t, std::int64_t>{0, 0});
}

}  // namespace qkv::inline v0::text
