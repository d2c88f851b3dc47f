// The last step of encoding: special tokens around the text, and which blanks belong to a token's
// offsets.
#pragma once

#include <cstdint>
#include <vector>

#include "base/json.h"

namespace qkv::inline v0::text {

struct PostProcessor {
  std::vector<std::int32_t> before, after;  // special tokens around one text
  bool trim_offsets = false;  // blanks at the ends of a byte-level token are outside its offsets
  bool add_prefix_space = false;  // when trimming: the first blank was added and has no place
};

// From the "post_processor" of a tokenizer.json: TemplateProcessing, BertProcessing,
// RobertaProcessing, ByteLevel, Sequence or null. UnsupportedError names any other type.
PostProcessor parse_post_processor(const Json& json);

// [CLS] text [SEP].
Json template_json(std::int32_t cls, std::int32_t sep);

}  // namespace qkv::inline v0::text
