#include "text/post_processor.h"

#include "base/check.h"

namespace qkv::inline v0::text {
namespace {

std::int32_t parse_id(const Json& json) {
  const std::int64_t id = json.as_int();
  require<ModelError>(id >= 0 && id < (std::int64_t{1} << 31), "tokenizer",
                      "expected ids of special tokens from 0, got {}", id);
  return static_cast<std::int32_t>(id);
}

void parse_template(const Json& json, PostProcessor& processor) {
  const Json& specials = json.at("special_tokens");
  bool text_seen = false;
  for (const Json& part : json.at("single").as_array()) {
    if (part.contains("Sequence")) {
      require<UnsupportedError>(!text_seen, "tokenizer",
                                "expected a template with one text, got two");
      text_seen = true;
      continue;
    }
    const std::string& name = part.at("SpecialToken").at("id").as_string();
    for (const Json& id : specials.at(name).at("ids").as_array()) {
      (text_seen ? processor.after : processor.before).push_back(parse_id(id));
    }
  }
  require<ModelError>(text_seen, "tokenizer",
                      "expected a template with a place for the text, got none");
}

void parse_into(const Json& json, PostProcessor& processor) {
  if (json.is_null()) return;
  const std::string& type = json.at("type").as_string();
  const bool roberta = type == "RobertaProcessing";
  if (type == "TemplateProcessing") {
    parse_template(json, processor);
  } else if (type == "BertProcessing" || roberta) {
    processor.before.push_back(parse_id(json.at("cls").at(1)));
    processor.after.push_back(parse_id(json.at("sep").at(1)));
  } else if (type == "Sequence") {
    for (const Json& part : json.at("processors").as_array()) parse_into(part, processor);
    return;
  } else {
    require<UnsupportedError>(
        type == "ByteLevel", "tokenizer",
        "expected the post_processor TemplateProcessing, BertProcessing, RobertaProcessing, "
        "ByteLevel or Sequence, got '{}'",
        type);
  }
  if (type == "ByteLevel" || roberta) {
    processor.trim_offsets = json.at("trim_offsets").as_bool();
    processor.add_prefix_space = json.at("add_prefix_space").as_bool();
  }
}

Json special(const char* name, std::int32_t id) {
  return Json(Json::Object{
      {"id", name}, {"ids", Json::Array{std::int64_t{id}}}, {"tokens", Json::Array{name}}});
}

Json place(const char* kind, const char* id, int type_id) {
  return Json(Json::Object{{kind, Json::Object{{"id", id}, {"type_id", type_id}}}});
}

}  // namespace

PostProcessor parse_post_processor(const Json& json) {
  PostProcessor processor;
  parse_into(json, processor);
  return processor;
}

Json template_json(std::int32_t cls, std::int32_t sep) {
  const Json begin = place("SpecialToken", "[CLS]", 0), end = place("SpecialToken", "[SEP]", 0);
  const Json first = place("Sequence", "A", 0), second = place("Sequence", "B", 1);
  return Json(Json::Object{
      {"type", "TemplateProcessing"},
      {"single", Json::Array{begin, first, end}},
      {"pair", Json::Array{begin, first, end, second, place("SpecialToken", "[SEP]", 1)}},
      {"special_tokens",
       Json::Object{{"[CLS]", special("[CLS]", cls)}, {"[SEP]", special("[SEP]", sep)}}}});
}

}  // namespace qkv::inline v0::text
