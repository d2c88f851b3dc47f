#include "qkv/tokenizer.h"

#include <algorithm>

#include "base/check.h"
#include "base/file.h"
#include "base/path.h"
#include "text/pipeline.h"
#include "text/unicode.h"

namespace qkv::inline v0 {
namespace {
namespace fs = std::filesystem;
using text::Span;

// Byte positions of a text to character positions.
class CharIndex {
 public:
  explicit CharIndex(std::string_view text) {
    if (std::none_of(text.begin(), text.end(),
                     [](char c) { return static_cast<unsigned char>(c) >= 0x80; }))
      return;
    chars_.reserve(text.size());
    std::uint32_t index = 0;
    for (std::size_t i = 0; i < text.size(); ++i) {
      if (i > 0 && (static_cast<unsigned char>(text[i]) & 0xC0) != 0x80) ++index;
      chars_.push_back(index);
    }
  }
  // Whole characters: a part of one counts as all of it.
  std::pair<std::int64_t, std::int64_t> chars(Span bytes) const {
    if (chars_.empty()) return {bytes.begin, bytes.end};
    if (bytes.begin == bytes.end) {
      const std::int64_t at = bytes.begin == 0 ? 0 : chars_[bytes.begin - 1] + std::int64_t{1};
      return {at, at};
    }
    return {chars_[bytes.begin], chars_[bytes.end - 1] + std::int64_t{1}};
  }

 private:
  std::vector<std::uint32_t> chars_;  // empty: every character is one byte
};

// Leaves the blanks at a byte-level token's ends out of its offsets. `keep_first`: a single blank
// in front was added and takes no place.
void trim(const std::string& token, bool keep_first,
          std::pair<std::int64_t, std::int64_t>& offsets) {
  const auto is_blank = [](char32_t c) {
    return c == text::visible_byte(' ') || text::is_white_space(c);
  };
  std::int64_t leading = 0, trailing = 0;
  bool only_blanks = true;
  for (std::size_t at = 0; at < token.size();) {
    const bool blank = is_blank(text::next_char(token, at));
    only_blanks = only_blanks && blank;
    if (only_blanks) ++leading;
    trailing = blank ? trailing + 1 : 0;
  }
  if (leading > 0 && !(keep_first && leading == 1))
    offsets.first = std::min(offsets.first + leading, offsets.second);
  if (trailing > 0 && offsets.second >= trailing)
    offsets.second = std::max(offsets.second - trailing, offsets.first);
}

Json config_of(const fs::path& folder) {
  Json config = Json::object();
  for (const char* name : {"tokenizer_config.json", "special_tokens_map.json"}) {
    const fs::path path = folder / name;
    if (!path_exists(path)) continue;
    try {
      const Json file = Json::parse(read_file(path), name);
      for (const auto& [key, value] : file.as_object()) {
        if (!config.contains(key)) config[key] = value;
      }
    } catch (const DataError& error) {
      fail<ModelError>("tokenizer", "'{}': {}", path.string(), error_reason(error));
    }
  }
  return config;
}

}  // namespace

Tokenizer::Impl::Impl(Json tokenizer_json, Json tokenizer_config)
    : json(std::move(tokenizer_json)), config(std::move(tokenizer_config)), words(json) {
  const Json& model_json = json.at("model");
  const text::Vocabulary vocabulary = text::parse_vocabulary(model_json.at("vocab"));
  model = text::make_model(model_json, vocabulary, words.byte_level());
  const Json* decoder_json = json.find("decoder");
  decoder = text::make_decoder(decoder_json == nullptr ? Json() : *decoder_json);
  if (const Json* post_json = json.find("post_processor"))
    post = text::parse_post_processor(*post_json);
  for (const auto& [token, id] : vocabulary) add_token(token, id);
  for (const text::AddedToken& token : words.added_tokens()) {
    add_token(token.content, token.id);
    special[static_cast<std::size_t>(token.id)] = token.special;
  }
  for (const auto* around : {&post.before, &post.after}) {
    for (const std::int32_t id : *around) {
      const bool known = static_cast<std::size_t>(id) < tokens.size() &&
                         !tokens[static_cast<std::size_t>(id)].empty();
      require<ModelError>(
          known, "tokenizer",
          "expected the special tokens of the post_processor in the vocabulary, got id {}", id);
    }
  }
  find_roles();
}

void Tokenizer::Impl::add_token(const std::string& token, std::int64_t id) {
  const auto index = static_cast<std::size_t>(id);
  require<ModelError>(index < tokens.size() + 100000, "tokenizer",
                      "expected ids without wide holes, got {} for '{}'", id, token);
  const auto [entry, added] = ids.emplace(token, static_cast<std::int32_t>(id));
  require<ModelError>(added || entry->second == id, "tokenizer",
                      "expected one id for '{}', got {} and {}", token, entry->second, id);
  if (index >= tokens.size()) {
    tokens.resize(index + 1);
    special.resize(index + 1);
  }
  require<ModelError>(tokens[index].empty() || tokens[index] == token, "tokenizer",
                      "expected one token for id {}, got '{}' and '{}'", id, tokens[index], token);
  tokens[index] = token;
}

void Tokenizer::Impl::find_roles() {
  const auto add = [this](const std::string& role, const std::string& token) {
    if (const auto found = ids.find(token); found != ids.end()) roles.emplace(role, found->second);
  };
  for (const auto& [key, value] : config.as_object()) {
    if (!key.ends_with("_token")) continue;
    const std::string role = key.substr(0, key.size() - 6);
    if (value.is_string()) add(role, value.as_string());
    if (const Json* content = value.find("content")) add(role, content->as_string());
  }
  for (const auto& [role, bert, other] :
       {std::tuple{"pad", "[PAD]", "<pad>"}, std::tuple{"unk", "[UNK]", "<unk>"},
        std::tuple{"cls", "[CLS]", "<s>"}, std::tuple{"sep", "[SEP]", "</s>"},
        std::tuple{"mask", "[MASK]", "<mask>"}}) {
    add(role, bert);
    add(role, other);
  }
}

Tokenizer Tokenizer::load(const fs::path& folder) {
  const bool in_folder = is_folder(folder);
  const fs::path file = in_folder ? folder / "tokenizer.json" : folder;
  Json config = config_of(file.parent_path());
  try {
    Json json = in_folder && !path_exists(file) ? text::json_of_older_files(folder)
                                                : Json::parse(read_file(file), file.string());
    return Tokenizer(std::make_shared<const Impl>(std::move(json), std::move(config)));
  } catch (const UnsupportedError& error) {
    fail<UnsupportedError>("tokenizer", "'{}': {}", file.string(), error_reason(error));
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kData && error.code() != ErrorCode::kModel) throw;
    fail<ModelError>("tokenizer", "'{}': {}", file.string(), error_reason(error));
  }
}

void Tokenizer::save(const fs::path& folder) const {
  std::error_code code;
  fs::create_directories(folder, code);
  require<IoError>(!code, "tokenizer", "expected to make the folder '{}', got: {}", folder.string(),
                   code.message());
  write_file_atomic(folder / "tokenizer.json", impl_->json.dump(2) + "\n");
  write_file_atomic(folder / "tokenizer_config.json", impl_->config.dump(2) + "\n");
}

Encoding Tokenizer::encode(std::string_view text, const EncodeOptions& options) const {
  const std::size_t bad = find_invalid_utf8(text);
  require<DataError>(bad == std::string_view::npos, "tokenizer",
                     "expected UTF-8, got an invalid byte at position {}", bad);
  require<DataError>(text.size() < (std::size_t{1} << 31), "tokenizer",
                     "expected a text below 2 GiB, got {} bytes", text.size());
  const bool track = options.with_pieces;
  Encoding encoding;
  std::vector<Span> spans;  // bytes of the original
  std::vector<text::Piece> pieces;
  const auto add = [&](std::int32_t id, Span span) {
    encoding.ids.push_back(id);
    if (track) spans.push_back(span);
  };
  const auto add_specials = [&](const std::vector<std::int32_t>& ids) {
    if (!options.add_special_tokens) return;
    for (const std::int32_t id : ids) add(id, {});
  };
  add_specials(impl_->post.before);
  const std::size_t first = encoding.ids.size();
  impl_->words.find(
      text, options.parse_special, track, add,
      [&](const text::AlignedText& part, const std::vector<Span>& words) {
        for (const Span& word : words) {
          pieces.clear();
          impl_->model->tokenize(part.text().substr(word.begin, word.end - word.begin), pieces);
          for (const text::Piece& piece : pieces) {
            const Span inside{word.begin + piece.span.begin, word.begin + piece.span.end};
            add(piece.id, track ? part.original(inside) : Span{});
          }
        }
      });
  const std::size_t last = encoding.ids.size();
  add_specials(impl_->post.after);
  if (!track) return encoding;
  const CharIndex index(text);
  for (std::size_t i = 0; i < encoding.ids.size(); ++i) {
    encoding.tokens.push_back(impl_->tokens[static_cast<std::size_t>(encoding.ids[i])]);
    encoding.offsets.push_back(index.chars(spans[i]));
    if (impl_->post.trim_offsets && i >= first && i < last) {
      const bool added =
          impl_->post.add_prefix_space && (i == first || encoding.offsets.back().first == 0);
      trim(encoding.tokens.back(), added, encoding.offsets.back());
    }
  }
  return encoding;
}

std::string Tokenizer::decode(std::span<const std::int32_t> ids, bool skip_special_tokens) const {
  std::vector<std::string> tokens;
  for (const std::int32_t id : ids) {
    const std::string& piece = token(id);
    if (!skip_special_tokens || !impl_->special[static_cast<std::size_t>(id)])
      tokens.push_back(piece);
  }
  return impl_->decoder->decode(tokens);
}

std::int64_t Tokenizer::vocab_size() const {
  return static_cast<std::int64_t>(impl_->tokens.size());
}

std::optional<std::int32_t> Tokenizer::token_id(std::string_view token) const {
  const auto found = impl_->ids.find(std::string(token));
  if (found == impl_->ids.end()) return std::nullopt;
  return found->second;
}

const std::string& Tokenizer::token(std::int32_t id) const {
  const bool known =
      id >= 0 && id < vocab_size() && !impl_->tokens[static_cast<std::size_t>(id)].empty();
  require<ArgumentError>(known, "tokenizer", "expected a token id from 0 to {}, got {}",
                         vocab_size() - 1, id);
  return impl_->tokens[static_cast<std::size_t>(id)];
}

std::optional<std::int32_t> Tokenizer::special_id(std::string_view role) const {
  const auto found = impl_->roles.find(role);
  if (found == impl_->roles.end()) return std::nullopt;
  return found->second;
}

}  // namespace qkv::inline v0
