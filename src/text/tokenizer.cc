#include "qkv/tokenizer.h"

#include "base/check.h"
#include "base/file.h"
#include "base/path.h"
#include "text/pipeline.h"

namespace qkv::inline v0 {
namespace {
namespace fs = std::filesystem;

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

text::TokenizerParts text::parts_of_json(Json json, Json config) {
  TokenizerParts parts;
  const Json& model = json.at("model");
  const Json& vocabulary = model.at("vocab");
  const bool scored = model_type(model) == "Unigram";
  require<ModelError>(scored ? vocabulary.is_array() : vocabulary.is_object(), "tokenizer",
                      "expected the vocabulary of a {} model as an {}, got an {}",
                      model_type(model), scored ? "array" : "object", vocabulary.type_name());
  parts.vocabulary = parse_vocabulary(vocabulary);
  parts.plain_bytes = takes_plain_bytes(model);
  const Json* pre_tokenizer = json.find("pre_tokenizer");
  const bool byte_level =
      parts.plain_bytes && pre_tokenizer != nullptr && ends_in_byte_level(*pre_tokenizer);
  parts.model = make_model(model, parts.vocabulary, byte_level);
  parts.json = std::move(json);
  parts.config = std::move(config);
  return parts;
}

Tokenizer::Impl::Impl(text::TokenizerParts parts)
    : json(std::move(parts.json)),
      config(std::move(parts.config)),
      words(json, parts.plain_bytes, std::move(parts.normalizer)),
      model(std::move(parts.model)),
      ids(parts.vocabulary.size() + words.added_tokens().size()),
      saved_json(std::move(parts.saved_json)),
      files(std::move(parts.files)) {
  const Json* decoder_json = json.find("decoder");
  decoder = text::make_decoder(decoder_json == nullptr ? Json() : *decoder_json);
  if (const Json* post_json = json.find("post_processor"))
    post = text::parse_post_processor(*post_json);
  if (const Json* setting = json.find("truncation")) truncation = text::parse_truncation(*setting);
  if (const Json* setting = json.find("padding")) padding = text::parse_padding(*setting);
  tokens.reserve(parts.vocabulary.size());
  for (const auto& [token, id] : parts.vocabulary) add_token(token, id);
  for (const text::AddedToken& token : words.added_tokens()) {
    add_token(token.content, token.id);
    special[static_cast<std::size_t>(token.id)] = token.special;
  }
  check_template();
  find_roles();
}

void Tokenizer::Impl::check_template() const {
  for (const auto* items : {&post.single, &post.pair}) {
    for (const text::TemplateItem& item : *items) {
      require<ModelError>(
          item.sequence >= 0 || knows(item.id), "tokenizer",
          "expected the special tokens of the post_processor in the vocabulary, got id {}",
          item.id);
    }
  }
}

void Tokenizer::Impl::add_token(const std::string& token, std::int64_t id) {
  const auto index = static_cast<std::size_t>(id);
  require<ModelError>(index < tokens.size() + 100000, "tokenizer",
                      "expected ids without wide holes, got {} for '{}'", id, token);
  const std::int32_t before = token.empty() ? -1 : ids.find(token);
  require<ModelError>(before < 0 || before == id, "tokenizer",
                      "expected one id for '{}', got {} and {}", token, before, id);
  if (before < 0) ids.insert(token, static_cast<std::int32_t>(id));
  if (index >= tokens.size()) {
    tokens.resize(index + 1);
    known.resize(index + 1);
    special.resize(index + 1);
  }
  require<ModelError>(!known[index] || tokens[index] == token, "tokenizer",
                      "expected one token for id {}, got '{}' and '{}'", id, tokens[index], token);
  tokens[index] = token;
  known[index] = true;
}

void Tokenizer::Impl::find_roles() {
  const auto add = [this](const std::string& role, const std::string& token) {
    if (const std::int32_t id = ids.find(token); id >= 0) roles.emplace(role, id);
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
    const bool older = in_folder ? !path_exists(file) : file.extension() == ".model";
    text::TokenizerParts parts =
        older ? text::parts_of_older_files(folder, std::move(config))
              : text::parts_of_json(Json::parse(read_file(file), file.string()), std::move(config));
    return Tokenizer(std::make_shared<const Impl>(std::move(parts)));
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
  for (const auto& [name, bytes] : impl_->files) write_file_atomic(folder / name, bytes);
  if (impl_->files.empty()) {
    Json json = impl_->json;
    if (impl_->saved_json) json = impl_->saved_json(std::move(json), impl_->tokens);
    write_file_atomic(folder / "tokenizer.json", json.dump(2) + "\n");
  }
  write_file_atomic(folder / "tokenizer_config.json", impl_->config.dump(2) + "\n");
}

std::vector<std::string> Tokenizer::Impl::pieces(std::span<const std::int32_t> given,
                                                 bool skip_special) const {
  std::vector<std::string> kept;
  for (const std::int32_t id : given) {
    const auto at = static_cast<std::size_t>(id);
    require<ArgumentError>(knows(id), "tokenizer", "expected a token id from 0 to {}, got {}",
                           tokens.size() - 1, id);
    if (!skip_special || !special[at]) kept.push_back(tokens[at]);
  }
  return kept;
}

std::string Tokenizer::decode(std::span<const std::int32_t> ids, bool skip_special_tokens) const {
  std::vector<std::string> parts = impl_->pieces(ids, skip_special_tokens);
  impl_->decoder->decode(parts);
  std::string text;
  for (const std::string& part : parts) text += part;
  return text;
}

std::string Tokenizer::decode_bytes(std::span<const std::int32_t> ids,
                                    bool skip_special_tokens) const {
  std::vector<std::string> parts = impl_->pieces(ids, skip_special_tokens);
  impl_->decoder->decode_bytes(parts);
  std::string bytes;
  for (const std::string& part : parts) bytes += part;
  return bytes;
}

const std::optional<Truncation>& Tokenizer::truncation() const { return impl_->truncation; }
const std::optional<Padding>& Tokenizer::padding() const { return impl_->padding; }

std::int64_t Tokenizer::vocab_size() const {
  return static_cast<std::int64_t>(impl_->tokens.size());
}

std::optional<std::int32_t> Tokenizer::token_id(std::string_view token) const {
  const std::int32_t id = token.empty() ? -1 : impl_->ids.find(token);
  if (id < 0) return std::nullopt;
  return id;
}

const std::string& Tokenizer::token(std::int32_t id) const {
  require<ArgumentError>(impl_->knows(id), "tokenizer", "expected a token id from 0 to {}, got {}",
                         vocab_size() - 1, id);
  return impl_->tokens[static_cast<std::size_t>(id)];
}

std::optional<std::int32_t> Tokenizer::special_id(std::string_view role) const {
  const auto found = impl_->roles.find(role);
  if (found == impl_->roles.end()) return std::nullopt;
  return found->second;
}

}  // namespace qkv::inline v0
