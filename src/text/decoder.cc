#include "text/decoder.h"

#include <string_view>
#include <utility>

#include "base/check.h"
#include "text/json_fields.h"
#include "text/pattern.h"
#include "text/token_model.h"
#include "text/unicode.h"

namespace qkv::inline v0::text {
namespace {

using Tokens = std::vector<std::string>;

void replace_all(std::string& text, std::string_view from, std::string_view to) {
  if (from.empty()) return;
  for (std::size_t at = text.find(from); at != std::string::npos;
       at = text.find(from, at + to.size())) {
    text.replace(at, from.size(), to);
  }
}

// English spacing, as the reference implementation does it: token by token, in this order.
void clean_up(std::string& part) {
  constexpr std::pair<std::string_view, std::string_view> kRules[] = {
      {" .", "."},   {" ?", "?"},     {" !", "!"},     {" ,", ","},
      {" ' ", "'"},  {" n't", "n't"}, {" 'm", "'m"},   {" do not", " don't"},
      {" 's", "'s"}, {" 've", "'ve"}, {" 're", "'re"},
  };
  for (const auto& [from, to] : kRules) replace_all(part, from, to);
}

void join(Tokens& tokens) {
  std::string all;
  for (const std::string& token : tokens) all += token;
  tokens.clear();
  tokens.push_back(std::move(all));
}

class Spaces : public Decoder {
 public:
  void decode(Tokens& tokens) const override {
    for (std::size_t i = 1; i < tokens.size(); ++i) tokens[i].insert(0, 1, ' ');
  }
};

class Fuse : public Decoder {
 public:
  void decode(Tokens& tokens) const override { join(tokens); }
};

class ByteLevelDecoder : public Decoder {
 public:
  void decode(Tokens& tokens) const override {
    decode_bytes(tokens);
    tokens[0] = replace_invalid_utf8(tokens[0]);
  }
  void decode_bytes(Tokens& tokens) const override {
    std::string bytes;
    for (std::string& token : tokens) {
      if (from_visible(token, bytes)) token.swap(bytes);
    }
    join(tokens);
  }
};

class WordPieceDecoder : public Decoder {
 public:
  WordPieceDecoder(std::string prefix, bool clean) : prefix_(std::move(prefix)), clean_up_(clean) {}
  void decode(Tokens& tokens) const override {
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      std::string& part = tokens[i];
      if (i > 0 && part.starts_with(prefix_)) {
        part.erase(0, prefix_.size());
      } else if (i > 0) {
        part.insert(0, 1, ' ');
      }
      if (clean_up_) clean_up(part);
    }
  }

 private:
  std::string prefix_;
  bool clean_up_;
};

class MetaspaceDecoder : public Decoder {
 public:
  MetaspaceDecoder(std::string mark, bool drop_first)
      : mark_(std::move(mark)), drop_first_(drop_first) {}
  void decode(Tokens& tokens) const override {
    for (std::size_t i = 0; i < tokens.size(); ++i)
      replace_all(tokens[i], mark_, i == 0 && drop_first_ ? "" : " ");
  }

 private:
  std::string mark_;
  bool drop_first_;
};

class BpeDecoder : public Decoder {
 public:
  explicit BpeDecoder(std::string suffix) : suffix_(std::move(suffix)) {}
  void decode(Tokens& tokens) const override {
    for (std::size_t i = 0; i < tokens.size(); ++i)
      replace_all(tokens[i], suffix_, i + 1 == tokens.size() ? "" : " ");
  }

 private:
  std::string suffix_;
};

// Runs of byte tokens become the text that they spell; a run that is not UTF-8 becomes one U+FFFD
// a byte.
class ByteFallback : public Decoder {
 public:
  void decode(Tokens& tokens) const override {
    Tokens out;
    std::string bytes;
    const auto flush = [&] {
      if (bytes.empty()) return;
      if (find_invalid_utf8(bytes) == std::string::npos) {
        out.push_back(bytes);
      } else {
        out.insert(out.end(), bytes.size(), "\xEF\xBF\xBD");
      }
      bytes.clear();
    };
    for (std::string& token : tokens) {
      if (const int byte = byte_of_token(token); byte >= 0) {
        bytes += static_cast<char>(byte);
      } else {
        flush();
        out.push_back(std::move(token));
      }
    }
    flush();
    tokens.swap(out);
  }
  void decode_bytes(Tokens& tokens) const override {
    for (std::string& token : tokens)
      if (const int byte = byte_of_token(token); byte >= 0)
        token.assign(1, static_cast<char>(byte));
  }
};

class ReplaceDecoder : public Decoder {
 public:
  ReplaceDecoder(Pattern pattern, std::string content)
      : pattern_(std::move(pattern)), content_(std::move(content)) {}
  void decode(Tokens& tokens) const override {
    std::vector<Span> matches;
    for (std::string& token : tokens) {
      matches.clear();
      pattern_.find_all(token, matches);
      for (std::size_t i = matches.size(); i-- > 0;)
        token.replace(matches[i].begin, matches[i].end - matches[i].begin, content_);
    }
  }

 private:
  Pattern pattern_;
  std::string content_;
};

// Takes up to `start` (`stop`) times the content from the front (the end) of each token.
class StripDecoder : public Decoder {
 public:
  StripDecoder(std::string content, std::int64_t start, std::int64_t stop)
      : content_(std::move(content)), start_(start), stop_(stop) {}
  void decode(Tokens& tokens) const override {
    for (std::string& token : tokens) {
      for (std::int64_t n = 0; n < start_ && token.starts_with(content_); ++n)
        token.erase(0, content_.size());
      for (std::int64_t n = 0; n < stop_ && token.ends_with(content_); ++n)
        token.resize(token.size() - content_.size());
    }
  }

 private:
  std::string content_;
  std::int64_t start_, stop_;
};

class CtcDecoder : public Decoder {
 public:
  CtcDecoder(std::string pad, std::string delimiter, bool clean)
      : pad_(std::move(pad)), delimiter_(std::move(delimiter)), clean_up_(clean) {}
  void decode(Tokens& tokens) const override {
    Tokens out;
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      if (i > 0 && tokens[i] == tokens[i - 1]) continue;
      std::string part = tokens[i];
      replace_all(part, pad_, "");
      if (clean_up_) {
        clean_up(part);
        replace_all(part, delimiter_, " ");
      }
      if (!part.empty()) out.push_back(std::move(part));
    }
    tokens.swap(out);
  }

 private:
  std::string pad_, delimiter_;
  bool clean_up_;
};

class DecoderSequence : public Decoder {
 public:
  explicit DecoderSequence(std::vector<std::unique_ptr<const Decoder>> parts)
      : parts_(std::move(parts)) {}
  void decode(Tokens& tokens) const override {
    for (const auto& part : parts_) part->decode(tokens);
  }
  void decode_bytes(Tokens& tokens) const override {
    for (const auto& part : parts_) part->decode_bytes(tokens);
  }

 private:
  std::vector<std::unique_ptr<const Decoder>> parts_;
};

}  // namespace

int byte_of_token(std::string_view token) {
  if (token.size() != 6 || !token.starts_with("<0x") || token[5] != '>') return -1;
  int byte = 0;
  for (const char c : token.substr(3, 2)) {
    const int digit = c >= '0' && c <= '9'   ? c - '0'
                      : c >= 'A' && c <= 'F' ? c - 'A' + 10
                      : c >= 'a' && c <= 'f' ? c - 'a' + 10
                                             : -1;
    if (digit < 0) return -1;
    byte = byte * 16 + digit;
  }
  return byte;
}

std::string token_of_byte(unsigned char byte) {
  constexpr std::string_view kDigits = "0123456789ABCDEF";
  return {'<', '0', 'x', kDigits[byte >> 4], kDigits[byte & 15], '>'};
}

std::unique_ptr<const Decoder> make_decoder(const Json& json) {
  if (json.is_null()) return std::make_unique<Spaces>();
  const std::string& type = json.at("type").as_string();
  if (type == "Fuse") return std::make_unique<Fuse>();
  if (type == "ByteLevel") return std::make_unique<ByteLevelDecoder>();
  if (type == "ByteFallback") return std::make_unique<ByteFallback>();
  if (type == "BPEDecoder") return std::make_unique<BpeDecoder>(string_or(json, "suffix", "</w>"));
  if (type == "WordPiece") {
    return std::make_unique<WordPieceDecoder>(string_or(json, "prefix", "##"),
                                              flag_or(json, "cleanup", true));
  }
  if (type == "Metaspace") {
    const std::string scheme = string_or(
        json, "prepend_scheme", flag_or(json, "add_prefix_space", true) ? "always" : "never");
    return std::make_unique<MetaspaceDecoder>(string_or(json, "replacement", "\u2581"),
                                              scheme != "never");
  }
  if (type == "Replace") {
    return std::make_unique<ReplaceDecoder>(Pattern::parse(json.at("pattern")),
                                            json.at("content").as_string());
  }
  if (type == "Strip") {
    const std::string content = string_or(json, "content", " ");
    require<ModelError>(!content.empty(), "tokenizer",
                        "expected the content of a Strip decoder, got none");
    return std::make_unique<StripDecoder>(content, int_or(json, "start", 0),
                                          int_or(json, "stop", 0));
  }
  if (type == "CTC") {
    return std::make_unique<CtcDecoder>(string_or(json, "pad_token", "<pad>"),
                                        string_or(json, "word_delimiter_token", "|"),
                                        flag_or(json, "cleanup", true));
  }
  if (type == "Sequence") {
    std::vector<std::unique_ptr<const Decoder>> parts;
    for (const Json& part : json.at("decoders").as_array()) parts.push_back(make_decoder(part));
    return std::make_unique<DecoderSequence>(std::move(parts));
  }
  fail<UnsupportedError>("tokenizer",
                         "expected the decoder BPEDecoder, ByteFallback, ByteLevel, CTC, Fuse, "
                         "Metaspace, Replace, Sequence, Strip or WordPiece, got '{}'",
                         type);
}

}  // namespace qkv::inline v0::text
