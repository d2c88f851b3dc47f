#include "text/decoder.h"

#include <string_view>
#include <utility>

#include "base/check.h"
#include "text/token_model.h"
#include "text/unicode.h"

namespace qkv::inline v0::text {
namespace {

// Joins the tokens with nothing (Fuse) or with spaces (no decoder).
class Join : public Decoder {
 public:
  explicit Join(std::string_view between) : between_(between) {}
  std::string decode(const std::vector<std::string>& tokens) const override {
    std::string text;
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      if (i > 0) text += between_;
      text += tokens[i];
    }
    return text;
  }

 private:
  std::string_view between_;
};

class ByteLevelDecoder : public Decoder {
 public:
  std::string decode(const std::vector<std::string>& tokens) const override {
    std::string all, bytes;
    for (const std::string& token : tokens) all += from_visible(token, bytes) ? bytes : token;
    return replace_invalid_utf8(all);
  }
};

class WordPieceDecoder : public Decoder {
 public:
  WordPieceDecoder(std::string prefix, bool clean_up)
      : prefix_(std::move(prefix)), clean_up_(clean_up) {}
  std::string decode(const std::vector<std::string>& tokens) const override {
    std::string text;
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      std::string part = tokens[i];
      if (i > 0) {
        if (part.starts_with(prefix_)) {
          part.erase(0, prefix_.size());
        } else {
          part.insert(0, 1, ' ');
        }
      }
      text += clean_up_ ? cleaned(std::move(part)) : part;
    }
    return text;
  }

 private:
  // English spacing, as the reference implementation does it: token by token, in this order.
  static std::string cleaned(std::string part) {
    constexpr std::pair<std::string_view, std::string_view> kRules[] = {
        {" .", "."},   {" ?", "?"},     {" !", "!"},     {" ,", ","},
        {" ' ", "'"},  {" n't", "n't"}, {" 'm", "'m"},   {" do not", " don't"},
        {" 's", "'s"}, {" 've", "'ve"}, {" 're", "'re"},
    };
    for (const auto& [from, to] : kRules) {
      for (std::size_t at = part.find(from); at != std::string::npos;
           at = part.find(from, at + to.size())) {
        part.replace(at, from.size(), to);
      }
    }
    return part;
  }

  std::string prefix_;
  bool clean_up_;
};

}  // namespace

std::unique_ptr<const Decoder> make_decoder(const Json& json) {
  if (json.is_null()) return std::make_unique<Join>(" ");
  const std::string& type = json.at("type").as_string();
  if (type == "Fuse") return std::make_unique<Join>("");
  if (type == "ByteLevel") return std::make_unique<ByteLevelDecoder>();
  if (type == "WordPiece") {
    return std::make_unique<WordPieceDecoder>(json.at("prefix").as_string(),
                                              json.at("cleanup").as_bool());
  }
  fail<UnsupportedError>("tokenizer", "expected the decoder ByteLevel, WordPiece or Fuse, got '{}'",
                         type);
}

}  // namespace qkv::inline v0::text
