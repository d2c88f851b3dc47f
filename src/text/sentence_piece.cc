#include "text/sentence_piece.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "text/char_trie.h"
#include "text/chars_map.h"
#include "text/decoder.h"
#include "text/embedded_vocabulary.h"
#include "text/protobuf.h"
#include "text/unicode.h"

namespace qkv::inline v0::text {
namespace {

constexpr std::string_view kMark = "\u2581";

PieceType type_at(const ScoredPieces& pieces, std::size_t i) {
  return static_cast<PieceType>(pieces.types[i]);
}

// What SentencePiece does to a text before it looks for pieces: replacements by the table (the
// longest first; a user's own pieces are left alone), blanks squeezed, a blank in front, and the
// mark for each blank.
class SentencePieceNormalizer : public Normalizer {
 public:
  explicit SentencePieceNormalizer(const SentencePieceModel& model)
      : map_(model.charsmap),
        add_dummy_prefix_(model.add_dummy_prefix),
        squeeze_(model.remove_extra_whitespaces),
        as_suffix_(model.whitespace_as_suffix),
        blank_(model.escape_whitespaces ? kMark : " ") {
    for (std::size_t i = 0; i < model.pieces.pieces.size(); ++i) {
      const std::string& piece = model.pieces.pieces[i];
      if (type_at(model.pieces, i) == PieceType::kUserDefined && !piece.empty())
        own_.insert(piece, static_cast<std::int32_t>(i));
    }
  }

  AlignedText apply(const AlignedText& text) const override {
    const std::string_view bytes = text.text();
    AlignedText out(text, bytes.size() * 2 + 3);
    std::size_t at = 0;
    while (squeeze_ && at < bytes.size()) {
      const Step step = next(bytes.substr(at));
      if (step.made != " ") break;
      at += step.size;
    }
    if (at == bytes.size()) return out;
    const bool prefix = add_dummy_prefix_ && text.base() == 0;
    if (prefix && !as_suffix_) out.append(blank_, text, static_cast<std::uint32_t>(at));
    bool after_blank = squeeze_;
    while (at < bytes.size()) {
      const Step step = next(bytes.substr(at));
      std::string_view made = step.made;
      while (after_blank && made.starts_with(' ')) made.remove_prefix(1);
      if (!made.empty()) {
        append(made, text, at, step.size, out);
        after_blank = squeeze_ && made.ends_with(' ');
      }
      at += step.size;
    }
    if (squeeze_) {
      std::string_view kept = out.text();
      while (kept.ends_with(blank_)) kept.remove_suffix(blank_.size());
      if (kept.size() < out.text().size())
        out = out.part({0, static_cast<std::uint32_t>(kept.size())});
    }
    if (prefix && as_suffix_)
      out.append(blank_, text, static_cast<std::uint32_t>(bytes.size() - 1));
    return out;
  }

 private:
  struct Step {
    std::string_view made;
    std::size_t size = 0;
  };

  Step next(std::string_view rest) const {
    std::size_t own = 0;
    if (!own_.empty()) own_.prefixes(rest, [&](std::int32_t, std::size_t size) { own = size; });
    if (own > 0) return {rest.substr(0, own), own};
    if (const auto found = map_.longest(rest)) return {found->replacement, found->size};
    const std::size_t size = char_length(rest[0]);
    return {rest.substr(0, size), size};
  }

  void append(std::string_view made, const AlignedText& text, std::size_t at, std::size_t size,
              AlignedText& out) const {
    const Span span{static_cast<std::uint32_t>(at), static_cast<std::uint32_t>(at + size)};
    const Span origin = text.tracks() ? text.original(span) : Span{};
    for (std::size_t i = 0; i < made.size();) {
      const char32_t c = next_char(made, i);
      if (c != U' ') {
        out.append(c, origin);
        continue;
      }
      for (std::size_t b = 0; b < blank_.size();) out.append(next_char(blank_, b), origin);
    }
  }

  CharsMap map_;
  CharTrie own_;
  bool add_dummy_prefix_, squeeze_, as_suffix_;
  std::string_view blank_;
};

void parse_piece(std::string_view message, ScoredPieces& pieces) {
  std::string piece;
  float score = 0;
  std::int64_t type = 1;
  ProtoReader reader(message);
  for (ProtoField field; reader.next(field);) {
    if (field.number == 1) piece = field.bytes;
    if (field.number == 2) score = field.real();
    if (field.number == 3) type = field.integer();
  }
  const std::size_t bad = find_invalid_utf8(piece);
  require<ModelError>(bad == std::string::npos, "tokenizer",
                      "expected pieces in UTF-8, got an invalid byte at position {} of piece {}",
                      bad, pieces.pieces.size());
  require<ModelError>(type >= 1 && type <= 6 && !std::isnan(score), "tokenizer",
                      "expected a piece type from 1 to 6 and a score, got {} and {} of piece {}",
                      type, score, pieces.pieces.size());
  pieces.pieces.push_back(std::move(piece));
  pieces.scores.push_back(score);
  pieces.types.push_back(static_cast<std::int32_t>(type));
}

void parse_trainer(std::string_view message, SentencePieceModel& model) {
  std::int64_t kind = 1;
  ProtoReader reader(message);
  const auto id = [](const ProtoField& field) -> std::optional<std::int32_t> {
    const std::int64_t value = static_cast<std::int32_t>(field.value);
    if (value < 0) return std::nullopt;
    return static_cast<std::int32_t>(value);
  };
  for (ProtoField field; reader.next(field);) {
    if (field.number == 3) kind = field.integer();
    if (field.number == 24) model.whitespace_as_suffix = field.flag();
    if (field.number == 35) model.pieces.byte_fallback = field.flag();
    if (field.number == 41) model.bos = id(field);
    if (field.number == 42) model.eos = id(field);
    if (field.number == 43) model.padding = id(field);
  }
  require<UnsupportedError>(kind == 1 || kind == 2, "tokenizer",
                            "expected a SentencePiece model of type unigram (1) or bpe (2), got {}",
                            kind);
  model.bpe = kind == 2;
}

void parse_normalizer(std::string_view message, SentencePieceModel& model) {
  ProtoReader reader(message);
  for (ProtoField field; reader.next(field);) {
    if (field.number == 2) model.charsmap = field.bytes;
    if (field.number == 3) model.add_dummy_prefix = field.flag();
    if (field.number == 4) model.remove_extra_whitespaces = field.flag();
    if (field.number == 5) model.escape_whitespaces = field.flag();
  }
}

// `strip`: at most so many blanks are taken from the front.
Json decoder_json(int strip) {
  Json::Array parts;
  parts.push_back(Json::Object{
      {"type", "Replace"}, {"pattern", Json::Object{{"String", kMark}}}, {"content", " "}});
  parts.push_back(Json::Object{{"type", "ByteFallback"}});
  parts.push_back(Json::Object{{"type", "Fuse"}});
  if (strip > 0)
    parts.push_back(
        Json::Object{{"type", "Strip"}, {"content", " "}, {"start", strip}, {"stop", 0}});
  return Json(Json::Object{{"type", "Sequence"}, {"decoders", std::move(parts)}});
}

// The merges that give the same tokens, best first: every way to put a piece together from two
// others. The order among equals is that of Hugging Face's converter.
Json merges_json(const ScoredPieces& pieces) {
  struct Made {
    float score;
    std::string_view left, right;
  };
  PieceTable ids(pieces.pieces.size());
  for (std::size_t i = 0; i < pieces.pieces.size(); ++i)
    if (!pieces.pieces[i].empty()) ids.insert(pieces.pieces[i], static_cast<std::int32_t>(i));
  std::vector<Made> merges;
  for (std::size_t i = 0; i < pieces.pieces.size(); ++i) {
    const std::string_view piece = pieces.pieces[i];
    if (type_at(pieces, i) != PieceType::kNormal) continue;
    for (std::size_t at = 0; at < piece.size();) {
      at += char_length(piece[at]);
      if (at >= piece.size()) break;
      if (ids.find(piece.substr(0, at)) >= 0 && ids.find(piece.substr(at)) >= 0)
        merges.push_back({pieces.scores[i], piece.substr(0, at), piece.substr(at)});
    }
  }
  std::stable_sort(merges.begin(), merges.end(),
                   [](const Made& a, const Made& b) { return a.score > b.score; });
  Json::Array list;
  list.reserve(merges.size());
  for (const Made& made : merges) list.push_back(Json::Array{made.left, made.right});
  return Json(std::move(list));
}

Json whole_json(Json frame, const ScoredPieces& pieces, bool bpe, bool prefix) {
  Json model(
      Json::Object{{"type", bpe ? "BPE" : "Unigram"}, {"byte_fallback", pieces.byte_fallback}});
  if (bpe) {
    Json::Object vocabulary;
    for (std::size_t i = 0; i < pieces.pieces.size(); ++i)
      if (!pieces.pieces[i].empty())
        vocabulary.emplace_back(pieces.pieces[i], Json(static_cast<std::int64_t>(i)));
    model["unk_token"] = pieces.pieces[static_cast<std::size_t>(pieces.unknown)];
    model["fuse_unk"] = true;
    model["vocab"] = Json(std::move(vocabulary));
    model["merges"] = merges_json(pieces);
  } else {
    Json vocabulary = Json::array();
    for (std::size_t i = 0; i < pieces.pieces.size(); ++i)
      vocabulary.push_back(Json::Array{pieces.pieces[i], pieces.scores[i]});
    model["unk_id"] = std::int64_t{pieces.unknown};
    model["vocab"] = std::move(vocabulary);
  }
  frame["pre_tokenizer"] = Json::Object{{"type", "Metaspace"},
                                        {"replacement", kMark},
                                        {"prepend_scheme", prefix ? "first" : "never"},
                                        {"split", false}};
  frame["model"] = std::move(model);
  return frame;
}

}  // namespace

SentencePieceModel parse_sentence_piece(std::string_view bytes) {
  SentencePieceModel model;
  ProtoReader reader(bytes);
  for (ProtoField field; reader.next(field);) {
    if (field.number == 1) parse_piece(field.bytes, model.pieces);
    if (field.number == 2) parse_trainer(field.bytes, model);
    if (field.number == 3) parse_normalizer(field.bytes, model);
  }
  const auto& types = model.pieces.types;
  const auto unknown =
      std::find(types.begin(), types.end(), static_cast<std::int32_t>(PieceType::kUnknown));
  require<ModelError>(unknown != types.end(), "tokenizer",
                      "expected a SentencePiece model with an unknown piece, got {} pieces without",
                      types.size());
  model.pieces.unknown = static_cast<std::int32_t>(unknown - types.begin());
  for (auto* id : {&model.bos, &model.eos, &model.padding}) {
    const bool known = id->has_value() && static_cast<std::size_t>(**id) < types.size() &&
                       type_at(model.pieces, static_cast<std::size_t>(**id)) == PieceType::kControl;
    if (!known) id->reset();
  }
  return model;
}

TokenizerParts parts_of_sentence_piece(SentencePieceModel model, Json post_processor, Json config) {
  const ScoredPieces& pieces = model.pieces;
  TokenizerParts parts;
  Json added = Json::array();
  for (std::size_t i = 0; i < pieces.pieces.size(); ++i) {
    const auto id = static_cast<std::int32_t>(i);
    parts.vocabulary.emplace_back(pieces.pieces[i], id);
    const PieceType type = type_at(pieces, i);
    const bool special = type == PieceType::kControl || type == PieceType::kUnknown;
    if (special && !pieces.pieces[i].empty())
      added.push_back(special_token_json(pieces.pieces[i], id));
  }
  constexpr int kAll = 1 << 30;
  const int strip = model.remove_extra_whitespaces ? kAll : model.add_dummy_prefix ? 1 : 0;
  parts.json = Json(Json::Object{{"version", "1.0"},
                                 {"truncation", nullptr},
                                 {"padding", nullptr},
                                 {"added_tokens", std::move(added)},
                                 {"normalizer", nullptr},
                                 {"pre_tokenizer", nullptr},
                                 {"post_processor", std::move(post_processor)},
                                 {"decoder", decoder_json(strip)},
                                 {"model", nullptr}});
  parts.config = std::move(config);
  parts.plain_bytes = false;
  parts.normalizer = std::make_unique<SentencePieceNormalizer>(model);
  parts.saved_json = [pieces = pieces, bpe = model.bpe, prefix = model.add_dummy_prefix](
                         Json frame, const std::vector<std::string>&) {
    return whole_json(std::move(frame), pieces, bpe, prefix);
  };
  parts.model = model.bpe ? make_scored_bpe(std::move(model.pieces)) : make_scored_unigram(pieces);
  return parts;
}

}  // namespace qkv::inline v0::text
