// Text as it grows: whole characters only, and nothing that may turn out to be a stop string.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "qkv/version.h"

namespace qkv::inline v0::infer {

// Bytes in, valid UTF-8 out. Only what may still become a character is held back; bytes that cannot
// are replaced by U+FFFD at once, one for each maximal part of a character as the Unicode standard
// says.
class Utf8Stream {
 public:
  std::string push(std::string_view bytes);
  std::string finish();  // what is held back becomes one U+FFFD

 private:
  std::string held_;
};

// Text in, text out up to the first stop string, which is left out. Text that may begin one is held
// back.
class StopFinder {
 public:
  // ArgumentError for an empty stop string.
  explicit StopFinder(std::vector<std::string> stops);
  std::string push(std::string_view text);
  std::string finish();
  bool found() const { return found_; }

 private:
  std::vector<std::string> stops_;
  std::string held_;
  bool found_ = false;
};

// The bytes that a run of tokens stands for; any cut of a text into runs may be asked for.
using TokenBytes = std::function<std::string(std::span<const std::int32_t>)>;

// Token ids in, text out: both of the above behind TokenBytes.
class TextStream {
 public:
  TextStream(TokenBytes bytes, std::vector<std::string> stops);
  std::string push(std::int32_t id);  // the text that is certain now
  std::string finish();
  bool stopped() const { return stops_.found(); }

 private:
  TokenBytes bytes_;
  Utf8Stream utf8_;
  StopFinder stops_;
  std::vector<std::int32_t> window_;  // the last ids: what a token says may depend on those before
};

}  // namespace qkv::inline v0::infer
