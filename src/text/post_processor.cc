#include "text/post_processor.h"

#include <algorithm>
#include <string>
#include <utility>

#include "base/check.h"
#include "text/json_fields.h"

namespace qkv::inline v0::text {
namespace {

std::int32_t parse_id(const Json& json) {
  const std::int64_t id = json.as_int();
  require<ModelError>(id >= 0 && id < (std::int64_t{1} << 31), "tokenizer",
                      "expected ids of special tokens from 0, got {}", id);
  return static_cast<std::int32_t>(id);
}

std::vector<TemplateItem> parse_items(const Json& list, const Json& specials, int texts) {
  std::vector<TemplateItem> items;
  for (const Json& part : list.as_array()) {
    if (const Json* sequence = part.find("Sequence")) {
      const std::string& name = sequence->at("id").as_string();
      require<ModelError>(name == "A" || (name == "B" && texts == 2), "tokenizer",
                          "expected a template with the text{}, got '{}'",
                          texts == 2 ? "s A and B" : " A", name);
      items.push_back({name == "A" ? 0 : 1, 0, parse_id(sequence->at("type_id"))});
      continue;
    }
    const Json& special = part.at("SpecialToken");
    const std::int32_t type_id = parse_id(special.at("type_id"));
    for (const Json& id : specials.at(special.at("id").as_string()).at("ids").as_array())
      items.push_back({-1, parse_id(id), type_id});
  }
  for (int text = 0; text < texts; ++text) {
    const bool found = std::any_of(items.begin(), items.end(), [text](const TemplateItem& item) {
      return item.sequence == text;
    });
    require<ModelError>(found, "tokenizer",
                        "expected a template with a place for each text, got one without");
  }
  return items;
}

void parse_template(const Json& json, PostProcessor& processor) {
  const Json none = Json::object();
  const Json* specials = json.find("special_tokens");
  const Json& known = specials == nullptr ? none : *specials;
  processor.single = parse_items(json.at("single"), known, 1);
  if (const Json* pair = json.find("pair"); pair != nullptr && !pair->as_array().empty())
    processor.pair = parse_items(*pair, known, 2);
}

// BERT's and RoBERTa's fixed forms.
void set_fixed(std::int32_t cls, std::int32_t sep, bool roberta, PostProcessor& processor) {
  processor.single = {{-1, cls, 0}, {0, 0, 0}, {-1, sep, 0}};
  processor.pair = processor.single;
  if (roberta) processor.pair.push_back({-1, sep, 0});
  const std::int32_t second = roberta ? 0 : 1;
  processor.pair.push_back({1, 0, second});
  processor.pair.push_back({-1, sep, second});
}

// `placed`: a part before has placed special tokens.
void parse_into(const Json& json, PostProcessor& processor, bool& placed) {
  if (json.is_null()) return;
  const std::string& type = json.at("type").as_string();
  if (type == "Sequence") {
    for (const Json& part : json.at("processors").as_array()) parse_into(part, processor, placed);
    return;
  }
  const bool roberta = type == "RobertaProcessing";
  if (type == "ByteLevel" || roberta) {
    processor.trim_offsets = flag_or(json, "trim_offsets", true);
    processor.add_prefix_space = flag_or(json, "add_prefix_space", true);
  }
  if (type == "ByteLevel") return;
  require<UnsupportedError>(!placed, "tokenizer",
                            "expected one post_processor with special tokens, got a second, '{}'",
                            type);
  placed = true;
  if (type == "TemplateProcessing") {
    parse_template(json, processor);
  } else if (type == "BertProcessing" || roberta) {
    set_fixed(parse_id(json.at("cls").at(1)), parse_id(json.at("sep").at(1)), roberta, processor);
  } else {
    fail<UnsupportedError>(
        "tokenizer",
        "expected the post_processor TemplateProcessing, BertProcessing, RobertaProcessing, "
        "ByteLevel or Sequence, got '{}'",
        type);
  }
}

Json special(const std::string& name, std::int32_t id) {
  return Json(Json::Object{
      {"id", name}, {"ids", Json::Array{std::int64_t{id}}}, {"tokens", Json::Array{name}}});
}

Json place(const char* kind, const std::string& id, int type_id) {
  return Json(Json::Object{{kind, Json::Object{{"id", id}, {"type_id", type_id}}}});
}

}  // namespace

PostProcessor parse_post_processor(const Json& json) {
  PostProcessor processor;
  bool placed = false;
  parse_into(json, processor, placed);
  return processor;
}

Json around_json(const std::vector<std::pair<std::string, std::int32_t>>& before,
                 const std::vector<std::pair<std::string, std::int32_t>>& after) {
  Json single = Json::array(), pair = Json::array(), specials = Json::object();
  for (const int text : {0, 1}) {
    const auto add = [&](const Json& item) {
      if (text == 0) single.push_back(item);
      pair.push_back(item);
    };
    for (const auto& [name, id] : before) {
      add(place("SpecialToken", name, text));
      specials[name] = special(name, id);
    }
    add(place("Sequence", text == 0 ? "A" : "B", text));
    for (const auto& [name, id] : after) {
      add(place("SpecialToken", name, text));
      specials[name] = special(name, id);
    }
  }
  return Json(Json::Object{{"type", "TemplateProcessing"},
                           {"single", std::move(single)},
                           {"pair", std::move(pair)},
                           {"special_tokens", std::move(specials)}});
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
