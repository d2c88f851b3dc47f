#include "text/token_model.h"

#include <algorithm>

#include "base/check.h"
#include "text/json_fields.h"
#include "text/piece_table.h"

namespace qkv::inline v0::text {
namespace {

// Whole words, or the unknown token.
class WordLevel : public TokenModel {
 public:
  WordLevel(const Vocabulary& vocabulary, const std::string& unknown) : words_(vocabulary.size()) {
    for (const auto& [token, id] : vocabulary) words_.insert(token, id);
    unknown_ = words_.find(unknown);
  }
  void tokenize(std::string_view word, std::vector<Piece>& pieces) const override {
    const std::int32_t found = words_.find(word);
    const std::int32_t id = found >= 0 ? found : unknown_;
    require<DataError>(id >= 0, "tokenizer",
                       "expected words of the vocabulary (it has no unknown token), got '{}'",
                       word);
    pieces.push_back({id, {0, static_cast<std::uint32_t>(word.size())}});
  }

 private:
  PieceTable words_;
  std::int32_t unknown_ = -1;
};

// A vocabulary of [token, score] pairs, by id.
Vocabulary parse_scored(const Json& json) {
  Vocabulary vocabulary;
  vocabulary.reserve(json.size());
  for (const Json& entry : json.as_array()) {
    require<ModelError>(entry.is_array() && entry.size() == 2, "tokenizer",
                        "expected a vocabulary of pairs of token and score, got {}", entry.dump());
    vocabulary.emplace_back(entry.at(std::size_t{0}).as_string(),
                            static_cast<std::int32_t>(vocabulary.size()));
  }
  return vocabulary;
}

}  // namespace

// Files of the first versions leave the type out.
std::string model_type(const Json& json) {
  if (const Json* given = json.find("type")) return given->as_string();
  if (json.contains("merges")) return "BPE";
  return json.at("vocab").is_array() ? "Unigram" : "WordPiece";
}

std::unique_ptr<const TokenModel> make_model(const Json& json, const Vocabulary& vocabulary,
                                             bool byte_level) {
  const std::string type = model_type(json);
  if (type == "BPE") return make_bpe(json, vocabulary, byte_level);
  if (type == "WordPiece") return make_word_piece(json, vocabulary);
  if (type == "Unigram") return make_unigram(json, vocabulary);
  if (type == "WordLevel") {
    return std::make_unique<WordLevel>(vocabulary, string_or(json, "unk_token", "<unk>"));
  }
  fail<UnsupportedError>("tokenizer",
                         "expected a BPE, Unigram, WordLevel or WordPiece model, got '{}'", type);
}

Vocabulary parse_vocabulary(const Json& json) {
  if (json.is_array()) return parse_scored(json);
  // Holes are rare and short; a table by id must not cost more than the file is worth.
  const std::int64_t limit = static_cast<std::int64_t>(json.as_object().size()) + 100000;
  Vocabulary vocabulary;
  vocabulary.reserve(json.size());
  std::vector<bool> used;
  for (const auto& [token, value] : json.as_object()) {
    const std::int64_t id = value.as_int();
    require<ModelError>(id >= 0 && id < limit, "tokenizer",
                        "expected ids from 0 to {}, got {} for '{}'", limit - 1, id, token);
    if (used.size() <= static_cast<std::size_t>(id)) used.resize(static_cast<std::size_t>(id) + 1);
    require<ModelError>(!used[static_cast<std::size_t>(id)], "tokenizer",
                        "expected each id once, got {} twice", id);
    used[static_cast<std::size_t>(id)] = true;
    vocabulary.emplace_back(token, static_cast<std::int32_t>(id));
  }
  return vocabulary;
}

}  // namespace qkv::inline v0::text
