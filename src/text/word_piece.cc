// WordPiece: the longest piece first (Schuster and Nakajima 2012; the greedy form of BERT).
#include <algorithm>

#include "base/check.h"
#include "text/json_fields.h"
#include "text/piece_table.h"
#include "text/token_model.h"
#include "text/unicode.h"

namespace qkv::inline v0::text {
namespace {

class WordPieceModel : public TokenModel {
 public:
  WordPieceModel(const Vocabulary& vocabulary, const std::string& prefix, std::int32_t unknown,
                 std::int64_t max_chars)
      : first_(vocabulary.size()),
        more_(vocabulary.size()),
        unknown_(unknown),
        max_chars_(max_chars) {
    for (const auto& [token, id] : vocabulary) {
      if (!token.empty()) first_.insert(token, id);
      if (token.size() > prefix.size() && token.starts_with(prefix)) {
        more_.insert(std::string_view(token).substr(prefix.size()), id);
      }
    }
  }

  void tokenize(std::string_view word, std::vector<Piece>& pieces) const override {
    const std::size_t before = pieces.size();
    const Piece whole{unknown_, {0, static_cast<std::uint32_t>(word.size())}};
    if (static_cast<std::int64_t>(word.size()) > max_chars_ && count_chars(word) > max_chars_) {
      pieces.push_back(whole);
      return;
    }
    thread_local std::vector<std::uint64_t> hashes;
    for (std::size_t at = 0; at < word.size();) {
      const auto [id, length] = (at == 0 ? first_ : more_).longest_prefix(word.substr(at), hashes);
      if (length == 0) {  // one unknown part makes the whole word unknown
        pieces.resize(before);
        pieces.push_back(whole);
        return;
      }
      pieces.push_back(
          {id, {static_cast<std::uint32_t>(at), static_cast<std::uint32_t>(at + length)}});
      at += length;
    }
  }

 private:
  PieceTable first_, more_;  // that begin a word; that continue one, without their prefix
  std::int32_t unknown_;
  std::int64_t max_chars_;
};

}  // namespace

std::unique_ptr<const TokenModel> make_word_piece(const Json& json, const Vocabulary& vocabulary) {
  const std::string prefix = string_or(json, "continuing_subword_prefix", "##");
  const std::string unknown = string_or(json, "unk_token", "[UNK]");
  const auto found = std::find_if(vocabulary.begin(), vocabulary.end(),
                                  [&](const auto& entry) { return entry.first == unknown; });
  require<ModelError>(found != vocabulary.end(), "tokenizer",
                      "expected '{}' in the vocabulary, got a vocabulary without it", unknown);
  return std::make_unique<WordPieceModel>(vocabulary, prefix, found->second,
                                          int_or(json, "max_input_chars_per_word", 100));
}

}  // namespace qkv::inline v0::text
