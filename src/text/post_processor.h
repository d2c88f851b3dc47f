// The last step of encoding: special tokens around the texts, their type ids, and which blanks
// belong to a token's offsets.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "base/json.h"

namespace qkv::inline v0::text {

// One place of a template: a special token, or a whole text.
struct TemplateItem {
  std::int32_t sequence = -1;  // 0, 1: a text; -1: the token `id`
  std::int32_t id = 0;
  std::int32_t type_id = 0;
};

struct PostProcessor {
  std::vector<TemplateItem> single{{0, 0, 0}};
  std::vector<TemplateItem> pair{{0, 0, 0}, {1, 0, 1}};
  bool trim_offsets = false;  // blanks at the ends of a byte-level token are outside its offsets
  bool add_prefix_space = false;  // when trimming: the first blank was added and has no place
};

// From the "post_processor" of a tokenizer.json: TemplateProcessing, BertProcessing,
// RobertaProcessing, ByteLevel, Sequence or null. UnsupportedError names any other type.
PostProcessor parse_post_processor(const Json& json);

// [CLS] text [SEP], and [CLS] text [SEP] text [SEP].
Json template_json(std::int32_t cls, std::int32_t sep);
// A template of the tokens that go before and behind each text.
Json around_json(const std::vector<std::pair<std::string, std::int32_t>>& before,
                 const std::vector<std::pair<std::string, std::int32_t>>& after);

}  // namespace qkv::inline v0::text
