#include "infer/text_stream.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace qkv::inline v0::infer {
namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";
constexpr std::size_t kWindow = 4;

struct Unit {
  std::size_t bytes;  // of a character, or of a part that no character begins with
  enum class Kind { kCharacter, kBad, kPrefix } kind;
};

// Bytes 2.. of a character in [low, high]: the second byte's range closes overlong forms,
// surrogates and what lies beyond U+10FFFF (Unicode 15, table 3-7).
Unit next_unit(std::string_view text) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned lead = byte(0);
  if (lead < 0x80) return {1, Unit::Kind::kCharacter};
  if (lead < 0xC2 || lead > 0xF4) return {1, Unit::Kind::kBad};
  const std::size_t length = lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
  const unsigned low = lead == 0xE0 ? 0xA0 : lead == 0xF0 ? 0x90 : 0x80;
  const unsigned high = lead == 0xED ? 0x9F : lead == 0xF4 ? 0x8F : 0xBF;
  for (std::size_t i = 1; i < length; ++i) {
    if (i == text.size()) return {i, Unit::Kind::kPrefix};
    const bool fits = i == 1 ? byte(1) >= low && byte(1) <= high : (byte(i) & 0xC0u) == 0x80u;
    if (!fits) return {i, Unit::Kind::kBad};
  }
  return {length, Unit::Kind::kCharacter};
}

// Length of the longest end of `text` that begins `stop` without being all of it.
std::size_t partial_match(std::string_view text, std::string_view stop) {
  for (std::size_t n = std::min(text.size(), stop.size() - 1); n > 0; --n)
    if (text.ends_with(stop.substr(0, n))) return n;
  return 0;
}

}  // namespace

std::string Utf8Stream::push(std::string_view bytes) {
  held_ += bytes;
  std::string text;
  std::string_view rest = held_;
  while (!rest.empty()) {
    const Unit unit = next_unit(rest);
    if (unit.kind == Unit::Kind::kPrefix) break;
    text += unit.kind == Unit::Kind::kCharacter ? rest.substr(0, unit.bytes) : kReplacement;
    rest.remove_prefix(unit.bytes);
  }
  held_ = std::string(rest);
  return text;
}

std::string Utf8Stream::finish() {
  if (held_.empty()) return {};
  held_.clear();
  return std::string(kReplacement);
}

StopFinder::StopFinder(std::vector<std::string> stops) : stops_(std::move(stops)) {
  for (const std::string& stop : stops_)
    require<ArgumentError>(!stop.empty(), "stop", "expected stop strings that are not empty");
}

std::string StopFinder::push(std::string_view text) {
  if (found_) return {};
  held_ += text;
  std::size_t first = std::string::npos;
  for (const std::string& stop : stops_) first = std::min(first, held_.find(stop));
  if (first != std::string::npos) {
    found_ = true;
    held_.resize(first);
    return std::exchange(held_, {});
  }
  std::size_t keep = 0;
  for (const std::string& stop : stops_) keep = std::max(keep, partial_match(held_, stop));
  std::string sure = held_.substr(0, held_.size() - keep);
  held_.erase(0, sure.size());
  return sure;
}

std::string StopFinder::finish() { return std::exchange(held_, {}); }

TextStream::TextStream(TokenBytes bytes, std::vector<std::string> stops)
    : bytes_(std::move(bytes)), stops_(std::move(stops)) {}

std::string TextStream::push(std::int32_t id) {
  const std::string before = window_.empty() ? std::string() : bytes_(window_);
  window_.push_back(id);
  const std::string after = bytes_(window_);
  if (window_.size() > kWindow) window_.erase(window_.begin());
  return stops_.push(
      utf8_.push(std::string_view(after).substr(std::min(before.size(), after.size()))));
}

std::string TextStream::finish() {
  std::string text = stops_.push(utf8_.finish());
  return text + stops_.finish();
}

}  // namespace qkv::inline v0::infer
